"""Hypotheses of a beam search: how they rank, who has ended, and reading them back.

A hypothesis is remembered by where it ends: the position of its END, or of its last
token where it was cut, and the beam that held it. Each *pool* belongs to one source,
or to one group of beams of a source.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_seq2seq.buffers import write_at
from keras_seq2seq.decoding.options import SearchOptions
from keras_seq2seq.decoding.scoring import length_penalty
from keras_seq2seq.decoding.search import (
    IMPOSSIBLE,
    POSSIBLE_ABOVE,
    SearchResult,
    repeat_rows,
)
from keras_seq2seq.gathers import take_by_row, take_rows


class Ranking:
    """The score of a hypothesis that has ended, and a bound for one that lives.

    Args:
        options: Constants of the search.
        limits: Most tokens of each pool's hypotheses, int32 `(P,)`.
        reward_lengths: Most tokens that are rewarded, `(P,)`; None for the limits.
    """

    def __init__(
        self, options: SearchOptions, limits: Any, reward_lengths: Any
    ) -> None:
        self.options = options
        self.limits = limits
        self.reward_lengths = limits if reward_lengths is None else reward_lengths

    def scores(self, ranking: Any, lengths: Any, coverage: Any = None) -> Any:
        """Scores of hypotheses.

        Args:
            ranking: Their log-probabilities, `(P, C)`.
            lengths: Tokens with END, an int32 scalar or `(P, 1)`.
            coverage: Their coverage, at most 0, `(P, C)`.
        """
        options = self.options
        scores = ranking / length_penalty(
            lengths, options.length_penalty, base=options.length_penalty_base
        )
        if options.length_reward:
            scores = scores + self._reward(lengths)
        if coverage is not None:
            scores = scores + options.coverage_penalty * coverage
        return scores

    def bound(self, best_alive: Any) -> Any:
        """The most that a living hypothesis can score when it ends, `(P,)`.

        Log-probabilities only fall, the penalty and the reward only grow with the
        length, and coverage is at most 0.
        """
        limits = ops.expand_dims(self.limits, axis=1)
        bound = self.scores(ops.expand_dims(best_alive, axis=1), limits)
        return ops.squeeze(bound, axis=1)

    def _reward(self, lengths: Any) -> Any:
        rewarded = ops.minimum(
            ops.cast(lengths, "float32"),
            ops.expand_dims(ops.cast(self.reward_lengths, "float32"), axis=1),
        )
        return self.options.length_reward * rewarded  # (P, 1)


class Ended(NamedTuple):
    """The best hypotheses that have ended, best first, `(P, M)`.

    Attributes:
        scores: Their scores; `IMPOSSIBLE` in empty places.
        log_probs: Their log-probabilities under the model.
        positions: Where their END is, int32.
        beams: The beam that held the tokens before it, int32.
    """

    scores: Any
    log_probs: Any
    positions: Any
    beams: Any

    @classmethod
    def nothing(cls, pools: Any, size: int) -> "Ended":
        """A pool of each source with nothing in it."""
        shape = (pools, size)
        return cls(
            scores=ops.full(shape, IMPOSSIBLE, dtype="float32"),
            log_probs=ops.full(shape, IMPOSSIBLE, dtype="float32"),
            positions=ops.zeros(shape, dtype="int32"),
            beams=ops.zeros(shape, dtype="int32"),
        )

    def with_new(self, scores: Any, log_probs: Any, position: Any, beams: Any):
        """The pool with hypotheses `(P, C)` that end at `position`."""
        size = self.scores.shape[1]
        positions = ops.full_like(beams, 1) * position
        # Older hypotheses come first, and so win ties.
        best, order = ops.top_k(ops.concatenate([self.scores, scores], axis=1), size)

        def merged(old: Any, new: Any) -> Any:
            return take_by_row(ops.concatenate([old, new], axis=1), order)

        return Ended(
            scores=best,
            log_probs=merged(self.log_probs, log_probs),
            positions=merged(self.positions, positions),
            beams=merged(self.beams, beams),
        )


def read_back(
    carry: dict, ranking: Ranking, options: SearchOptions, cut_coverage: Any
) -> SearchResult:
    """Follows the back-pointers of the best hypotheses of each pool.

    Args:
        carry: What the loop left.
        ranking: How hypotheses rank.
        options: Constants of the search.
        cut_coverage: Coverage of the living beams, `(P, N)`, or None.

    Returns:
        Hypotheses by pool, best first.
    """
    ended = carry["ended"]
    finished = ended.scores > POSSIBLE_ABOVE  # (P, M)
    scores, log_probs, prefixes, beams = _or_cut(
        carry, ended, finished, ranking, cut_coverage
    )
    size = ended.scores.shape[1]
    pools, max_length, _ = ops.shape(carry["tokens"])
    shape = (pools, max_length, size)

    def started(trace: dict) -> Any:
        return trace["position"] >= 0

    def retreat(trace: dict) -> tuple[dict]:
        position, beams = trace["position"], trace["beams"]
        inside = position < prefixes

        def written(name: str) -> Any:
            values = take_rows(carry[name], position, axis=1)  # (P, N)
            return take_by_row(values, beams)  # (P, M)

        at_end = ops.logical_and(finished, position == prefixes)
        tokens = ops.where(at_end, options.end_id, options.pad_id)
        tokens = ops.where(inside, written("tokens"), tokens)
        new = {
            "position": position - 1,
            "beams": ops.where(inside, written("parents"), beams),
            "ids": write_step(trace["ids"], position, tokens),
        }
        if "writers" in trace:
            new["writers"] = write_step(trace["writers"], position, new["beams"])
        if "token_log_probs" in trace:
            values = ops.where(inside, written("token_log_probs"), 0.0)
            new["token_log_probs"] = write_step(
                trace["token_log_probs"], position, values
            )
        return (new,)

    trace = {
        "position": carry["position"] - 1,
        "beams": beams,
        "ids": ops.full(shape, options.pad_id, dtype="int32"),
    }
    if options.return_attention:
        trace["writers"] = ops.zeros(shape, dtype="int32")
    if options.return_token_scores:
        trace["token_log_probs"] = ops.zeros(shape, dtype="float32")
    (trace,) = ops.while_loop(started, retreat, (trace,))
    return _result(carry, trace, scores, log_probs, prefixes, finished)


def _or_cut(
    carry: dict, ended: Ended, finished: Any, ranking: Ranking, coverage: Any
) -> tuple[Any, Any, Any, Any]:
    """Scores, log-probabilities, tokens before END and last beams, each `(P, M)`.

    The living hypotheses where none of the source, or of the alternative, has ended.
    """
    groups = ranking.options.num_groups
    together = ops.reshape(finished, (-1, groups * finished.shape[1]))
    nothing = repeat_rows(ops.logical_not(ops.any(together, axis=1)), groups)
    nothing = ops.expand_dims(nothing, axis=1)  # (P, 1)
    lengths = ops.expand_dims(carry["alive_lengths"], axis=1)
    possible = ops.logical_and(carry["ranking"] > POSSIBLE_ABOVE, lengths > 0)
    alive = ops.where(
        possible, ranking.scores(carry["ranking"], lengths, coverage), IMPOSSIBLE
    )
    alive, beams = ops.top_k(alive, ended.scores.shape[1])
    beams = ops.cast(beams, "int32")
    cut = ops.logical_and(nothing, alive > POSSIBLE_ABOVE)  # (P, M)
    found = ops.logical_or(finished, cut)
    log_probs = take_by_row(carry["log_probs"], beams)
    log_probs = ops.where(cut, log_probs, ended.log_probs)
    prefixes = ops.where(cut, lengths, ended.positions)
    return (
        ops.where(cut, alive, ended.scores),
        ops.where(found, log_probs, IMPOSSIBLE),
        ops.where(found, prefixes, 0),
        ops.where(cut, beams, ended.beams),
    )


def _result(
    carry: dict, trace: dict, scores: Any, log_probs: Any, prefixes: Any, finished: Any
) -> SearchResult:
    """The hypotheses that were read back, by pool."""
    lengths = prefixes + ops.cast(finished, "int32")
    attention = token_log_probs = None
    if "writers" in trace:
        attention = _attention_of(carry["attention"], trace["writers"], lengths)
    if "token_log_probs" in trace:
        values = ops.transpose(trace["token_log_probs"], (0, 2, 1))  # (P, M, L)
        # END has what is left of the sum.
        rest = ops.expand_dims(log_probs - ops.sum(values, axis=2), axis=2)
        places = ops.reshape(ops.arange(values.shape[2], dtype="int32"), (1, 1, -1))
        at_end = ops.logical_and(
            ops.expand_dims(finished, axis=2),
            places == ops.expand_dims(prefixes, axis=2),
        )
        token_log_probs = ops.where(at_end, rest, values)
    return SearchResult(
        ids=ops.transpose(trace["ids"], (0, 2, 1)),
        lengths=lengths,
        scores=scores,
        log_probs=log_probs,
        finished=finished,
        attention=attention,
        token_log_probs=token_log_probs,
    )


def write_step(buffer: Any, position: Any, values: Any) -> Any:
    """`buffer` `(R, L, …)` with `values` `(R, …)` at `position`."""
    return write_at(buffer, position, ops.expand_dims(values, axis=1), axis=1)


def _attention_of(attention: Any, writers: Any, lengths: Any) -> Any:
    """Attention `(P, M, L, S)` of the beams that wrote each token, zeros after it."""
    pools, max_length, num_beams, width = ops.shape(attention)
    positions = ops.arange(max_length, dtype="int32")
    cells = ops.expand_dims(ops.arange(pools, dtype="int32") * max_length, axis=1)
    cells = (cells + ops.expand_dims(positions, axis=0)) * num_beams  # (P, L)
    cells = ops.expand_dims(cells, axis=-1) + writers  # (P, L, M)
    cells = ops.transpose(cells, (0, 2, 1))  # (P, M, L)
    flat = ops.reshape(attention, (pools * max_length * num_beams, width))
    written = ops.reshape(positions, (1, 1, max_length)) < ops.expand_dims(lengths, -1)
    return ops.where(ops.expand_dims(written, axis=-1), take_rows(flat, cells), 0.0)
