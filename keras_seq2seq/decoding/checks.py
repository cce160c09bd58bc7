"""What a search is given in arrays, checked before a program runs on it."""

import reprlib
from typing import Any

import numpy as np

from keras_seq2seq.decoding.options import FRACTIONS, SearchInputs

__all__ = [
    "check_phrases_fit",
    "check_prefixes_fit",
    "checked_inputs",
    "checked_sources",
]

# Axes of each input, the batch among them.
_RANKS = {
    "length_limits": 1,
    "min_lengths": 1,
    "reward_lengths": 1,
    "prefix_ids": 2,
    "banned_phrases": 3,
    "required_phrases": 4,
    "seeds": 1,
    "noise": 3,
    "temperatures": 1,
    "top_ks": 1,
    "top_ps": 1,
}
_IDS = ("prefix_ids", "banned_phrases", "required_phrases")
_LEAST = {"length_limits": 1, "min_lengths": 0, "reward_lengths": 0, "top_ks": 0}
_GREATEST = {"temperatures": float(np.finfo("float32").max), "top_ps": 1.0}
_TOO_LARGE = 2**31  # for int32


def checked_sources(model: Any, source_ids: Any) -> np.ndarray:
    """Refuses sources that the model cannot read.

    Args:
        model: A model of the four-call contract.
        source_ids: Sources, padded with PAD, int `(B, S)`, or `(B, U, S)` for a model
            that reads turns.

    Returns:
        The sources, int32, with at least one position.

    Raises:
        ValueError: If they have another shape, hold something else than ids of the
            model's vocabulary, or are longer than its positions.
    """
    ids = _array("source_ids", source_ids)
    if ids.ndim not in (2, 3):
        raise ValueError(
            "`source_ids` must have 2 axes, (B, S), or 3, (B, U, S). Received: shape "
            f"{ids.shape}. Put a single source in a list."
        )
    vocabulary_size = getattr(model, "source_vocabulary_size", None)
    _check_range("source_ids", ids, 0, vocabulary_size)
    max_positions = getattr(model, "max_positions", None)
    if max_positions is not None and ids.shape[-1] > max_positions:
        raise ValueError(
            "`source_ids` must not be longer than the model's `max_positions`. "
            f"Received: {ids.shape[-1]} tokens, max_positions={max_positions}. "
            "Cut the sources, or build the model with more positions."
        )
    missing = max(1 - ids.shape[-1], 0)
    ids = np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, missing)])
    return ids.astype("int32")


def checked_inputs(
    inputs: SearchInputs,
    *,
    batch: int,
    max_length: int,
    pad_id: int,
    vocabulary_size: int | None,
) -> dict[str, np.ndarray]:
    """Refuses inputs of another shape, and numbers out of range.

    Args:
        inputs: What was given.
        batch: Number of sources.
        max_length: Most tokens of a hypothesis.
        pad_id: Token that prefixes are filled up with.
        vocabulary_size: Number of target ids; None if it is not known.

    Returns:
        Arrays by name: those that were given and ask for something, and the limit of
        every row.

    Raises:
        ValueError: With the name, what was expected and what was received.
    """
    arrays = {}
    for name, value in inputs._asdict().items():
        if value is None:
            continue
        array = _array(name, value, whole=name not in FRACTIONS)
        rank = _RANKS[name]
        if array.ndim != rank or len(array) != batch:
            raise ValueError(
                f"`{name}` must have {rank} axes, the first with one entry for each "
                f"row of `source_ids`. Received: shape {array.shape} for {batch} rows."
            )
        if name in _IDS:
            if 0 in array.shape[1:]:
                continue  # not one token
            _check_range(name, array, 0, vocabulary_size)
        elif name in _LEAST:
            _check_range(name, array, _LEAST[name])
        elif name in _GREATEST:
            _check_fractions(name, array, _GREATEST[name])
        arrays[name] = array.astype("float32" if name in FRACTIONS else "int32")
    limits = arrays.get("length_limits", np.full((batch,), max_length, "int32"))
    arrays["length_limits"] = limits = np.minimum(limits, max_length)
    prefix_ids = arrays.get("prefix_ids")
    if prefix_ids is not None:
        check_prefixes_fit(limits, prefix_ids, pad_id=pad_id)
    if "required_phrases" in arrays:
        check_phrases_fit(limits, arrays["required_phrases"], prefix_ids)
    return arrays


def check_prefixes_fit(
    limits: np.ndarray,
    prefix_ids: np.ndarray,
    *,
    pad_id: int = 0,
    name: str = "prefix_ids",
) -> None:
    """Refuses prefixes that are longer than a limit.

    Args:
        limits: Most tokens of each source's hypotheses, END included, `(B,)`.
        prefix_ids: `(B, P)`.
        pad_id: Token that they are filled up with.
        name: What the caller calls them.

    Raises:
        ValueError: With the first source, its prefix's tokens and its limit.
    """
    lengths = (prefix_ids != pad_id).sum(axis=-1)
    for row in np.flatnonzero(lengths > limits)[:1]:
        raise ValueError(
            f"`{name}` must fit into the length limit. Received for the source at "
            f"index {row}: {lengths[row]} tokens, where {limits[row]} can be written. "
            "Raise the limit, or shorten the prefix."
        )


def check_phrases_fit(
    limits: np.ndarray, required_phrases: np.ndarray, prefix_ids: np.ndarray | None
) -> None:
    """Refuses required phrases that a limit leaves no room for.

    Args:
        limits: Most tokens of each source's hypotheses, END included, `(B,)`.
        required_phrases: `(B, C, A, P)`.
        prefix_ids: `(B, P)`, or None.

    Raises:
        ValueError: With the first source, what it needs and what there is.
    """
    lengths = (required_phrases != 0).sum(axis=-1)  # (B, C, A)
    shortest = np.where(lengths > 0, lengths, lengths.max(axis=-1, keepdims=True))
    needed = shortest.min(axis=-1, initial=2**30).sum(axis=-1, initial=0)
    given = 0 if prefix_ids is None else (prefix_ids != 0).sum(axis=-1)
    room = np.maximum(limits - 1 - given, 0)
    for row in np.flatnonzero(needed > room)[:1]:
        raise ValueError(
            "What is required must fit into the length limit. Received for the source "
            f"at index {row}: {needed[row]} tokens of phrases where {room[row]} can be "
            "written before END. Raise the limit, or ask for less."
        )


def _array(name: str, value: Any, *, whole: bool = True) -> np.ndarray:
    """An array of numbers; one of nothing may be of any type."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"`{name}` must have rows of equal length. Received: "
            f"{reprlib.repr(value)}. Fill up the shorter ones with PAD (0)."
        ) from None
    if array.size and array.dtype.kind not in ("iu" if whole else "iuf"):
        raise ValueError(
            f"`{name}` must hold {'whole ' * whole}numbers. Received: "
            f"{array.ravel()[:1].tolist()[0]!r}, of {array.dtype}."
        )
    return array


def _check_range(
    name: str, array: np.ndarray, least: int, vocabulary_size: int | None = None
) -> None:
    """Refuses numbers less than `least`, outside the vocabulary or not of int32."""
    too_large = vocabulary_size or _TOO_LARGE
    for place in np.argwhere((array < least) | (array >= too_large))[:1]:
        raise ValueError(
            f"`{name}` must hold numbers of at least {least} and less than "
            f"{too_large:,}{', ids of the vocabulary' if vocabulary_size else ''}. "
            f"Received: {array[tuple(place)]} for the source at index {place[0]}."
        )


def _check_fractions(name: str, array: np.ndarray, greatest: float) -> None:
    """Refuses numbers below 0, above the greatest, and NaN."""
    for row in np.flatnonzero(~((array >= 0) & (array <= greatest)))[:1]:
        raise ValueError(
            f"`{name}` must hold numbers of at least 0 and at most {greatest:g}. "
            f"Received: {array[row]} for the source at index {row}."
        )
