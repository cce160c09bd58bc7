"""Token metrics: totals over batches, padding, serialisation."""

import keras
import numpy as np
import pytest

from keras_seq2seq.metrics import Perplexity, TokenAccuracy, TokenLoss


def logits_with_loss(losses):
    """Two-way logits whose label 0 costs the given losses, `(B, T, 2)`."""
    probabilities = np.exp(-np.asarray(losses, "float64"))
    return np.log(np.stack([probabilities, 1 - probabilities], -1)).astype("float32")


def test_perplexity_comes_from_totals_not_from_batch_means():
    metric = Perplexity()
    # One token of loss 4, then three of loss 1: 7 / 4, not (4 + 1) / 2.
    metric.update_state(np.zeros((1, 1)), logits_with_loss([[4.0]]), np.ones((1, 1)))
    metric.update_state(np.zeros((1, 3)), logits_with_loss([[1.0, 1.0, 1.0]]))
    assert float(metric.result()) == pytest.approx(np.exp(7 / 4), rel=1e-5)


def test_the_cut_into_batches_changes_nothing():
    losses = np.random.default_rng(0).uniform(0.1, 3.0, size=(4, 3))
    weights = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]], "float32")
    results = []
    for cut in (1, 2, 4):
        metric = TokenLoss()
        for start in range(0, 4, cut):
            rows = slice(start, start + cut)
            labels = np.zeros((cut, 3))
            metric.update_state(labels, logits_with_loss(losses[rows]), weights[rows])
        results.append(float(metric.result()))
    expected = (losses * weights).sum() / weights.sum()
    assert results == pytest.approx([expected] * 3, abs=1e-5)


def test_uniform_logits_give_the_vocabulary_size():
    metric = Perplexity()
    metric.update_state(np.array([[3, 1]]), np.zeros((1, 2, 9), "float32"))
    assert float(metric.result()) == pytest.approx(9.0, rel=1e-5)


def test_accuracy_counts_real_tokens_only():
    logits = np.eye(3, dtype="float32")[np.array([[0, 1, 2], [1, 1, 1]])]
    labels = np.array([[0, 2, 2], [1, 0, 0]])
    weights = np.array([[1, 1, 0], [1, 0, 0]])
    metric = TokenAccuracy()
    metric.update_state(labels, logits, weights)
    assert float(metric.result()) == pytest.approx(2 / 3)


def test_a_label_that_shares_the_highest_logit_is_right():
    metric = TokenAccuracy()
    metric.update_state(np.array([[2, 0]]), np.array([[[1, 3, 3], [1, 3, 3.0]]]))
    assert float(metric.result()) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("metric", "value"), [(TokenLoss(), 0), (Perplexity(), 1), (TokenAccuracy(), 0)]
)
def test_nothing_but_padding_gives_a_finite_value(metric, value):
    metric.update_state(np.zeros((2, 2)), np.ones((2, 2, 3)), np.zeros((2, 2)))
    assert float(metric.result()) == value


def test_reset_forgets_the_totals():
    metric = TokenLoss()
    metric.update_state(np.zeros((1, 1)), logits_with_loss([[3.0]]))
    metric.reset_state()
    metric.update_state(np.zeros((1, 1)), logits_with_loss([[1.0]]))
    assert float(metric.result()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("metric_class", [TokenLoss, Perplexity, TokenAccuracy])
def test_metrics_are_restored_by_name(metric_class):
    metric = metric_class(name="x")
    copy = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(copy) is metric_class
    assert copy.name == "x"
