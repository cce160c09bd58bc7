"""Decoding engine: from a step function to the best target sequences.

Everything here knows a step function, never a model class (`generate` asks a
model for `encode`, `initial_state`, `step` and `select_state`, and no more). It
is written in `keras.ops` with buffers of fixed length, so that it runs eagerly,
as a TensorFlow graph, under XLA and under `jax.jit` with equal results.
"""

from keras_seq2seq.decoding.beam import beam_search
from keras_seq2seq.decoding.generate import generate
from keras_seq2seq.decoding.greedy import greedy_search
from keras_seq2seq.decoding.scoring import length_penalty, target_log_probs
from keras_seq2seq.decoding.search import SearchResult

__all__ = [
    "SearchResult",
    "beam_search",
    "generate",
    "greedy_search",
    "length_penalty",
    "target_log_probs",
]
