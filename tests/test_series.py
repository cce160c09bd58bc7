"""Series: reading CSV files, scaling, parts, calendar features and windows."""

from datetime import datetime

import numpy as np
import pytest

from keras_seq2seq.series import Scaling, read_series, split_rows
from keras_seq2seq.series_windows import (
    SeriesWindows,
    WindowShape,
    calendar_features,
)


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "series.csv"
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return write


def test_columns_come_in_the_order_asked_for(write):
    path = write('a,"b, b",c\r\n1,2,3\r\n\r\n4,5.5,-6e1\r\n')
    series = read_series(path, ["c", "b, b"])
    np.testing.assert_array_equal(series.values, [[3, 2], [-60, 5.5]])
    assert series.columns == ("c", "b, b")
    assert series.times == (0, 1) and series.time_texts == ("0", "1")


def test_dates_go_on_at_their_step_as_they_are_written(write):
    path = write("date,x\n2020-02-28 23:00:00,1\n2020-02-29 00:00:00,2\n")
    series = read_series(path, ["x"], time="date")
    times, texts = series.following_times(2)
    assert times == (datetime(2020, 2, 29, 1), datetime(2020, 2, 29, 2))
    assert texts == ["2020-02-29 01:00:00", "2020-02-29 02:00:00"]


def test_whole_numbers_go_on_at_their_step(write):
    series = read_series(write("t,x\n10,1\n12,2\n"), ["x"], time="t")
    assert series.following_times(2) == ((14, 16), ["14", "16"])


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        (("2024-02-28", "2024-02-29"), ["2024-03-01", "2024-03-02"]),
        (
            ("2024-01-01 23:00", "2024-01-01 23:30"),
            ["2024-01-02 00:00", "2024-01-02 00:30"],
        ),
        (
            ("2024-01-01T00:00Z", "2024-01-01T12:00Z"),
            ["2024-01-02T00:00Z", "2024-01-02T12:00Z"],
        ),
        # Half a minute cannot be written as the last row is.
        (
            ("2024-01-01 00:00:30", "2024-01-01 00:01"),
            ["2024-01-01 00:01:30", "2024-01-01 00:02:00"],
        ),
        (
            ("2024-01-01 00:00:00.250", "2024-01-01 00:00:00.500"),
            ["2024-01-01 00:00:00.750", "2024-01-01 00:00:01.000"],
        ),
    ],
)
def test_dates_are_written_as_the_last_row_writes_its_own(write, dates, expected):
    text = "date,x\n" + "".join(f"{date},1\n" for date in dates)
    series = read_series(write(text), ["x"], time="date")
    assert series.following_times(2)[1] == expected


def test_one_row_has_a_step_unless_it_is_a_date(write):
    series = read_series(write("t,x\n7,1\n"), ["x"], time="t")
    assert series.following_times(2) == ((8, 9), ["8", "9"])
    series = read_series(write("t,x\n2024-01-01,1\n"), ["x"], time="t")
    with pytest.raises(ValueError, match=r"at least 2 rows.*1 row, 2024-01-01"):
        series.following_times(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line of names. It is empty"),
        ("t,x\n", "It has none"),
        ("t,y\n1,2\n", 'no column "x".*columns: t, y'),
        ("t,xx\n1,2\n", 'Did you mean "xx"'),
        ("t,x,x\n1,2,3\n", 'one column "x". Received: 2 of'),
        ("t,x\n1,2\n2,two\n", "Line 3 .* column \"x\".*Received: 'two'"),
        ("t,x\n1,2\n\n2,\n", "Line 4 .*Received: ''"),
        ("t,x\n1,nan\n", "Line 2 .*Received: 'nan'"),
        ("t,x\n1,inf\n", "Line 2 .*Received: 'inf'"),
        (f"t,x\n1,{'2' * 200_000}\n", "Line 2 .*cannot be split: field larger"),
        ("t,x\n1,2,3\n", "Line 2 .* 2 cells.*Received: 3"),
        ("t,x\nnoon,2\n", "Line 2 .*time. Received: 'noon'"),
        ("t,x\n1,2\n2,2\n4,2\n", "line 4 .*Received: 2, then 4"),
        ("t,x\n2,2\n1,2\n", "line 3 .*Received: 2, then 1"),
        ("t,x\n1,2\n2020-01-01,2\n", "line 3 "),
    ],
)
def test_mistakes_are_named_with_their_line(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_series(write(text), ["x"], time="t")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):
        read_series(tmp_path / "no.csv", ["x"])


def test_scaling_is_undone_and_kept(tmp_path):
    values = np.array([[1.0, 7], [3, 7], [5, 7]])
    scaling = Scaling.fit(["a", "b"], values)
    np.testing.assert_allclose(scaling.mean, [3, 7])
    np.testing.assert_allclose(scaling.std, [np.sqrt(8 / 3), 1])  # b is constant
    scores = scaling.apply(values)
    assert scores.dtype == "float32"
    np.testing.assert_allclose(scaling.undo(scores), values, atol=1e-6)
    np.testing.assert_allclose(scaling.undo(scores[:, :1]), values[:, :1], atol=1e-6)
    path = tmp_path / "scaling.json"
    import json

    path.write_text(json.dumps(scaling.as_dict()), encoding="utf-8")
    again = Scaling.load(path)
    assert again.columns == ("a", "b")
    np.testing.assert_array_equal(again.std, scaling.std)
    short = '{"columns": ["a", "b"], "mean": [1, 2], "std": [1]}'
    for text in ("{}", short):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"scaling\.json must hold the scaling"):
            Scaling.load(path)


def test_constant_column_whose_mean_is_rounded_has_deviation_one():
    values = np.full((1000, 1), 0.1)
    assert values.std() > 0  # by rounding alone
    scaling = Scaling.fit(["a"], values)
    assert scaling.std.tolist() == [1]
    np.testing.assert_allclose(scaling.apply(np.array([[0.2]])), [[0.1]], atol=1e-6)


def test_fractions_lose_no_row_and_have_none_too_many():
    """0.7 x 8 = 5.6, 0.8 x 8 = 6.4: the parts end at rows 6, 6 and 8."""
    assert split_rows(8, (0.7, 0.1, 0.2)) == [(0, 6), (6, 6), (6, 8)]
    for rows in range(1, 200):
        for splits in ((0.7, 0.1, 0.2), (0.5, 0.25, 0.25), (0.6, 0.2, 0.2)):
            parts = split_rows(rows, splits)
            assert parts[0][0] == 0 and parts[2][1] == rows
            assert parts[0][1] == parts[1][0] and parts[1][1] == parts[2][0]


def test_parts_by_rows_and_by_fractions():
    assert split_rows(20, (12, 3, 4)) == [(0, 12), (12, 15), (15, 19)]
    assert split_rows(20, (0.5, 0.25, 0.25)) == [(0, 10), (10, 15), (15, 20)]
    with pytest.raises(ValueError, match=r"12, 3, 6, in sum 21, of 20"):
        split_rows(20, (12, 3, 6))


def test_calendar_by_hand():
    """Six o'clock is a quarter of a day; Tuesday 6 o'clock 1.25 / 7 of a week."""
    tuesday = datetime(2024, 1, 2, 6)
    found = calendar_features([tuesday], ["hour", "weekday"])
    week = 2 * np.pi * 1.25 / 7
    np.testing.assert_allclose(found, [[1, 0, np.sin(week), np.cos(week)]], atol=1e-6)
    found = calendar_features([1, 2], periods=[4], harmonics=2)
    np.testing.assert_allclose(found, [[1, 0, 0, -1], [0, -1, 0, 1]], atol=1e-6)
    assert calendar_features([1, 2, 3]).shape == (3, 0)


def test_calendar_of_the_wrong_kind_is_named():
    with pytest.raises(ValueError, match=r"times such as 3"):
        calendar_features([3], ["hour"])
    with pytest.raises(ValueError, match=r"periods=\[24\]"):
        calendar_features([datetime(2024, 1, 1)], periods=[24])


VALUES = np.stack([np.arange(10), np.arange(10) + 100, -np.arange(10)], axis=1)
VALUES = VALUES.astype("float32")
FEATURES = (np.arange(10, dtype="float32") / 10)[:, None]


def windows(part=(0, 10), *, values=VALUES, shuffle=False, stride=1, **shape):
    settings = {
        "num_targets": 2,
        "num_inputs": 1,
        "num_features": 1,
        "source_length": 4,
        "target_length": 2,
        **shape,
    }
    return SeriesWindows(
        values,
        FEATURES,
        WindowShape(**settings),
        part,
        batch_size=2,
        shuffle=shuffle,
        stride=stride,
        seed=1,
    )


def test_every_window_of_a_part_by_hand():
    """Rows 6 to 9 hold two windows of two rows; the past reaches back before 6."""
    part = windows((6, 9))
    assert part.origins.tolist() == [6, 7] and len(part) == 1
    inputs, target = part[0]
    np.testing.assert_array_equal(target[0], [[6, 106], [7, 107]])
    np.testing.assert_array_equal(target[1], [[7, 107], [8, 108]])
    np.testing.assert_array_equal(inputs["target"], target)
    np.testing.assert_allclose(inputs["source"][0, 0], [2, 102, -2, 0.2])
    np.testing.assert_allclose(inputs["source"][1, -1], [6, 106, -6, 0.6])
    np.testing.assert_allclose(inputs["future"][0], [[0.6], [0.7]])


def test_first_windows_begin_where_the_past_is_whole():
    assert windows((0, 7)).origins.tolist() == [4, 5]
    assert windows(stride=2).origins.tolist() == [4, 6, 8]
    message = r"0 to 5 .*target_length=2 .*source_length=4 .*Received: 5 rows.*splits"
    with pytest.raises(ValueError, match=message):
        windows((0, 5))


def test_rows_folded_into_vectors_by_hand():
    """Targets of both rows, other inputs of both, the calendar of the first."""
    part = windows((6, 8), rows_per_step=2)
    sizes = {"source_dim": 7, "target_dim": 4, "future_dim": 1}
    assert part.shape.model_sizes == sizes
    inputs, target = part[0]
    expected = [2, 102, 3, 103, -2, -3, 0.2]
    np.testing.assert_allclose(inputs["source"][0, 0], expected)
    np.testing.assert_allclose(target[0], [[6, 106, 7, 107]])
    np.testing.assert_allclose(inputs["future"][0], [[0.6]])
    rows = part.shape.rows(target)
    np.testing.assert_array_equal(rows[0], [[6, 106], [7, 107]])


def test_separate_columns_are_rows_with_a_mark_by_hand():
    part = windows(
        (6, 9), values=VALUES[:, :2], num_inputs=0, separate=True, rows_per_step=2
    )
    sizes = {"source_dim": 5, "target_dim": 2, "future_dim": 3}
    assert part.shape.model_sizes == sizes
    inputs, target = part[0]
    assert target.tolist() == [[[6, 7]], [[106, 107]], [[7, 8]], [[107, 108]]]
    np.testing.assert_allclose(inputs["source"][0, 1], [4, 5, 0.4, 1, 0])
    np.testing.assert_allclose(inputs["source"][3, 0], [103, 104, 0.3, 0, 1])
    np.testing.assert_allclose(inputs["future"][1, 0], [0.6, 0, 1])
    rows = part.shape.rows(target)
    np.testing.assert_array_equal(rows[1], [[7, 107], [8, 108]])


@pytest.mark.parametrize(("center", "taken"), [("last", 5.0), ("mean", 3.5)])
def test_level_of_a_window_is_taken_from_past_and_target_by_hand(center, taken):
    part = windows((6, 8), center=center)
    inputs, target = part[0]
    steps = np.array([2, 3, 4, 5]) - taken
    np.testing.assert_allclose(inputs["source"][0, :, 0], steps)
    np.testing.assert_allclose(inputs["source"][0, :, 2], -steps)
    np.testing.assert_allclose(target[0, :, 1], np.array([6, 7]) - taken)
    _, following, level = part.window(part.origins)
    np.testing.assert_allclose(part.shape.rows(target) + level, following)


def test_order_is_a_function_of_seed_and_epoch():
    part = windows(shuffle=True)
    orders = []
    for _ in range(3):
        order = np.concatenate([part[i][1][:, 0, 0] for i in range(len(part))])
        assert sorted(order) == [4, 5, 6, 7, 8]
        orders.append(order.tolist())
        part.on_epoch_end()
    assert orders[0] != orders[1] or orders[1] != orders[2]
    part.epoch = 1
    assert [part[i][1][0, 0, 0] for i in range(3)] == orders[1][::2]
    assert windows(shuffle=True)[0][1].tolist() == windows(shuffle=True)[0][1].tolist()


def test_fingerprint_follows_the_numbers():
    changed = VALUES.copy()
    changed[3, 0] += 1
    assert windows().fingerprint == windows().fingerprint
    assert windows().fingerprint != windows(values=changed).fingerprint
    assert windows().fingerprint != windows((0, 9)).fingerprint


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"rows_per_step=3, source_length=4"):
        windows(rows_per_step=3)
    with pytest.raises(ValueError, match=r"Received: 1 of them"):
        windows(separate=True)
    with pytest.raises(ValueError, match=r"center='median'"):
        windows(center="median")
