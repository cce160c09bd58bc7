"""Recurrent cells, the loop that runs them, and the layer that masks and reverses.

A cell splits its work in two: `project_inputs` multiplies a whole sequence by the
input weights in one product, and the call advances the states by one step.
"""

from __future__ import annotations

import keras
from keras import ops
from keras.src import backend as keras_backend

from keras_seq2seq.buffers import slices, write_at
from keras_seq2seq.gathers import take_rows


def scan_time(step, inputs, states, *, layers=(), mask=None, reverse=False):
    """Runs `step` along axis 1, carrying `states`.

    Args:
        step: Function of the inputs of one step, `(B, D)`, and the list of
            states, that returns the output of the step, `(B, Y)`, and the new
            states. It may use tensors from around it.
        inputs: `(B, T, D)`; or, where `T` is known beforehand, a tuple of such.
        states: List of tensors, each `(B, ...)`.
        layers: Layers that `step` calls: all whose weights it reads.
        mask: Bool, `(B, T)`; where it is False the states stay as they are and
            the output of the step has no meaning.
        reverse: Whether to run from the last step to the first. Outputs stay in
            the order of `inputs`. With padding on the right the states then
            reach the last real token untouched.

    Returns:
        The outputs, `(B, T, Y)`, and the list of final states.
    """
    # keras.ops.scan cannot be differentiated under XLA on TensorFlow (its loop has
    # no bound), so the loop behind keras.layers.RNN is used directly.
    # Weights are read before it: TensorFlow would keep what a loop reads for the
    # gradient, with XLA a copy of every weight for each step.
    values = [
        (weight, ops.copy(weight)) for layer in layers for weight in layer.weights
    ]

    def run(inputs, states):
        if not values:
            return step(inputs, list(states))
        with keras.StatelessScope(values, initialize_variables=False):
            return step(inputs, list(states))

    if slices():
        return _scan_in_place(run, inputs, states, mask=mask, reverse=reverse)
    _, outputs, states = keras_backend.rnn(
        run,
        inputs,
        list(states),
        go_backwards=reverse,
        mask=None if mask is None else ops.expand_dims(mask, -1),
        input_length=keras.tree.flatten(inputs)[0].shape[1],
    )
    if reverse:
        outputs = ops.flip(outputs, axis=1)
    return outputs, list(states)


def _scan_in_place(step, inputs, states, *, mask, reverse):
    """The same in a buffer for the outputs: LiteRT has no growing lists of tensors."""
    length = ops.shape(keras.tree.flatten(inputs)[0])[1]

    def inputs_at(position):
        return keras.tree.map_structure(
            lambda x: take_rows(x, position, axis=1), inputs
        )

    def advance(count, outputs, *states):
        position = length - 1 - count if reverse else count
        output, new_states = step(inputs_at(position), list(states))
        if mask is not None:
            real = ops.expand_dims(take_rows(mask, position, axis=1), 1)  # (B, 1)
            new_states = [
                ops.where(real, new, old)
                for new, old in zip(new_states, states, strict=True)
            ]
        outputs = write_at(outputs, position, ops.expand_dims(output, 1), axis=1)
        return count + 1, outputs, *new_states

    # Only its shape and type are used, so that it is not computed.
    like, _ = step(inputs_at(0), list(states))
    rows = ops.shape(like)[0]
    outputs = ops.zeros((rows, length, like.shape[-1]), dtype=like.dtype)
    count = ops.zeros((), dtype="int32")
    _, outputs, *states = ops.while_loop(
        lambda count, *_: count < length, advance, (count, outputs, *states)
    )
    return outputs, states


class _Cell(keras.layers.Layer):
    """What the cells share; `num_gates` and `num_states` tell them apart."""

    num_gates = 1
    num_states = 1

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        if units < 1:
            raise ValueError(f"`units` must be positive. Received: units={units}.")
        self.units = units
        self.input_projection = keras.layers.Dense(
            self.num_gates * units,
            name="input_projection",
            bias_initializer=self._bias,
            dtype=self.dtype_policy,
        )

    def _bias(self, shape, dtype=None):
        return ops.zeros(shape, dtype=dtype)

    def build(self, input_shape):
        """Creates the weights for inputs of `(B, T, E)`."""
        self.input_projection.build(input_shape)
        self.recurrent_kernel = self._recurrent_weight("recurrent_kernel")
        self.built = True

    def _recurrent_weight(self, name, num_gates=None):
        return self.add_weight(
            name=name,
            shape=(self.units, (num_gates or self.num_gates) * self.units),
            initializer="orthogonal",
        )

    def project_inputs(self, x):
        """Returns `x W + b` for a whole sequence, `(B, T, G)`."""
        return self.input_projection(x)

    def zero_states(self, rows):
        """Returns the states before the first step, all zeros."""
        return [
            ops.zeros((rows, self.units), dtype=self.compute_dtype)
            for _ in range(self.num_states)
        ]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("keras_seq2seq")
class SimpleCell(_Cell):
    """The plain recurrent cell: `h' = tanh(x W + h U + b)`.

    Args:
        units: Width of the state.

    Call arguments:
        projected: One step of `project_inputs`, `(B, units)`.
        states: `[h]`, `(B, units)`.

    Returns:
        The new states.

    Raises:
        ValueError: If `units` is not positive.
    """

    def call(self, projected, states):
        return [ops.tanh(projected + ops.matmul(states[0], self.recurrent_kernel))]


@keras.saving.register_keras_serializable("keras_seq2seq")
class GRUCell(_Cell):
    """Gated recurrent unit; gates in the order update, reset, candidate.

    `h' = z * h + (1 - z) * candidate`. With `reset_after` the candidate is
    `tanh(x W + r * (h U + b))` as in `keras.layers.GRU`; without it
    `tanh(x W + (r * h) U)` as in the papers. They are different functions.

    Args:
        units: Width of the state.
        reset_after: Whether the reset gate comes after the recurrent product.

    Call arguments:
        projected: One step of `project_inputs`, `(B, 3 * units)`.
        states: `[h]`, `(B, units)`.
        gated: Optional, `(B, units)`: joins the recurrent product of the candidate
            inside the reset gate; needs `reset_after`. It is how the decoder of
            Cho et al., 2014 (appendix) reads its context.

    Returns:
        The new states.

    Raises:
        ValueError: If `units` is not positive.

    Reference:
        Cho et al., 2014, section 2.3.
    """

    num_gates = 3

    def __init__(self, units: int, reset_after: bool = True, **kwargs):
        super().__init__(units, **kwargs)
        self.reset_after = reset_after

    def build(self, input_shape):
        if self.reset_after:
            super().build(input_shape)
            self.recurrent_bias = self.add_weight(
                name="recurrent_bias", shape=(3 * self.units,), initializer="zeros"
            )
            return
        # Two products, two weights: a slice of one would cost a whole weight of zeros
        # at each step of the gradient.
        self.input_projection.build(input_shape)
        self.recurrent_kernel = self._recurrent_weight("recurrent_kernel", 2)
        self.candidate_kernel = self._recurrent_weight("candidate_kernel", 1)
        self.built = True

    def call(self, projected, states, gated=None):
        hidden = states[0]
        update_x, reset_x, candidate_x = ops.split(projected, 3, axis=-1)
        if self.reset_after:
            inner = ops.matmul(hidden, self.recurrent_kernel) + self.recurrent_bias
            update_h, reset_h, candidate_h = ops.split(inner, 3, axis=-1)
            reset = ops.sigmoid(reset_x + reset_h)
            if gated is not None:
                candidate_h = candidate_h + gated
            candidate = ops.tanh(candidate_x + reset * candidate_h)
        else:
            gates = ops.matmul(hidden, self.recurrent_kernel)
            update_h, reset_h = ops.split(gates, 2, axis=-1)
            reset = ops.sigmoid(reset_x + reset_h)
            candidate = ops.tanh(
                candidate_x + ops.matmul(reset * hidden, self.candidate_kernel)
            )
        update = ops.sigmoid(update_x + update_h)
        return [update * hidden + (1 - update) * candidate]

    def get_config(self):
        return {**super().get_config(), "reset_after": self.reset_after}


@keras.saving.register_keras_serializable("keras_seq2seq")
class LSTMCell(_Cell):
    """Long short-term memory; gates in the order input, forget, cell, output.

    The forget gate's bias starts at 1, as in `keras.layers.LSTM`.

    Args:
        units: Width of the state.

    Call arguments:
        projected: One step of `project_inputs`, `(B, 4 * units)`.
        states: `[h, c]`, each `(B, units)`.

    Returns:
        The new states.

    Raises:
        ValueError: If `units` is not positive.

    Reference:
        Hochreiter & Schmidhuber, 1997; Gers et al., 2000 (forget gate).
    """

    num_gates = 4
    num_states = 2

    def _bias(self, shape, dtype=None):
        zeros = ops.zeros((self.units,), dtype=dtype)
        return ops.concatenate([zeros, zeros + 1, zeros, zeros])

    def call(self, projected, states):
        hidden, cell = states
        gates = projected + ops.matmul(hidden, self.recurrent_kernel)
        into, forget, candidate, out = ops.split(gates, 4, axis=-1)
        cell = ops.sigmoid(forget) * cell + ops.sigmoid(into) * ops.tanh(candidate)
        return [ops.sigmoid(out) * ops.tanh(cell), cell]


def make_cell(cell: str, units: int, *, reset_after: bool = True, **kwargs):
    """Returns the cell named `"lstm"`, `"gru"` or `"simple"`.

    Args:
        cell: The name.
        units: Width of the state.
        reset_after: Of the GRU, see `GRUCell`; the others have no reset gate.
        **kwargs: Arguments of the layer: `name`, `dtype`.

    Raises:
        ValueError: If the name is unknown.
    """
    cells = {"lstm": LSTMCell, "gru": GRUCell, "simple": SimpleCell}
    if cell not in cells:
        raise ValueError(
            f"`cell` must be one of {', '.join(map(repr, cells))}. "
            f"Received: cell={cell!r}."
        )
    if cell == "gru":
        kwargs["reset_after"] = reset_after
    return cells[cell](units, **kwargs)


@keras.saving.register_keras_serializable("keras_seq2seq")
class RecurrentLayer(keras.layers.Layer):
    """Runs a cell over a sequence, forwards or in both directions.

    Padding is inert: at padded steps the states stay, so the final state is that
    of the last real token, and the backward direction starts there.

    Args:
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the state, in each direction.
        bidirectional: Whether to add a second cell that runs backwards.
        reset_after: Of the GRU, see `GRUCell`.

    Call arguments:
        x: `(B, S, E)`.
        x_mask: Bool, `(B, S)`, True where `x` is real.

    Returns:
        The outputs, `(B, S, units)` or, forward and backward side by side,
        `(B, S, 2 * units)`, and the list of final states, each as wide.

    Raises:
        ValueError: If `cell` is unknown or `units` is not positive.
    """

    def __init__(
        self,
        cell: str,
        units: int,
        bidirectional: bool = False,
        reset_after: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.cell = cell
        self.units = units
        self.bidirectional = bidirectional
        self.reset_after = reset_after
        self.forward_cell = self._make_cell("forward_cell")
        self.backward_cell = self._make_cell("backward_cell") if bidirectional else None

    def _make_cell(self, name):
        return make_cell(
            self.cell,
            self.units,
            reset_after=self.reset_after,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, x_shape, x_mask_shape=None):
        self.forward_cell.build(x_shape)
        if self.backward_cell is not None:
            self.backward_cell.build(x_shape)

    def call(self, x, x_mask):
        outputs, states = self._run(self.forward_cell, x, x_mask, reverse=False)
        if self.backward_cell is None:
            return outputs, states
        backward, backward_states = self._run(
            self.backward_cell, x, x_mask, reverse=True
        )
        outputs = ops.concatenate([outputs, backward], axis=-1)
        states = [
            ops.concatenate(pair, axis=-1)
            for pair in zip(states, backward_states, strict=True)
        ]
        return outputs, states

    def _run(self, cell, x, x_mask, reverse):
        def step(projected, states):
            states = cell(projected, states)
            return states[0], states

        return scan_time(
            step,
            cell.project_inputs(x),
            cell.zero_states(ops.shape(x)[0]),
            layers=[cell],
            mask=x_mask,
            reverse=reverse,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "cell": self.cell,
            "units": self.units,
            "bidirectional": self.bidirectional,
            "reset_after": self.reset_after,
        }
