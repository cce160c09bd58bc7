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
from keras_seq2seq.comparison_table import Comparison, Row
from keras_seq2seq.config import RunConfig, load_config
from keras_seq2seq.console import is_user_mistake, message, say
from keras_seq2seq.corpora import Cleaning, PairCorpus
from keras_seq2seq.encoding import EncodedCorpus, texts_sha256
from keras_seq2seq.evaluation import write_results
from keras_seq2seq.pipelines import Translator, load
from keras_seq2seq.runs import claim_run, read_state
from keras_seq2seq.speed import decoding_speeds, hardware
from keras_seq2seq.trainer import train

# Speeds: so many sentences, decoded so many times after one time that compiles.
SPEED_SENTENCES = 256
SPEED_HEAD = 10_000
SPEED_ROUNDS = 3


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
        overwrite: Whether other runs in the run folders are replaced; those of the
            recipes are kept, finished or not.
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
    texts = _text_sums(systems[0].config)
    for system in systems:
        if not only_table:
            options = {"overwrite": overwrite, "progress": progress}
            _attempt(system, log, _prepare, texts, **options)
        _attempt(system, log, _read_back, comparison, texts)
    _read_speeds(comparison, folder)
    if only_table:
        return comparison
    folder.mkdir(parents=True, exist_ok=True)
    comparison.write(folder)
    for number, system in enumerate(systems, start=1):
        if system.row.status == "waiting":
            log(f"{system.row.name}, system {number} of {len(systems)}")
            _attempt(system, log, _finish, comparison, texts, progress=progress)
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


def _text_sums(config: RunConfig) -> dict[str, str]:
    """Sums of the texts that all systems learn from and validate on."""
    data = config.data
    sums = {}
    for part, files, cleaning in (
        ("train", data.train, Cleaning(**data.cleaning)),
        ("valid", data.valid, None),
    ):
        if files is not None:
            arguments = files.model_dump(exclude_none=True)
            sums[part] = texts_sha256(PairCorpus(**arguments, cleaning=cleaning))
    return sums


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


def _prepare(
    system: _System, texts: dict[str, str], *, overwrite: bool, progress: bool
) -> None:
    """Makes the run folder, which proves that tokenizers and model can be built."""
    try:
        if _is_there(system, texts):
            overwrite = False
    except ValueError:
        if not overwrite:
            raise
    options: dict[str, Any] = {"overwrite": overwrite, "progress": progress}
    train(system.config, system.folder, prepare_only=True, **options)


def _is_there(system: _System, texts: dict[str, str]) -> bool:
    """Whether the folder holds the recipe's run; refuses any other."""
    config, folder = system.config, system.folder
    if not claim_run(folder, config, overwrite=False):
        return False
    advice = "or replace that run with --overwrite (overwrite=True)."
    epochs = read_state(folder).epoch
    if epochs > config.training.epochs:
        raise ValueError(
            f"{folder} holds a run of {epochs} epochs, the recipe wants "
            f"{config.training.epochs}. Raise training.epochs, choose another output "
            f"folder, {advice}"
        )
    for part, expected in texts.items():
        encoded = folder / "checkpoints" / "encoded" / part
        if not encoded.is_dir():
            continue
        found = EncodedCorpus(encoded).metadata["texts_sha256"]
        if found != expected:
            raise ValueError(
                f"The text of [data.{part}] has changed since {folder} was made. "
                f"Expected the sum {found[:12]}, found {expected[:12]}. Restore the "
                f"files, {advice}"
            )
    return True


def _read_back(system: _System, comparison: Comparison, texts: dict[str, str]) -> None:
    """Fills the row of a system that is trained and evaluated already."""
    config, folder = system.config, system.folder
    if not _is_there(system, texts) or not read_state(folder).is_finished(config):
        return
    translator = _translator(system)
    files = comparison.data["test"]
    result = saved_evaluation(folder / "results.json", translator, files)
    if result is not None:
        _fill(system, comparison, translator, result)


def _finish(
    system: _System, comparison: Comparison, texts: dict[str, str], *, progress: bool
) -> None:
    """Trains what is left to train, and evaluates what is not yet evaluated."""
    train(system.config, system.folder, progress=progress)
    _read_back(system, comparison, texts)
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
    row.seconds = state.seconds
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
    try:
        saved = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
        speed = saved["speed"]
        measured = {
            row["name"]: (row["weights_sha256"], row["decoding"], row["speed"])
            for row in saved["rows"]
        }
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return  # nothing that can be read, so all is measured anew
    for row in comparison.rows:
        *of, found = measured.get(row.name, ("", {}, {}))
        if row.status == "finished" and of == [row.weights_sha256, row.decoding]:
            row.speed, comparison.speed = found, speed


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
    """Sources spread over the head of the validation set, or of the training set.

    Not those of the test set, which is there for one look.
    """
    part = "train" if config.data.valid is None else "valid"
    files = getattr(config.data, part).model_dump(exclude_none=True)
    sources = [pair.source for pair in islice(PairCorpus(**files), SPEED_HEAD)]
    count = min(SPEED_SENTENCES, len(sources))
    return part, [sources[index * len(sources) // count] for index in range(count)]
