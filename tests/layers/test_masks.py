import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import causal_mask, masked_softmax, padding_mask
from keras_seq2seq.layers.masks import FLOOR
from tests.test_losses import gradient_of


def test_padding_mask_marks_real_tokens():
    mask = padding_mask(np.array([[5, 6, 0], [0, 0, 0]]))
    np.testing.assert_array_equal(mask, [[True, True, False], [False] * 3])


def test_causal_mask_sees_itself_and_the_past():
    np.testing.assert_array_equal(
        causal_mask(3), [[True, False, False], [True, True, False], [True, True, True]]
    )


def test_masked_softmax_gives_exact_zeros_on_padding_and_sums_to_one():
    weights = masked_softmax(
        np.array([[0.0, np.log(3.0), 9.0]], "float32"), np.array([[True, True, False]])
    )
    np.testing.assert_allclose(weights, [[0.25, 0.75, 0.0]], atol=1e-6)
    assert float(weights[0, 2]) == 0.0


def test_masked_softmax_of_an_empty_row_is_zero():
    weights = masked_softmax(np.ones((1, 3), "float32"), np.zeros((1, 3), bool))
    np.testing.assert_array_equal(weights, np.zeros((1, 3)))


def test_masked_softmax_without_mask_is_the_plain_softmax():
    scores = np.array([[1.0, 2.0, 4.0]], "float32")
    expected = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(masked_softmax(scores), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_masked_softmax_stays_finite_with_large_scores_in_any_dtype(dtype):
    scores = ops.cast(np.array([[1e4, -1e4, 1e4], [-3e4, -3e4, 3e4]]), dtype)
    mask = np.array([[True, True, False], [True, True, False]])
    weights = ops.convert_to_numpy(masked_softmax(scores, mask))
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, [[1, 0, 0], [0.5, 0.5, 0]], atol=1e-6)


def test_adding_a_constant_to_a_row_changes_nothing():
    scores = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    mask = np.array([[True, True, True, False], [True, False, True, True]])
    np.testing.assert_allclose(
        masked_softmax(scores + 100, mask), masked_softmax(scores, mask), atol=1e-5
    )


def test_contents_of_masked_positions_change_nothing():
    scores = np.array([[1.0, 2.0, 3.0]], "float32")
    mask = np.array([[True, True, False]])
    huge = np.array([[1.0, 2.0, 1e30]], "float32")
    np.testing.assert_array_equal(
        masked_softmax(huge, mask), masked_softmax(scores, mask)
    )


def test_an_empty_row_has_a_zero_gradient_and_the_others_theirs():
    scores = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], "float32")
    mask = np.array([[True, True, False], [False] * 3])
    gradient = gradient_of(lambda x: ops.sum(masked_softmax(x, mask)[:, 0]), scores)
    first = np.exp(1) / (np.exp(1) + np.exp(2))
    expected = first * (1 - first)
    np.testing.assert_allclose(gradient[0], [expected, -expected, 0], atol=1e-6)
    np.testing.assert_array_equal(gradient[1], np.zeros(3))


def test_scores_at_the_floor_get_no_weight():
    scores = np.array([[1.0, FLOOR, 1.0], [5.0, FLOOR, FLOOR]], "float32")
    mask = np.array([[True, True, True], [False, True, True]])
    weights = masked_softmax(scores, mask)
    np.testing.assert_allclose(weights, [[0.5, 0, 0.5], [0, 0, 0]], atol=1e-6)
