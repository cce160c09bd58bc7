"""The loop that every search runs, and how sources that are done leave it."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import keras
from keras import ops

from keras_seq2seq.buffers import grows
from keras_seq2seq.decoding.options import SearchInputs, SearchOptions
from keras_seq2seq.decoding.search import Step, batch_size, gather_rows, repeat_rows
from keras_seq2seq.gathers import take_rows

# Batches shrink to these numbers of sources, up to the greatest that is less than
# theirs: runtimes prepare the products of every new size, which takes as long as a
# small step.
_SIZES = [1, 2, 3] + [size << n for n in range(24) for size in (4, 6)]


class Arrangement(NamedTuple):
    """How a model's tensors are arranged by sources and hypotheses.

    Attributes:
        repeat_state: `repeat_state(state, N)` gives each source N rows.
        select_state: `select_state(state, rows)` picks rows, each for one of the same
            source.
        select_memory: `select_memory(memory, sources)` picks sources.
    """

    repeat_state: Callable[[Any, int], Any] = repeat_rows
    select_state: Callable[[Any, Any], Any] = gather_rows
    select_memory: Callable[[Any, Any], Any] = gather_rows

    @classmethod
    def of(cls, model: Any) -> "Arrangement":
        """That of a model of the contract."""
        return cls(model.repeat_state, model.select_state, model.select_memory)


class Writer(Protocol):
    """What a search does with the logits of a step.

    The loop variables are a dictionary of `position`, a scalar; `token_ids`, the
    step's next ones; `done`; `state`; and what the writer likes. All but `position`
    have as many rows as there are sources, or a multiple, those of a source adjacent.
    """

    def initial_carry(self, state: Any) -> dict:
        """The loop variables before the first step, of the model's first state."""

    def advance(self, carry: dict, logits: Any, state: Any, attention: Any) -> dict:
        """The loop variables after a step, from what the step returned."""


def run_loop(
    make_writer: Callable[[SearchInputs, Any, Any], Writer],
    step: Step,
    memory: Any,
    state: Any,
    options: SearchOptions,
    inputs: SearchInputs,
    select_memory: Callable[[Any, Any], Any],
) -> dict:
    """Steps until all sources are done, or at the limit.

    Where shapes may change, a source that is done is soon computed no more: the loop
    is one of phases, each of fewer sources than the one before.

    Args:
        make_writer: `make_writer(inputs, memory, batch)`, for the sources of a phase.
        step: As for `beam_search`.
        memory: What the step reads, B rows.
        state: The model's first state, B rows.
        options: Constants of the search.
        inputs: A row for each source.
        select_memory: `select_memory(memory, sources)` picks sources.

    Returns:
        The loop variables of all sources, each source's as they were when it was
        done; without the state.
    """
    batch = batch_size(memory, state)
    carry = make_writer(inputs, memory, batch).initial_carry(state)
    phase = {
        "sources": ops.arange(batch, dtype="int32"),
        "memory": memory,
        "inputs": {k: v for k, v in inputs._asdict().items() if v is not None},
        "carry": carry,
    }

    def steps(phase: dict, enough: Any) -> dict:
        """The phase's loop, until no more than `enough` sources live."""
        memory, sources = phase["memory"], phase["sources"]
        inputs = SearchInputs(**phase["inputs"])
        writer = make_writer(inputs, memory, ops.shape(sources)[0])

        def unfinished(carry: dict) -> Any:
            return ops.logical_and(
                carry["position"] < options.max_length,
                _num_living(carry, sources) > enough,
            )

        def advance(carry: dict) -> tuple[dict]:
            logits, state, attention = step(carry["token_ids"], memory, carry["state"])
            return (writer.advance(carry, logits, state, attention),)

        (carry,) = ops.while_loop(unfinished, advance, (phase["carry"],))
        return carry

    if not grows():
        return _without_state(steps(phase, 0))
    return _in_phases(phase, steps, options.max_length, select_memory)


def _in_phases(
    phase: dict,
    steps: Callable[[dict, Any], dict],
    max_length: int,
    select_memory: Callable[[Any, Any], Any],
) -> dict:
    """Runs `steps` over fewer and fewer sources."""
    batch = ops.shape(phase["sources"])[0]
    found = _without_state(phase["carry"])

    def unfinished(phase: dict, found: dict) -> Any:
        return ops.logical_and(
            phase["carry"]["position"] < max_length, ops.shape(phase["sources"])[0] > 0
        )

    def shrink(phase: dict, found: dict) -> tuple[dict, dict]:
        sources = phase["sources"]
        count = ops.shape(sources)[0]
        sizes = ops.convert_to_tensor(_SIZES, dtype="int32")
        carry = steps(phase, ops.max(ops.where(sizes < count, sizes, 0)))
        found = _with_rows(found, _without_state(carry), sources, batch)
        living = _living(carry, sources)
        num_living = ops.sum(ops.cast(living, "int32"))
        # No more of those that are done than make up a size of the list.
        size = ops.min(ops.where(sizes >= num_living, sizes, count))
        over = ops.logical_or(num_living == 0, carry["position"] >= max_length)
        size = ops.where(over, 0, size)
        kept = ops.argsort(ops.cast(ops.logical_not(living), "int32"))[:size]
        kept = ops.sort(ops.cast(kept, "int32"))
        phase = {
            "sources": take_rows(sources, kept),
            "memory": select_memory(phase["memory"], kept),
            "inputs": gather_rows(phase["inputs"], kept),
            "carry": _rows_of(carry, kept, count),
        }
        return phase, found

    _, found = ops.while_loop(unfinished, shrink, (phase, found))
    return found


def _without_state(carry: dict) -> dict:
    return {name: value for name, value in carry.items() if name != "state"}


def _living(carry: dict, sources: Any) -> Any:
    """Which sources are not done, bool `(A,)`."""
    done = ops.reshape(carry["done"], (ops.shape(sources)[0], -1))
    return ops.logical_not(ops.all(done, axis=1))


def _num_living(carry: dict, sources: Any) -> Any:
    return ops.sum(ops.cast(_living(carry, sources), "int32"))


def _by_source(x: Any, batch: Any) -> Any:
    """`(batch * k, …)` as `(batch, k, …)`."""
    rows, *rest = ops.shape(x)
    return ops.reshape(x, (batch, rows // batch, *rest))


def _rows_of(tensors: Any, sources: Any, batch: Any) -> Any:
    """All rows of some of `batch` sources, of every tensor that is no scalar."""

    def picked(x: Any) -> Any:
        if len(x.shape) == 0:
            return x
        chosen = take_rows(_by_source(x, batch), sources)
        count, each, *rest = ops.shape(chosen)
        return ops.reshape(chosen, (count * each, *rest))

    return keras.tree.map_structure(picked, tensors)


def _with_rows(found: dict, new: dict, sources: Any, batch: Any) -> dict:
    """What was found of `batch` sources, with the rows of some of them new."""
    count = ops.shape(sources)[0]
    places = ops.expand_dims(sources, axis=1)

    def put(old: Any, x: Any) -> Any:
        if len(x.shape) == 0:
            return x
        updated = ops.scatter_update(
            _by_source(old, batch), places, _by_source(x, count)
        )
        return ops.reshape(updated, ops.shape(old))

    return keras.tree.map_structure(put, found, new)
