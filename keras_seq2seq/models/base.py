"""The contract that every generating model keeps.

======================================  ==========================================
call                                    meaning
======================================  ==========================================
`call({"source_ids", "target_ids"})`    teacher-forced logits, `(B, T, V)`
`encode(source_ids)`                    `memory`: what the decoder only reads
`initial_state(memory, max_length)`     `state`: what changes at each step
`step(token_ids, memory, state)`        next-token logits, new state, attention
======================================  ==========================================

Every tensor of `memory` and `state` has the batch on axis 0, but for what all sources
share, which `select_memory` then has to know. `memory` keeps `B` rows; `token_ids` and
`state` have `B * N` when `N` hypotheses of each source are alive, those of one source
side by side. `step` is pure, and `call` equals `step` repeated along the target.
"""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

import keras
from keras import ops

from keras_seq2seq.gathers import take_rows
from keras_seq2seq.layers import TokenEmbedding


class Seq2Seq(keras.Model):
    """Base of the generating models: `call` from `encode` and `decode`.

    A subclass has `encode(source_ids, training)`, `decode(target_ids, memory,
    training)`, `initial_state(memory, max_length)` and `step(token_ids, memory,
    state)`, and creates all its weights in its constructor.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.

    Raises:
        ValueError: If a vocabulary size is not positive.
    """

    #: Longest source or target that the model can take; None for any length.
    max_positions: int | None = None

    #: Named sets of constructor arguments: the systems of papers.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(
        self, source_vocabulary_size: int, target_vocabulary_size: int, **kwargs
    ):
        super().__init__(**kwargs)
        for name, size in (
            ("source_vocabulary_size", source_vocabulary_size),
            ("target_vocabulary_size", target_vocabulary_size),
        ):
            if size < 1:
                raise ValueError(f"`{name}` must be positive. Received: {name}={size}.")
        self.source_vocabulary_size = source_vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size

    def _make_token_embeddings(
        self, dim: int, *, shared: bool, stddev: float, source_layer=TokenEmbedding
    ):
        """Makes `target_embedding` and `source_embedding`, one layer where `shared`."""
        sizes = (self.source_vocabulary_size, self.target_vocabulary_size)
        if shared and sizes[0] != sizes[1]:
            raise ValueError(
                "`share_embeddings` needs one vocabulary for both sides. Received: "
                f"source_vocabulary_size={sizes[0]}, "
                f"target_vocabulary_size={sizes[1]}."
            )

        def embedding(layer_class, name, size):
            layer = layer_class(
                size,
                dim,
                embeddings_initializer=keras.initializers.RandomNormal(stddev=stddev),
                name=name,
                dtype=self.dtype_policy,
            )
            layer.build()
            return layer

        self.target_embedding = embedding(TokenEmbedding, "target_embedding", sizes[1])
        self.source_embedding = (
            self.target_embedding
            if shared
            else embedding(source_layer, "source_embedding", sizes[0])
        )

    def _vocabulary_logits(self, x):
        """Logits, float32, of vectors; the embedding's where there is no projection."""
        if self.output_projection is None:
            logits = self.target_embedding(x, reverse=True)
        else:
            logits = self.output_projection(x)
        return ops.cast(logits, "float32")

    @classmethod
    def preset_arguments(cls, name: str) -> dict[str, Any]:
        """Returns the constructor arguments of a preset.

        Args:
            name: A key of `presets`.

        Raises:
            ValueError: If there is no such preset.
        """
        if name not in cls.presets:
            close = difflib.get_close_matches(str(name), cls.presets, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"`preset` of {cls.__name__} must be one of "
                f"{', '.join(map(repr, cls.presets)) or '(there is none)'}. "
                f"Received: preset={name!r}.{hint}"
            )
        return dict(cls.presets[name])

    @classmethod
    def from_preset(
        cls,
        name: str,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        **arguments,
    ):
        """Makes the system of a paper.

        Args:
            name: A key of `presets`.
            source_vocabulary_size: Number of source ids, padding included.
            target_vocabulary_size: Number of target ids, padding included.
            **arguments: Arguments of the class; they win over the preset's.

        Raises:
            ValueError: If there is no such preset.
        """
        arguments = {**cls.preset_arguments(name), **arguments}
        return cls(source_vocabulary_size, target_vocabulary_size, **arguments)

    def build(self, input_shape=None):
        """Does nothing: the constructor knows every size and makes the weights."""
        self.built = True

    def call(self, inputs, training=None):
        memory = self.encode(inputs["source_ids"], training=training)
        return self.decode(inputs["target_ids"], memory, training=training)

    def compute_output_shape(self, input_shape):
        return (*input_shape["target_ids"], self.target_vocabulary_size)

    def repeat_state(self, state, count: int):
        """Makes the state of `count` hypotheses of each source, for `select_state`.

        Args:
            state: What `initial_state` returned, `B` rows.
            count: Hypotheses of each source.

        Returns:
            The state with each row `count` times, one after the other; what the
            hypotheses of a source share may keep its rows.
        """
        return keras.tree.map_structure(lambda x: ops.repeat(x, count, axis=0), state)

    def select_state(self, state, parents):
        """Chooses surviving hypotheses: row `i` of the result was row `parents[i]`.

        Args:
            state: What `step` returned after `repeat_state`, `B * N` rows.
            parents: Row numbers, int32, `(B * N,)`, of the same source each.

        Returns:
            The state in the new order.
        """
        return keras.tree.map_structure(lambda x: take_rows(x, parents), state)

    def select_memory(self, memory, sources):
        """Chooses sources: row `i` of the result was row `sources[i]`.

        Args:
            memory: What `encode` returned, `B` rows.
            sources: Row numbers, int32, `(A,)`.

        Returns:
            The memory of those sources.
        """
        return keras.tree.map_structure(lambda x: take_rows(x, sources), memory)

    def get_config(self):
        return {
            **super().get_config(),
            "source_vocabulary_size": self.source_vocabulary_size,
            "target_vocabulary_size": self.target_vocabulary_size,
        }
