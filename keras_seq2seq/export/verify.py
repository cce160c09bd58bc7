"""Checks a SavedModel as a server will use it, without trusting what it says.

The graph is read as data first and runs only if all its operations are allowed. It
then runs from a copy in another folder, in a fresh process that does not import this
package, through the loader that TF Serving uses and through Python's own
(`session_process`).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.corpora import clean_line
from keras_seq2seq.export import session_process
from keras_seq2seq.export.operations import Graph
from keras_seq2seq.export.saved_model import MANIFEST, as_translator
from keras_seq2seq.export.static_checks import Check, static_checks
from keras_seq2seq.pipelines import Translator
from keras_seq2seq.tokenizers import END_ID, TokenizerPair

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
# What a client can send but no Python string can hold, or nobody means to send.
ODD_SOURCES = (b"\xff\xfe\x80", b"\xf0\x9f\x98", b"\x00\x01\r\n", b"", b"word " * 400)
# Between two programs that compute the same in another order.
TOLERANCE = 1e-4
TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found.

    Args:
        path: The version folder.
        checks: Every check, in the order they were made.
    """

    path: Path
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every property holds."""
        return all(check.ok for check in self.checks)

    def table(self) -> str:
        """Returns the checks as lines of aligned text."""
        width = max(len(check.name) for check in self.checks)
        results = {True: "ok", False: "FAILED"}
        return "\n".join(
            f"{check.name:<{width}}  {results[check.ok]:<6}  {check.detail}"
            for check in self.checks
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as values for JSON."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "checks": [vars(check) for check in self.checks],
        }


def verify(
    path: str | Path,
    *,
    run: str | Path | Translator | None = None,
    sentences: Sequence[str] | None = None,
) -> VerifyReport:
    """Checks what `export_saved_model` wrote, by running every signature.

    Args:
        path: A version folder, or its parent, of which the largest version is taken.
        run: The run folder, or its Translator, that the answers must equal. None to
            check the SavedModel in itself.
        sentences: Texts to translate; by default a few with blank ones among them.

    Returns:
        A report; its `ok` says whether every check passed.

    Raises:
        FileNotFoundError: If there is no SavedModel, or no such run.
        ValueError: If `saved_model.pb` is damaged, or the run is not one of text.
    """
    # Before the minutes that the rest can take.
    translator = None if run is None else as_translator(run)
    folder = _version_folder(Path(path))
    graph = Graph(folder)
    checks = static_checks(folder, graph)
    # A SavedModel is a program: one that fails here is not run.
    if not all(check.ok for check in checks):
        checks.append(Check("runs", False, "not run, since a check above failed"))
        return VerifyReport(folder, tuple(checks))

    texts = list(SENTENCES if sentences is None else sentences)
    requests = _Requests(TokenizerPair.load(folder / "tokenizer"), texts)
    try:
        loaders, imported = _run_in_fresh_process(folder, requests.packed)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        checks.append(Check("runs", False, str(error)))
        return VerifyReport(folder, tuple(checks))
    answers = loaders["session"]
    checks += [
        _check_runs(answers, imported),
        _check(
            "replies",
            "one row for each asked, finite scores, valid UTF-8",
            requests.valid,
            answers,
        ),
    ]
    if all(check.ok for check in checks):
        checks += [
            _check_loaders(requests, loaders),
            _check(
                "blank sources",
                "blank sources get blank texts",
                requests.blank,
                answers,
            ),
            _check(
                "merged requests",
                f"{len(texts)} requests merged, padded and filled up answer as alone",
                requests.merged,
                answers,
            ),
        ]
        if translator is not None:
            checks.append(
                _check_python(requests, answers, translator, _decoding(folder))
            )
    return VerifyReport(folder, tuple(checks))


class _Requests:
    """The requests of a verification, and what their answers must have in common.

    Each text goes to `serving_default` alone, then all merged; the same for its ids to
    `decode_ids`, merged as TF Serving does: short rows padded with the tensor's first
    element, and copies of the first row to fill the batch. At the end come odd
    requests, which must be answered by something valid.
    """

    def __init__(self, tokenizers: TokenizerPair, texts: list[str]) -> None:
        if not texts:
            raise ValueError("`sentences` must hold at least one text. Received: none.")
        self.texts = texts
        ids = [[*tokenizers.source.encode(clean_line(text)), END_ID] for text in texts]
        self.is_blank = [len(row) == 1 for row in ids]
        count, size = len(texts), 2 ** (len(texts) - 1).bit_length() + 1
        encoded = [text.encode("utf-8") for text in texts]
        filled = [*encoded, *[encoded[0]] * (size - count)]

        self.packed: list[dict[str, Any]] = []
        self.text_alone = [self._add_text([text]) for text in encoded]
        self.text_merged = self._add_text(filled)
        self.ids_alone = [self._add_ids([row]) for row in ids]
        self.ids_merged = self._add_ids([*ids, *[ids[0]] * (size - count)])
        self._add_odd(tokenizers.source.vocabulary_size)

    def _add_odd(self, vocabulary_size: int) -> None:
        """Adds what nobody means to send: no text, unknown ids, wrong lengths."""
        self._add_text(list(ODD_SOURCES))
        self._add_ids([[vocabulary_size + 7, -5, END_ID], [4, 4, 4], [END_ID]])
        self._add("decode_ids", ids=np.full((2, 3), 4, "int32"), lengths=[0, 99])

    def _add(self, signature: str, **inputs: Any) -> int:
        """Appends one request; returns its number."""
        packed = {
            name: session_process.pack(
                np.asarray(value, object if name == "source" else "int32")
            )
            for name, value in inputs.items()
        }
        self.packed.append({"signature": signature, "in": packed})
        return len(self.packed) - 1

    def _add_text(self, texts: list[bytes]) -> int:
        return self._add("serving_default", source=texts)

    def _add_ids(self, rows: list[list[int]]) -> int:
        width = max(len(row) for row in rows)
        padded = [row + [row[0]] * (width - len(row)) for row in rows]
        return self._add("decode_ids", ids=padded, lengths=[len(row) for row in rows])

    def valid(self, answers: list[dict]) -> list[str]:
        """Names the replies that a server could not pass on."""
        wrong = []
        for request, answer in zip(self.packed, answers, strict=True):
            name = request["signature"]
            (num_rows,) = {value["shape"][0] for value in request["in"].values()}
            for key, value in answer.items():
                if key == "error":
                    continue
                if np.shape(value)[:1] != (num_rows,):
                    wrong.append(f"{name}: {key} has not {num_rows} rows")
                if value.dtype.kind == "f" and not np.all(np.isfinite(value)):
                    wrong.append(f"{name}: {key} is not finite")
                if value.dtype.kind == "O":
                    wrong += [
                        f"{name}: {key} holds {text!r}, no UTF-8"
                        for text in value.flat
                        if "\ufffd" in text.decode("utf-8", errors="replace")
                        and b"\xef\xbf\xbd" not in text
                    ]
        return wrong

    def blank(self, answers: list[dict]) -> list[str]:
        """Names the blank sources with another answer than a blank one."""
        text, ids = answers[self.text_merged], answers[self.ids_merged]
        return [
            f"{self.texts[row]!r} gives {text['text'][row]!r}"
            for row, is_blank in enumerate(self.is_blank)
            if is_blank
            and (text["text"][row] != b"" or ids["output_lengths"][row] != 0)
        ]

    def merged(self, answers: list[dict]) -> list[str]:
        """Names the rows that are answered differently alone and in a batch."""
        wrong = []
        for alone, merged in (
            (self.text_alone, self.text_merged),
            (self.ids_alone, self.ids_merged),
        ):
            batch = answers[merged]
            rows = range(len(batch["score"]))
            for row in rows:
                # Rows past the texts are copies of the first.
                text = row if row < len(self.texts) else 0
                single = answers[alone[text]]
                if any(not _same(single[name][0], batch[name][row]) for name in batch):
                    wrong.append(f"{self.texts[text]!r} in row {row}")
        return wrong


def _run_in_fresh_process(
    folder: Path, requests: list[dict]
) -> tuple[dict[str, list[dict]], bool]:
    """Answers requests from a copy of the folder; the errors stand in the answers.

    Returns the answers by loader, and whether the process imported this package.
    """
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        moved = Path(place) / "renamed" / "7"
        shutil.copytree(folder, moved)
        asked, replied = Path(place) / "requests.json", Path(place) / "replies.json"
        asked.write_text(json.dumps(requests), encoding="utf-8")
        done = subprocess.run(
            # -P: neither this folder nor the current one is searched for modules.
            [sys.executable, "-P", session_process.__file__, moved, asked, replied],
            cwd=place,
            # The server's usual device, whatever is in use here.
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise RuntimeError(f"the process that loads it failed: {lines[-1]}")
        report = json.loads(replied.read_text(encoding="utf-8"))
    answers = {
        loader: [
            {name: session_process.unpack(v) for name, v in answer["outputs"].items()}
            if "outputs" in answer
            else answer
            for answer in found
        ]
        for loader, found in report["answers"].items()
    }
    return answers, report["package_imported"]


def _check(
    name: str, good: str, find: Callable[[list[dict]], list[str]], answers: list[dict]
) -> Check:
    """A check that lists what is wrong."""
    wrong = find(answers)
    return Check(name, not wrong, "; ".join(wrong[:3]) or good)


def _check_runs(answers: list[dict], imported: bool) -> Check:
    errors = [answer["error"] for answer in answers if "error" in answer]
    if imported:
        errors.append("the fresh process imported keras_seq2seq")
    good = f"{len(answers)} requests answered in a fresh process, from a moved copy"
    return Check("runs", not errors, "; ".join(errors[:2]) or good)


def _check_loaders(requests: _Requests, loaders: dict[str, list[dict]]) -> Check:
    """The same answers through Python's loader, which finds resources otherwise."""
    wrong = [
        f"request {number} to {request['signature']} is answered otherwise"
        for number, (request, one, other) in enumerate(
            zip(requests.packed, loaders["session"], loaders["eager"], strict=True)
        )
        if one.keys() != other.keys()
        or not all(_same(one[name], other[name]) for name in one)
    ]
    good = "tf.saved_model.load answers as the server's loader"
    return Check("Python loader", not wrong, "; ".join(wrong[:3]) or good)


def _check_python(
    requests: _Requests, answers: list[dict], translator: Translator, decoding: dict
) -> Check:
    """The same answers as the Translator in Python."""
    fixed = None if decoding["follows_source"] else decoding["max_length"]
    expected = translator.translate(
        requests.texts,
        num_beams=decoding["num_beams"],
        length_penalty=decoding["length_penalty"],
        max_length=fixed,
    )
    text, ids = answers[requests.text_merged], answers[requests.ids_merged]
    wrong, largest = [], 0.0
    for row, (best, *_) in enumerate(expected):
        served = text["text"][row].decode("utf-8")
        length = ids["output_lengths"][row]
        difference = max(
            abs(float(answer["score"][row]) - best.score) for answer in (text, ids)
        )
        largest = max(largest, difference)
        if (
            served != best.text
            or tuple(ids["output_ids"][row][:length]) != best.ids
            or difference > TOLERANCE * max(1.0, abs(best.score))
        ):
            wrong.append(f"{requests.texts[row]!r}: {served!r}, not {best.text!r}")
    good = f"{len(expected)} texts as in Python; scores within {largest:.1e}"
    return Check("equals Python", not wrong, "; ".join(wrong[:3]) or good)


def _decoding(folder: Path) -> dict[str, Any]:
    """The search's options as the manifest tells them."""
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["decoding"]


def _same(one: Any, other: Any) -> bool:
    """Whether two values of an answer are equal, numbers within rounding."""
    if isinstance(one, bytes) or np.asarray(one).dtype.kind in "iO":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE))


def _version_folder(path: Path) -> Path:
    """The folder itself if it holds a graph, else its largest version."""
    if (path / "saved_model.pb").is_file() or not path.is_dir():
        return path
    versions = [entry for entry in path.iterdir() if re.fullmatch("[0-9]+", entry.name)]
    return max(versions, key=lambda entry: int(entry.name), default=path)
