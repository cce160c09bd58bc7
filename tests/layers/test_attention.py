import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import AdditiveScore, BilinearScore, DotScore, attend

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
