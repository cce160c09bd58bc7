"""What a comparison of systems knows, and its table.

`comparison` fills it; read back, it spares what is measured already.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from keras_seq2seq.progress import duration
from keras_seq2seq.runs import write_text
from keras_seq2seq.speed import hardware_line

_LABELS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match, %",
    "wer": "WER, %",
    "per": "PER, %",
}
_UNITS = ("sentences", "tokens")


@dataclasses.dataclass
class Row:
    """One system of a comparison; `None` and empty until it is measured.

    Attributes:
        name: The recipe's file name without suffix, and that of the run folder.
        recipe: The recipe.
        model: Name of the model.
        status: `"waiting"`, `"finished"` or `"failed"`.
        reason: Why it failed.
        quality: Metrics of `[evaluation]` on the test set, and the perplexity.
        sentences: Sentences of the test set.
        notes: What the evaluation found suspicious.
        parameters: Numbers in the model's weights.
        seconds: Time of all epochs, validation included.
        epochs: Epochs run.
        best_epoch: The epoch whose model was kept; None where it is the mean of the
            last ones.
        monitor: `training.monitor`; empty without validation data.
        validation: Its value for the model that was kept.
        decoding: Settings of the decoding.
        weights_sha256: Sum of the weights that were measured.
        speed: For `"greedy"` and, if the recipe has more than one, for its `"beam"`:
            `num_beams`, `seconds`, `tokens_per_second`, `sentences_per_second`.
    """

    name: str
    recipe: str
    model: str = ""
    status: str = "waiting"
    reason: str = ""
    quality: dict[str, float] = dataclasses.field(default_factory=dict)
    sentences: int | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    parameters: int | None = None
    seconds: float | None = None
    epochs: int | None = None
    best_epoch: int | None = None
    monitor: str = ""
    validation: float | None = None
    decoding: dict[str, Any] = dataclasses.field(default_factory=dict)
    weights_sha256: str = ""
    speed: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Comparison:
    """What a comparison knows so far.

    Attributes:
        rows: The systems, in the order of the recipes.
        data: Files of the one data set.
        evaluation: The one `[evaluation]`.
        signatures: sacreBLEU's signatures of the metrics that have one.
        speed: How speeds were measured: on what, how often and on which hardware.
    """

    rows: list[Row]
    data: dict[str, Any]
    evaluation: dict[str, Any]
    signatures: dict[str, str] = dataclasses.field(default_factory=dict)
    speed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> list[Row]:
        """Systems without a result, for a reason."""
        return [row for row in self.rows if row.status == "failed"]

    def write(self, folder: Path) -> None:
        """Writes `compare.json` and `compare.md`, each whole or not at all.

        Args:
            folder: The folder.
        """
        text = json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=2)
        write_text(folder / "compare.json", text + "\n")
        write_text(folder / "compare.md", self.markdown())

    def markdown(self) -> str:
        """The table, and below it what its numbers mean."""
        head = [
            *("system", "model"),
            *(_LABELS[name] for name in self.evaluation["metrics"]),
            *("parameters", "training", "epochs", "best", "validation"),
            *("greedy: sentences/s", "tokens/s", "beam", "sentences/s", "tokens/s"),
        ]
        table = [head, ["---"] * len(head), *(self._cells(row) for row in self.rows)]
        lines = [f"| {' | '.join(cells)} |" for cells in table]
        return "\n".join([*lines, "", self._below()]) + "\n"

    def _cells(self, row: Row) -> list[str]:
        finished = row.status == "finished"
        state = {"failed": " (failed)", "waiting": " (not finished)", "finished": ""}
        validation = "–"
        if row.validation is not None:
            digits = 4 if row.monitor == "loss" else 2
            validation = f"{row.monitor} {row.validation:.{digits}f}"
        greedy, beam = row.speed.get("greedy", {}), row.speed.get("beam", {})
        return [
            *(row.name + state[row.status], row.model or "–"),
            *(_number(row.quality.get(key), 2) for key in self.evaluation["metrics"]),
            _number(row.parameters, 0),
            "–" if row.seconds is None else duration(row.seconds),
            _number(row.epochs, 0),
            "mean" if finished and row.best_epoch is None else _number(row.best_epoch),
            validation,
            *(_number(greedy.get(f"{unit}_per_second"), 1) for unit in _UNITS),
            _number(beam.get("num_beams")),
            *(_number(beam.get(f"{unit}_per_second"), 1) for unit in _UNITS),
        ]

    def _below(self) -> str:
        counts = {row.sentences for row in self.rows if row.sentences is not None}
        test, speed = self.data["test"], self.speed
        files = test.get("path") or f"{test['source']}, {test['target']}"
        paragraphs = [
            f"{_LABELS[key]}: `{text}`" for key, text in self.signatures.items()
        ]
        paragraphs.append(
            f"Test set: {files}"
            + "".join(f", {count:,} sentences" for count in sorted(counts))
        )
        if speed:
            paragraphs += [
                f"Speed: median of {speed['rounds']} rounds over {speed['sentences']} "
                f"sources of {speed['part']}, after one that compiles; tokens are "
                "those of each system",
                f"Hardware: {hardware_line(speed['hardware'])}",
            ]
        remarks = [
            f"- {row.name} failed: {' '.join(row.reason.split())}"
            for row in self.failed
        ]
        remarks += [f"- {row.name}: {note}" for row in self.rows for note in row.notes]
        if remarks:
            paragraphs.append("\n".join(remarks))
        # Without blank lines Markdown would make one paragraph of them.
        return "\n\n".join(paragraphs)


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
