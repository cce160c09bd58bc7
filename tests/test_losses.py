"""Token cross-entropy: values by hand, padding, reductions, serialisation."""

import keras
import numpy as np
import pytest

from keras_seq2seq.losses import TokenCrossEntropy, token_log_probs

PROBABILITIES = np.array([0.7, 0.1, 0.1, 0.1])


def gradient_of(function, x):
    """Gradient of a scalar function at `x`, on the backend of this process."""
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(function)(x))
    import tensorflow as tf

    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return tape.gradient(value, x).numpy()


def loss_of(loss, labels, logits, weights=None):
    labels = np.asarray(labels, "int32")
    logits = np.asarray(logits, "float32")
    if weights is not None:
        weights = np.asarray(weights, "float32")
    return float(loss(labels, logits, weights))


# Szegedy's and T2T's definitions by hand, with p = (.7, .1, .1, .1) and e = .1.
@pytest.mark.parametrize(
    ("smoothing", "epsilon", "expected"),
    [
        ("vocabulary", 0.0, 0.356675),
        ("vocabulary", 0.1, 0.502618),
        ("others", 0.1, 0.551266),
    ],
)
def test_smoothed_loss_of_a_known_distribution(smoothing, epsilon, expected):
    loss = TokenCrossEntropy(label_smoothing=epsilon, smoothing=smoothing)
    # Any constant may be added to logits.
    logits = [[np.log(PROBABILITIES) + 3.0]]
    assert loss_of(loss, [[0]], logits, [[1]]) == pytest.approx(expected, abs=1e-6)


def test_loss_less_the_entropy_of_its_target_is_what_tensor2tensor_prints():
    loss = TokenCrossEntropy(label_smoothing=0.1, smoothing="others")
    target = np.array([0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3])
    entropy = -(target * np.log(target)).sum()
    printed = loss_of(loss, [[0]], [[np.log(PROBABILITIES)]], [[1]]) - entropy
    assert printed == pytest.approx(0.116322, abs=1e-6)


@pytest.mark.parametrize("smoothing", ["vocabulary", "others"])
def test_smoothed_loss_equals_the_full_target_distribution(smoothing):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5))
    labels = rng.integers(0, 5, size=(2, 3))
    others = 0.2 / 5 if smoothing == "vocabulary" else 0.2 / 4
    target = np.full((2, 3, 5), others)
    gold = 0.8 + (others if smoothing == "vocabulary" else 0.0)
    np.put_along_axis(target, labels[..., None], gold, axis=-1)
    assert np.allclose(target.sum(-1), 1.0)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -(target * log_probs).sum(-1).mean()
    loss = TokenCrossEntropy(label_smoothing=0.2, smoothing=smoothing)
    assert loss_of(loss, labels, logits) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("smoothing", ["vocabulary", "others"])
def test_uniform_logits_give_the_log_of_the_vocabulary(smoothing):
    loss = TokenCrossEntropy(label_smoothing=0.1, smoothing=smoothing)
    value = loss_of(loss, [[1, 2]], np.zeros((1, 2, 7)), [[1, 1]])
    assert value == pytest.approx(np.log(7), abs=1e-6)


def test_padding_and_empty_rows_change_nothing():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, 2, 4))
    labels = np.array([[3, 1]])
    padded_logits = rng.normal(size=(3, 5, 4)) * 10
    padded_logits[:1, :2] = logits
    padded_labels = np.zeros((3, 5))
    padded_labels[:1, :2] = labels
    weights = np.zeros((3, 5))
    weights[:1, :2] = 1
    for reduction in ("token", "sequence"):
        loss = TokenCrossEntropy(label_smoothing=0.1, reduction=reduction)
        alone = loss_of(loss, labels, logits, np.ones((1, 2)))
        padded = loss_of(loss, padded_labels, padded_logits, weights)
        assert padded == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("reduction", ["token", "sequence"])
def test_a_batch_of_padding_gives_zero(reduction):
    loss = TokenCrossEntropy(reduction=reduction)
    value = loss_of(loss, np.zeros((2, 3)), np.ones((2, 3, 4)), np.zeros((2, 3)))
    assert value == 0.0


def test_sequence_reduction_sums_over_tokens_and_averages_over_sequences():
    # Two sequences of 3 and 1 tokens, each token costing log 4.
    weights = [[1, 1, 1], [1, 0, 0]]
    arguments = np.zeros((2, 3)), np.zeros((2, 3, 4)), weights
    token = loss_of(TokenCrossEntropy(), *arguments)
    sequence = loss_of(TokenCrossEntropy(reduction="sequence"), *arguments)
    assert token == pytest.approx(np.log(4), abs=1e-6)
    assert sequence == pytest.approx(2 * np.log(4), abs=1e-6)


def test_loss_of_half_precision_logits_is_computed_in_float32():
    logits = keras.ops.cast(np.full((1, 1, 300), 100.0), "bfloat16")
    value = TokenCrossEntropy()(np.array([[4]]), logits, np.ones((1, 1)))
    assert keras.backend.standardize_dtype(value.dtype) == "float32"
    assert float(value) == pytest.approx(np.log(300), abs=1e-5)


def test_large_logits_stay_finite():
    value = loss_of(TokenCrossEntropy(label_smoothing=0.1), [[0]], [[[1e4, -1e4]]])
    # Half of the smoothing mass sits on a token 2e4 below: 0.05 * 2e4.
    assert value == pytest.approx(1000.0)


def test_log_probs_are_normalised():
    logits = np.random.default_rng(2).normal(size=(1, 1, 6)).astype("float32")
    probabilities = [
        float(np.exp(token_log_probs(np.array([[label]]), logits)[0][0, 0]))
        for label in range(6)
    ]
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
    expected = np.exp(logits[0, 0]) / np.exp(logits[0, 0]).sum()
    assert probabilities == pytest.approx(expected.tolist(), abs=1e-5)


# The derivative of each logit, weight 1 or 0 over 2 real tokens:
# (softmax - (1 - e) one-hot - e / V) / 2, and e / (V - 1) off the label for "others".
@pytest.mark.parametrize("smoothing", ["vocabulary", "others"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_gradient_is_the_difference_of_the_two_distributions(
    label_smoothing, smoothing
):
    random = np.random.default_rng(5)
    logits = random.normal(scale=3, size=(2, 2, 5)).astype("float32")
    labels, weights = np.array([[1, 4], [0, 2]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    loss = TokenCrossEntropy(label_smoothing, smoothing)
    found = gradient_of(lambda x: loss(labels, x, weights), logits)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    target = np.eye(5)[labels] * (1 - label_smoothing)
    if smoothing == "vocabulary":
        target += label_smoothing / 5
    else:
        target += (1 - np.eye(5)[labels]) * label_smoothing / 4
    expected = (probabilities - target) * weights[..., None] / 2
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_loss_is_restored_with_its_arguments():
    loss = TokenCrossEntropy(0.1, "others", "sequence", name="x")
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert copy.get_config() == loss.get_config()
    arguments = [[0, 1]], [[[1.0, 2.0], [0.5, 3.0]]], [[1, 1]]
    assert loss_of(copy, *arguments) == loss_of(loss, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1"),
        ({"smoothing": "all"}, "smoothing='all'"),
        ({"reduction": "sum"}, "reduction='sum'"),
    ],
)
def test_wrong_arguments_are_refused_with_their_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenCrossEntropy(**arguments)
