import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    ConvDecoderBlock,
    ConvEncoderBlock,
    WeightNormConv,
    scale_gradient,
)
from tests.helpers import check_layer

HALF = 0.5**0.5
WIDTH, DIM, EMBEDDING = 4, 4, 3


def spread(layer, seed=0):
    """Gives every weight, biases and gains too, values that show an error."""
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        if weight.dtype == "float32":
            weight.assign(generator.normal(0, 0.7, weight.shape))
    return layer


def assign(layer, kernel, bias=0.0):
    """Makes `kernel` the normalised kernel of a WeightNormConv."""
    kernel = np.reshape(kernel, layer.direction.shape).astype("float32")
    layer.direction.assign(np.where(kernel == 0, 1e-12, kernel))
    layer.gain.assign(np.sqrt((kernel**2).sum((0, 1))))
    layer.bias.assign(np.zeros(layer.bias.shape) + bias)


def silence(layer):
    """Makes the output 0 for every input."""
    layer.gain.assign(np.zeros(layer.gain.shape))
    layer.bias.assign(np.zeros(layer.bias.shape))


def gradient(function, x):
    """Gradient of a scalar function of one array, on the backend in use."""
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(function)(ops.convert_to_tensor(x)))
    import tensorflow as tf

    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return tape.gradient(value, x).numpy()


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def convolved(layer, x):
    """The NumPy twin of WeightNormConv, position by position."""
    direction, gain, bias = (
        ops.convert_to_numpy(w).astype("float64")
        for w in (layer.direction, layer.gain, layer.bias)
    )
    kernel = np.zeros_like(direction)
    for channel in range(direction.shape[-1]):
        norm = np.sqrt((direction[..., channel] ** 2).sum())
        kernel[..., channel] = gain[channel] * direction[..., channel] / norm
    size = len(kernel)
    rows = [
        sum(x[:, start + tap] @ kernel[tap] for tap in range(size)) + bias
        for start in range(x.shape[1] - size + 1)
    ]
    y = np.stack(rows, 1)
    if not layer.gated:
        return y
    half = y.shape[-1] // 2
    return y[..., :half] * sigmoid(y[..., half:])


def memory_of(mask, seed=5):
    mask = np.array(mask)
    return {
        "mask": mask,
        "keys": normal(*mask.shape, EMBEDDING, seed=seed),
        "values": normal(*mask.shape, EMBEDDING, seed=seed + 1),
    }


def decoder_block(dim=DIM, kernel_size=3, **options):
    block = ConvDecoderBlock(dim, kernel_size, **options)
    block.build((None, None, WIDTH), (None, None, EMBEDDING))
    return spread(block)


# The weight-normalised convolution


def test_gate_halves_where_it_is_zero_and_is_the_second_half():
    """GLU(a, 0) = a / 2; a wide open gate passes a, a closed one nothing."""
    layer = WeightNormConv(2, gated=True)
    x = normal(1, 3, 2)
    layer(x)
    assign(layer, [[1, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_allclose(layer(x), x / 2, atol=1e-6)
    layer.bias.assign([0, 0, 50, -50])
    np.testing.assert_allclose(layer(x), x * [1, 0], atol=1e-6)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_convolution_equals_its_formula(kernel_size, gated):
    layer = WeightNormConv(3, kernel_size, gated=gated)
    x = normal(2, 5, WIDTH)
    layer(x)
    spread(layer)
    assert layer.direction.shape == (kernel_size, WIDTH, 6 if gated else 3)
    found = check_layer(layer, x)
    np.testing.assert_allclose(found, convolved(layer, x), atol=1e-5)


def test_scaling_an_output_channels_direction_changes_nothing():
    layer = WeightNormConv(3, 3)
    x = normal(2, 5, WIDTH)
    layer(x)
    before = ops.convert_to_numpy(layer(x))
    layer.direction.assign(layer.direction * np.array([0.01, 3.0, 500.0], "float32"))
    np.testing.assert_allclose(layer(x), before, atol=1e-5)
    scales = np.array([1.0, 2.0, 3.0, 4.0], "float32")[:, None]
    layer.direction.assign(layer.direction * scales)
    assert np.abs(layer(x) - before).max() > 0.1


def test_gain_sets_the_norm_of_each_output_channels_kernel():
    layer = WeightNormConv(2, 3)
    layer.build((None, None, WIDTH))
    layer.gain.assign([2.0, 0.5])
    # One-hot inputs, far enough apart, read the kernel out.
    x = np.zeros((1, 2 * 3 + 1, WIDTH), "float32")
    squares = np.zeros(2)
    for channel in range(WIDTH):
        x[:] = 0
        x[0, 3, channel] = 1
        squares += (ops.convert_to_numpy(layer(x)) ** 2).sum((0, 1))
    np.testing.assert_allclose(np.sqrt(squares), [2.0, 0.5], atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_layer_starts_as_its_direction_with_the_stated_spread(gated):
    keras.utils.set_random_seed(3)
    layer = WeightNormConv(64, 5, gated=gated, input_dropout=0.2)
    layer.build((None, None, 8))
    direction = ops.convert_to_numpy(layer.direction)
    expected = np.sqrt((4 if gated else 1) * 0.8 / (5 * 8))
    assert direction.std() == pytest.approx(expected, rel=0.04)
    assert direction.mean() == pytest.approx(0, abs=0.02)
    norms = np.sqrt((direction**2).sum((0, 1)))
    np.testing.assert_allclose(layer.gain, norms, rtol=1e-5)
    np.testing.assert_array_equal(layer.bias, np.zeros(layer.bias.shape))


@pytest.mark.parametrize("gated", [False, True])
def test_start_keeps_the_scale_of_the_input(gated):
    """A gate near its middle halves, which the start makes up for."""
    keras.utils.set_random_seed(4)
    layer = WeightNormConv(64, 3, gated=gated)
    outputs = ops.convert_to_numpy(layer(0.1 * normal(8, 34, 16)))
    assert outputs.std() == pytest.approx(0.1, rel=0.1)


def test_norm_is_taken_in_float32_under_half_precision():
    single = WeightNormConv(2, 3)
    half = WeightNormConv(2, 3, dtype="mixed_float16")
    x = normal(2, 5, WIDTH)
    single(x)
    half(x)
    # Squares of these pass the largest float16.
    single.direction.assign(300 * normal(3, WIDTH, 2, seed=7))
    half.set_weights(single.get_weights())
    found = half(x)
    assert keras.backend.standardize_dtype(found.dtype) == "float16"
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), single(x), rtol=1e-2, atol=1.0
    )
    half.direction.assign(half.direction * 1e4)
    np.testing.assert_allclose(half(x), found, rtol=1e-2, atol=1.0)


def test_a_channel_without_direction_is_its_bias():
    layer = WeightNormConv(2, 3)
    x = normal(1, 4, WIDTH)
    layer(x)
    layer.direction.assign(np.zeros(layer.direction.shape))
    layer.bias.assign([1.0, -2.0])
    np.testing.assert_array_equal(layer(x), np.tile([1.0, -2.0], (1, 2, 1)))


# The gradient's scale


def test_scaled_gradient_leaves_the_value_and_scales_the_way_back():
    x = normal(3, 5)
    for dtype in ("float32", "float16", "bfloat16"):
        value = ops.cast(x, dtype)
        found = ops.cast(scale_gradient(value, 1 / 6), "float32")
        np.testing.assert_array_equal(found, ops.cast(value, "float32"))
    plain = gradient(lambda v: ops.sum(v**3), x)
    scaled = gradient(lambda v: ops.sum(scale_gradient(v, 1 / 6) ** 3), x)
    np.testing.assert_allclose(scaled, plain / 6, rtol=1e-5)


# The encoder block


def encoder(layers, kernel_size, dim=WIDTH):
    blocks = [ConvEncoderBlock(dim, kernel_size) for _ in range(layers)]
    for block in blocks:
        block.build((None, None, dim))
    return blocks


def run(blocks, x, mask):
    for block in blocks:
        x = block(x, mask)
    return ops.convert_to_numpy(x)


def test_silent_convolutions_leave_the_residual_of_each_layer():
    """x^L = x^0 sqrt(1/2)^L."""
    blocks = encoder(3, 3)
    for block in blocks:
        silence(block.convolution)
    x = normal(2, 5, WIDTH)
    found = run(blocks, x, np.ones((2, 5), bool))
    np.testing.assert_allclose(found, x * HALF**3, atol=1e-6)


def test_six_layers_of_kernel_five_see_twenty_five_positions():
    """1 + L (k - 1), half on each side."""
    blocks = encoder(6, 5, dim=1)
    for block in blocks:
        assign(block.convolution, np.tile([1.0, 0.0], (5, 1, 1)))
    x = np.zeros((1, 41, 1), "float32")
    x[0, 20] = 1
    (seen,) = np.nonzero(run(blocks, x, np.ones((1, 41), bool))[0, :, 0])
    np.testing.assert_array_equal(seen, np.arange(20 - 12, 20 + 13))


@pytest.mark.parametrize(("kernel_size", "left"), [(1, 0), (2, 0), (3, 1), (4, 1)])
def test_encoder_block_equals_its_formula(kernel_size, left):
    block = ConvEncoderBlock(5, kernel_size)
    x = normal(2, 6, WIDTH)
    mask = np.array([[True] * 6, [True] * 3 + [False] * 3])
    block(x, mask)
    spread(block)
    seen = np.where(mask[..., None], x, 0)
    seen = np.pad(seen, ((0, 0), (left, kernel_size - 1 - left), (0, 0)))
    residual = convolved(block.residual_projection, x)
    expected = (convolved(block.convolution, seen) + residual) * HALF
    np.testing.assert_allclose(check_layer(block, x, mask), expected, atol=1e-5)


def test_a_block_of_unchanged_width_has_no_projection():
    block = ConvEncoderBlock(WIDTH, 3)
    block.build((None, None, WIDTH))
    assert block.residual_projection is None
    assert len(block.weights) == 3


@pytest.mark.parametrize("kernel_size", [2, 3, 5])
def test_padding_does_not_leak_between_encoder_blocks(kernel_size):
    blocks = encoder(3, kernel_size)
    for seed, block in enumerate(blocks):
        spread(block, seed)
    x = normal(1, 7, WIDTH)
    mask = np.array([[True] * 4 + [False] * 3])
    padded = run(blocks, x, mask)
    alone = run(blocks, x[:, :4], mask[:, :4])
    np.testing.assert_allclose(padded[:, :4], alone, atol=1e-6)
    x[:, 4:] = 1000
    np.testing.assert_array_equal(run(blocks, x, mask)[:, :4], padded[:, :4])


def test_dropout_acts_on_the_convolutions_input_only():
    block = ConvEncoderBlock(WIDTH, 1, dropout=0.5)
    x = np.ones((1, 200, WIDTH), "float32")
    mask = np.ones((1, 200), bool)
    block(x, mask)
    assign(block.convolution, np.eye(WIDTH, 2 * WIDTH))  # half of what is kept
    found = ops.convert_to_numpy(block(x, mask, training=True)) / HALF
    assert set(np.unique(found.round(4))) == {1.0, 2.0}  # residual + half of 0 or 2
    np.testing.assert_allclose(block(x, mask), 1.5 * HALF * x, atol=1e-6)


# The decoder block


@pytest.mark.parametrize(("dim", "kernel_size"), [(4, 3), (5, 2), (4, 1)])
def test_decoder_block_equals_its_formula(dim, kernel_size):
    block = decoder_block(dim, kernel_size)
    x, embedded = normal(2, 5, WIDTH), normal(2, 5, EMBEDDING, seed=2)
    memory = memory_of([[True] * 4, [True, True, True, False]])
    found, weights = block(x, embedded, memory)
    shapes = keras.tree.map_structure(np.shape, memory)
    predicted = block.compute_output_shape(x.shape, embedded.shape, shapes)
    assert predicted == (tuple(found.shape), tuple(weights.shape))

    seen = np.pad(x, ((0, 0), (kernel_size - 1, 0), (0, 0)))
    values = convolved(block.convolution, seen)
    query = (convolved(block.query_projection, values) + embedded) * HALF
    for row, real in enumerate((4, 3)):
        scores = query[row] @ memory["keys"][row, :real].T
        expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(weights[row, :, :real], expected, atol=1e-5)
        np.testing.assert_array_equal(weights[row, :, real:], np.zeros((5, 4 - real)))
        context = np.sqrt(real) * expected @ memory["values"][row, :real]
        attended = convolved(block.context_projection, context[None])[0]
        output = (attended + values[row]) * HALF
        residual = x[row]
        if dim != WIDTH:
            residual = convolved(block.residual_projection, x)[row]
        np.testing.assert_allclose(
            found[row], (output + residual) * HALF, atol=1e-5, rtol=1e-5
        )


def test_context_of_m_equal_values_is_root_m_times_the_value():
    """m = 4 real positions of 6 give twice the value, whatever is padded."""
    block = decoder_block(EMBEDDING, 1)
    silence(block.convolution)
    assign(block.context_projection, np.eye(EMBEDDING))
    value = np.array([1.0, -2.0, 0.5], "float32")
    memory = {
        "mask": np.array([[True] * 4 + [False] * 2]),
        "keys": np.zeros((1, 6, EMBEDDING), "float32"),
        "values": np.tile(value, (1, 6, 1)),
    }
    zeros = np.zeros((1, 1, WIDTH), "float32")
    assign(block.residual_projection, np.eye(WIDTH, EMBEDDING))
    output, weights = block(zeros, zeros[..., :EMBEDDING], memory)
    np.testing.assert_allclose(weights[0, 0], [0.25] * 4 + [0] * 2, atol=1e-6)
    np.testing.assert_allclose(output[0, 0], HALF * HALF * 2 * value, atol=1e-6)


def test_later_targets_change_nothing_earlier():
    block = decoder_block(kernel_size=4)
    x, embedded = normal(1, 6, WIDTH), normal(1, 6, EMBEDDING, seed=2)
    memory = memory_of([[True] * 3])
    before, _ = block(x, embedded, memory)
    x[:, 3:] += 1
    embedded[:, 3:] -= 1
    after, _ = block(x, embedded, memory)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert np.abs(before[:, 3:] - after[:, 3:]).min(-1).max() > 1e-3


def test_decoder_sees_its_kernel_backwards_only():
    block = decoder_block(kernel_size=3)
    x, embedded = normal(1, 8, WIDTH), normal(1, 8, EMBEDDING, seed=2)
    memory = memory_of([[True] * 3])
    before, _ = block(x, embedded, memory)
    x[:, 4] += 1
    after, _ = block(x, embedded, memory)
    changed = np.abs(ops.convert_to_numpy(after) - before).max(-1)[0] > 1e-6
    np.testing.assert_array_equal(np.nonzero(changed)[0], [4, 5, 6])


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 5])
def test_steps_with_a_window_equal_the_whole(kernel_size):
    block = decoder_block(5, kernel_size)
    x, embedded = normal(4, 7, WIDTH), normal(4, 7, EMBEDDING, seed=2)
    # Two hypotheses of each of two sources, side by side.
    memory = memory_of([[True] * 3, [True, False, False]])
    whole, weights = block(
        x, embedded, {key: np.repeat(v, 2, axis=0) for key, v in memory.items()}
    )
    window = block.empty_window(4)
    assert tuple(window.shape) == (4, kernel_size - 1, WIDTH)
    for position in range(7):
        now = slice(position, position + 1)
        output, window, attention = block.step(
            x[:, now], embedded[:, now], memory, window
        )
        np.testing.assert_allclose(output, whole[:, now], atol=1e-5)
        np.testing.assert_allclose(attention, weights[:, now], atol=1e-5)
        assert tuple(window.shape) == (4, kernel_size - 1, WIDTH)


def test_a_source_without_positions_adds_nothing_and_has_finite_gradients():
    block = decoder_block()
    x, embedded = normal(1, 2, WIDTH), normal(1, 2, EMBEDDING, seed=2)
    empty = memory_of([[False] * 3])
    output, weights = block(x, embedded, empty)
    np.testing.assert_array_equal(weights, np.zeros((1, 2, 3)))
    other, _ = block(x, embedded, memory_of([[False] * 3], seed=8))
    np.testing.assert_array_equal(output, other)
    found = gradient(lambda v: ops.sum(block(v, embedded, empty)[0]), x)
    assert np.isfinite(found).all() and np.abs(found).max() > 0


def test_scores_of_a_thousand_are_told_apart_in_float16():
    """Scores 1000.25 and 1000.5, where float16 has steps of a half."""
    block = ConvDecoderBlock(2, 1, dtype="mixed_float16")
    block.build((None, None, 2), (None, None, 2))
    silence(block.query_projection)
    memory = {
        "mask": np.ones((1, 2), bool),
        "keys": ops.cast(np.array([[[31.25, 0.25], [31.25, 0.5]]]), "float16"),
        "values": ops.cast(np.eye(2)[None], "float16"),
    }
    embedded = ops.cast(np.array([[[32.0, 1.0]]]) / HALF, "float16")
    _, weights = block(ops.cast(np.zeros((1, 1, 2)), "float16"), embedded, memory)
    query = ops.convert_to_numpy(embedded * HALF).astype("float64")
    keys = ops.convert_to_numpy(memory["keys"]).astype("float64")
    scores = (query @ keys.transpose(0, 2, 1))[0, 0]
    expected = np.exp(scores - scores.max())
    np.testing.assert_allclose(weights[0, 0], expected / expected.sum(), atol=1e-3)
    assert 0.4 < expected[0] / expected.sum() < 0.5


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="dim=0"):
        WeightNormConv(0)
    with pytest.raises(ValueError, match="kernel_size=-1"):
        ConvEncoderBlock(4, -1)
