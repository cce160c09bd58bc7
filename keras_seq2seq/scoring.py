"""Log-probabilities of given targets, by ids; `pipelines.Translator.score` has text."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras

from keras_seq2seq.batches import inference_batches, pad_rows
from keras_seq2seq.decoding import target_log_probs
from keras_seq2seq.tokenizers import PAD_ID, START_ID


class Score(NamedTuple):
    """Log-probability of a given target, and its number of tokens with END."""

    log_prob: float
    num_tokens: int


class TargetScorer(keras.Model):
    """Teacher-forced log-probabilities as a model, compiled by `predict_on_batch`.

    Args:
        model: A `Seq2Seq` model.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name="target_scorer")
        self.model = model
        # On TensorFlow, XLA would compile for seconds at each new shape; on JAX there
        # is no other way to compile.
        self.compile(jit_compile=keras.config.backend() == "jax")

    def call(self, inputs: dict[str, Any]) -> Any:
        """Return log-probabilities, `(B,)`, of `label_ids`, `(B, T)`."""
        label_ids = inputs["label_ids"]
        logits = self.model(
            {"source_ids": inputs["source_ids"], "target_ids": inputs["target_ids"]},
            training=False,
        )
        weights = keras.ops.cast(keras.ops.not_equal(label_ids, PAD_ID), "float32")
        return target_log_probs(logits, label_ids, weights)

    def score(
        self,
        sources: Sequence[Sequence[int]],
        labels: Sequence[Sequence[int]],
        *,
        batch_tokens: int,
        progress: Callable[[int], None] | None = None,
    ) -> list[Score]:
        """Score targets in batches of similar length.

        Args:
            sources: Ids of each source, END included.
            labels: Ids of each target, END included.
            batch_tokens: Positions of a batch, of the longer side.
            progress: Called with the number of pairs each time a batch is done.

        Returns:
            A score for each pair, in order.
        """
        lengths = [max(len(s), len(t)) for s, t in zip(sources, labels, strict=True)]
        scores = [Score(0.0, 0)] * len(labels)
        for rows, height, width in inference_batches(
            lengths, batch_tokens=batch_tokens, max_width=self.model.max_positions
        ):
            wanted = [labels[row] for row in rows]
            log_probs = self.predict_on_batch(
                {
                    "source_ids": pad_rows([sources[i] for i in rows], height, width),
                    "target_ids": pad_rows(
                        [[START_ID, *label[:-1]] for label in wanted], height, width
                    ),
                    "label_ids": pad_rows(wanted, height, width),
                }
            )
            for index, row in enumerate(rows):
                scores[row] = Score(float(log_probs[index]), len(labels[row]))
            if progress is not None:
                progress(len(rows))
        return scores


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
