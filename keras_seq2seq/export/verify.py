"""Proves that an export answers as the model does, without trusting what it says.

What was written is read as data first. It then runs from a copy in another folder, in
a fresh process that does not import this package.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from keras_seq2seq.export.checks import VerifyReport
from keras_seq2seq.export.manifest import MANIFEST, as_translator, read_manifest
from keras_seq2seq.pipelines import Translator

SENTENCES = (
    "3 March 2024",
    "",
    "le 3 mars 2024",
    "two children are playing in the snow .",
    "   ",
    "a",
    "das ist ein längerer Satz , der mehr Wörter hat als alle anderen hier .",
    'é😀 "quoted" \u4e2d\u6587 \t end',
)


def verify(
    path: str | Path,
    *,
    run: str | Path | Translator | None = None,
    sentences: Sequence[str] | None = None,
    references: Sequence[str] | None = None,
) -> VerifyReport:
    """Checks what `export` wrote, by running every signature.

    Args:
        path: The folder of an export, or of its versions, of which the largest is
            taken.
        run: The run folder, or its Translator, that the answers must equal. None to
            check the export in itself.
        sentences: Texts to translate; by default a few with blank ones among them.
        references: Target texts of the sentences: the BLEU of the export, beside that
            of the run, tells what quantising costs. It may lose 0.3.

    Returns:
        A report; its `ok` says whether every check passed.

    Raises:
        FileNotFoundError: If there is no export, or no such run.
        ValueError: If the export is damaged beyond reading, the run is not one of
            text, there are no sentences, or not as many references.
        ImportError: If the runtime of this kind of export is not installed.
    """
    # Before the minutes that the rest can take.
    translator = None if run is None else as_translator(run)
    texts = list(SENTENCES if sentences is None else sentences)
    if not texts:
        raise ValueError("`sentences` must hold at least one text. Received: none.")
    if references is not None and len(references) != len(texts):
        raise ValueError(
            "`references` must be as many as `sentences`. Received: "
            f"{len(references)} for {len(texts)}."
        )
    folder = _export_folder(Path(path))
    kind = "saved_model"
    if (folder / MANIFEST).is_file():
        kind = read_manifest(folder).get("kind", kind)
    if kind == "litert":
        from keras_seq2seq.export.verify_litert import checks_of as checks
    elif kind == "ctranslate2":
        from keras_seq2seq.export.verify_ctranslate2 import checks_of as checks
    else:
        from keras_seq2seq.export.verify_saved_model import checks_of as checks
    told = None if references is None else list(references)
    return VerifyReport(folder, tuple(checks(folder, texts, translator, told)))


def _export_folder(path: Path) -> Path:
    """The folder itself if it holds an export, else its largest version."""
    whole = ((path / name).is_file() for name in (MANIFEST, "saved_model.pb"))
    if any(whole) or not path.is_dir():
        return path
    versions = [entry for entry in path.iterdir() if re.fullmatch("[0-9]+", entry.name)]
    return max(versions, key=lambda entry: int(entry.name), default=path)
