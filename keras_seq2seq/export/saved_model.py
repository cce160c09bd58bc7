"""Writes a trained run as a SavedModel that TF Serving loads.

Two signatures, each with the batch on axis 0 of every tensor:

================= ========================== =======================================
signature         inputs                     outputs
================= ========================== =======================================
`serving_default` `source` string `(B,)`     `text` string `(B,)`,
                                             `score` float32 `(B,)`
`decode_ids`      `ids` int32 `(B, S)`,      `output_ids` int32 `(B, L)`,
                  `lengths` int32 `(B,)`     `output_lengths` int32 `(B,)`,
                                             `score` float32 `(B,)`
================= ========================== =======================================

`ids` are those of the source tokenizer with END appended; `output_ids` hold END where
the search reached it. No name is both an input and an output of a signature: converters
of other formats refuse such graphs. `L` is fixed when the model is written, so that a
server can merge and split requests. `score` is the ranking value of the search, always
finite, and 0 for blank rows.
"""

import hashlib
import importlib.metadata
import json
import math
import re
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_seq2seq.buffers import filled_by
from keras_seq2seq.decoding import beam_search
from keras_seq2seq.export.folders import written_whole
from keras_seq2seq.export.graph_tokenizer import GraphTokenizer
from keras_seq2seq.export.operations import Graph
from keras_seq2seq.pipelines import Translator, load
from keras_seq2seq.requests import Request, make_request
from keras_seq2seq.tokenizers import END_ID, PAD_ID, UNK_ID

MANIFEST = "manifest.json"
# JSON has no infinity, so a server's reply must not hold one.
LOWEST_SCORE = -1.0e9
# For a tokenizer that need not cut.
_ANY_LENGTH = 2**30

_VERSIONED = (
    "keras-seq2seq",
    "keras",
    "keras-hub",
    "sentencepiece",
    "tensorflow",
    "tensorflow-text",
)


def export_saved_model(
    run_or_translator: str | Path | Translator,
    path: str | Path,
    *,
    version: int | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes `path/<version>/` with the signatures `serving_default` and `decode_ids`.

    The folder appears complete or not at all: it is written under a name that servers
    ignore and then renamed. Beside the graph it holds the tokenizers, for clients of
    `decode_ids`, and `manifest.json` (versions, operations, signatures, sums).

    Args:
        run_or_translator: A run folder, or what `load` made of one.
        path: The model's folder, whose subfolders are versions.
        version: Number of the version; by default one above the largest there.
        num_beams: Width of the beam; by default the run's.
        length_penalty: Exponent of the length penalty; by default the run's.
        max_length: Most tokens of an output, END included, for every source; by default
            it follows the source's length as the run says.
        overwrite: Whether an existing version of this number is replaced.

    Returns:
        The version folder.

    Raises:
        ValueError: If the version exists, a number is out of range, the run is not one
            of text, or Keras does not run on TensorFlow.
        FileNotFoundError: If the run folder is missing or incomplete.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written on the TensorFlow backend. Received: "
            f"KERAS_BACKEND={keras.backend.backend()}. A run trained on another "
            "backend exports on TensorFlow unchanged: set KERAS_BACKEND=tensorflow."
        )
    path = Path(path)
    version = _check_version(path, version, overwrite)
    translator = as_translator(run_or_translator)
    search = _GraphSearch(translator, num_beams, length_penalty, max_length)

    path.mkdir(parents=True, exist_ok=True)
    final = path / str(version)
    with written_whole(final) as folder:
        _write_graph(search, translator, folder)
        translator.tokenizers.save(folder / "tokenizer")
        _write_manifest(search, translator, folder)
    return final


def as_translator(run_or_translator: str | Path | Translator) -> Translator:
    """Loads a run, if it is not loaded yet.

    Args:
        run_or_translator: A run folder, or what `load` made of one.

    Raises:
        FileNotFoundError: If the run folder is missing or incomplete.
        ValueError: If the run is not one of text.
    """
    found: Any = run_or_translator
    if isinstance(run_or_translator, str | Path):
        found = load(run_or_translator)
    if not isinstance(found, Translator):
        raise ValueError(
            "The run of an export must be one of text. Received: "
            f"{run_or_translator}, with [series], which is a {type(found).__name__}."
        )
    return found


class _GraphSearch:
    """The translation of a batch as a graph, from ids and from text.

    Every option of the search is a constant of the graph. What follows the length of a
    source is a table made by the Translator's own rule, so both agree by construction.
    """

    def __init__(
        self,
        translator: Translator,
        num_beams: int | None,
        length_penalty: float | None,
        max_length: int | None,
    ) -> None:
        settings = {"num_beams": num_beams, "length_penalty": length_penalty}
        self.request = make_request(
            translator.decoding, settings, max_length=max_length
        )
        if self.request.samples:
            raise ValueError(
                "An export searches its answers; it cannot draw them yet. The run has "
                f"[decoding] temperature = {self.request.settings.temperature}: "
                "export it with temperature = 0 there."
            )
        self.model = translator.model
        self.follows_source = max_length is None
        self.limits = _length_limits(translator, self.request)
        self.max_length = max(self.limits)
        # In a graph these can not be None.
        self.ratios = {
            "min_lengths": self.request.settings.min_length_ratio,
            "reward_lengths": (
                self.request.settings.length_reward_ratio
                if self.request.settings.length_reward
                else 0.0
            ),
        }
        self.source_tokenizer = GraphTokenizer(
            translator.tokenizers.source, self.model.max_positions or _ANY_LENGTH
        )
        self.target_tokenizer = GraphTokenizer(
            translator.tokenizers.target, _ANY_LENGTH
        )

    def decode_ids(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates ids `(B, S)`, of which `lengths` `(B,)` of each row count."""
        source_ids, lengths = self._real_ids(ids, lengths)
        limits = tf.gather(
            tf.constant(self.limits, tf.int32),
            tf.minimum(lengths, len(self.limits) - 1),
        )
        # In double precision, as Python counts.
        exact = tf.cast(lengths, tf.float64)
        follows = {
            name: tf.cast(exact * ratio, tf.int32)
            for name, ratio in self.ratios.items()
            if ratio
        }
        with filled_by("grow"):
            memory = self.model.encode(source_ids, training=False)
            result = beam_search(
                self.model.step,
                memory,
                self.model.initial_state(memory, self.max_length),
                max_length=self.max_length,
                length_limits=limits,
                repeat_state=self.model.repeat_state,
                select_state=self.model.select_state,
                select_memory=self.model.select_memory,
                **self.request.constants,
                **follows,
            )
        blank = tf.logical_or(
            lengths <= 0, tf.logical_and(lengths == 1, source_ids[:, 0] == END_ID)
        )
        return self._outputs(result, blank)

    def translate(self, source: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates texts `(B,)`."""
        ids, lengths = self.source_tokenizer.encode(clean_text(source))
        found = self.decode_ids(ids, lengths)
        text = self.target_tokenizer.decode(
            found["output_ids"], found["output_lengths"]
        )
        return {"text": text, "score": found["score"]}

    def _real_ids(self, ids: tf.Tensor, lengths: tf.Tensor):
        """Source ids that the model can take, whatever a client or a server sent.

        A server that merges requests fills shorter rows with each tensor's first
        element, so only `lengths` tells what is real. An id outside the vocabulary
        would fail the whole merged batch; it counts as unknown.
        """
        # An empty row still needs a column.
        width = tf.shape(ids)[1]
        ids = tf.pad(ids, [[0, 0], [0, tf.maximum(1 - width, 0)]])
        lengths = tf.clip_by_value(lengths, 0, width)
        if self.model.max_positions is not None:
            ids = ids[:, : self.model.max_positions]
        kept = tf.minimum(lengths, tf.shape(ids)[1])
        positions = tf.expand_dims(tf.range(tf.shape(ids)[1]), 0)  # (1, S)
        # A source that is cut still ends with END.
        cut = tf.expand_dims(kept < lengths, 1)  # (B, 1)
        last = positions == tf.expand_dims(kept - 1, 1)  # (B, S)
        ids = tf.where(tf.logical_and(cut, last), END_ID, ids)
        valid = tf.logical_and(ids >= 0, ids < self.model.source_vocabulary_size)
        ids = tf.where(valid, ids, UNK_ID)
        # The first position is always real, so that no row is all padding.
        real = positions < tf.maximum(tf.expand_dims(kept, 1), 1)
        ids = tf.where(tf.expand_dims(kept, 1) < 1, END_ID, ids)
        return tf.where(real, ids, PAD_ID), kept

    def _outputs(self, result: Any, blank: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best hypothesis of each row in the types and shapes of the signature."""
        ids = tf.cast(result.ids[:, 0], tf.int32)
        lengths = tf.where(blank, 0, tf.cast(result.lengths[:, 0], tf.int32))
        score = tf.cast(result.scores[:, 0], tf.float32)
        score = tf.where(tf.math.is_finite(score), score, LOWEST_SCORE)
        return {
            "output_ids": tf.ensure_shape(
                tf.where(tf.expand_dims(blank, 1), PAD_ID, ids),
                (None, self.max_length),
            ),
            "output_lengths": tf.ensure_shape(lengths, (None,)),
            "score": tf.ensure_shape(
                tf.where(blank, 0.0, tf.maximum(score, LOWEST_SCORE)), (None,)
            ),
        }


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


def _length_limits(translator: Translator, request: Request) -> list[int]:
    """The most output tokens for a source of 0, 1, 2, … tokens; the last for longer."""
    settings, positions = request.settings, translator.model.max_positions

    def fit(limit: int) -> int:
        return limit if positions is None else min(limit, positions)

    if request.max_length is not None:
        return [fit(request.max_length)]
    ratio = settings.max_length_ratio
    # One more than the division says, in case it was rounded.
    longest = math.ceil(settings.max_length / ratio) + 1 if ratio else 0
    if positions is not None:
        longest = min(longest, positions)
    return [fit(request.limit(length)) for length in range(longest + 1)]


def _write_graph(search: _GraphSearch, translator: Translator, folder: Path) -> None:
    """Writes the SavedModel; the archive is the one way that servers load rightly."""
    archive = keras.export.ExportArchive()
    for layer in (translator.model, search.source_tokenizer, search.target_tokenizer):
        archive.track(layer)
    archive.add_endpoint(
        "serving_default",
        search.translate,
        input_signature=[tf.TensorSpec((None,), tf.string, name="source")],
    )
    archive.add_endpoint(
        "decode_ids",
        search.decode_ids,
        input_signature=[
            tf.TensorSpec((None, None), tf.int32, name="ids"),
            tf.TensorSpec((None,), tf.int32, name="lengths"),
        ],
    )
    archive.write_out(str(folder), verbose=False)


def _write_manifest(search: _GraphSearch, translator: Translator, folder: Path) -> None:
    """Writes what the folder holds, with no time and no local path in it."""
    graph = Graph(folder)
    tokenizers = translator.tokenizers
    manifest = {
        "format": 1,
        "versions": {name: _installed(name) for name in _VERSIONED},
        "decoding": {
            **search.request.constants,
            "max_length": search.max_length,
            "follows_source": search.follows_source,
        },
        "tokenizer": {
            "source": tokenizers.source.fingerprint,
            "target": tokenizers.target.fingerprint,
        },
        "signatures": {
            name: {
                side: {
                    key: {
                        "dtype": tf.as_dtype(tensor.dtype).name,
                        "shape": [dim.size for dim in tensor.tensor_shape.dim],
                    }
                    for key, tensor in sorted(getattr(signature, side).items())
                }
                for side in ("inputs", "outputs")
            }
            for name, signature in graph.signatures.items()
        },
        "operations": sorted(graph.operations()),
        "files": file_sums(folder),
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def file_sums(folder: Path) -> dict[str, str]:
    """Computes the SHA-256 of every file below a folder, the manifest aside.

    Args:
        folder: Version folder.

    Returns:
        Sums as hexadecimal digits by relative path, with forward slashes.
    """
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(
            file.read_bytes()
        ).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / MANIFEST
    }


def _installed(name: str) -> str:
    """Version of an installed distribution, `unknown` where it is run from source."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _check_version(path: Path, version: int | None, overwrite: bool) -> int:
    """Decides the version's number; refuses one that would lose something."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"`path` must be a folder. Received the file: {path}.")
    existing = sorted(
        int(entry.name)
        for entry in (path.iterdir() if path.is_dir() else ())
        if re.fullmatch(r"[0-9]+", entry.name)
    )
    if version is None:
        return existing[-1] + 1 if existing else 1
    _at_least("version", version, 0)
    if version in existing and not overwrite:
        raise ValueError(
            f"Version {version} exists in {path}. Choose another `version` (the next "
            f"is {existing[-1] + 1}) or pass `overwrite`."
        )
    return version


def _at_least(name: str, value: int, least: int) -> int:
    """Checks that an argument is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}. Received: {value!r}."
        )
    return value
