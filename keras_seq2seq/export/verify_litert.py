"""What is checked of a LiteRT export, by running its file as an app does."""

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.export.checks import Check, check_bleu, check_files, listed, mostly
from keras_seq2seq.export.litert_runtime import signatures_of
from keras_seq2seq.export.manifest import read_manifest
from keras_seq2seq.export.operations import ODD_LITERT_OPERATIONS, litert_operations
from keras_seq2seq.export.processes import report_of
from keras_seq2seq.lines import clean_texts
from keras_seq2seq.pipelines import Translator
from keras_seq2seq.tokenizers import END_ID, TokenizerPair
from keras_seq2seq.untrusted import read_json

# Between programs that compute the same in another order.
_TOLERANCE = 1e-3
_SEARCHES = ("translate", "translate_greedy", "translate_beam")
# So many texts go alone, merged, and step by step.
_NUM_ALONE = 6
_BATCH = 16


def checks_of(
    folder: Path,
    texts: list[str],
    translator: Translator | None,
    references: list[str] | None = None,
) -> list[Check]:
    """Checks the folder of an app.

    Args:
        folder: What `export_litert` wrote.
        texts: Texts to translate.
        translator: What the answers must equal; None to check the folder in itself.
        references: Target texts, to tell by what quantising costs.

    Returns:
        The checks, in order.

    Raises:
        ImportError: If LiteRT is not installed.
    """
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise ImportError(
            "LiteRT is not installed. Install it: pip install 'keras-seq2seq[litert]'."
        )
    checks = [check_files(folder), _check_operations(folder / "model.tflite")]
    if not all(check.ok for check in checks):
        checks.append(Check("runs", False, "not run, since a check above failed"))
        return checks
    decoding = read_manifest(folder)["decoding"]
    asked = _Asked(folder, texts, whole=translator is not None)
    checks.append(_check_signatures(folder, asked.config))
    program = Path(__file__).with_name("litert_process.py")
    try:
        report = report_of(
            program, folder, {"requests": asked.requests, "steps": asked.steps}
        )
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        checks.append(Check("runs", False, str(error)))
        return checks
    checks.append(_check_runs(report))
    if not checks[-1].ok:
        return checks
    answers = [
        {key: np.asarray(value) for key, value in answer.items()}
        for answer in report["BUILTIN"]
    ]
    checks += [
        _check_delegates(report, asked),
        _check_merged(asked, answers),
        _check_steps(asked, answers, report["steps"], decoding),
        _check_golden(folder, asked, answers),
    ]
    if translator is not None:
        checks += _checks_with_python(asked, answers, translator, folder, references)
    return checks


class _Asked:
    """The requests, and where the answers to which of them stand."""

    def __init__(self, folder: Path, texts: list[str], *, whole: bool) -> None:
        self.texts = texts
        self.tokenizers = TokenizerPair.load(folder / "tokenizer")
        self.config = read_json(folder / "config.json")
        self.exact = self.config["quantization"] == "none"
        golden = (folder / "golden.jsonl").read_text(encoding="utf-8")
        self.golden = [json.loads(line) for line in golden.splitlines()]
        encoded = self.tokenizers.source.encode(clean_texts(texts, "sentences"))
        self.ids = [[*row, END_ID] for row in encoded]
        self.requests: list[dict[str, Any]] = []
        some = list(range(min(len(texts), _NUM_ALONE)))
        names = [name for name in _SEARCHES if name in self.config["signatures"]]
        self.alone = {
            name: [self._add(name, [self.ids[row]]) for row in some] for name in names
        }
        self.merged = {
            name: self._add(name, [self.ids[row] for row in some]) for name in names
        }
        self.golden_at = [
            self._add("translate", [entry["ids"]]) for entry in self.golden
        ]
        # Texts of all lengths, so that limits may bind.
        batches = range(0, len(self.ids), _BATCH) if whole else ()
        self.whole = [
            self._add("translate", self.ids[start : start + _BATCH])
            for start in batches
        ]
        self.greedy = "translate_greedy" if "translate_greedy" in names else "translate"
        told = {key: self.config[key] for key in ("start_id", "end_id", "banned_ids")}
        self.steps_at = [row for row in some if len(self.ids[row]) > 1]
        self.steps = [
            {
                "ids": self.ids[row],
                "limit": self._of_length("length_limits", row),
                "least": self._of_length("min_lengths", row),
                **told,
            }
            for row in self.steps_at
        ]

    def _of_length(self, name: str, row: int) -> int:
        """What a table of the configuration says for the length of a source."""
        table = self.config[name]
        return table[min(len(self.ids[row]), len(table) - 1)]

    def _add(self, name: str, rows: list[list[int]]) -> int:
        """Appends a request, short rows filled as a server fills them."""
        width = max(map(len, rows))
        padded = [row + [row[0]] * (width - len(row)) for row in rows]
        inputs = {"ids": padded, "lengths": list(map(len, rows))}
        self.requests.append({"signature": name, "in": inputs})
        return len(self.requests) - 1


def _check_operations(file: Path) -> Check:
    found, custom = litert_operations(file.read_bytes())
    wrong = [f"{name} is a custom operation" for name in custom]
    wrong += [
        f"{name} is not allowed" for name in sorted(found & ODD_LITERT_OPERATIONS)
    ]
    return listed(
        "operations", wrong, f"{len(found)} kinds, all builtin, none of state"
    )


def _check_signatures(folder: Path, config: dict[str, Any]) -> Check:
    """The file offers what the configuration tells an app."""
    found = signatures_of(folder / "model.tflite")
    wrong = sorted(
        name
        for name in found.keys() | config["signatures"].keys()
        if found.get(name) != config["signatures"].get(name)
    )
    wrong = [f"{name} is not as in config.json" for name in wrong]
    for name, tensors in found.items():
        both = tensors["inputs"].keys() & tensors["outputs"].keys()
        wrong += [f"{name}: {key} is input and output" for key in sorted(both)]
    missing = {"translate", "encode", "step"} - found.keys()
    wrong += [f"{name} is missing" for name in sorted(missing)]
    if not wrong:
        outputs = found.get("translate_beam", found["translate"])["outputs"]
        _, *sizes = outputs["output_ids"]["shape"]
        for name, size in (("num_beams", [1, *sizes][-2]), ("max_length", sizes[-1])):
            if config.get(name) != size:
                wrong.append(f"{name} is not as in config.json")
    return listed("signatures", wrong, ", ".join(sorted(found)))


def _check_runs(report: dict[str, Any]) -> Check:
    errors = [f"the process imported {name}" for name in report["imported"]]
    errors += [a["error"] for a in report["BUILTIN"] if "error" in a]
    count = len(report["BUILTIN"])
    good = f"{count} requests answered in a fresh process, from a moved copy"
    return listed("runs", errors, good, most=2)


def _check_delegates(report: dict[str, Any], asked: _Asked) -> Check:
    """The same ids with LiteRT's own delegates and without."""
    other = report["BUILTIN_WITHOUT_DEFAULT_DELEGATES"]
    wrong = [
        f"request {number} to {asked.requests[number]['signature']}"
        for number, (one, two) in enumerate(zip(report["BUILTIN"], other, strict=True))
        if one["output_ids"] != two.get("output_ids")
    ]
    return mostly(
        "delegates",
        wrong,
        len(other),
        "answered alike without delegates",
        exact=asked.exact,
    )


def _check_merged(asked: _Asked, answers: list[dict]) -> Check:
    wrong = []
    for name, number in asked.merged.items():
        for row, single in enumerate(asked.alone[name]):
            one, batch = answers[single], answers[number]
            same = np.array_equal(one["output_ids"][0], batch["output_ids"][row])
            if not same:
                wrong.append(f"{asked.texts[row]!r} in {name}")
    count = sum(map(len, asked.alone.values()))
    return mostly(
        "merged requests",
        wrong,
        count,
        "answered in a batch as alone",
        exact=asked.exact,
    )


def _check_steps(
    asked: _Asked, answers: list[dict], steps: list[list[int]], decoding: dict[str, Any]
) -> Check:
    if decoding["repetition_penalty"] != 1 or decoding["no_repeat_ngram_size"]:
        detail = "not compared: the search looks back at what it wrote"
        return Check("encode, step", True, detail)
    wrong = []
    for row, written in zip(asked.steps_at, steps, strict=True):
        found = answers[asked.alone[asked.greedy][row]]
        expected = found["output_ids"][0][: found["output_lengths"][0]].tolist()
        if written != expected:
            wrong.append(repr(asked.texts[row]))
    return mostly(
        "encode, step",
        wrong,
        len(steps),
        "written step by step as at once",
        exact=asked.exact,
    )


def _check_golden(folder: Path, asked: _Asked, answers: list[dict]) -> Check:
    """What an app must match: ids by the tokenizer, outputs by the file."""
    wrong = []
    texts = clean_texts([entry["source"] for entry in asked.golden], "texts")
    for entry, row, number in zip(
        asked.golden,
        asked.tokenizers.source.encode(texts),
        asked.golden_at,
        strict=True,
    ):
        found = answers[number]
        ids = found["output_ids"][0][: found["output_lengths"][0]].tolist()
        if [*row, END_ID] != entry["ids"] or ids != entry["output_ids"]:
            wrong.append(repr(entry["source"]))
    count = len(asked.golden)
    return mostly("golden vectors", wrong, count, "reproduced", exact=asked.exact)


def _checks_with_python(
    asked: _Asked,
    answers: list[dict],
    translator: Translator,
    folder: Path,
    references: list[str] | None,
) -> list[Check]:
    decoding = read_manifest(folder)["decoding"]
    found = translator.translate(
        asked.texts,
        num_beams=decoding["num_beams"],
        length_penalty=decoding["length_penalty"],
        max_length=None if decoding["follows_source"] else decoding["max_length"],
        temperature=0.0,
    )
    expected = [hypotheses[0] for hypotheses in found]
    parts = [answers[number] for number in asked.whole]
    ids, lengths, scores = (
        np.concatenate([part[key] for part in parts])
        for key in ("output_ids", "output_lengths", "score")
    )
    texts = [
        asked.tokenizers.target.decode(row[:length].tolist())
        for row, length in zip(ids, lengths, strict=True)
    ]
    wrong = [
        repr(asked.texts[row])
        for row, best in enumerate(expected)
        if texts[row] != best.text
        or asked.exact
        and abs(scores[row] - best.score) > _TOLERANCE * max(1, abs(best.score))
    ]
    good = "answers as in Python"
    checks = [
        mostly("translate = Python", wrong, len(expected), good, exact=asked.exact)
    ]
    if references is not None:
        ours = [best.text for best in expected]
        checks.append(check_bleu(texts, ours, references, translator))
    return checks
