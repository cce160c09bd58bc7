import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import coverage_score, length_penalty, target_log_probs


def test_length_penalty_is_one_for_one_token_and_for_alpha_zero():
    assert float(length_penalty(1, 0.6)) == pytest.approx(1.0)
    assert float(length_penalty(50, 0.0)) == pytest.approx(1.0)


def test_length_penalty_matches_hand_computed_numbers():
    assert float(length_penalty(5, 0.6)) == pytest.approx(1.35866, abs=1e-5)
    short, long = length_penalty(3, 0.6), length_penalty(8, 0.6)
    assert -2 / float(short) == pytest.approx(-1.6829, abs=1e-4)
    assert -3 / float(long) == pytest.approx(-1.8865, abs=1e-4)
    short, long = length_penalty(3, 1.0), length_penalty(8, 1.0)
    assert -2 / float(short) == pytest.approx(-1.5)
    assert -3 / float(long) == pytest.approx(-1.3846, abs=1e-4)


def test_base_0_is_the_length_to_a_power_and_nothing_written_counts_as_1():
    assert float(length_penalty(8, 1.0, base=0)) == pytest.approx(8.0)
    assert float(length_penalty(9, 0.5, base=0)) == pytest.approx(3.0)
    assert float(length_penalty(0, 1.0, base=0)) == pytest.approx(1.0)


def test_coverage_matches_a_hand_computed_number_and_padding_changes_nothing():
    coverage = np.array([[1.2, 0.5, 0.3], [1.2, 0.5, 0.3]])
    mask = np.array([[True, True, True], [True, True, False]])
    found = 0.2 * ops.convert_to_numpy(coverage_score(coverage, mask))
    np.testing.assert_allclose(found, [-0.379424, 0.2 * np.log(0.5)], atol=1e-6)
    padded = np.pad(coverage, ((0, 0), (0, 3)))
    mask = np.pad(mask, ((0, 0), (0, 3)))
    again = 0.2 * ops.convert_to_numpy(coverage_score(padded, mask))
    np.testing.assert_allclose(again, found, atol=1e-6)
    nothing = coverage_score(np.zeros((1, 2)), np.ones((1, 2), bool))
    assert float(nothing[0]) == pytest.approx(2 * np.log(1e-9), rel=1e-5)


def test_target_log_probs_sums_the_labels_of_real_positions():
    logits = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    labels = np.array([[1, 2, 3], [3, 0, 0]])
    weights = np.array([[1, 1, 1], [1, 0, 0]], "float32")
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [
        np.log(probs[0, 0, 1] * probs[0, 1, 2] * probs[0, 2, 3]),
        np.log(probs[1, 0, 3]),
    ]
    result = ops.convert_to_numpy(target_log_probs(logits, labels, weights))
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_target_log_probs_ignores_what_padding_holds():
    logits = np.zeros((1, 2, 4), "float32")
    logits[0, 1] = np.nan
    result = target_log_probs(logits, np.array([[1, 0]]), np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(ops.convert_to_numpy(result), [-np.log(4)], rtol=1e-6)
