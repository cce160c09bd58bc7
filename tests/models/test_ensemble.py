"""Ensembles: means of distributions, and members that keep their own states."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.models import EnsembleSeq2Seq
from tests.models.test_contract import (
    SOURCE,
    TARGET,
    decode_by_steps,
    logits_of,
    recurrent,
    spread_weights,
    transformer,
)


def members():
    made = [recurrent(), transformer(positions="learned"), recurrent(attention="none")]
    for seed, model in enumerate(made):
        spread_weights(model, seed)
    return made


def distributions(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("probabilities", [0.6, 0.4]), ("log_probs", [0.6202, 0.3798])],
)
def test_two_distributions_by_hand(combine, expected):
    """(.8, .2) and (.4, .6): arithmetic (.6, .4), geometric (.6202, .3798)."""
    ensemble = EnsembleSeq2Seq([recurrent(), recurrent()], combine=combine)
    logits = [np.log([[0.8, 0.2]]).astype("float32"), np.log([[0.4, 0.6]]) + 5]
    combined = ensemble._combine([logits[0], logits[1].astype("float32")])
    np.testing.assert_allclose(np.exp(combined), [expected], atol=1e-4)


def test_an_ensemble_is_the_mean_of_its_members_and_keeps_the_contract():
    models = members()
    ensemble = EnsembleSeq2Seq(models)
    assert ensemble.max_positions == 16
    whole = logits_of(ensemble, SOURCE, TARGET)
    single = [distributions(logits_of(model, SOURCE, TARGET)) for model in models]
    np.testing.assert_allclose(np.exp(whole), np.mean(single, axis=0), atol=1e-6)
    stepwise, attention = decode_by_steps(ensemble, SOURCE, TARGET)
    np.testing.assert_allclose(stepwise, whole, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(attention.sum(-1), 2 / 3, atol=1e-5)  # one has none
    several = np.repeat(TARGET, 2, axis=0)
    stepwise, _ = decode_by_steps(ensemble, SOURCE, several, copies=2)
    np.testing.assert_allclose(
        stepwise, logits_of(ensemble, np.repeat(SOURCE, 2, axis=0), several), atol=1e-5
    )


@pytest.mark.parametrize("combine", ["probabilities", "log_probs"])
def test_copies_of_one_model_are_that_model(combine):
    model = members()[0]
    ensemble = EnsembleSeq2Seq([model] * 3, combine=combine)
    log_probs = ops.log_softmax(logits_of(model, SOURCE, TARGET), axis=-1)
    np.testing.assert_allclose(
        logits_of(ensemble, SOURCE, TARGET), log_probs, atol=1e-5
    )


def test_an_ensemble_survives_saving(tmp_path):
    ensemble = EnsembleSeq2Seq(members(), combine="log_probs")
    before = logits_of(ensemble, SOURCE, TARGET)
    ensemble.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(logits_of(loaded, SOURCE, TARGET), before)


def test_members_must_fit_together():
    with pytest.raises(ValueError, match="at least one"):
        EnsembleSeq2Seq([])
    with pytest.raises(ValueError, match="combine='votes'"):
        EnsembleSeq2Seq([recurrent()], combine="votes")
    from keras_seq2seq.models import RecurrentSeq2Seq

    other = RecurrentSeq2Seq(5, 6, units=4, embedding_dim=4)
    with pytest.raises(ValueError, match=r"\(11, 11\), \(5, 6\)"):
        EnsembleSeq2Seq([recurrent(), other])
