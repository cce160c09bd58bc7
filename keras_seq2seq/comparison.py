"""Several systems on one data set, and one table of what came out.

Each recipe is trained into a folder of its own and evaluated once on the test set;
when all are there, they decode the same sentences in turn, to compare their speeds.
What is finished is read back, so a comparison that was stopped goes on.
"""

import dataclasses
import hashlib
import json
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from keras_seq2seq.actions import evaluate_files, saved_evaluation
from keras_seq2seq.config import RunConfig, load_config
from keras_seq2seq.console import is_user_mistake, message, say
from keras_seq2seq.corpora import PairCorpus
from keras_seq2seq.evaluation import write_results
from keras_seq2seq.pipelines import Translator, load
from keras_seq2seq.progress import duration
from keras_seq2seq.runs import claim_run, read_rows, read_state, write_text
from keras_seq2seq.speed import decoding_speeds, hardware, hardware_line
from keras_seq2seq.trainer import train

# Speeds: so many sentences, decoded so many times after one time that compiles.
SPEED_SENTENCES = 256
SPEED_ROUNDS = 3

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


@dataclasses.dataclass
class _System:
    """A recipe that could be read, with its row and its run folder."""

    row: Row
    config: RunConfig
    folder: Path


def compare(
    recipes: Sequence[str | Path],
    output: str | Path,
    *,
    overrides: Iterable[str] = (),
    overwrite: bool = False,
    only_table: bool = False,
    progress: bool = True,
) -> Comparison:
    """Trains and measures systems of one data set, each once.

    All recipes are checked before the first is trained: settings, tokenizers, model.
    What makes one system impossible, then or later, is in its row, and the others go
    on. Called again, it goes on with what is not finished and tries again what failed.

    Args:
        recipes: TOML files with the same `[data]` files and `[evaluation]`.
        output: Folder for the run folders, `compare.md` and `compare.json`, which are
            rewritten after each system.
        overrides: Settings in place of those of every recipe.
        overwrite: Whether other runs in the run folders are replaced.
        only_table: Whether to train, decode and write nothing, and to read back what
            is finished.
        progress: Whether to say on stderr what happens.

    Returns:
        The comparison.

    Raises:
        FileNotFoundError: If a recipe or a file of the data is missing.
        ValueError: If the recipes cannot be compared, or none of them can be read.
    """
    log = say if progress else _say_nothing
    folder = Path(output)
    rows, systems = _load_recipes([Path(path) for path in recipes], folder, overrides)
    data, evaluation = _shared_settings(systems)
    comparison = Comparison(rows, data, evaluation)
    for row in comparison.failed:
        log(f"{row.name} failed: {row.reason}")
    for system in systems:
        if not only_table:
            _attempt(system, log, _prepare, overwrite=overwrite, progress=progress)
        _attempt(system, log, _read_back, comparison)
    _read_speeds(comparison, folder)
    if only_table:
        return comparison
    folder.mkdir(parents=True, exist_ok=True)
    comparison.write(folder)
    for number, system in enumerate(systems, start=1):
        if system.row.status == "waiting":
            log(f"{system.row.name}, system {number} of {len(systems)}")
            _attempt(system, log, _finish, comparison, progress=progress)
            comparison.write(folder)
    finished = [system for system in systems if system.row.status == "finished"]
    if finished:
        _measure_speeds(finished, comparison, log)
        comparison.write(folder)
    return comparison


def _say_nothing(text: str) -> None:
    pass


def _load_recipes(
    paths: list[Path], folder: Path, overrides: Iterable[str]
) -> tuple[list[Row], list[_System]]:
    """Rows of all recipes, and the systems of those without mistakes."""
    overrides = list(overrides)
    stems = [path.stem for path in paths]
    same = [str(path) for path in paths if stems.count(path.stem) > 1]
    if same:
        raise ValueError(
            "Recipes must differ in name, as the name is that of the run folder. "
            f"Received: {', '.join(same)}."
        )
    rows, systems = [], []
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"`RECIPE` must be a TOML file. Received: {path}.")
        row = Row(path.stem, str(path))
        rows.append(row)
        try:
            config = load_config(path, overrides)
            if not isinstance(config, RunConfig):
                raise ValueError(
                    f"Systems that are compared must be of text. Received: {path}, "
                    "with [series]; `evaluate` compares a forecast with others."
                )
        except ValueError as error:
            row.status, row.reason = "failed", str(error)
            continue
        row.model = config.model["name"]
        systems.append(_System(row, config, folder / path.stem))
    if not systems:
        raise ValueError("\n".join(row.reason for row in rows) or "No recipe is given.")
    return rows, systems


def _shared_settings(systems: list[_System]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files and evaluation of all recipes, which must be the same."""
    first, *others = systems
    expected = _comparable_settings(first.config)
    differences = [
        f"- {key}: {expected[key]!r} in {first.row.recipe}, "
        f"{value!r} in {other.row.recipe}"
        for other in others
        for key, value in _comparable_settings(other.config).items()
        if expected[key] != value
    ]
    if differences:
        raise ValueError(
            "Recipes must have the same data and evaluation, or their results cannot "
            "be compared. They differ in:\n" + "\n".join(differences)
        )
    config = first.config
    data = config.data.model_dump(exclude_none=True, include={"train", "valid", "test"})
    for files in data.values():
        PairCorpus(**files)  # a missing file is found now
    if "test" not in data:
        raise ValueError(
            "Systems are compared on a test set. Received: no [data.test] in "
            f"{', '.join(system.row.recipe for system in systems)}."
        )
    return data, config.evaluation.model_dump()


def _comparable_settings(config: RunConfig) -> dict[str, Any]:
    """What recipes must share: which text they see, and how outputs are scored."""
    data = config.data.model_dump(exclude_none=True)
    names = ("train", "valid", "test", "cleaning")
    settings = {f"data.{name}": data.get(name) for name in names}
    for name, value in config.evaluation.model_dump().items():
        settings[f"evaluation.{name}"] = value
    return settings


def _attempt(
    system: _System, log: Callable[[str], None], step: Callable, *args: Any, **kw: Any
) -> None:
    """Does one step of a system that waits; what goes wrong becomes its row."""
    row = system.row
    if row.status != "waiting":
        return
    try:
        step(system, *args, **kw)
    except Exception as error:  # no memory left, for one, has no common type
        row.status, row.reason = "failed", message(error)
        if not is_user_mistake(error):
            row.reason = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        log(f"{row.name} failed: {row.reason}")


def _prepare(system: _System, *, overwrite: bool, progress: bool) -> None:
    """Makes the run folder, which proves that tokenizers and model can be built."""
    options: dict[str, Any] = {"overwrite": overwrite, "progress": progress}
    train(system.config, system.folder, prepare_only=True, **options)


def _read_back(system: _System, comparison: Comparison) -> None:
    """Fills the row of a system that is trained and evaluated already."""
    config, folder = system.config, system.folder
    if not claim_run(folder, config, overwrite=False):
        return
    if not read_state(folder).is_finished(config):
        return
    translator = _translator(system)
    files = comparison.data["test"]
    result = saved_evaluation(folder / "results.json", translator, files)
    if result is not None:
        _fill(system, comparison, translator, result)


def _finish(system: _System, comparison: Comparison, *, progress: bool) -> None:
    """Trains what is left to train, and evaluates what is not yet evaluated."""
    train(system.config, system.folder, progress=progress)
    _read_back(system, comparison)
    if system.row.status == "waiting":
        translator = _translator(system)
        result = evaluate_files(translator, comparison.data["test"], tokenize=None)
        write_results(system.folder / "results.json", result)
        _fill(system, comparison, translator, result)


def _translator(system: _System) -> Translator:
    loaded = load(system.folder)
    # The recipe's decoding and evaluation; those in the folder may be older.
    return Translator(loaded.model, loaded.tokenizers, system.config)


def _fill(
    system: _System,
    comparison: Comparison,
    translator: Translator,
    result: dict[str, Any],
) -> None:
    """Writes a finished system's numbers into its row."""
    row, config, folder = system.row, system.config, system.folder
    state = read_state(folder)
    metrics = config.evaluation.metrics
    row.quality = {name: result[name] for name in (*metrics, "perplexity")}
    row.sentences = result["sentences"]
    row.notes = result["notes"]
    row.parameters = translator.model.count_params()
    row.seconds = sum(epoch["seconds"] for epoch in read_rows(folder, state.epoch))
    row.epochs = state.epoch
    row.best_epoch = state.best_epoch if state.averaged_value is None else None
    if config.data.valid is not None:
        row.monitor = config.training.monitor
        averaged = state.averaged_value
        row.validation = state.best_value if averaged is None else averaged
    row.decoding = result["decoding"]
    row.weights_sha256 = result["weights_sha256"]
    row.status = "finished"
    for name in metrics:
        if f"{name}_signature" in result:
            comparison.signatures[name] = result[f"{name}_signature"]


def _read_speeds(comparison: Comparison, folder: Path) -> None:
    """Takes speeds measured before, of systems that are still the same."""
    path = folder / "compare.json"
    if not path.is_file():
        return
    saved = json.loads(path.read_text(encoding="utf-8"))
    old_rows = {row["name"]: row for row in saved["rows"]}
    for row in comparison.rows:
        old = old_rows.get(row.name)
        if old and row.status == "finished":
            now = (row.weights_sha256, row.decoding)
            if now == (old["weights_sha256"], old["decoding"]):
                row.speed = old["speed"]
    if any(row.speed for row in comparison.rows):
        comparison.speed = saved["speed"]


def _measure_speeds(
    systems: list[_System], comparison: Comparison, log: Callable[[str], None]
) -> None:
    """Measures all systems together, unless they have been, here and as they are."""
    part, texts = _speed_texts(systems[0].config)
    speed = {
        "part": part,
        "sentences": len(texts),
        "sha256": hashlib.sha256("\n".join(texts).encode()).hexdigest(),
        "rounds": SPEED_ROUNDS,
        "hardware": hardware(),
    }
    if comparison.speed == speed and all(system.row.speed for system in systems):
        return
    log(f"Speed: {len(systems)} systems decode {len(texts)} sources of {part}")
    translators = {system.row.name: _translator(system) for system in systems}
    measured = decoding_speeds(translators, texts, rounds=SPEED_ROUNDS)
    for row in comparison.rows:
        row.speed = measured.get(row.name, {})
    comparison.speed = speed


def _speed_texts(config: RunConfig) -> tuple[str, list[str]]:
    """Sources spread over the validation set, or over the head of the training set.

    Not those of the test set, which is there for one look.
    """
    part = "train" if config.data.valid is None else "valid"
    files = getattr(config.data, part).model_dump(exclude_none=True)
    sources = [pair.source for pair in islice(PairCorpus(**files), 10_000)]
    step = max(1, len(sources) // SPEED_SENTENCES)
    return part, sources[::step][:SPEED_SENTENCES]


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
