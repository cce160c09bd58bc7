import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    AdditiveScore,
    Attention,
    BilinearScore,
    DotScore,
    attend,
)
from keras_seq2seq.layers.attention import make_score

LN3 = float(np.log(3))


def built(score, query_dim, memory_dim):
    score.build((None, None, query_dim), (None, None, memory_dim))
    score.built = True
    return score


def test_dot_attention_by_hand():
    """s=(1,0), h=[(0,0),(ln 3,0)] gives the weights (1/4, 3/4) (Luong)."""
    memory = np.array([[[0, 0], [LN3, 0]]], "float32")
    score = DotScore()
    keys = score.project_memory(memory)
    scores = score(np.array([[[1, 0]]], "float32"), keys)
    context, weights = attend(scores, memory)
    np.testing.assert_allclose(weights, [[[0.25, 0.75]]], atol=1e-6)
    np.testing.assert_allclose(context, [[[0.75 * LN3, 0]]], atol=1e-6)


def test_dot_attention_refuses_unequal_widths_with_both_of_them():
    with pytest.raises(ValueError, match=r"decoder 2, encoder 4.*bilinear"):
        DotScore()(np.zeros((1, 1, 2)), np.zeros((1, 3, 4)))


def test_bilinear_attention_with_the_identity_is_dot_attention():
    generator = np.random.default_rng(0)
    query = generator.normal(size=(2, 3, 4)).astype("float32")
    memory = generator.normal(size=(2, 5, 4)).astype("float32")
    bilinear = built(BilinearScore(), 4, 4)
    bilinear.memory_projection.kernel.assign(np.eye(4))
    dot = DotScore()
    np.testing.assert_allclose(
        bilinear(query, bilinear.project_memory(memory)),
        dot(query, dot.project_memory(memory)),
        atol=1e-5,
    )


def test_bilinear_attention_equals_its_formula():
    generator = np.random.default_rng(1)
    query = generator.normal(size=(1, 2, 3)).astype("float32")
    memory = generator.normal(size=(1, 4, 5)).astype("float32")
    score = built(BilinearScore(), 3, 5)
    kernel = ops.convert_to_numpy(score.memory_projection.kernel)
    expected = np.einsum("btq,dq,bsd->bts", query, kernel, memory)
    np.testing.assert_allclose(
        score(query, score.project_memory(memory)), expected, atol=1e-5
    )


def test_additive_attention_by_hand():
    """W=U=v=1, s=0, h=(0, atanh(ln 2)) gives the weights (1/3, 2/3) (Bahdanau)."""
    score = built(AdditiveScore(1), 1, 1)
    for weight in score.weights:
        weight.assign(np.ones(weight.shape))
    memory = np.array([[[0.0], [np.arctanh(np.log(2))]]], "float32")
    scores = score(np.zeros((1, 1, 1), "float32"), score.project_memory(memory))
    context, weights = attend(scores, memory)
    np.testing.assert_allclose(weights, [[[1 / 3, 2 / 3]]], atol=1e-5)
    np.testing.assert_allclose(context, [[[0.569325]]], atol=1e-5)


def test_additive_attention_with_a_zero_vector_averages_the_real_memory():
    score = built(AdditiveScore(4), 3, 2)
    score.vector.assign(np.zeros(4))
    memory = np.array([[[1, 2], [3, 4], [9, 9]]], "float32")
    scores = score(np.ones((1, 1, 3), "float32"), score.project_memory(memory))
    context, weights = attend(scores, memory, np.array([[[True, True, False]]]))
    np.testing.assert_allclose(weights, [[[0.5, 0.5, 0]]], atol=1e-6)
    np.testing.assert_allclose(context, [[[2, 3]]], atol=1e-6)


def test_additive_attention_needs_a_width():
    with pytest.raises(ValueError, match="units=0"):
        AdditiveScore(0)


@pytest.mark.parametrize("make", [DotScore, BilinearScore, lambda: AdditiveScore(6)])
def test_permuting_the_memory_permutes_the_weights_and_keeps_the_context(make):
    generator = np.random.default_rng(2)
    query = generator.normal(size=(2, 3, 4)).astype("float32")
    memory = generator.normal(size=(2, 5, 4)).astype("float32")
    score = built(make(), 4, 4)
    order = np.array([3, 0, 4, 1, 2])

    def run(memory):
        return attend(score(query, score.project_memory(memory)), memory)

    context, weights = run(memory)
    shuffled_context, shuffled_weights = run(memory[:, order])
    np.testing.assert_allclose(context, shuffled_context, atol=1e-5)
    np.testing.assert_allclose(
        ops.convert_to_numpy(weights)[:, :, order], shuffled_weights, atol=1e-5
    )


@pytest.mark.parametrize("make", [DotScore, BilinearScore, lambda: AdditiveScore(6)])
def test_scores_survive_their_config(make):
    score = make()
    again = type(score).from_config(score.get_config())
    assert again.get_config() == score.get_config()
    restored = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(score)
    )
    assert type(restored) is type(score)


SCORES = ["dot", "scaled_dot", "bilinear", "additive"]


def attention(score, seed=0):
    layer = Attention(score, units=5)
    layer.build((None, None, 4), (None, None, 4))
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(generator.normal(size=weight.shape))
    return layer


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    ("score", "expected"), [("scaled_dot", [0.25, 0.75]), ("dot", [0.1, 0.9])]
)
def test_scaling_divides_by_the_root_of_the_width(score, expected):
    """D=4, q=(2,2,2,2), q.k = (0, 2 ln 3)."""
    keys = np.zeros((1, 2, 4), "float32")
    keys[0, 1] = np.log(3) / 4
    _, weights = Attention(score)(np.full((1, 1, 4), 2.0, "float32"), keys)
    np.testing.assert_allclose(weights, [[expected]], atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_attention_is_the_weighted_sum_of_its_definition(score):
    layer = attention(score)
    query, keys, values = data(2, 3, 4), data(2, 5, 4, seed=1), data(2, 5, 6, seed=2)
    real = np.array([[True] * 5, [True, False, True, False, False]])[:, None]
    weights = {w.path.split("/")[-2]: np.asarray(w) for w in layer.weights}
    formulas = {
        "dot": lambda q, k: q @ k,
        "scaled_dot": lambda q, k: q @ k / 2,
        "bilinear": lambda q, k: q @ (k @ weights["memory_projection"]),
        "additive": lambda q, k: (
            np.tanh(q @ weights["query_projection"] + k @ weights["memory_projection"])
            @ np.asarray(layer.score_layer.vector)
        ),
    }
    context, found = layer(query, keys, values, real)
    for row in range(2):
        for place in range(3):
            scores = [formulas[score](query[row, place], key) for key in keys[row]]
            expected = np.where(real[row, 0], np.exp(scores), 0)
            expected /= expected.sum()
            np.testing.assert_allclose(found[row, place], expected, atol=1e-5)
            np.testing.assert_allclose(
                context[row, place], expected @ values[row], atol=1e-5
            )


@pytest.mark.parametrize("score", SCORES)
def test_permuting_keys_and_values_together_changes_nothing(score):
    layer, order = attention(score), np.array([3, 0, 4, 1, 2])
    query, keys, values = data(2, 3, 4), data(2, 5, 4, seed=1), data(2, 5, 6, seed=2)
    context, _ = layer(query, keys, values)
    shuffled, _ = layer(query, keys[:, order], values[:, order])
    np.testing.assert_allclose(context, shuffled, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_huge_masked_keys_and_values_change_nothing(score):
    layer = attention(score)
    query, keys, values = data(1, 3, 4), data(1, 5, 4, seed=1), data(1, 5, 6, seed=2)
    real = np.array([[[True, True, True, False, False]]])
    before = layer(query, keys, values, real)
    keys[:, 3:], values[:, 3:] = 1e8, 1e30
    after = layer(query, keys, values, real)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "bilinear"])
def test_scores_of_a_thousand_are_told_apart_in_float16(score, dtype):
    """Scores 1000.25 and 1000.5, where float16 has steps of a half."""
    query = np.array([[[32, 1, 0, 0]]]) * (2 if score == "scaled_dot" else 1)
    keys = np.array([[[31.25, 0.25, 0, 0], [31.25, 0.5, 0, 0], [-31, 0, 0, 0]]])
    values = np.eye(3)[None]
    layer = make_score(score, 4, dtype=dtype)
    layer.build((None, None, 4), (None, None, 4))
    layer.built = True
    if score == "bilinear":
        layer.memory_projection.kernel.assign(np.eye(4))
    query, keys, values = (ops.cast(x, dtype) for x in (query, keys, values))
    context, _ = attend(layer(query, layer.project_memory(keys)), values)
    small = np.exp(-0.25) / (1 + np.exp(-0.25))
    found = ops.convert_to_numpy(ops.cast(context, "float32"))
    np.testing.assert_allclose(found, [[[small, 1 - small, 0]]], atol=1e-3)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_sums_of_additive_scores_are_told_apart_in_half_precision(policy):
    """Scores 403.0 and 404.0, where bfloat16 has steps of two."""
    layer = AdditiveScore(1000, dtype=policy)
    layer.build((None, None, 1), (None, None, 1))
    layer.built = True
    layer.query_projection.kernel.assign(np.full((1, 1000), 10))  # tanh is 1
    layer.memory_projection.kernel.assign(np.zeros((1, 1000)))
    # Keys of minus 10 turn the tanh of their feature to 0: one feature less.
    kernel = np.zeros((1, 1000))
    kernel[0, 0] = -10
    layer.memory_projection.kernel.assign(kernel)
    vector = np.zeros(1000)
    vector[:404] = 1
    layer.vector.assign(vector)
    keys = layer.project_memory(ops.cast(np.array([[[0.0], [1.0]]]), policy[6:]))
    scores = layer(ops.cast(np.ones((1, 1, 1)), policy[6:]), keys)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    np.testing.assert_array_equal(scores, [[[404.0, 403.0]]])


def test_location_scores_are_float32_and_leave_later_positions_no_weight():
    layer = make_score("location", 4, max_positions=2, dtype="mixed_float16")
    layer.build((None, None, 1), (None, None, 4))
    layer.built = True
    layer.kernel.assign([[1000.0, 1000.25]])
    memory = ops.cast(np.eye(4)[None], "float16")
    scores = layer(ops.cast(np.ones((1, 1, 1)), "float16"), memory)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    everything = np.ones((1, 1, 4), bool)
    _, weights = attend(scores, memory, everything)
    np.testing.assert_array_equal(weights[0, 0, 2:], [0, 0])
    np.testing.assert_allclose(ops.sum(weights), 1, atol=1e-6)
    # A window that has only later ones attends to nothing.
    context, weights = attend(scores, memory, np.array([[[False] * 2 + [True] * 2]]))
    np.testing.assert_array_equal(weights, np.zeros((1, 1, 4)))
    np.testing.assert_array_equal(context, np.zeros((1, 1, 4)))


def test_attention_survives_its_config():
    layer = Attention("additive", units=3)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert again.get_config() == layer.get_config()
    with pytest.raises(ValueError, match="score='cosine'"):
        Attention("cosine")
