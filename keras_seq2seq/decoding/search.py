"""What the searches share: their result, and how rows are told apart."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_seq2seq.decoding.options import FRACTIONS, SearchInputs
from keras_seq2seq.gathers import take_rows

# Log-probability of what must never be chosen. Finite, so that adding and comparing
# stay defined; far below any sum of real log-probabilities.
IMPOSSIBLE = -1.0e9
# A log-probability at or below this contains at least one `IMPOSSIBLE`.
POSSIBLE_ABOVE = -0.5e9

Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


class SearchResult(NamedTuple):
    """Hypotheses of a search, best first, `N` of each of the `B` sources.

    A search may find fewer than `N` hypotheses: the slots left over have length
    0, `finished` False, nothing but PAD, and a score and log-probability of -1e9. So
    has a hypothesis that stopped before its first token, for want of an allowed one
    or of a distribution.

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
        token_log_probs: The summands of `log_probs`, zeros after the last, float32
            `(B, N, L)`; None where not asked for.
    """

    ids: Any
    lengths: Any
    scores: Any
    log_probs: Any
    finished: Any
    attention: Any = None
    token_log_probs: Any = None


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


def as_tensors(inputs: SearchInputs) -> SearchInputs:
    """The inputs as tensors of the types that the searches work with."""
    return SearchInputs(
        **{
            name: ops.convert_to_tensor(
                ops.cast(value, "float32" if name in FRACTIONS else "int32")
            )
            for name, value in inputs._asdict().items()
            if value is not None
        }
    )


def repeat_rows(tensors: Any, count: int) -> Any:
    """Every tensor with each of its rows `count` times, one after the other."""
    if count == 1:
        return tensors
    return keras.tree.map_structure(
        lambda x: None if x is None else ops.repeat(x, count, axis=0), tensors
    )


def forced_at(prefix_ids: Any, position: Any, pad_id: int) -> Any:
    """The token of the prefix at a position, int32 `(B,)`; -1 where it has ended."""
    if prefix_ids is None:
        return None
    length = prefix_ids.shape[1]
    token_ids = take_rows(prefix_ids, ops.minimum(position, length - 1), axis=1)
    ended = ops.logical_or(position >= length, token_ids == pad_id)
    return ops.where(ended, -1, token_ids)


def gather_rows(state: Any, rows: Any) -> Any:
    """Every tensor of `state` with its rows picked by `rows`, `(R,)`."""
    return keras.tree.map_structure(lambda x: take_rows(x, rows), state)


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
