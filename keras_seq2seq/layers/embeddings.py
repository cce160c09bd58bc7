"""The table of token vectors that decoders read their inputs from."""

from __future__ import annotations

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_seq2seq")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """Vectors of tokens, or of mixtures of tokens.

    Ids are looked up. A distribution `p` over the vocabulary gives the mean vector
    `sum_v p_v E_v`, so that a decoder can be fed a prediction that is not decided
    yet: the vector of a one-hot `p` is that of its token.

    Args:
        input_dim: Size of the vocabulary.
        output_dim: Width of the vectors.
        **kwargs: Other arguments of `keras.layers.ReversibleEmbedding`.

    Call arguments:
        inputs: Ids, an integer tensor, `(B, T)`; or distributions, a float tensor,
            `(B, T, V)`; with `reverse`, vectors, `(B, T, D)`.
        reverse: Whether to give the logits of vectors.

    Returns:
        Vectors, `(B, T, D)`; with `reverse`, logits, `(B, T, V)`.

    Reference:
        Mihaylova & Martins, 2019, section 3 (mixtures).
    """

    def call(self, inputs, reverse=False):
        if reverse or not keras.backend.is_float_dtype(inputs.dtype):
            return super().call(inputs, reverse=reverse)
        return ops.matmul(inputs, self.embeddings)

    def compute_output_spec(self, inputs, reverse=False):
        spec = super().compute_output_spec(inputs, reverse=reverse)
        if reverse or not keras.backend.is_float_dtype(inputs.dtype):
            return spec
        return keras.KerasTensor((*inputs.shape[:-1], self.output_dim), spec.dtype)
