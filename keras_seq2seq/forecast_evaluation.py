"""Errors of forecasts, beside those of forecasts that need no network."""

from typing import Any

import numpy as np

from keras_seq2seq.forecaster import Forecaster, forecast_windows
from keras_seq2seq.series import Scaling, read_series
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
        learnt, chosen = np.split(train.origins, [max(1, len(train.origins) * 4 // 5)])
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
        ValueError: If the part has no window.
    """
    settings = forecaster.config.series
    series = read_series(settings.path, settings.columns, time=settings.time)
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
