"""Translators over what `export` wrote: the same text in and out, another engine.

The options of the search are constants of a SavedModel and of a LiteRT file; one asked
for otherwise is refused, never ignored.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from keras_seq2seq.batches import Batch, num_cores, pad_rows
from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.decoding import SearchResult
from keras_seq2seq.export.manifest import MANIFEST, read_manifest
from keras_seq2seq.outputs import Source
from keras_seq2seq.requests import Request
from keras_seq2seq.scoring import Score
from keras_seq2seq.tokenizers import END_ID, UNK_ID, TokenizerPair
from keras_seq2seq.translator import Translator

RUNTIMES = ("saved_model", "litert", "ctranslate2")
# What each engine takes at every call, of the options and of `[decoding]`.
_FREE = {
    "saved_model": {"n_best", "batch_tokens"},
    "litert": {"n_best", "batch_tokens"},
    "ctranslate2": {
        *("n_best", "batch_tokens", "num_beams", "length_penalty"),
        *("max_length_ratio", "max_length_offset"),
    },
}
# What none of them does, however it was exported.
_NEVER = {
    "alternatives": "alternatives",
    "return_attention": "attention",
    "return_token_scores": "token scores",
    "temperature": "samples",
}
# Options of a call by the names of `SearchInputs`.
_CONSTRAINTS = {
    "prefix_ids": "prefixes",
    "required_phrases": "required phrases",
    "banned_phrases": "banned phrases",
}

#: Hypotheses of a batch: from ids `(B, S)`, lengths, limits and the request to ids
#: `(B, N, L)`, lengths and scores `(B, N)`.
Engine = Callable[[np.ndarray, np.ndarray, np.ndarray, Request], tuple]


def load_runtime(path: str | Path, runtime: str) -> "RuntimeTranslator":
    """Loads an export as a Translator.

    Args:
        path: The folder of an export, or a run folder, of whose `exports` the one of
            this runtime is taken: the largest version of a SavedModel.
        runtime: `"saved_model"`, `"litert"` or `"ctranslate2"`.

    Returns:
        A Translator that does what its engine can: no constraints, attention, token
        scores or streaming, and no samples.

    Raises:
        FileNotFoundError: If there is no such export.
        ValueError: If there is no such runtime, the folder holds another export, or a
            SavedModel holds what must not be run.
        ImportError: If the engine is not installed.
    """
    if runtime not in RUNTIMES:
        raise ValueError(
            f"`runtime` must be one of {', '.join(map(repr, RUNTIMES))}. "
            f"Received: runtime={runtime!r}."
        )
    folder = _export_of(Path(path), runtime)
    manifest = read_manifest(folder)
    if manifest.get("kind") != runtime:
        raise ValueError(
            f"{folder} must be an export of the kind {runtime!r}. Received: "
            f"{manifest.get('kind')!r}."
        )
    return RuntimeTranslator(folder, manifest, _ENGINES[runtime](folder, manifest))


class RuntimeTranslator(Translator):
    """A Translator whose batches another engine decodes.

    Args:
        folder: The export.
        manifest: What it says of itself.
        engine: Decodes a batch.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], engine: Engine) -> None:
        # It stands for the model where only sizes are asked for.
        facts: Any = SimpleNamespace(**manifest["model"])
        super().__init__(facts, TokenizerPair.load(folder / "tokenizer"))
        self.decoding = DecodingConfig(**manifest["settings"])
        self.folder = folder
        self._manifest = manifest
        self._engine = engine

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Refuse: an export writes whole outputs."""
        raise self._not_there("streaming")

    def score(self, sources: Any, targets: Any, **options: Any) -> list[Score]:
        """Refuse: scores of given targets are the model's."""
        raise self._not_there("scoring")

    def _not_there(self, what: str) -> ValueError:
        return ValueError(
            f"An export has no {what}. Received: runtime "
            f"{self._manifest['kind']!r}. Use the run itself, --runtime keras."
        )

    def _search(
        self,
        request: Request,
        sources: Sequence[Source],
        inputs: dict[str, np.ndarray],
        rows: Sequence[int],
        batch: Batch,
    ) -> SearchResult:
        self._check(request, inputs)
        ids = [sources[row].ids for row in rows]
        output_ids, lengths, scores = self._engine(
            pad_rows(ids, len(ids), max(map(len, ids))),
            np.asarray([len(row) for row in ids], "int32"),
            np.asarray([self._limit(request, sources[row]) for row in rows], "int32"),
            request,
        )
        last = np.take_along_axis(
            output_ids, np.maximum(lengths - 1, 0)[..., None], axis=2
        )[..., 0]
        return SearchResult(
            ids=output_ids,
            lengths=lengths,
            scores=scores,
            # Engines tell one number: what they rank by.
            log_probs=np.full_like(scores, np.nan),
            finished=(last == END_ID) & (lengths > 0),
        )

    def _check(self, request: Request, inputs: dict[str, np.ndarray]) -> None:
        """Refuses what the export does not do, or does otherwise."""
        kind = self._manifest["kind"]
        fixed = {**self._manifest["settings"], **self._manifest["decoding"]}
        for name, what in _NEVER.items():
            if request.constants[name]:
                raise self._not_there(f"{what} ({name} = {request.constants[name]})")
        if inputs:
            raise self._not_there(", ".join(_CONSTRAINTS[name] for name in inputs))
        if kind != "ctranslate2":
            if request.n_best > fixed["num_beams"]:
                raise ValueError(
                    f"`n_best` must be at most the export's num_beams = "
                    f"{fixed['num_beams']}. Received: n_best = {request.n_best}."
                )
            own = "None" if fixed["follows_source"] else fixed["max_length"]
            if request.max_length not in (None, own):
                raise self._otherwise("max_length", own, request.max_length)
        asked = {**request.settings.model_dump(), **request.constants}
        for name in sorted(asked.keys() - _FREE[kind] - {"max_length"}):
            value = asked[name]
            value = list(value) if isinstance(value, tuple) else value
            if value != fixed.get(name, value):
                raise self._otherwise(name, fixed[name], value)

    def _otherwise(self, name: str, fixed: Any, value: Any) -> ValueError:
        return ValueError(
            f"The export in {self.folder} was made with {name} = {fixed}. Received: "
            f"{name} = {value}. Export the run again with it, or use the run itself, "
            "--runtime keras."
        )


def _export_of(path: Path, runtime: str) -> Path:
    """The folder of an export, given directly, by its versions or by its run."""
    tried = [path, path / "exports" / runtime]
    for folder in tried:
        if (folder / MANIFEST).is_file():
            return folder
        versions = [] if not folder.is_dir() else list(folder.glob("[0-9]*"))
        whole = [v for v in versions if v.name.isdigit() and (v / MANIFEST).is_file()]
        if whole:
            return max(whole, key=lambda entry: int(entry.name))
    raise FileNotFoundError(
        f"No export of the kind {runtime!r} in {path} or {tried[1]}. Write one: "
        f"keras-seq2seq export RUN --format {runtime}."
    )


def _saved_model_engine(folder: Path, manifest: dict[str, Any]) -> Engine:
    import tensorflow as tf

    from keras_seq2seq.export.operations import Graph
    from keras_seq2seq.export.static_checks import static_checks

    # A SavedModel is a program.
    checks = static_checks(Graph(folder), jit=bool(manifest.get("jit")))
    wrong = [f"{check.name}: {check.detail}" for check in checks if not check.ok]
    if wrong:
        raise ValueError(f"{folder} must pass `verify`. Received: {'; '.join(wrong)}.")
    loaded = tf.saved_model.load(str(folder))

    def decode(ids: Any, lengths: Any, limits: Any, request: Request) -> tuple:
        many = request.constants["n_best"] > 1
        serve = loaded.signatures["decode_ids_beam" if many else "decode_ids"]
        found = serve(ids=tf.constant(ids), lengths=tf.constant(lengths))
        return _hypotheses({name: value.numpy() for name, value in found.items()})

    return decode


def _litert_engine(folder: Path, manifest: dict[str, Any]) -> Engine:
    from keras_seq2seq.export.litert_runtime import LiteRTDecoder

    decoders: dict[str, LiteRTDecoder] = {}
    lock = threading.Lock()

    def decoder(name: str) -> LiteRTDecoder:
        with lock:  # batches come side by side
            if name not in decoders:
                decoders[name] = LiteRTDecoder(
                    folder / "model.tflite", num_workers=num_cores(), signature=name
                )
            return decoders[name]

    def decode(ids: Any, lengths: Any, limits: Any, request: Request) -> tuple:
        many = request.constants["n_best"] > 1
        return _hypotheses(
            decoder("translate_beam" if many else "translate")(ids, lengths)
        )

    return decode


def _hypotheses(found: dict[str, np.ndarray]) -> tuple:
    """Ids, lengths and scores, one hypothesis in place of none."""
    ids, lengths = found["output_ids"], found["output_lengths"]
    if ids.ndim == 3:
        return ids, lengths, found["scores"]
    return ids[:, None], lengths[:, None], found["score"][:, None]


def _ctranslate2_engine(folder: Path, manifest: dict[str, Any]) -> Engine:
    from keras_seq2seq.export.ctranslate2_runtime import CTranslate2Engine

    return CTranslate2Engine(
        folder, allow_unknown=UNK_ID not in manifest["decoding"]["banned_ids"]
    )


_ENGINES: dict[str, Callable[[Path, dict[str, Any]], Engine]] = {
    "saved_model": _saved_model_engine,
    "litert": _litert_engine,
    "ctranslate2": _ctranslate2_engine,
}
