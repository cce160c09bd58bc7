"""The optimizer and the learning rate that `[training]` names."""

import inspect
from typing import Any

import keras

from keras_seq2seq.config import RunConfig
from keras_seq2seq.models import MODELS
from keras_seq2seq.schedules import InverseSquareRootSchedule, NoamSchedule

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


def make_optimizer(config: RunConfig) -> keras.optimizers.Optimizer:
    """Returns a new optimizer with its learning rate or schedule.

    Args:
        config: The run.

    Raises:
        ValueError: If a setting is none of the chosen optimizer's.
    """
    training = config.training
    chosen = OPTIMIZERS[training.optimizer]
    arguments = {
        name: getattr(training, name)
        for name in ("beta_1", "beta_2", "epsilon", "momentum", "weight_decay")
        if getattr(training, name) is not None
    }
    valid = inspect.signature(chosen).parameters
    for name, value in arguments.items():
        if name not in valid:
            raise ValueError(
                f'`{name}` is no setting of optimizer "{training.optimizer}". '
                f"Received: {name}={value}."
            )
    return chosen(
        learning_rate=learning_rate(config),
        global_clipnorm=training.clip_norm,
        **arguments,
    )


def learning_rate(config: RunConfig) -> Any:
    """Returns the learning rate of a run, or its schedule.

    Args:
        config: The run.
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
    return peak
