"""The signatures of a SavedModel: text in, text out, and ids for who tokenizes.

Every tensor has the batch on axis 0, every output a fixed width, and no name is both an
input and an output of a signature: servers merge and split requests by the first axis,
and converters of other formats refuse shared names.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_seq2seq.export.graph_search import LOWEST_SCORE, GraphSearch
from keras_seq2seq.export.graph_tokenizer import GraphTokenizer
from keras_seq2seq.pipelines import Translator

_TEXT = {"source": ((None,), "string")}
_IDS = {"ids": ((None, None), "int32"), "lengths": ((None,), "int32")}
_DRAWING = {
    "seed": ((None,), "int32"),
    "temperature": ((None,), "float32"),
    "top_k": ((None,), "int32"),
    "top_p": ((None,), "float32"),
}

#: Inputs of each signature with shape and type, and the names of its outputs.
SIGNATURES: dict[str, tuple[dict[str, tuple], tuple[str, ...]]] = {
    "translate": (_TEXT, ("text", "score")),
    "translate_beam": (_TEXT, ("texts", "scores")),
    "translate_sample": (_TEXT | _DRAWING, ("text", "score")),
    "decode_ids": (_IDS, ("output_ids", "output_lengths", "score")),
    "decode_ids_beam": (_IDS, ("output_ids", "output_lengths", "scores")),
    "score": (
        {"source": ((None,), "string"), "target": ((None,), "string")},
        ("log_prob", "num_tokens"),
    ),
    "attention": (_TEXT, ("text", "source_tokens", "target_tokens", "weights")),
}
#: A model without attention over the source lacks it.
OPTIONAL = ("attention",)
#: What a request without a name gets, as servers want it.
DEFAULT, DEFAULT_IS = "serving_default", "translate"
# For a tokenizer that need not cut.
_ANY_LENGTH = 2**30
# Widths that sources are filled up to where each shape is compiled.
_COMPILED_WIDTH = 32


class TextSignatures:
    """The functions of all signatures, over one search.

    Args:
        translator: The model with its tokenizers.
        search: Its search.
        jit: Whether encoder and search are compiled by XLA where they run.
    """

    def __init__(
        self, translator: Translator, search: GraphSearch, *, jit: bool = False
    ) -> None:
        self.search = search
        self.jit = jit
        self.has_attention = _has_attention(translator.model)
        self.source_tokenizer = GraphTokenizer(
            translator.tokenizers.source, translator.model.max_positions or _ANY_LENGTH
        )
        self.target_tokenizer = GraphTokenizer(
            translator.tokenizers.target, _ANY_LENGTH
        )
        # Traced once, for all signatures that use them.
        self._best = self._graph(search.best)
        self._n_best = self._graph(search.n_best)

    def add_to(self, archive: keras.export.ExportArchive) -> None:
        """Adds every signature, and what they need, to an archive."""
        # Not the model: the weights that the functions read are found by themselves,
        # and what is tracked as well would be stored twice.
        for layer in (self.source_tokenizer, self.target_tokenizer):
            archive.track(layer)
        for name, (inputs, _) in SIGNATURES.items():
            if name == "attention" and not self.has_attention:
                continue
            specs = [
                tf.TensorSpec(shape, dtype, name=key)
                for key, (shape, dtype) in inputs.items()
            ]
            archive.add_endpoint(name, getattr(self, name), input_signature=specs)
            if name == DEFAULT_IS:
                archive.add_endpoint(DEFAULT, self.translate, input_signature=specs)

    def translate(self, source: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best output of each text."""
        found = self._best(*self._encoded(source))
        return {"text": self._text(found), "score": found["score"]}

    def translate_beam(self, source: tf.Tensor) -> dict[str, tf.Tensor]:
        """All outputs of each text that differ, best first, `(B, N)`."""
        found = self._n_best(*self._encoded(source))
        count, length = self.search.num_beams, self.search.max_length
        texts = self.target_tokenizer.decode(
            tf.reshape(found["output_ids"], (-1, length)),
            tf.reshape(found["output_lengths"], (-1,)),
        )
        return _different(tf.reshape(texts, (-1, count)), found["scores"])

    def translate_sample(
        self, source: tf.Tensor, *drawing: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """An output of each text, drawn by its own seed and settings."""
        by = dict(zip(_DRAWING, drawing, strict=True))
        found = self._graph(self._drawn)(*self._encoded(source), *by.values())
        return {"text": self._text(found), "score": found["score"]}

    def decode_ids(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best output of each source, as ids."""
        return dict(self._best(*self._widened(ids, lengths)))

    def decode_ids_beam(
        self, ids: tf.Tensor, lengths: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """All hypotheses of each source, as ids."""
        return dict(self._n_best(*self._widened(ids, lengths)))

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """The log-probability of given targets."""
        ids, lengths = self.source_tokenizer.encode(clean_text(source))
        target_ids, target_lengths = self.target_tokenizer.encode(clean_text(target))
        return self.search.score(ids, lengths, target_ids, target_lengths)

    def attention(self, source: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best output with what was attended to, for the first L source tokens."""
        found, ids, weights = self._graph(self.search.attended)(*self._encoded(source))
        length = self.search.max_length
        shape = (None, length)
        missing = tf.maximum(length - tf.shape(ids)[1], 0)
        ids = tf.pad(ids, [[0, 0], [0, missing]])[:, :length]
        weights = tf.pad(weights, [[0, 0], [0, 0], [0, missing]])[:, :, :length]
        return {
            "text": self._text(found),
            "source_tokens": tf.ensure_shape(self.source_tokenizer.tokens(ids), shape),
            "target_tokens": self.target_tokenizer.tokens(found["output_ids"]),
            "weights": tf.ensure_shape(weights, (*shape, length)),
        }

    def _drawn(self, ids: tf.Tensor, lengths: tf.Tensor, *drawing: tf.Tensor) -> Any:
        return self.search.drawn(
            ids, lengths, **dict(zip(_DRAWING, drawing, strict=True))
        )

    def _encoded(self, source: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._widened(*self.source_tokenizer.encode(clean_text(source)))

    def _widened(
        self, ids: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids of one of few widths, where every width is compiled."""
        if not self.jit:
            return ids, lengths
        missing = -tf.shape(ids)[1] % _COMPILED_WIDTH
        return tf.pad(ids, [[0, 0], [0, missing]]), lengths

    def _text(self, found: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.target_tokenizer.decode(
            found["output_ids"], found["output_lengths"]
        )

    def _graph(self, function: Callable) -> Callable:
        return tf.function(function, autograph=False, jit_compile=self.jit or None)


def _different(texts: tf.Tensor, scores: tf.Tensor) -> dict[str, tf.Tensor]:
    """Hypotheses `(B, N)` without those that read as a better one, empty ones last."""
    count = texts.shape[1]
    equal = tf.equal(tf.expand_dims(texts, 2), tf.expand_dims(texts, 1))  # (B, N, N)
    better = tf.reshape(tf.range(count), (1, -1, 1)) > tf.reshape(
        tf.range(count), (1, 1, -1)
    )
    again = tf.reduce_any(tf.logical_and(equal, better), axis=2)  # (B, N)
    left = tf.logical_or(again, scores <= LOWEST_SCORE)
    order = tf.argsort(tf.cast(left, tf.int32), axis=1, stable=True)
    gone = tf.gather(left, order, batch_dims=1)
    texts = tf.where(gone, "", tf.gather(texts, order, batch_dims=1))
    scores = tf.where(gone, LOWEST_SCORE, tf.gather(scores, order, batch_dims=1))
    return {"texts": texts, "scores": scores}


def clean_text(text: tf.Tensor) -> tf.Tensor:
    r"""Applies the rule of `corpora.clean_line` to strings in the graph.

    Bytes that are no UTF-8 become U+FFFD first.

    Args:
        text: Strings, `(B,)`.

    Returns:
        Strings of valid UTF-8 without control characters and line ends, `(B,)`.
    """
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    text = tf.strings.regex_replace(text, r"\r?\n?\z", "", replace_global=False)
    text = tf.strings.regex_replace(
        text, r"[\r\n\x0b\x0c\x1c-\x1f\x{85}\x{2028}\x{2029}]", " "
    )
    return tf.strings.regex_replace(
        text, r"[\x00-\x08\x0e-\x1b\x7f-\x{9f}\x{feff}]", ""
    )


def _has_attention(model: keras.Model) -> bool:
    """Whether a step of the model returns weights over the source that are not 0."""
    ids = ops.convert_to_tensor([[4, 5, 3]], dtype="int32")
    memory = model.encode(ids, training=False)
    state = model.repeat_state(model.initial_state(memory, 2), 1)
    _, _, weights = model.step(ids[0, :1], memory, state)
    return weights is not None and float(ops.sum(weights)) > 0
