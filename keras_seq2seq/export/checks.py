"""What a verification reports, whatever it verified."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_seq2seq.evaluation import evaluate_texts
from keras_seq2seq.export.manifest import MANIFEST, file_sums, read_manifest
from keras_seq2seq.pipelines import Translator

#: How much BLEU an export may lose against the run.
MOST_BLEU_LOST = 0.3


@dataclass(frozen=True)
class Check:
    """One property that was looked at.

    Args:
        name: The property.
        ok: Whether it holds.
        detail: What was found.
    """

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found.

    Args:
        path: The folder.
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


def listed(name: str, wrong: list[str], good: str, *, most: int = 3) -> Check:
    """A check that says what is wrong, or what is good.

    Args:
        name: The property.
        wrong: What was found wrong.
        good: What to say where nothing is.
        most: How much of it is told.
    """
    more = f"; and {len(wrong) - most} more" if len(wrong) > most else ""
    return Check(name, not wrong, "; ".join(wrong[:most]) + more if wrong else good)


def mostly(name: str, wrong: list[str], count: int, good: str, *, exact: bool) -> Check:
    """A check of answers: all of them, or half where weights are quantised.

    Args:
        name: The property.
        wrong: The answers that are wrong.
        count: How many answers there are.
        good: What is said of those that are right, after their number.
        exact: Whether all must be right. Quantised activations are scaled by what
            else is in the batch, so that a close choice may fall differently.
    """
    if exact:
        return listed(name, wrong, f"{count} {good}")
    right = count - len(wrong)
    return Check(name, 2 * right >= count, f"{right} of {count} {good}")


def check_files(folder: Path) -> Check:
    """Compares files with the manifest's sums: integrity, not trust.

    Args:
        folder: What `export` wrote.
    """
    if not (folder / MANIFEST).is_file():
        return Check("files", False, f"no {MANIFEST}; export the run again")
    expected = read_manifest(folder)["files"]
    found = file_sums(folder)
    wrong = sorted(
        name
        for name in expected | found
        if expected.get(name) != found.get(name)
        # What deployment may add later: warm-up requests of its own.
        and not (name.startswith("assets.extra/") and name not in expected)
    )
    if wrong:
        return Check("files", False, f"not as in {MANIFEST}: {', '.join(wrong[:3])}")
    return Check("files", True, f"{len(expected)} files as in {MANIFEST}")


def check_bleu(
    texts: Sequence[str],
    expected: Sequence[str],
    references: Sequence[str],
    translator: Translator,
) -> Check:
    """Compares the quality of an export's texts with that of the run's.

    Args:
        texts: What the export wrote.
        expected: What the run wrote for the same sources.
        references: What should have been written.
        translator: The run, whose `[evaluation]` says how texts are compared.
    """
    config = translator.config
    tokenize = None if config is None else config.evaluation.bleu_tokenize
    ours, theirs = (
        evaluate_texts(found, references, tokenize=tokenize, metrics=["bleu"])["bleu"]
        for found in (texts, expected)
    )
    detail = f"{ours:.2f}, the run {theirs:.2f}: {ours - theirs:+.2f}"
    return Check("BLEU", ours - theirs >= -MOST_BLEU_LOST, detail)
