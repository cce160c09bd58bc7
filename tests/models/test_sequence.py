"""The plain recurrent networks over vectors: hand calculations and twins."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import GRUCell
from keras_seq2seq.models import ManyToMany, ManyToOne, OneToMany
from keras_seq2seq.models.vectors import (
    RecurrentStack,
    feed_back,
    last_real,
    run_until,
    weighted_mean,
)

KINDS = [("simple", True), ("gru", True), ("gru", False), ("lstm", True)]
X = np.random.default_rng(3).normal(size=(3, 5, 2)).astype("float32")
LENGTHS = [5, 3, 1]
MASK = np.arange(5) < np.array(LENGTHS)[:, None]


def numbers(tensor):
    return ops.convert_to_numpy(tensor)


def spread(model, seed=0):
    """Gives every weight values large enough for an error to show."""
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(generator.normal(0, 0.5, weight.shape))
    return model


def options(kind, **others):
    cell, reset_after = kind
    return {"cell": cell, "reset_after": reset_after, "units": 4, **others}


def test_output_fed_back_to_a_linear_cell_doubles():
    """h = h + x, y = h, x_1 = 1, h_0 = 0: 1, 2, 4, 8, 16."""

    def step(x, states):
        hidden = states[0] + x
        return hidden, [hidden]

    one, zero = np.ones((1, 1), "float32"), np.zeros((1, 1), "float32")
    outputs, _ = feed_back(step, ops.convert_to_tensor(one), [zero], 5)
    np.testing.assert_allclose(numbers(outputs)[0, :, 0], [1, 2, 4, 8, 16])


def test_one_to_many_reads_its_input_once():
    """A tanh cell near zero is linear: doubling again, from a tiny input."""
    model = OneToMany(1, 1, cell="simple", units=1, length=5)
    cell = model.cells[0]
    cell.input_projection.kernel.assign([[1.0]])
    cell.recurrent_kernel.assign([[1.0]])
    model.output_map.kernel.assign([[1.0]])
    assert model.feedback_map is None
    outputs = numbers(model(np.full((1, 1), 1e-4, "float32")))
    np.testing.assert_allclose(outputs[0, :, 0], 1e-4 * 2.0 ** np.arange(5), rtol=1e-4)


def test_many_to_one_and_synced_simple_cell_by_hand():
    """W = 1, U = .5, b = 0, x = 1, 1: h = tanh 1, tanh(1 + .5 tanh 1)."""
    ones = {"source": np.ones((1, 2, 1), "float32")}
    for network, expected in (
        (ManyToMany, [0.761594, 0.881130]),
        (ManyToOne, [0.881130]),
    ):
        model = network(1, 1, cell="simple", units=1)
        cell = model.stack.recurrent_layers[0].forward_cell
        cell.input_projection.kernel.assign([[1.0]])
        cell.recurrent_kernel.assign([[0.5]])
        model.output_map.kernel.assign([[1.0]])
        np.testing.assert_allclose(numbers(model(ones)).ravel(), expected, atol=1e-6)


@pytest.mark.parametrize(("after", "inner"), [(False, [0, 1]), (True, [2, 0])])
def test_reset_before_and_after_are_different_functions(after, inner):
    """h = (1, 2), r = (1, 0), U = [[0, 1], [1, 0]], no input: (0, 1) and (2, 0)."""
    cell = GRUCell(2, reset_after=after)
    cell.build((None, None, 1))
    swap = np.array([[0, 1], [1, 0]], "float32")
    if after:
        cell.recurrent_kernel.assign(np.pad(swap, ((0, 0), (4, 0))))
    else:
        cell.recurrent_kernel.assign(np.zeros((2, 4)))
        cell.candidate_kernel.assign(swap)
    projected = np.array([[-40, -40, 40, -40, 0, 0]], "float32")  # z 0; r (1, 0)
    (found,) = cell(projected, [np.array([[1.0, 2.0]], "float32")])
    np.testing.assert_allclose(numbers(found), [np.tanh(inner)], atol=1e-6)


def gru_with_update(update, x, hidden, z, w, u):
    """A NumPy GRU without reset; `update` A keeps h by z, B by 1 - z."""
    gate = 1 / (1 + np.exp(-(x * z[0] + hidden * z[1] + z[2])))
    candidate = np.tanh(x * w + hidden * u)
    keep = gate if update == "A" else 1 - gate
    return keep * hidden + (1 - keep) * candidate


def test_update_gate_keeps_as_cho_and_is_bahdanaus_with_its_sign_turned():
    gates = (0.7, -0.4, 0.3)
    cell = GRUCell(1, reset_after=False)
    cell.build((None, None, 1))
    cell.input_projection.kernel.assign([[gates[0], 0.0, 0.9]])
    cell.input_projection.bias.assign([gates[2], 40.0, 0.0])  # reset 1
    cell.recurrent_kernel.assign([[gates[1], 0.0]])
    cell.candidate_kernel.assign([[-0.6]])
    projected = cell.project_inputs(np.array([[0.5]], "float32"))
    (found,) = cell(projected, [np.array([[0.8]], "float32")])
    case = (0.5, 0.8)
    a = gru_with_update("A", *case, gates, 0.9, -0.6)
    b = gru_with_update("B", *case, [-gate for gate in gates], 0.9, -0.6)
    assert a == pytest.approx(b)
    np.testing.assert_allclose(numbers(found), [[a]], atol=1e-6)


def test_update_gate_that_keeps_holds_the_state():
    model = spread(ManyToMany(2, 4, **options(("gru", True))))
    cell = model.stack.recurrent_layers[0].forward_cell
    cell.input_projection.bias.assign([60.0] * 4 + [0.0] * 8)
    start = np.random.default_rng(1).normal(size=(3, 4)).astype("float32")
    states = [[ops.convert_to_tensor(start)]]
    for position in range(5):
        _, states = model.step(X[:, position], states)
    np.testing.assert_allclose(numbers(states[0][0]), start, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", [ManyToOne, ManyToMany])
def test_padded_rows_equal_rows_alone(network, kind):
    model = spread(network(2, 3, num_layers=2, **options(kind)))
    padded = np.where(MASK[..., None], X, 99.0).astype("float32")
    batch = numbers(model({"source": padded, "source_mask": MASK}))
    for row, length in enumerate(LENGTHS):
        alone = numbers(model({"source": X[row : row + 1, :length]}))[0]
        if network is ManyToOne:
            np.testing.assert_allclose(batch[row], alone, atol=1e-5)
        else:
            np.testing.assert_allclose(batch[row, :length], alone, atol=1e-5)
            np.testing.assert_array_equal(batch[row, length:], 0)


def test_bidirectional_stack_is_untouched_by_padding():
    stack = RecurrentStack("gru", 3, 2, bidirectional=True)
    stack.build((None, None, 2))
    spread(stack)
    outputs, finals = stack(X, MASK)
    # The backward direction ends at position 0.
    np.testing.assert_allclose(
        numbers(finals[-1][0])[:, 3:], numbers(outputs)[:, 0, 3:], atol=1e-6
    )
    for row, length in enumerate(LENGTHS):
        alone, alone_finals = stack(
            X[row : row + 1, :length], np.ones((1, length), bool)
        )
        np.testing.assert_allclose(
            numbers(outputs)[row, :length], numbers(alone)[0], atol=1e-5
        )
        np.testing.assert_allclose(
            numbers(finals[-1][0])[row], numbers(alone_finals[-1][0])[0], atol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_synced_call_equals_repeated_step(kind):
    model = spread(ManyToMany(2, 3, num_layers=2, **options(kind)))
    whole = numbers(model({"source": X}))
    states = model.initial_state(3)
    for position in range(5):
        outputs, states = model.step(X[:, position], states)
        np.testing.assert_allclose(numbers(outputs), whole[:, position], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output_dim", [2, 3])
def test_one_to_many_runs_the_whole_stack_before_the_next_step(kind, output_dim):
    """Against a loop over time outside and layers inside, through `phi`."""
    model = spread(OneToMany(2, output_dim, num_layers=2, **options(kind)))
    assert (model.feedback_map is None) == (output_dim == 2)
    outputs = numbers(model(X[:, 0], length=4))
    states, x = model.initial_state(3), ops.convert_to_tensor(X[:, 0])
    for position in range(4):
        hidden = x
        for index, cell in enumerate(model.cells):
            states[index] = cell(cell.project_inputs(hidden), states[index])
            hidden = states[index][0]
        y = model.output_map(hidden)
        np.testing.assert_allclose(numbers(y), outputs[:, position], atol=1e-5)
        x = y if output_dim == 2 else model.feedback_map(y)


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (ManyToOne, {"source": X, "source_mask": MASK}),
        (ManyToMany, {"source": X, "source_mask": MASK}),
        (OneToMany, X[:, 0]),
    ],
)
def test_saved_networks_compute_the_same_and_learn_with_every_weight(
    network, inputs, tmp_path
):
    extra = {"length": 4} if network is OneToMany else {}
    model = spread(network(2, 3, num_layers=2, dropout=0.1, **extra))
    before = numbers(model(inputs, training=False))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(numbers(loaded(inputs, training=False)), before)
    assert loaded.get_config() == model.get_config()
    assert tuple(model.compute_output_shape(_shapes(inputs))) == before.shape
    weights = [numbers(weight) for weight in model.trainable_weights]
    model.compile("sgd", "mse")
    model.train_on_batch(inputs, np.ones_like(before))
    for old, new in zip(weights, model.trainable_weights, strict=True):
        assert np.any(old != numbers(new)), new.path


def _shapes(inputs):
    if isinstance(inputs, dict):
        return {name: value.shape for name, value in inputs.items()}
    return inputs.shape


def test_last_real_vectors_by_hand():
    values = np.arange(8, dtype="float32").reshape(2, 4, 1)
    mask = np.array([[True] * 4, [True, False, False, False]])
    found = numbers(last_real(values, mask, 2))[..., 0]
    np.testing.assert_array_equal(found, [[2, 3], [0, 4]])


def test_weighted_mean_sees_real_vectors_alone():
    values = np.array([[[1.0], [3.0], [50.0]]], "float32")
    mask = np.array([[True, True, False]])
    assert numbers(weighted_mean(values, mask, 0.0))[0, 0] == pytest.approx(2)
    scores = np.log([[[1.0], [3.0], [9.0]]]).astype("float32")
    assert numbers(weighted_mean(values, mask, scores))[0, 0] == pytest.approx(2.5)


def test_finished_rows_are_frozen_and_masked():
    def step(values, state):
        return values + 1, state

    first = ops.convert_to_tensor(np.array([[0.0], [2.0], [-9.0]], "float32"))
    outputs, mask = run_until(
        step, first, (), 4, lambda outputs: outputs[:, -1, 0] >= 3
    )
    np.testing.assert_array_equal(
        numbers(outputs)[..., 0], [[1, 2, 3, 3], [3, 3, 3, 3], [-8, -7, -6, -5]]
    )
    np.testing.assert_array_equal(
        numbers(mask), [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    )


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="num_layers=0"):
        ManyToOne(2, 3, num_layers=0)
    with pytest.raises(ValueError, match="output_dim=0"):
        ManyToMany(2, 0)
    with pytest.raises(ValueError, match="length=0"):
        OneToMany(2, 2, length=0)
    with pytest.raises(ValueError, match="dropout=-1"):
        ManyToMany(2, 2, dropout=-1)
