"""What the tokens written before forbid or make less likely at the next step.

Each function takes the tokens of every row, `history` `(R, L)`, of which the first
`position` count, and knows nothing of how the search goes on.
"""

from typing import Any

from keras import ops

from keras_seq2seq.decoding.search import IMPOSSIBLE
from keras_seq2seq.gathers import take_rows


def penalise_repeated(logits: Any, history: Any, position: Any, penalty: float) -> Any:
    """Logits, lower where the token was written before.

    Args:
        logits: float32 `(R, V)`.
        history: Tokens of each row, int32 `(R, L)`.
        position: How many of them count, an int32 scalar.
        penalty: What a logit above 0 is divided by, and one below 0 multiplied by.

    Reference:
        Keskar et al., 2019, section 4.1.
    """
    lower = ops.where(logits > 0, logits / penalty, logits * penalty)
    written = ops.expand_dims(ops.arange(ops.shape(history)[1]) < position, axis=0)
    token_ids = ops.where(written, history, -1)
    return _at_tokens(logits, lower, token_ids)


def repeated_ngram_ends(history: Any, position: Any, size: int) -> Any:
    """Tokens that would end a sequence of `size` tokens for the second time.

    Args:
        history: Tokens of each row, int32 `(R, L)`.
        position: How many of them count, an int32 scalar.
        size: Length of the sequences.

    Returns:
        Tokens, int32 `(R, L)`; -1 where there is none.

    Reference:
        Paulus et al., 2018, section 2.5.
    """
    length = ops.shape(history)[1]
    places = ops.expand_dims(ops.arange(length, dtype="int32"), axis=0)  # (1, L)
    repeated = ops.logical_and(places >= size - 1, places < position)
    for back in range(1, size):
        # The token `back` places before each, and before the one to be written.
        before = take_rows(history, ops.maximum(places[0] - back, 0), axis=1)
        repeated = ops.logical_and(repeated, before == _last(history, position, back))
    return ops.where(repeated, history, -1)


def phrase_ends(history: Any, position: Any, phrases: Any) -> Any:
    """Tokens that would end one of the phrases of each row.

    Args:
        history: Tokens of each row, int32 `(R, L)`.
        position: How many of them count, an int32 scalar.
        phrases: Sequences of tokens, int32 `(R, C, P)`; PAD (0) after the last token.

    Returns:
        Tokens, int32 `(R, C)`; -1 where there is none.
    """
    lengths = phrase_lengths(phrases)  # (R, C)
    ends = ops.full_like(lengths, -1)
    written = ops.ones_like(lengths, dtype="bool")
    for size in range(1, phrases.shape[-1] + 1):
        # Does the row end with the first `size - 1` tokens of the phrase?
        written = follows(history, position, phrases, size - 1)
        complete = ops.logical_and(written, lengths == size)
        ends = ops.where(complete, phrases[..., size - 1], ends)
    return ends


def phrase_lengths(phrases: Any) -> Any:
    """Number of tokens of each phrase, int32, without the last axis."""
    return ops.sum(ops.cast(phrases > 0, "int32"), axis=-1)


def follows(history: Any, position: Any, phrases: Any, size: int) -> Any:
    """Whether each row ends with the first `size` tokens of its phrases.

    Args:
        history: Tokens of each row, int32 `(R, L)`.
        position: How many of them count, an int32 scalar.
        phrases: int32 `(R, …, P)`.
        size: From 0 to P.

    Returns:
        bool `(R, …)`.
    """
    found = ops.ones_like(phrases[..., 0], dtype="bool")
    for place in range(size):
        last = _last(history, position, size - place)  # (R, 1)
        last = ops.reshape(last, (-1,) + (1,) * (len(phrases.shape) - 2))
        found = ops.logical_and(found, phrases[..., place] == last)
    return ops.logical_and(found, position >= size)


def block(logits: Any, token_ids: Any, *, except_id: int) -> Any:
    """Logits, `IMPOSSIBLE` at some tokens of each row.

    Args:
        logits: float32 `(R, V)`.
        token_ids: int32 `(R, M)`; -1 for none.
        except_id: A token that is never blocked.
    """
    token_ids = ops.where(token_ids == except_id, -1, token_ids)
    return _at_tokens(logits, ops.full_like(logits, IMPOSSIBLE), token_ids)


def _last(history: Any, position: Any, back: int) -> Any:
    """The token `back` places before the next of each row, `(R, 1)`."""
    place = ops.maximum(position - back, 0)
    return ops.expand_dims(take_rows(history, place, axis=1), axis=1)


def _at_tokens(logits: Any, changed: Any, token_ids: Any) -> Any:
    """`changed` at the tokens `(R, M)` of each row, `logits` elsewhere; -1: none."""
    rows, vocabulary_size = ops.shape(logits)
    count = ops.shape(token_ids)[1]
    # One column more takes what is meant for no token.
    columns = ops.where(token_ids < 0, vocabulary_size, token_ids)
    numbers = ops.expand_dims(ops.arange(rows, dtype="int32"), axis=1)
    places = numbers * (vocabulary_size + 1) + columns  # (R, M)
    marks = ops.scatter(
        ops.reshape(places, (rows * count, 1)),
        ops.ones((rows * count,), dtype="float32"),
        (rows * (vocabulary_size + 1),),
    )
    marks = ops.reshape(marks, (rows, vocabulary_size + 1))[:, :vocabulary_size]
    return ops.where(marks > 0, changed, logits)
