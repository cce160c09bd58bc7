"""Beam search with a pool of finished hypotheses and an exact stop.

The loop keeps back-pointers, not hypotheses: at each position, the token that every
beam took and the beam that it came from. `hypotheses` has the pool of those that
have ended, and reads them back once, after the loop.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_seq2seq.buffers import write_at
from keras_seq2seq.decoding import constraints
from keras_seq2seq.decoding.candidates import Candidates, RowRules, next_tokens
from keras_seq2seq.decoding.continuations import (
    Continuations,
    best,
    best_by_group,
    living,
)
from keras_seq2seq.decoding.greedy import write_rows
from keras_seq2seq.decoding.hypotheses import Ended, Ranking, read_back, write_step
from keras_seq2seq.decoding.loop import Arrangement, run_loop
from keras_seq2seq.decoding.options import SearchInputs, SearchOptions, split_options
from keras_seq2seq.decoding.scoring import coverage_score
from keras_seq2seq.decoding.search import (
    IMPOSSIBLE,
    POSSIBLE_ABOVE,
    SearchResult,
    Step,
    as_tensors,
    attention_width,
    batch_size,
    check_attention,
    forced_at,
    gather_rows,
    repeat_rows,
    row_limits,
)
from keras_seq2seq.gathers import take_by_row, take_rows

__all__ = ["beam_search"]


def beam_search(
    step: Step,
    memory: Any,
    state: Any,
    *,
    repeat_state: Callable[[Any, int], Any] | None = None,
    select_state: Callable[[Any, Any], Any] | None = None,
    select_memory: Callable[[Any, Any], Any] | None = None,
    **options: Any,
) -> SearchResult:
    """Finds the hypotheses that rank highest, as `SearchOptions` says.

    At each step the `2 * num_beams` likeliest continuations are looked at: those by
    END among the first `num_beams` are finished, and the best `num_beams` others
    live on. A source is done when no living beam could still beat its `n_best`
    finished hypotheses, which changes nothing in the result, or at its limit. What
    is unfinished at the limit is returned only where nothing of the source finished;
    of `alternatives`, each by itself. Each source is searched by itself: its result
    does not depend on the rest of the batch.

    One beam is greedy search, and with a `temperature` tokens are drawn, as by
    `sample`.

    Args:
        step: `step(token_ids, memory, state)` for B*N rows, the N beams of a source
            adjacent, returning the next token's logits `(B*N, V)`, the new state,
            and attention weights `(B*N, S)` or None.
        memory: What the step reads, B rows; never repeated.
        state: What the step changes, B rows; repeated here to B*N.
        repeat_state: `repeat_state(state, N)` giving each source N rows; None repeats
            every tensor on axis 0.
        select_state: `select_state(state, rows)` picking the surviving rows, int32
            `(B*N,)`; None gathers every tensor on axis 0.
        select_memory: `select_memory(memory, sources)` picking sources, int32
            `(A,)`; None gathers every tensor on axis 0.
        **options: Fields of `SearchOptions` and `SearchInputs`; `max_length` must be
            given.

    Returns:
        `SearchResult` with N = `n_best`, sorted by score.

    Raises:
        TypeError: If there is no such option.
        ValueError: If the options contradict each other, only one of `repeat_state`
            and `select_state` is given, or attention is asked for where there is
            none.

    Reference:
        Wu et al., 2016, section 7.
    """
    constants, inputs = split_options(options)
    if (repeat_state is None) != (select_state is None):
        raise ValueError(
            "`repeat_state` and `select_state` go together, since one counts on what "
            "the other made. Received: "
            f"repeat_state={repeat_state}, select_state={select_state}. "
            "Pass both or neither."
        )
    arrangement = Arrangement(
        repeat_state or repeat_rows,
        select_state or gather_rows,
        select_memory or gather_rows,
    )
    return search(step, memory, state, constants, inputs, arrangement)


def search(
    step: Step,
    memory: Any,
    state: Any,
    options: SearchOptions,
    inputs: SearchInputs,
    arrangement: Arrangement,
) -> SearchResult:
    """`beam_search` with its options in two parts."""
    if options.num_beams == 1:
        return write_rows(
            step, memory, state, options, inputs, arrangement.select_memory
        )

    def writer(inputs: SearchInputs, memory: Any, batch: Any) -> _Beams:
        return _Beams(options, inputs, memory, batch, arrangement)

    inputs = as_tensors(inputs)
    carry = run_loop(
        writer, step, memory, state, options, inputs, arrangement.select_memory
    )
    return writer(inputs, memory, batch_size(memory, state)).result(carry)


class _Beams:
    """The loop's body: P pools, one for each source or group, of N beams each.

    Every row of the step is a beam: those of a pool, and the pools of a source, are
    adjacent.
    """

    def __init__(
        self,
        options: SearchOptions,
        inputs: SearchInputs,
        memory: Any,
        batch: Any,
        arrangement: Arrangement,
    ) -> None:
        self.options = options
        self.arrangement = arrangement
        self.batch = batch
        self.groups = options.num_beams if options.alternatives else options.num_groups
        if inputs.required_phrases is not None and self.groups > 1:
            raise ValueError(
                "`required_phrases` cannot go with groups of beams. Received: "
                f"num_groups={options.num_groups}, "
                f"alternatives={options.alternatives}."
            )
        self.num_beams = options.num_beams // self.groups
        self.pools = batch * self.groups
        self.rows = batch * options.num_beams
        self.memory = memory
        self.limits = repeat_rows(
            row_limits(inputs.length_limits, options.max_length, batch), self.groups
        )
        reward_lengths = repeat_rows(inputs.reward_lengths, self.groups)
        self.ranking = Ranking(options, self.limits, reward_lengths)
        self.prefix_ids = inputs.prefix_ids
        self.min_lengths = repeat_rows(inputs.min_lengths, options.num_beams)
        self.banned = repeat_rows(inputs.banned_phrases, options.num_beams)
        self.required = repeat_rows(inputs.required_phrases, options.num_beams)
        self.looks_back = (
            options.uses_history or self.banned is not None or self.required is not None
        )

    def initial_carry(self, state: Any) -> dict:
        """Loop variables before the first step."""
        options, pools, beams = self.options, self.pools, self.num_beams
        # One living beam at first: equal beams would give each hypothesis N times.
        first = ops.expand_dims(ops.arange(beams, dtype="int32") == 0, axis=0)
        start = ops.where(first, ops.zeros((pools, beams), dtype="float32"), IMPOSSIBLE)
        kept = -(-options.n_best // self.groups)
        traces = (pools, options.max_length, beams)
        carry = {
            "position": ops.zeros((), dtype="int32"),
            "token_ids": ops.full((self.rows,), options.start_id, dtype="int32"),
            "state": self.arrangement.repeat_state(state, options.num_beams),
            "ranking": start,
            "log_probs": start,
            "alive_lengths": ops.zeros((pools,), dtype="int32"),
            "done": ops.zeros((pools,), dtype="bool"),
            "ended": Ended.nothing(pools, kept),
            "tokens": ops.zeros(traces, dtype="int32"),
            "parents": ops.zeros(traces, dtype="int32"),
        }
        if options.stop == "count" or options.alternatives:
            carry["count"] = ops.zeros((pools,), dtype="int32")
        if options.return_token_scores:
            carry["token_log_probs"] = ops.zeros(traces, dtype="float32")
        if options.return_attention:
            width = attention_width(self.memory)
            carry["attention"] = ops.zeros((*traces, width), dtype="float32")
        if options.coverage_penalty:
            width = attention_width(self.memory)
            carry["coverage"] = ops.zeros((pools, beams, width), dtype="float32")
        if self.looks_back:
            written = (self.rows, options.max_length)
            carry["history"] = ops.zeros(written, dtype="int32")
        if self.required is not None:
            carry["met"] = constraints.sets_without_phrases(self.required)
        return carry

    def advance(self, carry: dict, logits: Any, state: Any, attention: Any) -> dict:
        """The loop variables after one step."""
        options, position = self.options, carry["position"]
        if options.return_attention or options.coverage_penalty:
            attention = check_attention(attention)
            width = ops.shape(attention)[1]
            attention = ops.reshape(attention, (self.pools, self.num_beams, width))
        found, progress = self._candidates(carry, logits)
        continuations = self._best_continuations(carry, found, progress)
        ends = self._ends(carry, continuations)
        coverage = None
        if options.coverage_penalty:
            coverage = carry["coverage"] + attention  # (P, N, S)
        ended = self._with_ended(carry, continuations, ends, coverage)
        alive = living(continuations, options.end_id, self.num_beams)

        best_alive = ops.max(alive.ranking, axis=1)  # (P,)
        # Pools that can go no further keep the beams that they had.
        moved = ops.logical_and(
            ops.logical_not(carry["done"]), best_alive > POSSIBLE_ABOVE
        )
        offsets = ops.expand_dims(
            ops.arange(self.pools, dtype="int32") * self.num_beams, axis=1
        )
        rows = ops.reshape(alive.parents + offsets, (self.rows,))
        new = {
            "position": position + 1,
            "token_ids": ops.reshape(alive.token_ids, (self.rows,)),
            "state": self.arrangement.select_state(state, rows),
            "ranking": _where_rows(moved, alive.ranking, carry["ranking"]),
            "log_probs": _where_rows(moved, alive.log_probs, carry["log_probs"]),
            "alive_lengths": ops.where(moved, position + 1, carry["alive_lengths"]),
            "done": self._done(carry, ended, ends, best_alive, moved),
            "ended": ended,
            "tokens": write_step(carry["tokens"], position, alive.token_ids),
            "parents": write_step(carry["parents"], position, alive.parents),
        }
        if "count" in carry:
            new["count"] = carry["count"] + _count(ends)
        if options.return_attention:
            new["attention"] = write_step(carry["attention"], position, attention)
        if options.return_token_scores:
            before = take_by_row(carry["log_probs"], alive.parents)
            new["token_log_probs"] = write_step(
                carry["token_log_probs"], position, alive.log_probs - before
            )
        if coverage is not None:
            coverage = take_by_row(coverage, alive.parents)
            new["coverage"] = _where_rows(moved, coverage, carry["coverage"])
        if self.looks_back:
            history = take_rows(carry["history"], rows)
            last = ops.expand_dims(new["token_ids"], axis=1)
            new["history"] = write_at(history, position, last, axis=1)
        if progress is not None:
            new["met"] = self._met(progress.met, alive.columns)
        return new

    def result(self, carry: dict) -> SearchResult:
        """The hypotheses of each source, those of its groups merged."""
        coverage = None
        if "coverage" in carry:
            coverage = self._coverage_of(carry["coverage"])
        result = read_back(carry, self.ranking, self.options, coverage)
        if self.groups == 1:
            return result

        def by_source(values: Any) -> Any:
            if values is None:
                return None
            _, kept, *rest = ops.shape(values)
            return ops.reshape(values, (self.batch, self.groups * kept, *rest))

        result = SearchResult(*(by_source(values) for values in result))
        _, order = ops.top_k(result.scores, self.options.n_best)
        order = ops.cast(order, "int32")
        return SearchResult(
            *(None if x is None else take_by_row(x, order) for x in result)
        )

    def _candidates(self, carry: dict, logits: Any) -> tuple[Candidates, Any]:
        """What each row may go on with, and how far that brings it with phrases."""
        options, position = self.options, carry["position"]
        history = carry.get("history")
        forced = forced_at(self.prefix_ids, position, options.pad_id)
        required, wanted = self.required, None
        if required is not None:
            wanted = constraints.wanted_tokens(
                required, carry["met"], history, position
            )
        found = next_tokens(
            logits,
            count=options.num_beams,
            options=options,
            rules=RowRules(
                position=position,
                min_lengths=self.min_lengths,
                history=history,
                banned_phrases=self.banned,
                forced_ids=repeat_rows(forced, options.num_beams),
                wanted_ids=wanted,
            ),
        )
        if required is None:
            return found, None
        progress = constraints.progress_with(
            required, carry["met"], history, position, found.token_ids
        )
        room = repeat_rows(self.limits, self.num_beams) - position - 2
        found = constraints.within_reach(found, progress.needed, room, options.end_id)
        return found, progress

    def _best_continuations(
        self, carry: dict, found: Candidates, progress: Any
    ) -> Continuations:
        """The 2N best of each pool, from each beam's candidates `(R, K)`."""
        kept = found.token_ids.shape[1]
        columns = self.num_beams * kept

        def by_pool(values: Any, before: Any) -> Any:
            values = ops.reshape(values, (self.pools, self.num_beams, kept))
            values = values + ops.expand_dims(before, axis=-1)
            return ops.reshape(ops.maximum(values, IMPOSSIBLE), (self.pools, columns))

        ranking = by_pool(found.ranking, carry["ranking"])
        places = ops.expand_dims(ops.arange(columns, dtype="int32"), axis=0)
        places = ops.broadcast_to(places, (self.pools, columns))
        everything = Continuations(
            choice=ranking,
            ranking=ranking,
            log_probs=by_pool(found.log_probs, carry["log_probs"]),
            token_ids=ops.reshape(found.token_ids, (self.pools, columns)),
            parents=ops.floor_divide(places, kept),
            columns=places,
        )
        if progress is not None:
            needed = ops.reshape(progress.needed, (self.pools, columns))
            choice, order = constraints.in_turn(ranking, needed, 2 * self.num_beams)
            return everything.at(order)._replace(choice=choice)
        if self.groups > 1:
            return best_by_group(
                everything,
                self.options,
                self.groups,
                self._diversity(carry["position"]),
            )
        return best(everything, 2 * self.num_beams)

    def _diversity(self, position: Any) -> Any:
        """What a token loses for each beam that took it, a scalar or `(B, 1)`."""
        if not self.options.alternatives:
            return self.options.diversity_penalty
        if self.prefix_ids is None:
            given = ops.zeros((1,), dtype="int32")
        else:
            real = ops.cast(self.prefix_ids != self.options.pad_id, "int32")
            given = ops.sum(real, axis=1)
        return ops.expand_dims(ops.where(position == given, -IMPOSSIBLE, 0.0), axis=1)

    def _ends(self, carry: dict, continuations: Continuations) -> Any:
        """Which continuations end now, `(P, 2N)`: END among the first N."""
        count = 2 * self.num_beams
        first = ops.arange(count, dtype="int32") < self.num_beams
        ends = ops.logical_and(
            continuations.token_ids == self.options.end_id,
            ops.expand_dims(first, axis=0),
        )
        ends = ops.logical_and(ends, continuations.ranking > POSSIBLE_ABOVE)
        ends = ops.logical_and(ends, continuations.choice > POSSIBLE_ABOVE)
        return ops.logical_and(ends, ops.expand_dims(~carry["done"], axis=1))

    def _with_ended(
        self, carry: dict, continuations: Continuations, ends: Any, coverage: Any
    ) -> Ended:
        """The pool with what ends now."""
        if coverage is not None:
            coverage = take_by_row(self._coverage_of(coverage), continuations.parents)
        scores = self.ranking.scores(
            continuations.ranking, carry["position"] + 1, coverage
        )
        return carry["ended"].with_new(
            ops.where(ends, scores, IMPOSSIBLE),
            continuations.log_probs,
            carry["position"],
            continuations.parents,
        )

    def _done(
        self, carry: dict, ended: Ended, ends: Any, best_alive: Any, moved: Any
    ) -> Any:
        """Which pools are done after this step, `(P,)`."""
        stopped = ops.logical_or(
            ops.logical_not(moved), carry["position"] + 1 >= self.limits
        )
        if "count" in carry:
            enough = carry["count"] + _count(ends) >= self.num_beams
            return ops.logical_or(stopped, enough)
        return ops.logical_or(
            stopped, _cannot_improve(ended.scores, self.ranking.bound(best_alive))
        )

    def _coverage_of(self, coverage: Any) -> Any:
        """How well each beam has covered its source, `(P, N)`."""
        mask = repeat_rows(self.memory["mask"], self.groups)
        return coverage_score(coverage, ops.expand_dims(mask, axis=1))

    def _met(self, met: Any, columns: Any) -> Any:
        """Which sets the surviving beams have met, `(R, C)`."""
        sets = met.shape[2]
        met = ops.reshape(met, (self.pools, -1, sets))
        met = take_by_row(met, columns)
        return ops.reshape(met, (self.rows, sets))


def _cannot_improve(finished_scores: Any, bound: Any) -> Any:
    """Whether no living beam can enter the pool any more, `(P,)`."""
    return ops.min(finished_scores, axis=1) >= bound


def _count(ends: Any) -> Any:
    return ops.sum(ops.cast(ends, "int32"), axis=1)


def _where_rows(condition: Any, new: Any, old: Any) -> Any:
    """`new` in the rows of `condition` `(P,)`, `old` in the others."""
    shape = (-1,) + (1,) * (len(old.shape) - 1)
    return ops.where(ops.reshape(condition, shape), new, old)
