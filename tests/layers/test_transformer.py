import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    CrossAttention,
    DotScore,
    LayerNormalization,
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


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "bilinear", "additive"])
def test_self_attention_without_positions_is_permutation_equivariant(score):
    layer = SelfAttention(2, DIM, score=score)
    layer.build((None, None, DIM))
    ramp(layer)
    x, order = data(1, 5, DIM), [3, 0, 4, 1, 2]
    output, _ = layer(x)
    shuffled, _ = layer(x[:, order])
    np.testing.assert_allclose(
        ops.convert_to_numpy(output)[:, order], shuffled, atol=1e-5
    )


def test_one_head_with_identity_matrices_is_plain_attention():
    layer = SelfAttention(1, DIM)
    layer.build((None, None, DIM))
    layer.input_projection.kernel.assign(np.tile(np.eye(DIM), 3))
    layer.output_projection.kernel.assign(np.eye(DIM))
    x = data(2, 5, DIM)
    output, _ = layer(x)
    scores = x @ x.transpose(0, 2, 1) / np.sqrt(DIM)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(output, weights @ x, atol=1e-5)


@pytest.mark.parametrize("window", [None, (2, 0)])
@pytest.mark.parametrize("rotary", [False, True])
def test_causal_self_attention_never_looks_ahead(window, rotary):
    """Outputs before a changed input are the same to the last bit."""
    layer = SelfAttention(2, DIM, window=window, rotary=rotary)
    layer.build((None, None, DIM))
    ramp(layer)
    mask = causal_mask(5)[None, None] if window is None else None
    x = data(1, 5, DIM)
    before = ops.convert_to_numpy(layer(x, mask)[0])
    for place in range(5):
        other = x.copy()
        other[:, place] += 3 * data(DIM, seed=2)
        after = ops.convert_to_numpy(layer(other, mask)[0])
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert (after[:, place] != before[:, place]).any()


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "bilinear"])
def test_rotary_attention_depends_on_distances_only(score):
    layer = SelfAttention(2, DIM, score=score, rotary=True)
    layer.build((None, None, DIM))
    ramp(layer)
    x = np.concatenate([data(1, 4, DIM, seed=1), data(1, 5, DIM)], axis=1)
    hidden = np.array([False] * 4 + [True] * 5)[None, None, None]
    shifted, _ = layer(x, hidden)  # the same five vectors at the positions 4 to 8
    alone, _ = layer(x[:, 4:])
    np.testing.assert_allclose(ops.convert_to_numpy(shifted)[:, 4:], alone, atol=1e-5)
    order = [8, 5, 7, 4, 6]
    shuffled, _ = layer(x[:, order])
    same = ops.convert_to_numpy(alone)[:, np.array(order) - 4]
    assert np.abs(same - ops.convert_to_numpy(shuffled)).max() > 1e-3


def test_rotary_turns_each_head_by_itself_and_no_values():
    layer = SelfAttention(2, DIM, rotary=True)
    layer.build((None, None, DIM))
    ramp(layer)
    x = data(1, 3, DIM)
    parts = np.split(ops.convert_to_numpy(layer.input_projection(x)), 3, axis=-1)
    heads = [part.reshape(1, 3, 2, 4).transpose(0, 2, 1, 3) for part in parts]
    angles = np.arange(3)[:, None] * np.array([1.0, 0.01])
    turn = np.exp(1j * angles)  # features 2i and 2i+1 as one complex number
    query, keys = (
        np.stack([turned.real, turned.imag], -1).reshape(1, 2, 3, 4)
        for turned in ((h[..., ::2] + 1j * h[..., 1::2]) * turn for h in heads[:2])
    )
    scores = query @ keys.transpose(0, 1, 3, 2) / 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    context = (weights @ heads[2]).transpose(0, 2, 1, 3).reshape(1, 3, DIM)
    output, found = layer(x)
    np.testing.assert_allclose(found, weights, atol=1e-5)
    np.testing.assert_allclose(output, layer.output_projection(context), atol=1e-5)


def test_projections_without_bias_have_kernels_only():
    layer = TransformerDecoderBlock(DIM, 2, 16, attention_bias=False)
    layer.build()
    attention = [w for w in layer.weights if "attention/" in w.path]
    assert {w.path.split("/")[-1] for w in attention} == {"kernel"}
    assert sum(int(np.prod(w.shape)) for w in attention) == 2 * 4 * DIM**2


@pytest.mark.parametrize("rotary", [False, True])
def test_self_attention_step_equals_the_whole_sequence(rotary):
    layer = SelfAttention(2, DIM, rotary=rotary)
    layer.build((None, None, DIM))
    ramp(layer)
    x = data(2, 4, DIM)
    whole, _ = layer(x, causal_mask(4)[None, None])
    cache = layer.empty_cache(2, 6)
    for index in range(4):
        visible = np.tile(np.arange(6) <= index, (2, 1, 1, 1))
        one, cache = layer.step(x[:, index], cache, index, visible)
        np.testing.assert_allclose(
            ops.convert_to_numpy(one),
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
    layer = block(
        *(DIM, 2, 16),
        norm="pre",
        dropout=0.3,
        attention_dropout=0.1,
        attention_score="bilinear",
        attention_bias=False,
        rotary=True,
        window=3,
    )
    again = block.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.self_attention.get_config() == layer.self_attention.get_config()


def test_wrong_arguments_are_named_with_their_values():
    with pytest.raises(ValueError, match="num_heads=3, dim=8"):
        SelfAttention(3, DIM)
    with pytest.raises(ValueError, match="num_heads=2, dim=6"):
        SelfAttention(2, 6, rotary=True)
    with pytest.raises(ValueError, match="score='additive'"):
        SelfAttention(2, DIM, score="additive", rotary=True)
    with pytest.raises(ValueError, match="norm='none'"):
        TransformerEncoderBlock(DIM, 2, 16, norm="none")


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_normalisation_equals_keras(dtype):
    layer = LayerNormalization(epsilon=1e-6, dtype=dtype)
    expected = keras.layers.LayerNormalization(epsilon=1e-6, dtype=dtype)
    x = 3 + 5 * data(2, 3, DIM)
    for each in (layer, expected):
        each.build((None, None, DIM))
        each.gamma.assign(data(DIM, seed=2))
        each.beta.assign(data(DIM, seed=3))
    found, wanted = layer(x), expected(x)
    assert found.dtype == wanted.dtype
    tolerance = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(
        ops.cast(found, "float32"), ops.cast(wanted, "float32"), atol=tolerance
    )
