"""`manifest.json` of an export: what the folder holds, and the sum of every file."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_seq2seq.pipelines import Translator, load
from keras_seq2seq.untrusted import read_json

MANIFEST = "manifest.json"

_VERSIONED = (
    "keras-seq2seq",
    "keras",
    "keras-hub",
    "sentencepiece",
    "tensorflow",
    "tensorflow-text",
)


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


def write_manifest(
    folder: Path,
    kind: str,
    translator: Translator,
    *,
    decoding: Mapping[str, Any],
    facts: Mapping[str, Any],
    max_positions: int | None = None,
    more_versions: tuple[str, ...] = (),
) -> None:
    """Writes what a folder holds, with no time and no local path in it.

    Args:
        folder: The folder, complete but for this file.
        kind: `"saved_model"`, `"litert"` or `"ctranslate2"`.
        translator: What was exported.
        decoding: The search's options.
        facts: What else is told of this kind.
        max_positions: Most tokens of a text, where that is not the model's own limit.
        more_versions: Further distributions that made it.
    """
    tokenizers = translator.tokenizers
    manifest = {
        "format": 2,
        "kind": kind,
        "versions": {name: _installed(name) for name in (*_VERSIONED, *more_versions)},
        "model": {
            "name": type(translator.model).__name__,
            "max_positions": max_positions or translator.model.max_positions,
            "source_vocabulary_size": translator.model.source_vocabulary_size,
            "target_vocabulary_size": translator.model.target_vocabulary_size,
        },
        "decoding": dict(decoding),
        "tokenizer": {
            "source": tokenizers.source.fingerprint,
            "target": tokenizers.target.fingerprint,
        },
        **facts,
        "files": file_sums(folder),
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads what a folder says of itself.

    Args:
        folder: A folder that `export` wrote.

    Raises:
        FileNotFoundError: If it has no manifest.
        ValueError: If the file is no manifest, or too large.
    """
    file = folder / MANIFEST
    if not file.is_file():
        raise FileNotFoundError(
            f"No {MANIFEST} in {folder}. Expected a folder that `export` wrote."
        )
    manifest = read_json(file)
    if not isinstance(manifest, dict) or "files" not in manifest:
        raise ValueError(f"{file} is no manifest of an export. Export the run again.")
    return manifest


def file_sums(folder: Path) -> dict[str, str]:
    """Computes the SHA-256 of every file below a folder, the manifest aside.

    Args:
        folder: What `export` wrote.

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
