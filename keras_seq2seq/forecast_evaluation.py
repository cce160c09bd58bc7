"""Errors of forecasts, beside those of forecasts that need no network."""

from typing import Any

import numpy as np

from keras_seq2seq.forecaster import Forecaster, forecast_windows
from keras_seq2seq.series import Scaling, read_series
from keras_seq2seq.series_windows import SeriesWindows

# Penalties that the ridge row chooses from on the validation part.
_PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)


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
        percent of the true values in the file's units, left out where one is 0.
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
    if np.all(truth != 0):
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
    The penalty with the least validation error is taken; without validation 10.

    Args:
        train: Windows to learn from.
        valid: Windows that choose the penalty.
        windows: Windows to forecast.

    Returns:
        Forecasts, z-scores, `(windows, rows, targets)`.
    """
    forecasts = []
    for column in range(train.shape.num_targets):
        past, following = _lags(train, column)
        center = past.mean(axis=0), following.mean(axis=0)
        past, following = past - center[0], following - center[1]
        products = past.T @ past, past.T @ following

        def predict(part, penalty, products=products, center=center, column=column):
            matrix = products[0] + penalty * np.eye(len(products[0]))
            weights = np.linalg.solve(matrix, products[1])
            lags, truth = _lags(part, column)
            return (lags - center[0]) @ weights + center[1], truth

        penalty = 10.0
        if valid is not None:
            errors = []
            for candidate in _PENALTIES:
                found, truth = predict(valid, candidate)
                errors.append(np.mean((found - truth) ** 2))
            penalty = _PENALTIES[int(np.argmin(errors))]
        forecasts.append(predict(windows, penalty)[0])
    return np.stack(forecasts, axis=-1)


def _lags(windows: SeriesWindows, column: int) -> tuple[np.ndarray, np.ndarray]:
    shape, values = windows.shape, windows.values[:, column].astype("float64")
    past = values[windows.origins[:, None] + np.arange(-shape.source_length, 0)]
    return past, values[windows.origins[:, None] + np.arange(shape.target_length)]


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
