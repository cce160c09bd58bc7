"""What `export_ctranslate2` writes, run by CTranslate2 itself."""

import builtins
import json
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_seq2seq.decoding import generate
from keras_seq2seq.export.ctranslate2 import export_ctranslate2, transformer_spec
from keras_seq2seq.models import RecurrentSeq2Seq, TransformerSeq2Seq
from keras_seq2seq.pipelines import Translator

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
    model = TransformerSeq2Seq(source_size, target_size, **{**SIZES, **options})
    generator = np.random.default_rng(0)
    # Biases and norms are constants in a new model.
    model.set_weights(
        [
            1.5 * weight + generator.normal(scale=0.1, size=weight.shape)
            for weight in model.get_weights()
        ]
    )
    end = keras.ops.convert_to_numpy(
        model.target_embedding.embeddings[3]
        if model.output_projection is None
        else model.output_projection.kernel[:, 3]
    )
    last = model.decoder_norm or model.decoder_blocks[-1].feedforward_norm
    last.beta.assign(last.beta + end / np.linalg.norm(end))
    return model


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
