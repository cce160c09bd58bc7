"""Picking by number, against NumPy."""

import numpy as np
import pytest
from keras import ops

from keras_seq2seq.gathers import take_by_row, take_last, take_rows

VALUES = np.arange(60).reshape(4, 5, 3).astype("float32")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [2, [3, 0, 0], [[1, 2], [3, 1]]])
def test_rows_of_an_axis(rows, axis):
    found = take_rows(ops.convert_to_tensor(VALUES), np.array(rows, "int32"), axis=axis)
    np.testing.assert_array_equal(found, np.take(VALUES, rows, axis=axis))


@pytest.mark.parametrize("rank", [2, 3])
def test_each_row_has_its_own(rank):
    values = VALUES if rank == 3 else VALUES[..., 0]
    columns = np.array([[4, 0], [1, 1], [0, 3], [2, 2]], "int32")
    found = take_by_row(ops.convert_to_tensor(values), ops.convert_to_tensor(columns))
    expected = [row[own] for row, own in zip(values, columns, strict=True)]
    np.testing.assert_array_equal(found, expected)


def test_one_number_of_each_vector():
    ids = np.random.default_rng(0).integers(0, 3, (4, 5)).astype("int32")
    found = take_last(ops.convert_to_tensor(VALUES), ops.convert_to_tensor(ids))
    expected = np.take_along_axis(VALUES, ids[..., None], axis=-1)[..., 0]
    np.testing.assert_array_equal(found, expected)
