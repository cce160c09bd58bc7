"""Tokens as they come: a search that hands out every step."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_seq2seq.decoding.generate import prepared
from keras_seq2seq.decoding.greedy import Rows, with_noise
from keras_seq2seq.decoding.options import SearchInputs
from keras_seq2seq.decoding.programs import program
from keras_seq2seq.decoding.search import batch_size

__all__ = ["StreamStep", "stream"]


class StreamStep(NamedTuple):
    """What one step wrote.

    Attributes:
        token_ids: The token of each row, int32 `(R,)`; PAD in rows that were done.
        log_probs: Its log-probability under the model, float32 `(R,)`; 0 there.
        done: Whether nothing more will come in the row, bool `(R,)`.
    """

    token_ids: Any
    log_probs: Any
    done: Any


def stream(model: Any, source_ids: Any, **options: Any) -> Iterator[StreamStep]:
    """Yields the tokens of a greedy search, or of samples, one step at a time.

    The tokens are those that `generate` returns for the same options. Encoder and step
    are compiled as one program each, for every shape of the sources.

    Args:
        model: A model of the four-call contract.
        source_ids: Sources, padded with PAD, int `(B, S)`, or `(B, U, S)` for a model
            that reads turns.
        **options: Fields of `SearchOptions` and `SearchInputs`; `num_beams` must be 1.

    Yields:
        The tokens of a step, R = B, or B * `n_best` samples.

    Raises:
        TypeError: If there is no such option.
        ValueError: If there is more than one beam, which could still change what it
            wrote; else as `generate`.
    """
    source_ids, constants, tensors, _ = prepared(model, source_ids, options)
    if constants.num_beams > 1:
        raise ValueError(
            "`num_beams` must be 1 to stream: beams may still change what they wrote. "
            f"Received: num_beams={constants.num_beams}."
        )

    def writer(tensors: dict, memory: Any) -> Rows:
        inputs = with_noise(SearchInputs(**tensors), constants)
        return Rows(constants, inputs, memory, batch_size(memory, None))

    def start(model: Any, source_ids: Any, tensors: dict) -> tuple[Any, dict]:
        memory = model.encode(source_ids)
        state = model.initial_state(memory, constants.max_length)
        return memory, writer(tensors, memory).initial_carry(state)

    def advance(model: Any, memory: Any, carry: dict, tensors: dict) -> dict:
        rows = writer(tensors, memory)
        logits, state, attention = model.step(
            carry["token_ids"], memory, carry["state"]
        )
        return rows.advance(carry, logits, state, attention)

    names = tuple(sorted(tensors))
    starting = program(model, ("start", constants, names), start)
    advancing = program(model, ("advance", constants, names), advance)
    memory, carry = starting(source_ids, tensors)
    done = np.asarray(carry["done"])
    for _ in range(constants.max_length):
        if done.all():
            return
        before = np.asarray(carry["log_probs"])
        carry = advancing(memory, carry, tensors)
        done = np.asarray(carry["done"])
        yield StreamStep(
            np.asarray(carry["token_ids"]),
            np.asarray(carry["log_probs"]) - before,
            done,
        )
