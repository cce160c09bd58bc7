"""Training and validation metrics counted over real target tokens."""

from typing import Any

import keras
from keras import ops

from keras_seq2seq.losses import token_log_probs

__all__ = ["Perplexity", "TokenAccuracy", "TokenLoss"]


class _TokenMean(keras.metrics.Metric):
    """Total of a quantity over real tokens, divided by the weight of those tokens."""

    def __init__(self, name: str, dtype: str | None = "float32"):
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_variable((), initializer="zeros", name="total")
        self.count = self.add_variable((), initializer="zeros", name="count")

    def _add(self, values: Any, sample_weight: Any) -> None:
        """Adds the values of all positions, `(B, T)`."""
        values = ops.cast(values, self.dtype)
        if sample_weight is None:
            sample_weight = ops.ones_like(values)
        weights = ops.cast(sample_weight, self.dtype)
        self.total.assign_add(ops.sum(values * weights))
        self.count.assign_add(ops.sum(weights))

    def result(self):
        return ops.divide_no_nan(self.total, self.count)


@keras.saving.register_keras_serializable("keras_seq2seq")
class TokenLoss(_TokenMean):
    """Negative log-likelihood per real token, without label smoothing.

    Totals are kept over all batches, so batches with few tokens weigh little.

    Args:
        name: Name of the metric.
        dtype: Type of the totals.
    """

    def __init__(self, name: str = "token_loss", dtype: str | None = "float32"):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self._add(-token_log_probs(y_true, y_pred)[0], sample_weight)


@keras.saving.register_keras_serializable("keras_seq2seq")
class Perplexity(TokenLoss):
    """exp(total negative log-likelihood / total real tokens), END included.

    Never the mean of the perplexities or losses of batches: those depend on how
    the text was cut into batches.

    Args:
        name: Name of the metric.
        dtype: Type of the totals.
    """

    def __init__(self, name: str = "perplexity", dtype: str | None = "float32"):
        super().__init__(name=name, dtype=dtype)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("keras_seq2seq")
class TokenAccuracy(_TokenMean):
    """Share of the real tokens whose label has the highest logit.

    A label that shares the highest logit with other tokens counts.

    Args:
        name: Name of the metric.
        dtype: Type of the totals.
    """

    def __init__(self, name: str = "token_accuracy", dtype: str | None = "float32"):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        # No argmax: Keras' own takes five passes over the logits on TensorFlow. The
        # maximum, as it stands here, is one that the loss has, and is found once.
        label_ids = ops.expand_dims(ops.cast(y_true, "int32"), -1)
        label_logits = ops.take_along_axis(y_pred, label_ids, axis=-1)
        right = label_logits >= ops.max(y_pred, axis=-1, keepdims=True)
        self._add(ops.squeeze(right, axis=-1), sample_weight)
