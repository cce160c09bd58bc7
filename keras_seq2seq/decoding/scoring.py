"""Scores of target sequences: the length penalty and teacher-forced log-probability."""

from typing import Any

from keras import ops

__all__ = ["length_penalty", "target_log_probs"]


def length_penalty(lengths: Any, alpha: float) -> Any:
    """Divisor that makes log-probabilities of different lengths comparable.

    `((5 + length) / 6) ** alpha`, where `length` counts the tokens written, END
    included and START not. 0 leaves log-probabilities as they are.

    Args:
        lengths: Numbers of tokens, of any shape.
        alpha: Strength of the penalty; 0 or more.

    Returns:
        The divisor, float32, shaped as `lengths`.

    Reference:
        Wu et al., 2016, equation 14.
    """
    return ops.power((ops.cast(lengths, "float32") + 5.0) / 6.0, alpha)


def target_log_probs(logits: Any, label_ids: Any, label_weights: Any) -> Any:
    """Log-probability of each target sequence, from teacher-forced logits.

    The sum over positions of the log-probability of the label times its weight.
    Positions of weight 0 count for nothing, whatever their logits hold.

    Args:
        logits: What `model.call` returned, `(B, T, V)`.
        label_ids: Expected tokens, each row ending with END, `(B, T)`.
        label_weights: 1 on real positions, 0 on padding, `(B, T)`.

    Returns:
        Natural-log probabilities, float32 `(B,)`.
    """
    logits = ops.cast(logits, "float32")
    label_ids = ops.expand_dims(ops.cast(label_ids, "int32"), axis=-1)  # (B, T, 1)
    label_logits = ops.squeeze(ops.take_along_axis(logits, label_ids, axis=-1), -1)
    log_probs = label_logits - ops.logsumexp(logits, axis=-1)  # (B, T)
    weights = ops.cast(label_weights, "float32")
    # Not weights * log_probs alone: 0 times NaN is NaN.
    weighted = ops.where(weights > 0, weights * log_probs, 0.0)
    return ops.sum(weighted, axis=-1)
