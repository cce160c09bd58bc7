"""From a CSV file to a forecast: training, resume, evaluation, command line."""

import csv
import io
import json
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import keras_seq2seq as ks
from keras_seq2seq.callbacks import is_better
from keras_seq2seq.cli import app
from keras_seq2seq.config import config_to_toml, load_config
from keras_seq2seq.forecast_evaluation import (
    evaluate_forecaster,
    forecast_errors,
    repeat_last,
    ridge_on_lags,
)
from keras_seq2seq.forecaster import window_shape
from keras_seq2seq.forecasting import train_forecaster
from keras_seq2seq.runs import RunState
from keras_seq2seq.series import Scaling, read_series
from keras_seq2seq.series_config import SeriesRunConfig
from keras_seq2seq.series_windows import SeriesWindows, WindowShape

RECIPE = """
[series]
path = "{folder}/wave.csv"
targets = ["level", "slope"]
inputs = ["other"]
time = "date"
source_length = 8
target_length = 4
rows_per_step = 2
splits = [59, 20, 17]
center = "last"
calendar = ["hour"]
season = 8
[model]
name = "RegressionSeq2Seq"
units = 4
dropout = 0.1
[training]
epochs = 3
batch_size = 24
learning_rate = 0.01
"""


@pytest.fixture
def folder(tmp_path, quiet):
    """A series of 96 hours with a period of 8, and a recipe for it."""
    return write_series(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same with a finished run, which no test changes."""
    folder = write_series(tmp_path_factory.mktemp("forecasting"))
    train_forecaster(config_of(folder), folder / "run", progress=False)
    return folder


@pytest.fixture
def quiet(monkeypatch):
    """The command line's way with warnings does not leak."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)


def write_series(folder):
    """Writes the series and its recipe; returns the folder."""
    hours = np.arange(96)
    rows = np.stack(
        [
            50 + 10 * np.sin(hours / 4 * np.pi),
            20 + 5 * np.cos(hours / 4 * np.pi),
            hours % 3,
        ],
        axis=1,
    )
    lines = ["date,other,level,slope"]
    for hour, (level, slope, other) in zip(hours, rows, strict=True):
        date = f"2024-01-{1 + hour // 24:02d} {hour % 24:02d}:00:00"
        lines.append(f"{date},{other},{level:.6f},{slope:.6f}")
    text = "\n".join(lines) + "\n"
    (folder / "wave.csv").write_text(text, encoding="utf-8")
    recipe = RECIPE.format(folder=folder.as_posix())
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    return folder


def config_of(folder, *overrides):
    return load_config(folder / "recipe.toml", overrides)


def cli(*arguments):
    return CliRunner().invoke(app, [str(item) for item in arguments])


def weights(path):
    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_recipe_with_series_is_a_forecasting_run(folder):
    config = config_of(folder, "training.epochs=7")
    assert isinstance(config, SeriesRunConfig)
    assert config.training.epochs == 7
    again = folder / "again.toml"
    again.write_text(config_to_toml(config), encoding="utf-8")
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("series.horizon=3", 'Unknown key "horizon" in \\[series\\]'),
        ("series.calender=['hour']", 'Did you mean "calendar"'),
        ("training.batch_tokens=3", 'Unknown key "batch_tokens" in \\[training\\]'),
        ("model.unit=3", 'Did you mean "units"'),
        ("model.name='TransformerSeq2Seq'", "must be one of RegressionSeq2Seq"),
        ("model.target_dim=3", "set by \\[series\\]"),
        ("series.rows_per_step=3", "rows_per_step=3, source_length=8"),
        ("series.splits=[0.5, 0.5, 0.5]", "at most 1 in sum"),
        ("series.splits=[59.5, 20, 10]", "must be rows, or fractions"),
        ("series.separate=true", "no place for inputs"),
        ("series.season=9", "season=9, source_length=8"),
        ("series.targets=['other']", "named twice"),
        ("training.weight_decay=0.1", 'optimizer = "adamw"'),
        ("training.min_learning_rate=0.1", "min_learning_rate=0.1, learning_rate=0.01"),
        ("series.splits=[59, 20]", r'"splits" in \[series\] must have more.*59, 20'),
        ("series.splits=[-1, 20, 17]", r'"splits" in \[series\].*Received: -1'),
        ("model.units=4.5", r'"units" in \[model\] should be a valid integer'),
        # A source has four vectors of two rows.
        ("model.residual_lag=5", "residual_lag=5, source_length=8, rows_per_step=2"),
        ("model.linear_lags=8", "linear_lags=8, source_length=8, rows_per_step=2"),
    ],
)
def test_mistakes_of_a_recipe_are_named(folder, override, message):
    with pytest.raises(ValueError, match=message):
        config_of(folder, override)


def test_validation_settings_need_validation_rows(folder):
    with pytest.raises(ValueError, match="early_stopping_patience in"):
        config_of(
            folder, "series.splits=[59, 0, 16]", "training.early_stopping_patience=2"
        )
    with pytest.raises(ValueError, match='schedule = "plateau" in'):
        config_of(folder, "series.splits=[59, 0, 16]", "training.schedule=plateau")


def test_run_folder_holds_what_a_forecast_needs(trained, tmp_path):
    run = trained / "run"
    names = {path.name for path in run.iterdir()}
    parts = {"run.toml", "scaling.json", "model.keras", "metrics.jsonl"}
    assert names >= parts | {"checkpoints", "data_report.json"}
    rows = [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(row["windows_per_second"] > 0 for row in rows)
    assert not any("tokens_per_second" in row for row in rows)
    scaling = Scaling.load(run / "scaling.json")
    values = read_series(trained / "wave.csv", ["level", "slope", "other"]).values
    np.testing.assert_allclose(scaling.mean, values[:59].mean(axis=0))

    forecaster = ks.load(shutil.copytree(run, tmp_path / "moved"))
    assert type(forecaster) is ks.Forecaster
    # The validation loss is that of real forecasts of the best model.
    windows = forecaster.windows(
        read_series(trained / "wave.csv", scaling.columns, time="date"), "valid"
    )
    inputs, following, level = windows.window(windows.origins)
    outputs, _ = forecaster.model.forecast(inputs["source"], 2, future=inputs["future"])
    found = windows.shape.rows(keras.ops.convert_to_numpy(outputs)) + level
    best = min(row["val_loss"] for row in rows)
    assert np.mean((found - following) ** 2) == pytest.approx(best, rel=1e-4)


def test_forecast_goes_on_after_the_last_row(trained):
    folder, forecaster = trained, ks.load(trained / "run")
    times, values = forecaster.forecast_file(folder / "wave.csv")
    assert times == [f"2024-01-05 0{hour}:00:00" for hour in range(4)]
    assert values.shape == (4, 2)
    longer, more = forecaster.forecast_file(folder / "wave.csv", horizon=7)
    assert len(longer) == 7
    np.testing.assert_allclose(more[:4], values, rtol=1e-5)
    stopped, _ = forecaster.forecast_file(
        folder / "wave.csv", stop_fn=lambda rows: rows[:, -1, 0] > -1e9
    )
    assert len(stopped) == 2  # one vector of two rows
    series = read_series(folder / "wave.csv", forecaster.config.series.columns)
    with pytest.raises(ValueError, match=r"source_length=8 rows\. Received: 7"):
        short = type(series)(
            series.columns,
            series.values[:7],
            series.times[:7],
            series.time_texts[:7],
        )
        forecaster(short)
    with pytest.raises(ValueError, match="Received: 0"):
        forecaster(series, horizon=0)
    names = ("slope", "level", "other")
    swapped = read_series(folder / "wave.csv", names)
    with pytest.raises(ValueError, match=r"level, slope, other.*Received: slope, lev"):
        forecaster(swapped)
    with pytest.raises(ValueError, match="in this order. Received: slope"):
        forecaster.windows(swapped, "test")
    with pytest.raises(ValueError, match=r"'train', 'valid', 'test'.*'dev'"):
        forecaster.windows(series, "dev")


def test_stopping_is_refused_where_columns_are_forecast_one_by_one(folder):
    options = ("series.separate=true", "series.inputs=[]", "series.rows_per_step=1")
    config = config_of(folder, *options)
    columns = config.series.columns
    model = ks.RegressionSeq2Seq(**window_shape(config.series).model_sizes, units=2)
    scaling = Scaling(columns, np.zeros(2), np.ones(2))
    forecaster = ks.Forecaster(model, scaling, config)
    series = read_series(folder / "wave.csv", columns, time="date")
    assert forecaster(series, horizon=3).shape == (3, 2)
    with pytest.raises(
        ValueError, match=r"`stop_fn` must be None.*Received: <function"
    ):
        forecaster(series, stop_fn=lambda rows: rows[:, -1, 0] > 0)


def test_speed_of_training_leaves_out_the_validation(folder, monkeypatch):
    """48 windows in 2 seconds are 24 a second, however long the forecasts take."""
    from keras_seq2seq import callbacks, forecasting

    clock, original = [0.0], forecasting.forecast_windows

    class Updates(forecasting._FiniteLoss):
        def on_epoch_end(self, epoch, logs=None):
            clock[0] += 2.0

    def forecast(*arguments):
        clock[0] += 100.0
        return original(*arguments)

    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(forecasting, "_FiniteLoss", Updates)
    monkeypatch.setattr(forecasting, "forecast_windows", forecast)
    config = config_of(folder, "training.epochs=1")
    run = train_forecaster(config, folder / "run", progress=False)
    (line,) = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert (row["windows_per_second"], row["seconds"]) == (24, 102)


class Killed(Exception):
    """Ends a training as a signal would."""


def test_stopped_run_ends_with_the_weights_of_one_that_was_not(
    trained, folder, monkeypatch
):
    config = config_of(trained)

    from keras_seq2seq import forecasting

    class Kill(forecasting._FiniteLoss):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(forecasting, "_FiniteLoss", Kill)
        with pytest.raises(Killed):
            train_forecaster(config, folder / "stopped", progress=False)
    stopped = train_forecaster(config, folder / "stopped", progress=False)
    for name in ("checkpoints/epoch_0003.keras", "model.keras"):
        for old, new in zip(
            weights(trained / "run" / name), weights(stopped / name), strict=True
        ):
            np.testing.assert_array_equal(old, new)


def test_series_changed_before_the_first_epoch_does_not_go_with_the_old_scaling(
    folder, monkeypatch
):
    from keras_seq2seq import forecasting

    class Kill(forecasting._FiniteLoss):
        def on_epoch_begin(self, epoch, logs=None):
            raise Killed

    config = config_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(forecasting, "_FiniteLoss", Kill)
        with pytest.raises(Killed):
            train_forecaster(config, folder / "run", progress=False)
    text = (folder / "wave.csv").read_text(encoding="utf-8")
    (folder / "wave.csv").write_text(text.replace("50.0", "51.0"), encoding="utf-8")
    with pytest.raises(ValueError, match="has changed since the run began"):
        train_forecaster(config, folder / "run", progress=False)


def test_changed_series_or_settings_do_not_continue_a_run(folder, trained):
    shutil.copytree(trained / "run", folder / "run")
    path = f"series.path={(trained / 'wave.csv').as_posix()}"
    with pytest.raises(ValueError, match=r"model\.units: 4 there, 5 now"):
        train_forecaster(config_of(folder, path, "model.units=5"), folder / "run")
    text = (folder / "wave.csv").read_text(encoding="utf-8")
    (folder / "wave.csv").write_text(text.replace("50.0", "51.0"), encoding="utf-8")
    run = folder / "run" / "run.toml"
    recipe = run.read_text(encoding="utf-8")
    run.write_text(recipe.replace(str(trained), str(folder)), encoding="utf-8")
    before = run.read_bytes()
    longer = config_of(folder, "training.epochs=4")
    with pytest.raises(ValueError, match=r"has changed since the run began.*wave\.csv"):
        train_forecaster(longer, folder / "run", progress=False)
    assert run.read_bytes() == before
    with pytest.raises(ValueError, match=r"first 59 rows of .*wave\.csv must be those"):
        evaluate_forecaster(ks.load(folder / "run"))


def test_evaluation_needs_the_part_and_the_rows_that_were_learned_from(folder, trained):
    shutil.copytree(trained / "run", folder / "run")
    run = folder / "run" / "run.toml"
    recipe = run.read_text(encoding="utf-8").replace(str(trained), str(folder))
    run.write_text(recipe, encoding="utf-8")
    with (folder / "wave.csv").open("a", encoding="utf-8") as file:
        file.write("2024-01-05 00:00:00,0,50.0,20.0\n")
    assert evaluate_forecaster(ks.load(folder / "run"))["windows"] == 14
    # Fractions of a file that grew: the training part has other rows.
    old = "splits = [59.0, 20.0, 17.0]"
    assert old in recipe
    run.write_text(recipe.replace(old, "splits = [0.7, 0.1, 0.2]"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"first 68 rows .*scaling\.json"):
        evaluate_forecaster(ks.load(folder / "run"))
    run.write_text(recipe.replace(old, "splits = [59, 20, 0]"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"no rows in the test part.*59\.0, 20\.0, 0"):
        evaluate_forecaster(ks.load(folder / "run"))


def test_run_of_the_other_kind_is_not_continued(folder, trained, tiny_run):
    with pytest.raises(ValueError, match="holds a run of text, and this one is of a s"):
        train_forecaster(config_of(folder), tiny_run)
    from keras_seq2seq.trainer import train

    with pytest.raises(ValueError, match="holds a run of a series, and this one is of"):
        train(load_config(tiny_run / "run.toml"), trained / "run")


def test_finished_run_says_how_it_could_go_on(folder, trained, capsys):
    """As far as it can: not under a cosine, not by epochs if it stopped early."""
    train_forecaster(config_of(trained), trained / "run")
    assert "Raise training.epochs to continue" in capsys.readouterr().err
    state, text = RunState(epoch=3, completed=3), "another folder"
    config = config_of(folder, "training.schedule=cosine")
    assert state.is_finished(config)
    assert text in state.finished_message(config, folder)
    options = ("training.epochs=9", "training.early_stopping_patience=2")
    config, state = (
        config_of(folder, *options),
        RunState(epoch=3, completed=3, waited=2),
    )
    assert state.is_finished(config)
    text = "Raise training.early_stopping_patience"
    assert text in state.finished_message(config, folder)


def test_forecasts_that_are_no_numbers_are_never_the_best():
    assert is_better("loss", np.nan, None)  # a run has a model from its first epoch
    assert is_better("loss", 2.0, np.nan)
    assert not is_better("loss", np.nan, np.nan)
    assert not is_better("loss", np.nan, 2.0)


def test_cosine_falls_to_zero_and_ends_with_its_last_epoch(folder):
    options = ("training.schedule=cosine", "training.epochs=2")
    config = config_of(folder, *options)
    run = train_forecaster(config, folder / "run", progress=False)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rates = [json.loads(line)["learning_rate"] for line in lines]
    assert rates == pytest.approx([0.005, 0], abs=1e-9)
    longer = config_of(folder, options[0], "training.epochs=3")
    with pytest.raises(ValueError, match="epochs=3, 2 in"):
        train_forecaster(longer, run, progress=False)


def test_teacher_forcing_is_validated_by_forecasts(folder):
    config = config_of(folder, 'model.feedback="target"', "training.epochs=1")
    run = train_forecaster(config, folder / "run", progress=False)
    (line,) = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    forecaster = ks.load(run)
    series = read_series(
        folder / "wave.csv", forecaster.config.series.columns, time="date"
    )
    windows = forecaster.windows(series, "valid")
    inputs, following, level = windows.window(windows.origins)
    target = windows.shape.target(following - level)
    forced = forecaster.model({**inputs, "target": target})
    found = windows.shape.rows(keras.ops.convert_to_numpy(forced)) + level
    forced_error = np.mean((found - following) ** 2)
    assert json.loads(line)["val_loss"] != pytest.approx(forced_error, rel=1e-3)


def wave_windows(part, season=8):
    rows = np.arange(96)
    values = np.sin(rows / season * 2 * np.pi)[:, None].astype("float32")
    shape = WindowShape(1, 0, 0, source_length=8, target_length=4)
    return SeriesWindows(values, np.zeros((96, 0), "float32"), shape, part)


def test_naive_rows_by_hand():
    windows = wave_windows((80, 96))
    truth = windows.window(windows.origins)[1]
    last = repeat_last(windows)
    before = windows.values[windows.origins - 1]
    np.testing.assert_array_equal(last[:, 0], before)
    np.testing.assert_array_equal(last[:, 3], before)
    np.testing.assert_allclose(repeat_last(windows, 8), truth, atol=1e-5)
    np.testing.assert_array_equal(
        repeat_last(windows, 2)[:, 2], windows.values[windows.origins - 2]
    )


def test_ridge_of_one_training_window_forecasts_what_followed_it():
    train, windows = wave_windows((0, 12)), wave_windows((80, 96))
    assert len(train.origins) == 1
    found = ridge_on_lags(train, None, windows)
    np.testing.assert_allclose(found[5, :, 0], train.values[8:12, 0], atol=1e-6)


@pytest.mark.parametrize("part", [(60, 80), None])
def test_ridge_finds_a_linear_recurrence(part):
    """A sine follows y_t = 2 cos(w) y_(t-1) - y_(t-2), which lags can express."""
    train, valid = wave_windows((0, 60)), part and wave_windows(part)
    windows = wave_windows((80, 96))
    truth = windows.window(windows.origins)[1]
    found = ridge_on_lags(train, valid, windows)
    assert found.shape == truth.shape
    np.testing.assert_allclose(found, truth, atol=0.02)


def test_errors_by_hand():
    scaling = Scaling(("x",), np.array([10.0]), np.array([2.0]))
    forecasts = np.array([[[1.0], [0.0]]])  # 12 and 10
    following = np.array([[[0.0], [-2.0]]])  # 10 and 6
    errors = forecast_errors(forecasts, following, scaling)
    assert errors == pytest.approx(
        {
            "mse": 2.5,
            "mae": 1.5,
            "mse_units": 10,
            "mae_units": 3,
            "mape": 100 * (2 / 10 + 4 / 6) / 2,
        }
    )
    zero = forecast_errors(forecasts, np.array([[[0.0], [-4.999]]]), scaling)
    assert "mape" not in zero


def test_command_line_from_a_recipe_to_a_forecast(folder):
    recipe, run = folder / "recipe.toml", folder / "run"
    shown = cli("train", recipe, "--output", run, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "48 training and 17 validation windows: 4 vectors" in shown.stdout
    assert not run.exists()
    done = cli("train", recipe, "--output", run)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{run}\n"
    assert "val mse" in done.stderr and "Best MSE" in done.stderr

    evaluated = cli("evaluate", run, "--json", folder / "result.json")
    assert evaluated.exit_code == 0, evaluated.output
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result == json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert result["windows"] == 14
    assert list(result["rows"]) == [
        "model",
        "repeat last",
        "repeat the last 8",
        "ridge on 8 lags",
    ]
    for name, row in result["rows"].items():
        assert f"{row['mse']:.5g}" in evaluated.stdout, name

    forecast = cli("forecast", run, "--input", folder / "wave.csv")
    assert forecast.exit_code == 0, forecast.output
    rows = list(csv.reader(io.StringIO(forecast.stdout)))
    assert rows[0] == ["date", "level", "slope"]
    times, values = ks.load(run).forecast_file(folder / "wave.csv")
    assert [row[0] for row in rows[1:]] == times
    np.testing.assert_allclose(
        np.array([row[1:] for row in rows[1:]], "float64"), values, rtol=1e-8
    )
    written = cli(
        *("forecast", run, "--input", folder / "wave.csv"),
        *("--horizon", 2, "--output", folder / "out.csv"),
    )
    assert written.exit_code == 0, written.output
    assert (folder / "out.csv").read_text(encoding="utf-8").count("\n") == 3


def one_message(result):
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and result.stderr.count("Error: ") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def test_mistakes_of_the_command_line_are_one_message(folder, trained):
    recipe, run = folder / "recipe.toml", folder / "run"
    broken = folder / "broken.csv"
    lines = (folder / "wave.csv").read_text(encoding="utf-8").splitlines()
    lines[5] = lines[5].rpartition(",")[0] + ",?"
    broken.write_text("\n".join(lines), encoding="utf-8")
    setting = f"series.path={broken.as_posix()}"
    message = one_message(cli("train", recipe, "--output", run, "--set", setting))
    assert "Line 6" in message and "'?'" in message
    setting = "series.splits=[59, 20, 18]"
    message = one_message(cli("train", recipe, "--output", run, "--set", setting))
    assert "in sum 97, of 96" in message
    setting = "series.splits=[59, 3, 17]"
    message = one_message(cli("train", recipe, "--output", run, "--set", setting))
    assert "59 to 62" in message
    setting = "series.splits=[0, 20, 17]"
    message = one_message(cli("train", recipe, "--output", run, "--set", setting))
    assert "0.0, 20.0, 17.0" in message and "of 96 rows" in message
    setting = "series.time=level"
    message = one_message(cli("train", recipe, "--output", run, "--set", setting))
    assert "Line 2" in message
    assert not run.exists()
    shutil.copytree(trained / "run", run)
    message = one_message(cli("forecast", run, "--input", broken))
    assert "Line 6" in message
    message = one_message(cli("forecast", run, "--input", folder / "no.csv"))
    assert "`--input` must be a file" in message and "no.csv" in message
    for option, value in (("beam-size", 2), ("length-penalty", 0), ("source", "x")):
        message = one_message(cli("evaluate", run, f"--{option}", value))
        assert f"`--{option}` is for runs of text. Received: {value}" in message
    shutil.copyfile(folder / "wave.csv", run / "scaling.json")
    message = one_message(cli("forecast", run, "--input", folder / "wave.csv"))
    assert "scaling.json must hold the scaling" in message


def test_text_run_does_not_forecast(folder, tiny_run):
    message = one_message(cli("forecast", tiny_run, "--input", folder / "wave.csv"))
    assert "must be one with [series]. Received:" in message


@pytest.mark.parametrize(
    "command",
    [
        "translate SERIES",
        "translate TEXT --ensemble SERIES",
        "score SERIES --source RECIPE --target RECIPE",
        "evaluate SERIES --ensemble SERIES",
        "inspect alignments SERIES text",
        "export SERIES",
        "verify nowhere --run SERIES",
        "compare RECIPE",
    ],
)
def test_series_run_writes_no_text(trained, tiny_run, quiet, command):
    verb = command.split()[0]
    if verb in ("export", "verify") and keras.backend.backend() != "tensorflow":
        pytest.skip("SavedModels are written on TensorFlow")
    run = trained / "run"
    names = {"SERIES": run, "TEXT": tiny_run, "RECIPE": trained / "recipe.toml"}
    message = one_message(cli(*(names.get(word, word) for word in command.split())))
    assert "of text. Received:" in message and "[series]" in message
    assert not (run / "exports").exists()


def test_loss_that_is_no_number_ends_the_run(folder):
    config = config_of(
        folder,
        "training.optimizer=sgd",
        "training.learning_rate=1e30",
        "training.clip_norm=1e30",
        "model.residual_lag=1",
        "model.linear_lags=1",
    )
    with pytest.raises(ValueError, match="Lower `learning_rate`"):
        train_forecaster(config, folder / "run", progress=False)
