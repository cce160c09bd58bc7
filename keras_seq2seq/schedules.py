"""Numbers that change from update to update: learning rates and gold rates.

Learning rates are saved and restored with the optimizer. A gold rate is the
probability that scheduled sampling feeds the decoder the gold token; it is a function
of the number of updates done, never of the epoch.
"""

from typing import Any

import keras
from keras import ops

__all__ = [
    "ConstantGoldRate",
    "ExponentialGoldRate",
    "InverseSigmoidGoldRate",
    "InverseSquareRootSchedule",
    "LinearGoldRate",
    "NoamSchedule",
    "make_gold_rate",
]


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


class _GoldRate:
    """What `keras.saving` needs of the gold rates."""

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable("keras_seq2seq")
class ConstantGoldRate(_GoldRate):
    """The same gold rate at every update: 1 is teacher forcing, 0 free running.

    Args:
        rate: Probability of the gold token.

    Call arguments:
        updates: Number of updates done, i = 0, 1, ...

    Raises:
        ValueError: If `rate` is not between 0 and 1.
    """

    def __init__(self, rate: float):
        if not 0 <= rate <= 1:
            raise ValueError(f"`rate` must be between 0 and 1. Received: rate={rate}.")
        self.rate = rate

    def __call__(self, updates):
        return ops.convert_to_tensor(self.rate, dtype="float32")

    def get_config(self):
        return {"rate": self.rate}


@keras.saving.register_keras_serializable("keras_seq2seq")
class LinearGoldRate(_GoldRate):
    """`max(minimum, k - c * i)`, at most 1 where `k` is above it.

    Args:
        k: Gold rate at the start.
        c: What each update takes from it.
        minimum: Where it stops.

    Call arguments:
        updates: Number of updates done, i = 0, 1, ...

    Raises:
        ValueError: If `k` or `c` is not positive or `minimum` not in `[0, 1)`.

    Reference:
        Bengio et al., 2015, section 2.4.
    """

    def __init__(self, k: float = 1.0, *, c: float, minimum: float = 0.0):
        _check_positive(k=k, c=c)
        if not 0 <= minimum < 1:
            raise ValueError(
                f"`minimum` must be at least 0 and below 1. Received: {minimum}."
            )
        self.k = k
        self.c = c
        self.minimum = minimum

    def __call__(self, updates):
        rate = self.k - self.c * ops.cast(updates, "float32")
        return ops.clip(rate, self.minimum, 1.0)

    def get_config(self):
        return {"k": self.k, "c": self.c, "minimum": self.minimum}


@keras.saving.register_keras_serializable("keras_seq2seq")
class ExponentialGoldRate(_GoldRate):
    """`k ** i`.

    Args:
        k: What each update multiplies the gold rate by.

    Call arguments:
        updates: Number of updates done, i = 0, 1, ...

    Raises:
        ValueError: If `k` is not between 0 and 1, both excluded.

    Reference:
        Bengio et al., 2015, section 2.4.
    """

    def __init__(self, k: float):
        if not 0 < k < 1:
            raise ValueError(f"`k` must be above 0 and below 1. Received: k={k}.")
        self.k = k

    def __call__(self, updates):
        return ops.power(self.k, ops.cast(updates, "float32"))

    def get_config(self):
        return {"k": self.k}


@keras.saving.register_keras_serializable("keras_seq2seq")
class InverseSigmoidGoldRate(_GoldRate):
    """`k / (k + exp(i / k))`: close to 1 at first, one half at update `k ln k`.

    Args:
        k: Speed; the larger, the later predictions are fed.

    Call arguments:
        updates: Number of updates done, i = 0, 1, ...

    Raises:
        ValueError: If `k` is below 1.

    Reference:
        Bengio et al., 2015, section 2.4.
    """

    def __init__(self, k: float):
        if k < 1:
            raise ValueError(f"`k` must be at least 1. Received: k={k}.")
        self.k = k

    def __call__(self, updates):
        # The same number as sigmoid(ln k - i / k), in which nothing overflows.
        k = float(self.k)
        return ops.sigmoid(ops.log(k) - ops.cast(updates, "float32") / k)

    def get_config(self):
        return {"k": self.k}


def make_gold_rate(
    decay: str, k: float | None = None, c: float | None = None, minimum: float = 0.0
) -> Any:
    """Returns the gold rate of a name.

    Args:
        decay: `"linear"`, `"exponential"`, `"inverse_sigmoid"`, `"never"` (free
            running) or `"always"` (teacher forcing).
        k: Argument of the first three; 1 by default for `"linear"`.
        c: Argument of `"linear"`.
        minimum: Argument of `"linear"`.

    Returns:
        A function of the number of updates done.

    Raises:
        ValueError: If `decay` is unknown, or an argument is missing, out of range or
            none of that decay.
    """
    taken = {
        "linear": ("k", "c", "minimum"),
        "exponential": ("k",),
        "inverse_sigmoid": ("k",),
        "never": (),
        "always": (),
    }
    if decay not in taken:
        raise ValueError(
            f"`decay` must be one of {', '.join(map(repr, taken))}. "
            f"Received: decay={decay!r}."
        )
    given = {"k": k, "c": c, "minimum": minimum or None}
    for name, value in given.items():
        if value is not None and name not in taken[decay]:
            raise ValueError(
                f'`{name}` is no setting of decay "{decay}". Received: {name}={value}.'
            )
    if decay == "linear":
        if c is None:
            raise ValueError('decay "linear" needs `c`, what each update takes away.')
        return LinearGoldRate(1.0 if k is None else k, c=c, minimum=minimum)
    if decay in ("never", "always"):
        return ConstantGoldRate(float(decay == "always"))
    if k is None:
        raise ValueError(f'decay "{decay}" needs `k`.')
    return (
        ExponentialGoldRate(k) if decay == "exponential" else InverseSigmoidGoldRate(k)
    )
