"""Run folders: whose they are, the text and ids in them, and where the run stands.

`trainer` prepares a folder, opens it and fills it; a run killed at any moment leaves a
folder that can be opened again.
"""

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_seq2seq.config import (
    DataFiles,
    RunConfig,
    TokenizerConfig,
    config_to_toml,
    load_config,
)
from keras_seq2seq.corpora import Cleaning, Pair, PairCorpus
from keras_seq2seq.datasets import EncodedCorpus, encode_corpus
from keras_seq2seq.series_config import SeriesRunConfig
from keras_seq2seq.tokenizers import TokenizerPair
from keras_seq2seq.untrusted import file_inside, read_json

# What a run folder holds; nothing else in it is ever touched.
RUN_CONTENTS = (
    "run.toml",
    "tokenizer",
    "scaling.json",
    "model.keras",
    "checkpoints",
    "metrics.jsonl",
    "data_report.json",
    "results.json",
    "exports",
    "logs",
)

AnyConfig = RunConfig | SeriesRunConfig

# Settings that may change when a run is continued.
EXTENDABLE = (
    "data.test",
    "training.epochs",
    "training.early_stopping_patience",
    "training.average_checkpoints",
    "training.jit_compile",
    "training.tensorboard",
    "decoding",
    "evaluation",
)


@dataclasses.dataclass
class RunState:
    """Where a run stands, beside what its checkpoint holds.

    Attributes:
        epoch: Epochs done.
        checkpoint: File in `checkpoints/` with the weights and the optimizer.
        seeds: States of the model's random generators, which Keras doesn't save.
        sampling_updates: Updates done, as scheduled sampling counts them.
        data: Fingerprint of the encoded training data.
        best_value: Best monitored value so far.
        best_loss: Validation loss of that epoch, which decides between equal values.
        best_epoch: That epoch.
        waited: Validations since then.
        plateau_waited: Validations since then or since the last drop of the rate.
        averaged_value: Monitored value of the mean weights, where they became the
            model of the run.
        seconds: Time spent in epochs.
        completed: Epochs done when the run was last finished.
        averaging: `training.average_checkpoints` at that time.
    """

    epoch: int = 0
    checkpoint: str = ""
    seeds: list[list[int]] = dataclasses.field(default_factory=list)
    sampling_updates: int = 0
    data: str = ""
    best_value: float | None = None
    best_loss: float | None = None
    best_epoch: int = 0
    waited: int = 0
    plateau_waited: int = 0
    averaged_value: float | None = None
    seconds: float = 0.0
    completed: int = 0
    averaging: int | None = None

    def write(self, folder: Path) -> None:
        """Writes the state into a run folder, whole or not at all.

        Args:
            folder: The run folder.
        """
        text = json.dumps(dataclasses.asdict(self), indent=2) + "\n"
        write_text(_state_path(folder), text)

    def has_ended(self, config: AnyConfig) -> bool:
        """Whether no more epochs are to be trained.

        Args:
            config: The run.
        """
        patience = config.training.early_stopping_patience
        stopped = patience is not None and self.waited >= patience
        return stopped or self.epoch >= config.training.epochs

    def is_finished(self, config: AnyConfig) -> bool:
        """Whether nothing is left to do, averaging included.

        Args:
            config: The run.
        """
        averaging = getattr(config.training, "average_checkpoints", 0)
        return (
            self.has_ended(config)
            and self.completed == self.epoch
            and self.averaging in (None, averaging)
        )

    def finished_message(self, config: AnyConfig, folder: Path) -> str:
        """What to say of a run that is finished, and how it could go on.

        Args:
            config: The run.
            folder: The run folder.
        """
        if self.epoch < config.training.epochs:
            advice = "Raise training.early_stopping_patience to continue it."
        elif config.training.schedule == "cosine":
            advice = (
                'Its schedule = "cosine" has ended: for more epochs train from the '
                "start in another folder."
            )
        else:
            advice = "Raise training.epochs to continue it."
        return (
            f"The run in {folder} is finished after {self.epoch} epochs: nothing to "
            f"do. {advice}"
        )


@dataclasses.dataclass
class RunData:
    """What a run trains and validates on.

    Attributes:
        tokenizers: Tokenizers of both sides.
        train: Ids of the training pairs.
        valid: Ids of the validation pairs that are not too long; None without.
        valid_pairs: Texts of all validation pairs.
    """

    tokenizers: TokenizerPair
    train: EncodedCorpus
    valid: EncodedCorpus | None
    valid_pairs: list[Pair]


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all.

    Args:
        path: The file.
        text: What it will hold.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)


def _state_path(folder: Path) -> Path:
    return folder / "checkpoints" / "state.json"


def read_state(folder: Path) -> RunState:
    """Reads where a run stands.

    Args:
        folder: The run folder.

    Returns:
        The state; a new one if no epoch is done.

    Raises:
        ValueError: If the file isn't what `RunState.write` wrote.
    """
    path = _state_path(folder)
    if not path.is_file():
        return RunState()
    try:
        state = RunState(**read_json(path))
        if state.checkpoint:
            file_inside(path.parent, state.checkpoint, "`checkpoint`")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must be the state that a training wrote. It cannot be read: "
            f"{error}. Start again with --overwrite (overwrite=True)."
        ) from error
    return state


def read_rows(folder: Path, last_epoch: int) -> list[dict[str, Any]]:
    """Reads rows of a run's `metrics.jsonl`.

    Args:
        folder: The run folder.
        last_epoch: Later rows are of epochs whose checkpoint was never finished.

    Returns:
        The rows up to that epoch.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["epoch"] <= last_epoch]


def claim_run(folder: Path, config: AnyConfig, *, overwrite: bool) -> bool:
    """Finds out whether a folder holds this run, to be continued.

    Args:
        folder: The run folder; it need not be there.
        config: The run.
        overwrite: Whether a run in it may be replaced.

    Returns:
        True if the run is there; False if it has to be prepared.

    Raises:
        ValueError: If the folder holds another run, or things that are no run, or
            this one cannot get other `epochs`.
    """
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise ValueError(f"The output {folder} must be a folder. Received: a file.")
    names = {path.name for path in folder.iterdir()}
    if "run.toml" not in names:
        if not names or (overwrite and names <= set(RUN_CONTENTS)):
            return False
        raise ValueError(
            f"{folder} is not empty and holds no run (there is no run.toml). "
            "Choose another output folder."
        )
    if overwrite:
        return False
    before = load_config(folder / "run.toml")
    kinds = [
        "of a series" if isinstance(one, SeriesRunConfig) else "of text"
        for one in (before, config)
    ]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{folder} holds a run {kinds[0]}, and this one is {kinds[1]}. Choose "
            "another output folder, or replace that run with --overwrite "
            "(overwrite=True)."
        )
    differences = _differences(before, config)
    if differences:
        raise ValueError(
            f"{folder} holds another run, which differs in:\n"
            + "\n".join(f"- {line}" for line in differences)
            + "\nChoose another output folder, or replace that run with --overwrite "
            "(overwrite=True)."
        )
    epochs = (before.training.epochs, config.training.epochs)
    if config.training.schedule == "cosine" and epochs[0] != epochs[1]:
        raise ValueError(
            'schedule = "cosine" ends with the last epoch, so the run cannot get other '
            f"epochs. Received: epochs={epochs[1]}, {epochs[0]} in {folder}. Train "
            "from the start in another folder."
        )
    return True


def _differences(old: AnyConfig, new: AnyConfig) -> list[str]:
    """The settings, other than those that may change, in which two runs differ."""
    sides = [dict(_flat(config.model_dump(mode="json"))) for config in (old, new)]
    return [
        f"{key}: {sides[0].get(key)!r} there, {sides[1].get(key)!r} now"
        for key in sorted(sides[0].keys() | sides[1].keys())
        if sides[0].get(key) != sides[1].get(key)
        and not any(f"{key}.".startswith(f"{name}.") for name in EXTENDABLE)
    ]


def _flat(table: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def prepare_run(
    config: AnyConfig, folder: Path, make: Callable[[Path], object]
) -> None:
    """Makes a run folder: settings, and what the training needs of the data.

    All of it is made beside the folder first, so an older run in the folder is lost
    only when the new one has proved to be usable.

    Args:
        config: The run.
        folder: The run folder.
        make: Fills a folder with the rest; raises what makes the run impossible.
    """
    staging = folder.with_name(f".{folder.name}.preparing")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        make(staging)
        write_text(staging / "run.toml", config_to_toml(config))
        if not folder.exists():
            staging.rename(folder)
            return
        for name in RUN_CONTENTS:
            old = folder / name
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        # run.toml comes last: a folder with it has everything.
        for path in sorted(staging.iterdir(), key=lambda path: path.name == "run.toml"):
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def encode_data(config: RunConfig, folder: Path, say: Callable[[str], None]) -> RunData:
    """Reads all text, trains the tokenizers, writes them, the ids and the report.

    Args:
        config: The run.
        folder: The run folder.
        say: Told what was read.

    Returns:
        The data.
    """
    corpus = _train_corpus(config)
    valid = None if config.data.valid is None else _corpus(config.data.valid)
    if config.data.test is not None:
        _corpus(config.data.test)  # a missing file is found now, not after training
    valid_pairs = [] if valid is None else list(valid)
    tokenizers = _train_tokenizers(config, corpus)
    tokenizers.save(folder / "tokenizer")
    reports = {"train": corpus.report}
    if valid is not None:
        reports["valid"] = valid.report
    for name, report in reports.items():
        for line in report.lines():
            say(f"{name}: {line}")
    encoded = _encode(config, folder, tokenizers, corpus, valid_pairs)
    written: dict[str, Any] = {}
    for (name, report), part in zip(reports.items(), encoded, strict=False):
        written[name] = report.as_dict()
        if part is not None:
            written[name]["encoded"] = part.counts
            say(f"{name}: {_encoding_line(part)}")
    written["vocabulary_sizes"] = {
        side: getattr(tokenizers, side).vocabulary_size for side in ("source", "target")
    }
    write_text(folder / "data_report.json", json.dumps(written, indent=2) + "\n")
    return RunData(tokenizers, *encoded, valid_pairs)


def open_data(config: RunConfig, folder: Path, state: RunState) -> RunData:
    """Opens the data of a prepared run and compares it with the text files.

    Args:
        config: The run.
        folder: The run folder.
        state: Where the run stands; learns the fingerprint of the data.

    Returns:
        The data.

    Raises:
        ValueError: If the training text is not that of the run any more.
    """
    tokenizers = TokenizerPair.load(folder / "tokenizer")
    valid = config.data.valid
    pairs = [] if valid is None else list(_corpus(valid))
    encoded = _encode(config, folder, tokenizers, _train_corpus(config), pairs)
    fingerprint = encoded[0].fingerprint
    if state.data not in ("", fingerprint):
        raise ValueError(
            f"The training data of {folder} has changed since the run began. Expected "
            f"the fingerprint {state.data[:12]}, found {fingerprint[:12]}. Restore the "
            "files, or train from the start with --overwrite (overwrite=True)."
        )
    state.data = fingerprint
    return RunData(tokenizers, *encoded, pairs)


def _corpus(files: DataFiles, cleaning: Cleaning | None = None) -> PairCorpus:
    return PairCorpus(**files.model_dump(exclude_none=True), cleaning=cleaning)


def _train_tokenizers(config: RunConfig, corpus: PairCorpus) -> TokenizerPair:
    """Trains the tokenizers; a size that the recipe names must be reached.

    The default size becomes the largest that the text allows, with a warning.
    """
    if next(iter(corpus), None) is None:
        files = config.data.train
        raise ValueError(
            "[data.train] must have at least one pair to learn from. Received: none in "
            f"{files.path or f'{files.source} and {files.target}'} "
            f"({'; '.join(corpus.report.lines())})."
        )
    settings = config.tokenizer
    named = {
        side: key
        for side in ("source", "target")
        for key in ("vocabulary_size", f"{side}_vocabulary_size")
        if key in settings.model_fields_set and getattr(settings, key) is not None
    }
    with warnings.catch_warnings():
        if named:
            warnings.filterwarnings("ignore", "The texts allow")
        tokenizers = TokenizerPair.train(
            corpus, **settings.model_dump(), seed=config.training.seed
        )
    for side, key in named.items():
        asked, found = getattr(settings, key), getattr(tokenizers, side).vocabulary_size
        kind = getattr(settings, f"{side}_model_type") or settings.model_type
        # For characters and words the size is a limit.
        if kind in ("unigram", "bpe") and found < asked:
            raise ValueError(
                f"`{key}` in [tokenizer] is more than the {side} text of [data.train] "
                f"allows. Received: {asked:,}; the largest possible is {found:,}. Set "
                "it, or leave the key out to take the largest possible up to "
                f"{TokenizerConfig().vocabulary_size:,}."
            )
    return tokenizers


def _train_corpus(config: RunConfig) -> PairCorpus:
    return _corpus(config.data.train, Cleaning(**config.data.cleaning))


def _encode(
    config: RunConfig,
    folder: Path,
    tokenizers: TokenizerPair,
    corpus: PairCorpus,
    valid_pairs: list[Pair],
) -> tuple[EncodedCorpus, EncodedCorpus | None]:
    """Writes the ids, or finds them written."""
    if config.data.valid is not None and not valid_pairs:
        raise ValueError("[data.valid] must have at least one pair. Received: none.")
    limits: dict[str, Any] = {
        "max_source_length": config.data.max_source_length,
        "max_target_length": config.data.max_target_length,
    }
    encoded = folder / "checkpoints" / "encoded"
    train = encode_corpus(
        corpus, tokenizers, encoded / "train", too_long=config.data.too_long, **limits
    )
    if not valid_pairs:
        return train, None
    # A cut target would be judged for an END in the middle of a sentence.
    valid = encode_corpus(
        valid_pairs, tokenizers, encoded / "valid", too_long="drop", **limits
    )
    return train, valid


def _encoding_line(corpus: EncodedCorpus) -> str:
    counts = corpus.counts
    return (
        f"{len(corpus):,} pairs of {corpus.num_source_tokens:,} source and "
        f"{corpus.num_target_tokens:,} target tokens; "
        f"{counts['dropped_too_long']:,} too long, {counts['dropped_empty']:,} empty, "
        f"{counts['cut_source'] + counts['cut_target']:,} cut"
    )
