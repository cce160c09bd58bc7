"""Writing into a buffer, against NumPy's assignment."""

import numpy as np
import pytest
from keras import ops

from keras_seq2seq.buffers import append, empty_cache, filled_by, grows, write_at


def written(buffer, index, values, axis):
    """The same by assignment."""
    expected = buffer.copy()
    place = [slice(None)] * buffer.ndim
    place[axis] = slice(index, index + 1)
    expected[tuple(place)] = values
    return expected


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_only_the_position_changes(index, dtype):
    buffer = np.arange(10).reshape(2, 5).astype(dtype)
    values = ~buffer[:, :1] if dtype == "bool" else -7 - buffer[:, :1]
    found = write_at(ops.convert_to_tensor(buffer), index, values, axis=1)
    assert ops.convert_to_numpy(found).dtype == dtype
    np.testing.assert_array_equal(found, written(buffer, index, values, 1))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_any_axis_of_a_buffer_of_any_rank(axis):
    buffer = np.arange(2 * 3 * 4 * 2, dtype="float32").reshape(2, 3, 4, 2)
    values = -1 - np.take(buffer, [0], axis=axis)
    for index in (0, buffer.shape[axis] - 1):
        found = write_at(ops.convert_to_tensor(buffer), index, values, axis=axis)
        np.testing.assert_array_equal(found, written(buffer, index, values, axis))


def test_the_buffer_itself_stays_as_it_was():
    buffer = ops.zeros((1, 3), "int32")
    write_at(buffer, 1, ops.ones((1, 1), "int32"), axis=1)
    np.testing.assert_array_equal(buffer, [[0, 0, 0]])


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_one_graph_serves_every_batch_length_and_position(dtype):
    import tensorflow as tf

    def fill(buffer, index, values):
        found = write_at(buffer, index, values, axis=1)
        assert found.shape.rank == 3 and found.shape[-1] == 2
        return found

    graph = tf.function(
        fill,
        input_signature=[
            tf.TensorSpec((None, None, 2), dtype),
            tf.TensorSpec((), tf.int32),
            tf.TensorSpec((None, 1, 2), dtype),
        ],
    )
    for batch, length in ((1, 1), (3, 4)):
        buffer = np.arange(batch * length * 2).reshape(batch, length, 2).astype(dtype)
        values = np.full((batch, 1, 2), 99, dtype)
        for index in range(length):
            np.testing.assert_array_equal(
                graph(buffer, index, values), written(buffer, index, values, 1)
            )
    assert graph.experimental_get_tracing_count() == 1
    # What stock TF Serving refuses.
    names = {op.type for op in graph.get_concrete_function().graph.get_operations()}
    assert not [name for name in names if name.startswith("Xla")]


@pytest.mark.parametrize("way", ["blend", "slice", "grow"])
def test_caches_hold_what_was_appended_in_every_way(way):
    """Positions of two entries, as of two hypotheses that share a cache."""
    import tensorflow as tf

    values = np.arange(3 * 2 * 2 * 4, dtype="float32").reshape(3, 2, 2, 4)

    def fill(values):
        with filled_by(way):
            cache = empty_cache((ops.shape(values)[1], 6, 4), axis=1, dtype="float32")
            for index in range(3):
                cache = append(cache, index, values[index], axis=1)
            assert grows() == (way == "grow")
            return cache

    spec = tf.TensorSpec((3, None, 2, 4), tf.float32)
    compiled = tf.function(fill, input_signature=[spec], jit_compile=way == "slice")
    expected = np.concatenate(list(values), axis=1)
    np.testing.assert_array_equal(compiled(values), expected)
    assert not grows()


@pytest.mark.parametrize("way", ["blend", "slice", "grow"])
@pytest.mark.parametrize(
    ("window", "kept"), [(2, [4, 3]), (3, [3, 4, 2]), (9, [*range(5)])]
)
def test_a_window_keeps_the_newest_positions(window, kept, way):
    values = np.arange(5 * 2 * 3, dtype="float32").reshape(5, 2, 1, 3)
    with filled_by(way):
        cache = empty_cache((2, 5, 3), axis=1, dtype="float32", window=window)
        for index in range(5):
            cache = append(cache, index, values[index], axis=1, window=window)
    expected = np.concatenate([values[index] for index in kept], axis=1)
    np.testing.assert_array_equal(cache, expected)


def test_an_unknown_way_is_named():
    with (
        pytest.raises(ValueError, match='"grow" or "blend". Received: way=\'copy\''),
        filled_by("copy"),
    ):
        pass
