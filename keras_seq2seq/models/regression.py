"""Encoder–decoder from sequences of vectors to sequences of vectors: forecasting."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers import scan_time
from keras_seq2seq.layers.attention import make_score
from keras_seq2seq.layers.recurrent import make_cell
from keras_seq2seq.models.vectors import (
    LinearPast,
    RecurrentStack,
    at_positions,
    check_choices,
    check_dropout,
    check_future_dim,
    check_future_length,
    check_sizes,
    dense,
    last_real,
    look,
    real_mask,
    run_until,
    weighted_mean,
)

_CHOICES = {
    "bridge": ("input", "state", "context"),
    "context": ("last", "mean", "pool"),
    "first_input": ("zeros", "last"),
    "feedback": ("target", "own"),
    "attention": ("none", "dot", "scaled_dot", "bilinear", "additive"),
}


@keras.saving.register_keras_serializable("keras_seq2seq")
class RegressionSeq2Seq(keras.Model):
    """Recurrent encoder–decoder over real vectors, with a linear output.

    The decoder reads its own last output as it is: nothing is sampled and nothing is
    embedded. There is no END either: an output has the length that is asked for, or
    ends where a predicate says so (`forecast`).

    `bridge` is how the encoder reaches the decoder:

    - `"input"`: the context is what the decoder reads first, from a zero state.
    - `"state"`: the decoder starts from the encoder's final states, unchanged if the
      layers match, through a dense layer with tanh otherwise.
    - `"context"`: the context joins every step's input, from a zero state:
      `s_t = z(s_(t-1), y_(t-1), c)`.

    Two options keep a linear part out of the recurrent network. `residual_lag = p`
    adds the target vector of `p` steps ago, observed or forecast, so that the network
    learns the difference: 1 for the last vector, a season's length for seasonal data.
    `linear_lags = q` adds a linear map of the last `q` target vectors, the
    autoregressive part of LSTNet. Both need the source to begin with the target's
    own past: its first `target_dim` channels.

    Args:
        source_dim: Width `m` of the source vectors.
        target_dim: Width `n` of the target vectors.
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the states, in each direction of the encoder too.
        reset_after: Of the GRU, see `layers.GRUCell`.
        num_encoder_layers: Encoder layers.
        num_decoder_layers: Decoder layers.
        bidirectional: Whether the encoder reads in both directions.
        bridge: `"input"`, `"state"` or `"context"`, see above.
        context: What of the encoder's states makes the context: the `"last"` one,
            their `"mean"`, or a learned weighted mean (`"pool"`).
        first_input: What the decoder reads first: `"zeros"`, or the `"last"`
            observed target vector. With `bridge="input"` it reads the context.
        feedback: What the decoder reads in a call: the true `"target"` (teacher
            forcing), or its `"own"` outputs, as in a forecast.
        attention: `"none"`, `"dot"`, `"scaled_dot"`, `"bilinear"` or `"additive"`;
            the decoder's new state scores the encoder's outputs, as in Luong et al.
        future_dim: Width `f` of the inputs known for every target step (calendar).
        residual_lag: Steps back to the target vector that is added; 0: none.
        linear_lags: Target vectors that the linear part sees; 0: none.
        dropout: Dropout between layers and before the output map.

    Call arguments:
        inputs: `{"source": (B, S, m), "target": (B, T, n)}`, optionally
            `"source_mask"` `(B, S)`, bool, padding on the right, and with
            `future_dim` also `"future"` `(B, T, f)`. Of `"target"` only its length
            is used with `feedback="own"`.

    Returns:
        The outputs, float32, `(B, T, n)`.

    Raises:
        ValueError: If arguments contradict each other; the message says which.

    Example:
        ```
        model = RegressionSeq2Seq(1, 1, units=32, residual_lag=1)
        model.compile("adam", "mse")
        model.fit({"source": past, "target": future}, future)
        outputs, output_mask = model.forecast(past, 24)
        ```

    Reference:
        Cho et al., 2014; Sutskever et al., 2014, with vectors in place of tokens;
        Lai et al., 2018, equation 8 (the linear part).
    """

    def __init__(
        self,
        source_dim: int,
        target_dim: int,
        *,
        cell: str = "gru",
        units: int = 64,
        reset_after: bool = True,
        num_encoder_layers: int = 1,
        num_decoder_layers: int = 1,
        bidirectional: bool = False,
        bridge: str = "state",
        context: str = "last",
        first_input: str = "last",
        feedback: str = "own",
        attention: str = "none",
        future_dim: int = 0,
        residual_lag: int = 0,
        linear_lags: int = 0,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._arguments: dict[str, Any] = {
            "source_dim": source_dim,
            "target_dim": target_dim,
            "cell": cell,
            "units": units,
            "reset_after": reset_after,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "bidirectional": bidirectional,
            "bridge": bridge,
            "context": context,
            "first_input": first_input,
            "feedback": feedback,
            "attention": attention,
            "future_dim": future_dim,
            "residual_lag": residual_lag,
            "linear_lags": linear_lags,
            "dropout": dropout,
        }
        self.source_dim, self.target_dim = source_dim, target_dim
        self.units, self.future_dim = units, future_dim
        self.bridge, self.feedback = bridge, feedback
        self.num_recent = max(residual_lag, linear_lags)
        # On CPUs TensorFlow's XLA runs a loop of small steps slower than the graph.
        self.supports_jit = keras.backend.backend() != "tensorflow"
        self._check()
        self.vertical_dropout = keras.layers.Dropout(
            dropout, name="dropout", dtype=self.dtype_policy
        )
        self._make_encoder()
        self._make_decoder()
        self._make_output()
        self.built = True

    def _check(self):
        arguments = self._arguments
        check_choices(_CHOICES, arguments)
        sizes = ("source_dim", "target_dim", "num_encoder_layers", "num_decoder_layers")
        check_sizes(1, **{name: arguments[name] for name in sizes})
        check_dropout(arguments["dropout"])
        lags = ("future_dim", "residual_lag", "linear_lags")
        check_sizes(0, **{name: arguments[name] for name in lags})
        reads_past = self.num_recent or arguments["first_input"] == "last"
        if reads_past and self.source_dim < self.target_dim:
            raise ValueError(
                "The source must begin with the target's channels where the decoder "
                'reads observed target vectors; otherwise set first_input="zeros", '
                "residual_lag=0 and linear_lags=0. Received: source_dim="
                f"{self.source_dim}, target_dim={self.target_dim}."
            )

    def _make_encoder(self):
        arguments = self._arguments
        self.encoder = RecurrentStack(
            arguments["cell"],
            self.units,
            arguments["num_encoder_layers"],
            bidirectional=arguments["bidirectional"],
            reset_after=arguments["reset_after"],
            dropout=arguments["dropout"],
            name="encoder",
            dtype=self.dtype_policy,
        )
        self.encoder.build((None, None, self.source_dim))
        self.encoder.built = True
        self.memory_dim = self.encoder.output_dim
        self.pool_score: Any = None
        if self.bridge != "state" and arguments["context"] == "pool":
            self.pool_score = dense(
                self, 1, "pool_score", self.memory_dim, use_bias=False
            )

    def _make_decoder(self):
        arguments, units = self._arguments, self.units
        self.decoder_cells = []
        for index in range(arguments["num_decoder_layers"]):
            cell = make_cell(
                arguments["cell"],
                units,
                reset_after=arguments["reset_after"],
                name=f"decoder_{index}",
                dtype=self.dtype_policy,
            )
            cell.build(
                (None, None, units if index else self.target_dim + self.future_dim)
            )
            self.decoder_cells.append(cell)
        first = self.decoder_cells[0]
        self.context_projection: Any = None
        if self.bridge != "state":
            width = first.num_gates * units
            self.context_projection = dense(
                self, width, "context_projection", self.memory_dim, use_bias=False
            )
        # An LSTM's cell state is not bounded, so only hidden states pass a tanh.
        needed = self.bridge == "state" and arguments["bidirectional"]
        self.bridges = [
            dense(
                self,
                units,
                f"bridge_{layer}_{state}",
                self.memory_dim,
                activation="tanh" if state == 0 else None,
            )
            for layer in range(len(self.decoder_cells) if needed else 0)
            for state in range(first.num_states)
        ]

    def _make_output(self):
        arguments, units = self._arguments, self.units
        self.score: Any = None
        self.readout: Any = None
        if arguments["attention"] != "none":
            self.score = make_score(
                arguments["attention"], units, name="score", dtype=self.dtype_policy
            )
            self.score.build((None, None, units), (None, None, self.memory_dim))
            self.score.built = True
            self.readout = dense(
                self, units, "readout", units + self.memory_dim, activation="tanh"
            )
        self.output_map = dense(self, self.target_dim, "output_map", units)
        self.past: Any = None
        if self.num_recent:
            self.past = LinearPast(
                self.target_dim,
                arguments["residual_lag"],
                arguments["linear_lags"],
                name="past",
                dtype=self.dtype_policy,
            )
            self.past.build()

    def build(self, input_shape=None):
        """Does nothing: the constructor knows every size and makes the weights."""
        self.built = True

    def call(self, inputs, training=None):
        memory = self.encode(
            inputs["source"],
            source_mask=inputs.get("source_mask"),
            future=inputs.get("future"),
            training=training,
        )
        target = inputs["target"]
        values = target if self.feedback == "target" else None
        return self.decode(memory, target.shape[1], values, training=training)

    def compute_output_shape(self, input_shape):
        return (*input_shape["target"][:2], self.target_dim)

    def encode(self, source, *, source_mask=None, future=None, training=None):
        """Encodes a batch of sources.

        Args:
            source: `(B, S, m)`.
            source_mask: Bool, `(B, S)`, padding on the right; None: all is real.
            future: Inputs known for every target step, `(B, T, f)`; needed with
                `future_dim`.
            training: Whether dropout is on.

        Returns:
            `memory`: `mask` `(B, S)`; what the decoder reads `first`, `(B, n)`; its
            first `states`; and where the options need them `context`, the attention's
            `values` and `keys`, `future`, and the `recent` target vectors.

        Raises:
            ValueError: If `future` is missing or has another width.
        """
        check_future_dim(future, self.future_dim)
        mask = real_mask(source, source_mask)
        x = ops.cast(source, self.compute_dtype)
        x, finals = self.encoder(x, mask, training=training)
        memory = {"mask": mask, "states": self._bridge(finals, ops.shape(x)[0])}
        if self._arguments["first_input"] == "last":
            memory["first"] = last_real(source[..., : self.target_dim], mask, 1)[:, 0]
        else:
            memory["first"] = ops.zeros((ops.shape(x)[0], self.target_dim), "float32")
        if self.bridge != "state":
            memory["context"] = self._context(x, finals, mask)
        if self.score is not None:
            memory["values"] = x
            memory["keys"] = self.score.project_memory(x)
        if self.future_dim:
            memory["future"] = ops.cast(future, self.compute_dtype)
        if self.num_recent:
            past = source[..., : self.target_dim]
            memory["recent"] = last_real(past, mask, self.num_recent)
        return memory

    def _bridge(self, finals, rows):
        if self.bridge != "state":
            return [cell.zero_states(rows) for cell in self.decoder_cells]
        states = []
        for index, cell in enumerate(self.decoder_cells):
            final = finals[min(index, len(finals) - 1)]
            if self.bridges:
                start = index * cell.num_states
                layers = self.bridges[start : start + cell.num_states]
                final = [
                    layer(state) for layer, state in zip(layers, final, strict=True)
                ]
            states.append(final)
        return states

    def _context(self, outputs, finals, mask):
        """One vector of all encoder states, `(B, D)`."""
        if self._arguments["context"] == "last":
            return finals[-1][0]
        pooled = self.pool_score is not None
        return weighted_mean(outputs, mask, self.pool_score(outputs) if pooled else 0.0)

    def initial_state(self, memory, max_length: int | None = None):
        """Returns the state before the first step.

        `cells`, a list of `(B, units)` for each layer, `position` `(B,)`, and the
        `recent` target vectors where the options need them. `max_length` is not used.
        """
        state = {
            "cells": memory["states"],
            "position": ops.zeros_like(memory["mask"][:, 0], dtype="int32"),
        }
        if self.num_recent:
            state["recent"] = memory["recent"]
        return state

    def _project(self, values, memory, state):
        """The input product of the first cell, `(B*N, G)`."""
        is_first = ops.expand_dims(state["position"] == 0, -1)
        values = ops.cast(values, self.compute_dtype)
        if self.bridge == "input":
            values = ops.where(is_first, ops.zeros_like(values), values)
        if self.future_dim:
            now = at_positions(memory["future"], state["position"])  # (B*N, f)
            values = ops.concatenate([values, now], axis=-1)
        projected = self.decoder_cells[0].project_inputs(values)
        if self.bridge == "state":
            return projected
        context = self.context_projection(memory["context"])  # (B, G)
        blocks = ops.reshape(projected, (ops.shape(context)[0], -1, context.shape[-1]))
        context = ops.expand_dims(context, 1) + ops.zeros_like(blocks)
        context = ops.reshape(context, ops.shape(projected))  # (B*N, G)
        if self.bridge == "input":
            context = ops.where(is_first, context, ops.zeros_like(context))
        return projected + context

    def _advance(self, values, memory, state, masks):
        """One step; `masks` are dropout masks `(B*N, units)`, none outside training."""
        projected = self._project(values, memory, state)
        cells: list[list[Any]] = []
        for index, (cell, old) in enumerate(
            zip(self.decoder_cells, state["cells"], strict=True)
        ):
            if index:
                x = cells[-1][0]
                x = x * masks[index - 1] if masks else x
                projected = cell.project_inputs(x)
            cells.append(cell(projected, old))
        output, weights = cells[-1][0], None
        if self.score is not None:
            context, weights = look(self.score, output, memory)
            output = self.readout(ops.concatenate([context, output], axis=-1))
        output = output * masks[-1] if masks else output
        outputs = ops.cast(self.output_map(output), "float32")
        new_state = {"cells": cells, "position": state["position"] + 1}
        if self.num_recent:
            recent = self._remember(values, state)
            new_state["recent"] = recent
            outputs = outputs + self.past(recent)
        return outputs, new_state, weights

    def _remember(self, values, state):
        """The recent target vectors; those before the first step hold `values`."""
        values = ops.expand_dims(ops.cast(values, "float32"), 1)
        moved = ops.concatenate([state["recent"][:, 1:], values], axis=1)
        is_first = ops.reshape(state["position"] == 0, (-1, 1, 1))
        return ops.where(is_first, state["recent"], moved)

    def decode(self, memory, length, target=None, training=None):
        """Runs the decoder over a whole output.

        Args:
            memory: What `encode` returned.
            length: Number of steps `T`.
            target: What is read after each step, `(B, T, n)`; None: the outputs.
            training: Whether dropout is on.

        Returns:
            The outputs, float32, `(B, T, n)`.
        """
        check_future_length(memory.get("future"), length)
        rows = ops.shape(memory["mask"])[0]
        state = self.initial_state(memory)
        carried = {"state": state, "values": memory["first"]}
        count = len(self.decoder_cells)
        dropped = bool(training and self._arguments["dropout"])
        if dropped:
            # Drawn before the loop: some backends trace its body only once.
            ones = ops.ones((rows, length, count * self.units), self.compute_dtype)
            drawn = self.vertical_dropout(ones, training=True)
        else:
            drawn = ops.zeros((rows, length, 1), self.compute_dtype)
        # The loop reads the target of a step to feed it to the next one.
        fed = drawn if target is None else ops.cast(target, "float32")

        def step(inputs, states):
            drawn_now, fed_now = inputs
            now = keras.tree.pack_sequence_as(carried, states)
            masks = ops.split(drawn_now, count, axis=-1) if dropped else ()
            output, new_state, _ = self._advance(
                now["values"], memory, now["state"], masks
            )
            read = output if target is None else fed_now
            return output, keras.tree.flatten({"state": new_state, "values": read})

        outputs, _ = scan_time(step, (drawn, fed), keras.tree.flatten(carried))
        return outputs

    def step(self, values, memory, state):
        """Writes one more vector of every row.

        Args:
            values: What the decoder reads: `memory["first"]` at the first step, then
                the last target or output, `(B * N, n)`.
            memory: What `encode` returned, `B` rows.
            state: What `initial_state` or `step` returned, `B * N` rows.

        Returns:
            The outputs, float32, `(B * N, n)`; the new state; and the attention
            weights over the source, `(B * N, S)`, all 0 without attention.
        """
        outputs, state, weights = self._advance(values, memory, state, ())
        if weights is None:
            rows, length = ops.shape(values)[0], ops.shape(memory["mask"])[1]
            weights = ops.zeros((rows, length), dtype="float32")
        return outputs, state, weights

    def forecast(self, source, length, *, source_mask=None, future=None, stop_fn=None):
        """Writes outputs from the model's own outputs, whatever `feedback` says.

        Args:
            source: `(B, S, m)`.
            length: Most vectors of an output.
            source_mask: Bool, `(B, S)`.
            future: Inputs known for every target step, `(B, T, f)`.
            stop_fn: What ends an output, see `run_until`; None: its length alone.

        Returns:
            The outputs, float32, `(B, T, n)`, and `output_mask`, bool, `(B, T)`,
            True up to the vector that ended a row, with it.
        """
        check_sizes(1, length=length)
        check_future_length(future, length)
        memory = self.encode(source, source_mask=source_mask, future=future)
        if stop_fn is None:
            outputs = self.decode(memory, length)
            return outputs, ops.ones(ops.shape(outputs)[:2], dtype="bool")
        return run_until(
            lambda values, state: self.step(values, memory, state)[:2],
            memory["first"],
            self.initial_state(memory),
            length,
            stop_fn,
        )

    def get_config(self):
        return {**super().get_config(), **self._arguments}
