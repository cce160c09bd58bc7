"""Run folders that translate together."""

import shutil

import pytest

from keras_seq2seq.corpora import Pair
from keras_seq2seq.ensembles import load_ensemble
from keras_seq2seq.forecaster import Forecaster
from keras_seq2seq.pipelines import load
from keras_seq2seq.tokenizers import TokenizerPair
from tests.helpers import write_untrained_run


@pytest.fixture
def other_run(tmp_path, tiny_tokenizers):
    return write_untrained_run(
        tmp_path / "other_run",
        tiny_tokenizers,
        name="RecurrentSeq2Seq",
        units=8,
        embedding_dim=8,
    )


def test_two_copies_of_a_run_translate_as_the_run(tiny_run, tmp_path):
    copy = shutil.copytree(tiny_run, tmp_path / "copy")
    texts = ["acbd", "", "éa b"]
    alone, together = load(tiny_run), load_ensemble([tiny_run, copy])
    assert together(texts, max_length=6) == alone(texts, max_length=6)
    expected = alone.score(["acb"], ["abc"])[0].log_prob
    found = together.score(["acb"], ["abc"])[0].log_prob
    assert found == pytest.approx(expected, abs=1e-4)


def test_runs_of_different_architectures_translate_together(tiny_run, other_run):
    translator = load_ensemble([tiny_run, other_run], combine="log_probs")
    found = translator.translate(["acbd"], num_beams=3, max_length=5)
    assert len(found[0][0].ids) <= 5
    assert translator.decoding == load(tiny_run).decoding


def test_a_run_that_is_not_of_text_is_refused(tiny_run, monkeypatch):
    forecaster = Forecaster.__new__(Forecaster)
    monkeypatch.setattr(
        "keras_seq2seq.ensembles.load",
        lambda folder: load(folder) if folder == tiny_run else forecaster,
    )
    with pytest.raises(ValueError, match=r"of text. Received: wave, .*\[series\]"):
        load_ensemble([tiny_run, "wave"])


def test_runs_with_other_tokenizers_are_refused(tiny_run, tmp_path):
    tokenizers = TokenizerPair.train(
        [Pair("xyz", "zyx")], vocabulary_size=64, model_type="char"
    )
    stranger = write_untrained_run(
        tmp_path / "stranger",
        tokenizers,
        name="RecurrentSeq2Seq",
        units=8,
        embedding_dim=8,
    )
    with pytest.raises(ValueError, match="source tokenizer of .*stranger"):
        load_ensemble([tiny_run, stranger])
    with pytest.raises(ValueError, match="at least one"):
        load_ensemble([])
