"""Versions: which is loaded, what is refused, and how one follows another."""

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_seq2seq.serving.batching import BatchingOptions
from keras_seq2seq.serving.errors import RequestError
from keras_seq2seq.serving.loaded import LoadedVersion
from keras_seq2seq.serving.versions import ServedModel, model_folder, model_name

POLL = 0.02


def publish(source, final):
    """Copies a version into place as `export` does: whole or not at all."""
    shutil.copytree(source, final.with_name(f"writing-{final.name}"))
    final.with_name(f"writing-{final.name}").rename(final)


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def text_of(model, source=b"a"):
    with model.lease(model.name) as loaded:
        inputs = {"source": np.array([source], object)}
        due = time.monotonic() + 20
        future = loaded.submit("serving_default", inputs, ("text",), due)
        return future.result(20)["text"][0]


@pytest.fixture
def serve():
    """Serves folders until the end of the test."""
    running = []

    def start(path, **options):
        running.append(ServedModel(path, poll_seconds=POLL, **options))
        return running[-1]

    yield start
    for model in running:
        model.close()


def test_largest_version_serves_and_other_names_are_ignored(
    tiny_versions, tmp_path, serve
):
    folder = tmp_path / "dates"
    shutil.copytree(tiny_versions[1], folder / "9")
    shutil.copytree(tiny_versions[2], folder / "00010")
    (folder / "writing-11-3").mkdir()
    (folder / "12").write_text("no folder", encoding="utf-8")
    model = serve(folder)
    assert (model.name, model.version) == ("dates", 10)
    assert text_of(model) == b"<a>v2"


def test_version_folder_and_run_folder_are_found(tiny_versions, tmp_path, serve):
    exports = tmp_path / "my_run" / "exports" / "saved_model"
    shutil.copytree(tiny_versions[1], exports / "3")
    assert model_folder(tmp_path / "my_run") == exports.resolve()
    assert model_name(exports) == model_name(exports / "3") == "my_run"
    model = serve(exports / "3")
    assert (model.name, model.version) == ("my_run", 3)
    assert model_name(tmp_path / "a:b") == "a_b"


@pytest.mark.parametrize("batching", [None, BatchingOptions(batch_timeout_micros=0)])
def test_new_version_takes_over_while_old_requests_finish(
    tiny_model, tiny_versions, serve, batching
):
    told = []
    model = serve(tiny_model, batching=batching, log=told.append)
    with model.lease("tiny") as old:
        publish(tiny_versions[2], tiny_model / "2")
        until(lambda: model.version == 2)
        assert text_of(model) == b"<a>v2"
        until(lambda: model.statuses("tiny", 1)[0].state == "UNLOADING")
        inputs = {"source": np.array([b"b"], object)}
        due = time.monotonic() + 20
        late = old.submit("serving_default", inputs, ("text",), due)
        assert late.result(20)["text"].tolist() == [b"<b>v1"]
    until(lambda: model.statuses("tiny", 1)[0].state == "END")
    assert told == ["Serving version 2 in place of 1"]
    states = [(status.version, status.state) for status in model.statuses("tiny")]
    assert states == [(2, "AVAILABLE"), (1, "END")]


def test_requests_during_a_swap_are_all_answered_by_one_of_both(
    tiny_model, tiny_versions, serve
):
    model = serve(tiny_model)
    answers, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(text_of(model))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) > 5)
    publish(tiny_versions[2], tiny_model / "2")
    until(lambda: b"<a>v2" in answers)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(answers) == {b"<a>v1", b"<a>v2"}


def test_version_that_is_no_model_leaves_the_last_good_one(
    tiny_model, tiny_versions, serve
):
    told = []
    model = serve(tiny_model, log=told.append)
    broken = tiny_model / "writing-2"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes(b"\xff\xff no graph")
    broken.rename(tiny_model / "2")
    until(lambda: told)
    assert "Still serving version 1" in told[0]
    time.sleep(5 * POLL)
    assert len(told) == 1  # the same files are not tried again
    assert text_of(model) == b"<a>v1"
    status = model.statuses("tiny", 2)[0]
    assert (status.state, status.error_code) == ("END", "INVALID_ARGUMENT")
    assert "is not a SavedModel" in status.error_message
    shutil.rmtree(tiny_model / "2")
    publish(tiny_versions[2], tiny_model / "2")
    until(lambda: model.version == 2)


def test_version_with_lost_weights_leaves_the_last_good_one(
    tiny_model, tiny_versions, serve
):
    told = []
    model = serve(tiny_model, log=told.append)
    half = shutil.copytree(tiny_versions[2], tiny_model / "writing-2")
    shutil.rmtree(half / "variables")
    (half / "variables").mkdir()
    (half / "variables" / "variables.index").write_bytes(b"damaged")
    half.rename(tiny_model / "2")
    until(lambda: told)
    assert "can not be loaded" in told[0]
    assert text_of(model) == b"<a>v1"


def test_version_that_is_copied_file_by_file_serves_once_it_is_complete(
    tiny_model, tiny_versions, serve
):
    told = []
    model = serve(tiny_model, log=told.append)
    (tiny_model / "2").mkdir()
    time.sleep(5 * POLL)
    assert not told  # without saved_model.pb it is no version yet
    shutil.copy(tiny_versions[2] / "saved_model.pb", tiny_model / "2")
    until(lambda: told)
    assert "can not be loaded" in told[0]
    shutil.copytree(tiny_versions[2] / "variables", tiny_model / "2" / "variables")
    until(lambda: model.version == 2)
    assert text_of(model) == b"<a>v2"


def test_version_that_is_taken_away_gives_way_to_the_one_before(
    tiny_versions, tmp_path, serve
):
    folder = tmp_path / "tiny"
    for number in (1, 2):
        shutil.copytree(tiny_versions[number], folder / str(number))
    model = serve(folder)
    assert model.version == 2
    shutil.rmtree(folder / "2")
    until(lambda: model.version == 1)
    assert text_of(model) == b"<a>v1"
    shutil.rmtree(folder / "1")
    time.sleep(5 * POLL)
    assert text_of(model) == b"<a>v1"


def write_third_party(folder, target):
    """A graph that writes a file whenever it runs."""

    def write(source):
        with tf.control_dependencies([tf.io.write_file(str(target), "x")]):
            return {"text": tf.identity(source)}

    module = tf.Module()
    module.run = tf.function(
        write,
        input_signature=[tf.TensorSpec([None], tf.string, name="source")],
        autograph=False,
    )
    tf.saved_model.save(module, str(folder), {"serving_default": module.run})


def test_graph_that_writes_files_is_refused_before_it_runs(tiny_model, tmp_path, serve):
    target = tmp_path / "written"
    told = []
    model = serve(tiny_model, log=told.append)
    write_third_party(tmp_path / "bad" / "2", target)
    with pytest.raises(ValueError, match=r"operations .* Received: WriteFile in .*2\."):
        serve(tmp_path / "bad")
    publish(tmp_path / "bad" / "2", tiny_model / "2")
    until(lambda: told)
    assert "WriteFile" in told[0]
    assert text_of(model) == b"<a>v1"
    assert not target.exists()


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_folder_without_a_model_is_refused(tmp_path, kind):
    folder = tmp_path / kind
    if kind == "empty":
        folder.mkdir()
    with pytest.raises(FileNotFoundError, match=f"Received: .*{kind}, which"):
        ServedModel(folder)


def test_names_that_no_address_can_hold_are_refused(tiny_model):
    with pytest.raises(ValueError, match="Received: 'a/b'"):
        ServedModel(tiny_model, "a/b")


@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        (("no",), "NOT_FOUND", r"not found for request: Latest\(no\)"),
        (("tiny", 7), "NOT_FOUND", r"not found for request: Specific\(tiny, 7\)"),
        (("tiny", None, "x"), "INVALID_ARGUMENT", "version label: x"),
    ],
)
def test_unknown_models_are_refused(tiny_model, serve, where, code, message):
    model = serve(tiny_model)
    with pytest.raises(RequestError, match=message) as caught, model.lease(*where):
        pass
    assert caught.value.code == code
    with pytest.raises(RequestError, match=r"Could not find|label"):
        model.statuses(*where)


def write_warmup(folder, signature_name, **inputs):
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature_name
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    log = prediction_log_pb2.PredictLog(request=request)
    record = prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString()
    (folder / "assets.extra").mkdir()
    file = folder / "assets.extra" / "tf_serving_warmup_requests"
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(record)


def test_warmup_requests_are_replayed(tiny_model, serve, monkeypatch):
    write_warmup(tiny_model / "1", "total", ids=[[4, 5]], lengths=[2])
    ran = []
    run = LoadedVersion._run
    monkeypatch.setattr(
        LoadedVersion,
        "_run",
        lambda self, key, inputs, due: ran.append(key) or run(self, key, inputs, due),
    )
    serve(tiny_model)
    serve(tiny_model, warmup=False)
    assert ran == [("total", ("total",))]


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("no", {"ids": [[4]]}, 'signature key "no" not found'),
        ("total", {"ids": [[4]]}, "Missing but required: {lengths}"),
        ("total", {"ids": [[4.0]], "lengths": [1]}, "`ids` to be int32 but float is"),
    ],
)
def test_warmup_that_does_not_fit_fails_the_version(tiny_model, name, inputs, message):
    write_warmup(tiny_model / "1", name, **inputs)
    with pytest.raises(ValueError, match=message):
        ServedModel(tiny_model)


def test_damaged_warmup_fails_the_version(tiny_model):
    write_warmup(tiny_model / "1", "copy", data=["a"])
    file = tiny_model / "1" / "assets.extra" / "tf_serving_warmup_requests"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ValueError, match="tf_serving_warmup_requests is damaged"):
        ServedModel(tiny_model)
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"\xff\xff")
    with pytest.raises(ValueError, match="a record that is no PredictionLog"):
        ServedModel(tiny_model)
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"")
    with pytest.raises(ValueError, match="requests to predict. Received: None"):
        ServedModel(tiny_model)


def test_path_is_kept_when_the_program_changes_its_folder(
    tiny_model, tiny_versions, serve, monkeypatch
):
    monkeypatch.chdir(tiny_model.parent)
    model = serve(Path("tiny"))
    monkeypatch.chdir("/")
    publish(tiny_versions[2], tiny_model / "2")
    until(lambda: model.version == 2)
