"""What `export_ctranslate2` writes, run by CTranslate2 itself."""

import builtins
import hashlib
import json
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_seq2seq.decoding import generate
from keras_seq2seq.export import ctranslate2 as exporting
from keras_seq2seq.export import verify_ctranslate2
from keras_seq2seq.export.ctranslate2 import export_ctranslate2, transformer_spec
from keras_seq2seq.export.verify import SENTENCES, verify
from keras_seq2seq.models import RecurrentSeq2Seq, TransformerSeq2Seq
from keras_seq2seq.pipelines import Translator, load
from tests.helpers import end_early, rewrite

SIZES = {
    "dim": 8,
    "num_heads": 2,
    "feedforward_dim": 8,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "max_positions": 16,
}
CASES = {
    "post": {},
    "pre": {"norm": "pre"},
    "untied": {"norm": "pre", "tie_output": False},
    "shared": {"share_embeddings": True},
    "halves": {"sinusoid_layout": "halves"},
    "learned": {"positions": "learned"},
    "no_positions": {"positions": "none"},
    "no_bias": {"attention_bias": False},
    "learned_untied": {"positions": "learned", "norm": "pre", "tie_output": False},
    "four_heads": {"num_heads": 4, "norm": "pre"},
}
TOKENS = ["<pad>", "<unk>", "<s>", "</s>", *"abcdefgh"]
SOURCE_IDS = np.asarray([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0]])
LENGTH = 14


@pytest.fixture
def ctranslate2():
    """The engine, where it is installed."""
    return pytest.importorskip("ctranslate2")


def make_model(source_size=12, target_size=12, **options):
    """A model of width 8 whose outputs differ, and some of which end early."""
    keras.utils.set_random_seed(0)
    return end_early(
        TransformerSeq2Seq(source_size, target_size, **{**SIZES, **options})
    )


def loaded(ctranslate2, model, folder):
    """The model in CTranslate2."""
    spec = transformer_spec(model, TOKENS, TOKENS)
    spec.validate()
    spec.optimize()
    folder.mkdir()
    spec.save(str(folder))
    return ctranslate2.Translator(str(folder), intra_threads=1)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_hypotheses_and_scores_are_those_of_generate(
    ctranslate2, tmp_path, name, num_beams
):
    model = make_model(**CASES[name])
    engine = loaded(ctranslate2, model, tmp_path / "model")
    found = engine.translate_batch(
        [[TOKENS[index] for index in row if index > 3] for row in SOURCE_IDS],
        beam_size=num_beams,
        num_hypotheses=num_beams,
        length_penalty=1.0,
        max_decoding_length=LENGTH,
        min_decoding_length=0,
        return_end_token=True,
        return_scores=True,
    )
    expected = generate(
        model,
        SOURCE_IDS,
        num_beams=num_beams,
        n_best=num_beams,
        max_length=LENGTH,
        length_penalty=1.0,
        length_penalty_base=0.0,
        stop="count",
        banned_ids=(),
    )
    # At the limit CTranslate2 ranks what it cuts among what has ended; we do not.
    finished = expected.finished
    alike = finished.all(axis=1) | ~finished.any(axis=1)
    assert alike.sum() >= 2
    for row in np.flatnonzero(alike):
        assert found[row].hypotheses == [
            [TOKENS[index] for index in ids[:length]]
            for ids, length in zip(
                expected.ids[row], expected.lengths[row], strict=True
            )
        ]
        np.testing.assert_allclose(found[row].scores, expected.scores[row], atol=1e-4)


def test_attention_over_the_source_is_that_of_generate(ctranslate2, tmp_path):
    model = make_model()
    engine = loaded(ctranslate2, model, tmp_path / "model")
    (found,) = engine.translate_batch(
        [["a", "b", "c", "d"]],
        beam_size=1,
        max_decoding_length=4,
        min_decoding_length=0,
        return_attention=True,
    )
    expected = generate(
        model,
        SOURCE_IDS[:1],
        max_length=4,
        banned_ids=(),
        return_attention=True,
    )
    # CTranslate2 leaves out the END that it has put behind the source.
    np.testing.assert_allclose(
        found.attention[0], expected.attention[0, 0, :, :4], atol=1e-5
    )


@pytest.fixture
def translator(tiny_tokenizers):
    """An untrained model with its tokenizers."""
    sizes = [
        getattr(tiny_tokenizers, side).vocabulary_size for side in ("source", "target")
    ]
    model = make_model(*sizes, norm="pre", tie_output=False)
    # What a Translator bans and CTranslate2 does not: PAD, UNK, START.
    bias = np.array(model.output_projection.bias)
    bias[:3] = -100.0
    model.output_projection.bias.assign(bias)
    return Translator(model, tiny_tokenizers)


def test_folder_translates_text_as_the_translator(ctranslate2, translator, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = export_ctranslate2(translator, tmp_path / "model")
    assert folder == tmp_path / "model"
    source, target = [
        sentencepiece.SentencePieceProcessor(
            model_file=str(folder / "tokenizer" / f"{side}.model")
        )
        for side in ("source", "target")
    ]
    engine = ctranslate2.Translator(str(folder), intra_threads=1)
    texts = ["ca déb", "b", "éc abd abc d", "a"]
    found = engine.translate_batch(
        source.encode(texts, out_type=str),
        beam_size=1,
        max_decoding_length=LENGTH,
        min_decoding_length=0,
    )
    expected = translator(texts, num_beams=1, max_length=LENGTH)
    assert [target.decode(result.hypotheses[0]) for result in found] == expected
    assert len(set(expected)) > 1


def test_vocabularies_are_the_pieces_of_both_tokenizers(
    ctranslate2, translator, tmp_path
):
    folder = export_ctranslate2(translator, tmp_path / "model")
    for side in ("source", "target"):
        text = (folder / f"{side}_vocabulary.json").read_text(encoding="utf-8")
        tokenizer = getattr(translator.tokenizers, side)
        assert json.loads(text) == tokenizer.pieces(range(tokenizer.vocabulary_size))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["decoder_start_token"] == "<s>"
    assert config["eos_token"] == "</s>"
    assert config["add_source_eos"] is True


def test_vocabulary_of_another_size_is_named(ctranslate2):
    model = make_model()
    with pytest.raises(ValueError, match=r"Source vocab.*size 11 .* size 12"):
        transformer_spec(model, TOKENS[:-1], TOKENS).validate()
    with pytest.raises(ValueError, match=r"Target vocab.*size 13 .* size 12"):
        transformer_spec(model, TOKENS, [*TOKENS, "x"]).validate()


def test_position_tables_end_where_the_model_does(ctranslate2, tmp_path):
    """What `load_runtime` must cut, since the engine only raises."""
    for positions, rows in (("learned", 16), ("sinusoidal", 2048), ("none", 2048)):
        model = make_model(positions=positions, num_decoder_layers=1)
        engine = loaded(ctranslate2, model, tmp_path / positions)
        options = {"max_decoding_length": 2, "max_input_length": 0}
        engine.translate_batch([["a"] * (rows - 1)], **options)  # and END
        with pytest.raises(RuntimeError, match=f"positions >= {rows}"):
            engine.translate_batch([["a"] * rows], **options)


def test_manifest_tells_the_search_and_the_sums(ctranslate2, translator, tmp_path):
    folder = export_ctranslate2(
        translator, tmp_path / "model", num_beams=2, length_penalty=0.3
    )
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    names = {
        *("model.bin", "config.json", "source_vocabulary.json"),
        *("target_vocabulary.json", "tokenizer/tokenizer.json"),
        *("tokenizer/source.model", "tokenizer/target.model"),
    }
    assert manifest["files"].keys() == names
    content = (folder / "model.bin").read_bytes()
    assert manifest["files"]["model.bin"] == hashlib.sha256(content).hexdigest()
    assert manifest["kind"] == "ctranslate2"
    assert manifest["quantization"] is None
    assert manifest["model"] == {
        "name": "TransformerSeq2Seq",
        "max_positions": 2048,  # rows of the table that was written
        "source_vocabulary_size": 10,
        "target_vocabulary_size": 10,
    }
    options = {"num_beams": 2, "length_penalty": 0.3, "stop": "count"}
    for name, value in {**options, "length_penalty_base": 0.0}.items():
        assert manifest["decoding"][name] == manifest["settings"][name] == value
    assert manifest["decoding"]["banned_ids"] == [0, 2]
    assert manifest["versions"]["ctranslate2"].startswith("4.")
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert str(tmp_path).encode() not in content


def test_a_run_folder_is_exported_as_its_translator(ctranslate2, tiny_run, tmp_path):
    folders = [
        export_ctranslate2(what, tmp_path / name)
        for name, what in (("one", tiny_run), ("two", load(tiny_run)))
    ]
    sums = [json.loads((f / "manifest.json").read_bytes())["files"] for f in folders]
    assert sums[0] == sums[1]


def test_int8_weights_take_less_room_and_leave_the_model_as_it_was(
    ctranslate2, translator, tmp_path
):
    before = translator.model.get_weights()
    full = export_ctranslate2(translator, tmp_path / "full")
    small = export_ctranslate2(translator, tmp_path / "small", quantization="int8")
    sizes = [(folder / "model.bin").stat().st_size for folder in (full, small)]
    assert sizes[1] < sizes[0]
    engine = ctranslate2.Translator(str(small), intra_threads=1)
    assert engine.compute_type.startswith("int8")
    for weight, old in zip(translator.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_existing_folder_is_kept_unless_it_may_be_replaced(
    ctranslate2, translator, tmp_path
):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(ValueError, match=rf"`path`.*{re.escape(str(folder))}, which"):
        export_ctranslate2(translator, folder)
    assert [entry.name for entry in folder.iterdir()] == ["mine"]
    export_ctranslate2(translator, folder, overwrite=True)
    assert not (folder / "mine").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_failed_export_leaves_nothing_behind(
    ctranslate2, translator, tmp_path, monkeypatch
):
    def fail(folder):
        raise OSError("disk full")

    monkeypatch.setattr(translator.tokenizers, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        export_ctranslate2(translator, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_failed_export_keeps_the_folder_that_stood_there(
    ctranslate2, translator, tmp_path, monkeypatch
):
    folder = export_ctranslate2(translator, tmp_path / "model")
    before = (folder / "manifest.json").read_bytes()

    def fail(*arguments, **options):
        raise OSError("disk full")

    monkeypatch.setattr(exporting, "write_manifest", fail)
    with pytest.raises(OSError, match="disk full"):
        export_ctranslate2(translator, folder, num_beams=1, overwrite=True)
    assert (folder / "manifest.json").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "rotary"}, r"`positions` 'sinu.*positions='rotary'.*SavedModel"),
        ({"window": 3}, r"`window` None only.*window=3"),
        (
            {"attention_score": "additive"},
            r"`attention_score` 'scaled_dot' only.*attention_score='additive'",
        ),
        (
            {"combine_positions": "concat", "tie_output": False},
            r"`combine_positions` 'sum' only.*combine_positions='concat'",
        ),
    ],
)
def test_transformer_that_the_engine_cannot_run_is_refused(
    ctranslate2, options, message
):
    model = TransformerSeq2Seq(12, 12, **{**SIZES, **options})
    with pytest.raises(ValueError, match=message):
        transformer_spec(model, TOKENS, TOKENS)


def test_other_models_are_refused(ctranslate2):
    model = RecurrentSeq2Seq(12, 12, cell="gru", units=8, embedding_dim=8)
    with pytest.raises(ValueError, match=r"`model`.*Received: RecurrentSeq2Seq"):
        transformer_spec(model, TOKENS, TOKENS)


def test_unknown_quantization_is_refused(ctranslate2, translator, tmp_path):
    message = r"`quantization`.*'int8'.*Received: quantization='int7'"
    with pytest.raises(ValueError, match=message):
        export_ctranslate2(translator, tmp_path / "model", quantization="int7")


def test_missing_engine_is_named_with_the_extra(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "ctranslate2":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    message = r"`ctranslate2`.*pip install 'keras-seq2seq\[ctranslate2\]'"
    with pytest.raises(ImportError, match=message):
        export_ctranslate2(SimpleNamespace(), tmp_path / "model")


@pytest.fixture
def exported(ctranslate2, translator, tmp_path):
    return export_ctranslate2(translator, tmp_path / "model", num_beams=2)


def failed(report):
    return [check.name for check in report.checks if not check.ok]


def detail(report, name):
    (found,) = [check.detail for check in report.checks if check.name == name]
    return found


def test_exported_model_passes_every_check(exported, translator):
    texts = [*SENTENCES, "ca déb", "b", "éc abd abc d", "abcd " * 20]
    report = verify(exported, run=translator, sentences=texts)
    assert [(check.name, check.ok) for check in report.checks] == [
        ("files", True),
        ("vocabularies", True),
        ("runs", True),
        ("merged requests", True),
        ("translate = Python", True),
    ], report.table()
    found = re.match(
        r"(\d+) answers as in Python(?:; (\d+) cut at their limit are not compared)?$",
        detail(report, "translate = Python"),
    )
    compared, cut = int(found[1]), int(found[2] or 0)
    assert compared + cut == 12
    assert compared >= 8
    assert detail(report, "merged requests") == "8 answered in a batch as alone"
    assert verify(exported).ok


def test_other_run_is_told_apart(exported, tiny_tokenizers):
    other = Translator(make_model(10, 10), tiny_tokenizers)
    texts = ["ca déb", "b", "éc abd abc d", "a", "bacd", "d d"]
    report = verify(exported, run=other, sentences=texts)
    assert failed(report) == ["translate = Python"], report.table()
    assert "'ca déb'" in detail(report, "translate = Python")


def test_changed_file_is_named_and_nothing_is_run(exported, monkeypatch):
    monkeypatch.setattr(verify_ctranslate2, "report_of", None)
    with (exported / "model.bin").open("ab") as file:
        file.write(b"x")
    report = verify(exported)
    assert failed(report) == ["files", "runs"]
    assert detail(report, "files") == "not as in manifest.json: model.bin"
    assert detail(report, "runs") == "not run, since a check above failed"


def test_vocabulary_in_another_order_is_told(exported, monkeypatch):
    monkeypatch.setattr(verify_ctranslate2, "report_of", None)
    name = "target_vocabulary.json"
    pieces = json.loads((exported / name).read_text(encoding="utf-8"))
    pieces[5], pieces[6] = pieces[6], pieces[5]
    rewrite(exported, name, json.dumps(pieces))
    report = verify(exported)
    assert failed(report) == ["vocabularies", "runs"]
    assert detail(report, "vocabularies") == (
        "the target vocabulary is not that of tokenizer/"
    )


def test_model_that_the_engine_cannot_load_is_told(exported):
    rewrite(exported, "model.bin", b"no model")
    report = verify(exported)
    assert failed(report) == ["runs"]
    assert detail(report, "runs").startswith("the process that loads it failed: ")


def test_weights_of_another_model_are_told(exported, translator, tmp_path):
    other = make_model(10, 10, norm="pre", tie_output=False, attention_bias=False)
    another = export_ctranslate2(
        Translator(other, translator.tokenizers), tmp_path / "other", num_beams=2
    )
    rewrite(exported, "model.bin", (another / "model.bin").read_bytes())
    report = verify(exported, run=translator)
    assert failed(report) == ["translate = Python"]
    assert verify(exported).ok  # in itself it is whole


def test_quantised_weights_tell_how_many_and_the_bleu(
    ctranslate2, translator, tmp_path
):
    folder = export_ctranslate2(translator, tmp_path / "model", quantization="int8")
    texts = ["ca déb", "b", "éc abd abc d", "a", "bacd", "d d"]
    references = [text or "x" for text in translator(texts)]
    report = verify(folder, run=translator, sentences=texts, references=references)
    counts = re.match(r"(\d) of (\d) ans", detail(report, "translate = Python"))
    assert 1 <= int(counts[1]) <= int(counts[2]) <= 6, report.table()
    assert re.fullmatch(r"[\d.]+, the run [\d.]+: [+-][\d.]+", detail(report, "BLEU"))
    assert re.match(r"\d of 6 answered in a batch", detail(report, "merged requests"))


def test_verify_names_the_missing_engine(exported, monkeypatch):
    monkeypatch.setattr(
        verify_ctranslate2.importlib.util, "find_spec", lambda name: None
    )
    with pytest.raises(ImportError, match=r"keras-seq2seq\[ctranslate2\]"):
        verify(exported)
