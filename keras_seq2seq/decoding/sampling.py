"""Drawing a token from the distribution of a step, and the numbers to draw by."""

from typing import Any

from keras import ops

from keras_seq2seq.decoding.candidates import (
    RowRules,
    Vocabulary,
    allowed,
    log_probs_of,
    top_of_large,
)
from keras_seq2seq.decoding.options import SearchOptions
from keras_seq2seq.decoding.search import IMPOSSIBLE, POSSIBLE_ABOVE
from keras_seq2seq.gathers import take_by_row

__all__ = ["uniform_noise"]

# Sums of probabilities are as exact as this.
_ROUNDING = 1e-6
# Dividing by a float32 smaller than this is dividing by 0.
_LEAST_TEMPERATURE = 2.0**-126


def draw(
    vocabulary: Vocabulary, noise: Any, *, options: SearchOptions, rules: RowRules
) -> tuple[Any, Any]:
    """Draws one token of each row.

    Bans first, then the temperature, then top-k, then top-p of what is left. A
    number between 0 and 1 picks the token where the running sum of the
    probabilities passes it.

    Args:
        vocabulary: The logits of the step, `(R, V)`.
        noise: float32 `(R,)`, at least 0 and below 1.
        options: Constants of the search.
        rules: What holds for each row.

    Returns:
        `token_ids`, int32 `(R,)`, and the model's own log-probability of each,
        float32 `(R,)`: `IMPOSSIBLE` in rows that allow no token or have no
        distribution.
    """
    vocabulary_size = vocabulary.logits.shape[-1]
    all_ids = ops.expand_dims(ops.arange(vocabulary_size, dtype="int32"), axis=0)
    logits = ops.where(
        allowed(all_ids, options, rules), vocabulary.ranked, IMPOSSIBLE
    )  # (R, V)
    if rules.forced_ids is not None:
        forced_ids = ops.expand_dims(rules.forced_ids, axis=1)
        others = ops.logical_and(forced_ids >= 0, all_ids != forced_ids)
        logits = ops.where(others, IMPOSSIBLE, logits)
        logits = ops.where(all_ids == forced_ids, vocabulary.logits, logits)
    places = None
    kept = options.top_k if 0 < options.top_k < vocabulary_size else vocabulary_size
    if kept < vocabulary_size or options.top_p < 1:
        logits, places = top_of_large(logits, kept)  # (R, K), likeliest first
    weights = _weights(logits, options)
    picked = _pick(weights, noise)  # (R, 1)
    possible = take_by_row(logits, picked) > POSSIBLE_ABOVE
    possible = ops.logical_and(possible, ops.isfinite(vocabulary.log_total))
    token_ids = picked
    if places is not None:
        token_ids = take_by_row(places, picked)
    log_probs = ops.where(possible, log_probs_of(vocabulary, token_ids), IMPOSSIBLE)
    return ops.squeeze(token_ids, axis=1), ops.squeeze(log_probs, axis=1)


def _weights(logits: Any, options: SearchOptions) -> Any:
    """Probabilities, not normalised, after temperature and top-p, `(R, K)`."""
    largest = ops.max(logits, axis=1, keepdims=True)
    temperature = max(options.temperature, _LEAST_TEMPERATURE)
    weights = ops.exp((logits - largest) / temperature)
    weights = ops.where(logits > POSSIBLE_ABOVE, weights, 0.0)
    if options.top_p == 1:
        return weights
    # Likeliest first: a token stays if those before it do not reach `top_p`.
    running = ops.cumsum(weights, axis=1)
    before = (running - weights) / running[:, -1:]
    first = ops.expand_dims(ops.arange(logits.shape[1]) == 0, axis=0)
    stays = ops.logical_or(first, before < options.top_p - _ROUNDING)
    return ops.where(stays, weights, 0.0)


def _pick(weights: Any, noise: Any) -> Any:
    """Column of each row where the running sum passes its number, `(R, 1)`."""
    running = ops.cumsum(weights, axis=1)
    total = running[:, -1:]
    passed = running > ops.expand_dims(noise, axis=1) * total
    passed = ops.logical_and(passed, weights > 0)
    # The first that passed; if rounding left none, the likeliest.
    order = ops.where(passed, 2.0, weights / total)
    return ops.cast(ops.top_k(order, 1)[1], "int32")


def uniform_noise(seeds: Any, num_samples: int, length: int) -> Any:
    """Numbers that depend on seed, sample and position and nothing else.

    Integer arithmetic: the same numbers on every backend and machine, for a row of
    any batch.

    Args:
        seeds: int32 `(B,)`.
        num_samples: N.
        length: L.

    Returns:
        float32 `(B, N, L)`, multiples of 2 ** -24 from 0 to below 1.
    """
    seeds = ops.reshape(ops.cast(seeds, "int32"), (-1, 1, 1))
    samples = ops.reshape(ops.arange(num_samples, dtype="int32"), (1, -1, 1))
    positions = ops.reshape(ops.arange(length, dtype="int32"), (1, 1, -1))
    bits = _mixed(_mixed(_mixed(seeds + 1) + samples) + positions)
    return ops.cast(_shifted(bits, 8), "float32") * 2.0**-24


def _mixed(bits: Any) -> Any:
    """Spreads every bit of an int32 over all of them; products wrap around."""
    bits = ops.bitwise_xor(bits, _shifted(bits, 16)) * 0x7FEB352D
    bits = ops.bitwise_xor(bits, _shifted(bits, 15)) * (0x846CA68B - 2**32)
    return ops.bitwise_xor(bits, _shifted(bits, 16))


def _shifted(bits: Any, count: int) -> Any:
    """Bits moved right, zeros coming in from the left."""
    moved = ops.right_shift(bits, count)
    return ops.bitwise_and(moved, 2 ** (32 - count) - 1)
