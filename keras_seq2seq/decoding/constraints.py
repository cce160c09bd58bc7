"""Phrases that an output must hold, and how far each hypothesis has come with them.

Of each of C sets one of A phrases must be written. A hypothesis has *met* a set once
it held one of its phrases, and still *needs* the tokens of the others: the shortest
phrase of each open set, less what the hypothesis already ends with of one of them. So
phrases that could be written over each other must fit into the limit side by side.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_seq2seq.decoding.candidates import Candidates
from keras_seq2seq.decoding.processors import follows, phrase_lengths
from keras_seq2seq.decoding.search import IMPOSSIBLE, POSSIBLE_ABOVE
from keras_seq2seq.gathers import take_by_row


class Progress(NamedTuple):
    """How far candidates come with the phrases.

    Attributes:
        met: Whether each set is met, bool `(R, K, C)`.
        needed: Tokens that are still needed at least, int32 `(R, K)`.
    """

    met: Any
    needed: Any


def sets_without_phrases(phrases: Any) -> Any:
    """Whether each set asks for nothing, bool `(R, C)`: met from the start."""
    return ops.max(phrase_lengths(phrases), axis=-1) == 0


def wanted_tokens(phrases: Any, met: Any, history: Any, position: Any) -> Any:
    """The token that would go on with each open phrase, int32 `(R, C * A)`; -1: none.

    Args:
        phrases: int32 `(R, C, A, P)`.
        met: bool `(R, C)`.
        history: Tokens of each row, int32 `(R, L)`.
        position: How many of them count, an int32 scalar.
    """
    wanted = phrases[..., 0]  # (R, C, A)
    for size in range(1, phrases.shape[-1]):
        there = follows(history, position, phrases, size)
        going_on = ops.logical_and(there, phrases[..., size] > 0)
        wanted = ops.where(going_on, phrases[..., size], wanted)
    is_open = ops.logical_and(ops.expand_dims(~met, axis=-1), wanted > 0)
    wanted = ops.where(is_open, wanted, -1)
    count = phrases.shape[1] * phrases.shape[2]
    return ops.reshape(wanted, (-1, count))


def progress_with(
    phrases: Any, met: Any, history: Any, position: Any, token_ids: Any
) -> Progress:
    """How far each row would come with each candidate.

    Args:
        phrases: int32 `(R, C, A, P)`.
        met: bool `(R, C)`, before the candidate.
        history: Tokens of each row, int32 `(R, L)`.
        position: How many of them count, an int32 scalar.
        token_ids: Candidates, int32 `(R, K)`.
    """
    lengths = ops.expand_dims(phrase_lengths(phrases), axis=1)  # (R, 1, C, A)
    token_ids = ops.reshape(token_ids, (*ops.shape(token_ids), 1, 1))
    phrases_by_token = ops.expand_dims(phrases, axis=1)  # (R, 1, C, A, P)
    done = ops.zeros_like(ops.cast(token_ids, "int32") + lengths)  # (R, K, C, A)
    for size in range(1, phrases.shape[-1] + 1):
        before = follows(history, position, phrases, size - 1)  # (R, C, A)
        fits = ops.logical_and(
            ops.expand_dims(before, axis=1),
            phrases_by_token[..., size - 1] == token_ids,
        )
        done = ops.where(ops.logical_and(fits, lengths >= size), size, done)
    exists = lengths > 0
    complete = ops.any(ops.logical_and(exists, done == lengths), axis=-1)
    met = ops.logical_or(ops.expand_dims(met, axis=1), complete)  # (R, K, C)
    return Progress(met, _needed(met, done, lengths))


def _needed(met: Any, done: Any, lengths: Any) -> Any:
    """Fewest tokens that meet every open set, int32 `(R, K)`."""
    longest = ops.max(lengths, axis=-1, keepdims=True)
    shortest = ops.min(
        ops.where(lengths > 0, lengths, longest), axis=-1, keepdims=True
    )  # (R, 1, C, 1)
    is_open = ops.logical_not(met)  # (R, K, C)
    total = ops.sum(ops.where(is_open, ops.squeeze(shortest, axis=-1), 0), axis=-1)
    # What is begun saves tokens in one set: the next token can go on with one only.
    saved = ops.where(lengths > 0, done - (lengths - shortest), 0)
    saved = ops.where(ops.expand_dims(is_open, axis=-1), saved, 0)
    return total - ops.max(saved, axis=(-2, -1))


def within_reach(found: Candidates, needed: Any, room: Any, end_id: int) -> Candidates:
    """Candidates, impossible where the phrases would no longer fit, or END is early.

    Args:
        found: Candidates, `(R, K)`.
        needed: Tokens that each still needs, int32 `(R, K)`.
        room: Tokens that can be written after this one before END, int32 `(R,)`.
        end_id: Token that ends a hypothesis.
    """
    fits = needed <= ops.expand_dims(room, axis=1)
    complete = ops.logical_or(found.token_ids != end_id, needed == 0)
    possible = ops.logical_and(ops.logical_or(fits, needed == 0), complete)
    return found._replace(ranking=ops.where(possible, found.ranking, IMPOSSIBLE))


def in_turn(choice: Any, needed: Any, count: int) -> tuple[Any, Any]:
    """The best of those who need equally much, in turn, those who need least first.

    So that hypotheses that have begun a phrase, which is seldom likely, live on beside
    likely ones that have not.

    Args:
        choice: What candidates are chosen by, float32 `(B, M)`.
        needed: Tokens that each still needs, int32 `(B, M)`.
        count: How many to choose.

    Returns:
        Their order, falling from 0, float32 `(B, count)`, `IMPOSSIBLE` for impossible
        ones; and their columns, int32 `(B, count)`.

    Reference:
        Post and Vilar, 2018, section 3 (there the beam is divided into banks).
    """
    width = choice.shape[1]
    best, columns = ops.top_k(choice, width)  # (B, M)
    columns = ops.cast(columns, "int32")
    needed = take_by_row(needed, columns)
    alike = ops.expand_dims(needed, axis=2) == ops.expand_dims(needed, axis=1)
    places = ops.arange(width, dtype="int32")
    earlier = ops.expand_dims(places, axis=1) > ops.expand_dims(places, axis=0)
    rank = ops.sum(ops.cast(ops.logical_and(alike, earlier), "int32"), axis=2)
    turn = -ops.cast(rank * 1000 + needed, "float32")
    order, picked = ops.top_k(ops.where(best > POSSIBLE_ABOVE, turn, IMPOSSIBLE), count)
    return order, take_by_row(columns, ops.cast(picked, "int32"))
