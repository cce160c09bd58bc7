"""minGRU and minLSTM: the recurrence, its scans, their gradients, masks, precision."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    GRUCell,
    LSTMCell,
    MinGRU,
    MinLSTM,
    linear_scan,
    log_space_scan,
    sequential_scan,
)
from keras_seq2seq.layers.minimal_recurrent import (
    log_positive,
    make_minimal,
    positive,
)

UNITS, WIDTH = 4, 3
KINDS = ("mingru", "minlstm")
LENGTHS = (1, 2, 3, 5, 8)  # at, below and above powers of two
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
# JAX computes in float32 whatever is asked for.
DTYPE, EXACT = ("float64", 1e-13) if ON_TENSORFLOW else ("float32", 1e-6)


def numpy(x):
    return ops.convert_to_numpy(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, "float64")))


def recurrence(a, b, initial):
    """The NumPy twin, in float64."""
    h, states = np.asarray(initial, "float64"), []
    for step in range(a.shape[1]):
        h = a[:, step] * h + b[:, step]
        states.append(h)
    return np.stack(states, axis=1)


def coefficients(length, rows=2, seed=0, spread=3.0):
    generator = np.random.default_rng(seed)
    gate = generator.normal(0, spread, (rows, length, UNITS))
    a, b = sigmoid(-gate), sigmoid(gate) * generator.uniform(0.1, 2, gate.shape)
    return a, b, generator.uniform(0, 1, (rows, UNITS))


def tensors(*arrays, dtype=DTYPE):
    return [ops.convert_to_tensor(array.astype(dtype)) for array in arrays]


def layer_of(kind, seed=0, **options):
    layer = make_minimal(kind, UNITS, **options)
    layer.build((None, None, WIDTH))
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(generator.normal(0, 1.5, weight.shape))
    return layer


def inputs_of(length, rows=2, seed=1):
    shape = (rows, length, WIDTH)
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def gradients_of(function, *arrays):
    """Gradients of a weighted sum of the outputs, on either backend."""

    def loss(*inputs):
        outputs = function(*inputs)
        weights = np.sin(np.arange(np.prod(outputs.shape))).reshape(outputs.shape)
        return ops.sum(outputs * ops.cast(weights, outputs.dtype))

    if ON_TENSORFLOW:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(arrays)
            value = loss(*arrays)
        return [numpy(gradient) for gradient in tape.gradient(value, arrays)]
    import jax

    return [numpy(g) for g in jax.grad(loss, tuple(range(len(arrays))))(*arrays)]


def test_candidates_are_positive_and_continuous():
    x = ops.convert_to_tensor([-1.0, 0.0, 1.0])
    # sigmoid(-1) is 1 / (1 + e) = 0.268941
    np.testing.assert_allclose(positive(x), [0.268941, 0.5, 1.5], atol=1e-6)
    np.testing.assert_allclose(
        log_positive(x), np.log([1 / (1 + np.e), 0.5, 1.5]), atol=1e-6
    )
    far = numpy(log_positive(ops.convert_to_tensor([-200.0, 200.0])))
    np.testing.assert_allclose(far, [-200, np.log(200.5)], rtol=1e-6)


def test_gradient_of_the_log_candidate_is_finite_on_both_sides():
    x = np.array([-500.0, -1.0, 1.0, 500.0], "float32")
    (found,) = gradients_of(log_positive, ops.convert_to_tensor(x))
    slope = np.array([1.0, sigmoid(1.0), 1 / 1.5, 1 / 500.5])
    np.testing.assert_allclose(found, np.sin(np.arange(4)) * slope, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("initial", "expected"),
    [(0.0, [0.25, 0.375, 0.4375]), (0.5, [0.5, 0.5, 0.5])],
)
def test_without_weights_the_state_is_half_way_to_a_half(kind, initial, expected):
    """Gates and candidate are 1/2, so h = 1/2 (1 - 2^-t), or 1/2 from there on."""
    layer = make_minimal(kind, 1, initial_value=initial)
    layer.build((None, None, WIDTH))
    for weight in layer.weights:
        weight.assign(np.zeros(weight.shape))
    outputs, final = layer(np.ones((1, 3, WIDTH), "float32"))
    np.testing.assert_allclose(numpy(outputs)[0, :, 0], expected, atol=1e-7)
    np.testing.assert_allclose(final, [[expected[-1]]], atol=1e-7)


@pytest.mark.parametrize("length", LENGTHS)
def test_scans_equal_the_recurrence(length):
    a, b, initial = coefficients(length)
    expected = recurrence(a, b, initial)
    linear = linear_scan(*tensors(a, b, initial))
    logarithmic = log_space_scan(*tensors(np.log(a), np.log(b), initial))
    stepwise = sequential_scan(*tensors(a, b, initial))
    for found in (linear, logarithmic, stepwise):
        np.testing.assert_allclose(found, expected, atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("length", LENGTHS)
def test_gradients_of_the_scans_are_those_of_the_loop(length):
    a, b, initial = coefficients(length)
    expected = gradients_of(sequential_scan, *tensors(a, b, initial))
    linear = gradients_of(linear_scan, *tensors(a, b, initial))
    logarithmic = gradients_of(log_space_scan, *tensors(np.log(a), np.log(b), initial))
    chain = (a, b, 1.0)  # d/d(log a) = a d/da
    for gradient, found, of_log, factor in zip(
        expected, linear, logarithmic, chain, strict=True
    ):
        assert np.abs(gradient).max() > 1e-3
        np.testing.assert_allclose(found, gradient, atol=10 * EXACT)
        np.testing.assert_allclose(of_log, gradient * factor, atol=10 * EXACT)


def test_long_sequences_keep_their_digits_in_float32():
    """The sum of log a is below -1500 here: differences of it would lose four."""
    a, b, initial = coefficients(512, rows=1, spread=6.0)
    assert np.log(a).sum(axis=1).max() < -1000
    expected = recurrence(a, b, initial)
    single = tensors(np.log(a), np.log(b), initial, dtype="float32")
    np.testing.assert_allclose(log_space_scan(*single), expected, rtol=1e-5)
    single = tensors(a, b, initial, dtype="float32")
    np.testing.assert_allclose(linear_scan(*single), expected, rtol=1e-5)


def test_a_state_of_zero_stays_exact_in_log_space():
    a, b, initial = coefficients(5)
    initial[:] = 0
    found = log_space_scan(*tensors(np.log(a), np.log(b), initial))
    np.testing.assert_allclose(found, recurrence(a, b, initial), rtol=10 * EXACT)
    for gradient in gradients_of(
        log_space_scan, *tensors(np.log(a), np.log(b), initial)
    ):
        assert np.isfinite(gradient).all()


@pytest.mark.skipif(not ON_TENSORFLOW, reason="what is unknown when a graph is traced")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_one_graph_differentiates_every_length(jit_compile):
    import tensorflow as tf

    layer = layer_of("minlstm")

    @tf.function(
        input_signature=[tf.TensorSpec((None, None, WIDTH))], jit_compile=jit_compile
    )
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(layer(x)[0] ** 2)
        return tape.gradient(total, x)

    for length in (1, 5, 8):
        x = tf.constant(inputs_of(length))
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(sequential_scan_of(layer, x) ** 2)
        np.testing.assert_allclose(gradient(x), tape.gradient(total, x), atol=1e-5)
    assert gradient.experimental_get_tracing_count() == 1


def sequential_scan_of(layer, x, initial=None):
    if initial is None:
        initial = layer.initial_state(x.shape[0])
    return sequential_scan(*layer.coefficients(x), initial)


@pytest.mark.parametrize("candidate", ["positive", "identity"])
def test_mingru_equals_its_equations(candidate):
    layer = layer_of("mingru", candidate=candidate)
    x = inputs_of(6)
    kernel, bias = layer.get_weights()
    update, inner = np.split(x.astype("float64") @ kernel + bias, 2, axis=-1)
    z = sigmoid(update)
    g = inner
    if candidate == "positive":
        g = np.where(inner >= 0, inner + 0.5, sigmoid(inner))
    expected = recurrence(1 - z, z * g, np.full((2, UNITS), 0.5))
    assert (expected.min() < 0) == (candidate == "identity")
    outputs, final = layer(x)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(final, expected[:, -1], atol=1e-5)


@pytest.mark.parametrize("candidate", ["positive", "identity"])
def test_minlstm_equals_its_equations(candidate):
    layer = layer_of("minlstm", candidate=candidate)
    x = inputs_of(6)
    kernel, bias = layer.get_weights()
    forget, into, inner = np.split(x.astype("float64") @ kernel + bias, 3, axis=-1)
    f, i = sigmoid(forget), sigmoid(into)
    g = inner
    if candidate == "positive":
        g = np.where(inner >= 0, inner + 0.5, sigmoid(inner))
    expected = recurrence(f / (f + i), i / (f + i) * g, np.full((2, UNITS), 0.5))
    outputs, _ = layer(x)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_gates_of_minlstm_sum_to_one_and_equal_gates_halve():
    layer = layer_of("minlstm")
    x = inputs_of(5)
    log_forget, log_into = numpy(layer.log_coefficients(x))
    _, _, inner = np.split(numpy(layer.input_projection(x)), 3, axis=-1)
    log_into = log_into - numpy(log_positive(inner))
    np.testing.assert_allclose(np.exp(log_forget) + np.exp(log_into), 1, atol=1e-6)
    kernel, bias = layer.get_weights()
    kernel[:, UNITS : 2 * UNITS] = kernel[:, :UNITS]
    bias[UNITS : 2 * UNITS] = bias[:UNITS]
    layer.set_weights([kernel, bias])
    forget, _ = layer.coefficients(x)
    np.testing.assert_allclose(forget, np.full((2, 5, UNITS), 0.5), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_log_coefficients_are_the_logarithms_and_finite_far_out(kind):
    layer = layer_of(kind)
    x = inputs_of(5)
    for value, log_value in zip(
        layer.coefficients(x), layer.log_coefficients(x), strict=True
    ):
        np.testing.assert_allclose(log_value, np.log(numpy(value)), atol=1e-5)
    for log_value in layer.log_coefficients(300 * x):
        assert np.isfinite(numpy(log_value)).all()
        assert numpy(log_value).min() < -100  # where log(sigmoid) would be -inf


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidate", ["positive", "identity"])
def test_steps_and_chunks_continue_a_sequence(kind, candidate):
    layer = layer_of(kind, candidate=candidate, initial_value=0.0)
    x = inputs_of(7)
    whole, final = layer(x)
    first, state = layer(x[:, :3])
    single, state = layer(x[:, 3:4], initial_state=state)
    rest, state = layer(x[:, 4:], initial_state=state)
    chunks = np.concatenate([numpy(part) for part in (first, single, rest)], axis=1)
    np.testing.assert_allclose(chunks, whole, atol=1e-6)
    np.testing.assert_allclose(state, final, atol=1e-6)
    state = layer.initial_state(2)
    for position in range(7):
        state = layer.step(x[:, position], state)
        np.testing.assert_allclose(state, numpy(whole)[:, position], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_input_converges_to_its_candidate(kind):
    layer = layer_of(kind)
    x = np.repeat(inputs_of(1), 200, axis=1) / 4
    inner = np.split(numpy(layer.input_projection(x)), layer.num_gates, axis=-1)[-1]
    _, final = layer(x)
    np.testing.assert_allclose(final, numpy(positive(inner))[:, -1], rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_padding_on_any_side_is_inert(kind, reverse):
    layer = layer_of(kind, reverse=reverse)
    x = inputs_of(7, rows=1)
    alone, state = layer(x[:, 2:5])
    mask = np.array([[False, False, True, True, True, False, False]])
    outputs, final = layer(x, mask)
    np.testing.assert_allclose(numpy(outputs)[:, 2:5], alone, atol=1e-6)
    np.testing.assert_allclose(final, state, atol=1e-6)
    nothing, final = layer(x, np.zeros((1, 7), bool))
    np.testing.assert_array_equal(nothing, np.full((1, 7, UNITS), 0.5))
    np.testing.assert_array_equal(final, np.full((1, UNITS), 0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_backward_is_forward_over_each_row_reversed(kind):
    x = inputs_of(5)
    mask = np.array([[True] * 5, [True, True, True, False, False]])
    rows = x.copy()
    for row, length in enumerate((5, 3)):
        rows[row, :length] = x[row, :length][::-1]
    forward, final = layer_of(kind)(rows, mask)
    backward, backward_final = layer_of(kind, reverse=True)(x, mask)
    np.testing.assert_allclose(backward_final, final, atol=1e-6)
    for row, length in enumerate((5, 3)):
        np.testing.assert_allclose(
            numpy(backward)[row, :length], numpy(forward)[row, :length][::-1], atol=1e-6
        )


def test_gradients_pass_padding_and_stay_finite():
    layer = layer_of("mingru")
    mask = np.array([[True, True, False, False], [False] * 4])
    x = ops.convert_to_tensor(inputs_of(4))
    (gradient,) = gradients_of(lambda x: layer(x, mask)[0], x)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[0, :2]).min() > 0
    assert (gradient[0, 2:] == 0).all()
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_scans_in_float32(kind, policy):
    half = layer_of(kind, dtype=policy)
    single = layer_of(kind)
    x = ops.cast(inputs_of(300, rows=1), half.compute_dtype)
    outputs, final = half(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == half.compute_dtype
    assert keras.backend.standardize_dtype(final.dtype) == "float32"
    # Only the projection rounds: the float32 recurrence over its values is exact.
    expected = numpy(sequential_scan_of(half, x))
    np.testing.assert_allclose(final, expected[:, -1], rtol=1e-5)
    close = 0.05 if policy == "mixed_float16" else 0.2
    exact, _ = single(ops.cast(x, "float32"))
    np.testing.assert_allclose(ops.cast(outputs, "float32"), exact, atol=close)
    # A float32 state goes on unrounded.
    odd = ops.full((1, UNITS), 1.0 + 2.0**-20, dtype="float32")
    _, kept = half(x, np.zeros((1, 300), bool), initial_state=odd)
    np.testing.assert_array_equal(kept, odd)


def test_an_empty_sequence_hands_its_state_on():
    layer = layer_of("mingru")
    outputs, final = layer(np.zeros((2, 0, WIDTH), "float32"))
    assert tuple(outputs.shape) == (2, 0, UNITS)
    np.testing.assert_array_equal(final, np.full((2, UNITS), 0.5))


@pytest.mark.parametrize(
    ("kind", "classic", "percent"),
    [("mingru", GRUCell, [33, 22, 17, 13]), ("minlstm", LSTMCell, [38, 25, 19, 15])],
)
def test_weights_are_the_stated_share_of_the_classic_cell(kind, classic, percent):
    shares = []
    for factor in (1, 2, 3, 4):
        units = factor * WIDTH
        layer, cell = make_minimal(kind, units), classic(units)
        layer.build((None, None, WIDTH))
        cell.build((None, None, WIDTH))
        biases = layer.num_gates * units
        assert layer.count_params() == layer.num_gates * WIDTH * units + biases
        kernels = [w for w in cell.weights if len(w.shape) == 2]
        matrices = sum(int(np.prod(w.shape)) for w in kernels)
        shares.append((layer.count_params() - biases) / matrices)
    np.testing.assert_allclose(100 * np.array(shares), percent, atol=0.5)


@pytest.mark.parametrize("cls", [MinGRU, MinLSTM])
def test_config_round_trip(cls):
    layer = cls(UNITS, candidate="identity", initial_value=-1.0, reverse=True)
    assert cls.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": 0}, "units=0"),
        ({"units": 2, "candidate": "tanh"}, "'?\"positive\".*candidate='tanh'"),
        ({"units": 2, "initial_value": -0.5}, "initial_value=-0.5"),
    ],
)
def test_impossible_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MinGRU(**arguments)


def test_unknown_cell_is_named():
    with pytest.raises(ValueError, match=r"'mingru', 'minlstm'.*cell='gru'"):
        make_minimal("gru", 2)
