"""Windows around each position: equal to a mask over all pairs, in linear time."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    SelfAttention,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    attend,
    local_attend,
)
from keras_seq2seq.layers.attention import make_score

DIM = 8
SCORES = ["scaled_dot", "dot", "bilinear", "additive"]


def ramp(layer, seed=0):
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(generator.normal(0, 0.5, weight.shape))


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def band(length, before, after):
    """The mask over all pairs: key minus query between `-before` and `after`."""
    positions = np.arange(length)
    distances = positions[None] - positions[:, None]
    return (distances >= -before) & (distances <= after)


def built_score(name, width):
    score = make_score(name, width)
    score.build((None, 2, None, width), (None, 2, None, width))
    score.built = True
    ramp(score)
    return score


def self_attention(window=None, seed=0, **options):
    layer = SelfAttention(2, DIM, window=window, **options)
    layer.build((None, None, DIM))
    ramp(layer, seed)
    return layer


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.parametrize(
    ("before", "after"), [(0, 0), (2, 2), (3, 0), (1, 2), (30, 30)]
)
def test_a_window_equals_the_mask_over_all_pairs(score, length, before, after):
    query, keys, values = (data(2, 2, length, 4, seed=seed) for seed in range(3))
    real = np.random.default_rng(3).random((2, 1, 1, length)) < 0.7
    score = built_score(score, 4)
    keys = score.project_memory(keys)
    context, weights = local_attend(
        score, query, keys, values, before=before, after=after, key_mask=real
    )
    expected, all_weights = attend(
        score(query, keys), values, band(length, before, after) & real
    )
    np.testing.assert_allclose(context, expected, atol=1e-5)

    before, after = min(before, length), min(after, length)
    columns = np.zeros((2, 2, length, before + 1 + after), "float32")
    for place in range(length):
        for column in range(columns.shape[-1]):
            key = place - before + column
            if 0 <= key < length:
                columns[:, :, place, column] = all_weights[:, :, place, key]
    np.testing.assert_allclose(weights, columns, atol=1e-6)


def test_a_window_of_unknown_length_is_compiled_once_for_all():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("other backends compile once for each length")
    import tensorflow as tf

    layer = self_attention((2, 2))
    signature = [
        tf.TensorSpec([None, None, DIM]),
        tf.TensorSpec([None, 1, 1, None], tf.bool),
    ]
    compiled = tf.function(layer.__call__, input_signature=signature)
    for length in (1, 3, 8):
        x, real = data(2, length, DIM), np.ones((2, 1, 1, length), bool)
        real[1, ..., length // 2 + 1 :] = False
        expected, weights = layer(x, real)
        found, found_weights = compiled(x, real)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(found_weights, weights, atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_a_window_over_the_whole_sequence_is_full_attention(score):
    x = data(2, 6, DIM)
    real = np.array([[True] * 6, [True] * 4 + [False] * 2])[:, None, None]
    full, _ = self_attention(score=score)(x, real)
    for reach in (5, 6, 50):
        local, _ = self_attention((reach, reach), score=score)(x, real)
        np.testing.assert_allclose(local, full, atol=1e-5)
    narrow, _ = self_attention((4, 4), score=score)(x, real)
    assert np.abs(ops.convert_to_numpy(narrow - full)).max() > 1e-3


def test_number_of_scores_is_that_of_the_neighbourhoods():
    """n(2w + 1) - w(w + 1): for n = 10 and w = 2 that is 44."""
    _, weights = self_attention((2, 2))(data(1, 10, DIM))
    weights = ops.convert_to_numpy(weights)[0, 0]
    assert weights.shape == (10, 5)
    assert (weights > 0).sum() == 44
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)


def test_memory_grows_linearly_with_the_length():
    """The largest tensor of a forward pass: twice the length, twice the size."""

    def largest(length):
        sizes = []

        class Recorder:
            def __init__(self, score):
                self.score = score

            def __call__(self, query, keys):
                scores = self.score(query, keys)
                sizes.append(int(np.prod(scores.shape)))
                return scores

        x = data(1, 1, length, 4)
        score = Recorder(built_score("scaled_dot", 4))
        local_attend(score, x, x, x, before=2, after=2)
        return max(sizes)

    assert largest(40) == 2 * largest(20) == 40 * 3 * 2


def influence(function, x):
    """Which inputs change which outputs, `(T, T)`: outputs in rows."""
    before = ops.convert_to_numpy(function(x))
    changed = np.zeros((x.shape[1], x.shape[1]), bool)
    for place in range(x.shape[1]):
        other = x.copy()
        other[:, place] += data(x.shape[-1], seed=9)
        after = ops.convert_to_numpy(function(other))
        changed[:, place] = (before != after).any(axis=(0, 2))
    return changed


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize(
    ("block", "window", "before", "after"),
    [(TransformerEncoderBlock, 3, 1, 1), (TransformerDecoderBlock, 3, 2, 0)],
)
def test_a_stack_reaches_its_layers_times_the_window(
    num_layers, block, window, before, after
):
    blocks = [block(DIM, 2, 12, window=window, norm="pre") for _ in range(num_layers)]
    for seed, layer in enumerate(blocks):
        layer.build()
        ramp(layer, seed)

    def stack(x):
        for layer in blocks:
            if block is TransformerDecoderBlock:
                memory = layer.cross_attention.project_memory(np.ones((1, 2, DIM)))
                x, _ = layer(x, memory)
            else:
                x = layer(x)
        return x

    np.testing.assert_array_equal(
        influence(stack, data(1, 8, DIM)),
        band(8, num_layers * before, num_layers * after),
    )


def test_layers_needed_to_connect_the_ends():
    """ceil((n - 1) / w): for n = 8 and w = 2 four, and three are too few."""
    layers = [self_attention((2, 2), seed=seed) for seed in range(4)]

    def stack(x, count):
        for layer in layers[:count]:
            x, _ = layer(x)
        return x

    x = data(1, 8, DIM)
    assert not influence(lambda y: stack(y, 3), x)[0, 7]
    assert influence(lambda y: stack(y, 4), x)[0, 7]


def test_a_window_of_one_position_passes_its_own_value_on():
    layer = self_attention((0, 0))
    x = data(2, 5, DIM)
    output, weights = layer(x)
    values = ops.split(layer.input_projection(x), 3, axis=-1)[2]
    np.testing.assert_allclose(output, layer.output_projection(values), atol=1e-5)
    np.testing.assert_array_equal(weights, np.ones((2, 2, 5, 1)))


@pytest.mark.parametrize("rotary", [False, True])
def test_shifting_the_sequence_shifts_the_output_away_from_the_ends(rotary):
    layer = self_attention((2, 2), rotary=rotary)
    x = data(1, 14, DIM)
    first = ops.convert_to_numpy(layer(x[:, :11])[0])
    shifted = ops.convert_to_numpy(layer(x[:, 3:])[0])
    np.testing.assert_allclose(first[:, 5:9], shifted[:, 2:6], atol=1e-5)
    assert np.abs(first[:, 3] - shifted[:, 0]).max() > 1e-3


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("window", [1, 3, 20])
def test_a_ring_of_cached_positions_gives_the_whole_sequence(score, window):
    layer = self_attention((window - 1, 0), score=score, rotary=score != "additive")
    x = data(2, 8, DIM)
    whole, _ = layer(x)
    cache = layer.empty_cache(2, 8)
    length = cache["keys"].shape[2]
    assert length == min(window, 8)
    for index in range(8):
        visible = np.tile(np.arange(length) <= index, (2, 1, 1, 1))
        one, cache = layer.step(x[:, index], cache, index, visible)
        np.testing.assert_allclose(
            ops.convert_to_numpy(one),
            ops.convert_to_numpy(whole)[:, index],
            atol=1e-5,
        )


def test_half_precision_stays_close():
    single = self_attention((2, 2))
    half = SelfAttention(2, DIM, window=(2, 2), dtype="mixed_bfloat16")
    half.build((None, None, DIM))
    half.set_weights(single.get_weights())
    x = data(2, 7, DIM)
    output, weights = half(x)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(output, "float32")), single(x)[0], atol=0.1
    )


def test_window_must_be_positive():
    with pytest.raises(ValueError, match="window=0"):
        TransformerEncoderBlock(DIM, 2, 16, window=0)


def test_config_keeps_the_window():
    layer = self_attention((3, 0), rotary=True, use_bias=False)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert again.window == (3, 0)
    assert again.get_config() == layer.get_config()
