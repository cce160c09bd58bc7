"""What the models share beyond the contract: tables of tokens, logits, files."""

import h5py
import keras
import numpy as np
import pytest
from keras import ops

from tests.models.test_contract import (
    SOURCE,
    TARGET,
    convolutional,
    logits_of,
    minimal,
    recurrent,
    spread_weights,
    transformer,
)

# Names in model files come from classes and order: where each model keeps its tables.
TABLES = {
    transformer: {"target": "token_embedding", "source": "token_embedding_1"},
    recurrent: {"target": "token_embedding", "source": "embedding"},
    convolutional: {"target": "token_embedding", "source": "token_embedding_1"},
    minimal: {"target": "token_embedding", "source": "token_embedding_1"},
}


@pytest.mark.parametrize("make", TABLES)
@pytest.mark.parametrize("shared", [False, True])
def test_token_tables_keep_their_places_in_files(make, shared, tmp_path):
    model = make(share_embeddings=shared)
    assert (model.source_embedding is model.target_embedding) == shared
    file = tmp_path / "model.weights.h5"
    model.save_weights(file)
    with h5py.File(file) as weights:
        found = {name: weights[f"layers/{name}/vars/0"][:] for name in tables(weights)}
    expected = {"target"} if shared else {"target", "source"}
    assert set(found) == {TABLES[make][side] for side in expected}
    for side in expected:
        table = getattr(model, f"{side}_embedding").embeddings
        np.testing.assert_array_equal(found[TABLES[make][side]], table)


def tables(weights):
    return [name for name in weights["layers"] if "embedding" in name]


@pytest.mark.parametrize("make", TABLES)
def test_tables_of_both_sides_start_apart_and_with_one_spread(make):
    keras.utils.set_random_seed(3)
    model = make()
    source, target = (
        ops.convert_to_numpy(layer.embeddings)
        for layer in (model.source_embedding, model.target_embedding)
    )
    assert np.abs(source - target).max() > 0.01
    stddev = 0.1 if make is convolutional else 8**-0.5
    for table in (source, target):
        assert table.std() == pytest.approx(stddev, rel=0.25)


@pytest.mark.parametrize("make", TABLES)
def test_tied_logits_are_products_with_the_target_table(make):
    model = make(tie_output=True)
    spread_weights(model)
    assert model.output_projection is None
    before = logits_of(model, SOURCE, TARGET)
    # A token that is not in the source or the target matters to its own logit only.
    table = ops.convert_to_numpy(model.target_embedding.embeddings)
    table[1] *= 2
    model.target_embedding.embeddings.assign(table)
    after = logits_of(model, SOURCE, TARGET)
    bias = 0.0
    if make is convolutional:
        bias = float(model.output_bias[1])
    np.testing.assert_allclose(
        after[..., 1] - bias, 2 * (before[..., 1] - bias), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(np.delete(after, 1, -1), np.delete(before, 1, -1))
    assert after.dtype == np.float32
