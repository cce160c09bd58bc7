"""Scores of target sequences: penalties, and teacher-forced log-probability."""

from typing import Any

from keras import ops

from keras_seq2seq.gathers import take_last

__all__ = ["coverage_score", "length_penalty", "target_log_probs"]


def length_penalty(lengths: Any, alpha: float, *, base: float = 5.0) -> Any:
    """Divisor that makes log-probabilities of different lengths comparable.

    `((base + length) / (base + 1)) ** alpha`, where `length` counts the tokens
    written, END included and START not. An alpha of 0 leaves log-probabilities as
    they are; a base of 0 is the penalty of fairseq and Sockeye, and with an alpha of
    1 gives the mean.

    Args:
        lengths: Numbers of tokens, of any shape.
        alpha: Strength of the penalty; 0 or more.
        base: What lengths are counted from; 0 or more. A length of 0 counts as 1
            where it is 0.

    Returns:
        The divisor, float32, shaped as `lengths`.

    Reference:
        Wu et al., 2016, equation 14.
    """
    lengths = ops.cast(lengths, "float32")
    if base == 0:
        lengths = ops.maximum(lengths, 1.0)  # nothing written: nothing to divide
    return ops.power((lengths + base) / (base + 1.0), alpha)


def coverage_score(coverage: Any, source_mask: Any) -> Any:
    """Sum over real source positions of the log of the attention they received.

    Args:
        coverage: Attention summed over the tokens written, `(…, S)`; more than 1
            counts as 1, less than 1e-9 as that.
        source_mask: True on real positions, bool, broadcastable to it.

    Returns:
        At most 0, float32 `(…)`.

    Reference:
        Wu et al., 2016, equation 14.
    """
    logs = ops.log(ops.clip(ops.cast(coverage, "float32"), 1e-9, 1.0))
    return ops.sum(ops.where(source_mask, logs, 0.0), axis=-1)


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
    label_logits = take_last(logits, ops.cast(label_ids, "int32"))  # (B, T)
    log_probs = label_logits - ops.logsumexp(logits, axis=-1)  # (B, T)
    weights = ops.cast(label_weights, "float32")
    # Not weights * log_probs alone: 0 times NaN is NaN.
    weighted = ops.where(weights > 0, weights * log_probs, 0.0)
    return ops.sum(weighted, axis=-1)
