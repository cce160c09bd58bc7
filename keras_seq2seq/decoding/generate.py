"""Decoding with a model: NumPy in, NumPy out, compiled once for each set of options."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_seq2seq.decoding.beam import beam_search
from keras_seq2seq.decoding.search import SearchResult

__all__ = ["generate"]

# Buffers and caches shorter than this are not worth a program of their own.
_SHORTEST_BUFFER = 16

# Programs hold their model weakly too: a value that held its key would keep it alive.
_programs: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def generate(
    model: Any,
    source_ids: Any,
    *,
    num_beams: int = 1,
    max_length: int,
    length_limits: Any = None,
    min_length: int = 0,
    length_penalty: float = 0.6,
    n_best: int = 1,
    start_id: int = 2,
    end_id: int = 3,
    pad_id: int = 0,
    banned_ids: Sequence[int] = (0, 2),
    return_attention: bool = False,
    jit_compile: bool = False,
) -> SearchResult:
    """Encodes a batch of sources and searches the best targets.

    Encoding and search are compiled as one program, kept with the model for the next
    call: on the TensorFlow backend one graph for all shapes, on JAX one program a
    shape, so pad sources to few shapes there. The program reads the weights when it
    runs, so it follows training. It works on buffers as long as the greatest of
    `length_limits` asks for (16, 32, 64, … tokens): limits tied to the length of
    the source, with batches sorted by length, are much faster than one `max_length`.

    Args:
        model: A model of the four-call contract (`encode`, `initial_state`, `step`,
            `select_state`).
        source_ids: Sources, padded with PAD, int `(B, S)`.
        num_beams: 1 for greedy search.
        max_length: Most tokens of a row, END included; cut to what the model's
            positions allow.
        length_limits: The same for each row, int `(B,)`; None for `max_length`.
        min_length: Least tokens before END.
        length_penalty: Exponent of the penalty that scores are divided by.
        n_best: Hypotheses returned of each source, at most `num_beams`.
        start_id: Token that the first step is fed.
        end_id: Token that ends a hypothesis.
        pad_id: Token written after the end.
        banned_ids: Tokens that are never written.
        return_attention: Whether to return the attention over the source.
        jit_compile: On the TensorFlow backend, whether to compile with XLA, which
            takes seconds for every new shape. JAX always does.

    Returns:
        `SearchResult` of NumPy arrays; L is `max_length` after the cut.

    Raises:
        ValueError: If a source is longer than the model's positions, the shapes do
            not fit, or the options contradict each other.
    """
    source_ids = np.asarray(source_ids, dtype="int32")
    max_positions = getattr(model, "max_positions", None)
    if max_positions is not None:
        _check_source_length(source_ids, max_positions)
        max_length = min(max_length, max_positions)
    limits = _checked_limits(length_limits, len(source_ids), max_length)
    buffer_length = _buffer_length(limits, min_length, max_length)
    options = {
        "num_beams": num_beams,
        "max_length": buffer_length,
        "min_length": min_length,
        "length_penalty": float(length_penalty),
        "n_best": n_best,
        "start_id": start_id,
        "end_id": end_id,
        "pad_id": pad_id,
        "banned_ids": tuple(banned_ids),
        "return_attention": return_attention,
    }
    key = (source_ids.ndim, jit_compile, *options.items())
    programs = _programs.setdefault(model, {})
    if key not in programs:
        programs[key] = _compiled(model, options, source_ids.ndim, jit_compile)
    result = programs[key](source_ids, limits)
    result = SearchResult(*(None if x is None else np.asarray(x) for x in result))
    return _padded(result, max_length - buffer_length, pad_id)


def _check_source_length(source_ids: np.ndarray, max_positions: int) -> None:
    if source_ids.shape[-1] > max_positions:
        raise ValueError(
            "`source_ids` must not be longer than the model's `max_positions`. "
            f"Received: {source_ids.shape[-1]} tokens, max_positions={max_positions}. "
            "Cut the sources, or build the model with more positions."
        )


def _checked_limits(length_limits: Any, batch: int, max_length: int) -> np.ndarray:
    """The limit of each row, int32 `(B,)`."""
    if length_limits is None:
        return np.full((batch,), max_length, dtype="int32")
    limits = np.asarray(length_limits, dtype="int32")
    if limits.shape != (batch,):
        raise ValueError(
            "`length_limits` must hold one limit for each row of `source_ids`. "
            f"Received: shape {limits.shape} for {batch} rows."
        )
    return np.clip(limits, 1, max_length)


def _buffer_length(limits: np.ndarray, min_length: int, max_length: int) -> int:
    """Least power of two that holds every row, or `max_length` if that is less."""
    needed = max(int(limits.max(initial=1)), min_length + 1, _SHORTEST_BUFFER)
    return min(1 << (needed - 1).bit_length(), max_length)


def _padded(result: SearchResult, missing: int, pad_id: int) -> SearchResult:
    """The result with `missing` more positions."""
    if missing == 0:
        return result
    ids = np.pad(result.ids, ((0, 0), (0, 0), (0, missing)), constant_values=pad_id)
    attention = result.attention
    if attention is not None:
        attention = np.pad(attention, ((0, 0), (0, 0), (0, missing), (0, 0)))
    return result._replace(ids=ids, attention=attention)


def _compiled(
    model: Any, options: dict, source_rank: int, jit_compile: bool
) -> Callable[[Any, Any], SearchResult]:
    """Encoder and search of `model` as one program of the backend in use."""
    reference = weakref.ref(model)

    def search(source_ids: Any, limits: Any) -> SearchResult:
        model: Any = reference()
        memory = model.encode(source_ids)
        state = model.initial_state(memory, options["max_length"])
        return beam_search(
            model.step,
            memory,
            state,
            length_limits=limits,
            select_state=model.select_state,
            **options,
        )

    if keras.backend.backend() == "tensorflow":
        return _compiled_by_tensorflow(search, source_rank, jit_compile)
    if keras.backend.backend() == "jax":
        return _compiled_by_jax(search, reference)
    raise ValueError(
        "`generate` runs on the TensorFlow and JAX backends. Received: "
        f"KERAS_BACKEND={keras.backend.backend()}."
    )


def _compiled_by_tensorflow(
    search: Callable, source_rank: int, jit_compile: bool
) -> Callable[[Any, Any], SearchResult]:
    import tensorflow as tf

    return tf.function(
        search,
        input_signature=[
            tf.TensorSpec((None,) * source_rank, tf.int32),
            tf.TensorSpec((None,), tf.int32),
        ],
        jit_compile=jit_compile,
        # Loops are `ops.while_loop` already; rewriting the source costs seconds.
        autograph=False,
    )


def _compiled_by_jax(
    search: Callable, reference: weakref.ref
) -> Callable[[Any, Any], SearchResult]:
    import jax

    @jax.jit
    def run(values: list, source_ids: Any, limits: Any) -> SearchResult:
        # The weights are arguments, so that the program does not freeze them.
        model: Any = reference()
        mapping = zip(model.variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)):
            return search(source_ids, limits)

    def call(source_ids: Any, limits: Any) -> SearchResult:
        model: Any = reference()
        # While `fit` runs, the latest weights live outside the variables.
        model.jax_state_sync()
        values = [variable.value for variable in model.variables]
        return run(values, source_ids, limits)

    return call
