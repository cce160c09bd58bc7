"""Errors of forecasts, beside those of forecasts that need no network."""

from typing import Any

import numpy as np

from keras_seq2seq.forecaster import Forecaster, forecast_windows
from keras_seq2seq.series import Scaling, Series, read_series, split_rows
from keras_seq2seq.series_windows import SeriesWindows

# Penalties that the ridge row chooses from.
_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def forecast_errors(
    forecasts: np.ndarray, following: np.ndarray, scaling: Scaling
) -> dict[str, float]:
    """Mean errors over all windows, rows and columns.

    Args:
        forecasts: z-scores, `(windows, rows, targets)`.
        following: What came, in the same form.
        scaling: What turns z-scores into the file's units.

    Returns:
        `mse` and `mae` of the z-scores; `mse_units` and `mae_units`; and `mape`, in
        percent of the true values in the file's units, left out where one of them is
        closer to 0 than a hundredth of its column's deviation.
    """
    difference = forecasts.astype("float64") - following
    truth = scaling.undo(following)
    units = scaling.undo(forecasts) - truth
    errors = {
        "mse": float(np.mean(difference**2)),
        "mae": float(np.mean(np.abs(difference))),
        "mse_units": float(np.mean(units**2)),
        "mae_units": float(np.mean(np.abs(units))),
    }
    if np.all(np.abs(truth) > scaling.std[: truth.shape[-1]] / 100):
        errors["mape"] = float(100 * np.mean(np.abs(units / truth)))
    return errors


def repeat_last(windows: SeriesWindows, season: int = 1) -> np.ndarray:
    """The last row, or the last season, over and over: `(windows, rows, targets)`.

    Args:
        windows: The windows.
        season: Rows that are repeated.
    """
    shape = windows.shape
    back = np.arange(shape.target_length) % season - season
    rows = windows.origins[:, None] + back
    return windows.values[rows][..., : shape.num_targets]


def ridge_on_lags(
    train: SeriesWindows, valid: SeriesWindows | None, windows: SeriesWindows
) -> np.ndarray:
    """Each row of the horizon by ridge regression on the column's own past.

    One regression for each target column, with an intercept that is not penalised.
    The penalty with the least validation error is taken; without a validation part,
    the last fifth of the training windows chooses it.

    Args:
        train: Windows to learn from.
        valid: Windows that choose the penalty, or None.
        windows: Windows to forecast.

    Returns:
        Forecasts, z-scores, `(windows, rows, targets)`.
    """
    learnt, chosen = train.origins, None if valid is None else valid.origins
    if chosen is None:
        learnt, chosen = np.split(train.origins, [len(train.origins) * 4 // 5])
        # No row that is forecast to choose was one to learn from.
        learnt = learnt[learnt + train.shape.target_length <= chosen[0]]
        if not len(learnt):
            learnt = chosen
    forecasts = []
    for column in range(train.shape.num_targets):
        choice = _Ridge(train, column, learnt)
        past, following = choice.windows(chosen)
        errors = [
            np.mean((choice.predict(past, penalty) - following) ** 2)
            for penalty in _PENALTIES
        ]
        best = _PENALTIES[int(np.argmin(errors))]
        final = choice if valid is not None else _Ridge(train, column, train.origins)
        forecasts.append(final.predict(final.windows(windows.origins)[0], best))
    return np.stack(forecasts, axis=-1)


class _Ridge:
    """Ridge regression of one column's next rows on its last rows."""

    def __init__(self, series: SeriesWindows, column: int, origins: np.ndarray):
        self.shape = series.shape
        self.values = series.values[:, column].astype("float64")
        past, following = self.windows(origins)
        self.center = past.mean(axis=0), following.mean(axis=0)
        past, following = past - self.center[0], following - self.center[1]
        self.products = past.T @ past, past.T @ following

    def windows(self, origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Past and following rows around the first target rows `origins`."""
        past = origins[:, None] + np.arange(-self.shape.source_length, 0)
        following = origins[:, None] + np.arange(self.shape.target_length)
        return self.values[past], self.values[following]

    def predict(self, past: np.ndarray, penalty: float) -> np.ndarray:
        """Forecasts, `(windows, rows)`."""
        matrix = self.products[0] + penalty * np.eye(len(self.products[0]))
        weights = np.linalg.solve(matrix, self.products[1])
        return (past - self.center[0]) @ weights + self.center[1]


def evaluate_forecaster(forecaster: Forecaster, part: str = "test") -> dict[str, Any]:
    """Measures a run on a part of its series, and the naive rows beside it.

    Args:
        forecaster: What `load` returned.
        part: `"train"`, `"valid"` or `"test"`.

    Returns:
        `part`, `windows`, and under `rows` the `forecast_errors` of each forecast.

    Raises:
        ValueError: If the part has no window, or the training part of the file is not
            the one that the run learned from.
    """
    settings = forecaster.config.series
    series = read_series(settings.path, settings.columns, time=settings.time)
    _check_training_part(forecaster, series)
    windows = forecaster.windows(series, part)
    valid = forecaster.windows(series, "valid") if settings.splits[1] else None
    forecasts, following = forecast_windows(forecaster.model, windows)
    rows = {"model": forecasts, "repeat last": repeat_last(windows)}
    if settings.season is not None:
        name = f"repeat the last {settings.season}"
        rows[name] = repeat_last(windows, settings.season)
    lags = f"ridge on {settings.source_length} lags"
    rows[lags] = ridge_on_lags(forecaster.windows(series, "train"), valid, windows)
    return {
        "part": part,
        "windows": len(windows.origins),
        "rows": {
            name: forecast_errors(row, following, forecaster.scaling)
            for name, row in rows.items()
        },
    }


def _check_training_part(forecaster: Forecaster, series: Series) -> None:
    """Finds a file whose parts moved, so that rows learned from would be tested."""
    settings, learned = forecaster.config.series, forecaster.scaling
    end = split_rows(len(series.values), settings.splits)[0][1]
    same = end > 0
    if same:
        found = Scaling.fit(settings.columns, series.values[:end])
        moved = np.abs(found.mean - learned.mean) + np.abs(found.std - learned.std)
        same = bool(np.all(moved <= 1e-6 * learned.std))
    if not same:
        raise ValueError(
            f"The first {end:,} rows of {settings.path} must be those that the run was "
            "trained on. Received: columns with other means or deviations than in "
            "scaling.json. Restore the file, or train again; give splits in rows if "
            "the file grows."
        )


def forecast_table(result: dict[str, Any]) -> list[str]:
    """Lines of a table of what `evaluate_forecaster` returned.

    Args:
        result: The dict.
    """
    names = list(dict.fromkeys(key for row in result["rows"].values() for key in row))
    width = max(len(name) for name in result["rows"]) + 2
    lines = [f"{result['part']}: {result['windows']:,} windows"]
    lines.append(" " * width + "".join(f"{name:>13}" for name in names))
    for name, row in result["rows"].items():
        cells = (f"{row[key]:13.5g}" if key in row else " " * 13 for key in names)
        lines.append(f"{name:<{width}}" + "".join(cells))
    return lines
