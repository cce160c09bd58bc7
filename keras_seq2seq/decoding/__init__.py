"""Decoding engine: from a step function to the best target sequences.

Everything here knows a step function, never a model class (`generate` asks a model
for `encode`, `initial_state`, `step`, and the rows of its tensors, and no more).
It is written in `keras.ops` with buffers of fixed length, so that it runs eagerly, as a
TensorFlow graph, under XLA, under `jax.jit` and as LiteRT with equal results.
"""

from keras_seq2seq.decoding.beam import beam_search
from keras_seq2seq.decoding.checks import check_phrases_fit, check_prefixes_fit
from keras_seq2seq.decoding.generate import generate, search_sources
from keras_seq2seq.decoding.greedy import greedy_search, sample
from keras_seq2seq.decoding.options import SearchInputs, SearchOptions, check_number
from keras_seq2seq.decoding.programs import compiled_by_shape, program
from keras_seq2seq.decoding.sampling import uniform_noise
from keras_seq2seq.decoding.scoring import (
    coverage_score,
    length_penalty,
    target_log_probs,
)
from keras_seq2seq.decoding.search import SearchResult
from keras_seq2seq.decoding.streaming import StreamStep, stream

__all__ = [
    "SearchInputs",
    "SearchOptions",
    "SearchResult",
    "StreamStep",
    "beam_search",
    "check_number",
    "check_phrases_fit",
    "check_prefixes_fit",
    "compiled_by_shape",
    "coverage_score",
    "generate",
    "greedy_search",
    "length_penalty",
    "program",
    "sample",
    "search_sources",
    "stream",
    "target_log_probs",
    "uniform_noise",
]
