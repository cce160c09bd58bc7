"""How a recurrent decoder starts from the encoder, and what it keeps of it."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.recurrent import make_cell

BRIDGES = ("state", "backward", "context", "plain_context", "input")


@keras.saving.register_keras_serializable("keras_seq2seq")
class Bridge(keras.layers.Layer):
    """Turns the encoder's final states into the decoder's first ones.

    - `"state"`: layer by layer, unchanged; through a dense layer each for a
      bidirectional encoder. Decoder layers beyond the encoder's start from its top.
    - `"backward"`: from the backward states, which end at the first source token.
    - `"context"`: the summary `c = tanh(h V)` starts every state and is the context
      of every step; `"plain_context"`: the same with `c = h`.
    - `"input"`: states of zeros; the summary, projected, is the first input.

    Hidden states made by a dense layer pass a tanh; the cell states of an LSTM, which
    are not bounded, do not.

    Args:
        kind: One of `BRIDGES`.
        units: Width of the states on both sides.
        num_layers: Decoder layers.
        cell: `"lstm"`, `"gru"` or `"simple"`.
        bidirectional: Whether the encoder's states are two side by side.
        summary: `"last"`: `h` is the top layer's final state; `"mean"`: the mean of
            its outputs over real tokens.
        input_dim: Width of the decoder's inputs.

    Call arguments:
        finals: Final states of each encoder layer, lists of `(B, D)`.
        outputs: Of the top layer, `(B, S, D)`.
        outputs_mask: Bool, `(B, S)`.

    Returns:
        A dictionary: `states`, lists of `(B, units)` for each decoder layer; with a
        context that, `(B, C)`; for `"input"` the `first_input`, `(B, input_dim)`.

    Raises:
        ValueError: If `kind` or `summary` is unknown, or the encoder has no backward
            states.

    Reference:
        Cho et al., 2014, appendix ("context"); Sutskever et al., 2014 ("state");
        Bahdanau et al., 2015, section A.2.2 ("backward").
    """

    def __init__(
        self,
        kind: str,
        units: int,
        *,
        num_layers: int,
        cell: str,
        bidirectional: bool,
        summary: str,
        input_dim: int,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value, choices in (
            ("bridge", kind, BRIDGES),
            ("summary", summary, ("last", "mean")),
        ):
            if value not in choices:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(map(repr, choices))}. "
                    f"Received: {name}={value!r}."
                )
        if kind == "backward" and not bidirectional:
            raise ValueError(
                "bridge='backward' needs a bidirectional encoder. "
                "Received: bidirectional=False."
            )
        self._arguments: dict[str, Any] = {
            "kind": kind,
            "units": units,
            "num_layers": num_layers,
            "cell": cell,
            "bidirectional": bidirectional,
            "summary": summary,
            "input_dim": input_dim,
        }
        self.kind = kind
        self.units = units
        self.num_layers = num_layers
        self.encoder_dim = 2 * units if bidirectional else units
        self.num_states = make_cell(cell, units).num_states
        #: Width of the context that serves all steps; None without one.
        self.context_dim = {"context": units, "plain_context": self.encoder_dim}.get(
            kind
        )
        self._make_layers()

    def _dense(self, units, name, activation=None):
        return keras.layers.Dense(
            units, activation=activation, name=name, dtype=self.dtype_policy
        )

    def _make_layers(self):
        self.summary_layer: Any = None
        self.first_input: Any = None
        self.state_layers: list[list[Any]] = []
        if self.kind == "context":
            self.summary_layer = self._dense(self.units, "summary", "tanh")
        if self.kind == "input":
            self.first_input = self._dense(self._arguments["input_dim"], "first_input")
        elif self.kind != "state" or self._arguments["bidirectional"]:
            self.state_layers = [
                [
                    self._dense(
                        self.units,
                        f"state_{layer}_{state}",
                        activation=None if state else "tanh",
                    )
                    for state in range(self.num_states)
                ]
                for layer in range(self.num_layers)
            ]

    def build(self, *shapes):
        for layer in (self.summary_layer, self.first_input):
            if layer is not None:
                layer.build((None, self.encoder_dim))
        narrow = self.kind in ("context", "backward")
        for layers in self.state_layers:
            for layer in layers:
                layer.build((None, self.units if narrow else self.encoder_dim))
        self.built = True

    def call(self, finals, outputs, outputs_mask):
        if self.kind in ("state", "backward"):
            if self.kind == "backward":
                finals = [[state[:, self.units :] for state in of] for of in finals]
            last = len(finals) - 1
            starts = [finals[min(i, last)] for i in range(self.num_layers)]
            return {"states": self._states(starts)}
        summary = self._summary(finals, outputs, outputs_mask)
        if self.first_input is not None:
            zeros = ops.zeros_like(finals[0][0][:, : self.units])
            states = [[zeros] * self.num_states for _ in range(self.num_layers)]
            return {"states": states, "first_input": self.first_input(summary)}
        if self.summary_layer is not None:
            summary = self.summary_layer(summary)
        starts = [[summary] * self.num_states for _ in range(self.num_layers)]
        return {"states": self._states(starts), "context": summary}

    def _summary(self, finals, outputs, outputs_mask):
        if self._arguments["summary"] == "last":
            return finals[-1][0]
        real = ops.expand_dims(ops.cast(outputs_mask, outputs.dtype), -1)  # (B, S, 1)
        counts = ops.maximum(ops.sum(real, axis=1), 1)
        return ops.sum(outputs * real, axis=1) / counts

    def _states(self, starts):
        if not self.state_layers:
            return starts
        return [
            [layer(state) for layer, state in zip(layers, states, strict=True)]
            for layers, states in zip(self.state_layers, starts, strict=True)
        ]

    def get_config(self):
        return {**super().get_config(), **self._arguments}
