"""The plain recurrent networks over vectors: many to one, one to many, synced.

They read and write real vectors and are no encoder–decoders; that is
`keras_seq2seq.models.regression`, which puts a many-to-one network and a one-to-many
network back to back.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.recurrent import make_cell
from keras_seq2seq.models.vectors import (
    RecurrentStack,
    check_dropout,
    check_sizes,
    dense,
    feed_back,
    real_mask,
)


class _Recurrent(keras.Model):
    """What the three networks share: sizes, dropout between layers, the output map."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        cell: str = "gru",
        units: int = 64,
        num_layers: int = 1,
        reset_after: bool = True,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_sizes(1, input_dim=input_dim, output_dim=output_dim)
        check_sizes(1, num_layers=num_layers)
        check_dropout(dropout)
        self._arguments: dict[str, Any] = {
            "input_dim": input_dim,
            "output_dim": output_dim,
            "cell": cell,
            "units": units,
            "num_layers": num_layers,
            "reset_after": reset_after,
            "dropout": dropout,
        }
        # On CPUs TensorFlow's XLA runs a loop of small steps slower than the graph.
        self.supports_jit = keras.backend.backend() != "tensorflow"
        self.vertical_dropout = keras.layers.Dropout(
            dropout, name="dropout", dtype=self.dtype_policy
        )
        self._make_layers()
        self.output_map = dense(self, output_dim, "output_map", units)
        self.built = True

    def _make_layers(self):
        arguments = self._arguments
        names = ("cell", "units", "num_layers", "reset_after", "dropout")
        self.stack = RecurrentStack(
            **{name: arguments[name] for name in names},
            name="stack",
            dtype=self.dtype_policy,
        )
        self.stack.build((None, None, arguments["input_dim"]))
        self.stack.built = True

    def build(self, input_shape=None):
        """Does nothing: the constructor knows every size and makes the weights."""
        self.built = True

    def _run(self, inputs, training):
        """Runs the stack; returns its outputs, all final states and the mask."""
        mask = real_mask(inputs["source"], inputs.get("source_mask"))
        x = ops.cast(inputs["source"], self.compute_dtype)
        return *self.stack(x, mask, training=training), mask

    def _output(self, hidden, training=None):
        hidden = self.vertical_dropout(hidden, training=training)
        return ops.cast(self.output_map(hidden), "float32")

    def get_config(self):
        return {**super().get_config(), **self._arguments}


@keras.saving.register_keras_serializable("keras_seq2seq")
class ManyToOne(_Recurrent):
    """Reads a sequence of vectors, then writes one: `y = g(h_S)`.

    `h_S` is the top layer's state after the last *real* vector; the layers below pass
    on their whole sequence.

    Args:
        input_dim: Width `m` of the vectors that are read.
        output_dim: Width `n` of the vector that is written.
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the states.
        num_layers: Layers of the stack.
        reset_after: Of the GRU, see `layers.GRUCell`.
        dropout: Dropout between layers and before the output map; on vertical
            connections only (Zaremba et al., 2014).

    Call arguments:
        inputs: `{"source": (B, S, m)}` and, where rows are padded on the right,
            `"source_mask"`, bool, `(B, S)`, True where a vector is real.

    Returns:
        The output, float32, `(B, n)`.

    Raises:
        ValueError: If a size is not positive or `cell` is unknown.
    """

    def call(self, inputs, training=None):
        _, finals, _ = self._run(inputs, training)
        return self._output(finals[-1][0], training)

    def compute_output_shape(self, input_shape):
        return (input_shape["source"][0], self._arguments["output_dim"])


@keras.saving.register_keras_serializable("keras_seq2seq")
class ManyToMany(_Recurrent):
    """Writes one vector for each that it reads: `y_t = g(h_t)`.

    Args:
        input_dim: Width `m` of the vectors that are read.
        output_dim: Width `n` of the vectors that are written.
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the states.
        num_layers: Layers of the stack.
        reset_after: Of the GRU, see `layers.GRUCell`.
        dropout: Dropout between layers and before the output map.

    Call arguments:
        inputs: `{"source": (B, S, m)}` and optionally `"source_mask"`, `(B, S)`.

    Returns:
        The outputs, float32, `(B, S, n)`, all 0 where the source is padding.

    Raises:
        ValueError: If a size is not positive or `cell` is unknown.
    """

    def call(self, inputs, training=None):
        x, _, mask = self._run(inputs, training)
        outputs = self._output(x, training)
        # What a padded step of the loop put out has no meaning.
        return ops.where(ops.expand_dims(mask, -1), outputs, 0.0)

    def initial_state(self, batch_size):
        """Returns the states before the first vector, a list for each layer."""
        cells = [layer.forward_cell for layer in self.stack.recurrent_layers]
        return [cell.zero_states(batch_size) for cell in cells]

    def step(self, values, states):
        """Reads one vector, `(B, m)`; returns the output `(B, n)` and new states."""
        x, new_states = ops.cast(values, self.compute_dtype), []
        for layer, current in zip(self.stack.recurrent_layers, states, strict=True):
            cell = layer.forward_cell
            new_states.append(cell(cell.project_inputs(x), current))
            x = new_states[-1][0]
        return self._output(x), new_states

    def compute_output_shape(self, input_shape):
        return (*input_shape["source"][:2], self._arguments["output_dim"])


@keras.saving.register_keras_serializable("keras_seq2seq")
class OneToMany(_Recurrent):
    """Reads one vector, then writes a sequence by reading its own outputs.

    `h_1 = f(h_0, x_1)`, `y_1 = g(h_1)`; then `h_t = f(h_(t-1), phi(y_(t-1)))`,
    `y_t = g(h_t)`. `phi` is the identity where `m = n` and a learned linear map
    elsewhere. The input is read once, not at every step.

    Args:
        input_dim: Width `m` of the vector that is read.
        output_dim: Width `n` of the vectors that are written.
        length: Number of vectors that are written, unless the call says otherwise.
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the states.
        num_layers: Layers of the stack.
        reset_after: Of the GRU, see `layers.GRUCell`.
        dropout: Dropout before the output map and between layers, one mask for the
            whole sequence.

    Call arguments:
        inputs: `(B, m)`.
        length: Number of vectors to write.

    Returns:
        The outputs, float32, `(B, T, n)`.

    Raises:
        ValueError: If a size is not positive or `cell` is unknown.
    """

    def __init__(self, input_dim: int, output_dim: int, *, length: int = 1, **kwargs):
        check_sizes(1, length=length)
        super().__init__(input_dim, output_dim, **kwargs)
        self.length = length

    def _make_layers(self):
        arguments = self._arguments
        self.cells = []
        hidden = [arguments["units"]] * (arguments["num_layers"] - 1)
        for index, width in enumerate([arguments["input_dim"], *hidden]):
            cell = make_cell(
                arguments["cell"],
                arguments["units"],
                reset_after=arguments["reset_after"],
                name=f"cell_{index}",
                dtype=self.dtype_policy,
            )
            cell.build((None, None, width))
            self.cells.append(cell)
        sizes = arguments["input_dim"], arguments["output_dim"]
        self.feedback_map: Any = (
            None
            if sizes[0] == sizes[1]
            else dense(self, sizes[0], "feedback_map", sizes[1])
        )

    def initial_state(self, batch_size):
        """Returns the states before the first step, a list for each layer."""
        return [cell.zero_states(batch_size) for cell in self.cells]

    def call(self, inputs, length=None, training=None):
        length = self.length if length is None else length
        first = ops.cast(inputs, self.compute_dtype)
        states = self.initial_state(ops.shape(first)[0])
        # Drawn before the loop: some backends trace its body only once.
        ones = ops.ones((ops.shape(first)[0], self._arguments["units"]), first.dtype)
        masks = [self.vertical_dropout(ones, training=training) for _ in self.cells]

        def step(x, flat):
            current = keras.tree.pack_sequence_as(states, flat)
            new_states = []
            for cell, mask, old in zip(self.cells, masks, current, strict=True):
                new_states.append(cell(cell.project_inputs(x), old))
                x = new_states[-1][0] * mask
            output = ops.cast(self.output_map(x), "float32")
            return output, keras.tree.flatten(new_states)

        outputs, _ = feed_back(
            step, first, keras.tree.flatten(states), length, self._feedback
        )
        return outputs

    def _feedback(self, output):
        return output if self.feedback_map is None else self.feedback_map(output)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.length, self._arguments["output_dim"])

    def get_config(self):
        return {**super().get_config(), "length": self.length}
