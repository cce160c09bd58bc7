"""Trains the forecasting model of one run and keeps everything in its run folder.

As `trainer` does for text: killed at any moment and started again, a run continues
from its last finished epoch and ends with the weights of an uninterrupted one.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_seq2seq.callbacks import RunSaver, Selection, seed_variables
from keras_seq2seq.config import config_to_toml, load_config
from keras_seq2seq.forecaster import features_of, forecast_windows, window_shape
from keras_seq2seq.models import REGRESSION_MODELS
from keras_seq2seq.optimizers import learning_rate, make_optimizer
from keras_seq2seq.progress import Progress, duration, print_line, print_nothing
from keras_seq2seq.runs import (
    RunState,
    claim_run,
    prepare_run,
    read_state,
    write_text,
)
from keras_seq2seq.series import Scaling, read_series, split_rows
from keras_seq2seq.series_config import SeriesRunConfig
from keras_seq2seq.series_windows import SeriesWindows
from keras_seq2seq.untrusted import load_model


def train_forecaster(
    config: SeriesRunConfig,
    output: str | Path,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: bool = True,
) -> Path | str:
    """Trains a forecasting run, or continues it where it stopped.

    Args:
        config: The run.
        output: The run folder.
        overwrite: Whether a run in that folder is replaced.
        dry_run: Whether to only report on the data and the model, writing nothing.
        progress: Whether to say on stderr what happens.

    Returns:
        The run folder; for a dry run, the report.

    Raises:
        FileNotFoundError: If the series is missing.
        ValueError: If series and settings don't fit each other, the folder holds
            another run, or the loss becomes NaN.
    """
    folder = Path(output)
    train, valid, scaling = _windows(config)
    if dry_run:
        return "\n".join(_report(config, train, valid, scaling)) + "\n"
    say = print_line if progress else print_nothing
    is_there = claim_run(folder, config, overwrite=overwrite)
    if not is_there:

        def make(staging: Path) -> None:
            for line in _report(config, train, valid, scaling):
                say(line)
            (staging / "checkpoints").mkdir()
            report = {"rows": len(train.values), "train_windows": len(train.origins)}
            write_text(staging / "data_report.json", json.dumps(report) + "\n")
            text = json.dumps(scaling.as_dict(), indent=2) + "\n"
            write_text(staging / "scaling.json", text)
            # From now on the numbers must stay those of the scaling.
            RunState(data=train.fingerprint).write(staging)

        prepare_run(config, folder, make)
    state = read_state(folder)
    is_finished = state.is_finished(config)
    if not is_finished and state.data not in ("", train.fingerprint):
        raise ValueError(
            f"The series of {folder} has changed since the run began. Received: "
            f"{config.series.path} with other numbers. Restore the file, or train "
            "from the start with --overwrite (overwrite=True)."
        )
    if is_there and load_config(folder / "run.toml") != config:
        # What may change for a run counts from now on.
        write_text(folder / "run.toml", config_to_toml(config))
    if is_finished:
        say(state.finished_message(config, folder))
        return folder
    state.data = train.fingerprint
    train.epoch = state.epoch
    _fit(config, folder, train, valid, state, say, progress=progress)
    return folder


def _windows(
    config: SeriesRunConfig,
) -> tuple[SeriesWindows, SeriesWindows | None, Scaling]:
    """Training and validation windows, scaled by the training part alone."""
    settings = config.series
    series = read_series(settings.path, settings.columns, time=settings.time)
    parts = split_rows(len(series.values), settings.splits)
    if parts[0][1] < 1:
        raise ValueError(
            "`splits` in [series] must give the training part rows. Received: "
            f"{list(settings.splits)}, of {len(series.values):,} rows."
        )
    scaling = Scaling.fit(settings.columns, series.values[: parts[0][1]])
    rows = scaling.apply(series.values), features_of(settings, series.times)
    shape = window_shape(settings)
    train = SeriesWindows(
        *rows,
        shape,
        parts[0],
        batch_size=config.training.batch_size,
        stride=settings.stride,
        shuffle=True,
        seed=config.training.seed,
    )
    valid = SeriesWindows(*rows, shape, parts[1]) if settings.splits[1] else None
    if settings.splits[2]:
        SeriesWindows(*rows, shape, parts[2])  # found too short now, not at the end
    return train, valid, scaling


def _report(
    config: SeriesRunConfig,
    train: SeriesWindows,
    valid: SeriesWindows | None,
    scaling: Scaling,
) -> list[str]:
    sizes, model = train.shape.model_sizes, _model(config, train)
    columns = zip(scaling.columns, scaling.mean, scaling.std, strict=True)
    steps = [
        length // train.shape.rows_per_step
        for length in (train.shape.source_length, train.shape.target_length)
    ]
    return [
        f"{config.series.path}: {len(train.values):,} rows",
        *(
            f"{name}: mean {mean:.6g}, deviation {std:.6g}"
            for name, mean, std in columns
        ),
        f"{len(train.origins):,} training and "
        f"{0 if valid is None else len(valid.origins):,} validation windows: "
        f"{steps[0]} vectors of {sizes['source_dim']} to {steps[1]} of "
        f"{sizes['target_dim']}",
        f"{config.model['name']}: {model.count_params():,} parameters",
    ]


def _model(config: SeriesRunConfig, train: SeriesWindows) -> keras.Model:
    keras.utils.set_random_seed(config.training.seed)
    arguments: dict[str, Any] = {**train.shape.model_sizes, **config.model_arguments}
    return REGRESSION_MODELS[config.model["name"]](**arguments)


def _resumed_model(
    config: SeriesRunConfig, folder: Path, train: SeriesWindows, state: RunState
) -> keras.Model:
    """A compiled model: a new one, or that of the last checkpoint, in every part."""
    model = _model(config, train)
    rate = learning_rate(config, config.training.epochs * len(train))
    optimizer = make_optimizer(config.training, rate)
    if state.checkpoint:
        path = folder / "checkpoints" / state.checkpoint
        model = load_model(path, with_optimizer=True)
        optimizer = model.optimizer
        for variable, value in zip(seed_variables(model), state.seeds, strict=True):
            variable.assign(np.asarray(value, dtype=variable.dtype))
    jit_compile = config.training.jit_compile
    model.supports_jit = model.supports_jit or jit_compile is True
    model.compile(
        optimizer=optimizer,
        # Over real steps alone, should a batch have weights.
        loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        jit_compile=jit_compile,
    )
    model.optimizer.build(model.trainable_variables)
    return model


def _fit(
    config: SeriesRunConfig,
    folder: Path,
    train: SeriesWindows,
    valid: SeriesWindows | None,
    state: RunState,
    say: Callable[[str], None],
    *,
    progress: bool,
) -> None:
    training = config.training
    model = _resumed_model(config, folder, train, state)
    validated = valid is not None
    bar = _ForecastProgress(
        epochs=training.epochs,
        epoch_size=len(train.origins),
        monitor=training.monitor if validated else None,
        state=state,
    )
    saver = RunSaver(
        folder, state, num_averaged=0, epoch_size=len(train.origins), unit="windows"
    )
    callbacks: list[keras.callbacks.Callback] = [_FiniteLoss()]
    if valid is not None:
        callbacks.append(_ForecastValidation(valid, saver))
    callbacks += [
        Selection(state, training, folder / "model.keras", validated=validated),
        saver,
    ]
    if progress:
        callbacks.append(bar)
    if not state.has_ended(config):
        with bar:
            model.fit(
                train,
                epochs=training.epochs,
                initial_epoch=state.epoch,
                shuffle=False,
                callbacks=callbacks,
                verbose=0,
            )
    state.completed = state.epoch
    state.write(folder)
    if state.best_value is not None:
        say(f"Best MSE: {state.best_value:.5f}, in epoch {state.best_epoch}.")


class _FiniteLoss(keras.callbacks.Callback):
    """Ends a run whose loss is no number."""

    def on_epoch_end(self, epoch, logs=None):
        value = (logs or {}).get("loss", 0.0)
        if not math.isfinite(value):
            raise ValueError(
                f"The loss is {value} in epoch {epoch + 1}. Lower `learning_rate` or "
                "set `clip_norm`. The checkpoint of the epoch before and the best "
                "model so far are kept."
            )


class _ForecastValidation(keras.callbacks.Callback):
    """Adds the MSE and MAE of forecasts of the validation windows to the logs."""

    def __init__(self, windows: SeriesWindows, saver: RunSaver):
        super().__init__()
        self.windows, self.saver = windows, saver

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            # What Keras says of a validation of its own: the updates are done.
            self.saver.on_test_begin()
            found, followed = forecast_windows(self.model, self.windows)
            difference = found.astype("float64") - followed
            logs["val_loss"] = float(np.mean(difference**2))
            logs["val_mae"] = float(np.mean(np.abs(difference)))


class _ForecastProgress(Progress):
    """The bar and the lines of a forecasting run."""

    def note(self, logs: dict[str, float], done: float, elapsed: float) -> str:
        return (
            f"mse {logs['loss']:.4f}  "
            f"{done * self.epoch_size / elapsed:,.0f} windows/s  "
            f"{duration(elapsed / done - elapsed)} left"
        )

    def line(self, epoch: int, logs: dict[str, float], seconds_left: float) -> str:
        names = {"loss": "mse", "val_loss": "val mse", "val_mae": "val mae"}
        parts = [f"epoch {epoch + 1}/{self.epochs}"]
        parts += [f"{names[key]} {logs[key]:.5f}" for key in names if key in logs]
        parts.append(f"{logs.get('windows_per_second', 0):,.0f} windows/s")
        parts.append(f"{duration(seconds_left)} left")
        if self.monitor and self.state.best_epoch == epoch + 1:
            parts.append("best so far")
        return "  ".join(parts)
