"""Beam search with a pool of finished hypotheses and an exact stop.

The loop keeps back-pointers, not hypotheses: at each position, the token that every
beam took and the beam that it came from. Finished hypotheses are remembered by
where they end, and read back once, after the loop.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_seq2seq.buffers import write_at
from keras_seq2seq.decoding.greedy import greedy_search
from keras_seq2seq.decoding.scoring import length_penalty as penalty_of
from keras_seq2seq.decoding.search import (
    IMPOSSIBLE,
    POSSIBLE_ABOVE,
    SearchResult,
    Step,
    attention_width,
    batch_size,
    check_attention,
    check_options,
    gather_rows,
    next_tokens,
    row_limits,
)

__all__ = ["beam_search"]


def beam_search(
    step: Step,
    memory: Any,
    state: Any,
    *,
    num_beams: int,
    max_length: int,
    length_limits: Any = None,
    min_length: int = 0,
    length_penalty: float = 0.6,
    n_best: int = 1,
    select_state: Callable[[Any, Any], Any] | None = None,
    start_id: int = 2,
    end_id: int = 3,
    pad_id: int = 0,
    banned_ids: Sequence[int] = (0, 2),
    return_attention: bool = False,
) -> SearchResult:
    """Finds the hypotheses of highest `log P / ((5 + length) / 6) ** alpha`.

    At each step the `2 * num_beams` likeliest continuations are looked at: those by
    END among the first `num_beams` are finished, and the best `num_beams` others
    live on. A source is done when no living beam could still beat its `n_best`
    finished hypotheses, which changes nothing in the result, or at its limit. What
    is unfinished at the limit is returned only where nothing finished. Each source
    is searched by itself: its result does not depend on the rest of the batch.

    One beam is greedy search, for every length penalty.

    Args:
        step: `step(token_ids, memory, state)` for B*N rows, the N beams of a source
            adjacent, returning the next token's logits `(B*N, V)`, the new state,
            and attention weights `(B*N, S)` or None.
        memory: What the step reads, B rows; never repeated.
        state: What the step changes, B rows; repeated here to B*N.
        num_beams: Hypotheses of each source kept alive; may exceed the vocabulary.
        max_length: Most tokens of a row, END included; the length L of the result.
        length_limits: The same for each source, int32 `(B,)`; None for `max_length`.
        min_length: Least tokens before END. A row whose limit is not greater ends
            at its limit, unfinished.
        length_penalty: The exponent alpha; 0 ranks by log-probability, greater
            values favour longer hypotheses.
        n_best: Hypotheses returned of each source, at most `num_beams`.
        select_state: `select_state(state, rows)` picking the surviving rows, int32
            `(B*N,)`; None gathers every tensor on axis 0.
        start_id: Token that the first step is fed.
        end_id: Token that ends a hypothesis.
        pad_id: Token written after the end.
        banned_ids: Tokens that are never written.
        return_attention: Whether to keep the attention of every step.

    Returns:
        `SearchResult` with N = `n_best`, sorted by score.

    Raises:
        ValueError: If the options contradict each other, or attention is asked for
            where there is none.

    Reference:
        Wu et al., 2016, section 7 (length penalty).
    """
    check_options(
        max_length=max_length,
        min_length=min_length,
        end_id=end_id,
        banned_ids=banned_ids,
    )
    _check_beams(num_beams, n_best, length_penalty)
    if num_beams == 1:
        result = greedy_search(
            step,
            memory,
            state,
            max_length=max_length,
            length_limits=length_limits,
            min_length=min_length,
            start_id=start_id,
            end_id=end_id,
            pad_id=pad_id,
            banned_ids=banned_ids,
            return_attention=return_attention,
        )
        penalty = penalty_of(result.lengths, length_penalty)
        return result._replace(scores=result.log_probs / penalty)

    batch = batch_size(memory, state)
    limits = row_limits(length_limits, max_length, batch)
    row_offsets = ops.expand_dims(ops.arange(batch, dtype="int32") * num_beams, axis=1)
    carry = _initial_carry(state, batch, num_beams, n_best, max_length, start_id)
    if return_attention:
        width = attention_width(memory)
        carry["attention"] = ops.zeros(
            (batch, max_length, num_beams, width), dtype="float32"
        )
    select_state = select_state or gather_rows

    def unfinished(carry: dict) -> Any:
        return ops.logical_and(
            carry["position"] < max_length,
            ops.logical_not(ops.all(carry["done"])),
        )

    def advance(carry: dict) -> tuple[dict]:
        position = carry["position"]
        logits, state, attention_weights = step(
            carry["token_ids"], memory, carry["state"]
        )
        token_ids, log_probs = next_tokens(
            logits,
            count=num_beams,
            position=position,
            min_length=min_length,
            end_id=end_id,
            banned_ids=banned_ids,
        )
        candidates = _best_continuations(carry["log_probs"], token_ids, log_probs)
        is_end = candidates.token_ids == end_id
        pool = _add_finished(carry, candidates, is_end, length_penalty)
        alive = _best_living(candidates, is_end, num_beams)

        best_alive = ops.max(alive.log_probs, axis=1)  # (B,)
        # Rows that can go no further keep the beams that they had.
        moved = ops.logical_and(
            ops.logical_not(carry["done"]), best_alive > POSSIBLE_ABOVE
        )
        log_probs = ops.where(
            ops.expand_dims(moved, axis=1), alive.log_probs, carry["log_probs"]
        )
        stopped = ops.logical_or(ops.logical_not(moved), position + 1 >= limits)
        beaten = _cannot_improve(
            pool["finished_scores"], best_alive, penalty_of(limits, length_penalty)
        )
        rows = ops.reshape(alive.parents + row_offsets, (batch * num_beams,))
        new = {
            **pool,
            "position": position + 1,
            "token_ids": ops.reshape(alive.token_ids, (batch * num_beams,)),
            "state": select_state(state, rows),
            "log_probs": log_probs,
            "alive_lengths": ops.where(moved, position + 1, carry["alive_lengths"]),
            "done": ops.logical_or(stopped, beaten),
            "tokens": _write(carry["tokens"], position, alive.token_ids),
            "parents": _write(carry["parents"], position, alive.parents),
        }
        if return_attention:
            weights = check_attention(attention_weights)
            weights = ops.reshape(weights, (batch, num_beams, width))
            new["attention"] = _write(carry["attention"], position, weights)
        return (new,)

    (carry,) = ops.while_loop(unfinished, advance, (carry,))
    return _read_back(carry, n_best, length_penalty, end_id=end_id, pad_id=pad_id)


class _Candidates(NamedTuple):
    """Continuations of the beams of each source, best first, all `(B, C)`."""

    log_probs: Any
    token_ids: Any
    parents: Any


def _check_beams(num_beams: int, n_best: int, length_penalty: float) -> None:
    if num_beams < 1:
        raise ValueError(
            f"`num_beams` must be at least 1. Received: num_beams={num_beams}."
        )
    if not 1 <= n_best <= num_beams:
        raise ValueError(
            "`n_best` must lie between 1 and `num_beams`. Received: "
            f"n_best={n_best}, num_beams={num_beams}."
        )
    # The stop is exact only if scores cannot rise by stopping earlier.
    if not 0 <= length_penalty < float("inf"):
        raise ValueError(
            "`length_penalty` must be 0 or more, and finite. Received: "
            f"length_penalty={length_penalty}."
        )


def _initial_carry(
    state: Any, batch: Any, num_beams: int, n_best: int, max_length: int, start_id: int
) -> dict:
    """Loop variables before the first step."""
    # One living beam at first: equal beams would give each hypothesis N times.
    first = ops.expand_dims(ops.arange(num_beams, dtype="int32") == 0, axis=0)
    log_probs = ops.where(
        first, ops.zeros((batch, num_beams), dtype="float32"), IMPOSSIBLE
    )
    return {
        "position": ops.zeros((), dtype="int32"),
        "token_ids": ops.full((batch * num_beams,), start_id, dtype="int32"),
        "state": keras.tree.map_structure(
            lambda x: ops.repeat(x, num_beams, axis=0), state
        ),
        "log_probs": log_probs,
        "alive_lengths": ops.zeros((batch,), dtype="int32"),
        "done": ops.zeros((batch,), dtype="bool"),
        # A finished hypothesis: its scores, the position of its END, and the beam
        # that held the tokens before it.
        "finished_scores": ops.full((batch, n_best), IMPOSSIBLE, dtype="float32"),
        "finished_log_probs": ops.full((batch, n_best), IMPOSSIBLE, dtype="float32"),
        "finished_positions": ops.zeros((batch, n_best), dtype="int32"),
        "finished_beams": ops.zeros((batch, n_best), dtype="int32"),
        "tokens": ops.zeros((batch, max_length, num_beams), dtype="int32"),
        "parents": ops.zeros((batch, max_length, num_beams), dtype="int32"),
    }


def _best_continuations(
    beam_log_probs: Any, token_ids: Any, log_probs: Any
) -> _Candidates:
    """The 2N best of each source, from each beam's best `(B*N, K)`."""
    batch, num_beams = ops.shape(beam_log_probs)
    kept = token_ids.shape[1]
    totals = ops.reshape(log_probs, (batch, num_beams, kept))
    totals = totals + ops.expand_dims(beam_log_probs, axis=-1)
    totals = ops.reshape(ops.maximum(totals, IMPOSSIBLE), (batch, num_beams * kept))
    best, picked = ops.top_k(totals, 2 * num_beams)  # (B, 2N)
    picked = ops.cast(picked, "int32")
    flat_ids = ops.reshape(token_ids, (batch, num_beams * kept))
    return _Candidates(
        log_probs=best,
        token_ids=ops.take_along_axis(flat_ids, picked, axis=1),
        parents=ops.floor_divide(picked, kept),
    )


def _best_living(candidates: _Candidates, is_end: Any, num_beams: int) -> _Candidates:
    """The N best candidates that do not end."""
    log_probs, order = ops.top_k(
        ops.where(is_end, IMPOSSIBLE, candidates.log_probs), num_beams
    )
    return _Candidates(
        log_probs=log_probs,
        token_ids=ops.take_along_axis(candidates.token_ids, order, axis=1),
        parents=ops.take_along_axis(candidates.parents, order, axis=1),
    )


def _add_finished(
    carry: dict, candidates: _Candidates, is_end: Any, length_penalty: float
) -> dict:
    """The pool of finished hypotheses after this step, best first."""
    position = carry["position"]
    batch, n_best = ops.shape(carry["finished_scores"])
    count = candidates.token_ids.shape[1]
    in_first = ops.expand_dims(ops.arange(count, dtype="int32") < count // 2, axis=0)
    ends = ops.logical_and(is_end, candidates.log_probs > POSSIBLE_ABOVE)
    ends = ops.logical_and(ends, in_first)
    ends = ops.logical_and(ends, ops.expand_dims(~carry["done"], axis=1))
    scores = candidates.log_probs / penalty_of(position + 1, length_penalty)
    scores = ops.where(ends, scores, IMPOSSIBLE)
    # Older hypotheses come first, and so win ties.
    scores, order = ops.top_k(
        ops.concatenate([carry["finished_scores"], scores], axis=1), n_best
    )

    def merged(old: Any, new: Any) -> Any:
        both = ops.concatenate([old, new], axis=1)  # (B, n_best + 2N)
        return ops.take_along_axis(both, order, axis=1)

    positions = ops.full((batch, count), 1, dtype="int32") * position
    return {
        "finished_scores": scores,
        "finished_log_probs": merged(carry["finished_log_probs"], candidates.log_probs),
        "finished_positions": merged(carry["finished_positions"], positions),
        "finished_beams": merged(carry["finished_beams"], candidates.parents),
    }


def _cannot_improve(finished_scores: Any, best_alive: Any, limit_penalty: Any) -> Any:
    """Whether no living beam can enter the pool any more, `(B,)`.

    Log-probabilities only fall and the penalty only grows, so no living hypothesis
    can end with more than its present log-probability over the penalty at the limit.
    """
    return ops.min(finished_scores, axis=1) >= best_alive / limit_penalty


def _write(buffer: Any, position: Any, values: Any) -> Any:
    """`buffer` `(B, L, N, …)` with `values` `(B, N, …)` at `position`."""
    return write_at(buffer, position, ops.expand_dims(values, axis=1), axis=1)


def _read_back(
    carry: dict, n_best: int, length_penalty: float, *, end_id: int, pad_id: int
) -> SearchResult:
    """Follows the back-pointers of the best hypotheses of each source."""
    # Tokens before END, or all of them, and the beam that held the last of those.
    scores, log_probs = carry["finished_scores"], carry["finished_log_probs"]
    prefixes, beams = carry["finished_positions"], carry["finished_beams"]
    finished = scores > POSSIBLE_ABOVE  # (B, n)
    nothing = ops.logical_not(ops.any(finished, axis=1, keepdims=True))  # (B, 1)

    alive_log_probs, alive_beams = ops.top_k(carry["log_probs"], n_best)
    alive_lengths = ops.expand_dims(carry["alive_lengths"], axis=1)
    cut = ops.logical_and(nothing, alive_log_probs > POSSIBLE_ABOVE)  # (B, n)
    found = ops.logical_or(finished, cut)
    cut_scores = alive_log_probs / penalty_of(alive_lengths, length_penalty)
    scores = ops.where(cut, cut_scores, scores)
    log_probs = ops.where(cut, alive_log_probs, log_probs)
    prefixes = ops.where(cut, alive_lengths, prefixes)
    beams = ops.where(cut, ops.cast(alive_beams, "int32"), beams)
    # Slots without a hypothesis.
    prefixes = ops.where(found, prefixes, 0)
    log_probs = ops.where(found, log_probs, IMPOSSIBLE)

    batch, max_length, _ = ops.shape(carry["tokens"])
    shape = (batch, max_length, n_best)

    def started(trace: dict) -> Any:
        return trace["position"] >= 0

    def retreat(trace: dict) -> tuple[dict]:
        position, beams = trace["position"], trace["beams"]
        inside = position < prefixes
        at_end = ops.logical_and(finished, position == prefixes)
        tokens = ops.take(carry["tokens"], position, axis=1)  # (B, N)
        tokens = ops.take_along_axis(tokens, beams, axis=1)  # (B, n)
        tokens = ops.where(inside, tokens, ops.where(at_end, end_id, pad_id))
        parents = ops.take(carry["parents"], position, axis=1)
        parents = ops.take_along_axis(parents, beams, axis=1)
        beams = ops.where(inside, parents, beams)
        return (
            {
                "position": position - 1,
                "beams": beams,
                "ids": _write(trace["ids"], position, tokens),
                "writers": _write(trace["writers"], position, beams),
            },
        )

    trace = {
        "position": carry["position"] - 1,
        "beams": beams,
        "ids": ops.full(shape, pad_id, dtype="int32"),
        "writers": ops.zeros(shape, dtype="int32"),
    }
    (trace,) = ops.while_loop(started, retreat, (trace,))
    lengths = prefixes + ops.cast(finished, "int32")
    attention = None
    if "attention" in carry:
        attention = _attention_of(carry["attention"], trace["writers"], lengths)
    return SearchResult(
        ids=ops.transpose(trace["ids"], (0, 2, 1)),
        lengths=lengths,
        scores=scores,
        log_probs=log_probs,
        finished=finished,
        attention=attention,
    )


def _attention_of(attention: Any, writers: Any, lengths: Any) -> Any:
    """Attention `(B, n, L, S)` of the beams that wrote each token, zeros after it."""
    batch, max_length, num_beams, width = ops.shape(attention)
    positions = ops.arange(max_length, dtype="int32")
    cells = ops.expand_dims(ops.arange(batch, dtype="int32") * max_length, axis=1)
    cells = (cells + ops.expand_dims(positions, axis=0)) * num_beams  # (B, L)
    cells = ops.expand_dims(cells, axis=-1) + writers  # (B, L, n)
    cells = ops.transpose(cells, (0, 2, 1))  # (B, n, L)
    flat = ops.reshape(attention, (batch * max_length * num_beams, width))
    written = ops.reshape(positions, (1, 1, max_length)) < ops.expand_dims(lengths, -1)
    return ops.where(
        ops.expand_dims(written, axis=-1), ops.take(flat, cells, axis=0), 0.0
    )
