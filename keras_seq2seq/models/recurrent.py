"""Recurrent encoder–decoders, plain or with attention."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers import (
    AdditiveScore,
    BilinearScore,
    DotScore,
    RecurrentLayer,
    TokenEmbedding,
    attend,
    padding_mask,
    scan_time,
)
from keras_seq2seq.layers.recurrent import make_cell
from keras_seq2seq.models.base import Seq2Seq


@keras.saving.register_keras_serializable("keras_seq2seq")
class RecurrentSeq2Seq(Seq2Seq):
    """Recurrent encoder–decoder with an exchangeable attention.

    `attention` chooses how the decoder looks at the source:

    - `"none"`: only through its initial state (Sutskever et al., 2014).
    - `"additive"`: the *previous* decoder state scores the memory; the context
      enters the cell's gates and the readout (Bahdanau et al., 2015, main text).
    - `"dot"`, `"bilinear"`: the *current* decoder state scores the memory; context
      and state make the attentional vector `tanh(W [c; s])`, from which the logits
      come (Luong et al., 2015, equations 5 and 6). With `input_feeding` that vector
      also joins the next step's input (section 3.3).

    The decoder's layers start from the encoder's final states: the same layer's,
    unchanged, for a one-directional encoder of the same width; through a dense layer
    for a bidirectional one. Decoder layers beyond the encoder's start from its top.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.
        cell: `"lstm"`, `"gru"` or `"simple"`.
        units: Width of the states, in each direction of the encoder too.
        embedding_dim: Width of the token vectors.
        num_encoder_layers: Encoder layers.
        num_decoder_layers: Decoder layers.
        bidirectional: Whether the encoder reads in both directions.
        attention: `"none"`, `"dot"`, `"bilinear"` or `"additive"`.
        input_feeding: Whether the attentional vector joins the next input; used by
            `"dot"` and `"bilinear"`.
        reverse_source: Whether to read the source backwards; its last real token
            (END) stays last. Attention is reported in the original order.
        dropout: Dropout of token vectors, between layers and before the logits; on
            vertical connections only (Zaremba et al., 2014).
        share_embeddings: Whether source and target use one embedding table.
        tie_output: Whether the target embedding is also the output projection;
            needs `embedding_dim == units`.

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}`, int32, 0 is padding;
            `target_ids` is the decoder's input and starts with START.

    Returns:
        Logits, float32, `(B, T, V)`.

    Raises:
        ValueError: If arguments contradict each other; the message says which.

    Example:
        ```
        model = RecurrentSeq2Seq(8000, 8000, cell="gru", units=256,
                                 attention="additive")
        logits = model({"source_ids": source_ids, "target_ids": target_ids})
        ```

    Reference:
        Sutskever et al., 2014; Bahdanau et al., 2015; Luong et al., 2015.
    """

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        cell: str = "lstm",
        units: int = 256,
        embedding_dim: int = 256,
        num_encoder_layers: int = 1,
        num_decoder_layers: int = 1,
        bidirectional: bool = True,
        attention: str = "additive",
        input_feeding: bool = True,
        reverse_source: bool = False,
        dropout: float = 0.2,
        share_embeddings: bool = False,
        tie_output: bool = False,
        **kwargs,
    ):
        super().__init__(source_vocabulary_size, target_vocabulary_size, **kwargs)
        self._arguments: dict[str, Any] = {
            "cell": cell,
            "units": units,
            "embedding_dim": embedding_dim,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "bidirectional": bidirectional,
            "attention": attention,
            "input_feeding": input_feeding,
            "reverse_source": reverse_source,
            "dropout": dropout,
            "share_embeddings": share_embeddings,
            "tie_output": tie_output,
        }
        self.units = units
        self.attention = attention
        self.reverse_source = reverse_source
        # The two places where something of the last step enters the next one.
        self.feeds_context = attention == "additive"
        self.feeds_attentional = attention in ("dot", "bilinear") and input_feeding
        # On CPUs TensorFlow's XLA runs a loop of small steps slower than the plain
        # graph. `compile(jit_compile="auto")` asks this attribute; set it to True
        # before compiling with jit_compile=True.
        self.supports_jit = keras.backend.backend() != "tensorflow"
        self._check()
        self._make_embeddings()
        self._make_encoder()
        self._make_decoder()
        self.built = True

    def _check(self):
        arguments = self._arguments
        scores = ("none", "dot", "bilinear", "additive")
        if self.attention not in scores:
            raise ValueError(
                f"`attention` must be one of {', '.join(map(repr, scores))}. "
                f"Received: attention={self.attention!r}."
            )
        for name in ("num_encoder_layers", "num_decoder_layers", "embedding_dim"):
            if arguments[name] < 1:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={arguments[name]}."
                )
        if arguments["share_embeddings"]:
            self._check_one_vocabulary()
        if arguments["tie_output"] and arguments["embedding_dim"] != self.units:
            raise ValueError(
                "`tie_output` needs embedding_dim == units. Received: "
                f"embedding_dim={arguments['embedding_dim']}, units={self.units}."
            )

    def _dense(self, units, name, input_dim, **kwargs):
        layer = keras.layers.Dense(units, name=name, dtype=self.dtype_policy, **kwargs)
        layer.build((None, None, input_dim))
        return layer

    def _make_embeddings(self):
        arguments, policy = self._arguments, self.dtype_policy
        width = arguments["embedding_dim"]
        # Keras' own start (uniform within 0.05) leaves states, attention and tied
        # logits so small that Adam needs thousands of updates to find the source.
        start = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.target_embedding = TokenEmbedding(
            self.target_vocabulary_size,
            width,
            tie_weights=True,
            embeddings_initializer=start.clone(),
            name="target_embedding",
            dtype=policy,
        )
        self.target_embedding.build()
        if arguments["share_embeddings"]:
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = keras.layers.Embedding(
                self.source_vocabulary_size,
                width,
                embeddings_initializer=start.clone(),
                name="source_embedding",
                dtype=policy,
            )
            self.source_embedding.build()
        self.vertical_dropout = keras.layers.Dropout(
            arguments["dropout"], name="dropout", dtype=policy
        )

    def _make_encoder(self):
        arguments = self._arguments
        sides = 2 if arguments["bidirectional"] else 1
        self.memory_dim = sides * self.units
        self.encoder_layers = []
        width = arguments["embedding_dim"]
        for index in range(arguments["num_encoder_layers"]):
            layer = RecurrentLayer(
                arguments["cell"],
                self.units,
                arguments["bidirectional"],
                name=f"encoder_{index}",
                dtype=self.dtype_policy,
            )
            layer.build((None, None, width))
            self.encoder_layers.append(layer)
            width = self.memory_dim

    def _make_decoder(self):
        arguments = self._arguments
        units, count = self.units, arguments["num_decoder_layers"]
        self.decoder_cells = []
        for index in range(count):
            cell = make_cell(
                arguments["cell"],
                units,
                name=f"decoder_{index}",
                dtype=self.dtype_policy,
            )
            cell.build((None, None, units if index else arguments["embedding_dim"]))
            self.decoder_cells.append(cell)
        first = self.decoder_cells[0]
        fed = self.memory_dim if self.feeds_context else units
        self.feedback_projection: Any = (
            self._dense(
                first.num_gates * units, "feedback_projection", fed, use_bias=False
            )
            if self.feeds_context or self.feeds_attentional
            else None
        )
        # An LSTM's cell state is not bounded, so only hidden states pass a tanh.
        self.bridges = [
            self._dense(
                units,
                f"bridge_{layer}_{state}",
                self.memory_dim,
                activation="tanh" if state == 0 else None,
            )
            for layer in range(count if arguments["bidirectional"] else 0)
            for state in range(first.num_states)
        ]
        self._make_readout()

    def _make_readout(self):
        arguments, units = self._arguments, self.units
        self.score: Any = None
        self.readout: Any = None
        if self.attention != "none":
            self.score = {
                "dot": DotScore,
                "bilinear": BilinearScore,
                "additive": lambda **kw: AdditiveScore(units, **kw),
            }[self.attention](name="score", dtype=self.dtype_policy)
            self.score.build((None, None, units), (None, None, self.memory_dim))
            self.score.built = True
            width = units + self.memory_dim
            width += arguments["embedding_dim"] if self.feeds_context else 0
            self.readout = self._dense(
                units,
                "readout",
                width,
                activation="tanh",
                use_bias=self.feeds_context,
            )
        self.output_projection = (
            None
            if arguments["tie_output"]
            else self._dense(self.target_vocabulary_size, "output_projection", units)
        )

    def _reversal(self, source_ids, mask):
        """Positions that reverse the real tokens of each row, END staying last."""
        positions = ops.expand_dims(ops.arange(ops.shape(source_ids)[1]), 0)
        lengths = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
        return ops.where(positions < lengths - 1, lengths - 2 - positions, positions)

    def encode(self, source_ids, training=None):
        """Encodes a batch of sources.

        Args:
            source_ids: int32, `(B, S)`, 0 is padding.
            training: Whether dropout is on.

        Returns:
            `memory`: `mask` `(B, S)`, the encoder's `values` `(B, S, D)`, the `keys`
            of the attention, and the decoder's first `states`, a list of
            `(B, units)` for each layer.
        """
        mask = padding_mask(source_ids)
        order = None
        if self.reverse_source:
            order = self._reversal(source_ids, mask)
            source_ids = ops.take_along_axis(source_ids, order, axis=1)
        x = self.source_embedding(source_ids)
        finals = []
        for layer in self.encoder_layers:
            x = self.vertical_dropout(x, training=training)
            x, states = layer(x, mask)
            finals.append(states)
        memory = {"mask": mask, "states": self._bridge(finals)}
        if self.score is not None:
            if order is not None:  # a reversal undoes itself
                x = ops.take_along_axis(x, ops.expand_dims(order, -1), axis=1)
            memory["values"] = x
            memory["keys"] = self.score.project_memory(x)
        return memory

    def _bridge(self, finals):
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

    def initial_state(self, memory, max_length: int | None = None):
        """Returns the state before the first step.

        Args:
            memory: What `encode` returned.
            max_length: Not used: a recurrent state does not grow.

        Returns:
            `state`: `cells`, a list of `(B, units)` for each layer, and with input
            feeding the `attentional` vector, zeros, `(B, units)`.
        """
        state = {"cells": memory["states"]}
        if self.feeds_attentional:
            state["attentional"] = ops.zeros_like(memory["states"][0][0])
        return state

    def _look(self, query, memory):
        """Attends with the hypotheses of each source as one block of queries."""
        rows, batch = ops.shape(query)[0], ops.shape(memory["mask"])[0]
        query = ops.reshape(query, (batch, -1, self.units))  # (B, N, units)
        scores = self.score(query, memory["keys"])
        mask = ops.expand_dims(memory["mask"], 1)
        context, weights = attend(scores, memory["values"], mask)
        context = ops.reshape(context, (rows, self.memory_dim))  # (B*N, D)
        return context, ops.reshape(weights, (rows, ops.shape(memory["mask"])[1]))

    def _advance(self, projected, memory, state, masks):
        """One step: returns what the readout needs, the new state, the attention.

        Args:
            projected: The input product of the first cell, `(B * N, G)`.
            memory: What `encode` returned.
            state: What `initial_state` or `_advance` returned.
            masks: Dropout masks between the layers, `(B * N, units)` each; none
                outside training.
        """
        cells = state["cells"]
        context = weights = None
        if self.feeds_context:
            context, weights = self._look(cells[-1][0], memory)
            projected = projected + self.feedback_projection(context)
        elif self.feeds_attentional:
            projected = projected + self.feedback_projection(state["attentional"])
        new_cells: list[list[Any]] = []
        for index, (cell, states) in enumerate(
            zip(self.decoder_cells, cells, strict=True)
        ):
            if index:
                x = new_cells[-1][0]
                x = x * masks[index - 1] if masks else x
                projected = cell.project_inputs(x)
            new_cells.append(cell(projected, states))
        new_state = {"cells": new_cells}
        output = new_cells[-1][0]
        if self.feeds_context:
            output = ops.concatenate([output, context], axis=-1)
        elif self.score is not None:
            context, weights = self._look(output, memory)
            output = self.readout(ops.concatenate([context, output], axis=-1))
            if self.feeds_attentional:
                new_state["attentional"] = output
        return output, new_state, weights

    def _logits(self, output, embedded, training=None):
        if self.feeds_context:
            output = self.readout(ops.concatenate([output, embedded], axis=-1))
        output = self.vertical_dropout(output, training=training)
        if self.output_projection is None:
            logits = self.target_embedding(output, reverse=True)
        else:
            logits = self.output_projection(output)
        return ops.cast(logits, "float32")

    def decode(self, target_ids, memory, training=None):
        """Returns teacher-forced logits, `(B, T, V)`, for `target_ids` `(B, T)`."""
        embedded = self.vertical_dropout(
            self.target_embedding(target_ids), training=training
        )
        first = self.decoder_cells[0].project_inputs(embedded)  # (B, T, G)
        masks = self._dropout_masks(first, training)
        inputs = ops.concatenate([first, *masks], axis=-1)
        state = self.initial_state(memory)
        gates, units = first.shape[-1], self.units

        def step(inputs, states):
            current = keras.tree.pack_sequence_as(state, states)
            masks_now = [
                inputs[:, start : start + units]
                for start in range(gates, inputs.shape[-1], units)
            ]
            output, new_state, _ = self._advance(
                inputs[:, :gates], memory, current, masks_now
            )
            return output, keras.tree.flatten(new_state)

        outputs, _ = scan_time(step, inputs, keras.tree.flatten(state))
        return self._logits(outputs, embedded, training)

    def _dropout_masks(self, like, training):
        """Dropout masks between the layers for all steps, `(B, T, units)` each."""
        # Random numbers drawn inside the loop would be lost to the backends that
        # trace it once, so the masks of all steps are drawn before it.
        if not training or not self._arguments["dropout"]:
            return []
        ones = ops.ones_like(like[..., : self.units])
        return [
            self.vertical_dropout(ones, training=True) for _ in self.decoder_cells[1:]
        ]

    def step(self, token_ids, memory, state):
        """Decodes one more token of every hypothesis.

        Args:
            token_ids: int32, `(B * N,)`.
            memory: What `encode` returned, `B` rows.
            state: What `initial_state` or `step` returned, `B * N` rows.

        Returns:
            Logits, float32, `(B * N, V)`; the new state; and the attention weights
            over the source, `(B * N, S)`, all 0 without attention.
        """
        embedded = self.target_embedding(token_ids)
        projected = self.decoder_cells[0].project_inputs(embedded)
        output, state, weights = self._advance(projected, memory, state, ())
        if weights is None:
            rows, length = ops.shape(token_ids)[0], ops.shape(memory["mask"])[1]
            weights = ops.zeros((rows, length), dtype="float32")
        return self._logits(output, embedded), state, weights

    def get_config(self):
        return {**super().get_config(), **self._arguments}
