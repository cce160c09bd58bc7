"""Recurrent encoder–decoders, plain or with attention."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers import (
    Bridge,
    RecurrentDecoder,
    RecurrentLayer,
    padding_mask,
    scan_time,
)
from keras_seq2seq.models.base import Seq2Seq
from keras_seq2seq.models.presets import PRESETS


@keras.saving.register_keras_serializable("keras_seq2seq")
class RecurrentSeq2Seq(Seq2Seq):
    """Recurrent encoder–decoder with an exchangeable attention.

    `attention` names the score of the memory, `decoder` when it looks and what the
    context joins; `bridge` is how the decoder starts from the encoder:

    - `"state"`: each layer from the final states of the encoder's same layer,
      unchanged for a one-directional encoder; through a dense layer for a
      bidirectional one. Layers beyond the encoder's start from its top.
    - `"backward"`: `tanh(h W)` of the backward state at the first source token
      (Bahdanau et al., 2015).
    - `"context"`: the summary `c = tanh(h V)` of the source starts the states,
      `tanh(c W)`, and joins every step and the readout (Cho et al., 2014);
      `"plain_context"`: the same with `c = h` (their released code).
    - `"input"`: the states start at zero and the summary, projected, takes the place
      of the first token (START).

    `from_preset` makes the systems of the papers.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.
        cell: `"lstm"`, `"gru"` or `"simple"`.
        reset_after: Whether the GRU's reset gate comes after the recurrent product
            (Keras, cuDNN) or before it (the papers).
        units: Width of the states, in each direction of the encoder too.
        embedding_dim: Width of the token vectors.
        num_encoder_layers: Encoder layers.
        num_decoder_layers: Decoder layers.
        bidirectional: Whether the encoder reads in both directions.
        bridge: See above.
        summary: What the last three bridges call the source: `"last"`, the top
            layer's final state, or `"mean"`, the mean of its outputs.
        attention: `"none"`, `"dot"`, `"scaled_dot"`, `"bilinear"`, `"additive"`,
            `"tied_additive"` or `"location"`.
        decoder: `"bahdanau"`, `"bahdanau_appendix"`, `"groundhog"` or `"luong"`, see
            `layers.recurrent_decoder`; None takes `"bahdanau"` for `"additive"`
            attention and for none, `"luong"` for the other scores.
        gate_context: Whether the decoder's reset gate, coming after the recurrent
            product, gates the context too (Cho et al., 2014, appendix).
        attention_dim: Width of an additive score's hidden layer; None: `units`.
        window: Half-width of Luong's local attention; None looks everywhere.
        window_center: `"monotonic"` (local-m) or `"predictive"` (local-p).
        attend_end: Whether the source's END may be attended to.
        max_source_positions: Positions of the `"location"` score.
        input_feeding: Whether the attentional vector joins the next input; of
            `decoder="luong"`.
        readout: `"tanh"` or `"maxout"`; `"state"` takes the logits from the top
            state, where there is no context. None: `"tanh"` with a context,
            `"state"` without.
        readout_dim: Width of the readout; None: `units`.
        output_rank: Width of a linear layer before the logits (a factorised output
            matrix); None: no such layer.
        reverse_source: Whether to read the source backwards; its last real token
            (END) stays last. Attention is reported in the original order, and local
            attention counts in it.
        dropout: Dropout of token vectors, between layers and before the logits; on
            vertical connections only (Zaremba et al., 2014).
        share_embeddings: Whether source and target use one embedding table.
        tie_output: Whether the target embedding is also the output projection;
            needs `embedding_dim` as wide as what the logits come from.

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
        Cho et al., 2014; Sutskever et al., 2014; Bahdanau et al., 2015; Luong et
        al., 2015.
    """

    presets = PRESETS

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        cell: str = "lstm",
        reset_after: bool = True,
        units: int = 256,
        embedding_dim: int = 256,
        num_encoder_layers: int = 1,
        num_decoder_layers: int = 1,
        bidirectional: bool = True,
        bridge: str = "state",
        summary: str = "last",
        attention: str = "additive",
        decoder: str | None = None,
        gate_context: bool = False,
        attention_dim: int | None = None,
        window: int | None = None,
        window_center: str = "predictive",
        attend_end: bool = True,
        max_source_positions: int = 128,
        input_feeding: bool = True,
        readout: str | None = None,
        readout_dim: int | None = None,
        output_rank: int | None = None,
        reverse_source: bool = False,
        dropout: float = 0.2,
        share_embeddings: bool = False,
        tie_output: bool = False,
        **kwargs,
    ):
        super().__init__(source_vocabulary_size, target_vocabulary_size, **kwargs)
        self._arguments: dict[str, Any] = {
            "cell": cell,
            "reset_after": reset_after,
            "units": units,
            "embedding_dim": embedding_dim,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "bidirectional": bidirectional,
            "bridge": bridge,
            "summary": summary,
            "attention": attention,
            "decoder": decoder,
            "gate_context": gate_context,
            "attention_dim": attention_dim,
            "window": window,
            "window_center": window_center,
            "attend_end": attend_end,
            "max_source_positions": max_source_positions,
            "input_feeding": input_feeding,
            "readout": readout,
            "readout_dim": readout_dim,
            "output_rank": output_rank,
            "reverse_source": reverse_source,
            "dropout": dropout,
            "share_embeddings": share_embeddings,
            "tie_output": tie_output,
        }
        self.units = units
        self.attention = attention
        self.reverse_source = reverse_source
        # On CPUs TensorFlow's XLA runs a loop of small steps slower than the plain
        # graph. `compile(jit_compile="auto")` asks this attribute; set it to True
        # before compiling with jit_compile=True.
        self.supports_jit = keras.backend.backend() != "tensorflow"
        self._check()
        self._make_embeddings()
        self._make_encoder()
        self._make_decoder()
        self._make_output()
        self.built = True

    def _check(self):
        given = self._arguments
        for name in ("num_encoder_layers", "num_decoder_layers", "embedding_dim"):
            if given[name] < 1:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={given[name]}."
                )

    def _dense(self, units, name, input_dim, **kwargs):
        layer = keras.layers.Dense(units, name=name, dtype=self.dtype_policy, **kwargs)
        layer.build((None, None, input_dim))
        return layer

    def _make_embeddings(self):
        given = self._arguments
        # Keras' own start (uniform within 0.05) leaves states, attention and tied
        # logits so small that Adam needs thousands of updates to find the source.
        self._make_token_embeddings(
            given["embedding_dim"],
            shared=given["share_embeddings"],
            stddev=given["embedding_dim"] ** -0.5,
            # Model files name their layers by class: another would not be found.
            source_layer=keras.layers.Embedding,
        )
        self.vertical_dropout = keras.layers.Dropout(
            given["dropout"], name="dropout", dtype=self.dtype_policy
        )

    def _make_encoder(self):
        given = self._arguments
        sides = 2 if given["bidirectional"] else 1
        self.memory_dim = sides * self.units
        self.encoder_layers = []
        width = given["embedding_dim"]
        for index in range(given["num_encoder_layers"]):
            layer = RecurrentLayer(
                given["cell"],
                self.units,
                given["bidirectional"],
                given["reset_after"],
                name=f"encoder_{index}",
                dtype=self.dtype_policy,
            )
            layer.build((None, None, width))
            self.encoder_layers.append(layer)
            width = self.memory_dim

    def _make_decoder(self):
        given = self._arguments
        self.bridge = Bridge(
            given["bridge"],
            self.units,
            num_layers=given["num_decoder_layers"],
            cell=given["cell"],
            bidirectional=given["bidirectional"],
            summary=given["summary"],
            input_dim=given["embedding_dim"],
            name="bridge",
            dtype=self.dtype_policy,
        )
        self.bridge.build()
        fixed = self.bridge.context_dim is not None
        has_context = fixed or self.attention != "none"
        variant = given["decoder"] or (
            "bahdanau" if self.attention in ("none", "additive") else "luong"
        )
        self.decoder = RecurrentDecoder(
            given["cell"],
            self.units,
            given["num_decoder_layers"],
            variant=variant,
            reset_after=given["reset_after"],
            gate_context=given["gate_context"],
            attention=self.attention,
            attention_dim=given["attention_dim"],
            window=given["window"],
            window_center=given["window_center"],
            max_source_positions=given["max_source_positions"],
            fixed_context=fixed,
            input_feeding=given["input_feeding"],
            count_positions=given["bridge"] == "input",
            readout=given["readout"] or ("tanh" if has_context else "state"),
            readout_dim=given["readout_dim"],
            name="decoder",
            dtype=self.dtype_policy,
        )
        context_dim = self.bridge.context_dim or self.memory_dim
        self.decoder.build(given["embedding_dim"], context_dim)

    def _make_output(self):
        given = self._arguments
        width, rank = self.decoder.output_dim, given["output_rank"]
        self.rank_projection: Any = None
        if rank is not None:
            self.rank_projection = self._dense(
                rank, "rank_projection", width, use_bias=False
            )
            width = rank
        if given["tie_output"] and given["embedding_dim"] != width:
            raise ValueError(
                "`tie_output` needs `embedding_dim` as wide as what the logits come "
                "from (`output_rank`, else `readout_dim`, else `units`). Received: "
                f"embedding_dim={given['embedding_dim']}, "
                f"units={self.units}, width before the logits {width}."
            )
        self.output_projection: Any = (
            None
            if given["tie_output"]
            else self._dense(self.target_vocabulary_size, "output_projection", width)
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
            `memory`: `mask` `(B, S)` and the decoder's first `states`, a list of
            `(B, units)` for each layer; with attention the encoder's `values`
            `(B, S, D)`, the `keys` of the score and `attention_mask` `(B, S)`; with
            a fixed context that, `(B, C)`, and its product `fed` `(B, G)`; for
            `bridge="input"` the `first_input` `(B, E)`.
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
        memory = {"mask": mask, **self.bridge(finals, x, mask)}
        if "context" in memory:
            memory["fed"] = self.decoder.feedback(memory["context"])
        if self.attention != "none":
            if order is not None:  # a reversal undoes itself
                x = _reordered(x, order)
            memory["values"] = x
            memory["keys"] = self.decoder.score.project_memory(x)
            memory["attention_mask"] = self._attention_mask(mask)
        return memory

    def _attention_mask(self, mask):
        if self._arguments["attend_end"]:
            return mask
        # END is the last real token: the one whose right neighbour is padding.
        following = ops.pad(mask[:, 1:], ((0, 0), (0, 1)))
        return ops.logical_and(mask, following)

    def initial_state(self, memory, max_length: int | None = None):
        """Returns the state before the first step.

        Args:
            memory: What `encode` returned.
            max_length: Not used: a recurrent state does not grow.

        Returns:
            `state`: `cells`, a list of `(B, units)` for each layer, and what else
            the decoder carries: `readout` `(B, P)` with input feeding, `context`
            `(B, D)` of the `"groundhog"` variant, `position` `(B,)`.
        """
        return self.decoder.initial_state(memory)

    def _logits(self, output, training=None):
        if self.rank_projection is not None:
            output = self.rank_projection(output)
        output = self.vertical_dropout(output, training=training)
        return self._vocabulary_logits(output)

    def decode(self, target_ids, memory, training=None):
        """Returns teacher-forced logits, `(B, T, V)`, for `target_ids` `(B, T)`."""
        embedded = self.vertical_dropout(
            self.target_embedding(target_ids), training=training
        )
        if "first_input" in memory:
            first = ops.expand_dims(memory["first_input"], 1)  # (B, 1, E)
            embedded = ops.concatenate([first, embedded[:, 1:]], axis=1)
        projected = self.decoder.cells[0].project_inputs(embedded)  # (B, T, G)
        masks = self._dropout_masks(projected, training)
        inputs = ops.concatenate([projected, *masks], axis=-1) if masks else projected
        state = self.initial_state(memory)
        ends = list(range(projected.shape[-1], inputs.shape[-1], self.units))

        def step(inputs, states):
            current = keras.tree.pack_sequence_as(state, states)
            # Not slices: the gradient of each would be a tensor of zeros around it.
            now, *masks = ops.split(inputs, ends, axis=-1) if ends else [inputs]
            output, new_state, _ = self.decoder.advance(now, memory, current, masks)
            return output, keras.tree.flatten(new_state)

        outputs, _ = scan_time(
            step, inputs, keras.tree.flatten(state), layers=[self.decoder]
        )
        positions = ops.expand_dims(ops.arange(ops.shape(target_ids)[1]), 0)
        outputs, _ = self.decoder.finish(outputs, embedded, memory, positions)
        return self._logits(outputs, training)

    def _dropout_masks(self, like, training):
        """Dropout masks between the layers for all steps, `(B, T, units)` each."""
        # Random numbers drawn inside the loop would be lost to the backends that
        # trace it once, so the masks of all steps are drawn before it.
        if not training or not self._arguments["dropout"]:
            return []
        ones = ops.ones_like(like[..., : self.units])
        return [
            self.vertical_dropout(ones, training=True) for _ in self.decoder.cells[1:]
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
        rows, batch = ops.shape(token_ids)[0], ops.shape(memory["mask"])[0]
        length = ops.shape(memory["mask"])[1]
        embedded = self.target_embedding(token_ids)
        embedded = ops.reshape(embedded, (batch, -1, embedded.shape[-1]))  # (B, N, E)
        positions = state.get("position")
        if positions is not None:
            positions = ops.reshape(positions, (batch, -1))  # (B, N)
        if "first_input" in memory:
            first = ops.expand_dims(memory["first_input"], 1)  # (B, 1, E)
            at_start = ops.expand_dims(positions == 0, -1)  # (B, N, 1)
            embedded = ops.where(at_start, first, embedded)
        projected = self.decoder.cells[0].project_inputs(embedded)
        projected = ops.reshape(projected, (rows, projected.shape[-1]))
        output, state, weights = self.decoder.advance(projected, memory, state)
        output = ops.reshape(output, (batch, -1, output.shape[-1]))  # (B, N, ·)
        output, late_weights = self.decoder.finish(output, embedded, memory, positions)
        if late_weights is not None:
            weights = ops.reshape(late_weights, (rows, length))
        if weights is None:
            weights = ops.zeros((rows, length), dtype="float32")
        logits = self._logits(ops.reshape(output, (rows, output.shape[-1])))
        return logits, state, weights

    def get_config(self):
        return {**super().get_config(), **self._arguments}


def _reordered(x, order):
    """Takes the positions `order`, `(B, S)`, of `x`, `(B, S, D)`."""
    batch, length, width = ops.shape(x)
    # Whole rows: `take_along_axis` would gather, and its gradient add, each number.
    rows = order + length * ops.expand_dims(ops.arange(batch), 1)
    taken = ops.take(ops.reshape(x, (-1, width)), ops.reshape(rows, (-1,)), axis=0)
    return ops.reshape(taken, (batch, length, width))
