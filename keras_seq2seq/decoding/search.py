"""What the searches share: their result, the candidates of a step, and checks."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

# Log-probability of what must never be chosen. Finite, so that adding and comparing
# stay defined; far below any sum of real log-probabilities.
IMPOSSIBLE = -1.0e9
# A log-probability at or below this contains at least one `IMPOSSIBLE`.
POSSIBLE_ABOVE = -0.5e9
# Columns that one maximum stands for in the search of a large vocabulary.
_BLOCK = 64

Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


class SearchResult(NamedTuple):
    """Hypotheses of a search, best first, `N` of each of the `B` sources.

    A search may find fewer than `N` hypotheses: the slots left over have length
    0, `finished` False, nothing but PAD, and a score of -1e9.

    Attributes:
        ids: Tokens written, without START, with END where it was reached and PAD
            after it, int32 `(B, N, L)`.
        lengths: Tokens of each hypothesis, END included, int32 `(B, N)`.
        scores: What hypotheses are ranked by, higher is better, float32 `(B, N)`.
        log_probs: Sum of the tokens' log-probabilities under the model's own
            distribution, bans and limits aside, float32 `(B, N)`.
        finished: Whether the hypothesis reached END, bool `(B, N)`.
        attention: Attention over the source when each token was written, zeros
            after the last, float32 `(B, N, L, S)`; None where not asked for.
    """

    ids: Any
    lengths: Any
    scores: Any
    log_probs: Any
    finished: Any
    attention: Any = None


def check_options(
    *, max_length: int, min_length: int, end_id: int, banned_ids: Sequence[int]
) -> None:
    """Refuses options with which a search could not work."""
    if max_length < 1:
        raise ValueError(
            f"`max_length` must be at least 1. Received: max_length={max_length}."
        )
    if not 0 <= min_length < max_length:
        raise ValueError(
            "`min_length` counts the tokens before END, so it must be at least 0 "
            f"and less than `max_length`. Received: min_length={min_length}, "
            f"max_length={max_length}."
        )
    if end_id in banned_ids:
        raise ValueError(
            "`banned_ids` must not contain `end_id`; use `min_length` to put off "
            f"END. Received: banned_ids={tuple(banned_ids)}, end_id={end_id}."
        )


def next_tokens(
    logits: Any,
    *,
    count: int,
    position: Any,
    min_length: int,
    end_id: int,
    banned_ids: Sequence[int],
) -> tuple[Any, Any]:
    """The likeliest next tokens of each row, allowed or marked impossible.

    Taken from the top of the logits with room for the banned ones, and normalised
    by one log-sum-exp: nothing else of size (rows, V) is made. The `count` best
    allowed tokens other than END are always among those returned, and so is END
    where it belongs to the first `count + 1` allowed ones.

    Args:
        logits: Scores of the whole vocabulary, `(R, V)`.
        count: Tokens other than END that the caller needs from each row.
        position: Tokens written so far, an int32 scalar.
        min_length: END is impossible while `position` is less.
        end_id: Id of END.
        banned_ids: Ids that are never possible.

    Returns:
        `token_ids`, int32 `(R, K)`, and their `log_probs`, float32 `(R, K)`, which
        are `IMPOSSIBLE` for banned tokens and in rows without a distribution (a
        NaN or an infinity among the logits).

    Raises:
        ValueError: If the bans leave no token but END.
    """
    vocabulary_size = logits.shape[-1]
    banned = {i for i in banned_ids if 0 <= i < vocabulary_size}
    if len(banned | {end_id}) >= vocabulary_size:
        raise ValueError(
            "`banned_ids` must leave at least one token besides END. Received: "
            f"banned_ids={tuple(banned_ids)}, end_id={end_id}, and logits of "
            f"{vocabulary_size} tokens."
        )
    logits = ops.cast(logits, "float32")
    kept = min(vocabulary_size, count + 1 + len(banned))
    top_logits, token_ids = top_of_large(logits, kept)  # (R, K)
    largest = top_logits[:, :1]  # (R, 1)
    log_total = largest + ops.log(
        ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    )
    possible = ops.logical_and(
        ops.isfinite(log_total),
        ops.logical_or(token_ids != end_id, position >= min_length),
    )
    for banned_id in sorted(banned):
        possible = ops.logical_and(possible, token_ids != banned_id)
    # Rounding can leave a certain token a hair above 0; bounds rely on its sign.
    log_probs = ops.clip(top_logits - log_total, IMPOSSIBLE, 0.0)
    return token_ids, ops.where(possible, log_probs, IMPOSSIBLE)


def top_of_large(values: Any, count: int) -> tuple[Any, Any]:
    """`ops.top_k` of wide rows, several times faster on CPUs, with equal results.

    The `count` largest values lie in the `count` blocks of largest maxima: only
    those blocks are searched.

    Args:
        values: Float tensor, `(R, V)`.
        count: How many to take.

    Returns:
        The largest values, falling, `(R, count)`, and their int32 columns; equal
        values in the order of their columns.
    """
    width = values.shape[-1]
    num_blocks = -(-width // _BLOCK)
    if num_blocks < 4 * count:
        largest, columns = ops.top_k(values, count)
        return largest, ops.cast(columns, "int32")
    rows = ops.shape(values)[0]
    if width % _BLOCK:
        missing = num_blocks * _BLOCK - width
        values = ops.pad(values, ((0, 0), (0, missing)), constant_values=-math.inf)
    blocks = ops.reshape(values, (rows, num_blocks, _BLOCK))
    _, chosen = ops.top_k(ops.max(blocks, axis=-1), count)  # (R, count)
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)  # so that ties keep order
    first_block = ops.expand_dims(ops.arange(rows, dtype="int32") * num_blocks, axis=1)
    blocks = ops.reshape(blocks, (rows * num_blocks, _BLOCK))
    blocks = ops.take(blocks, chosen + first_block, axis=0)  # (R, count, block)
    largest, places = ops.top_k(ops.reshape(blocks, (rows, count * _BLOCK)), count)
    places = ops.cast(places, "int32")
    block = ops.take_along_axis(chosen, ops.floor_divide(places, _BLOCK), axis=1)
    # Where fewer than `count` are above -inf, padding can come up.
    columns = ops.minimum(block * _BLOCK + ops.mod(places, _BLOCK), width - 1)
    return largest, columns


def batch_size(memory: Any, state: Any) -> Any:
    """Number of sources, from the first tensor of `memory` or `state`."""
    for leaf in keras.tree.flatten((memory, state)):
        if leaf is not None:
            return ops.shape(leaf)[0]
    raise ValueError(
        "`memory` and `state` must hold at least one tensor, to tell the number of "
        f"sources by. Received: memory={memory!r}, state={state!r}."
    )


def row_limits(length_limits: Any, max_length: int, batch: Any) -> Any:
    """The most tokens that each row may have, int32 `(B,)`."""
    if length_limits is None:
        return ops.full((batch,), max_length, dtype="int32")
    return ops.clip(ops.cast(length_limits, "int32"), 1, max_length)


def gather_rows(state: Any, rows: Any) -> Any:
    """Every tensor of `state` with its rows picked by `rows`, `(R,)`."""
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), state)


def attention_width(memory: Any) -> Any:
    """Source length S, read from `memory["mask"]`, `(B, S)`."""
    try:
        return ops.shape(memory["mask"])[1]
    except (TypeError, KeyError):
        raise ValueError(
            '`return_attention` needs `memory["mask"]`, (B, S), to tell the source '
            f"length by. Received: memory={memory!r}."
        ) from None


def check_attention(attention_weights: Any) -> Any:
    """The step's attention in float32, refused where the model has none."""
    if attention_weights is None:
        raise ValueError(
            "`return_attention` needs a step that returns attention weights, "
            "(B*N, S). Received: None. The model has no attention over the source."
        )
    return ops.cast(attention_weights, "float32")
