"""Decoding with a model: NumPy in, NumPy out, compiled once for each set of options."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np

from keras_seq2seq.buffers import filled_by
from keras_seq2seq.decoding.beam import search
from keras_seq2seq.decoding.checks import checked_inputs, checked_sources
from keras_seq2seq.decoding.loop import Arrangement
from keras_seq2seq.decoding.options import SearchInputs, SearchOptions, split_options
from keras_seq2seq.decoding.programs import compiled_by_shape, program
from keras_seq2seq.decoding.search import SearchResult

__all__ = ["generate", "search_sources"]

# Buffers shorter than this are not worth a program of their own: where the caches have
# that length, and where they grow by themselves.
_SHORTEST_CACHE = 16
_SHORTEST_BUFFER = 128


def generate(
    model: Any, source_ids: Any, *, jit_compile: bool = False, **options: Any
) -> SearchResult:
    """Encodes a batch of sources and searches the best targets, or draws some.

    Encoding and search are compiled as one program, kept with the model for the next
    call: on the TensorFlow backend one graph for all shapes, on JAX one program a
    shape, so pad sources to few shapes there. The program reads the weights when it
    runs, so it follows training. It works on buffers as long as the greatest of
    `length_limits` asks for: 16, 32, 64, … tokens, on TensorFlow without XLA 128 and
    more, where caches grow by themselves. So limits tied to the length of the source,
    with batches sorted by length, are much faster than one `max_length`.

    Args:
        model: A model of the four-call contract (`encode`, `initial_state`, `step`,
            `repeat_state`, `select_state`, `select_memory`).
        source_ids: Sources, padded with PAD, int `(B, S)`, or `(B, U, S)` for a model
            that reads turns.
        jit_compile: On the TensorFlow backend, whether to compile with XLA, which
            takes seconds for every new shape. JAX always does.
        **options: Fields of `SearchOptions` and `SearchInputs`. `max_length` must be
            given; it is cut to what the model's positions allow.

    Returns:
        `SearchResult` of NumPy arrays; L is `max_length` after the cut.

    Raises:
        TypeError: If there is no such option.
        ValueError: If a source is longer than the model's positions, an array has
            another shape than it should or holds numbers out of range, the prefix or
            the phrases that are required do not fit into a limit, or the options
            contradict each other.
    """
    grow = not (jit_compile or compiled_by_shape())
    source_ids, constants, tensors, max_length = prepared(
        model, source_ids, options, caches_grow=grow
    )

    def run(model: Any, source_ids: Any, tensors: dict) -> SearchResult:
        with filled_by("grow" if grow else "slice"):
            return _searched(model, source_ids, constants, SearchInputs(**tensors))

    shapes = tuple((name, value.shape[1:]) for name, value in tensors.items())
    decode = program(
        model,
        (source_ids.ndim, jit_compile, constants, shapes),
        run,
        signature=_signature(source_ids, tensors),
        jit_compile=jit_compile,
    )
    result = decode(source_ids, tensors)
    result = SearchResult(*(None if x is None else np.asarray(x) for x in result))
    return _of_length(result, max_length, constants.pad_id)


def search_sources(model: Any, source_ids: Any, **options: Any) -> SearchResult:
    """Encodes and searches in whatever is being traced, such as the graph of an export.

    Args:
        model: As for `generate`.
        source_ids: Sources, padded with PAD, int32 `(B, S)`, none of them all padding.
        **options: Fields of `SearchOptions`, and of `SearchInputs` as tensors.

    Returns:
        `SearchResult` of tensors; samples, where there is a temperature.

    Raises:
        TypeError: If there is no such option.
        ValueError: If the options contradict each other.
    """
    return _searched(model, source_ids, *split_options(options))


def _searched(
    model: Any, source_ids: Any, constants: SearchOptions, inputs: SearchInputs
) -> SearchResult:
    memory = model.encode(source_ids, training=False)
    state = model.initial_state(memory, constants.max_length)
    arrangement = Arrangement.of(model)
    return search(model.step, memory, state, constants, inputs, arrangement)


def prepared(
    model: Any,
    source_ids: Any,
    options: dict[str, Any],
    *,
    caches_grow: bool = False,
) -> tuple[np.ndarray, SearchOptions, dict[str, np.ndarray], int]:
    """Checks what a search is asked for, and chooses the length of its buffers.

    Args:
        model: A model of the four-call contract.
        source_ids: Sources, padded with PAD, int `(B, S)`, or `(B, U, S)` for a model
            that reads turns.
        options: Fields of `SearchOptions` and `SearchInputs`.
        caches_grow: Whether caches are no longer than what is in them, so that long
            buffers for the output cost little.

    Returns:
        The sources; the constants, whose `max_length` is that of the buffers; the
        tensors by name; and the `max_length` that was asked for, after the cut to the
        model's positions.

    Raises:
        TypeError: If there is no such option.
        ValueError: As `generate`.
    """
    constants, inputs = split_options(options)
    source_ids = checked_sources(model, source_ids)
    max_length = constants.max_length
    max_positions = getattr(model, "max_positions", None)
    if max_positions is not None:
        max_length = min(max_length, max_positions)
    tensors = checked_inputs(
        inputs,
        batch=len(source_ids),
        max_length=max_length,
        pad_id=constants.pad_id,
        vocabulary_size=getattr(model, "target_vocabulary_size", None),
    )
    longest_output = int(tensors["length_limits"].max(initial=1))
    shortest = _SHORTEST_BUFFER if caches_grow else _SHORTEST_CACHE
    needed = max(longest_output, constants.min_length + 1, shortest)
    length = 1 << (needed - 1).bit_length()
    if not caches_grow or "noise" in tensors:
        length = min(length, max_length)
    elif max_positions is not None:
        length = min(length, max_positions)
    return source_ids, replace(constants, max_length=length), tensors, max_length


def _of_length(result: SearchResult, max_length: int, pad_id: int) -> SearchResult:
    """The result with as many positions, of which those left out hold nothing."""
    missing = max_length - result.ids.shape[2]

    def fitted(x: np.ndarray | None, fill: int = 0) -> np.ndarray | None:
        if x is None or missing == 0:
            return x
        if missing < 0:
            return x[:, :, :max_length]
        widths = [(0, 0), (0, 0), (0, missing), *[(0, 0)] * (x.ndim - 3)]
        return np.pad(x, widths, constant_values=fill)

    return result._replace(
        ids=fitted(result.ids, pad_id),
        attention=fitted(result.attention),
        token_log_probs=fitted(result.token_log_probs),
    )


def _signature(source_ids: np.ndarray, tensors: dict[str, np.ndarray]) -> list[Any]:
    """One graph for all batches and lengths.

    Loops over phrases are written out, one part for each token, so that those keep
    their shape.
    """
    ids = keras.KerasTensor((None,) * source_ids.ndim, "int32")
    return [
        ids,
        {
            name: keras.KerasTensor((None, *array.shape[1:]), array.dtype.name)
            for name, array in tensors.items()
        },
    ]
