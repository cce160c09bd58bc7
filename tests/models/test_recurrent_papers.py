"""The systems of the papers against their equations, written out in NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import LocalWindow, LocationScore, Readout
from keras_seq2seq.models import RecurrentSeq2Seq
from keras_seq2seq.models.presets import PRESETS
from tests.models.test_contract import SOURCE, TARGET, logits_of, spread_weights

VOCABULARY, UNITS, WIDTH = 11, 4, 5


def preset(name, **arguments):
    model = RecurrentSeq2Seq.from_preset(
        name,
        VOCABULARY,
        VOCABULARY,
        **{"units": UNITS, "embedding_dim": WIDTH, **arguments},
    )
    spread_weights(model)
    return model


def array(tensor):
    return ops.convert_to_numpy(tensor)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def maxout(x):
    return x.reshape(-1, 2).max(-1)


def dense(layer, x):
    y = x @ array(layer.kernel)
    return y if layer.bias is None else y + array(layer.bias)


def gates_of(layer, x):
    """A dense layer's product, cut into update, reset and candidate."""
    return np.split(dense(layer, x), 3)


def memory_of(model, source):
    """The memory of one source without padding, as arrays of that source."""
    memory = model.encode(source)
    return keras.tree.map_structure(lambda x: array(x)[0], memory)


def gru_before(cell, fed, x, h):
    """`h' = z h + (1 - z) tanh(x W + (r h) U + c C)` with all gates fed `c`."""
    z_x, r_x, n_x = gates_of(cell.input_projection, x)
    z_c, r_c, n_c = fed
    z_U, r_U = np.split(array(cell.recurrent_kernel), 2, axis=1)
    z = sigmoid(z_x + z_c + h @ z_U)
    r = sigmoid(r_x + r_c + h @ r_U)
    candidate = np.tanh(n_x + n_c + (r * h) @ array(cell.candidate_kernel))
    return z * h + (1 - z) * candidate


def bahdanau_logits(model, memory, target, variant):
    """Bahdanau et al., 2015, appendix A, step by step."""
    decoder = model.decoder
    cell, score = decoder.cells[0], decoder.score
    h = memory["values"]
    keys = h @ array(score.memory_projection.kernel)

    def look(s):
        hidden = np.tanh(s @ array(score.query_projection.kernel) + keys)
        return softmax(hidden @ array(score.vector)) @ h

    s, logits = memory["states"][0][0], []
    context = np.zeros(h.shape[1])
    for token in target:
        e = array(model.target_embedding(np.array([token])))[0]
        old = s
        if variant != "groundhog":
            context = look(s)
        s = gru_before(cell, gates_of(decoder.feedback, context), e, s)
        if variant == "groundhog":
            context = look(s)
        seen = old if variant == "bahdanau_appendix" else s
        o = maxout(dense(decoder.readout.sums, np.concatenate([seen, context, e])))
        logits.append(dense(model.output_projection, o))
    return np.stack(logits)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("bahdanau2015", "bahdanau"),
        ("bahdanau2015_appendix", "bahdanau_appendix"),
        ("bahdanau2015_groundhog", "groundhog"),
    ],
)
def test_bahdanau_equals_its_equations(name, variant):
    model = preset(name)
    source, target = SOURCE[:1], TARGET[:1]
    expected = bahdanau_logits(model, memory_of(model, source), target[0], variant)
    np.testing.assert_allclose(
        logits_of(model, source, target)[0], expected, atol=1e-5, rtol=1e-5
    )


def test_bahdanau_starts_from_the_backward_state_at_the_first_token():
    model = preset("bahdanau2015")
    encoder, state_layer = model.encoder_layers[0], model.bridge.state_layers[0][0]
    x = array(model.source_embedding(SOURCE[:1]))[0]
    cell, s = encoder.backward_cell, np.zeros(UNITS)
    for vector in x[::-1]:
        s = gru_before(cell, (0, 0, 0), vector, s)
    states = memory_of(model, SOURCE[:1])["states"]
    expected = np.tanh(dense(state_layer, s))
    np.testing.assert_allclose(states[0][0], expected, atol=1e-5)


def test_cho_equals_its_appendix():
    """c = tanh(h V), s_0 = tanh(c V'), the reset gate gates `s U + c C`."""
    model = preset("cho2014")
    decoder, cell = model.decoder, model.decoder.cells[0]
    x = array(model.source_embedding(SOURCE[:1]))[0]
    h = np.zeros(UNITS)
    for vector in x:
        h = gru_before(model.encoder_layers[0].forward_cell, (0, 0, 0), vector, h)
    c = np.tanh(dense(model.bridge.summary_layer, h))
    s = np.tanh(dense(model.bridge.state_layers[0][0], c))
    z_c, r_c, n_c = gates_of(decoder.feedback, c)
    z_b, r_b, n_b = np.split(array(cell.recurrent_bias), 3)
    z_U, r_U, n_U = np.split(array(cell.recurrent_kernel), 3, axis=1)
    expected = []
    for token in TARGET[0]:
        e = array(model.target_embedding(np.array([token])))[0]
        z_x, r_x, n_x = gates_of(cell.input_projection, e)
        z = sigmoid(z_x + z_c + s @ z_U + z_b)
        r = sigmoid(r_x + r_c + s @ r_U + r_b)
        s = z * s + (1 - z) * np.tanh(n_x + r * (s @ n_U + n_b + n_c))
        o = maxout(dense(decoder.readout.sums, np.concatenate([s, c, e])))
        expected.append(dense(model.output_projection, o))
    np.testing.assert_allclose(
        logits_of(model, SOURCE[:1], TARGET[:1])[0], expected, atol=1e-5, rtol=1e-5
    )


def lstm(cell, x, h, c):
    i, f, g, o = np.split(
        dense(cell.input_projection, x) + h @ array(cell.recurrent_kernel), 4
    )
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("window", [None, 2])
def test_luong_equals_its_equations(window, input_feeding):
    """General score, a predicted center, the Gaussian, [c; s] W and input feeding."""
    name = "luong2015" if window is None else "luong2015_local"
    options = {} if window is None else {"window": window}
    model = preset(
        name,
        num_encoder_layers=1,
        num_decoder_layers=1,
        input_feeding=input_feeding,
        **options,
    )
    decoder, memory = model.decoder, memory_of(model, SOURCE[:1])
    values = memory["values"]
    keys = values @ array(decoder.score.memory_projection.kernel)
    positions = np.arange(1, len(values) + 1)
    (h, c), vector = memory["states"][0], np.zeros(UNITS)
    expected = []
    for token in TARGET[0]:
        e = array(model.target_embedding(np.array([token])))[0]
        projected = dense(decoder.cells[0].input_projection, e)
        if input_feeding:
            projected = projected + vector @ array(decoder.feedback.kernel)
        i, f, g, o = np.split(
            projected + h @ array(decoder.cells[0].recurrent_kernel), 4
        )
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        scores = keys @ h
        if window is None:
            weights = softmax(scores)
        else:
            layer = decoder.window
            hidden = np.tanh(h @ array(layer.query_projection.kernel))
            center = len(values) * sigmoid(hidden @ array(layer.vector))
            inside = np.abs(positions - center) <= window
            weights = np.zeros(len(values))
            weights[inside] = softmax(scores[inside])
            weights *= np.exp(-((positions - center) ** 2) / (2 * (window / 2) ** 2))
        vector = np.tanh(
            dense(decoder.readout.sums, np.concatenate([weights @ values, h]))
        )
        expected.append(dense(model.output_projection, vector))
    np.testing.assert_allclose(
        logits_of(model, SOURCE[:1], TARGET[:1])[0], expected, atol=1e-5, rtol=1e-5
    )


def test_maxout_keeps_the_larger_of_neighbours():
    """maxout(1, 4, 3, 2) = (4, 3): adjacent pairs, not halves."""
    readout = Readout(2, "maxout", use_bias=False)
    readout.build((None, 4))
    readout.sums.kernel.assign(np.eye(4))
    np.testing.assert_allclose(readout(np.array([[1.0, 4.0, 3.0, 2.0]])), [[4.0, 3.0]])


def test_the_fixed_context_alone_reaches_the_readout_at_every_step():
    """With no weights from state and token, logits are the same at each step."""
    model = preset("cho2014")
    kernel = array(model.decoder.readout.sums.kernel).copy()
    kernel[:UNITS] = 0  # the state
    kernel[2 * UNITS :] = 0  # the token
    model.decoder.readout.sums.kernel.assign(kernel)
    logits = logits_of(model, SOURCE, TARGET)
    np.testing.assert_allclose(
        logits, np.broadcast_to(logits[:, :1], logits.shape), atol=1e-6
    )
    context = array(model.encode(SOURCE)["context"])
    sums = context @ kernel[UNITS : 2 * UNITS] + array(model.decoder.readout.sums.bias)
    expected = np.stack([dense(model.output_projection, maxout(row)) for row in sums])
    np.testing.assert_allclose(logits[:, 0], expected, atol=1e-5)
    assert np.abs(logits[0] - logits[1]).max() > 1e-3


def test_without_token_vectors_the_prefix_changes_nothing():
    model = preset("cho2014")
    model.target_embedding.embeddings.assign(np.zeros((VOCABULARY, WIDTH)))
    other = TARGET.copy()
    other[:, 1:] = 10
    np.testing.assert_array_equal(
        logits_of(model, SOURCE, TARGET), logits_of(model, SOURCE, other)
    )


def test_cho_without_its_context_is_a_plain_gru_decoder():
    model = preset("cho2014_groundhog")
    model.decoder.feedback.kernel.assign(np.zeros((UNITS, 3 * UNITS)))
    state, expected = memory_of(model, SOURCE[:1])["states"][0][0], []
    for token in TARGET[0]:
        e = array(model.target_embedding(np.array([token])))[0]
        state = gru_before(model.decoder.cells[0], (0, 0, 0), e, state)
        expected.append(state)
    memory = model.encode(SOURCE[:1])
    current = model.initial_state(memory)
    for token, wanted in zip(TARGET[0], expected, strict=True):
        _, current, _ = model.step(ops.convert_to_tensor([token]), memory, current)
        np.testing.assert_allclose(array(current["cells"][0][0])[0], wanted, atol=1e-5)


def test_bahdanau_with_one_context_is_the_encoder_decoder():
    """All annotations equal to the last state: the model of a fixed context."""
    attending = preset("bahdanau2015", bidirectional=False, bridge="state")
    fixed = preset("cho2014_groundhog")
    fixed.decoder.cells[0].set_weights(attending.decoder.cells[0].get_weights())
    for name in ("feedback", "readout"):
        weights = getattr(attending.decoder, name).get_weights()
        getattr(fixed.decoder, name).set_weights(weights)
    for name in ("target_embedding", "output_projection"):
        getattr(fixed, name).set_weights(getattr(attending, name).get_weights())
    plain = fixed.encode(SOURCE)
    memory = dict(attending.encode(SOURCE))
    shape = memory["values"].shape
    memory["values"] = np.broadcast_to(array(plain["context"])[:, None], shape)
    memory["states"] = plain["states"]
    np.testing.assert_allclose(
        attending.decode(TARGET, memory), fixed.decode(TARGET, plain), atol=1e-5
    )


def test_attention_is_uniform_where_its_vector_is_zero():
    """At the paper's start, v = 0: each real token has the weight 1/|x|."""
    model = preset("bahdanau2015")
    model.decoder.score.vector.assign(np.zeros(UNITS))
    memory = model.encode(SOURCE)
    state = model.initial_state(memory)
    _, _, weights = model.step(TARGET[:, 0], memory, state)
    real = SOURCE != 0
    np.testing.assert_allclose(weights, real / real.sum(-1, keepdims=True), atol=1e-7)


def test_permuted_annotations_permute_the_attention_only():
    model = preset("bahdanau2015")
    memory = model.encode(SOURCE[:1])
    order = np.array([3, 0, 5, 1, 4, 2])
    other = dict(memory)
    for name in ("values", "keys"):
        other[name] = array(memory[name])[:, order]
    state = model.initial_state(memory)
    logits, _, weights = model.step(TARGET[:1, 0], memory, state)
    logits2, _, weights2 = model.step(TARGET[:1, 0], other, state)
    np.testing.assert_allclose(logits, logits2, atol=1e-5)
    np.testing.assert_allclose(array(weights)[:, order], weights2, atol=1e-6)


def test_input_feeding_with_no_weights_is_no_input_feeding():
    fed, plain = preset("luong2015"), preset("luong2015", input_feeding=False)
    fed.decoder.feedback.kernel.assign(np.zeros((UNITS, 4 * UNITS)))
    for layer, other in zip(fed.decoder.cells, plain.decoder.cells, strict=True):
        other.set_weights(layer.get_weights())
    plain.decoder.readout.set_weights(fed.decoder.readout.get_weights())
    plain.decoder.score.set_weights(fed.decoder.score.get_weights())
    for name in ("source_embedding", "target_embedding", "output_projection"):
        getattr(plain, name).set_weights(getattr(fed, name).get_weights())
    for layer, other in zip(fed.encoder_layers, plain.encoder_layers, strict=True):
        other.set_weights(layer.get_weights())
    np.testing.assert_allclose(
        logits_of(fed, SOURCE, TARGET), logits_of(plain, SOURCE, TARGET), atol=1e-5
    )


def test_tied_concat_is_concat_with_the_identity():
    tied = preset("luong2015", attention="tied_additive")
    untied = preset("luong2015", attention="additive")
    score, other = tied.decoder.score, untied.decoder.score
    other.memory_projection.kernel.assign(np.eye(UNITS))
    other.query_projection.set_weights(score.query_projection.get_weights())
    other.vector.assign(score.vector)
    query, memory = np.ones((1, 2, UNITS)), np.arange(12.0).reshape(1, 3, 4) / 10
    np.testing.assert_allclose(
        score(query, score.project_memory(memory)),
        other(query, other.project_memory(memory)),
        atol=1e-6,
    )


def test_a_zero_projection_centers_the_window_in_the_middle():
    """W = 0: p = S / 2, and the Gaussian falls to e^-2 at the window's edge."""
    window = LocalWindow(2)
    window.build((None, None, UNITS))
    window.query_projection.kernel.assign(np.zeros((UNITS, UNITS)))
    mask = np.array([[True] * 6 + [False] * 2])
    near, factor = window(np.ones((1, 1, UNITS), "float32"), mask)
    assert array(near)[0, 0].tolist() == [True] * 5 + [False] * 3  # 1..5 around 3
    np.testing.assert_allclose(
        array(factor)[0, 0, :5], np.exp([-2, -0.5, 0, -0.5, -2]), atol=1e-6
    )
    assert np.exp(-2) == pytest.approx(0.1353, abs=1e-4)


def test_the_gaussian_is_not_normalised_again():
    """S=3, equal scores, center 2, D=2: (.2022, .3333, .2022), sum .7377."""
    model = preset("luong2015_local", window=2)
    decoder = model.decoder
    decoder.score.memory_projection.kernel.assign(np.zeros((UNITS, UNITS)))
    # S * sigmoid(v tanh(q W)) = 2: sigmoid must be 2/3, its argument ln 2.
    decoder.window.query_projection.kernel.assign(np.eye(UNITS))
    decoder.window.vector.assign([1.0, 0, 0, 0])
    query = np.array([[[np.arctanh(np.log(2)), 0, 0, 0]]], "float32")
    memory = {
        "attention_mask": np.ones((1, 3), bool),
        "keys": np.zeros((1, 3, UNITS), "float32"),
        "values": np.ones((1, 3, UNITS), "float32"),
    }
    context, weights = decoder.look(query, memory)
    np.testing.assert_allclose(
        array(weights)[0, 0], [0.2022, 0.3333, 0.2022], atol=1e-4
    )
    np.testing.assert_allclose(array(context)[0, 0], [0.7377] * UNITS, atol=2e-4)


def test_a_wide_monotonic_window_is_global_attention():
    wide = preset("luong2015_local", window=20, window_center="monotonic")
    everywhere = preset("luong2015")
    everywhere.set_weights(wide.get_weights())
    np.testing.assert_allclose(
        logits_of(wide, SOURCE, TARGET),
        logits_of(everywhere, SOURCE, TARGET),
        atol=1e-6,
    )


def test_a_monotonic_window_follows_the_target_and_stops_at_the_end():
    """p = min(t, S) with S the row's own length, padding apart."""
    window = LocalWindow(1, "monotonic")
    mask = np.array([[True, True, True, False, False]])
    window.build((None, None, UNITS))
    query, positions = np.zeros((1, 4, UNITS)), np.array([[0, 1, 2, 3]])
    near, factor = window(query, mask, positions)
    assert factor is None
    inside = np.logical_and(array(near)[0], mask)
    assert inside.astype(int).tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
    ]


def test_a_windows_weights_move_with_the_gaussian_only():
    """The edge of the window is no function of W; the Gaussian is."""
    model = preset("luong2015_local", window=2)
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,
    )
    before = array(model.decoder.window.vector).copy()
    model.train_on_batch({"source_ids": SOURCE, "target_ids": TARGET}, TARGET)
    assert np.abs(array(model.decoder.window.vector) - before).max() > 0


def test_location_scores_come_from_the_state_alone():
    score = LocationScore(3)
    score.build((None, None, 2), (None, None, 4))
    score.kernel.assign([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]])
    query = np.array([[[1.0, 1.0]]], "float32")
    short = score(query, np.zeros((1, 2, 4), "float32"))
    np.testing.assert_allclose(short, [[[1.0, 2.0]]])
    longer = array(score(query, np.ones((1, 5, 4), "float32")))
    np.testing.assert_allclose(longer[0, 0, :3], [1.0, 2.0, 4.0])
    assert (longer[0, 0, 3:] < -1000).all()


def test_end_can_be_left_out_of_the_attention():
    model = preset("luong2015", attend_end=False)
    memory = model.encode(SOURCE)
    assert array(memory["attention_mask"]).astype(int).tolist() == [
        [1, 1, 1, 1, 1, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
    ]


def test_the_presets_reverse_where_the_papers_do():
    """Sutskever et al., section 3.3; Luong et al., table 1."""
    reversing = {
        name for name in RecurrentSeq2Seq.presets if preset(name).reverse_source
    }
    assert reversing == {"sutskever2014", "luong2015", "luong2015_local"}


def test_reversal_keeps_end_and_padding_and_undoes_itself():
    model = preset("sutskever2014")
    mask = SOURCE != 0
    order = array(model._reversal(SOURCE, mask))
    once = np.take_along_axis(SOURCE, order, axis=1)
    assert once.tolist() == [
        [9, 4, 7, 6, 5, 3],
        [4, 8, 3, 0, 0, 0],
        [10, 3, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(np.take_along_axis(once, order, axis=1), SOURCE)


def test_memory_of_a_reversed_source_stands_in_the_order_of_the_text():
    options = {"units": UNITS, "embedding_dim": WIDTH, "bidirectional": False}
    model = RecurrentSeq2Seq(VOCABULARY, VOCABULARY, reverse_source=True, **options)
    spread_weights(model)
    values = array(model.encode(SOURCE)["values"])
    for row, length in enumerate((6, 3, 2)):
        order = [*range(length - 1)][::-1] + [length - 1]
        ids = SOURCE[row : row + 1, order]
        outputs, _ = model.encoder_layers[0](model.source_embedding(ids), ids != 0)
        expected = array(outputs)[0, order]
        np.testing.assert_allclose(values[row, :length], expected, atol=1e-6)


def test_sutskever_hands_each_layers_states_to_the_same_layer():
    model = preset("sutskever2014")
    states = memory_of(model, SOURCE[:1])["states"]
    x = array(model.source_embedding(SOURCE[:1, [4, 3, 2, 1, 0, 5]]))[0]
    for layer, (hidden, cell_state) in zip(model.encoder_layers, states, strict=True):
        h, c, outputs = np.zeros(UNITS), np.zeros(UNITS), []
        for vector in x:
            h, c = lstm(layer.forward_cell, vector, h, c)
            outputs.append(h)
        x = np.stack(outputs)
        np.testing.assert_allclose(hidden, h, atol=1e-5)
        np.testing.assert_allclose(cell_state, c, atol=1e-5)


def test_a_single_token_is_its_own_reversal():
    forwards, backwards = (
        preset("sutskever2014", reverse_source=reverse) for reverse in (False, True)
    )
    backwards.set_weights(forwards.get_weights())
    source = np.array([[7, 3, 0]], "int32")
    np.testing.assert_array_equal(
        logits_of(forwards, source, TARGET[:1]),
        logits_of(backwards, source, TARGET[:1]),
    )


def test_the_input_bridge_feeds_the_summary_once_and_starts_at_zero():
    model = preset("sutskever2014", bridge="input", num_encoder_layers=1)
    memory = model.encode(SOURCE)
    for states in memory["states"]:
        for state in states:
            assert not array(state).any()
    other = TARGET.copy()
    other[:, 0] = 9  # the first token is not read
    np.testing.assert_array_equal(
        logits_of(model, SOURCE, TARGET), logits_of(model, SOURCE, other)
    )


def test_the_mean_summary_is_over_real_tokens():
    model = preset("cho2014_groundhog", summary="mean")
    context = array(model.encode(SOURCE)["context"])
    alone = array(model.encode(SOURCE[1:2, :3])["context"])
    np.testing.assert_allclose(context[1:2], alone, atol=1e-6)
    states = preset("cho2014_groundhog")
    assert not np.allclose(context, array(states.encode(SOURCE)["context"]))


def test_the_global_norm_of_the_gradient_is_clipped():
    """g = (30, 40), threshold 5: (3, 4), both variables by one factor."""
    variables = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = keras.optimizers.SGD(1.0, global_clipnorm=5.0)
    gradients = [ops.convert_to_tensor([30.0]), ops.convert_to_tensor([40.0])]
    optimizer.apply(gradients, variables)
    np.testing.assert_allclose([-array(v)[0] for v in variables], [3, 4], atol=1e-5)


def test_presets_only_set_what_the_class_takes():
    for name in PRESETS:
        model = preset(name)
        config = model.get_config()
        for key, value in PRESETS[name].items():
            assert config[key] == value


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"preset='luong15'.*'luong2015'"):
        RecurrentSeq2Seq.from_preset("luong15", VOCABULARY, VOCABULARY)
