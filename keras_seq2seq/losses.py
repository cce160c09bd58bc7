"""Training loss: cross-entropy of the target tokens, weighted by real positions."""

from typing import Any, Literal

import keras
from keras import ops

from keras_seq2seq.gathers import take_last

__all__ = ["TokenCrossEntropy", "token_log_probs"]


def token_log_probs(label_ids: Any, logits: Any) -> tuple[Any, Any]:
    """Log-probability of each label, and the normaliser it was computed with.

    Computed in float32 whatever the type of the logits.

    Args:
        label_ids: Expected token of each position, int32 `(B, T)`.
        logits: Unnormalised scores, `(B, T, V)`.

    Returns:
        `log_probs`, `(B, T)`, and `log_normalizer`, the log of the sum of the
        exponentials of the logits, `(B, T)`; both float32.
    """
    return _log_probs(label_ids, logits, with_mean=False)[:2]


def _log_probs(label_ids, logits, *, with_mean):
    """The two of `token_log_probs`, and the mean logit, `(B, T)`, or None.

    The gradient is written down, because each pass over `(B, T, V)` numbers counts on
    CPUs: this takes the exponentials of the way there once more, and writes the labels'
    numbers over the others, where TensorFlow's own would sum by segments.
    """

    @ops.custom_gradient
    def log_probs(label_ids, logits):
        highest = ops.max(logits, axis=-1, keepdims=True)  # (B, T, 1)
        exponentials = ops.exp(logits - highest)
        total = ops.sum(exponentials, axis=-1, keepdims=True)
        log_normalizer = highest + ops.log(total)
        label_logits = ops.expand_dims(take_last(logits, label_ids), -1)

        def gradient(*args, upstream=None):
            # TensorFlow gives them one by one, JAX as one tuple.
            upstream = keras.tree.flatten(args if upstream is None else upstream)
            into_log_probs, into_normalizer, *into_mean = [
                ops.expand_dims(x, -1) for x in upstream
            ]
            scale = (into_normalizer - into_log_probs) / total
            gradients = exponentials * scale
            of_labels = ops.exp(label_logits - highest) * scale + into_log_probs
            if with_mean:
                each = into_mean[0] / logits.shape[-1]
                gradients, of_labels = gradients + each, of_labels + each
            return None, _replaced(gradients, label_ids, of_labels)

        values: tuple[Any, ...] = (label_logits - log_normalizer, log_normalizer)
        if with_mean:
            values += (ops.mean(logits, axis=-1, keepdims=True),)
        return tuple(ops.squeeze(x, axis=-1) for x in values), gradient

    values = log_probs(ops.cast(label_ids, "int32"), ops.cast(logits, "float32"))
    return values if with_mean else (*values, None)


def _replaced(x, ids, values):
    """`x`, `(B, T, V)`, with `values`, `(B, T, 1)`, at the `ids`, `(B, T)`."""
    shape, ids = ops.shape(x), ops.reshape(ids, (-1,))
    rows = ops.arange(shape[0] * shape[1], dtype=ids.dtype)
    replaced = ops.scatter_update(
        ops.reshape(x, (-1, shape[2])),
        ops.stack([rows, ids], axis=1),
        ops.reshape(values, (-1,)),
    )
    return ops.reshape(replaced, shape)


@keras.saving.register_keras_serializable("keras_seq2seq")
class TokenCrossEntropy(keras.losses.Loss):
    """Cross-entropy from logits, averaged over real tokens or over sequences.

    Padding must arrive as sample weight 0: such positions change neither the
    loss nor its divisor, and a batch of nothing but padding gives 0. Labels are ids.

    With `label_smoothing` = e, the target distribution keeps 1 - e on the label
    and spreads e evenly: over the whole vocabulary (`"vocabulary"`, e / V each,
    the label included) or over the others (`"others"`, e / (V - 1) each).

    Args:
        label_smoothing: Probability taken from the label, in `[0, 1)`.
        smoothing: `"vocabulary"` or `"others"`.
        reduction: `"token"`: mean over real tokens. `"sequence"`: sum over the
            tokens of a sequence, mean over the sequences that have any.
        name: Name of the loss.
        dtype: Type of the computation.

    Call arguments:
        y_true: `label_ids`, `(B, T)`.
        y_pred: `logits`, `(B, T, V)`.
        sample_weight: `label_weights`, `(B, T)`; all ones when missing.

    Returns:
        A scalar.

    Raises:
        ValueError: If an argument is outside the values above.

    Reference:
        Vaswani et al., 2017, section 5.4; Szegedy et al., 2016, section 7.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        smoothing: Literal["vocabulary", "others"] = "vocabulary",
        reduction: Literal["token", "sequence"] = "token",
        name: str = "token_cross_entropy",
        dtype: str = "float32",
    ):
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(
                "`label_smoothing` must be at least 0 and below 1. "
                f"Received: label_smoothing={label_smoothing}."
            )
        if smoothing not in ("vocabulary", "others"):
            raise ValueError(
                '`smoothing` must be "vocabulary" or "others". '
                f"Received: smoothing={smoothing!r}."
            )
        if reduction not in ("token", "sequence"):
            raise ValueError(
                '`reduction` must be "token" or "sequence". '
                f"Received: reduction={reduction!r}."
            )
        super().__init__(name=name, reduction="mean_with_sample_weight", dtype=dtype)
        self.label_smoothing = label_smoothing
        self.smoothing = smoothing
        self.per_sequence = reduction == "sequence"

    def __call__(self, y_true, y_pred, sample_weight=None):
        if sample_weight is None:
            sample_weight = ops.ones(ops.shape(y_true), dtype=self.dtype)
        mean_per_token = super().__call__(y_true, y_pred, sample_weight)
        if not self.per_sequence:
            return mean_per_token
        weights = ops.cast(sample_weight, self.dtype)
        sequences = ops.sum(ops.cast(ops.any(weights > 0, axis=-1), self.dtype))
        return mean_per_token * ops.divide_no_nan(ops.sum(weights), sequences)

    def call(self, y_true, y_pred):
        if self.label_smoothing == 0.0:
            return -token_log_probs(y_true, y_pred)[0]
        log_probs, log_normalizer, mean_logit = _log_probs(
            y_true, y_pred, with_mean=True
        )
        # The mean over the vocabulary of -log p needs no log p of its own.
        mean_loss = log_normalizer - mean_logit
        if self.smoothing == "vocabulary":
            spread = mean_loss
        else:
            vocabulary_size = y_pred.shape[-1]
            spread = (vocabulary_size * mean_loss + log_probs) / (vocabulary_size - 1)
        return -(1.0 - self.label_smoothing) * log_probs + self.label_smoothing * spread

    def get_config(self):
        return {
            "name": self.name,
            "label_smoothing": self.label_smoothing,
            "smoothing": self.smoothing,
            "reduction": "sequence" if self.per_sequence else "token",
            "dtype": self.dtype,
        }
