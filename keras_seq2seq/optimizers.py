"""The optimizer and the learning rate that `[training]` names."""

import inspect
from typing import Any

import keras

from keras_seq2seq.config import RunConfig, TrainingConfig
from keras_seq2seq.models import MODELS
from keras_seq2seq.schedules import InverseSquareRootSchedule, NoamSchedule
from keras_seq2seq.series_config import SeriesRunConfig, SeriesTrainingConfig

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "nadam": keras.optimizers.Nadam,
    "adamax": keras.optimizers.Adamax,
    "rmsprop": keras.optimizers.RMSprop,
    "sgd": keras.optimizers.SGD,
    "adagrad": keras.optimizers.Adagrad,
    "adadelta": keras.optimizers.Adadelta,
}


_SETTINGS = ("beta_1", "beta_2", "epsilon", "momentum", "weight_decay")


def make_optimizer(
    training: TrainingConfig | SeriesTrainingConfig, rate: Any
) -> keras.optimizers.Optimizer:
    """Returns a new optimizer.

    Args:
        training: Names it and its settings.
        rate: Its learning rate, or a schedule; see `learning_rate`.

    Raises:
        ValueError: If a setting is none of the chosen optimizer's.
    """
    chosen = OPTIMIZERS[training.optimizer]
    given = {name: getattr(training, name, None) for name in _SETTINGS}
    arguments = {name: value for name, value in given.items() if value is not None}
    valid = inspect.signature(chosen).parameters
    for name, value in arguments.items():
        if name not in valid:
            raise ValueError(
                f'`{name}` is no setting of optimizer "{training.optimizer}". '
                f"Received: {name}={value}."
            )
    return chosen(learning_rate=rate, global_clipnorm=training.clip_norm, **arguments)


def learning_rate(config: RunConfig | SeriesRunConfig, num_updates: int) -> Any:
    """Returns the learning rate of a run, or its schedule.

    Args:
        config: The run.
        num_updates: Updates of the whole run; `cosine` ends with them.

    Raises:
        ValueError: If the warm-up of `cosine` would not end before the run.
    """
    training = config.training
    peak = 0.001 if training.learning_rate is None else training.learning_rate
    if training.schedule == "noam":
        signature = inspect.signature(MODELS[config.model["name"]])
        widths = {
            name: config.model.get(name, signature.parameters[name].default)
            for name in ("dim", "units", "embedding_dim")
            if name in signature.parameters
        }
        return NoamSchedule(
            next(iter(widths.values())), training.warmup_steps, training.noam_factor
        )
    if training.schedule == "inverse_square_root":
        return InverseSquareRootSchedule(peak, training.warmup_steps)
    if training.schedule == "cosine":
        return _cosine(training, peak, num_updates)
    return peak


def _cosine(
    training: TrainingConfig | SeriesTrainingConfig, peak: float, num_updates: int
) -> keras.optimizers.schedules.CosineDecay:
    warmup = getattr(training, "warmup_steps", 0)
    if warmup >= num_updates:
        raise ValueError(
            "`warmup_steps` must be below the updates of the whole run where "
            f'schedule = "cosine". Received: warmup_steps={warmup}, {num_updates} '
            "updates in all epochs."
        )
    return keras.optimizers.schedules.CosineDecay(
        0.0 if warmup else peak,
        num_updates - warmup,
        alpha=training.min_learning_rate / peak,
        warmup_target=peak if warmup else None,
        warmup_steps=warmup,
    )
