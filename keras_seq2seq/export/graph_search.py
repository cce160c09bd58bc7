"""The decoding of a Translator as functions of a graph, from ids to ids.

SavedModels and LiteRT files are made of these. Every option of the search is a
constant of the graph. What follows the length of a source is a table made by the
Translator's own rule, so that both agree by construction.
"""

import math
from typing import Any

import keras
import tensorflow as tf

from keras_seq2seq.buffers import filled_by
from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.decoding import SearchResult, search_sources
from keras_seq2seq.requests import Request, make_request
from keras_seq2seq.scoring import log_probs_of_targets
from keras_seq2seq.tokenizers import END_ID, PAD_ID, START_ID, UNK_ID

#: JSON has no infinity, so no answer holds one.
LOWEST_SCORE = -1.0e9
# No source is longer than this many tokens, where limits follow sources slowly.
_LONGEST_TABLE = 2**16
# What a sampling temperature can be at most, before float32 runs out.
_HIGHEST_TEMPERATURE = 1.0e6


def check_backend(what: str) -> None:
    """Refuses to export where Keras does not run on TensorFlow.

    Args:
        what: What is exported, as the sentence's subject.

    Raises:
        ValueError: With the backend.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{what} is written on the TensorFlow backend. Received: "
            f"KERAS_BACKEND={keras.backend.backend()}. A run trained on another "
            "backend exports on TensorFlow unchanged: set KERAS_BACKEND=tensorflow."
        )


class GraphSearch:
    """Encoder and decoding of a model, for batches of source ids.

    Sources are `ids`, int32 `(B, S)` with END, and `lengths`, int32 `(B,)`: how many
    of each row are real.

    Args:
        model: A model of the four-call contract.
        decoding: The settings of its run.
        num_beams: Width of the beam; by default the run's.
        length_penalty: Exponent of the length penalty; by default the run's.
        max_length: Most tokens of an output, END included, for every source; by default
            it follows the source's length as the run says.
        fills: How loops fill their buffers; see `buffers.filled_by`.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        model: Any,
        decoding: DecodingConfig,
        *,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        fills: str = "grow",
    ) -> None:
        settings = {"num_beams": num_beams, "length_penalty": length_penalty}
        # A server searches; it draws where it is asked to.
        self.request = make_request(
            decoding, {**settings, "temperature": 0.0}, max_length=max_length
        )
        self.model = model
        self.follows_source = max_length is None
        self.tables = _length_tables(self.request, self.model.max_positions)
        self.max_length = max(self.tables["length_limits"])
        self._fills = fills

    @property
    def num_beams(self) -> int:
        """Hypotheses that a beam search returns of each source."""
        return self.request.constants["num_beams"]

    @property
    def described(self) -> dict[str, Any]:
        """The options of the search, for the manifest."""
        return {
            **self.request.constants,
            "max_length": self.max_length,
            "follows_source": self.follows_source,
        }

    def best(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best output of each source: ids `(B, L)`, lengths and scores `(B,)`."""
        ids, lengths = self.real_ids(ids, lengths)
        result = self._search(ids, lengths)
        return self._first(result, is_blank(ids, lengths))

    def greedy(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """The same of a greedy search."""
        ids, lengths = self.real_ids(ids, lengths)
        result = self._search(ids, lengths, num_beams=1, num_groups=1)
        return self._first(result, is_blank(ids, lengths))

    def n_best(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """All hypotheses, best first: ids `(B, N, L)`, lengths and scores `(B, N)`.

        Where fewer were found than there are beams, the slots left over have no
        tokens and the lowest score. A blank source has one, without tokens.
        """
        ids, lengths = self.real_ids(ids, lengths)
        result = self._search(ids, lengths, n_best=self.num_beams)
        blank = tf.expand_dims(is_blank(ids, lengths), 1)  # (B, 1)
        scores = tf.where(blank, LOWEST_SCORE, _finite(result.scores))
        first = tf.expand_dims(tf.range(self.num_beams) < 1, 0)  # (1, N)
        scores = tf.where(tf.logical_and(blank, first), 0.0, scores)
        shape = (None, self.num_beams)
        kept = tf.where(tf.expand_dims(blank, 2), PAD_ID, result.ids)
        return {
            "output_ids": tf.ensure_shape(kept, (*shape, self.max_length)),
            "output_lengths": tf.ensure_shape(
                tf.where(blank, 0, result.lengths), shape
            ),
            "scores": tf.ensure_shape(scores, shape),
        }

    def drawn(
        self,
        ids: tf.Tensor,
        lengths: tf.Tensor,
        *,
        seed: tf.Tensor,
        temperature: tf.Tensor,
        top_k: tf.Tensor,
        top_p: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """One sample of each source, drawn as its own settings say, all `(B,)`."""
        ids, lengths = self.real_ids(ids, lengths)
        result = self._search(
            ids,
            lengths,
            seeds=seed,
            temperatures=tf.clip_by_value(temperature, 0.0, _HIGHEST_TEMPERATURE),
            top_ks=tf.maximum(top_k, 0),
            top_ps=tf.clip_by_value(top_p, 0.0, 1.0),
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_beams=1,
            num_groups=1,
        )
        return self._first(result, is_blank(ids, lengths))

    def attended(
        self, ids: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        """The best output, the source ids that count, and attention `(B, L, S)`."""
        ids, lengths = self.real_ids(ids, lengths)
        result = self._search(ids, lengths, return_attention=True)
        blank = is_blank(ids, lengths)
        weights = tf.where(
            tf.reshape(blank, (-1, 1, 1)),
            0.0,
            tf.cast(result.attention[:, 0], "float32"),
        )
        shown = tf.where(tf.expand_dims(blank, 1), PAD_ID, ids)
        return self._first(result, blank), shown, weights

    def score(
        self,
        ids: tf.Tensor,
        lengths: tf.Tensor,
        target_ids: tf.Tensor,
        target_lengths: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Log-probability and number of tokens of given targets, `(B,)`.

        `target_ids` `(B, T)` have END; one without a token counts as END alone.
        """
        ids, _ = self.real_ids(ids, lengths)
        empty = target_lengths < 1
        counts = tf.maximum(target_lengths, 1)
        if self.model.max_positions is not None:
            target_ids = target_ids[:, : self.model.max_positions]
            counts = tf.minimum(counts, self.model.max_positions)
        first = tf.where(empty, END_ID, target_ids[:, 0])
        labels = tf.concat([tf.expand_dims(first, 1), target_ids[:, 1:]], axis=1)
        labels = tf.where(tf.sequence_mask(counts, tf.shape(labels)[1]), labels, PAD_ID)
        inputs = tf.concat(
            [tf.fill((tf.shape(ids)[0], 1), START_ID), labels[:, :-1]], 1
        )
        inputs = tf.where(labels == PAD_ID, PAD_ID, inputs)
        log_probs = log_probs_of_targets(self.model, ids, inputs, labels)
        return {
            "log_prob": tf.ensure_shape(_finite(log_probs), (None,)),
            "num_tokens": tf.ensure_shape(counts, (None,)),
        }

    def real_ids(
        self, ids: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Source ids that the model can take, whatever a client or a server sent.

        A server that merges requests fills shorter rows with each tensor's first
        element, so only `lengths` tells what is real. An id outside the vocabulary
        would fail the whole merged batch; it counts as unknown.
        """
        # An empty row still needs a column.
        width = tf.shape(ids)[1]
        ids = tf.pad(ids, [[0, 0], [0, tf.maximum(1 - width, 0)]])
        lengths = tf.clip_by_value(lengths, 0, width)
        if self.model.max_positions is not None:
            ids = ids[:, : self.model.max_positions]
        kept = tf.minimum(lengths, tf.shape(ids)[1])
        positions = tf.expand_dims(tf.range(tf.shape(ids)[1]), 0)  # (1, S)
        # A source that is cut still ends with END.
        cut = tf.expand_dims(kept < lengths, 1)  # (B, 1)
        last = positions == tf.expand_dims(kept - 1, 1)  # (B, S)
        ids = tf.where(tf.logical_and(cut, last), END_ID, ids)
        valid = tf.logical_and(ids >= 0, ids < self.model.source_vocabulary_size)
        ids = tf.where(valid, ids, UNK_ID)
        # The first position is always real, so that no row is all padding.
        real = positions < tf.maximum(tf.expand_dims(kept, 1), 1)
        ids = tf.where(tf.expand_dims(kept, 1) < 1, END_ID, ids)
        return tf.where(real, ids, PAD_ID), kept

    def limits(self, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """What follows the lengths of the sources, by the names of `SearchInputs`."""
        return {
            name: tf.gather(
                tf.constant(table, tf.int32), tf.minimum(lengths, len(table) - 1)
            )
            for name, table in self.tables.items()
        }

    def _search(
        self, ids: tf.Tensor, lengths: tf.Tensor, **options: Any
    ) -> SearchResult:
        """Runs a search over sources that `real_ids` returned."""
        constants = {**self.request.constants, "max_length": self.max_length}
        with filled_by(self._fills):
            return search_sources(
                self.model, ids, **{**constants, **self.limits(lengths), **options}
            )

    def _first(self, result: SearchResult, blank: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best hypothesis of each row in the types and shapes of the signatures."""
        ids = tf.where(tf.expand_dims(blank, 1), PAD_ID, result.ids[:, 0])
        lengths = tf.where(blank, 0, result.lengths[:, 0])
        score = tf.where(blank, 0.0, _finite(result.scores[:, 0]))
        return {
            "output_ids": tf.ensure_shape(ids, (None, self.max_length)),
            "output_lengths": tf.ensure_shape(lengths, (None,)),
            "score": tf.ensure_shape(score, (None,)),
        }


def is_blank(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Whether sources hold no token but END, bool `(B,)`.

    Args:
        ids: What `real_ids` returned, `(B, S)`.
        lengths: The lengths that it returned, `(B,)`.
    """
    only_end = tf.logical_and(lengths == 1, ids[:, 0] == END_ID)
    return tf.logical_or(lengths <= 0, only_end)


def _finite(scores: tf.Tensor) -> tf.Tensor:
    """Scores in float32, with no infinity and no NaN."""
    scores = tf.cast(scores, tf.float32)
    # Comparing with NaN is false.
    return tf.where(scores >= LOWEST_SCORE, scores, LOWEST_SCORE)


def _length_tables(request: Request, positions: int | None) -> dict[str, list[int]]:
    """What is allowed a source of 0, 1, 2, … tokens; the last for longer ones."""
    settings = request.settings
    ratios = [settings.min_length_ratio]
    if settings.length_reward:
        ratios.append(settings.length_reward_ratio)
    if request.max_length is None:
        ratios.append(settings.max_length_ratio)
    # Up to where each has reached the limit; one more, in case that was rounded.
    longest = max(math.ceil(settings.max_length / r) + 1 if r else 0 for r in ratios)
    longest = min(longest, _LONGEST_TABLE, positions or _LONGEST_TABLE)
    tables = {"length_limits": [request.limit(n) for n in range(longest + 1)]}
    if positions is not None:
        tables["length_limits"] = [min(n, positions) for n in tables["length_limits"]]
    follows = request.length_inputs(range(longest + 1))
    return tables | {name: values.tolist() for name, values in follows.items()}
