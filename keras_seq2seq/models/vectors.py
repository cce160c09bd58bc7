"""What the models over vectors are made of: stacks, the past, feeding back."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers import RecurrentLayer, attend, masked_softmax, scan_time


def dense(model, units, name, input_dim, **kwargs):
    """Returns a built `Dense` layer in the dtype policy of `model`."""
    layer = keras.layers.Dense(units, name=name, dtype=model.dtype_policy, **kwargs)
    layer.build((None, None, input_dim))
    return layer


def check_sizes(least, **sizes):
    """Raises a `ValueError` that names the first size below `least`."""
    for name, size in sizes.items():
        if size < least:
            raise ValueError(
                f"`{name}` must be at least {least}. Received: {name}={size}."
            )


def check_dropout(dropout):
    """Raises a `ValueError` unless `dropout` is a rate."""
    if not 0 <= dropout < 1:
        raise ValueError(
            f"`dropout` must be at least 0 and below 1. Received: dropout={dropout}."
        )


def check_future_dim(future, future_dim):
    """Raises a `ValueError` unless `future` has the model's channels, or is None."""
    width = None if future is None else future.shape[-1]
    if (width or 0) != future_dim:
        raise ValueError(
            f"`future` must have the model's future_dim={future_dim} channels. "
            f"Received: {width or 'none'}."
        )


def check_future_length(future, length):
    """Raises a `ValueError` if `future`, `(B, T, f)` or None, ends before `length`."""
    if future is not None and future.shape[1] < length:
        raise ValueError(
            "`future` must have as many steps as the output. Received: future with "
            f"{future.shape[1]} steps, an output of {length}."
        )


def check_choices(choices, arguments):
    """Raises a `ValueError` that names the first argument with an unknown value."""
    for name, known in choices.items():
        if arguments[name] not in known:
            raise ValueError(
                f"`{name}` must be one of {', '.join(map(repr, known))}. "
                f"Received: {name}={arguments[name]!r}."
            )


def real_mask(x, x_mask):
    """Returns `x_mask`, or for None a mask that is True everywhere, `(B, S)`."""
    if x_mask is None:
        return ops.ones(ops.shape(x)[:2], dtype="bool")
    return ops.cast(x_mask, "bool")


def feed_back(step, first, states, length, feedback=None):
    """Runs a network on its own outputs.

    `y_1 = step(x_1)`, then `y_t = step(feedback(y_(t-1)))`. The whole network is one
    step: a stack's output leaves the top layer before the bottom layer goes on.

    Args:
        step: Function of an input `(B, m)` and the list of states that returns the
            output `(B, n)` and the new states.
        first: The one input, `(B, m)`.
        states: List of tensors, each `(B, ...)`.
        length: Number of outputs `T`.
        feedback: Makes an input of an output; None if an output is one.

    Returns:
        The outputs, `(B, T, n)`, and the list of final states.
    """
    feedback = feedback or (lambda output: output)

    def advance(_, states):
        output, new_states = step(states[0], list(states[1:]))
        fed = ops.cast(feedback(output), first.dtype)
        return output, [fed, *new_states]

    clock = ops.zeros((ops.shape(first)[0], length, 1), dtype=first.dtype)
    outputs, final = scan_time(advance, clock, [first, *states])
    return outputs, final[1:]


def last_real(values, mask, count):
    """Returns the last `count` real vectors of each row.

    Args:
        values: `(B, S, n)`.
        mask: Bool, `(B, S)`, padding on the right.
        count: How many.

    Returns:
        float32, `(B, count, n)`, the latest one last; 0 where a row has fewer.
    """
    lengths = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
    positions = lengths - count + ops.expand_dims(ops.arange(count), 0)
    places = ops.expand_dims(ops.maximum(positions, 0), -1)
    found = ops.take_along_axis(ops.cast(values, "float32"), places, axis=1)
    return ops.where(ops.expand_dims(positions >= 0, -1), found, 0.0)


def at_positions(sequence, position):
    """Returns `sequence`, `(B, T, f)`, at `position`, `(B * N,)`: `(B * N, f)`."""
    places = ops.reshape(position, (ops.shape(sequence)[0], -1, 1))  # (B, N, 1)
    found = ops.take_along_axis(sequence, places, axis=1)
    return ops.reshape(found, (-1, sequence.shape[-1]))


def weighted_mean(values, mask, scores):
    """Returns the mean of the real vectors of `values`, weighted by a softmax.

    Args:
        values: `(B, S, D)`.
        mask: Bool, `(B, S)`.
        scores: `(B, S, 1)`, or one number for equal weights.
    """
    scores = ops.zeros_like(values[..., :1], dtype="float32") + scores
    weights = masked_softmax(ops.swapaxes(scores, 1, 2), ops.expand_dims(mask, 1))
    return ops.squeeze(ops.matmul(ops.cast(weights, values.dtype), values), 1)


def look(score, query, memory):
    """Attends with the rows of each source as one block of queries.

    Args:
        score: One of the scores of `layers.attention`.
        query: `(B * N, Q)`.
        memory: With `mask` `(B, S)`, `values` `(B, S, D)` and the score's `keys`.

    Returns:
        The context, `(B * N, D)`, and the attention weights, `(B * N, S)`.
    """
    blocks = ops.reshape(query, (ops.shape(memory["mask"])[0], -1, query.shape[-1]))
    context, weights = attend(
        score(blocks, memory["keys"]),
        memory["values"],
        ops.expand_dims(memory["mask"], 1),
    )
    context = ops.reshape(context, (-1, memory["values"].shape[-1]))
    return context, ops.reshape(weights, (-1, ops.shape(memory["mask"])[1]))


def run_until(step, first, state, length, stop_fn):
    """Runs a decoder on its own outputs until a predicate ends each row.

    Args:
        step: Function of what is read, `(B, n)`, and the state that returns the
            outputs, `(B, n)`, and the new state.
        first: What is read first, `(B, n)`.
        state: The state before.
        length: Most outputs of a row.
        stop_fn: Function of the outputs so far, `(B, t, n)`, that returns a bool for
            each row: whether the last of them ends the row. From then on the row
            repeats that output and is masked.

    Returns:
        The outputs, `(B, T, n)`, and `output_mask`, bool, `(B, T)`, True up to the
        output that ended a row, with it.
    """
    values, active = first, ops.ones_like(first[:, 0], dtype="bool")
    written: list[Any] = []
    masks: list[Any] = []
    for _ in range(length):
        outputs, state = step(values, state)
        values = ops.where(ops.expand_dims(active, -1), outputs, values)
        written.append(values)
        masks.append(active)
        stopped = ops.cast(stop_fn(ops.stack(written, axis=1)), "bool")
        active = ops.logical_and(active, ops.logical_not(stopped))
    return ops.stack(written, axis=1), ops.stack(masks, axis=1)


@keras.saving.register_keras_serializable("keras_seq2seq")
class RecurrentStack(keras.layers.Layer):
    """Recurrent layers on top of each other, each reading the whole one below.

    Args:
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the states, in each direction.
        num_layers: Layers of the stack.
        bidirectional: Whether each layer reads in both directions.
        reset_after: Of the GRU, see `layers.GRUCell`.
        dropout: Dropout between the layers; on vertical connections only (Zaremba
            et al., 2014).

    Call arguments:
        x: `(B, S, E)`.
        x_mask: Bool, `(B, S)`, True where `x` is real; padding on the right.
        training: Whether dropout is on.

    Returns:
        The top layer's outputs, `(B, S, D)`, without meaning at padded steps, and
        for each layer the list of its states after the last real step, `(B, D)`.

    Raises:
        ValueError: If a size is not positive or `cell` is unknown.
    """

    def __init__(
        self,
        cell: str,
        units: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        reset_after: bool = True,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_sizes(1, num_layers=num_layers)
        self._arguments: dict[str, Any] = {
            "cell": cell,
            "units": units,
            "num_layers": num_layers,
            "bidirectional": bidirectional,
            "reset_after": reset_after,
            "dropout": dropout,
        }
        self.output_dim = units * (2 if bidirectional else 1)
        self.dropout = keras.layers.Dropout(
            dropout, name="dropout", dtype=self.dtype_policy
        )
        self.recurrent_layers = [
            RecurrentLayer(
                cell,
                units,
                bidirectional,
                reset_after=reset_after,
                name=f"layer_{index}",
                dtype=self.dtype_policy,
            )
            for index in range(num_layers)
        ]

    def build(self, x_shape, x_mask_shape=None):
        width = x_shape[-1]
        for layer in self.recurrent_layers:
            layer.build((None, None, width))
            width = self.output_dim

    def call(self, x, x_mask, training=None):
        finals = []
        for index, layer in enumerate(self.recurrent_layers):
            if index:
                x = self.dropout(x, training=training)
            x, states = layer(x, x_mask)
            finals.append(states)
        return x, finals

    def get_config(self):
        return {**super().get_config(), **self._arguments}


@keras.saving.register_keras_serializable("keras_seq2seq")
class LinearPast(keras.layers.Layer):
    """The part of a forecast that is linear in the last target vectors.

    `y_(t-p) + [y_(t-q); ...; y_(t-1)] W`, with `p = residual_lag` and
    `q = linear_lags`. `W` starts at zero.

    Args:
        target_dim: Width `n` of the target vectors.
        residual_lag: Steps back to the vector that is added as it is; 0: none.
        linear_lags: Vectors that the linear map sees; 0: no map.

    Call arguments:
        recent: The last target vectors, `(B, R, n)`, `R` at least as many as either.

    Returns:
        float32, `(B, n)`.

    Reference:
        Lai et al., 2018, equation 8, with a full matrix for each lag.
    """

    def __init__(self, target_dim: int, residual_lag: int, linear_lags: int, **kwargs):
        super().__init__(**kwargs)
        self.target_dim = target_dim
        self.residual_lag = residual_lag
        self.linear_lags = linear_lags

    def build(self, recent_shape=None):
        self.kernel: Any = None
        if self.linear_lags:
            self.kernel = self.add_weight(
                name="kernel",
                shape=(self.linear_lags * self.target_dim, self.target_dim),
                initializer="zeros",
            )
        self.built = True

    def call(self, recent):
        recent = ops.cast(recent, "float32")
        total = ops.zeros_like(recent[:, 0])
        if self.residual_lag:
            total = total + recent[:, -self.residual_lag]
        if self.kernel is not None:
            window = recent[:, -self.linear_lags :]
            window = ops.reshape(window, (-1, self.linear_lags * self.target_dim))
            kernel = ops.cast(self.kernel, "float32")
            total = total + ops.matmul(window, kernel)
        return total

    def compute_output_shape(self, recent_shape):
        return (recent_shape[0], self.target_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "target_dim": self.target_dim,
            "residual_lag": self.residual_lag,
            "linear_lags": self.linear_lags,
        }
