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
    token_ids = _drawn_ids(logits, noise, options, rules)
    possible = take_by_row(logits, token_ids) > POSSIBLE_ABOVE
    possible = ops.logical_and(possible, ops.isfinite(vocabulary.log_total))
    log_probs = ops.where(possible, log_probs_of(vocabulary, token_ids), IMPOSSIBLE)
    return ops.squeeze(token_ids, axis=1), ops.squeeze(log_probs, axis=1)


def _drawn_ids(logits: Any, noise: Any, options: SearchOptions, rules: RowRules) -> Any:
    """The token that each row's number picks, `(R, 1)`.

    Running sums go from the likeliest token on where top-k or top-p count, and by id
    where they do not.
    """
    size = logits.shape[1]
    by_row = rules.top_ks is not None or rules.top_ps is not None
    kept = options.top_k if 0 < options.top_k < size else size
    if rules.top_ks is not None:
        kept = size
    if not by_row and kept == size and options.top_p == 1:
        return _pick(_weights(logits, options, rules), noise)
    highest, places = top_of_large(logits, kept)  # (R, K)
    weights = _weights(highest, options, rules)
    picked = take_by_row(places, _pick(_top(weights, options, rules), noise))
    if not by_row:
        return picked
    top_k = _by_row(rules.top_ks, options.top_k)
    all_count = ops.logical_or(top_k == 0, top_k >= size)
    all_count = ops.logical_and(all_count, _by_row(rules.top_ps, options.top_p) >= 1)
    by_id = _pick(_weights(logits, options, rules), noise)
    return ops.where(all_count, by_id, picked)


def _by_row(values: Any, option: Any) -> Any:
    """Each row's own number, `(R, 1)`, or the option."""
    if values is None:
        return ops.convert_to_tensor(option)
    return ops.expand_dims(values, axis=1)


def _weights(logits: Any, options: SearchOptions, rules: RowRules) -> Any:
    """Probabilities, not normalised, after the temperature, `(R, K)`."""
    largest = ops.max(logits, axis=1, keepdims=True)
    temperature: Any = max(options.temperature, _LEAST_TEMPERATURE)
    if rules.temperatures is not None:
        temperature = _by_row(rules.temperatures, 0)
        temperature = ops.maximum(temperature, _LEAST_TEMPERATURE)
    weights = ops.exp((logits - largest) / temperature)
    return ops.where(logits > POSSIBLE_ABOVE, weights, 0.0)


def _top(weights: Any, options: SearchOptions, rules: RowRules) -> Any:
    """Weights, likeliest first, without those that top-k and top-p leave out."""
    order = ops.expand_dims(ops.arange(weights.shape[1], dtype="int32"), axis=0)
    if rules.top_ks is not None:
        top_k = _by_row(rules.top_ks, 0)
        stays = ops.logical_or(top_k == 0, order < top_k)
        weights = ops.where(stays, weights, 0.0)
    if rules.top_ps is None and options.top_p == 1:
        return weights
    top_p = _by_row(rules.top_ps, options.top_p)
    # A token stays if those before it do not reach `top_p`; at 1 all do.
    running = ops.cumsum(weights, axis=1)
    before = (running - weights) / running[:, -1:]
    stays = ops.logical_or(before < top_p - _ROUNDING, top_p >= 1)
    stays = ops.logical_or(stays, order == 0)
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
