"""Translators over exports: the same answers as the run's, or a refusal."""

import builtins
import json
import math
import shutil
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_seq2seq.export import runtimes
from keras_seq2seq.export.ctranslate2 import export_ctranslate2
from keras_seq2seq.export.litert import export_litert
from keras_seq2seq.export.runtimes import RUNTIMES, load_runtime
from keras_seq2seq.export.saved_model import export_saved_model
from keras_seq2seq.pipelines import Translator, load
from tests.helpers import TINY_PAIRS, end_early, spread, write_untrained_run

pytestmark = pytest.mark.export

RECURRENT = {
    "name": "RecurrentSeq2Seq",
    "cell": "gru",
    "units": 8,
    "embedding_dim": 8,
    "change": spread,
    "decoding": {"num_beams": 2, "max_length": 8, "max_length_offset": 3},
}
TRANSFORMER = {
    "name": "TransformerSeq2Seq",
    "dim": 8,
    "num_heads": 2,
    "feedforward_dim": 8,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "norm": "pre",
    "tie_output": False,
    # The search of CTranslate2.
    "decoding": {
        "num_beams": 2,
        "max_length": 32,
        "max_length_offset": 3,
        "stop": "count",
        "length_penalty_base": 0.0,
    },
}
WRITE = {
    "saved_model": export_saved_model,
    "litert": export_litert,
    "ctranslate2": export_ctranslate2,
}
NEEDS = {
    "saved_model": "tensorflow",
    "litert": "ai_edge_litert",
    "ctranslate2": "ctranslate2",
}
ODD = ["", "   ", "\u200b", "日 x", "de  ca", "b\tc", "abcd abcd abcd abcd abcd", "é"]
LINES = [*ODD, *(source for source, _ in TINY_PAIRS[::2]), *ODD]


def ending(model):
    """Outputs that end, without the tokens that CTranslate2 does not ban."""
    end_early(model)
    bias = np.array(model.output_projection.bias)
    bias[:3] = -100.0
    model.output_projection.bias.assign(bias)


class Pair(NamedTuple):
    """A run, and its export."""

    kind: str
    run: Translator
    export: Translator


@pytest.fixture(scope="module")
def run_of(tmp_path_factory, tiny_tokenizers):
    """The run folder of a kind, with its export in it; written when first asked for."""
    folders = {}

    def written(kind):
        pytest.importorskip(NEEDS[kind])
        if kind not in folders:
            keras.utils.set_random_seed(5)  # whose outputs differ, and mostly end
            options = RECURRENT
            if kind == "ctranslate2":
                options = {**TRANSFORMER, "change": ending}
            folder = tmp_path_factory.mktemp(kind) / "run"
            write_untrained_run(folder, tiny_tokenizers, **options)
            WRITE[kind](folder, folder / "exports" / kind)
            folders[kind] = folder
        return folders[kind]

    return written


@pytest.fixture(scope="module", params=RUNTIMES)
def pair(request, run_of):
    folder = run_of(request.param)
    return Pair(request.param, load(folder), load_runtime(folder, request.param))


def comparable(pair, found, expected):
    """The rows that must be alike: CTranslate2 ranks what it cuts at a limit."""
    rows = [
        row
        for row, both in enumerate(zip(found, expected, strict=True))
        if pair.kind != "ctranslate2" or all(h.finished for hs in both for h in hs)
    ]
    assert len(rows) >= 0.6 * len(expected)
    return rows


def check_alike(found, expected):
    """Everything but the log-probabilities, which engines do not tell."""
    assert [h.text for h in found] == [h.text for h in expected]
    np.testing.assert_allclose(
        [h.score for h in found], [h.score for h in expected], atol=1e-4
    )
    for name in ("ids", "tokens", "source_tokens", "finished", "truncated_source"):
        assert [getattr(h, name) for h in found] == [
            getattr(h, name) for h in expected
        ], name


def test_lines_are_answered_in_order_as_by_the_run(pair):
    expected = pair.run.translate(LINES)
    assert len({best.text for (best,) in expected}) > 4
    for tokens in (4096, 16):  # one batch, and many
        found = pair.export.translate(LINES, batch_tokens=tokens)
        for row in comparable(pair, found, expected):
            check_alike(found[row], expected[row])
    for row, text in enumerate(LINES):
        if not text.strip():
            assert (found[row][0].text, found[row][0].log_prob) == ("", 0.0)
        else:
            assert math.isnan(found[row][0].log_prob)
    chunks = list(pair.export.translate_lines(LINES, chunk_size=5))
    assert [[h.text for h in hs] for hs in chunks] == [
        [h.text for h in hs] for hs in found
    ]


def test_n_best_lists_are_those_of_the_run(pair):
    texts = LINES[:24]
    expected = pair.run.translate(texts, n_best=2)
    assert sum(len(found) == 2 for found in expected) > 12
    found = pair.export.translate(texts, n_best=2)
    for row in comparable(pair, found, expected):
        check_alike(found[row], expected[row])


def test_a_single_text_and_sentences_of_a_text(pair):
    assert pair.export("dc a") == pair.run("dc a")
    assert pair.export("") == ""
    text = "Déca. B c! D"
    (found,) = next(pair.export.translate_lines([text], by_sentence=True))
    (expected,) = next(pair.run.translate_lines([text], by_sentence=True))
    assert found.text == expected.text


REFUSED = [
    ({"num_beams": 3}, "made with num_beams = 2. Received: num_beams = 3."),
    ({"length_penalty": 1.5}, "made with length_penalty = 0.6. Received: length_pen"),
    ({"max_length": 5}, "made with max_length = None. Received: max_length = 5."),
    ({"max_length_ratio": 9.0}, "max_length_ratio = 2.0. Received: max_length_ratio ="),
    ({"max_length_offset": 9}, "made with max_length_offset = 3. Received: max_length"),
    ({"n_best": 3}, "at most the export's num_beams = 2. Received: n_best = 3."),
]
REFUSED_BY_ALL = [
    ({"temperature": 0.5}, "no samples (temperature = 0.5). Received: runtime '{}'"),
    ({"top_k": 3}, "no samples (temperature = 1.0)"),
    ({"n_best": 2, "alternatives": True}, "no alternatives (alternatives = True)"),
    ({"return_attention": True}, "no attention (return_attention = True)"),
    ({"replace_unknown": True}, "no attention (return_attention = True)"),
    ({"return_token_scores": True}, "no token scores (return_token_scores = True)"),
    ({"prefixes": ["d"]}, "has no prefixes. Received: runtime '{}'. Use the run"),
    ({"required": [["d"]]}, "An export has no required phrases."),
    ({"banned": [["d"]]}, "An export has no banned phrases."),
    ({"min_length": 2}, "made with min_length = 0. Received: min_length = 2."),
    ({"min_length_ratio": 1.0}, "min_length_ratio = 0.0. Received: min_length_ratio"),
    ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size = 0. Received: no_repeat"),
    ({"length_penalty_base": 2.0}, ". Received: length_penalty_base = 2.0."),
    ({"allow_unknown": False}, "made with allow_unknown = True. Received: allow_unk"),
]


def test_what_an_export_does_not_do_is_refused_with_values(pair):
    fixed = REFUSED if pair.kind != "ctranslate2" else []
    for options, message in REFUSED_BY_ALL + fixed:
        with pytest.raises(ValueError) as raised:
            pair.export.translate(["dca"], **options)
        assert message.format(pair.kind) in str(raised.value)
    with pytest.raises(
        ValueError, match=f"no streaming.*'{pair.kind}'.*the run itself"
    ):
        pair.export.stream("dca")
    with pytest.raises(ValueError, match="An export has no scoring"):
        pair.export.score(["dca"], ["acd"])


def test_options_that_ctranslate2_takes_at_every_call(run_of):
    folder = run_of("ctranslate2")
    pair = Pair("ctranslate2", load(folder), load_runtime(folder, "ctranslate2"))
    texts = LINES[:16]
    for options in (
        {"num_beams": 1},
        {"num_beams": 4, "length_penalty": 0.0},
        {"n_best": 3},
        {"max_length": 24},
        {"max_length_ratio": 0.5, "max_length_offset": 16},
    ):
        expected = pair.run.translate(texts, **options)
        found = pair.export.translate(texts, **options)
        for row in comparable(pair, found, expected):
            check_alike(found[row][:1], expected[row][:1])
    for options, longest in (
        ({"max_length": 2}, 2),
        ({"max_length_ratio": 0.0, "max_length_offset": 3}, 3),
    ):
        found = pair.export.translate(texts, **options)
        assert max(len(best.ids) for (best,) in found) == longest


def test_row_past_its_own_limit_is_decoded_again_with_that(run_of, monkeypatch):
    translator = load_runtime(run_of("ctranslate2"), "ctranslate2")
    engine, calls = translator._engine, []
    decode = engine._decode

    def noted(sources, limit, request):
        calls.append((len(sources), limit))
        return decode(sources, limit, request)

    monkeypatch.setattr(engine, "_decode", noted)
    # Left alone the first writes 17 tokens; it may write twice its own 6 and 3.
    short, long = "daéc", "abcdabcdab"
    (alone,), (other,) = (translator.translate([text]) for text in (short, long))
    assert calls == [(1, 15), (1, 27)]
    assert (len(alone[0].ids), alone[0].finished) == (15, False)
    assert len(translator.translate([short], max_length=27)[0][0].ids) == 17
    calls.clear()
    together = translator.translate([short, long])
    assert calls == [(2, 27), (1, 15)]
    check_alike(together[0], alone)
    check_alike(together[1], other)


def test_long_sources_are_cut_where_the_table_of_positions_ends(
    tmp_path, tiny_tokenizers
):
    pytest.importorskip("ctranslate2")
    keras.utils.set_random_seed(8)
    options = {**TRANSFORMER, "positions": "learned", "max_positions": 16}
    folder = write_untrained_run(
        tmp_path / "run", tiny_tokenizers, **options, change=ending
    )
    export_ctranslate2(folder, folder / "exports" / "ctranslate2")
    run, export = load(folder), load_runtime(folder, "ctranslate2")
    texts = ["bc", "abcd" * 10]
    with pytest.warns(UserWarning, match="1 of 2 sources have more than the 16"):
        expected = run.translate(texts)
    with pytest.warns(UserWarning, match="1 of 2 sources have more than the 16"):
        found = export.translate(texts)
    assert found[1][0].truncated_source
    for row, (best,) in enumerate(expected):
        assert best.finished
        check_alike(found[row], expected[row])
    # More tokens than there are positions are never asked for.
    assert len(export.translate(["bc"], max_length=99)[0][0].ids) <= 16


def test_sources_longer_than_the_engines_own_cut_are_whole(run_of):
    folder = run_of("ctranslate2")
    run, export = load(folder), load_runtime(folder, "ctranslate2")
    text = "a" * 1100 + "dé" * 300  # the engine would cut at 1024
    options = {"num_beams": 1, "max_length": 3}
    ((expected,),) = run.translate([text], **options)
    ((found,),) = export.translate([text], **options)
    assert not found.truncated_source
    assert found.ids == expected.ids
    assert found.score == pytest.approx(expected.score, abs=1e-4)
    with pytest.warns(UserWarning, match="more than the 2,048"):
        ((found,),) = export.translate(["a" * 3000], **options)
    assert found.truncated_source


def test_a_limit_fixed_by_the_export_holds_and_no_other(tmp_path, run_of):
    run = run_of("litert")
    folder = export_litert(run, tmp_path / "fixed", num_beams=1, max_length=4)
    export = load_runtime(folder, "litert")
    expected = load(run).translate(LINES, num_beams=1, max_length=4)
    for options in ({}, {"max_length": 4}, {"num_beams": 1}):
        found = export.translate(LINES, **options)
        for row, hypotheses in enumerate(expected):
            check_alike(found[row], hypotheses)
    for options, message in (
        ({"max_length": 5}, "made with max_length = 4. Received: max_length = 5."),
        ({"n_best": 2}, "the export's num_beams = 1. Received: n_best = 2."),
        ({"num_beams": 2}, "made with num_beams = 1. Received: num_beams = 2."),
    ):
        with pytest.raises(ValueError) as raised:
            export.translate(["dca"], **options)
        assert message in str(raised.value)
        assert str(folder) in str(raised.value) or "n_best" in options


def test_exports_are_found_directly_by_version_and_by_run(run_of, tmp_path):
    run = run_of("saved_model")
    versions = shutil.copytree(run / "exports" / "saved_model", tmp_path / "served")
    for number in ("9", "10", "temporary-11"):
        shutil.copytree(versions / "1", versions / number)
    (versions / "12").mkdir()  # without a manifest it is none yet
    assert load_runtime(versions, "saved_model").folder == versions / "10"
    assert load_runtime(versions / "9", "saved_model").folder == versions / "9"
    expected = run / "exports" / "saved_model" / "1"
    assert load_runtime(run, "saved_model").folder == expected


def test_missing_export_is_named_with_the_command(tmp_path):
    for kind in RUNTIMES:
        with pytest.raises(FileNotFoundError) as raised:
            load_runtime(tmp_path, kind)
        message = str(raised.value)
        assert str(tmp_path / "exports" / kind) in message
        assert f"keras-seq2seq export RUN --format {kind}" in message


def test_unknown_runtime_and_other_kinds_are_named(run_of):
    with pytest.raises(ValueError, match=r"'ctranslate2'.*Received: runtime='onnx'"):
        load_runtime("anywhere", "onnx")
    folder = run_of("ctranslate2") / "exports" / "ctranslate2"
    message = r"an export of the kind 'litert'. Received: 'ctranslate2'"
    with pytest.raises(ValueError, match=message):
        load_runtime(folder, "litert")


def test_saved_model_that_would_write_a_file_is_not_loaded(
    run_of, tmp_path, monkeypatch
):
    target = tmp_path / "written"

    def write(ids, lengths):
        with tf.control_dependencies([tf.io.write_file(str(target), "x")]):
            return {"output_ids": tf.identity(ids)}

    module = tf.Module()
    module.serve = tf.function(
        write,
        input_signature=[
            tf.TensorSpec((None, None), tf.int32, name="ids"),
            tf.TensorSpec((None,), tf.int32, name="lengths"),
        ],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path / "bad"), {"decode_ids": module.serve})
    folder = shutil.copytree(
        run_of("saved_model") / "exports" / "saved_model" / "1", tmp_path / "1"
    )
    shutil.copy(tmp_path / "bad" / "saved_model.pb", folder)

    def never(*arguments, **options):
        raise AssertionError("it was loaded")

    monkeypatch.setattr(tf.saved_model, "load", never)
    with pytest.raises(ValueError, match=r"must pass `verify`.*WriteFile is not allow"):
        load_runtime(folder, "saved_model")
    assert not target.exists()


def test_tokenizers_of_another_run_are_refused(run_of, tmp_path):
    folder = shutil.copytree(
        run_of("ctranslate2") / "exports" / "ctranslate2", tmp_path / "model"
    )
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["model"]["target_vocabulary_size"] = 12
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ValueError, match="target tokenizer has 10 pieces.*expects 12"):
        load_runtime(folder, "ctranslate2")
    (folder / "target_vocabulary.json").unlink()
    with pytest.raises(FileNotFoundError, match="No vocabulary of the target in"):
        load_runtime(folder, "ctranslate2")


def test_missing_ctranslate2_is_named(run_of, monkeypatch):
    folder = run_of("ctranslate2")
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "ctranslate2":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"keras-seq2seq\[ctranslate2\]"):
        runtimes.load_runtime(folder, "ctranslate2")
