"""The folder of an app: what `export_litert` writes, and what `verify` says of it."""

import copy
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import sentencepiece
import tensorflow as tf

from keras_seq2seq.export import litert, verify_litert
from keras_seq2seq.export.litert import export_litert
from keras_seq2seq.export.litert_runtime import LiteRTDecoder, signatures_of
from keras_seq2seq.export.verify import SENTENCES, verify
from keras_seq2seq.pipelines import load
from tests.helpers import rewrite, spread, write_untrained_run

pytestmark = pytest.mark.export

RECURRENT = {
    "name": "RecurrentSeq2Seq",
    "cell": "gru",
    "units": 8,
    "embedding_dim": 8,
    "change": spread,
    # Outputs of untrained models are a word or two.
    "evaluation": {"bleu_tokenize": "char"},
}
DECODING = {
    "num_beams": 2,
    "max_length": 8,
    "max_length_offset": 3,
    "min_length": 4,
}
END = 3


@pytest.fixture(scope="module", autouse=True)
def installed():
    pytest.importorskip("ai_edge_litert.interpreter")


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_tokenizers):
    """A run folder of an untrained attention RNN."""
    folder = tmp_path_factory.mktemp("litert") / "run"
    return write_untrained_run(folder, tiny_tokenizers, decoding=DECODING, **RECURRENT)


@pytest.fixture(scope="module")
def exported(run):
    return export_litert(run, run / "exports" / "litert")


@pytest.fixture(scope="module")
def quantised(run):
    """The same with smaller weights, greedy, and one limit for all sources."""
    return export_litert(
        run,
        run / "exports" / "small",
        quantization="float16",
        num_beams=1,
        length_penalty=0.0,
        max_length=6,
    )


@pytest.fixture(scope="module")
def answered():
    """What fresh processes answered, by file and requests."""
    return {}


@pytest.fixture
def ask_once(answered, monkeypatch):
    """Asks one fresh process for all tests that send a file the same requests."""
    original = verify_litert.report_of

    def report_of(program, folder, asked):
        key = (folder / "model.tflite").read_bytes(), json.dumps(asked)
        if key not in answered:
            answered[key] = original(program, folder, asked)
        return copy.deepcopy(answered[key])

    monkeypatch.setattr(verify_litert, "report_of", report_of)


def results(report):
    """Which checks passed, by name."""
    return {check.name: check.ok for check in report.checks}


def failed(report):
    return [check.name for check in report.checks if not check.ok]


def detail(report, name):
    (found,) = [check.detail for check in report.checks if check.name == name]
    return found


def golden_of(folder):
    text = (folder / "golden.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def config_of(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def test_folder_holds_what_an_app_needs_and_no_more(exported):
    names = {
        path.relative_to(exported).as_posix()
        for path in exported.rglob("*")
        if path.is_file()
    }
    assert names == {
        *("model.tflite", "config.json", "golden.jsonl", "manifest.json"),
        *("tokenizer/source.model", "tokenizer/target.model"),
        "tokenizer/tokenizer.json",
    }
    manifest = json.loads((exported / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["kind"] == "litert"
    assert manifest["files"].keys() == names - {"manifest.json"}
    assert manifest["quantization"] is None
    assert manifest["decoding"]["num_beams"] == 2
    assert manifest["decoding"]["max_length"] == 8
    assert manifest["decoding"]["follows_source"] is True
    assert manifest["settings"]["max_length_offset"] == 3
    assert manifest["versions"]["ai-edge-litert"].startswith("2.")


def test_config_tells_what_the_file_offers(exported):
    config = config_of(exported)
    assert config.pop("signatures") == signatures_of(exported / "model.tflite")
    assert config == {
        "model": "model.tflite",
        "quantization": "none",
        "tokenizers": {
            "source": "tokenizer/source.model",
            "target": "tokenizer/target.model",
        },
        "pad_id": 0,
        "unk_id": 1,
        "start_id": 2,
        "end_id": 3,
        "banned_ids": [0, 2],
        "max_source_tokens": None,
        "max_length": 8,
        "num_beams": 2,
        # For sources of 0, 1, 2, … tokens: 2 n + 3, at least 4 and at most 8.
        "length_limits": [4, 5, 7, 8, 8, 8],
        "min_lengths": [4],
    }


def test_golden_vectors_are_what_an_app_gets_from_the_files_alone(exported):
    config = config_of(exported)
    source, target = [
        sentencepiece.SentencePieceProcessor(
            model_file=str(exported / config["tokenizers"][side])
        )
        for side in ("source", "target")
    ]
    decoder = LiteRTDecoder(exported / config["model"])
    golden = golden_of(exported)
    assert len(golden) == 7
    for entry in golden:
        ids = [*source.encode(entry["source"]), config["end_id"]]
        assert ids == entry["ids"]
        found = decoder([ids], [len(ids)])
        output = found["output_ids"][0][: found["output_lengths"][0]].tolist()
        assert output == entry["output_ids"]
        written = [index for index in output if index != config["end_id"]]
        assert target.decode(written).strip() == entry["target"].strip()
        assert found["score"][0] == pytest.approx(entry["score"], abs=1e-5)
    assert len({entry["target"] for entry in golden}) > 2


def test_golden_vectors_are_those_of_the_run(run, exported):
    golden = golden_of(exported)
    translator = load(run)
    found = translator.translate([entry["source"] for entry in golden])
    for (best,), entry in zip(found, golden, strict=True):
        assert best.text == entry["target"]
        assert list(best.ids) == entry["output_ids"]
        assert best.score == pytest.approx(entry["score"], abs=1e-4)


def test_no_file_names_a_folder_of_the_machine_that_wrote_it(run, exported):
    here = [str(run.parent), str(Path.home()), str(Path(__file__).parents[2])]
    here += [sys.prefix, "/tmp/"]
    for path in exported.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for place in here:
            assert place.encode() not in content, (path, place)


def test_existing_folder_is_kept_unless_it_may_be_replaced(
    run, exported, tmp_path, monkeypatch
):
    content = (exported / "model.tflite").read_bytes()
    monkeypatch.setattr(litert, "convert", lambda search, **_: content)
    folder = tmp_path / "new" / "model"
    folder.mkdir(parents=True)
    (folder / "mine").touch()
    with pytest.raises(ValueError, match=rf"`path`.*{re.escape(str(folder))}, which"):
        export_litert(run, folder)
    assert [entry.name for entry in folder.iterdir()] == ["mine"]
    export_litert(run, folder, overwrite=True)
    assert not (folder / "mine").exists()
    assert golden_of(folder) == golden_of(exported)
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]

    def full(decoder, tokenizers):
        raise OSError("disk full")

    monkeypatch.setattr(litert, "_golden", full)
    with pytest.raises(OSError, match="disk full"):
        export_litert(run, folder, overwrite=True)
    assert golden_of(folder) == golden_of(exported)
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]


def test_failed_conversion_leaves_nothing_behind(run, tmp_path, monkeypatch):
    def fail(search, **options):
        raise ValueError("LiteRT has no builtin operation for a part of this model.")

    monkeypatch.setattr(litert, "convert", fail)
    with pytest.raises(ValueError, match="no builtin operation"):
        export_litert(run, tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_leave_nothing_behind(run, tmp_path):
    for options, message in (
        ({"quantization": "int8"}, "Received: quantization='int8'"),
        ({"num_beams": 0}, "num_beams=0"),
        ({"max_length": 0}, "max_length=0"),
    ):
        with pytest.raises(ValueError, match=message):
            export_litert(run, tmp_path / "model", **options)
    assert list(tmp_path.iterdir()) == []


def test_other_backends_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(ValueError, match=r"LiteRT file is written.*KERAS_BACKEND=jax"):
        export_litert(run, tmp_path / "model")


def test_exported_run_passes_every_check(run, exported, ask_once):
    report = verify(exported, run=run)
    assert results(report) == {
        "files": True,
        "operations": True,
        "signatures": True,
        "runs": True,
        "delegates": True,
        "merged requests": True,
        "encode, step": True,
        "golden vectors": True,
        "translate = Python": True,
    }, report.table()
    assert report.ok
    assert detail(report, "translate = Python") == "8 answers as in Python"
    assert detail(report, "golden vectors") == "7 reproduced"
    assert detail(report, "merged requests") == "18 answered in a batch as alone"
    alone = verify(exported)
    assert alone.ok, alone.table()
    assert results(alone).keys() == results(report).keys() - {"translate = Python"}


def test_other_run_is_told_apart_and_its_bleu(
    run, exported, tmp_path, tiny_tokenizers, ask_once
):
    other = write_untrained_run(
        tmp_path / "other",
        tiny_tokenizers,
        decoding=DECODING,
        **{**RECURRENT, "units": 6},
    )
    wanted = [text or "x" for text in load(other)(SENTENCES)]
    report = verify(exported, run=other, sentences=SENTENCES, references=wanted)
    assert failed(report) == ["translate = Python", "BLEU"]
    assert "'3 March 2024'" in detail(report, "translate = Python")
    ours, theirs, lost = re.fullmatch(
        r"([\d.]+), the run ([\d.]+): (-[\d.]+)", detail(report, "BLEU")
    ).groups()
    assert float(ours) - float(theirs) == pytest.approx(float(lost), abs=0.02)


def test_changed_file_is_named_and_nothing_is_run(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "model")
    with (folder / "golden.jsonl").open("ab") as file:
        file.write(b"\n")
    report = verify(folder)
    assert failed(report) == ["files", "runs"]
    assert detail(report, "files") == "not as in manifest.json: golden.jsonl"
    assert "not run" in detail(report, "runs")


def test_changed_golden_vector_is_named(exported, tmp_path, ask_once):
    folder = shutil.copytree(exported, tmp_path / "model")
    golden = golden_of(folder)
    golden[1]["output_ids"][0] = 1
    rewrite(folder, "golden.jsonl", "\n".join(map(json.dumps, golden)) + "\n")
    report = verify(folder)
    assert failed(report) == ["golden vectors"]
    assert detail(report, "golden vectors") == repr(golden[1]["source"])


def test_golden_vector_of_another_tokenizer_is_named(exported, tmp_path, ask_once):
    folder = shutil.copytree(exported, tmp_path / "model")
    golden = golden_of(folder)
    golden[0]["source"] = "d"  # whose ids are others
    rewrite(folder, "golden.jsonl", "\n".join(map(json.dumps, golden)) + "\n")
    assert failed(verify(folder)) == ["golden vectors"]


@pytest.mark.parametrize(
    ("change", "check", "told"),
    [
        (
            lambda config: config["signatures"]["step"]["inputs"].pop("token_ids"),
            "signatures",
            "step is not as in config.json",
        ),
        (
            lambda config: config["signatures"].pop("translate_beam"),
            "signatures",
            "translate_beam is not as in config.json",
        ),
        (
            lambda config: config.update(max_length=9),
            "signatures",
            "max_length is not as in config.json",
        ),
        (
            lambda config: config.update(num_beams=3),
            "signatures",
            "num_beams is not as in config.json",
        ),
        (lambda config: config.update(start_id=5), "encode, step", "'"),
        (lambda config: config.update(length_limits=[3]), "encode, step", "'"),
        (lambda config: config.update(min_lengths=[0]), "encode, step", "'"),
    ],
    ids=[
        *("tensors", "signatures", "max_length", "num_beams"),
        *("start_id", "length_limits", "min_lengths"),
    ],
)
def test_config_that_lies_is_told(exported, tmp_path, ask_once, change, check, told):
    folder = shutil.copytree(exported, tmp_path / "model")
    config = config_of(folder)
    change(config)
    rewrite(folder, "config.json", json.dumps(config))
    report = verify(folder)
    assert results(report)["files"]
    assert failed(report) == [check], report.table()
    assert told in detail(report, check)


def test_a_search_that_looks_back_is_not_compared_step_by_step(
    exported, tmp_path, ask_once
):
    folder = shutil.copytree(exported, tmp_path / "model")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["decoding"]["no_repeat_ngram_size"] = 2
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    report = verify(folder)
    assert report.ok
    assert detail(report, "encode, step").startswith("not compared: the search looks")


def test_file_with_a_custom_operation_is_refused_and_not_run(
    exported, tmp_path, monkeypatch
):
    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
    def split(text):
        return {"words": tf.strings.split(text).to_tensor()}

    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [split.get_concrete_function()], split
    )
    converter.allow_custom_ops = True
    folder = shutil.copytree(exported, tmp_path / "model")
    rewrite(folder, "model.tflite", converter.convert())

    def never(*arguments):
        raise AssertionError("it was run")

    monkeypatch.setattr(verify_litert, "report_of", never)
    report = verify(folder)
    assert failed(report) == ["operations", "runs"]
    assert "StringSplitV2 is a custom operation" in detail(report, "operations")
    assert detail(report, "runs") == "not run, since a check above failed"


def test_quantised_file_tells_how_many_and_the_bleu(run, quantised):
    texts = [text for text in SENTENCES if text.strip()]
    translator = load(run)
    references = translator(texts, num_beams=1, length_penalty=0.0, max_length=6)
    report = verify(quantised, run=run, sentences=texts, references=references)
    assert report.ok, report.table()
    assert sorted(config_of(quantised)["signatures"]) == ["encode", "step", "translate"]
    assert config_of(quantised)["quantization"] == "float16"
    assert config_of(quantised)["length_limits"] == [6]
    answers = detail(report, "translate = Python")
    assert re.fullmatch(r"[3-6] of 6 answers as in Python", answers)
    assert re.fullmatch(r"6 of 6 .*", detail(report, "merged requests"))
    ours = re.fullmatch(r"([\d.]+), the run 100.00: .*", detail(report, "BLEU"))[1]
    assert float(ours) >= 99.7


def test_file_that_cannot_be_run_is_told_with_the_reason(
    exported, tmp_path, monkeypatch
):
    def broken(program, folder, asked):
        raise RuntimeError("the process that loads it failed: Illegal instruction")

    monkeypatch.setattr(verify_litert, "report_of", broken)
    report = verify(exported)
    assert failed(report) == ["runs"]
    assert "Illegal instruction" in detail(report, "runs")
    assert [check.name for check in report.checks][-1] == "runs"


def test_answers_that_differ_by_delegate_or_batch_are_told(
    exported, monkeypatch, ask_once
):
    ask = verify_litert.report_of

    def odd(program, folder, asked):
        report = ask(program, folder, asked)
        name = "BUILTIN_WITHOUT_DEFAULT_DELEGATES"
        report[name][0]["output_ids"] = [[9] * 8]
        report["BUILTIN"][0]["output_ids"] = [[8] * 8]
        return report

    monkeypatch.setattr(verify_litert, "report_of", odd)
    report = verify(exported)
    assert failed(report) == ["delegates", "merged requests"]
    assert detail(report, "delegates") == "request 0 to translate"
    assert detail(report, "merged requests") == "'3 March 2024' in translate"


def test_missing_litert_is_named(exported, monkeypatch):
    monkeypatch.setattr(verify_litert.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"keras-seq2seq\[litert\]"):
        verify(exported)


def test_files_that_are_no_manifest_or_no_model_are_named(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "model")
    (folder / "model.tflite").write_bytes(b"no model at all")
    with pytest.raises(ValueError, match="must have the mark TFL3"):
        verify(folder)
    (folder / "manifest.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="is no manifest of an export"):
        verify(folder)
