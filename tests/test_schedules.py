"""Learning-rate schedules: published values, the first update, saving."""

import keras
import numpy as np
import pytest

from keras_seq2seq.schedules import InverseSquareRootSchedule, NoamSchedule


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoamSchedule(8, 0), "warmup_steps=0"),
        (lambda: NoamSchedule(0), "dim=0"),
        (lambda: InverseSquareRootSchedule(-1.0), "peak=-1.0"),
    ],
)
def test_wrong_arguments_are_refused_with_their_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
