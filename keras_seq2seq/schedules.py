"""Learning-rate schedules with warm-up; saved and restored with the optimizer."""

import keras
from keras import ops

__all__ = ["InverseSquareRootSchedule", "NoamSchedule"]


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if value <= 0:
            raise ValueError(f"`{name}` must be above 0. Received: {name}={value}.")


@keras.saving.register_keras_serializable("keras_seq2seq")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the square root of the update number.

    `rate(n) = factor * dim**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)` for
    update n = 1, 2, ...; Keras counts from 0, so n is its count plus one.

    Args:
        dim: Width of the model.
        warmup_steps: Updates until the peak.
        factor: Multiplier of the whole curve.

    Raises:
        ValueError: If an argument is not positive.

    Reference:
        Vaswani et al., 2017, section 5.3, equation 3.
    """

    def __init__(self, dim: int, warmup_steps: int = 4000, factor: float = 1.0):
        _check_positive(dim=dim, warmup_steps=warmup_steps, factor=factor)
        self.dim = dim
        self.warmup_steps = warmup_steps
        self.factor = factor

    def __call__(self, step):
        update = ops.cast(step, "float32") + 1.0
        scale = self.factor * self.dim**-0.5
        return scale * ops.minimum(
            ops.rsqrt(update), update * float(self.warmup_steps) ** -1.5
        )

    def get_config(self):
        return {
            "dim": self.dim,
            "warmup_steps": self.warmup_steps,
            "factor": self.factor,
        }


@keras.saving.register_keras_serializable("keras_seq2seq")
class InverseSquareRootSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to `peak`, then decay with the square root of the update.

    `rate(n) = peak * min(n / warmup_steps, (warmup_steps / n)**0.5)` for update
    n = 1, 2, ...: `NoamSchedule` with the peak named instead of derived.

    Args:
        peak: Learning rate of update `warmup_steps`.
        warmup_steps: Updates until the peak.

    Raises:
        ValueError: If an argument is not positive.
    """

    def __init__(self, peak: float, warmup_steps: int = 4000):
        _check_positive(peak=peak, warmup_steps=warmup_steps)
        self.peak = peak
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        update = ops.cast(step, "float32") + 1.0
        warmup = float(self.warmup_steps)
        return self.peak * ops.minimum(update / warmup, ops.sqrt(warmup / update))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}
