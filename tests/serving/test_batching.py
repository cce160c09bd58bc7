"""Merging and splitting, by hand; no TensorFlow."""

import threading
import time

import numpy as np
import pytest

from keras_seq2seq.serving.batching import (
    Batcher,
    BatchingOptions,
    batch_rows,
    merge,
    split,
)
from keras_seq2seq.serving.batching_config import read_batching_config
from keras_seq2seq.serving.errors import RequestError

FOREVER = time.monotonic() + 1e6


def ids(*rows):
    return {"ids": np.array(rows, "int32")}


def texts(*rows):
    return {"source": np.array(rows, object)}


def test_requests_are_merged_in_order():
    merged = merge([texts(b"a"), texts(b"b", b"c")], BatchingOptions())
    assert merged["source"].tolist() == [b"a", b"b", b"c"]


def test_short_requests_are_filled_with_their_own_first_element():
    merged = merge([ids([7, 3]), ids([5, 6, 4, 3], [8, 8, 8, 3])], BatchingOptions())
    expected = [[7, 3, 7, 7], [5, 6, 4, 3], [8, 8, 8, 3]]
    assert merged["ids"].tolist() == expected
    strings = merge([{"a": np.array([[b"x"]], object)}, texts_box()], BatchingOptions())
    assert strings["a"].tolist() == [[b"x", b"x"], [b"y", b"z"]]


def texts_box():
    return {"a": np.array([[b"y", b"z"]], object)}


def test_batch_is_filled_with_the_first_row_of_the_last_request():
    options = BatchingOptions(max_batch_size=8, allowed_batch_sizes=(4, 8))
    requests = [ids([1, 2, 3]), ids([5, 6], [7, 8])]
    assert merge(requests, options)["ids"].tolist() == [
        [1, 2, 3],
        [5, 6, 5],
        [7, 8, 5],
        [5, 6, 5],
    ]
    outputs = {"sum": np.array([6, 11, 15, 11])}
    found = split(outputs, [1, 2], 4)
    assert [part["sum"].tolist() for part in found] == [[6], [11, 15]]


@pytest.mark.parametrize(("rows", "size"), [(1, 2), (2, 2), (3, 8), (8, 8)])
def test_batches_grow_to_the_next_allowed_size(rows, size):
    options = BatchingOptions(max_batch_size=8, allowed_batch_sizes=(2, 8))
    assert options.filled_size(rows) == size
    assert BatchingOptions(max_batch_size=8).filled_size(rows) == rows


def test_widths_may_differ_only_if_padding_is_on():
    options = BatchingOptions(pad_variable_length_inputs=False)
    with pytest.raises(RequestError, match="name 'ids'.*padding is turned off") as e:
        merge([ids([1]), ids([1, 2])], options)
    assert e.value.code == "FAILED_PRECONDITION"


def test_nothing_to_fill_with_is_an_error():
    empty = {"ids": np.zeros((1, 0), "int32")}
    with pytest.raises(RequestError, match="Got empty tensor in batch of non-empty"):
        merge([empty, ids([1, 2])], BatchingOptions())
    with pytest.raises(RequestError, match="different ranks"):
        merge([{"ids": np.zeros(1)}, ids([1, 2])], BatchingOptions())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": np.float32(1)}, "must have at least one dimension"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "must have equal 0th-dimension size"),
        ({"a": np.zeros(9)}, "Task size 9 is larger than maximum input batch size 8"),
    ],
)
def test_requests_that_can_not_be_merged_are_refused(inputs, message):
    with pytest.raises(RequestError, match=message) as caught:
        batch_rows(inputs, BatchingOptions(max_batch_size=8))
    assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"a": np.float32(1)}, "Batched output tensor has 0 dimensions"),
        ({"a": np.zeros((4, 2))}, "does not equal the sum of the 0th dimension sizes"),
    ],
)
def test_outputs_without_a_row_for_each_input_are_refused(outputs, message):
    with pytest.raises(RequestError, match=message):
        split(outputs, [1, 1], 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 0}, "`max_batch_size` must be positive. Received: 0"),
        ({"num_batch_threads": 0}, "`num_batch_threads` must be positive"),
        ({"max_enqueued_batches": -1}, "`max_enqueued_batches` .* Received: -1"),
        ({"batch_timeout_micros": -1}, "must be 0 or more. Received: -1"),
        ({"allowed_batch_sizes": (2, 8)}, r"\[2, 8\], max_batch_size=32"),
        ({"allowed_batch_sizes": (8, 2, 32)}, "must increase"),
        ({"allowed_batch_sizes": (0, 32)}, "must increase"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BatchingOptions(**options)


class Recorder:
    """Doubles numbers, and keeps the batches it was given."""

    def __init__(self):
        self.batches = []
        self.go = threading.Event()
        self.go.set()

    def run(self, key, inputs, deadline):
        assert self.go.wait(10)
        self.batches.append((key, inputs["x"].tolist()))
        return {"y": 2 * inputs["x"]}


@pytest.fixture
def recorder():
    return Recorder()


def started(recorder, **options):
    return Batcher(recorder.run, BatchingOptions(**options))


def numbers(*values):
    return {"x": np.array(values)}


def test_full_batch_runs_at_once_and_each_gets_its_rows(recorder):
    batcher = started(recorder, max_batch_size=4, batch_timeout_micros=10**8)
    futures = [
        batcher.submit("s", numbers(*row), FOREVER) for row in ([1], [2, 3], [4])
    ]
    found = [future.result(10)["y"].tolist() for future in futures]
    assert found == [[2], [4, 6], [8]]
    assert recorder.batches == [("s", [1, 2, 3, 4])]
    batcher.close()


def test_batch_that_is_not_full_runs_after_the_timeout(recorder):
    batcher = started(recorder, max_batch_size=4, batch_timeout_micros=1000)
    assert batcher.submit("s", numbers(5), FOREVER).result(10)["y"].tolist() == [10]
    batcher.close()


def test_signatures_are_not_mixed_and_rows_stay_together(recorder):
    batcher = started(recorder, max_batch_size=3, batch_timeout_micros=10**8)
    futures = [
        batcher.submit(key, numbers(*row), FOREVER)
        for key, row in (("a", [1, 2]), ("b", [3]), ("a", [4, 5]), ("b", [6]))
    ]
    batcher.close()
    assert [f.result(0)["y"].tolist() for f in futures] == [[2, 4], [6], [8, 10], [12]]
    assert sorted(recorder.batches) == [("a", [1, 2]), ("a", [4, 5]), ("b", [3, 6])]


def test_too_many_batches_are_refused(recorder):
    recorder.go.clear()
    options = {"max_batch_size": 1, "max_enqueued_batches": 2}
    batcher = started(recorder, **options, batch_timeout_micros=0)
    accepted = [batcher.submit("s", numbers(0), FOREVER)]
    while not accepted[0].running():
        time.sleep(0.001)
    accepted += [batcher.submit("s", numbers(n), FOREVER) for n in (1, 2)]
    with pytest.raises(RequestError, match="queue .* is full") as caught:
        batcher.submit("s", numbers(3), FOREVER)
    assert caught.value.code == "UNAVAILABLE"
    recorder.go.set()
    batcher.close()
    assert [future.result(0)["y"].tolist() for future in accepted] == [[0], [2], [4]]
    with pytest.raises(RequestError, match="being unloaded"):
        batcher.submit("s", numbers(3), FOREVER)


def test_error_of_a_batch_goes_to_all_its_requests():
    def run(key, inputs, deadline):
        raise RequestError("INTERNAL", "broken")

    batcher = Batcher(run, BatchingOptions(max_batch_size=2))
    futures = [batcher.submit("s", numbers(n), FOREVER) for n in (1, 2)]
    for future in futures:
        with pytest.raises(RequestError, match="broken"):
            future.result(10)
    batcher.close()


def test_requests_that_are_late_or_cancelled_do_not_run(recorder):
    batcher = started(recorder, max_batch_size=8, batch_timeout_micros=10**8)
    late = batcher.submit("s", numbers(1), time.monotonic() - 1)
    cancelled = batcher.submit("s", numbers(2), FOREVER)
    assert cancelled.cancel()
    kept = batcher.submit("s", numbers(3), FOREVER)
    batcher.close()
    with pytest.raises(RequestError, match="while waiting in batching queue") as caught:
        late.result(0)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert kept.result(0)["y"].tolist() == [6]
    assert recorder.batches == [("s", [3])]


def test_several_threads_run_batches_at_once(recorder):
    recorder.go.clear()
    batcher = started(
        recorder, max_batch_size=1, num_batch_threads=2, batch_timeout_micros=0
    )
    futures = [batcher.submit("s", numbers(n), FOREVER) for n in (1, 2)]
    end = time.monotonic() + 10
    while not all(future.running() for future in futures):
        assert time.monotonic() < end
        time.sleep(0.001)
    recorder.go.set()
    batcher.close()


def test_config_file_of_tf_serving_is_read(tmp_path):
    file = tmp_path / "batching.config"
    file.write_text(
        """# from the documentation of TF Serving
max_batch_size { value: 128 }
batch_timeout_micros: { value: 0 }
max_enqueued_batches { value: 1000000 } num_batch_threads { value: 8 }
thread_pool_name { value: "pool" }
allowed_batch_sizes: 32
allowed_batch_sizes: [64, 128]
pad_variable_length_inputs: true
""",
        encoding="utf-8",
    )
    assert read_batching_config(file) == BatchingOptions(
        max_batch_size=128,
        batch_timeout_micros=0,
        max_enqueued_batches=1_000_000,
        num_batch_threads=8,
        allowed_batch_sizes=(32, 64, 128),
        pad_variable_length_inputs=True,
    )
    file.write_text("", encoding="utf-8")
    assert read_batching_config(file) == BatchingOptions(
        pad_variable_length_inputs=False
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_batch { value: 1 }",
            'Unknown key "max_batch".*Valid keys: allowed_batch',
        ),
        ("max_batch_size: 3", 'must have "{" where it has: 3'),
        ("max_batch_size { value: x }", "must have a number where it has: x"),
        (
            "max_batch_size { value: 3",
            'must have "}" where it has: the end of the file',
        ),
        ("pad_variable_length_inputs: maybe", "true or false where it has: maybe"),
        (
            "max_batch_size = 3",
            "protocol buffer as text. Received: '= 3' at character 15",
        ),
        ("max_batch_size { value: 0 }", "`max_batch_size` must be positive"),
        ("allowed_batch_sizes: [2, 3]", "end with `max_batch_size`"),
    ],
)
def test_wrong_config_files_are_refused(tmp_path, text, message):
    file = tmp_path / "batching.config"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_batching_config(file)


def test_missing_config_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a text file.*nothing.config"):
        read_batching_config(tmp_path / "nothing.config")
