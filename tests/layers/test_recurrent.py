import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    GRUCell,
    LSTMCell,
    RecurrentLayer,
    SimpleCell,
    scan_time,
)

UNITS, WIDTH = 4, 3


def ramp(model, seed=0):
    generator = np.random.default_rng(seed)
    values = [
        generator.normal(0, 0.6, w.shape).astype("float32") for w in model.weights
    ]
    for weight, value in zip(model.weights, values, strict=True):
        weight.assign(value)


def run(cell, x):
    def step(projected, states):
        states = cell(projected, states)
        return states[0], states

    outputs, states = scan_time(
        step, cell.project_inputs(x), cell.zero_states(x.shape[0])
    )
    return ops.convert_to_numpy(outputs), states


def test_scan_time_feeds_back_its_state():
    """h = h + x, output h: 1, 3, 6 for the inputs 1, 2, 3."""
    inputs = np.array([[[1.0], [2.0], [3.0]]], "float32")

    def step(x, states):
        total = states[0] + x
        return total, [total]

    outputs, (final,) = scan_time(step, inputs, [np.zeros((1, 1), "float32")])
    np.testing.assert_allclose(outputs, [[[1], [3], [6]]])
    np.testing.assert_allclose(final, [[6]])
    outputs, (final,) = scan_time(
        step, inputs, [np.zeros((1, 1), "float32")], reverse=True
    )
    np.testing.assert_allclose(outputs, [[[6], [5], [3]]])
    masked = np.array([[True, True, False]])
    _, (final,) = scan_time(step, inputs, [np.zeros((1, 1), "float32")], mask=masked)
    np.testing.assert_allclose(final, [[3]])


def test_simple_cell_by_hand():
    """W=1, U=.5, b=0, x=1,1: h = tanh 1, tanh(1 + .5 tanh 1)."""
    cell = SimpleCell(1)
    cell.build((None, None, 1))
    cell.input_projection.kernel.assign([[1.0]])
    cell.recurrent_kernel.assign([[0.5]])
    outputs, _ = run(cell, np.ones((1, 2, 1), "float32"))
    np.testing.assert_allclose(outputs[0, :, 0], [0.761594, 0.881130], atol=1e-6)


@pytest.mark.parametrize("reset_after", [True, False])
def test_gru_cell_equals_the_keras_layer(reset_after):
    x = np.random.default_rng(1).normal(size=(2, 5, WIDTH)).astype("float32")
    cell = GRUCell(UNITS, reset_after=reset_after)
    cell.build((None, None, WIDTH))
    ramp(cell)
    reference = keras.layers.GRU(UNITS, return_sequences=True, reset_after=reset_after)
    reference.build((None, None, WIDTH))
    kernel, bias = cell.input_projection.kernel, cell.input_projection.bias
    reference.cell.kernel.assign(kernel)
    recurrent = [cell.recurrent_kernel]
    recurrent += [] if reset_after else [cell.candidate_kernel]
    reference.cell.recurrent_kernel.assign(ops.concatenate(recurrent, axis=-1))
    reference.cell.bias.assign(
        np.stack([ops.convert_to_numpy(v) for v in (bias, cell.recurrent_bias)])
        if reset_after
        else bias
    )
    outputs, _ = run(cell, x)
    np.testing.assert_allclose(outputs, reference(x), atol=1e-5)


def test_lstm_cell_equals_the_keras_layer():
    x = np.random.default_rng(2).normal(size=(2, 5, WIDTH)).astype("float32")
    cell = LSTMCell(UNITS)
    cell.build((None, None, WIDTH))
    ramp(cell)
    reference = keras.layers.LSTM(UNITS, return_sequences=True)
    reference.build((None, None, WIDTH))
    reference.cell.kernel.assign(cell.input_projection.kernel)
    reference.cell.bias.assign(cell.input_projection.bias)
    reference.cell.recurrent_kernel.assign(cell.recurrent_kernel)
    outputs, _ = run(cell, x)
    np.testing.assert_allclose(outputs, reference(x), atol=1e-5)


def test_reset_before_and_after_are_different_functions():
    """h=(1,2), r=(1,0), U swaps: the candidate sees (0,1) before, (2,0) after."""
    big = 50.0
    for reset_after, expected in ((False, [0.0, 1.0]), (True, [2.0, 0.0])):
        cell = GRUCell(2, reset_after=reset_after)
        cell.build((None, None, 1))
        for weight in cell.weights:
            weight.assign(np.zeros(weight.shape))
        swap = np.array([[0, 1], [1, 0]])
        if reset_after:
            cell.recurrent_kernel.assign(np.pad(swap, ((0, 0), (4, 0))))
        else:
            cell.candidate_kernel.assign(swap)
        # update gate 0, reset gate (1, 0)
        cell.input_projection.bias.assign([-big, -big, big, -big, 0, 0])
        projected = cell.project_inputs(np.zeros((1, 1, 1), "float32"))[:, 0]
        (new,) = cell(projected, [ops.convert_to_tensor([[1.0, 2.0]])])
        np.testing.assert_allclose(new, [np.tanh(expected)], atol=1e-6)


def test_an_update_gate_that_keeps_keeps_the_state():
    cell = GRUCell(2)
    cell.build((None, None, 1))
    cell.input_projection.bias.assign([50, 50, 0, 0, 0, 0])
    projected = cell.project_inputs(np.ones((1, 1, 1), "float32"))[:, 0]
    (new,) = cell(projected, [ops.convert_to_tensor([[0.3, -0.2]])])
    np.testing.assert_allclose(new, [[0.3, -0.2]], atol=1e-6)


def test_lstm_forget_gate_starts_open():
    cell = LSTMCell(2)
    cell.build((None, None, 3))
    np.testing.assert_array_equal(cell.input_projection.bias, [0, 0, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        (SimpleCell(UNITS), WIDTH * UNITS + UNITS**2 + UNITS),
        (LSTMCell(UNITS), 4 * (WIDTH * UNITS + UNITS**2 + UNITS)),
        (GRUCell(UNITS), 3 * (WIDTH * UNITS + UNITS**2 + 2 * UNITS)),
        (
            GRUCell(UNITS, reset_after=False),
            3 * (WIDTH * UNITS + UNITS**2 + UNITS),
        ),
    ],
)
def test_parameter_counts(cell, count):
    cell.build((None, None, WIDTH))
    assert cell.count_params() == count


@pytest.mark.parametrize("kind", ["lstm", "gru", "simple"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_changes_no_real_output_and_no_final_state(kind, bidirectional):
    x = np.random.default_rng(3).normal(size=(1, 6, WIDTH)).astype("float32")
    layer = RecurrentLayer(kind, UNITS, bidirectional)
    layer.build((None, None, WIDTH))
    ramp(layer)
    mask = np.array([[True, True, True, False, False, False]])
    outputs, states = layer(x, mask)
    alone, alone_states = layer(x[:, :3], mask[:, :3])
    np.testing.assert_allclose(ops.convert_to_numpy(outputs)[:, :3], alone, atol=1e-6)
    for state, other in zip(states, alone_states, strict=True):
        np.testing.assert_allclose(state, other, atol=1e-6)


def test_backward_direction_ends_at_the_first_token():
    x = np.random.default_rng(4).normal(size=(2, 4, WIDTH)).astype("float32")
    layer = RecurrentLayer("gru", UNITS, True)
    mask = np.array([[True] * 4, [True, True, False, False]])
    outputs, (state,) = layer(x, mask)
    outputs = ops.convert_to_numpy(outputs)
    state = ops.convert_to_numpy(state)
    np.testing.assert_array_equal(state[:, UNITS:], outputs[:, 0, UNITS:])
    np.testing.assert_array_equal(state[0, :UNITS], outputs[0, 3, :UNITS])
    np.testing.assert_array_equal(state[1, :UNITS], outputs[1, 1, :UNITS])


def test_an_empty_row_has_a_zero_state():
    layer = RecurrentLayer("lstm", UNITS, True)
    _, states = layer(np.ones((1, 3, WIDTH), "float32"), np.zeros((1, 3), bool))
    for state in states:
        np.testing.assert_array_equal(state, np.zeros((1, 2 * UNITS)))


def test_unknown_cells_and_empty_widths_are_refused():
    with pytest.raises(ValueError, match=r"'lstm', 'gru', 'simple'.*cell='tree'"):
        RecurrentLayer("tree", 4)
    with pytest.raises(ValueError, match="units=0"):
        RecurrentLayer("gru", 0)
