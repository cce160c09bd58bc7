"""RegressionSeq2Seq: the four calls over vectors, bridges, feedback, stopping."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.models import RegressionSeq2Seq

RANDOM = np.random.default_rng(5)
SOURCE = RANDOM.normal(size=(3, 5, 3)).astype("float32")
TARGET = RANDOM.normal(size=(3, 4, 2)).astype("float32")
FUTURE = RANDOM.normal(size=(3, 4, 2)).astype("float32")
LENGTHS = [5, 3, 1]
MASK = np.arange(5) < np.array(LENGTHS)[:, None]
INPUTS = {
    "source": SOURCE,
    "source_mask": MASK,
    "future": FUTURE,
    "target": TARGET,
}

CASES = {
    "input-own": {"bridge": "input"},
    "input-target-additive": {
        "bridge": "input",
        "feedback": "target",
        "attention": "additive",
    },
    "state-target": {"feedback": "target"},
    "context-own-pool": {"bridge": "context", "context": "pool"},
    "context-target-mean": {
        "bridge": "context",
        "context": "mean",
        "feedback": "target",
        "attention": "scaled_dot",
        "cell": "simple",
    },
    "lstm-bidirectional": {"cell": "lstm", "bidirectional": True},
    "reset-before": {"reset_after": False, "attention": "bilinear"},
    "stacked": {"num_encoder_layers": 2, "num_decoder_layers": 3},
    "zeros-linear": {
        "first_input": "zeros",
        "residual_lag": 2,
        "linear_lags": 3,
        "feedback": "target",
    },
}


def numbers(tensor):
    return ops.convert_to_numpy(tensor)


def make(**options):
    model = RegressionSeq2Seq(3, 2, **{"units": 4, "future_dim": 2, **options})
    generator = np.random.default_rng(0)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(generator.normal(0, 0.5, weight.shape))
    return model


@pytest.fixture(params=list(CASES))
def model(request):
    return make(**CASES[request.param])


def by_steps(model, inputs, copies=1):
    """Outputs of `step`, reading what `feedback` says; `copies` rows a source."""
    memory = model.encode(
        inputs["source"],
        source_mask=inputs.get("source_mask"),
        future=inputs.get("future"),
    )
    state = keras.tree.map_structure(
        lambda x: ops.repeat(x, copies, axis=0), model.initial_state(memory)
    )
    values = ops.repeat(memory["first"], copies, axis=0)
    found = []
    for position in range(inputs["target"].shape[1]):
        outputs, state, weights = model.step(values, memory, state)
        assert weights.shape == (copies * len(SOURCE), SOURCE.shape[1])
        found.append(numbers(outputs))
        truth = np.repeat(inputs["target"][:, position], copies, axis=0)
        values = truth if model.feedback == "target" else outputs
    return np.stack(found, axis=1)


def test_call_equals_repeated_step(model):
    outputs = numbers(model(INPUTS, training=False))
    assert outputs.shape == TARGET.shape and np.ptp(outputs) > 0.1
    np.testing.assert_allclose(by_steps(model, INPUTS), outputs, atol=1e-5)


def test_several_rows_of_one_source_share_its_memory(model):
    outputs = numbers(model(INPUTS, training=False))
    np.testing.assert_allclose(
        by_steps(model, INPUTS, copies=2), np.repeat(outputs, 2, axis=0), atol=1e-5
    )


def test_padding_and_batch_mates_change_nothing(model):
    padded = np.where(MASK[..., None], SOURCE, 99.0).astype("float32")
    batch = numbers(model({**INPUTS, "source": padded}, training=False))
    for row, length in enumerate(LENGTHS):
        alone = {name: value[row : row + 1] for name, value in INPUTS.items()}
        alone["source"] = alone["source"][:, :length]
        del alone["source_mask"]
        np.testing.assert_allclose(
            numbers(model(alone, training=False))[0], batch[row], atol=1e-5
        )


def test_later_targets_and_futures_change_nothing_earlier(model):
    before = numbers(model(INPUTS, training=False))
    changed = {name: value.copy() for name, value in INPUTS.items()}
    changed["target"][:, 2:] += 5
    changed["future"][:, 3:] += 5
    after = numbers(model(changed, training=False))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
    assert np.abs(after[:, 3] - before[:, 3]).max() > 1e-4


def test_saving_keeps_numbers_and_settings(model, tmp_path):
    before = numbers(model(INPUTS, training=False))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(numbers(loaded(INPUTS, training=False)), before)
    assert loaded.get_config() == model.get_config()


def test_training_reaches_every_weight(model):
    before = [numbers(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.train_on_batch(INPUTS, TARGET)
    for old, weight in zip(before, model.trainable_weights, strict=True):
        assert np.any(numbers(weight) != old), weight.path


@pytest.mark.parametrize("feedback", ["own", "target"])
def test_forecast_reads_its_own_outputs(feedback):
    model = make(feedback=feedback)
    outputs, mask = model.forecast(SOURCE, 4, source_mask=MASK, future=FUTURE)
    own = make(feedback="own")
    np.testing.assert_allclose(
        numbers(outputs), numbers(own(INPUTS, training=False)), atol=1e-6
    )
    assert numbers(mask).all()


def test_stop_predicate_ends_rows_and_freezes_them():
    model = make()
    free, _ = model.forecast(SOURCE, 4, source_mask=MASK, future=FUTURE)
    free = numbers(free)
    seen = []

    def stop(outputs):
        seen.append(outputs.shape)
        return np.array([outputs.shape[1] == 2, False, outputs.shape[1] == 1])

    outputs, mask = model.forecast(
        SOURCE, 4, source_mask=MASK, future=FUTURE, stop_fn=stop
    )
    outputs, mask = numbers(outputs), numbers(mask)
    assert seen == [(3, length, 2) for length in (1, 2, 3, 4)]
    np.testing.assert_array_equal(mask.sum(axis=1), [2, 4, 1])
    np.testing.assert_allclose(outputs[mask], free[mask], atol=1e-6)
    np.testing.assert_array_equal(outputs[0, 2:], outputs[0, [1, 1]])


def test_bridges_meet_the_decoder_where_they_say():
    """With the decoder's recurrence cut, only a context fed each step is seen late."""
    changed = SOURCE + 1
    for bridge, sees in (("input", [True, False]), ("context", [True, True])):
        model = make(bridge=bridge, first_input="zeros", feedback="target")
        cell = model.decoder_cells[0]
        cell.recurrent_kernel.assign(0 * cell.recurrent_kernel)
        # No update gate: nothing of the last state is kept.
        bias = numbers(cell.input_projection.bias)
        bias[:4] = -60
        cell.input_projection.bias.assign(bias)
        before = numbers(model(INPUTS, training=False))
        after = numbers(model({**INPUTS, "source": changed}, training=False))
        moved = np.abs(before - after).max(axis=(0, 2)) > 1e-4
        assert moved[:2].tolist() == sees, bridge
    memory = make(bridge="input").encode(SOURCE, future=FUTURE)
    assert not numbers(memory["states"][0][0]).any()
    model = make(bridge="state")
    memory = model.encode(SOURCE, future=FUTURE)
    _, finals = model.encoder(SOURCE, np.ones((3, 5), bool))
    np.testing.assert_allclose(numbers(memory["states"][0][0]), numbers(finals[0][0]))


def test_first_input_is_zero_or_the_last_observed_target():
    rows = np.arange(3)
    memory = make(first_input="last").encode(SOURCE, source_mask=MASK, future=FUTURE)
    expected = SOURCE[rows, np.array(LENGTHS) - 1, :2]
    np.testing.assert_array_equal(numbers(memory["first"]), expected)
    memory = make(first_input="zeros").encode(SOURCE, source_mask=MASK, future=FUTURE)
    assert not numbers(memory["first"]).any()


@pytest.mark.parametrize("lag", [1, 3])
def test_silent_network_with_a_residual_repeats_the_season(lag):
    model = make(residual_lag=lag)
    model.output_map.kernel.assign(0 * model.output_map.kernel)
    model.output_map.bias.assign(0 * model.output_map.bias)
    outputs, _ = model.forecast(SOURCE, 4, future=FUTURE)
    season = SOURCE[:, 5 - lag :, :2]
    expected = np.concatenate([season] * 4, axis=1)[:, :4]
    np.testing.assert_allclose(numbers(outputs), expected, atol=1e-6)


def test_linear_part_is_an_autoregression_by_hand():
    """y_t = 2 y_(t-1) - y_(t-2) goes on along the line through the last two."""
    model = RegressionSeq2Seq(1, 1, units=2, linear_lags=2)
    model.output_map.kernel.assign([[0.0], [0.0]])
    model.past.kernel.assign([[-1.0], [2.0]])
    source = np.array([[[9.0], [1.0], [3.0]]], "float32")
    outputs, _ = model.forecast(source, 3)
    np.testing.assert_allclose(numbers(outputs)[0, :, 0], [5, 7, 9], atol=1e-5)


def test_loss_is_over_real_steps_only():
    """Sum of squares over real steps, by n times their number."""
    weights = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], "float32")
    model = make()
    outputs = numbers(model(INPUTS, training=False))
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    found = float(loss(TARGET, outputs, sample_weight=weights))
    squares = ((TARGET - outputs) ** 2).sum(axis=-1)
    assert found == pytest.approx((squares * weights).sum() / (2 * weights.sum()))


def test_dropout_is_only_in_training_and_differs_between_steps():
    model = make(dropout=0.5, num_encoder_layers=2, num_decoder_layers=2)
    calm = numbers(model(INPUTS, training=False))
    np.testing.assert_array_equal(calm, numbers(model(INPUTS, training=False)))
    assert np.abs(calm - numbers(model(INPUTS, training=True))).max() > 1e-3
    # A decoder without memory: equal steps but for the masks drawn for them.
    model = make(dropout=0.5, bridge="context", first_input="zeros", feedback="target")
    cell = model.decoder_cells[0]
    cell.recurrent_kernel.assign(0 * cell.recurrent_kernel)
    cell.input_projection.kernel.assign(0 * cell.input_projection.kernel)
    bias = numbers(cell.input_projection.bias)
    bias[:4] = -60
    cell.input_projection.bias.assign(bias)
    outputs = numbers(model(INPUTS, training=True))
    assert np.abs(outputs[:, 0] - outputs[:, 1]).max() > 1e-3


def test_dropout_reaches_a_decoder_of_one_unit():
    model = make(units=1, dropout=0.9)
    calm = numbers(model(INPUTS, training=False))
    assert np.abs(calm - numbers(model(INPUTS, training=True))).max() > 1e-3


@pytest.mark.parametrize("feedback", ["own", "target"])
def test_learns_to_add_one(feedback):
    """1, 2, 3 goes on with 4, 5, 6, in units of a tenth."""
    starts = np.arange(-8, 9)[:, None] / 10
    rows = starts + np.arange(6) / 10
    source, target = np.split(rows[..., None].astype("float32"), 2, axis=1)
    model = RegressionSeq2Seq(1, 1, units=8, feedback=feedback)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    for _ in range(150):
        model.train_on_batch({"source": source, "target": target}, target)
    outputs, _ = model.forecast(source, 3)
    assert np.mean((numbers(outputs) - target) ** 2) < 1e-3


def test_mixed_precision_keeps_outputs_and_past_in_float32():
    model = make(dtype="mixed_bfloat16", residual_lag=1)
    outputs = model(INPUTS, training=False)
    assert ops.dtype(outputs) == "float32"
    memory = model.encode(SOURCE, future=FUTURE)
    assert ops.dtype(memory["recent"]) == "float32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bridge": "bottom"}, "bridge='bottom'"),
        ({"context": "first"}, "context='first'"),
        ({"first_input": "random"}, "first_input='random'"),
        ({"feedback": "mixed"}, "feedback='mixed'"),
        ({"attention": "sharp"}, "attention='sharp'"),
        ({"residual_lag": -1}, "residual_lag=-1"),
        ({"num_decoder_layers": 0}, "num_decoder_layers=0"),
        ({"source_dim": 1}, "source_dim=1, target_dim=2"),
        ({"dropout": 1.5}, r"below 1\. Received: dropout=1\.5"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    sizes = {"source_dim": 3, "target_dim": 2}
    with pytest.raises(ValueError, match=message):
        RegressionSeq2Seq(**{**sizes, **arguments})


def test_missing_future_is_named():
    with pytest.raises(ValueError, match=r"future_dim=2 channels\. Received: none"):
        make().encode(SOURCE)
    with pytest.raises(ValueError, match="future_dim=0 channels"):
        make(future_dim=0).encode(SOURCE, future=FUTURE)


@pytest.mark.parametrize("stop_fn", [None, lambda outputs: outputs[:, -1, 0] > 9])
def test_future_that_ends_before_the_forecast_is_named(stop_fn):
    with pytest.raises(ValueError, match="future with 4 steps, an output of 5"):
        make().forecast(SOURCE, 5, future=FUTURE, stop_fn=stop_fn)
    with pytest.raises(ValueError, match="length=0"):
        make().forecast(SOURCE, 0, future=FUTURE, stop_fn=stop_fn)
    with pytest.raises(ValueError, match="future with 3 steps, an output of 4"):
        make()({**INPUTS, "future": FUTURE[:, :3]})
