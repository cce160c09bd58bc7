"""`verify` passes what is right and names what is wrong."""

import ast
import copy
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_seq2seq.export import session_process, verify_saved_model
from keras_seq2seq.export.checks import Check, VerifyReport
from keras_seq2seq.export.graph_search import GraphSearch
from keras_seq2seq.export.operations import Graph
from keras_seq2seq.export.saved_model import export_saved_model
from keras_seq2seq.export.verify import verify
from keras_seq2seq.pipelines import load
from tests.helpers import write_untrained_run

pytestmark = pytest.mark.export

RECURRENT = {"name": "RecurrentSeq2Seq", "units": 8, "embedding_dim": 8}
DECODING = {"num_beams": 2, "max_length": 8, "max_length_offset": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_tokenizers):
    """A run folder of an untrained attention RNN."""
    folder = tmp_path_factory.mktemp("verify") / "run"
    return write_untrained_run(folder, tiny_tokenizers, decoding=DECODING, **RECURRENT)


@pytest.fixture(scope="module")
def exported(run):
    return export_saved_model(run, run / "exports" / "saved_model")


@pytest.fixture(scope="module")
def answered():
    """What fresh processes answered, by folder and requests."""
    return {}


@pytest.fixture
def run_once(answered, monkeypatch):
    """Asks one fresh process for all tests that send it the same requests."""
    original = verify_saved_model.run_in_fresh_process

    def run_in_fresh_process(folder, requests, eager):
        key = str(folder), json.dumps(requests)
        if key not in answered:
            answered[key] = original(folder, requests, eager)
        return copy.deepcopy(answered[key])

    monkeypatch.setattr(
        verify_saved_model, "run_in_fresh_process", run_in_fresh_process
    )
    return run_in_fresh_process


def results(report):
    """Which checks passed, by name."""
    return {check.name: check.ok for check in report.checks}


def detail(report, name):
    (found,) = [check.detail for check in report.checks if check.name == name]
    return found


def save_module(folder, function, *, jit_compile=False, **specs):
    """A SavedModel of one function, made without our export."""
    module = tf.Module()
    module.translate = tf.function(
        function,
        input_signature=[
            tf.TensorSpec(shape, dtype, name=name)
            for name, (shape, dtype) in specs.items()
        ],
        autograph=False,
        jit_compile=jit_compile,
    )
    tf.saved_model.save(module, str(folder), {"serving_default": module.translate})
    return folder


def test_exported_run_passes_every_check(run, exported, run_once):
    report = verify(exported.parent, run=run)
    assert results(report) == {
        "files": True,
        "signatures": True,
        "names": True,
        "types and shapes": True,
        "operations": True,
        "no XLA": True,
        "runs": True,
        "warm-up": True,
        "replies": True,
        "Python loader": True,
        "blank sources": True,
        "merged requests": True,
        "translate = Python": True,
        "decode_ids = Python": True,
        "translate_beam = Python": True,
        "translate_sample = Python": True,
        "score = Python": True,
        "attention = Python": True,
    }, report.table()
    assert report.ok
    assert report.path == exported
    assert detail(report, "translate = Python") == "8 answers as in Python"
    assert detail(report, "warm-up") == "16 requests answered"


def test_options_given_at_export_are_those_compared_with(run, tmp_path):
    folder = export_saved_model(
        run, tmp_path, num_beams=1, length_penalty=0.0, max_length=5
    )
    report = verify(folder, run=load(run), sentences=["éc ab", "d", ""])
    assert report.ok, report.table()


def test_other_run_is_told_apart(exported, tmp_path, tiny_tokenizers, run_once):
    other = write_untrained_run(
        tmp_path / "other",
        tiny_tokenizers,
        decoding=DECODING,
        **{**RECURRENT, "units": 6},
    )
    report = verify(exported, run=other)
    assert not report.ok
    assert results(report)["merged requests"]
    assert not results(report)["translate = Python"]
    assert not results(report)["score = Python"]
    assert "'3 March 2024'" in detail(report, "score = Python")


def test_loaders_that_disagree_are_told(exported, run_once, monkeypatch):
    def shared_name(folder, requests, eager):
        report = run_once(folder, requests, eager)
        report["eager"][0] = {**report["eager"][0], "text": np.array([b"x"], object)}
        return report

    monkeypatch.setattr(verify_saved_model, "run_in_fresh_process", shared_name)
    report = verify(exported)
    assert not results(report)["Python loader"]
    assert "is answered otherwise" in detail(report, "Python loader")


def test_warmup_request_that_fails_is_told(exported, run_once, monkeypatch):
    def failing(folder, requests, eager):
        report = run_once(folder, requests, eager)
        report["session"][-1] = {"error": "no such tensor"}
        return report

    monkeypatch.setattr(verify_saved_model, "run_in_fresh_process", failing)
    assert detail(verify(exported), "warm-up") == "no such tensor"


def test_changed_file_is_named_and_the_graph_is_not_run(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "1")
    with (folder / "tokenizer" / "tokenizer.json").open("ab") as file:
        file.write(b" ")
    report = verify(folder)
    assert (
        detail(report, "files") == "not as in manifest.json: tokenizer/tokenizer.json"
    )
    assert "not run" in detail(report, "runs")
    assert not report.ok


def test_graph_that_trusts_the_padding_of_a_server_fails(run, tmp_path, monkeypatch):
    def trusting(self, ids, lengths):
        return ids, tf.clip_by_value(lengths, 0, tf.shape(ids)[1])

    monkeypatch.setattr(GraphSearch, "real_ids", trusting)
    odd = "keras_seq2seq.export.saved_model_requests.Requests._add_odd"
    monkeypatch.setattr(odd, lambda self, size: None)
    report = verify(export_saved_model(run, tmp_path))
    assert not results(report)["merged requests"], report.table()


def test_graph_that_writes_a_file_is_refused_before_it_runs(tmp_path):
    target = tmp_path / "written"

    def write(source):
        with tf.control_dependencies([tf.io.write_file(str(target), "x")]):
            return {"text": tf.identity(source)}

    folder = save_module(tmp_path / "1", write, source=([None], tf.string))
    report = verify(folder)
    assert "WriteFile is not allowed" in detail(report, "operations")
    assert "not run" in detail(report, "runs")
    assert not target.exists()


def test_graph_that_lists_a_folder_inside_a_loop_is_refused(tmp_path):
    def spy(source):
        def body(count, found):
            return count + 1, tf.io.matching_files("/*")[:1]

        _, found = tf.while_loop(
            lambda count, found: count < 1,
            body,
            (0, source),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        )
        return {"text": found}

    folder = save_module(tmp_path / "1", spy, source=([None], tf.string))
    assert "MatchingFiles" in Graph(folder).signature_operations("serving_default")
    assert "MatchingFiles is not allowed" in detail(verify(folder), "operations")


def test_graph_that_writes_a_file_while_it_is_loaded_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "1")
    file = folder / "saved_model.pb"
    saved_model_proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    graph = saved_model_proto.meta_graphs[0]
    assert "SaveV2" not in Graph(folder).initializer_operations()
    # What saves weights, which every SavedModel holds, runs in place of what loads.
    (saver,) = (
        node.name
        for node in graph.graph_def.node
        if node.op.endswith("PartitionedCall")
        and any("save" in value.func.name for value in node.attr.values())
    )
    initializer = graph.signature_def["__saved_model_init_op"]
    for output in initializer.outputs.values():
        output.name = f"{saver}:0"
    file.write_bytes(saved_model_proto.SerializeToString())
    report = verify(folder)
    assert "SaveV2 is not allowed while loading" in detail(report, "operations")
    assert "not run" in detail(report, "runs")


def test_function_that_demands_xla_is_found(tmp_path):
    inner = tf.function(lambda x: x * 2.0, jit_compile=True)
    folder = save_module(
        tmp_path / "1", lambda x: {"y": inner(x)}, x=([None], tf.float32)
    )
    assert Graph(folder).xla_compiled()
    assert not results(verify(folder))["no XLA"]


def test_names_types_and_shapes_that_servers_refuse_are_named(tmp_path):
    def odd(source, lengths):
        return {
            "source": source,
            "Best score": tf.cast(lengths, tf.float64),
            "total": tf.reduce_sum(lengths),
            "ids": tf.reshape(lengths, (1, -1)),
        }

    folder = save_module(
        tmp_path / "1", odd, source=([None], tf.string), lengths=([None], tf.int32)
    )
    report = verify(folder)
    assert "source is input and output" in detail(report, "names")
    assert "'Best score' is no plain name" in detail(report, "names")
    types = detail(report, "types and shapes")
    assert "Best score is float64" in types
    assert "total has no batch axis first" in types
    assert "decode_ids is missing" in detail(report, "signatures")
    assert detail(report, "files") == "no manifest.json; export the run again"


def test_session_process_imports_nothing_of_this_package():
    source = Path(session_process.__file__).read_text(encoding="utf-8")
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported - set(sys.stdlib_module_names) == {
        *("numpy", "tensorflow", "tensorflow_text")
    }


def test_missing_or_damaged_saved_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No saved_model.pb in .*absent"):
        verify(tmp_path / "absent")
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff\xff not a graph")
    with pytest.raises(ValueError, match="is not a SavedModel"):
        verify(tmp_path)


def test_empty_list_of_sentences_is_refused(exported):
    with pytest.raises(ValueError, match="at least one text"):
        verify(exported, sentences=[])


def test_report_is_a_table_and_json(tmp_path):
    report = VerifyReport(
        tmp_path, (Check("files", True, "all"), Check("no XLA", False, "found f"))
    )
    assert report.table() == "files   ok      all\nno XLA  FAILED  found f"
    assert json.loads(json.dumps(report.as_dict()))["checks"][1]["ok"] is False
    assert not report.ok
