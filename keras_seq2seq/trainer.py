"""Trains the model of one run and keeps everything in its run folder.

Reads text, makes tokenizers and batches, then `compile` and `fit`. Killed at any
moment and started again, a run continues from its last finished epoch and ends with
the weights that it would have had without the interruption.
"""

import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_seq2seq.callbacks import (
    RunSaver,
    Selection,
    TextValidation,
    TokenTotals,
    inference_copy,
    is_better,
    monitored_key,
    rename_totals,
    save_model,
    seed_variables,
    weights_path,
)
from keras_seq2seq.config import RunConfig, config_to_toml, load_config
from keras_seq2seq.datasets import PairDataset
from keras_seq2seq.losses import TokenCrossEntropy
from keras_seq2seq.metrics import Perplexity, TokenAccuracy, TokenLoss
from keras_seq2seq.models import MODELS
from keras_seq2seq.optimizers import learning_rate, make_optimizer
from keras_seq2seq.progress import Progress, print_line, print_nothing
from keras_seq2seq.runs import (
    RunData,
    RunState,
    claim_run,
    encode_data,
    open_data,
    prepare_run,
    read_state,
    write_text,
)
from keras_seq2seq.schedules import make_gold_rate
from keras_seq2seq.tokenizers import TokenizerPair
from keras_seq2seq.training_modes import ScheduledSampling, inner_model
from keras_seq2seq.untrusted import load_model

# Logits, their gradient and one temporary, in float32.
_LOGIT_COPIES = 3
_LOGIT_BYTES_WARNED = 4 * 2**30


def train(
    config: RunConfig,
    output: str | Path,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    prepare_only: bool = False,
    progress: bool = True,
) -> Path | str:
    """Trains a run, or continues it where it stopped.

    Args:
        config: The run.
        output: The run folder.
        overwrite: Whether a run in that folder is replaced. Its files go only when
            the new run's data, tokenizers and model have proved to be usable.
        dry_run: Whether to only report on the data and the model, writing nothing.
        prepare_only: Whether to stop when the folder is ready, before any training.
        progress: Whether to say on stderr what happens.

    Returns:
        The run folder; for a dry run, the report.

    Raises:
        FileNotFoundError: If a data file is missing.
        ValueError: If data or settings don't fit each other, the folder holds
            another run, or the loss becomes NaN.
    """
    _check_settings(config)
    folder = Path(output)
    with _precision(config.training.precision):
        if dry_run:
            with tempfile.TemporaryDirectory() as temporary:
                return _describe(config, Path(temporary))
        say = print_line if progress else print_nothing
        if claim_run(folder, config, overwrite=overwrite):
            # What may change for a run, its decoding say, counts from now on.
            if load_config(folder / "run.toml") != config:
                write_text(folder / "run.toml", config_to_toml(config))
        else:

            def make(staging: Path) -> None:
                data = encode_data(config, staging, say)
                _fitted_model(config, _model(config, data.tokenizers))
                train, _, _ = _datasets(config, data, epoch=0)
                learning_rate(config, config.training.epochs * len(train))

            prepare_run(config, folder, make)
        if prepare_only:
            return folder
        state = read_state(folder)
        if state.is_finished(config):
            say(state.finished_message(config, folder))
            return folder
        data = open_data(config, folder, state)
        _fit(config, folder, data, state, say, progress=progress)
    return folder


@contextmanager
def _precision(name: str) -> Iterator[None]:
    """Sets Keras' dtype policy for a while."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def _check_settings(config: RunConfig) -> None:
    """Finds what only shows when tables are seen together, before any work."""
    training = config.training
    make_optimizer(training, 0.001)
    if training.tensorboard:
        # Keras writes its logs through TensorFlow, which needs TensorBoard for it.
        for package in ("tensorflow", "tensorboard"):
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"`tensorboard` in [training] needs the package {package}. Install "
                    f"it (pip install {package}), or set training.tensorboard = false."
                )
    if config.data.valid is None:
        wanted = [
            f"training.{name}"
            for name, is_set in (
                ("monitor", training.monitor != "loss"),
                ("early_stopping_patience", training.early_stopping_patience),
                ("average_checkpoints", training.average_checkpoints),
                ("schedule", training.schedule == "plateau"),
            )
            if is_set
        ]
        if wanted:
            raise ValueError(
                f"{', '.join(wanted)} needs validation data: give [data.valid]."
            )


def _model(config: RunConfig, tokenizers: TokenizerPair) -> keras.Model:
    keras.utils.set_random_seed(config.training.seed)
    model = MODELS[config.model["name"]](
        tokenizers.source.vocabulary_size,
        tokenizers.target.vocabulary_size,
        **config.model_arguments,
    )
    for side in ("source", "target"):
        length = getattr(config.data, f"max_{side}_length")
        if model.max_positions is not None and length > model.max_positions:
            raise ValueError(
                f"`max_{side}_length` in [data] must not be above the model's "
                f"max_positions. Received: max_{side}_length={length}, "
                f"max_positions={model.max_positions}."
            )
    return model


def _resumed_model(
    config: RunConfig,
    folder: Path,
    data: RunData,
    state: RunState,
    num_updates: int,
) -> keras.Model:
    """What is fitted, compiled: new, or that of the last checkpoint, in every part."""
    model = _model(config, data.tokenizers)
    optimizer = make_optimizer(config.training, learning_rate(config, num_updates))
    if state.checkpoint:
        model = load_model(
            folder / "checkpoints" / state.checkpoint, with_optimizer=True
        )
        optimizer = model.optimizer
    # A recurrent model says no on TensorFlow, for CPUs; the recipe has the last word.
    model.supports_jit = model.supports_jit or config.training.jit_compile is True
    # Checkpoints are of the model alone, so it is compiled, too.
    _compile(config, model, optimizer)
    # Variables made within the first update would have it traced twice. A loaded
    # optimizer has its own; that of float16 would put new ones beside its loss scale.
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    fitted = _fitted_model(config, model)
    if isinstance(fitted, ScheduledSampling):
        _compile(config, fitted, model.optimizer)
        fitted.updates.assign(state.sampling_updates)
    if state.checkpoint:
        for variable, value in zip(seed_variables(fitted), state.seeds, strict=True):
            variable.assign(np.asarray(value, dtype=variable.dtype))
    return fitted


def _fitted_model(config: RunConfig, model: keras.Model) -> keras.Model:
    """The model, or what feeds it its own predictions in training."""
    settings = config.training.scheduled_sampling
    if settings is None:
        return model
    return ScheduledSampling(
        model,
        make_gold_rate(settings.decay, settings.k, settings.c, settings.minimum),
        seed=config.training.seed,
        **settings.sampling_arguments,
    )


def _compile(config: RunConfig, model: keras.Model, optimizer: Any) -> None:
    training = config.training
    model.compile(
        optimizer=optimizer,
        loss=TokenCrossEntropy(
            training.label_smoothing, training.smoothing, training.loss_reduction
        ),
        weighted_metrics=[TokenLoss(), Perplexity(), TokenAccuracy()],
        jit_compile=training.jit_compile,
    )


def _datasets(
    config: RunConfig, data: RunData, epoch: int
) -> tuple[PairDataset, PairDataset | None, int]:
    """Training and validation batches, and target tokens of an epoch."""
    training = config.training
    sizes: dict[str, Any] = {
        "batch_tokens": training.batch_tokens,
        "max_batch_size": training.max_batch_size,
        "num_buckets": training.num_buckets,
    }
    whole = PairDataset(data.train, seed=training.seed, epoch=epoch, **sizes)
    train, num_tokens = whole, whole.num_target_tokens
    if training.steps_per_epoch is not None:
        train = PairDataset(
            data.train,
            seed=training.seed,
            epoch=epoch,
            steps_per_epoch=training.steps_per_epoch,
            **sizes,
        )
        num_tokens = round(num_tokens * len(train) / len(whole))
    valid = None
    if data.valid is not None:
        valid = PairDataset(data.valid, shuffle=False, **sizes)
    return train, valid, num_tokens


def _warn_of_large_logits(shapes: list[tuple[int, int, int]], vocabulary: int) -> None:
    batch, _, length = max(shapes, key=lambda shape: shape[0] * shape[2])
    needed = batch * length * vocabulary * 4 * _LOGIT_COPIES
    if needed > _LOGIT_BYTES_WARNED:
        warnings.warn(
            f"The logits of a batch ({batch} targets x {length} tokens x "
            f"{vocabulary:,} pieces) and their gradient take about "
            f"{needed / 2**30:.1f} GiB. If memory runs out, lower "
            "training.batch_tokens, data.max_target_length or the vocabulary size.",
            stacklevel=2,
        )


def _text_validation(config: RunConfig, data: RunData) -> TextValidation | None:
    training = config.training
    if data.valid is None:
        return None
    metrics = ["bleu"]
    if training.monitor in ("exact_match", "wer"):
        metrics.append(training.monitor)
    model_limit = config.model_arguments.get("max_positions")
    limits = [config.data.max_source_length, model_limit]
    return TextValidation(
        data.valid_pairs[: training.max_validation_sentences],
        data.tokenizers,
        metrics=metrics,
        num_beams=training.validation_beams,
        decoding=config.decoding,
        evaluation=config.evaluation,
        max_source_length=min(limit for limit in limits if limit is not None),
    )


def _fit(
    config: RunConfig,
    folder: Path,
    data: RunData,
    state: RunState,
    say: Callable[[str], None],
    *,
    progress: bool,
) -> None:
    training = config.training
    best_of_epochs = folder / "checkpoints" / "best.keras"
    if best_of_epochs.is_file():
        # Said first: killed in between, the model still waits to be put back.
        state.averaged_value = None
        state.write(folder)
        best_of_epochs.replace(folder / "model.keras")
    train, valid, num_tokens = _datasets(config, data, state.epoch)
    num_updates = training.epochs * len(train)
    fitted = _resumed_model(config, folder, data, state, num_updates)
    model = inner_model(fitted)
    _warn_of_large_logits(train.shapes, data.tokenizers.target.vocabulary_size)
    say(
        f"{config.model['name']}: {model.count_params():,} parameters; {len(train):,} "
        f"updates an epoch in {len(train.shapes)} shapes"
        + (f"; continuing after epoch {state.epoch}" if state.epoch else "")
    )
    text_validation = _text_validation(config, data)
    bar = Progress(
        epochs=training.epochs,
        epoch_size=num_tokens,
        monitor=training.monitor if valid is not None else None,
        state=state,
    )
    callbacks: list[keras.callbacks.Callback] = [TokenTotals()]
    if text_validation is not None:
        callbacks.append(text_validation)
    callbacks.append(
        Selection(state, training, folder / "model.keras", validated=valid is not None)
    )
    if training.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(folder / "logs"))
    callbacks.append(
        RunSaver(
            folder,
            state,
            num_averaged=training.average_checkpoints,
            epoch_size=num_tokens,
        )
    )
    if progress:
        callbacks.append(bar)
    if not state.has_ended(config):
        with bar if progress else nullcontext():
            # The order of the batches is the dataset's own.
            fitted.fit(
                train,
                epochs=training.epochs,
                initial_epoch=state.epoch,
                shuffle=False,
                validation_data=valid,
                validation_freq=_validated_epochs(config),
                callbacks=callbacks,
                verbose=0,
            )
    if training.average_checkpoints > 1 and valid is not None:
        _average(config, folder, model, valid, text_validation, state, say)
    state.completed = state.epoch
    state.averaging = training.average_checkpoints
    state.write(folder)
    if valid is not None and state.best_value is not None:
        say(
            f"Best {training.monitor} of the epochs: {state.best_value:.4f}, in epoch "
            f"{state.best_epoch}."
        )


def _validated_epochs(config: RunConfig) -> list[int]:
    """Epochs, from 1, after which the model is validated: the last one always."""
    last, every = config.training.epochs, config.training.validate_every
    return sorted({*range(every, last + 1, every), last})


def set_mean_weights(model: keras.Model, files: Sequence[Path]) -> None:
    """Gives a model the mean of the weights in `files`, computed in float64."""
    totals: list[Any] = [0.0] * len(model.get_weights())
    for file in files:
        model.load_weights(file)
        weights = [weight.astype("float64") for weight in model.get_weights()]
        totals = [a + b for a, b in zip(totals, weights, strict=True)]
    model.set_weights([total / len(files) for total in totals])


def _average(
    config: RunConfig,
    folder: Path,
    model: keras.Model,
    valid: PairDataset,
    text_validation: TextValidation | None,
    state: RunState,
    say: Callable[[str], None],
) -> None:
    """Keeps the mean of the last epochs' weights if it validates better.

    The best single epoch is kept beside the checkpoints, to continue from.
    """
    wanted = config.training.average_checkpoints
    last = range(state.epoch, max(0, state.epoch - wanted), -1)
    paths = [weights_path(folder, epoch) for epoch in last]
    files = [path for path in paths if path.is_file()]
    if len(files) < 2:
        say(
            f"average_checkpoints = {wanted} has nothing to average: weights of "
            f"{len(files)} of the last epochs were kept. Raise training.epochs."
        )
        return
    set_mean_weights(model, files)
    logs = model.evaluate(valid, return_dict=True, verbose=0)
    scores = rename_totals({f"val_{name}": value for name, value in logs.items()})
    if text_validation is not None:
        scores |= text_validation.scores(model)
    monitor = config.training.monitor
    value = scores[monitored_key(monitor)]
    better = is_better(monitor, value, state.best_value)
    if better:
        best = folder / "model.keras"
        kept = folder / "checkpoints" / "best.keras"
        shutil.copyfile(best, kept.with_name(".best.keras.tmp"))
        kept.with_name(".best.keras.tmp").replace(kept)
        save_model(inference_copy(model), best)
        state.averaged_value = value
    say(
        f"The mean weights of the last {len(files)} epochs: {monitor} {value:.4f}; "
        + ("they are the final model." if better else "the best epoch stays better.")
    )


def _describe(config: RunConfig, folder: Path) -> str:
    """The report of a dry run."""
    lines: list[str] = []
    data = encode_data(config, folder, lines.append)
    model = _model(config, data.tokenizers)
    train, _, _ = _datasets(config, data, epoch=0)
    learning_rate(config, config.training.epochs * len(train))
    sizes = [data.tokenizers.source.vocabulary_size]
    sizes.append(data.tokenizers.target.vocabulary_size)
    lines.append(
        f"vocabulary: {sizes[0]:,} pieces for both sides"
        if data.tokenizers.shared
        else f"vocabulary: {sizes[0]:,} source and {sizes[1]:,} target pieces"
    )
    lines.append(f"{config.model['name']}: {model.count_params():,} parameters")
    lines.append(f"{len(train):,} updates an epoch; batches (B, S, T):")
    lines += [
        f"  {batch} x {source} x {target}" for batch, source, target in train.shapes
    ]
    _warn_of_large_logits(train.shapes, sizes[1])
    for index in range(min(10, len(data.train))):
        lines.append(f"example {index + 1}")
        sides = zip(("source", "target"), data.train[index], strict=True)
        for side, ids in sides:
            tokenizer = getattr(data.tokenizers, side)
            numbers = [int(number) for number in ids]
            lines.append(f"  {side}: {' '.join(tokenizer.pieces(numbers))}")
            lines.append(f"  {side}_ids: {' '.join(map(str, numbers))}")
    return "\n".join(lines) + "\n"
