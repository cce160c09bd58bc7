"""The decoder of the recurrent models: cells, attention and readout, step by step.

Four variants differ in when the attention looks and what the readout sees; with
`s` the state, `e` the embedded token `y_{t-1}`, `c` the context:

===================  ==========================  ===================  =============
variant              query of the attention      joins the cell       readout sees
===================  ==========================  ===================  =============
bahdanau             `s_{t-1}`                   `c_t`                `s_t, c_t, e`
bahdanau_appendix    `s_{t-1}`                   `c_t`                `s_{t-1}, c_t, e`
groundhog            `s_t`                       `c_{t-1}`            `s_t, c_t, e`
luong                `s_t`                       `readout_{t-1}`      `c_t, s_t`
===================  ==========================  ===================  =============
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.attention import SCORES, attend, make_score
from keras_seq2seq.layers.local_window import LocalWindow
from keras_seq2seq.layers.recurrent import make_cell

VARIANTS = ("bahdanau", "bahdanau_appendix", "groundhog", "luong")


@keras.saving.register_keras_serializable("keras_seq2seq")
class Readout(keras.layers.Layer):
    """One dense layer between state, context and token, and the logits.

    Args:
        units: Width of the output.
        kind: `"tanh"`, or `"maxout"`: the larger of each pair of neighbours among
            twice as many sums.
        use_bias: Whether the sums have a bias.

    Call arguments:
        x: `(..., D)`.

    Returns:
        `(..., units)`.

    Raises:
        ValueError: If `kind` is unknown.

    Reference:
        Luong et al., 2015, equation 5; Goodfellow et al., 2013 (maxout); Cho et al.,
        2014, appendix; Bahdanau et al., 2015, section A.2.2.
    """

    def __init__(self, units: int, kind: str = "tanh", use_bias: bool = True, **kwargs):
        super().__init__(**kwargs)
        if kind not in ("tanh", "maxout"):
            raise ValueError(
                '`readout` must be "tanh" or "maxout" where there is a context, and '
                f'may be "state" where there is none. Received: readout={kind!r}.'
            )
        self.units = units
        self.kind = kind
        self.use_bias = use_bias
        self.sums = keras.layers.Dense(
            units if kind == "tanh" else 2 * units,
            activation="tanh" if kind == "tanh" else None,
            use_bias=use_bias,
            name="sums",
            dtype=self.dtype_policy,
        )

    def build(self, x_shape):
        self.sums.build(x_shape)
        self.built = True

    def call(self, x):
        x = self.sums(x)
        if self.kind == "tanh":
            return x
        pairs = ops.reshape(x, (*ops.shape(x)[:-1], self.units, 2))
        return ops.max(pairs, axis=-1)

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "kind": self.kind,
            "use_bias": self.use_bias,
        }


@keras.saving.register_keras_serializable("keras_seq2seq")
class RecurrentDecoder(keras.layers.Layer):
    """Advances a recurrent decoder by one step; see the module for its variants.

    What is fixed for a source stands in `memory`: `attention_mask` `(B, S)`,
    `values` and `keys` `(B, S, ·)` with attention; `context` `(B, C)` and `fed`
    `(B, G)` with a fixed context; and `states`, the first ones.

    Args:
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the states.
        num_layers: Cells on top of each other; the context joins the lowest.
        variant: One of `VARIANTS`.
        reset_after: Of the GRU.
        gate_context: Whether the reset gate of the GRU, coming after the recurrent
            product, gates the context too (Cho et al., 2014, appendix).
        attention: Name of the score, or `"none"`.
        attention_dim: Width of an additive score's hidden layer.
        window: Half-width of local attention, or None.
        window_center: `"monotonic"` or `"predictive"`.
        max_source_positions: Of the location score.
        fixed_context: Whether one context serves all steps.
        input_feeding: Whether the readout joins the next step's cell (`"luong"`).
        count_positions: Whether the state counts the steps.
        readout: `"state"` (none), `"tanh"` or `"maxout"`.
        readout_dim: Width of the readout.

    Raises:
        ValueError: If arguments contradict each other.

    Reference:
        Cho et al., 2014, appendix; Bahdanau et al., 2015, section A.2.2; Luong et
        al., 2015, section 3.
    """

    def __init__(
        self,
        cell: str,
        units: int,
        num_layers: int = 1,
        *,
        variant: str = "bahdanau",
        reset_after: bool = True,
        gate_context: bool = False,
        attention: str = "additive",
        attention_dim: int | None = None,
        window: int | None = None,
        window_center: str = "predictive",
        max_source_positions: int = 128,
        fixed_context: bool = False,
        input_feeding: bool = True,
        count_positions: bool = False,
        readout: str = "tanh",
        readout_dim: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._arguments: dict[str, Any] = {
            "cell": cell,
            "units": units,
            "num_layers": num_layers,
            "variant": variant,
            "reset_after": reset_after,
            "gate_context": gate_context,
            "attention": attention,
            "attention_dim": attention_dim,
            "window": window,
            "window_center": window_center,
            "max_source_positions": max_source_positions,
            "fixed_context": fixed_context,
            "input_feeding": input_feeding,
            "count_positions": count_positions,
            "readout": readout,
            "readout_dim": readout_dim,
        }
        self.units = units
        self.variant = variant
        self.attends = attention != "none"
        self.fixed_context = fixed_context
        self.gate_context = gate_context
        self.feeds_readout = self.attends and variant == "luong" and input_feeding
        self.has_context = self.attends or fixed_context
        # Luong's attention without input feeding may look after the loop, for all
        # steps at once.
        self.looks_after_loop = (
            self.attends and variant == "luong" and not input_feeding
        )
        self.count_positions = count_positions or (
            window is not None and window_center == "monotonic"
        )
        self._check()
        self._make_parts()

    def _check(self):
        given = self._arguments
        if given["attention"] not in ("none", *SCORES):
            raise ValueError(
                f"`attention` must be one of {', '.join(map(repr, ('none', *SCORES)))}"
                f". Received: attention={given['attention']!r}."
            )
        if self.variant not in VARIANTS:
            raise ValueError(
                f"`decoder` must be one of {', '.join(map(repr, VARIANTS))}. "
                f"Received: decoder={self.variant!r}."
            )
        if self.fixed_context and (self.attends or self.variant == "luong"):
            raise ValueError(
                "A fixed context replaces attention: it needs attention='none' and "
                "a decoder variant other than 'luong'. Received: "
                f"attention={given['attention']!r}, decoder={self.variant!r}."
            )
        if self.gate_context and (given["cell"] != "gru" or not self.has_context):
            raise ValueError(
                "`gate_context` needs cell='gru' and a context. Received: "
                f"cell={given['cell']!r}, attention={given['attention']!r}, "
                f"fixed context: {self.fixed_context}."
            )
        if given["window"] is not None and not self.attends:
            raise ValueError(
                "`window` needs attention. Received: "
                f"window={given['window']}, attention='none'."
            )

    def _make_parts(self):
        given, policy = self._arguments, self.dtype_policy
        self.cells = [
            make_cell(
                given["cell"],
                self.units,
                # The reset gate reaches the context only after the product.
                reset_after=given["reset_after"] or (self.gate_context and not index),
                name=f"cell_{index}",
                dtype=policy,
            )
            for index in range(given["num_layers"])
        ]
        self.feedback: Any = None
        if self.has_context and (self.variant != "luong" or self.feeds_readout):
            self.feedback = keras.layers.Dense(
                self.cells[0].num_gates * self.units,
                use_bias=False,
                name="feedback",
                dtype=policy,
            )
        self.score: Any = None
        self.window: Any = None
        if self.attends:
            self.score = make_score(
                given["attention"],
                given["attention_dim"] or self.units,
                max_positions=given["max_source_positions"],
                name="score",
                dtype=policy,
            )
        if given["window"] is not None:
            self.window = LocalWindow(
                given["window"], given["window_center"], name="window", dtype=policy
            )
        self.readout: Any = None
        if given["readout"] != "state" or self.has_context:
            self.readout = Readout(
                given["readout_dim"] or self.units,
                given["readout"],
                use_bias=self.variant != "luong" or not self.attends,
                name="readout",
                dtype=policy,
            )

    @property
    def output_dim(self) -> int:
        """Width of what `finish` returns."""
        return self.units if self.readout is None else self.readout.units

    def build(self, input_dim: int, context_dim: int):
        """Creates the weights.

        Args:
            input_dim: Width of the embedded tokens.
            context_dim: Width of the memory's values, or of the fixed context.
        """
        for index, cell in enumerate(self.cells):
            cell.build((None, None, self.units if index else input_dim))
        fed = self.output_dim if self.variant == "luong" else context_dim
        if self.feedback is not None:
            self.feedback.build((None, fed))
        if self.score is not None:
            self.score.build((None, None, self.units), (None, None, context_dim))
            self.score.built = True
        if self.window is not None:
            self.window.build((None, None, self.units))
        if self.readout is not None:
            width = self.units + (context_dim if self.has_context else 0)
            width += 0 if self.attends and self.variant == "luong" else input_dim
            self.readout.build((None, width))
        self.context_dim = context_dim
        self.built = True

    def initial_state(self, memory):
        """Returns the state before the first step, `B` rows."""
        state = {"cells": memory["states"]}
        hidden = memory["states"][0][0]
        rows = ops.shape(hidden)[0]
        if self.feeds_readout:
            state["readout"] = ops.zeros((rows, self.output_dim), dtype=hidden.dtype)
        if self.attends and self.variant == "groundhog":
            state["context"] = ops.zeros((rows, self.context_dim), dtype=hidden.dtype)
        if self.count_positions:
            state["position"] = ops.zeros((rows,), dtype="int32")
        return state

    def look(self, query, memory, positions=None):
        """Attends with several queries of each source.

        Args:
            query: `(B, Q, units)`.
            memory: What the model's `encode` returned.
            positions: Target positions from 0, `(B, Q)`, for a monotonic window.

        Returns:
            The context, `(B, Q, D)`, and the weights, `(B, Q, S)`.
        """
        mask = ops.expand_dims(memory["attention_mask"], 1)  # (B, 1, S)
        factor = None
        if self.window is not None:
            near, factor = self.window(query, memory["attention_mask"], positions)
            mask = ops.logical_and(mask, near)
        scores = self.score(query, memory["keys"])
        return attend(scores, memory["values"], mask, factor=factor)

    def _look_by_row(self, query, memory, state):
        """The same for one query of each hypothesis, `(B * N, units)`."""
        batch = ops.shape(memory["attention_mask"])[0]
        rows, length = ops.shape(query)[0], ops.shape(memory["attention_mask"])[1]
        # The hypotheses of one source are one block of queries.
        block = ops.reshape(query, (batch, -1, self.units))  # (B, N, units)
        positions = state.get("position")
        if positions is not None:
            positions = ops.reshape(positions, (batch, -1))  # (B, N)
        context, weights = self.look(block, memory, positions)
        context = ops.reshape(context, (rows, self.context_dim))  # (B*N, D)
        return context, ops.reshape(weights, (rows, length))

    def advance(self, projected, memory, state, masks=()):
        """Runs one step of the cells, and of an attention that takes part in it.

        Args:
            projected: The input product of the lowest cell, `(B * N, G)`.
            memory: What the model's `encode` returned.
            state: What `initial_state` or `advance` returned.
            masks: Dropout masks between the layers, `(B * N, units)` each; none
                outside training.

        Returns:
            What `finish` takes, `(B * N, ·)`; the new state; and the attention
            weights, `(B * N, S)`, or None.
        """
        previous = state["cells"][-1][0]
        before = self.attends and self.variant.startswith("bahdanau")
        context, weights = (
            self._look_by_row(previous, memory, state) if before else (None, None)
        )
        projected, gated = self._feed(projected, memory, state, context)
        cells = self._run_cells(projected, gated, state["cells"], masks)
        current = cells[-1][0]
        new_state = {"cells": cells}
        if self.count_positions:
            new_state["position"] = state["position"] + 1
        if self.attends and not before and not self.looks_after_loop:
            context, weights = self._look_by_row(current, memory, state)
        if self.fixed_context:
            context = _spread(memory["context"], ops.shape(current)[0])
        if "context" in state:
            new_state["context"] = context
        output = previous if self.variant == "bahdanau_appendix" else current
        if self.feeds_readout:
            output = self.readout(ops.concatenate([context, output], axis=-1))
            new_state["readout"] = output
        elif context is not None:
            output = ops.concatenate([output, context], axis=-1)
        return output, new_state, weights

    def _feed(self, projected, memory, state, context):
        """Adds what joins the lowest cell; returns also what its reset gate gates."""
        if self.feedback is None:
            return projected, None
        if self.fixed_context:
            fed = _spread(memory["fed"], ops.shape(projected)[0])
        elif self.feeds_readout:
            fed = self.feedback(state["readout"])
        else:
            fed = self.feedback(state.get("context", context))
        if not self.gate_context:
            return projected + fed, None
        update, reset, candidate = ops.split(fed, 3, axis=-1)
        gates = ops.concatenate([update, reset, ops.zeros_like(candidate)], axis=-1)
        return projected + gates, candidate

    def _run_cells(self, projected, gated, states, masks):
        new_states: list[list[Any]] = []
        for index, (cell, old) in enumerate(zip(self.cells, states, strict=True)):
            if index:
                x = new_states[-1][0]
                x = x * masks[index - 1] if masks else x
                projected = cell.project_inputs(x)
            if gated is not None and not index:
                new_states.append(cell(projected, old, gated=gated))
            else:
                new_states.append(cell(projected, old))
        return new_states

    def finish(self, output, embedded, memory, positions=None):
        """Turns what `advance` returned into what the logits come from.

        Args:
            output: Of all steps of each source, or of its hypotheses, `(B, Q, ·)`.
            embedded: The embedded tokens of the same steps, `(B, Q, E)`.
            memory: What the model's `encode` returned.
            positions: Target positions from 0, `(B, Q)`, for a monotonic window.

        Returns:
            `(B, Q, output_dim)`, and the attention weights `(B, Q, S)` where the
            attention looks only here, else None.
        """
        weights = None
        if self.looks_after_loop:
            context, weights = self.look(output, memory, positions)
            output = self.readout(ops.concatenate([context, output], axis=-1))
        elif self.readout is not None and not self.feeds_readout:
            output = self.readout(ops.concatenate([output, embedded], axis=-1))
        return output, weights

    def get_config(self):
        return {**super().get_config(), **self._arguments}


def _spread(x, rows):
    """Gives each of the `rows / B` hypotheses of a source its row of `x` `(B, D)`."""
    batch, width = ops.shape(x)[0], x.shape[-1]
    copies = ops.broadcast_to(
        ops.expand_dims(x, 1), (batch, rows // batch, width)
    )  # (B, N, D)
    return ops.reshape(copies, (rows, width))
