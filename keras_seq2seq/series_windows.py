"""Windows of a series: a past (`source`), what followed it, and the calendar.

Between `series` and the models over vectors.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import keras
import numpy as np


def calendar_features(
    times: Sequence[Any],
    calendar: Iterable[str] = (),
    periods: Iterable[int] = (),
    harmonics: int = 1,
) -> np.ndarray:
    """Sines and cosines of where each time stands in recurring periods.

    Args:
        times: `datetime`s or whole numbers.
        calendar: `"hour"` of the day, `"weekday"` and `"year"` (day of it, from 0 to
            1), for dates, each with its fraction.
        periods: Periods in units of the times, for whole numbers.
        harmonics: Waves for each period, of 1, 1/2, 1/3 ... of it.

    Returns:
        float32, `(len(times), 2 * harmonics * periods)`.

    Raises:
        ValueError: If the times are of the other kind.
    """
    dates = bool(times) and isinstance(times[0], datetime)
    calendar, periods = tuple(calendar), tuple(periods)
    if (calendar and not dates) or (periods and dates):
        raise ValueError(
            "`calendar` needs a time column of dates, `periods` one of whole numbers "
            f"or none. Received: calendar={list(calendar)}, periods={list(periods)}, "
            f"times such as {times[0] if times else None!r}."
        )
    phases = [[_phase(time, name) for time in times] for name in calendar]
    phases += [[time / period for time in times] for period in periods]
    columns = [
        wave(2 * np.pi * number * np.asarray(phase))
        for phase in phases
        for number in range(1, harmonics + 1)
        for wave in (np.sin, np.cos)
    ]
    return (
        np.stack(columns, axis=1).astype("float32")
        if columns
        else np.zeros((len(times), 0), "float32")
    )


def _phase(time: datetime, name: str) -> float:
    day = (time.hour + time.minute / 60 + time.second / 3600) / 24
    if name == "hour":
        return day
    if name == "weekday":
        return (time.weekday() + day) / 7
    return (time.timetuple().tm_yday - 1 + day) / 365.25


@dataclasses.dataclass(frozen=True)
class WindowShape:
    """How rows of a series become the vectors that a model reads and writes.

    A vector holds `rows_per_step` rows in a row, so that a recurrent model takes
    fewer and longer steps (Lin et al., 2023, "SegRNN"). The source's channels are the
    targets' past first, then other inputs, then what is known ahead: the calendar
    of the vector's first row and, with `separate`, which column it is.

    Attributes:
        num_targets: Columns that are forecast, the first ones.
        num_inputs: Columns that are only read.
        num_features: Calendar features.
        source_length: Rows that are read.
        target_length: Rows that are forecast.
        rows_per_step: Rows that one vector holds.
        separate: Whether each target column is a series of its own to the model.
        center: What is taken from each column of a window before the model sees it
            and added to its forecast: nothing, its `"last"` value, or its `"mean"`.
            A model of changes goes on where levels are unlike those of training.
    """

    num_targets: int
    num_inputs: int
    num_features: int
    source_length: int
    target_length: int
    rows_per_step: int = 1
    separate: bool = False
    center: str = "none"

    def __post_init__(self) -> None:
        for name in ("source_length", "target_length"):
            if getattr(self, name) % self.rows_per_step:
                raise ValueError(
                    f"`rows_per_step` must divide `{name}`. Received: rows_per_step="
                    f"{self.rows_per_step}, {name}={getattr(self, name)}."
                )
        if self.separate and self.num_inputs:
            raise ValueError(
                "`separate` makes a series of each target and has no place for other "
                f"inputs. Received: {self.num_inputs} of them."
            )
        if self.center not in ("none", "last", "mean"):
            raise ValueError(
                "`center` must be 'none', 'last' or 'mean'. Received: "
                f"center={self.center!r}."
            )

    def level(self, past: np.ndarray) -> np.ndarray:
        """What is taken from a window, `(B, 1, columns)`.

        Args:
            past: z-scores, `(B, source_length, columns)`.
        """
        if self.center == "last":
            return past[:, -1:]
        mean = past.mean(axis=1, keepdims=True)
        return mean if self.center == "mean" else 0 * mean

    @property
    def model_sizes(self) -> dict[str, int]:
        """`source_dim`, `target_dim` and `future_dim` of a model."""
        targets = 1 if self.separate else self.num_targets
        future = self.num_features + (self.num_targets if self.separate else 0)
        values = (targets + self.num_inputs) * self.rows_per_step
        return {
            "source_dim": values + future,
            "target_dim": targets * self.rows_per_step,
            "future_dim": future,
        }

    def inputs(
        self,
        past: np.ndarray,
        past_features: np.ndarray,
        future_features: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """What a model reads.

        Args:
            past: z-scores without their level, `(B, source_length, columns)`.
            past_features: `(B, source_length, features)`.
            future_features: `(B, rows to forecast, features)`.

        Returns:
            `source`, `(B, S, m)`, and `future`, `(B, T, f)`, if there is any; with
            `separate` the rows of one window lie side by side.
        """
        step = self.rows_per_step
        known = [past_features[:, ::step], future_features[:, ::step]]
        if self.separate:
            count = self.num_targets
            past = _fold(past.swapaxes(1, 2).reshape(-1, past.shape[1], 1), step)
            marks = np.tile(np.eye(count, dtype="float32"), (len(known[0]), 1))
            known = [
                np.concatenate(
                    [
                        np.repeat(part, count, axis=0),
                        np.repeat(marks[:, None], part.shape[1], axis=1),
                    ],
                    axis=-1,
                )
                for part in known
            ]
        else:
            targets, others = np.split(past, [self.num_targets], axis=-1)
            past = np.concatenate([_fold(targets, step), _fold(others, step)], axis=-1)
        result = {"source": np.concatenate([past, known[0]], axis=-1)}
        if known[1].shape[-1]:
            result["future"] = known[1]
        return {name: value.astype("float32") for name, value in result.items()}

    def target(self, following: np.ndarray) -> np.ndarray:
        """What a model writes, `(B, T, n)`, of the rows `(B, rows, targets)`."""
        if self.separate:
            rows = following.shape[1]
            following = following.swapaxes(1, 2).reshape(-1, rows, 1)
        return _fold(following, self.rows_per_step)

    def rows(self, outputs: np.ndarray) -> np.ndarray:
        """The opposite of `target`: rows, `(B, rows, targets)`, of vectors."""
        count, steps, _ = outputs.shape
        if not self.separate:
            return outputs.reshape(count, steps * self.rows_per_step, -1)
        rows = outputs.reshape(-1, self.num_targets, steps * self.rows_per_step)
        return rows.swapaxes(1, 2)


def _fold(values: np.ndarray, step: int) -> np.ndarray:
    """Joins each `step` rows: `(B, L, c)` to `(B, L / step, step * c)`."""
    count, length, width = values.shape
    return values.reshape(count, length // step, step * width)


class SeriesWindows(keras.utils.PyDataset):
    """Batches of all windows of one part of a series.

    Targets lie in the part; the past may reach back before it. The order is a
    function of seed and epoch, so a stopped training goes on exactly.

    Args:
        values: z-scores of the whole series, targets first, `(rows, columns)`.
        features: Calendar features, `(rows, f)`.
        shape: How rows become vectors.
        part: First row of the part, and the row after its last one.
        batch_size: Windows of a batch.
        stride: Rows between the first targets of two windows.
        shuffle: Whether the order changes each epoch.
        seed: Seed of the order.
        epoch: First epoch.

    Raises:
        ValueError: If the part is too short for one window.
    """

    def __init__(
        self,
        values: np.ndarray,
        features: np.ndarray,
        shape: WindowShape,
        part: tuple[int, int],
        *,
        batch_size: int = 64,
        stride: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        super().__init__(workers=2)  # as in `datasets.PairDataset`
        self.values, self.features, self.shape = values, features, shape
        first = max(part[0], shape.source_length)
        self.origins = np.arange(first, part[1] - shape.target_length + 1, stride)
        if not len(self.origins):
            raise ValueError(
                f"The part of the rows {part[0]:,} to {part[1]:,} must hold a window "
                f"of target_length={shape.target_length} after source_length="
                f"{shape.source_length} rows. Received: {part[1] - part[0]:,} rows. "
                "Give it more of them in splits, or lower the lengths."
            )
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.epoch = epoch

    @property
    def epoch(self) -> int:
        """Number of the epoch whose batches are given."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        order = self.origins
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(order)
        self._order = order

    @property
    def fingerprint(self) -> str:
        """A sum over everything that the windows hold."""
        digest = hashlib.sha256()
        for part in (self.values, self.features, self.origins):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return -(-len(self.origins) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(
                f"`index` must be below {len(self)}, the number of batches. "
                f"Received: {index}."
            )
        start = index * self.batch_size
        inputs, following, level = self.window(
            self._order[start : start + self.batch_size]
        )
        target = self.shape.target(following - level)
        return {**inputs, "target": target}, target

    def window(
        self, origins: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Inputs of a model, the rows that followed, and the level of the targets.

        The rows, `(B, rows, targets)`, are z-scores; what a model writes is the
        difference to the level, `(B, 1, targets)`.

        Args:
            origins: First target row of each window.
        """
        shape = self.shape
        rows = origins[:, None] + np.arange(-shape.source_length, 0)
        future = origins[:, None] + np.arange(shape.target_length)
        past = self.values[rows]
        level = shape.level(past)
        inputs = shape.inputs(past - level, self.features[rows], self.features[future])
        count = shape.num_targets
        return inputs, self.values[future][..., :count], level[..., :count]

    def on_epoch_end(self) -> None:
        """Go on to the order of the next epoch; Keras calls this."""
        self.epoch += 1
