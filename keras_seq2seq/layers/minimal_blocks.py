"""The blocks of a minGRU or minLSTM stack: recurrence, attention, feed-forward.

Each sub-layer normalises what comes in, projects to the model's width and is added to
it: the language model's blocks of the paper, with the Transformer's attention between.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.minimal_recurrent import make_minimal
from keras_seq2seq.layers.multi_head_attention import CrossAttention


class _Block(keras.layers.Layer):
    """What both blocks share: a minimal recurrent layer, then a feed-forward one.

    Each normalises before, projects to `dim` and adds to what came in.
    """

    def __init__(
        self,
        cell: str,
        dim: int,
        feedforward_dim: int,
        *,
        expansion: float = 1.5,
        dropout: float = 0.1,
        **kwargs,
    ):
        # The decoder's first states are float32 and must stay so.
        super().__init__(autocast=False, **kwargs)
        self.cell = cell
        self.dim = dim
        self.feedforward_dim = feedforward_dim
        self.expansion = expansion
        self.dropout = dropout
        policy = self.dtype_policy
        self.units = int(dim * expansion)
        self.recurrent_norm = self._normalization("recurrent_norm")
        self.forward_layer = make_minimal(
            cell, self.units, name="forward_layer", dtype=policy
        )
        self.recurrent_projection = keras.layers.Dense(
            dim, name="recurrent_projection", dtype=policy
        )
        self.feedforward_norm = self._normalization("feedforward_norm")
        self.inner = keras.layers.Dense(
            feedforward_dim, activation="gelu", name="inner", dtype=policy
        )
        self.outer = keras.layers.Dense(dim, name="outer", dtype=policy)
        self.residual_dropout = keras.layers.Dropout(
            dropout, name="residual_dropout", dtype=policy
        )

    def _normalization(self, name):
        return keras.layers.RMSNormalization(
            epsilon=1e-6, name=name, dtype=self.dtype_policy
        )

    def build(self, *shapes, **named_shapes):
        shape = (None, None, self.dim)
        self.recurrent_norm.build(shape)
        self.forward_layer.build(shape)
        self.recurrent_projection.build((None, None, self._recurrent_dim()))
        self.feedforward_norm.build(shape)
        self.inner.build(shape)
        self.outer.build((None, None, self.feedforward_dim))
        self.built = True

    def _recurrent_dim(self):
        return self.units

    def _add(self, x, output, training):
        return x + self.residual_dropout(output, training=training)

    def _feedforward(self, x, training):
        output = self.outer(self.inner(self.feedforward_norm(x)))
        return self._add(x, output, training)

    def get_config(self):
        return {
            **super().get_config(),
            "cell": self.cell,
            "dim": self.dim,
            "feedforward_dim": self.feedforward_dim,
            "expansion": self.expansion,
            "dropout": self.dropout,
        }


@keras.saving.register_keras_serializable("keras_seq2seq")
class MinimalEncoderBlock(_Block):
    """Minimal recurrence in one or both directions, and feed-forward.

    Args:
        cell: `"mingru"` or `"minlstm"`.
        dim: Model width `D`.
        feedforward_dim: Width of the feed-forward layer.
        expansion: Width of the recurrent state, as a multiple of `dim`.
        dropout: Dropout of each sub-layer's output.
        bidirectional: Whether a second recurrence reads backwards; both sides by
            side are projected to `dim`.

    Call arguments:
        x: `(B, S, D)`.
        x_mask: Bool, `(B, S)`, True where `x` is real.

    Returns:
        `(B, S, D)`.

    Raises:
        ValueError: If `cell` is unknown.

    Reference:
        Feng et al., 2024 (blocks of its language models).
    """

    def __init__(self, *args, bidirectional: bool = True, **kwargs):
        super().__init__(*args, **kwargs)
        self.bidirectional = bidirectional
        self.backward_layer = (
            make_minimal(
                self.cell,
                self.units,
                reverse=True,
                name="backward_layer",
                dtype=self.dtype_policy,
            )
            if bidirectional
            else None
        )

    def _recurrent_dim(self):
        return 2 * self.units if self.bidirectional else self.units

    def build(self, *shapes, **named_shapes):
        super().build()
        if self.backward_layer is not None:
            self.backward_layer.build((None, None, self.dim))

    def call(self, x, x_mask, training=None):
        y = self.recurrent_norm(x)
        output, _ = self.forward_layer(y, x_mask)
        if self.backward_layer is not None:
            backward, _ = self.backward_layer(y, x_mask)
            output = ops.concatenate([output, backward], axis=-1)
        x = self._add(x, self.recurrent_projection(output), training)
        return self._feedforward(x, training)

    def get_config(self):
        return {**super().get_config(), "bidirectional": self.bidirectional}


@keras.saving.register_keras_serializable("keras_seq2seq")
class MinimalDecoderBlock(_Block):
    """Minimal recurrence, attention over the source, and feed-forward.

    Args:
        cell: `"mingru"` or `"minlstm"`.
        dim: Model width `D`.
        feedforward_dim: Width of the feed-forward layer.
        expansion: Width of the recurrent state, as a multiple of `dim`.
        dropout: Dropout of each sub-layer's output.
        attention: Score of the attention, see `CrossAttention`, or `"none"`.
        num_heads: Heads of the attention; divides `dim`.

    Call arguments:
        x: `(B, T, D)`.
        initial_state: State before the first position, float32, `(B, units)`.
        memory_cache: What `cross_attention.project_memory` returned; None without
            attention.
        memory_mask: Bool, broadcastable to `(B, H, T, S)`.

    Returns:
        `(B, T, D)`, and the attention weights, `(B, H, T, S)`, or None.

    Raises:
        ValueError: If `cell` is unknown or `num_heads` does not divide `dim`.

    Reference:
        Feng et al., 2024 (blocks of its language models); the attention: Vaswani et
        al., 2017, section 3.2.3.
    """

    def __init__(
        self, *args, attention: str = "scaled_dot", num_heads: int = 4, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.attention = attention
        self.num_heads = num_heads
        self.cross_attention: Any = None
        self.cross_attention_norm: Any = None
        if attention != "none":
            self.cross_attention = CrossAttention(
                num_heads,
                self.dim,
                score=attention,
                name="cross_attention",
                dtype=self.dtype_policy,
            )
            self.cross_attention_norm = self._normalization("cross_attention_norm")

    def build(self, *shapes, **named_shapes):
        super().build()
        if self.cross_attention is not None:
            self.cross_attention.build()
            self.cross_attention_norm.build((None, None, self.dim))

    def _attend(self, x, memory_cache, memory_mask, training):
        if self.cross_attention is None:
            return x, None
        output, weights = self.cross_attention(
            self.cross_attention_norm(x), memory_cache, memory_mask, training=training
        )
        return self._add(x, output, training), weights

    def call(
        self, x, initial_state, memory_cache=None, memory_mask=None, training=None
    ):
        output, _ = self.forward_layer(
            self.recurrent_norm(x), initial_state=initial_state
        )
        x = self._add(x, self.recurrent_projection(output), training)
        x, weights = self._attend(x, memory_cache, memory_mask, training)
        return self._feedforward(x, training), weights

    def step(self, x, state, memory_cache, memory_mask):
        """Runs the block for one new position of every hypothesis.

        Args:
            x: The newest position, `(R, D)`, `R = B * N`; the `N` rows of one source
                are adjacent.
            state: Of the recurrence, float32, `(R, units)`.
            memory_cache: As in `call`, `B` rows.
            memory_mask: Bool, `(B, 1, 1, S)`.

        Returns:
            `(R, D)`, the new state, and the attention weights `(B, H, N, S)` or None.
        """
        state = self.forward_layer.step(self.recurrent_norm(x), state)
        output = ops.cast(state, self.compute_dtype)
        x = self._add(x, self.recurrent_projection(output), False)
        # The hypotheses of one source are the queries of one block.
        rows, batch = ops.shape(x)[0], ops.shape(memory_mask)[0]
        x = ops.reshape(x, (batch, -1, self.dim))  # (B, N, D)
        x, weights = self._attend(x, memory_cache, memory_mask, False)
        x = ops.reshape(x, (rows, self.dim))  # (R, D)
        return self._feedforward(x, False), state, weights

    def get_config(self):
        return {
            **super().get_config(),
            "attention": self.attention,
            "num_heads": self.num_heads,
        }
