"""Numbers in, numbers out: a trained forecasting model with its scaling and calendar.

What `load` returns for the run folder of a recipe with `[series]`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_seq2seq.series import Scaling, Series, read_series, split_rows
from keras_seq2seq.series_config import SeriesConfig, SeriesRunConfig
from keras_seq2seq.series_windows import (
    SeriesWindows,
    WindowShape,
    calendar_features,
)

# The parts of a series, in the order of `splits`.
PARTS = ("train", "valid", "test")


def window_shape(config: SeriesConfig) -> WindowShape:
    """How the rows of a run's series become vectors.

    Args:
        config: The run's `[series]`.
    """
    features = 2 * config.harmonics * (len(config.calendar) + len(config.periods))
    return WindowShape(
        num_targets=len(config.targets),
        num_inputs=len(config.inputs),
        num_features=features,
        source_length=config.source_length,
        target_length=config.target_length,
        rows_per_step=config.rows_per_step,
        separate=config.separate,
        center=config.center,
    )


def features_of(config: SeriesConfig, times: Sequence[Any]) -> np.ndarray:
    """Calendar features of a run, `(len(times), f)`.

    Args:
        config: The run's `[series]`.
        times: Times of the rows.
    """
    return calendar_features(times, config.calendar, config.periods, config.harmonics)


def forecast_windows(
    model: Any, windows: SeriesWindows, batch_size: int = 512
) -> tuple[np.ndarray, np.ndarray]:
    """Forecasts every window of a part, each from its own outputs alone.

    Args:
        model: A `RegressionSeq2Seq`.
        windows: The windows.
        batch_size: Windows of a batch.

    Returns:
        Forecasts and what followed, z-scores, both `(windows, rows, targets)`.
    """
    shape = windows.shape
    found, followed = [], []
    for start in range(0, len(windows.origins), batch_size):
        origins = windows.origins[start : start + batch_size]
        inputs, following, level = windows.window(origins)
        target = shape.target(following)
        if model.feedback == "own":
            # The same numbers as `forecast`, compiled; the target gives the length.
            outputs = model.predict_on_batch({**inputs, "target": 0 * target})
        else:
            future = inputs.get("future")
            outputs, _ = model.forecast(
                inputs["source"], target.shape[1], future=future
            )
        found.append(shape.rows(keras.ops.convert_to_numpy(outputs)) + level)
        followed.append(following)
    return np.concatenate(found), np.concatenate(followed)


class Forecaster:
    """A trained model that continues a series.

    Args:
        model: A `RegressionSeq2Seq` with its weights.
        scaling: Means and deviations of the training part.
        config: The run's configuration.

    Raises:
        ValueError: If model, scaling and configuration do not belong together.

    Example:
        forecaster = load("saved_models/ett_h1_univariate")
        times, values = forecaster.forecast_file("ETTh1.csv")
    """

    def __init__(
        self, model: keras.Model, scaling: Scaling, config: SeriesRunConfig
    ) -> None:
        self.model, self.scaling, self.config = model, scaling, config
        self.shape = window_shape(config.series)
        sizes = {name: getattr(model, name, None) for name in self.shape.model_sizes}
        if sizes != self.shape.model_sizes or scaling.columns != config.series.columns:
            raise ValueError(
                "Model, scaling and [series] must come from the same run folder. "
                f"Received: a model of {sizes}, [series] of {self.shape.model_sizes}; "
                f"scaling of {', '.join(scaling.columns)}, [series] of "
                f"{', '.join(config.series.columns)}."
            )

    def __call__(self, series: Series, **options: Any) -> np.ndarray:
        """Return the forecast of `forecast`, without its times."""
        return self.forecast(series, **options)[1]

    def forecast_file(
        self, path: str | Path, **options: Any
    ) -> tuple[list[str], np.ndarray]:
        """Continue the series of a CSV file that has the run's columns.

        Args:
            path: The file.
            **options: Options of `forecast`.

        Returns:
            What `forecast` returns.
        """
        series = self.config.series
        return self.forecast(
            read_series(path, series.columns, time=series.time), **options
        )

    def forecast(
        self,
        series: Series,
        *,
        horizon: int | None = None,
        stop_fn: Callable[[np.ndarray], Any] | None = None,
    ) -> tuple[list[str], np.ndarray]:
        """Continue a series after its last row.

        Args:
            series: The run's columns; its last `source_length` rows are read.
            horizon: Rows to forecast; default the run's `target_length`.
            stop_fn: Function of the rows so far in the file's units,
                `(B, rows, targets)`, that returns a bool for each of `B`: whether
                the forecast ends with the last of them. Not with `separate`.

        Returns:
            Times as the file writes them, and the forecast, `(rows, targets)`, in the
            file's units.

        Raises:
            ValueError: If the series is too short or an option is wrong.
        """
        shape = self.shape
        rows = shape.target_length if horizon is None else horizon
        if rows < 1:
            raise ValueError(f"`horizon` must be at least 1. Received: {horizon}.")
        self._check_columns(series)
        if len(series.values) < shape.source_length:
            raise ValueError(
                f"The series must have at least source_length={shape.source_length} "
                f"rows. Received: {len(series.values)}."
            )
        if stop_fn is not None and shape.separate:
            raise ValueError(
                "`stop_fn` must be None for a run with separate = true, whose columns "
                f"are forecast one by one. Received: {stop_fn!r}."
            )
        length = -(-rows // shape.rows_per_step)
        times, texts = series.following_times(length * shape.rows_per_step)
        last = slice(len(series.values) - shape.source_length, None)
        past = self.scaling.apply(series.values[last])[None]
        level = shape.level(past)
        inputs = shape.inputs(
            past - level,
            features_of(self.config.series, series.times[last])[None],
            features_of(self.config.series, times)[None],
        )
        outputs, mask = self.model.forecast(
            inputs["source"],
            length,
            future=inputs.get("future"),
            stop_fn=None if stop_fn is None else self._in_units(stop_fn, level),
        )
        kept = int(keras.ops.convert_to_numpy(mask)[0].sum()) * shape.rows_per_step
        found = self._in_file_units(outputs, level)[0]
        count = min(rows, kept)
        return texts[:count], found[:count]

    def _check_columns(self, series: Series) -> None:
        expected = self.config.series.columns
        if series.columns != expected:
            raise ValueError(
                f"`series` must have the run's columns, {', '.join(expected)}, in this "
                f"order. Received: {', '.join(series.columns)}. Read it with "
                "`read_series` and these columns, or use `forecast_file`."
            )

    def _in_file_units(self, outputs: Any, level: np.ndarray) -> np.ndarray:
        """Rows, `(B, rows, targets)`, of what the model wrote."""
        rows = self.shape.rows(keras.ops.convert_to_numpy(outputs))
        return self.scaling.undo(rows + level[..., : rows.shape[-1]])

    def _in_units(
        self, stop_fn: Callable[[np.ndarray], Any], level: np.ndarray
    ) -> Callable[[Any], Any]:
        """The predicate as one of the model's outputs."""

        def stops(outputs: Any) -> Any:
            return np.asarray(stop_fn(self._in_file_units(outputs, level)))

        return stops

    def windows(self, series: Series, part: str) -> SeriesWindows:
        """Windows of one part of the run's series.

        Args:
            series: The run's series.
            part: `"train"`, `"valid"` or `"test"`.

        Raises:
            ValueError: If the columns are others, or there is no such part or no
                window in it.
        """
        settings = self.config.series
        self._check_columns(series)
        if part not in PARTS:
            raise ValueError(
                f"`part` must be one of {', '.join(map(repr, PARTS))}. Received: "
                f"{part!r}."
            )
        if not settings.splits[PARTS.index(part)]:
            raise ValueError(
                f"The run has no rows in the {part} part. Received: splits="
                f"{list(settings.splits)} in [series]. Choose another part, or train "
                "a run with rows in it."
            )
        parts = split_rows(len(series.values), settings.splits)
        return SeriesWindows(
            self.scaling.apply(series.values),
            features_of(settings, series.times),
            self.shape,
            parts[PARTS.index(part)],
        )
