"""What is checked of a CTranslate2 export, by running it without this package."""

import importlib.util
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.export.checks import Check, check_bleu, check_files, listed, mostly
from keras_seq2seq.export.ctranslate2 import SEARCH
from keras_seq2seq.export.ctranslate2_runtime import vocabulary_of
from keras_seq2seq.export.manifest import read_manifest
from keras_seq2seq.export.processes import report_of
from keras_seq2seq.lines import clean_texts
from keras_seq2seq.outputs import Hypothesis
from keras_seq2seq.pipelines import Translator
from keras_seq2seq.requests import make_request
from keras_seq2seq.tokenizers import UNK_ID, TokenizerPair

_TOLERANCE = 1e-3
_NUM_ALONE = 8


def checks_of(
    folder: Path,
    texts: list[str],
    translator: Translator | None,
    references: list[str] | None = None,
) -> list[Check]:
    """Checks a folder that CTranslate2 loads.

    Args:
        folder: What `export_ctranslate2` wrote.
        texts: Texts to translate.
        translator: What the answers must equal; None to check the folder in itself.
        references: Target texts, to tell by what quantising costs.

    Returns:
        The checks, in order.

    Raises:
        ImportError: If CTranslate2 is not installed.
    """
    if importlib.util.find_spec("ctranslate2") is None:
        raise ImportError(
            "CTranslate2 is not installed: pip install 'keras-seq2seq[ctranslate2]'."
        )
    manifest = read_manifest(folder)
    tokenizers = TokenizerPair.load(folder / "tokenizer")
    checks = [check_files(folder), _check_vocabularies(folder, tokenizers)]
    if not all(check.ok for check in checks):
        checks.append(Check("runs", False, "not run, since a check above failed"))
        return checks
    asked = _Asked(tokenizers, texts, manifest)
    program = Path(__file__).with_name("ctranslate2_process.py")
    try:
        report = report_of(
            program, folder, {"requests": asked.requests, "options": asked.options}
        )
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        checks.append(Check("runs", False, str(error)))
        return checks
    errors = [f"the process imported {name}" for name in report["imported"]]
    good = f"{len(asked.requests)} batches in a fresh process, from a moved copy"
    checks.append(listed("runs", errors, good))
    found = asked.answers(report["answers"])
    checks.append(_check_merged(asked, found, report["answers"], manifest))
    if translator is not None:
        expected = translator.translate(
            texts,
            num_beams=manifest["decoding"]["num_beams"],
            length_penalty=manifest["decoding"]["length_penalty"],
            temperature=0.0,
            **SEARCH,
        )
        best = [hypotheses[0] for hypotheses in expected]
        checks.append(_check_python(asked, found, best, manifest))
        if references is not None:
            written = [text for text, _ in found]
            ours = [hypothesis.text for hypothesis in best]
            checks.append(check_bleu(written, ours, references, translator))
    return checks


class _Asked:
    """Batches of texts that have one limit, and then some alone."""

    def __init__(
        self, tokenizers: TokenizerPair, texts: list[str], manifest: dict[str, Any]
    ) -> None:
        self.texts = texts
        self.tokenizers = tokenizers
        decoding, positions = manifest["decoding"], manifest["model"]["max_positions"]
        request = make_request(DecodingConfig(**manifest["settings"]), {})
        self.options = {
            "beam_size": decoding["num_beams"],
            "length_penalty": decoding["length_penalty"],
            "disable_unk": UNK_ID in decoding["banned_ids"],
        }
        self._target_ids = {
            token: index
            for index, token in enumerate(
                tokenizers.target.pieces(range(tokenizers.target.vocabulary_size))
            )
        }
        groups = defaultdict(list)
        self.pieces = []
        encoded = tokenizers.source.encode(clean_texts(texts, "sentences"))
        for row, ids in enumerate(encoded):
            kept = ids if positions is None else ids[: positions - 1]
            self.pieces.append(tokenizers.source.pieces(kept))
            limit = request.limit(len(kept) + 1)
            if ids:  # a blank text is not asked
                limit = limit if positions is None else min(limit, positions)
                groups[limit].append(row)
        self.limits = {row: limit for limit, rows in groups.items() for row in rows}
        self.rows = [rows for _, rows in sorted(groups.items())]
        self.alone = [row for row in range(len(texts)) if row in self.limits]
        self.alone = self.alone[:_NUM_ALONE]
        self.requests = [
            {
                "sources": [self.pieces[row] for row in rows],
                "limit": self.limits[rows[0]],
            }
            for rows in [*self.rows, *[[row] for row in self.alone]]
        ]

    def answer(self, tokens: list[str], score: float) -> tuple[str, float]:
        """Text and score of what was written."""
        ids = [self._target_ids[token] for token in tokens]
        return self.tokenizers.target.decode(ids), score

    def answers(self, report: list[list]) -> list[tuple[str, float]]:
        """Text and score for every text, in order; nothing for blank ones."""
        found = [("", 0.0)] * len(self.texts)
        for rows, answers in zip(self.rows, report, strict=False):
            for row, (tokens, score) in zip(rows, answers, strict=True):
                found[row] = self.answer(tokens, score)
        return found


def _check_vocabularies(folder: Path, tokenizers: TokenizerPair) -> Check:
    """The engine's words are the tokenizers' pieces, in order."""
    wrong = [
        f"the {side} vocabulary is not that of tokenizer/"
        for side in ("source", "target")
        for tokenizer in [getattr(tokenizers, side)]
        if vocabulary_of(folder, side)
        != tokenizer.pieces(range(tokenizer.vocabulary_size))
    ]
    sizes = tokenizers.source.vocabulary_size, tokenizers.target.vocabulary_size
    return listed("vocabularies", wrong, f"{sizes[0]:,} and {sizes[1]:,} pieces")


def _check_merged(
    asked: _Asked, found: list, report: list[list], manifest: dict[str, Any]
) -> Check:
    single = report[len(asked.rows) :]
    wrong = [
        repr(asked.texts[row])
        for row, ((tokens, score),) in zip(asked.alone, single, strict=True)
        if asked.answer(tokens, score)[0] != found[row][0]
    ]
    good = "answered in a batch as alone"
    return mostly(
        "merged requests", wrong, len(asked.alone), good, exact=_is_exact(manifest)
    )


def _check_python(
    asked: _Asked, found: list, expected: list[Hypothesis], manifest: dict[str, Any]
) -> Check:
    """The same texts and scores, but for outputs that were cut at their limit."""
    # There CTranslate2 ranks what it cuts among what has ended; we do not.
    ended = [row for row, best in enumerate(expected) if best.finished]
    exact = _is_exact(manifest)
    wrong = [
        repr(asked.texts[row])
        for row in ended
        if found[row][0] != expected[row].text
        or exact
        and abs(found[row][1] - expected[row].score)
        > _TOLERANCE * max(1, abs(expected[row].score))
    ]
    good = "answers as in Python"
    if len(ended) < len(expected):
        good += f"; {len(expected) - len(ended)} cut at their limit are not compared"
    return mostly("translate = Python", wrong, len(ended), good, exact=exact)


def _is_exact(manifest: dict[str, Any]) -> bool:
    return manifest["quantization"] in (None, "float32")
