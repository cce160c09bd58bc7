"""The next tokens of each row that a search may choose from, with their scores."""

import math
from typing import Any, NamedTuple

from keras import ops

from keras_seq2seq.decoding.options import SearchOptions
from keras_seq2seq.decoding.processors import (
    block,
    penalise_repeated,
    phrase_ends,
    repeated_ngram_ends,
)
from keras_seq2seq.decoding.search import IMPOSSIBLE, POSSIBLE_ABOVE
from keras_seq2seq.gathers import take_by_row, take_rows

# Columns that one maximum may stand for in the search of a large vocabulary.
_BLOCKS = range(32, 129)


class RowRules(NamedTuple):
    """What holds for each row at this step; None for what is not asked.

    Attributes:
        position: Tokens written so far, an int32 scalar.
        min_lengths: END is impossible while `position` is less, int32 `(R,)`.
        history: Tokens written so far, int32 `(R, L)`.
        banned_phrases: int32 `(R, C, P)`.
        forced_ids: The only token of a row, int32 `(R,)`; -1 where it is free.
        wanted_ids: Tokens to be among the candidates, int32 `(R, E)`; -1 for none.
        temperatures: To draw by in place of the option, float32 `(R,)`.
        top_ks: In place of the option, int32 `(R,)`.
        top_ps: In place of the option, float32 `(R,)`.
    """

    position: Any
    min_lengths: Any = None
    history: Any = None
    banned_phrases: Any = None
    forced_ids: Any = None
    wanted_ids: Any = None
    temperatures: Any = None
    top_ks: Any = None
    top_ps: Any = None


class Candidates(NamedTuple):
    """Next tokens of each row, `(R, K)`.

    Attributes:
        token_ids: int32.
        ranking: Log-probabilities to choose by, after the repetition penalty;
            `IMPOSSIBLE` for what must not be chosen, in no particular order.
        log_probs: The model's own.
    """

    token_ids: Any
    ranking: Any
    log_probs: Any


class Vocabulary(NamedTuple):
    """Logits of every token, and what makes log-probabilities of them.

    Attributes:
        logits: The model's own, float32 `(R, V)`.
        log_total: Log-sum-exp of them, `(R, 1)`.
        ranked: Logits to choose by: lower where a token was repeated, `IMPOSSIBLE`
            where the tokens before forbid it, `(R, V)`.
        ranked_total: Log-sum-exp after the repetition penalty, `(R, 1)`.
    """

    logits: Any
    log_total: Any
    ranked: Any
    ranked_total: Any


def vocabulary_of(logits: Any, options: SearchOptions, rules: RowRules) -> Vocabulary:
    """The logits of a step with what the tokens before make of them.

    Raises:
        ValueError: If the bans leave no token but END.
    """
    _check_bans(options, logits.shape[-1])
    logits = ops.cast(logits, "float32")
    log_total = _log_total(logits)
    ranked, ranked_total = logits, log_total
    if options.repetition_penalty != 1:
        ranked = penalise_repeated(
            logits, rules.history, rules.position, options.repetition_penalty
        )
        ranked_total = _log_total(ranked)
    if options.no_repeat_ngram_size:
        blocked = repeated_ngram_ends(
            rules.history, rules.position, options.no_repeat_ngram_size
        )
        ranked = block(ranked, blocked, except_id=options.end_id)
    if rules.banned_phrases is not None:
        blocked = phrase_ends(rules.history, rules.position, rules.banned_phrases)
        ranked = block(ranked, blocked, except_id=options.end_id)
    return Vocabulary(logits, log_total, ranked, ranked_total)


def next_tokens(
    logits: Any, *, count: int, options: SearchOptions, rules: RowRules
) -> Candidates:
    """The likeliest next tokens of each row, allowed or marked impossible.

    Taken from the top of the logits with room for the banned ones, and normalised
    by one log-sum-exp. The `count` best allowed tokens other than END are always
    among those returned, and so is END where it belongs to the first `count + 1`
    allowed ones.

    Args:
        logits: Scores of the whole vocabulary, `(R, V)`.
        count: Tokens other than END that the caller needs from each row.
        options: Constants of the search.
        rules: What holds for each row.

    Returns:
        Candidates, impossible where banned and in rows without a distribution (a NaN
        or an infinity among the logits).

    Raises:
        ValueError: If the bans leave no token but END.
    """
    vocabulary_size = logits.shape[-1]
    kept = min(vocabulary_size, count + 1 + len(set(options.banned_ids)))
    if rules.history is None:
        _check_bans(options, vocabulary_size)
        logits = ops.cast(logits, "float32")
        top_logits, token_ids = top_of_large(logits, kept)  # (R, K)
        log_total = _log_total(logits, top_logits[:, :1], token_ids[:, :1])
        vocabulary = Vocabulary(logits, log_total, logits, log_total)
        log_probs = ranking = top_logits - log_total
    else:
        vocabulary = vocabulary_of(logits, options, rules)
        top_logits, token_ids = top_of_large(vocabulary.ranked, kept)
        ranking = top_logits - vocabulary.ranked_total
        log_probs = log_probs_of(vocabulary, token_ids)
    possible = allowed(token_ids, options, rules)
    possible = ops.logical_and(possible, ops.isfinite(vocabulary.log_total))
    # Rounding can leave a certain token a hair above 0; bounds rely on its sign.
    ranking = ops.clip(ranking, IMPOSSIBLE, 0.0)
    ranking = ops.where(possible, ranking, IMPOSSIBLE)
    found = Candidates(token_ids, ranking, ops.clip(log_probs, IMPOSSIBLE, 0.0))
    if rules.wanted_ids is not None:
        found = _with_wanted(found, vocabulary, options, rules)
    if rules.forced_ids is not None:
        found = _forced(found, vocabulary, rules.forced_ids)
    return found


def log_probs_of(vocabulary: Vocabulary, token_ids: Any) -> Any:
    """The model's log-probabilities of tokens `(R, K)`."""
    logits = take_by_row(vocabulary.logits, token_ids)
    return ops.clip(logits - vocabulary.log_total, IMPOSSIBLE, 0.0)


def allowed(token_ids: Any, options: SearchOptions, rules: RowRules) -> Any:
    """Whether tokens `(R, K)` are neither banned nor an END that comes too early."""
    early = rules.position < options.min_length
    if rules.min_lengths is not None:
        early = ops.logical_or(early, rules.position < rules.min_lengths)
        early = ops.expand_dims(early, axis=1)  # (R, 1)
    possible = ops.logical_or(token_ids != options.end_id, ops.logical_not(early))
    for banned_id in sorted(set(options.banned_ids)):
        possible = ops.logical_and(possible, token_ids != banned_id)
    return possible


def _with_wanted(
    found: Candidates, vocabulary: Vocabulary, options: SearchOptions, rules: RowRules
) -> Candidates:
    """The candidates and the wanted tokens, each possible once."""
    token_ids = ops.maximum(rules.wanted_ids, 0)  # (R, E)
    logits = take_by_row(vocabulary.ranked, token_ids)
    ranking = ops.clip(logits - vocabulary.ranked_total, IMPOSSIBLE, 0.0)
    possible = ops.logical_and(
        rules.wanted_ids >= 0, allowed(token_ids, options, rules)
    )
    possible = ops.logical_and(possible, ops.isfinite(vocabulary.log_total))
    known = _any_equal(
        token_ids, ops.where(found.ranking > POSSIBLE_ABOVE, found.token_ids, -1)
    )
    possible = ops.logical_and(possible, ops.logical_not(known))
    places = ops.arange(token_ids.shape[1])
    earlier = ops.expand_dims(places, axis=1) > ops.expand_dims(places, axis=0)
    same = ops.expand_dims(token_ids, axis=2) == ops.expand_dims(
        rules.wanted_ids, axis=1
    )
    repeated = ops.any(ops.logical_and(same, earlier), axis=2)
    possible = ops.logical_and(possible, ops.logical_not(repeated))
    wanted = Candidates(
        token_ids=token_ids,
        ranking=ops.where(possible, ranking, IMPOSSIBLE),
        log_probs=log_probs_of(vocabulary, token_ids),
    )
    return Candidates(
        *(ops.concatenate(both, axis=1) for both in zip(found, wanted, strict=True))
    )


def _any_equal(values: Any, others: Any) -> Any:
    """Whether each of `(R, E)` is among `(R, K)`, bool `(R, E)`."""
    return ops.any(
        ops.expand_dims(values, axis=2) == ops.expand_dims(others, axis=1), axis=2
    )


def _forced(found: Candidates, vocabulary: Vocabulary, forced_ids: Any) -> Candidates:
    """The candidates, in forced rows nothing but the forced token."""
    forced_ids = ops.expand_dims(forced_ids, axis=1)  # (R, 1)
    is_forced = forced_ids >= 0
    wanted = ops.maximum(forced_ids, 0)
    log_probs = log_probs_of(vocabulary, wanted)
    log_probs = ops.where(ops.isfinite(log_probs), log_probs, IMPOSSIBLE)
    first = ops.expand_dims(ops.arange(found.token_ids.shape[1]) == 0, axis=0)
    return Candidates(
        token_ids=ops.where(is_forced, wanted, found.token_ids),
        # A prefix is not chosen, so it ranks as the model's own.
        ranking=ops.where(
            is_forced, ops.where(first, log_probs, IMPOSSIBLE), found.ranking
        ),
        log_probs=ops.where(is_forced, log_probs, found.log_probs),
    )


def _check_bans(options: SearchOptions, vocabulary_size: int) -> None:
    banned = {i for i in options.banned_ids if 0 <= i < vocabulary_size}
    if len(banned | {options.end_id}) >= vocabulary_size:
        raise ValueError(
            "`banned_ids` must leave at least one token besides END. Received: "
            f"banned_ids={options.banned_ids}, end_id={options.end_id}, and logits of "
            f"{vocabulary_size} tokens."
        )


def _log_total(logits: Any, top: Any = None, column: Any = None) -> Any:
    """Log-sum-exp of each row, `(R, 1)`, NaN where there is no distribution.

    Args:
        logits: `(R, V)`.
        top: The largest of each row, `(R, 1)`, where it is known.
        column: Its column, int32 `(R, 1)`.
    """
    # One operation everywhere, where exponentials and their sum would be three.
    probabilities = ops.softmax(logits, axis=-1)
    if top is None:
        top = ops.max(logits, axis=-1, keepdims=True)
        largest = ops.max(probabilities, axis=-1, keepdims=True)
    else:
        largest = take_by_row(probabilities, column)
    return top - ops.log(largest)


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
    size = _block_size(width, count)
    num_blocks = -(-width // size)
    if num_blocks < 4 * count:
        largest, columns = ops.top_k(values, count)
        return largest, ops.cast(columns, "int32")
    rows = ops.shape(values)[0]
    if width % size:
        missing = num_blocks * size - width
        values = ops.pad(values, ((0, 0), (0, missing)), constant_values=-math.inf)
    blocks = ops.reshape(values, (rows, num_blocks, size))
    _, chosen = ops.top_k(ops.max(blocks, axis=-1), count)  # (R, count)
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)  # so that ties keep order
    first_block = ops.expand_dims(ops.arange(rows, dtype="int32") * num_blocks, axis=1)
    blocks = ops.reshape(blocks, (rows * num_blocks, size))
    blocks = take_rows(blocks, chosen + first_block)  # (R, count, block)
    largest, places = ops.top_k(ops.reshape(blocks, (rows, count * size)), count)
    places = ops.cast(places, "int32")
    block = take_by_row(chosen, ops.floor_divide(places, size))
    # Where fewer than `count` are above -inf, padding can come up.
    columns = ops.minimum(block * size + ops.mod(places, size), width - 1)
    return largest, columns


def _block_size(width: int, count: int) -> int:
    """The size of block that leaves least to search, without padding if there is."""
    sizes = [size for size in _BLOCKS if width % size == 0] or [64]
    return min(sizes, key=lambda size: width / size + count * size)
