"""Time series: reading CSV files, their parts, and scaling.

The numeric side of the package's data, below `series_windows`.
"""

import csv
import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.lines import read_lines
from keras_seq2seq.untrusted import read_json


@dataclasses.dataclass(frozen=True)
class Series:
    """Columns of numbers, one row a point in time.

    Attributes:
        columns: Names of the columns.
        values: `(rows, columns)`, float64.
        times: Times of the rows: all `datetime`, or whole numbers.
        time_texts: The same as the file writes them; row numbers without a column.
    """

    columns: tuple[str, ...]
    values: np.ndarray
    times: tuple[Any, ...]
    time_texts: tuple[str, ...]

    def following_times(self, count: int) -> tuple[tuple[Any, ...], list[str]]:
        """Times of the rows after the last one, and how to write them.

        Args:
            count: How many.

        Raises:
            ValueError: If there is one date alone, which tells no step.
        """
        last = self.times[-1]
        if len(self.times) > 1:
            step = last - self.times[-2]
        elif isinstance(last, datetime):
            raise ValueError(
                "A series with a column of dates must have at least 2 rows, which "
                f"tell the step between them. Received: 1 row, {self.time_texts[-1]}."
            )
        else:
            step = 1
        times = tuple(last + step * (index + 1) for index in range(count))
        if not isinstance(last, datetime):
            return times, [str(time) for time in times]
        return times, _texts_like(self.time_texts[-1], last, times)


def _texts_like(text: str, last: datetime, times: Sequence[datetime]) -> list[str]:
    """Writes dates as `text` writes `last`, or whole where that would lose a part."""
    separator = "T" if "T" in text else " "

    def write(time: datetime, parts: str) -> str:
        if parts == "date":
            return time.date().isoformat()
        written = time.isoformat(separator, parts)
        return written.replace("+00:00", "Z") if text.endswith("Z") else written

    for parts in ("date", "minutes", "seconds", "milliseconds"):
        found = [write(time, parts) for time in times]
        same = [datetime.fromisoformat(item) for item in found] == list(times)
        if same and write(last, parts) == text:
            return found
    return [write(time, "auto") for time in times]


def read_series(
    path: str | Path, columns: Sequence[str], *, time: str | None = None
) -> Series:
    """Reads columns of a CSV file whose first line names them.

    Args:
        path: The file, gzipped or not; commas between cells.
        columns: Names of the columns to read, in the order wanted.
        time: Name of the column of times: ISO 8601 dates or whole numbers, at equal
            steps. None: rows are numbered from 0.

    Returns:
        The series.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is missing, a cell is no finite number, or a time does
            not follow the one before; with the line.
    """
    rows = _cells(path)
    try:
        header = next(rows)[1]
    except StopIteration:
        raise ValueError(f"{path} must begin with a line of names. It is empty.") from (
            None
        )
    places = [_place(path, header, name) for name in columns]
    time_place = None if time is None else _place(path, header, time)
    values: list[list[float]] = []
    times: list[Any] = []
    texts: list[str] = []
    for number, cells in rows:
        if len(cells) != len(header):
            raise ValueError(
                f"Line {number} of {path} must have {len(header)} cells, as its first "
                f"line. Received: {len(cells)}."
            )
        values.append([_number(path, number, header, cells, i) for i in places])
        text = str(len(times)) if time_place is None else cells[time_place].strip()
        texts.append(text)
        times.append(_time(path, number, text))
        _check_step(path, number, times)
    if not values:
        raise ValueError(f"{path} must have rows below its line of names. It has none.")
    return Series(tuple(columns), np.array(values), tuple(times), tuple(texts))


def _cells(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of the lines that are not blank."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                yield number, next(csv.reader([line]))
            except csv.Error as error:
                raise ValueError(
                    f"Line {number} of {path} must be cells with commas between. "
                    f"Received: a line that cannot be split: {error}."
                ) from None


def _place(path: str | Path, header: list[str], name: str) -> int:
    names = [cell.strip() for cell in header]
    if names.count(name) > 1:
        raise ValueError(
            f'{path} must have one column "{name}". Received: {names.count(name)} of '
            "that name. Rename them."
        )
    if name in names:
        return names.index(name)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f' Did you mean "{close[0]}"?' if close else ""
    raise ValueError(
        f'{path} has no column "{name}".{hint} Its columns: {", ".join(names)}.'
    )


def _number(
    path: str | Path, line: int, header: list[str], cells: list[str], place: int
) -> float:
    try:
        value = float(cells[place])
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(
            f'Line {line} of {path} must have a finite number in column "'
            f'{header[place].strip()}". Received: {cells[place]!r}. Fill gaps, or '
            "leave out the rows before the last gap."
        )
    return value


def _time(path: str | Path, line: int, text: str) -> Any:
    for kind in (int, datetime.fromisoformat):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(
        f"Line {line} of {path} must have a whole number or an ISO 8601 date as its "
        f"time. Received: {text!r}."
    )


def _check_step(path: str | Path, line: int, times: list[Any]) -> None:
    """Finds a time of another kind, going back, or after a gap."""
    if len(times) < 2:
        return
    try:
        step = times[-1] - times[-2]
        first = times[1] - times[0]
    except TypeError:
        step, first = 0, 1
    if step != first or times[1] <= times[0]:
        raise ValueError(
            f"The time on line {line} of {path} must follow the one before at the "
            f"step of the first two rows. Received: {times[-2]}, then {times[-1]}. "
            "Put rows in order and fill gaps."
        )


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of each column, of the training part alone.

    Attributes:
        columns: Names of the columns.
        mean: `(columns,)`.
        std: `(columns,)`; 1 where a column is constant.
    """

    columns: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def fit(cls, columns: Sequence[str], values: np.ndarray) -> "Scaling":
        """Measures training rows.

        Args:
            columns: Names of the columns.
            values: `(rows, columns)`.
        """
        # Rounding can leave a constant column a deviation slightly above 0.
        varies = np.ptp(values, axis=0) > 0
        std = np.where(varies, values.std(axis=0), 1.0)
        return cls(tuple(columns), values.mean(axis=0), std)

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Returns z-scores, float32, of values `(..., columns)`."""
        return ((values - self.mean) / self.std).astype("float32")

    def undo(self, scores: np.ndarray) -> np.ndarray:
        """Returns values of z-scores of the first columns, `(..., n)`."""
        count = scores.shape[-1]
        return scores.astype("float64") * self.std[:count] + self.mean[:count]

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for a JSON file."""
        return {
            "columns": list(self.columns),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
        }

    @classmethod
    def load(cls, path: str | Path) -> "Scaling":
        """Reads a JSON file of what `as_dict` returned.

        Args:
            path: The file.

        Raises:
            ValueError: If the file holds something else.
        """
        try:
            values = read_json(Path(path))
            mean, std = (np.asarray(values[key], "float64") for key in ("mean", "std"))
            columns = tuple(values["columns"])
            if not mean.shape == std.shape == (len(columns),):
                raise ValueError(f"{len(columns)} columns, other numbers of values")
            return cls(columns, mean, std)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must hold the scaling that a training wrote. It cannot be "
                f"read: {error!r}."
            ) from error


def split_rows(rows: int, splits: Sequence[float]) -> list[tuple[int, int]]:
    """First row of the training, validation and test part, and the one after each.

    Fractions end a part at the nearest row, so that no row is lost between two parts.

    Args:
        rows: Rows of the series.
        splits: Rows of each part, or, if none is above 1, fractions of all rows.

    Raises:
        ValueError: If the parts have more rows than the series.
    """
    scale = rows if max(splits) <= 1 else 1
    ends = [round(end * scale) for end in np.cumsum(splits).tolist()]
    if ends[-1] > rows:
        raise ValueError(
            "`splits` must not have more rows than the series. Received: "
            f"{', '.join(str(int(size)) for size in splits)}, in sum {ends[-1]:,}, "
            f"of {rows:,}."
        )
    return list(zip([0, *ends[:-1]], ends, strict=True))
