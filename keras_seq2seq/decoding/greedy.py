"""Greedy search: the likeliest token at every step."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_seq2seq.buffers import write_at
from keras_seq2seq.decoding.search import (
    POSSIBLE_ABOVE,
    SearchResult,
    Step,
    attention_width,
    batch_size,
    check_attention,
    check_options,
    next_tokens,
    row_limits,
)

__all__ = ["greedy_search"]


def greedy_search(
    step: Step,
    memory: Any,
    state: Any,
    *,
    max_length: int,
    length_limits: Any = None,
    min_length: int = 0,
    start_id: int = 2,
    end_id: int = 3,
    pad_id: int = 0,
    banned_ids: Sequence[int] = (0, 2),
    return_attention: bool = False,
) -> SearchResult:
    """Writes the likeliest token at every step, until END or the row's limit.

    A row that has ended writes PAD and keeps its score; the loop ends when all
    rows have. A row whose logits turn NaN stops there, unfinished.

    Args:
        step: `step(token_ids, memory, state)` returning the next token's logits
            `(B, V)`, the new state, and attention weights `(B, S)` or None.
        memory: What the step reads and never changes; batch on axis 0.
        state: What the step changes; batch on axis 0.
        max_length: Most tokens of a row, END included; the length L of the result.
        length_limits: The same for each row, int32 `(B,)`; None for `max_length`.
        min_length: Least tokens before END. A row whose limit is not greater ends
            at its limit, unfinished.
        start_id: Token that the first step is fed.
        end_id: Token that ends a row.
        pad_id: Token written after the end.
        banned_ids: Tokens that are never written.
        return_attention: Whether to keep the attention of every step.

    Returns:
        `SearchResult` with N = 1; scores are the log-probabilities.

    Raises:
        ValueError: If the options contradict each other, or attention is asked for
            where there is none.
    """
    check_options(
        max_length=max_length,
        min_length=min_length,
        end_id=end_id,
        banned_ids=banned_ids,
    )
    batch = batch_size(memory, state)
    limits = row_limits(length_limits, max_length, batch)
    carry = {
        "position": ops.zeros((), dtype="int32"),
        "token_ids": ops.full((batch,), start_id, dtype="int32"),
        "state": state,
        "done": ops.zeros((batch,), dtype="bool"),
        "finished": ops.zeros((batch,), dtype="bool"),
        "lengths": ops.zeros((batch,), dtype="int32"),
        "log_probs": ops.zeros((batch,), dtype="float32"),
        "ids": ops.full((batch, max_length), pad_id, dtype="int32"),
    }
    if return_attention:
        width = attention_width(memory)
        carry["attention"] = ops.zeros((batch, max_length, width), dtype="float32")

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
        candidate_ids, candidate_log_probs = next_tokens(
            logits,
            count=1,
            position=position,
            min_length=min_length,
            end_id=end_id,
            banned_ids=banned_ids,
        )
        log_probs, best = ops.top_k(candidate_log_probs, 1)  # (B, 1)
        token_ids = ops.take_along_axis(candidate_ids, best, axis=1)
        log_probs = ops.squeeze(log_probs, axis=1)  # (B,)
        active = ops.logical_and(
            ops.logical_not(carry["done"]), log_probs > POSSIBLE_ABOVE
        )
        token_ids = ops.where(active, ops.squeeze(token_ids, axis=1), pad_id)  # (B,)
        ended = ops.logical_and(active, token_ids == end_id)
        stopped = ops.logical_or(ops.logical_not(active), position + 1 >= limits)
        new = {
            "position": position + 1,
            "token_ids": token_ids,
            "state": state,
            "done": ops.logical_or(stopped, ended),
            "finished": ops.logical_or(carry["finished"], ended),
            "lengths": carry["lengths"] + ops.cast(active, "int32"),
            "log_probs": carry["log_probs"] + ops.where(active, log_probs, 0.0),
            "ids": write_at(
                carry["ids"], position, ops.expand_dims(token_ids, axis=1), axis=1
            ),
        }
        if return_attention:
            weights = check_attention(attention_weights)
            weights = ops.where(ops.expand_dims(active, axis=1), weights, 0.0)
            new["attention"] = write_at(
                carry["attention"], position, ops.expand_dims(weights, axis=1), axis=1
            )
        return (new,)

    (carry,) = ops.while_loop(unfinished, advance, (carry,))
    log_probs = ops.expand_dims(carry["log_probs"], axis=1)  # (B, 1)
    return SearchResult(
        ids=ops.expand_dims(carry["ids"], axis=1),
        lengths=ops.expand_dims(carry["lengths"], axis=1),
        scores=log_probs,
        log_probs=log_probs,
        finished=ops.expand_dims(carry["finished"], axis=1),
        attention=(
            ops.expand_dims(carry["attention"], axis=1) if return_attention else None
        ),
    )
