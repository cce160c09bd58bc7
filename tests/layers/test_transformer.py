import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    CrossAttention,
    DotScore,
    SelfAttention,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    attend,
    causal_mask,
)

DIM = 8


def ramp(layer, seed=0):
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(generator.normal(0, 0.5, weight.shape))


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def scaled_dot_attention(query, keys, values, mask=None):
    return attend(DotScore(scaled=True)(query, keys), values, mask)


def test_scores_are_scaled_by_the_root_of_the_head_width():
    """K=4, q=(2,2,2,2), q.k = (0, 2 ln 3): weights (1/4, 3/4), unscaled (.1, .9)."""
    query = np.full((1, 1, 1, 4), 2.0, "float32")
    keys = np.zeros((1, 1, 2, 4), "float32")
    keys[0, 0, 1] = np.log(3) / 4
    _, weights = scaled_dot_attention(query, keys, keys)
    np.testing.assert_allclose(weights, [[[[0.25, 0.75]]]], atol=1e-6)


def test_an_all_masked_row_gives_zero():
    query = data(1, 1, 2, 4)
    mask = np.array([[[[True, True], [False, False]]]])
    context, weights = scaled_dot_attention(query, query, query, mask)
    np.testing.assert_array_equal(ops.convert_to_numpy(context)[0, 0, 1], np.zeros(4))
    np.testing.assert_array_equal(ops.convert_to_numpy(weights)[0, 0, 1], np.zeros(2))


def test_identical_keys_average_the_real_values():
    query, values = data(1, 1, 1, 4), data(1, 1, 3, 4, seed=1)
    keys = np.ones((1, 1, 3, 4), "float32")
    mask = np.array([[[[True, False, True]]]])
    context, _ = scaled_dot_attention(query, keys, values, mask)
    np.testing.assert_allclose(
        ops.convert_to_numpy(context)[0, 0, 0],
        values[0, 0, [0, 2]].mean(0),
        atol=1e-6,
    )


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_kernel_sizes_do_not_depend_on_the_number_of_heads(num_heads):
    layer = SelfAttention(num_heads, DIM)
    layer.build((None, None, DIM))
    kernels = [w for w in layer.trainable_weights if len(w.shape) == 2]
    assert sum(int(np.prod(w.shape)) for w in kernels) == 4 * DIM**2


def test_self_attention_equals_the_keras_layer_on_the_same_weights():
    layer = SelfAttention(2, DIM)
    layer.build((None, None, DIM))
    ramp(layer)
    reference = keras.layers.MultiHeadAttention(2, DIM // 2)
    reference.build((None, None, DIM), (None, None, DIM))
    kernels = np.split(ops.convert_to_numpy(layer.input_projection.kernel), 3, axis=1)
    biases = np.split(ops.convert_to_numpy(layer.input_projection.bias), 3)
    for name, kernel, bias in zip(
        ("query", "key", "value"), kernels, biases, strict=True
    ):
        dense = getattr(reference, f"_{name}_dense")
        dense.kernel.assign(kernel.reshape(DIM, 2, DIM // 2))
        dense.bias.assign(bias.reshape(2, DIM // 2))
    output = layer.output_projection
    reference._output_dense.kernel.assign(
        ops.reshape(output.kernel, (2, DIM // 2, DIM))
    )
    reference._output_dense.bias.assign(output.bias)
    x = data(2, 5, DIM)
    mask = np.array([[True] * 5, [True, True, True, False, False]])[:, None, None]
    ours, weights = layer(x, mask)
    theirs, their_weights = reference(
        x, x, attention_mask=mask[:, 0], return_attention_scores=True
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(weights, their_weights, atol=1e-5)


def test_self_attention_without_positions_is_permutation_equivariant():
    layer = SelfAttention(2, DIM)
    x, order = data(1, 5, DIM), [3, 0, 4, 1, 2]
    output, _ = layer(x)
    shuffled, _ = layer(x[:, order])
    np.testing.assert_allclose(
        ops.convert_to_numpy(output)[:, order], shuffled, atol=1e-5
    )


def test_self_attention_step_equals_the_whole_sequence():
    layer = SelfAttention(2, DIM)
    layer.build((None, None, DIM))
    ramp(layer)
    x = data(2, 4, DIM)
    whole, _ = layer(x, causal_mask(4)[None, None])
    cache = layer.empty_cache(2, 6)
    for index in range(4):
        visible = (np.arange(6) <= index)[None, None, None]
        one, cache = layer.step(x[:, index : index + 1], cache, index, visible)
        np.testing.assert_allclose(
            ops.convert_to_numpy(one)[:, 0],
            ops.convert_to_numpy(whole)[:, index],
            atol=1e-5,
        )


def test_cross_attention_depends_on_real_memory_only():
    layer = CrossAttention(2, DIM)
    layer.build()
    ramp(layer)
    memory = data(1, 4, DIM, seed=1)
    changed = memory.copy()
    changed[:, 2:] = 1e3
    mask = np.array([True, True, False, False])[None, None, None]
    x = data(1, 3, DIM)
    first, weights = layer(x, layer.project_memory(memory), mask)
    second, _ = layer(x, layer.project_memory(changed), mask)
    np.testing.assert_allclose(first, second, atol=1e-6)
    np.testing.assert_allclose(ops.sum(weights, -1), np.ones((1, 2, 3)), atol=1e-5)


@pytest.mark.parametrize("block", [TransformerEncoderBlock, TransformerDecoderBlock])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_blocks_with_silent_sublayers_leave_only_the_norms(block, norm):
    """Zero output kernels: pre-norm is the identity, post-norm LayerNorm(x)."""
    layer = block(DIM, 2, 16, norm=norm)
    layer.build()
    for weight in layer.weights:
        if "output_projection" in weight.path or "outer" in weight.path:
            weight.assign(np.zeros(weight.shape))
    x = data(2, 3, DIM)
    if block is TransformerDecoderBlock:
        cache = layer.cross_attention.project_memory(data(2, 4, DIM))
        output, _ = layer(x, cache)
    else:
        output = layer(x)
    normalised = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    expected = x if norm == "pre" else normalised
    np.testing.assert_allclose(output, expected, atol=1e-4)


def test_layer_normalisation_uses_a_small_epsilon():
    assert TransformerEncoderBlock(DIM, 2, 16).feedforward_norm.epsilon == 1e-6


@pytest.mark.parametrize("block", [TransformerEncoderBlock, TransformerDecoderBlock])
def test_block_config_round_trip(block):
    layer = block(DIM, 2, 16, norm="pre", dropout=0.3, attention_dropout=0.1)
    again = block.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_wrong_arguments_are_named_with_their_values():
    with pytest.raises(ValueError, match="num_heads=3, dim=8"):
        SelfAttention(3, DIM)
    with pytest.raises(ValueError, match="norm='none'"):
        TransformerEncoderBlock(DIM, 2, 16, norm="none")
