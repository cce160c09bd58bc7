"""Learning rates and gold rates: published values, the first update, saving."""

import keras
import numpy as np
import pytest

from keras_seq2seq.schedules import (
    ConstantGoldRate,
    ExponentialGoldRate,
    InverseSigmoidGoldRate,
    InverseSquareRootSchedule,
    LinearGoldRate,
    NoamSchedule,
    make_gold_rate,
)


# Vaswani et al., equation 3, worked out in float64; update n is Keras step n - 1.
@pytest.mark.parametrize(
    ("dim", "update", "expected"),
    [
        (512, 1, 1.7469e-7),
        (512, 100, 1.7469e-5),
        (512, 4000, 6.98771e-4),
        (512, 16000, 3.49386e-4),
        (1024, 4000, 4.94106e-4),
    ],
)
def test_noam_gives_the_published_rates(dim, update, expected):
    schedule = NoamSchedule(dim, warmup_steps=4000)
    assert float(schedule(update - 1)) == pytest.approx(expected, rel=1e-4)


def test_noam_factor_scales_the_curve():
    assert float(NoamSchedule(4, 2, factor=3.0)(1)) == pytest.approx(
        3 * 0.5 * 2**-0.5, rel=1e-6
    )


@pytest.mark.parametrize(
    ("update", "expected"), [(1, 0.01), (5, 0.05), (10, 0.1), (40, 0.05), (1000, 0.01)]
)
def test_inverse_square_root_rises_to_its_peak_and_falls(update, expected):
    schedule = InverseSquareRootSchedule(0.1, warmup_steps=10)
    assert float(schedule(update - 1)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "schedule", [NoamSchedule(8, 5, 2.0), InverseSquareRootSchedule(0.5, 3)]
)
def test_saved_optimizer_continues_the_schedule(tmp_path, schedule):
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer=keras.optimizers.SGD(schedule), loss="mse")
    data = np.ones((4, 1), "float32")
    model.fit(data, data, batch_size=1, verbose=0)
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    assert int(copy.optimizer.iterations) == 4
    expected = float(schedule(4))
    assert float(copy.optimizer.learning_rate) == pytest.approx(expected, rel=1e-6)
    assert expected != float(schedule(0))


# Bengio et al., section 2.4; the last column worked out in float64.
@pytest.mark.parametrize(
    ("rate", "updates", "expected"),
    [
        (LinearGoldRate(c=0.01), 0, 1.0),
        (LinearGoldRate(c=0.01), 30, 0.7),
        (LinearGoldRate(0.9, c=0.01, minimum=0.25), 30, 0.6),
        (LinearGoldRate(0.9, c=0.01, minimum=0.25), 65, 0.25),
        (LinearGoldRate(0.9, c=0.01, minimum=0.25), 10**6, 0.25),
        (LinearGoldRate(1.5, c=0.01), 10, 1.0),
        (ExponentialGoldRate(0.99), 0, 1.0),
        (ExponentialGoldRate(0.99), 100, 0.366032),
        (ExponentialGoldRate(0.99), 10**6, 0.0),
        (InverseSigmoidGoldRate(100), 0, 0.990099),
        (InverseSigmoidGoldRate(100), 100 * np.log(100), 0.5),  # 460.517
        (InverseSigmoidGoldRate(100), 1000, 0.00451944),
        (InverseSigmoidGoldRate(1), 10**6, 0.0),  # exp(10**6) overflows
        (ConstantGoldRate(0.0), 5, 0.0),
        (ConstantGoldRate(1.0), 5, 1.0),
    ],
)
def test_gold_rate_has_the_published_value_at_an_update(rate, updates, expected):
    assert float(rate(updates)) == pytest.approx(expected, rel=1e-4, abs=1e-9)
    restored = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(rate)
    )
    assert type(restored) is type(rate)
    assert float(restored(updates)) == float(rate(updates))


def test_gold_rate_is_made_by_name():
    assert float(make_gold_rate("linear", c=0.1)(3)) == pytest.approx(0.7)
    assert float(make_gold_rate("linear", 0.8, 0.1, 0.75)(3)) == pytest.approx(0.75)
    assert float(make_gold_rate("exponential", 0.5)(2)) == pytest.approx(0.25)
    assert float(make_gold_rate("inverse_sigmoid", 3)(0)) == pytest.approx(0.75)
    assert float(make_gold_rate("never")(0)) == 0.0
    assert float(make_gold_rate("always")(9)) == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoamSchedule(8, 0), "warmup_steps=0"),
        (lambda: NoamSchedule(0), "dim=0"),
        (lambda: InverseSquareRootSchedule(-1.0), "peak=-1.0"),
        (lambda: ConstantGoldRate(1.5), "rate=1.5"),
        (lambda: LinearGoldRate(c=0.0), "c=0.0"),
        (lambda: LinearGoldRate(c=0.1, minimum=1.0), "Received: 1.0"),
        (lambda: ExponentialGoldRate(1.0), "k=1.0"),
        (lambda: InverseSigmoidGoldRate(0.5), "k=0.5"),
        (lambda: make_gold_rate("cosine"), "'exponential'.*decay='cosine'"),
        (lambda: make_gold_rate("linear"), '"linear" needs `c`'),
        (lambda: make_gold_rate("inverse_sigmoid"), '"inverse_sigmoid" needs `k`'),
        (lambda: make_gold_rate("exponential", 0.9, c=0.1), "c=0.1"),
        (lambda: make_gold_rate("never", minimum=0.1), 'of decay "never".*minimum=0.1'),
    ],
)
def test_wrong_arguments_are_refused_with_their_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
