"""What the contract does not ask of minGRU and minLSTM: states, sizes, search."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import generate
from keras_seq2seq.models import MinimalRecurrentSeq2Seq

VOCABULARY, START, END = 11, 2, 3
SOURCE = np.array([[5, 6, 7, 4, END], [8, 4, END, 0, 0]], "int32")
CASES = {
    "mingru": {"cell": "mingru"},
    "minlstm": {"cell": "minlstm"},
    "mingru-none": {"cell": "mingru", "attention": "none"},
    "minlstm-none": {"cell": "minlstm", "attention": "none"},
}


def make(name="mingru", **options):
    keras.utils.set_random_seed(4)
    sizes = {"dim": 8, "feedforward_dim": 12, "num_heads": 2}
    model = MinimalRecurrentSeq2Seq(
        VOCABULARY, VOCABULARY, **{**sizes, **CASES[name], **options}
    )
    # Larger weights, so that answers differ between sources.
    model.set_weights([3 * weight for weight in model.get_weights()])
    return model


def numpy(x):
    return ops.convert_to_numpy(x)


@pytest.fixture(params=CASES)
def model(request):
    return make(request.param)


def test_state_is_one_positive_float32_vector_a_layer_whatever_the_length(model):
    memory = model.encode(SOURCE)
    for length in (1, 500):
        state = model.initial_state(memory, length)
        assert [tuple(x.shape) for x in keras.tree.flatten(state)] == [(2, 12)] * 2
    for token in (START, 7, 9):
        tokens = np.full((2,), token, "int32")
        _, state, _ = model.step(tokens, memory, state)
        for layer in state["layers"]:
            assert tuple(layer.shape) == (2, 12)
            assert keras.backend.standardize_dtype(layer.dtype) == "float32"
            assert numpy(layer).min() >= 0


def test_without_attention_the_first_states_are_positive_and_know_the_source():
    model = make("mingru-none")
    first, second = (
        numpy(model.initial_state(model.encode(source))["layers"][0])
        for source in (SOURCE, SOURCE[:, :2])
    )
    assert first.min() > 0
    assert np.abs(first[0] - second[0]).max() > 1e-3
    np.testing.assert_array_equal(
        make("mingru").initial_state(make("mingru").encode(SOURCE))["layers"][0],
        np.full((2, 12), 0.5),
    )


@pytest.mark.parametrize("bidirectional", [False, True])
def test_only_a_bidirectional_encoder_sees_what_follows(bidirectional):
    model = make(bidirectional=bidirectional, num_decoder_layers=1)
    changed = SOURCE.copy()
    changed[0, 3] = 9
    before, after = (
        numpy(model.encode(source)["layers"][0]["values"])[0, :, :3]
        for source in (SOURCE, changed)
    )
    assert (np.abs(before - after).max() > 1e-4) == bidirectional


def test_greedy_search_takes_the_best_token_of_the_whole_call(model):
    found = generate(model, SOURCE, max_length=6, banned_ids=())
    assert found.lengths.min() >= 1
    for row in range(2):
        ids = [START]
        for _ in range(int(found.lengths[row, 0])):
            target = np.array([ids], "int32")
            source = SOURCE[row : row + 1]
            logits = model({"source_ids": source, "target_ids": target})
            ids.append(int(numpy(logits)[0, -1].argmax()))
        np.testing.assert_array_equal(found.ids[row, 0, : len(ids) - 1], ids[1:])


def test_beam_search_scores_are_those_of_the_whole_call(model):
    found = generate(model, SOURCE, max_length=5, num_beams=3, length_penalty=0.0)
    for row in range(2):
        length = int(found.lengths[row, 0])
        answer = found.ids[row, 0, :length]
        ids = np.concatenate([[START], answer[:-1]]).astype("int32")[None]
        source = SOURCE[row : row + 1]
        logits = numpy(model({"source_ids": source, "target_ids": ids}))[0]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        total = log_probs[np.arange(length), answer].sum()
        assert found.scores[row, 0] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_stays_finite_and_close_over_long_targets(policy):
    single, half = make(), make(dtype=policy)
    half.set_weights(single.get_weights())
    generator = np.random.default_rng(0)
    target = generator.integers(4, VOCABULARY, (2, 200)).astype("int32")
    inputs = {"source_ids": SOURCE, "target_ids": target}
    found, expected = numpy(half(inputs)), numpy(single(inputs))
    assert found.dtype == "float32"
    close = 0.02 if policy == "mixed_float16" else 0.1
    assert np.abs(found - expected).mean() < close * np.abs(expected).mean()


@pytest.mark.parametrize(("cell", "gates"), [("mingru", 2), ("minlstm", 3)])
@pytest.mark.parametrize("attention", ["scaled_dot", "none"])
def test_parameters_are_as_many_as_the_formulas_say(cell, gates, attention):
    dim, units, inner = 8, 12, 20
    model = MinimalRecurrentSeq2Seq(
        VOCABULARY,
        VOCABULARY,
        cell=cell,
        dim=dim,
        num_encoder_layers=1,
        num_decoder_layers=1,
        feedforward_dim=inner,
        num_heads=2,
        attention=attention,
    )
    recurrence = gates * (dim * units + units)
    feedforward = 2 * dim * inner + inner + dim
    encoder = 2 * recurrence + 2 * units * dim + dim + feedforward + 2 * dim
    decoder = recurrence + units * dim + dim + feedforward + 2 * dim
    expected = 2 * VOCABULARY * dim + encoder + decoder + 2 * dim  # final norms
    if attention == "none":
        expected += 2 * dim * units + units
    else:
        expected += 4 * dim * dim + 4 * dim + dim
    assert model.count_params() == expected


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="XLA of TensorFlow")
def test_fit_under_xla_equals_eager():
    weights = []
    for options in ({"jit_compile": True}, {"run_eagerly": True}):
        model = make("minlstm", dropout=0.0)
        before = model.get_weights()
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **options,
        )
        target = np.array([[START, 5, 6, 7], [START, 9, 4, 0]], "int32")
        inputs = {"source_ids": SOURCE, "target_ids": target}
        model.fit(inputs, np.roll(target, -1, axis=1), verbose=0)
        weights.append(model.get_weights())
    for compiled, eager, old in zip(*weights, before, strict=True):
        assert np.abs(eager - old).max() > 0
        np.testing.assert_allclose(compiled, eager, atol=1e-4)
