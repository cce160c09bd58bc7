"""What the paper says of the Transformer as a whole; the rest is in test_contract."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.losses import TokenCrossEntropy
from keras_seq2seq.models import TransformerSeq2Seq
from keras_seq2seq.trainer import set_mean_weights
from tests.helpers import check_step_matches_call

VOCABULARY, DIM = 11, 8
SOURCE = np.array([[5, 6, 7, 4, 9, 3], [8, 4, 10, 6, 7, 3]], "int32")
TARGET = np.array([[2, 4, 5, 9, 6], [2, 6, 7, 8, 4]], "int32")
VARIANTS = {
    "sinusoidal": {},
    "learned": {"positions": "learned"},
    "rotary": {"positions": "rotary"},
    "none": {"positions": "none"},
    "window": {"window": 3},
    "additive": {"attention_score": "additive"},
}


def make(**options):
    model = TransformerSeq2Seq(
        VOCABULARY,
        VOCABULARY,
        **{
            "dim": DIM,
            "num_heads": 2,
            "feedforward_dim": 12,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "dropout": 0.0,
            "max_positions": 16,
            **options,
        },
    )
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(generator.normal(0, 0.5, weight.shape))
    return model


def logits_of(model, source, target):
    inputs = {"source_ids": source, "target_ids": target}
    return ops.convert_to_numpy(model(inputs, training=False))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_later_target_tokens_change_no_bit_of_earlier_logits(variant, norm):
    model = make(norm=norm, **VARIANTS[variant])
    before = logits_of(model, SOURCE, TARGET)
    for place in range(1, TARGET.shape[1]):
        other = TARGET.copy()
        other[:, place:] = 10
        after = logits_of(model, SOURCE, other)
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert (after[:, place] != before[:, place]).any()


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_steps_give_the_logits_of_the_whole(variant, norm):
    model = make(norm=norm, **VARIANTS[variant])
    check_step_matches_call(model, SOURCE, TARGET)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "window"])
def test_only_positions_tell_the_encoder_about_order(variant):
    options = (
        {"positions": "none", **VARIANTS[variant]} if variant == "additive" else {}
    )
    model = make(**(options or VARIANTS[variant]))
    order = [3, 0, 4, 1, 5, 2]
    values = ops.convert_to_numpy(model.encode(SOURCE)["values"])[:, order]
    shuffled = ops.convert_to_numpy(model.encode(SOURCE[:, order])["values"])
    if model.get_config()["positions"] == "none":
        np.testing.assert_allclose(shuffled, values, atol=1e-5)
    else:
        assert np.abs(shuffled - values).max() > 1e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_silent_sublayers_leave_the_normalised_embeddings(norm):
    model = make(norm=norm, positions="none")
    for weight in model.trainable_weights:
        last = weight.path.split("/")
        if {"output_projection", "outer"} & set(last) or last[-1] == "beta":
            weight.assign(np.zeros(weight.shape))
        if last[-1] == "gamma":
            weight.assign(np.ones(weight.shape))
    table = ops.convert_to_numpy(model.source_embedding.embeddings)
    x = table[SOURCE] * np.sqrt(DIM)
    expected = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    np.testing.assert_allclose(model.encode(SOURCE)["values"], expected, atol=1e-4)


def changes_of_one_update(model):
    """What an update of rate 1 takes away from each weight: its gradient."""
    before = [ops.convert_to_numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(1.0), TokenCrossEntropy(), run_eagerly=True)
    labels = np.roll(TARGET, -1, axis=1)
    model.train_on_batch({"source_ids": SOURCE, "target_ids": TARGET}, labels)
    after = [ops.convert_to_numpy(weight) for weight in model.trainable_weights]
    return {
        weight.path: old - new
        for weight, old, new in zip(model.trainable_weights, before, after, strict=True)
    }


def test_gradient_of_tied_weights_is_the_sum_over_their_uses():
    tied = make(share_embeddings=True, norm="pre")
    apart = make(tie_output=False, norm="pre")
    table = tied.target_embedding.embeddings
    assert tied.source_embedding is tied.target_embedding
    others = {w.path: w for w in tied.trainable_weights}
    for weight in apart.trainable_weights:
        path = weight.path
        if path.endswith("embeddings"):
            weight.assign(table)
        elif path == "output_projection/kernel":
            weight.assign(ops.transpose(table))
        elif path == "output_projection/bias":
            weight.assign(np.zeros(weight.shape))
        else:
            weight.assign(others[path])
    np.testing.assert_allclose(
        logits_of(tied, SOURCE, TARGET), logits_of(apart, SOURCE, TARGET), atol=1e-5
    )
    whole, parts = changes_of_one_update(tied), changes_of_one_update(apart)
    uses = [
        parts["source_embedding/embeddings"],
        parts["target_embedding/embeddings"],
        parts["output_projection/kernel"].T,
    ]
    assert min(np.abs(use).max() for use in uses) > 1e-3
    np.testing.assert_allclose(
        whole["target_embedding/embeddings"], sum(uses), atol=1e-6
    )


def parameters(dim, inner, layers, vocabulary, norms):
    """The formula: biases everywhere, one table for both sides and the output."""
    attention = 4 * dim**2 + 4 * dim
    feedforward = 2 * dim * inner + inner + dim
    block = attention + feedforward + 2 * 2 * dim
    decoder_block = block + attention + 2 * dim
    return vocabulary * dim + layers * (block + decoder_block) + norms * 2 * dim


def count_without_memory(**arguments):
    """Parameters of a model whose variables have shapes and no values."""
    with keras.StatelessScope(initialize_variables=False):
        model = TransformerSeq2Seq(37000, 37000, share_embeddings=True, **arguments)
    count = model.count_params()
    keras.utils.clear_session()  # nothing shall give them values later
    return count


BIG = {"dim": 1024, "num_heads": 16, "feedforward_dim": 4096}


def test_published_sizes_have_the_parameters_of_the_paper():
    """Table 3 says 65 and 213 million, for 37,000 pieces of vocabulary."""
    assert parameters(512, 2048, 6, 37000, 0) == 63_082_496
    assert count_without_memory() == 63_082_496
    assert count_without_memory(norm="pre") == 63_082_496 + 4 * 512
    assert parameters(1024, 4096, 6, 37000, 0) == 214_245_376
    assert count_without_memory(**BIG) == 214_245_376
    # Neither rotations nor a window have weights.
    assert count_without_memory(positions="rotary", window=9) == 63_082_496


def test_caches_of_a_window_are_as_long_as_it():
    model = make(window=3)
    memory = model.encode(SOURCE)
    for length, expected in ((2, 2), (3, 3), (100, 3)):
        state = model.initial_state(memory, length)
        assert state["layers"][1]["keys"].shape == (2, 2, expected, DIM // 2)


def test_a_wide_window_is_the_full_model():
    full, wide = make(), make(window=12)
    wide.set_weights(full.get_weights())
    np.testing.assert_allclose(
        logits_of(wide, SOURCE, TARGET), logits_of(full, SOURCE, TARGET), atol=1e-5
    )
    narrow = make(window=3)
    narrow.set_weights(full.get_weights())
    difference = logits_of(narrow, SOURCE, TARGET) - logits_of(full, SOURCE, TARGET)
    assert np.abs(difference).max() > 1e-2


def test_mean_of_equal_checkpoints_is_each_of_them_and_of_two_the_midpoint(tmp_path):
    model = make(norm="pre")
    first = model.get_weights()
    model.save_weights(tmp_path / "first.weights.h5")
    generator = np.random.default_rng(1)
    second = [w + generator.normal(size=w.shape).astype("float32") for w in first]
    model.set_weights(second)
    model.save_weights(tmp_path / "second.weights.h5")
    one, other = tmp_path / "first.weights.h5", tmp_path / "second.weights.h5"

    set_mean_weights(model, [one, one, one])
    for found, expected in zip(model.get_weights(), first, strict=True):
        np.testing.assert_array_equal(found, expected)
    set_mean_weights(model, [one, other])
    for found, a, b in zip(model.get_weights(), first, second, strict=True):
        np.testing.assert_allclose(found, (a + b) / 2, atol=1e-6)
