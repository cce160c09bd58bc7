"""Log-probabilities of given targets, by ids; `pipelines.Translator.score` has text."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_seq2seq.batches import Batch, inference_batches, pad_rows, side_by_side
from keras_seq2seq.decoding import compiled_by_shape, program, target_log_probs
from keras_seq2seq.tokenizers import PAD_ID, START_ID


class Score(NamedTuple):
    """Log-probability of a given target, and its number of tokens with END."""

    log_prob: float
    num_tokens: int


def score_targets(
    model: keras.Model,
    sources: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    *,
    batch_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> list[Score]:
    """Score targets under teacher forcing, in batches of similar length.

    Args:
        model: A `Seq2Seq` model.
        sources: Ids of each source, END included.
        labels: Ids of each target, END included.
        batch_tokens: Positions of a batch, of the longer side.
        progress: Called with the number of pairs each time a batch is done.

    Returns:
        A score for each pair, in order.
    """
    some = keras.KerasTensor((None, None), "int32")
    log_probs_of = program(
        model, "score_targets", log_probs_of_targets, signature=[some] * 3
    )

    def score(batch: Batch) -> np.ndarray:
        rows, *shape = batch
        wanted = [labels[row] for row in rows]
        inputs = [[START_ID, *label[:-1]] for label in wanted]
        sides = ([sources[row] for row in rows], inputs, wanted)
        return np.asarray(log_probs_of(*(pad_rows(ids, *shape) for ids in sides)))

    scores = [Score(0.0, 0)] * len(labels)
    batches = inference_batches(
        [max(len(s), len(t)) for s, t in zip(sources, labels, strict=True)],
        batch_tokens=batch_tokens,
        max_width=model.max_positions,
        exact=not compiled_by_shape(),
    )
    for batch, log_probs in side_by_side(score, batches):
        for index, row in enumerate(batch.rows):
            scores[row] = Score(float(log_probs[index]), len(labels[row]))
        if progress is not None:
            progress(len(batch.rows))
    return scores


def log_probs_of_targets(
    model: Any, source_ids: Any, target_ids: Any, label_ids: Any
) -> Any:
    """Log-probability of each target under teacher forcing.

    Args:
        model: A `Seq2Seq` model.
        source_ids: Sources, END included, padded with PAD, `(B, S)`.
        target_ids: What the decoder is fed: START and the labels but the last,
            `(B, T)`.
        label_ids: The targets, END included, padded with PAD, `(B, T)`.

    Returns:
        Natural-log probabilities, float32 `(B,)`.
    """
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    weights = keras.ops.cast(keras.ops.not_equal(label_ids, PAD_ID), "float32")
    return target_log_probs(model(inputs, training=False), label_ids, weights)


def perplexity(scores: Iterable[Score]) -> float:
    """Return the perplexity of scored targets, from totals over all their tokens.

    Args:
        scores: What `TargetScorer.score` returned.

    Returns:
        exp of the negative log-probability per token; infinite if too large.

    Raises:
        ValueError: If there are no scores.
    """
    scores = list(scores)
    num_tokens = sum(score.num_tokens for score in scores)
    if num_tokens == 0:
        raise ValueError("There must be at least one pair. Received: none.")
    mean = -sum(score.log_prob for score in scores) / num_tokens
    return math.exp(mean) if mean < 700 else math.inf
