"""Training: exact resume, what a run folder keeps, and what is refused."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from keras_seq2seq import callbacks, optimizers, trainer
from keras_seq2seq.callbacks import RunSaver, TextValidation, seed_variables
from keras_seq2seq.config import DecodingConfig, EvaluationConfig, load_config
from keras_seq2seq.corpora import Pair
from keras_seq2seq.models import RecurrentSeq2Seq
from keras_seq2seq.progress import Progress, duration
from keras_seq2seq.runs import RunState
from keras_seq2seq.tokenizers import TokenizerPair
from keras_seq2seq.trainer import train
from tests.helpers import TINY_PAIRS

RECIPE = """
[data.train]
path = "{folder}/train.tsv"
[data.valid]
path = "{folder}/valid.tsv"
[tokenizer]
model_type = "char"
[model]
name = "RecurrentSeq2Seq"
units = 4
embedding_dim = 4
attention = "none"
cell = "simple"
bidirectional = false
dropout = 0.3
[training]
epochs = 4
batch_tokens = 64
num_buckets = 2
seed = 2
learning_rate = 2.0
schedule = "plateau"
plateau_patience = 1
clip_norm = 1.0
jit_compile = false
monitor = "exact_match"
average_checkpoints = 2
[decoding]
max_length = 8
"""


def write_pairs(path, pairs):
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    path.write_text(lines, encoding="utf-8", newline="")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "train.tsv", TINY_PAIRS[:40])
    write_pairs(folder / "valid.tsv", TINY_PAIRS[40:])
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(folder=folder.as_posix()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """The run of the recipe, trained without interruption."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return train(load_config(recipe), folder, progress=False)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of that run, at another place."""
    return shutil.copytree(finished, tmp_path / "copy")


def rows_of(folder):
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    timing = ("seconds", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in timing} for row in rows]


def state_of(folder):
    text = (folder / "checkpoints" / "state.json").read_text(encoding="utf-8")
    return {key: value for key, value in json.loads(text).items() if key != "seconds"}


def checkpoint_of(folder):
    name = state_of(folder)["checkpoint"]
    return keras.saving.load_model(folder / "checkpoints" / name, safe_mode=True)


def weights_of(folder):
    return keras.saving.load_model(folder / "model.keras").get_weights()


def assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def files_of(folder):
    return {
        path.relative_to(folder): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


class Killed(Exception):
    pass


def kill_before_saving(monkeypatch):
    original = RunSaver.on_epoch_end

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            raise Killed
        original(self, epoch, logs)

    monkeypatch.setattr(RunSaver, "on_epoch_end", on_epoch_end)


def kill_within_saving(monkeypatch):
    original = callbacks.save_model

    def save_model(model, path):
        if path.name == "epoch_0003.keras":
            path.write_bytes(b"half of a file")
            raise Killed
        original(model, path)

    monkeypatch.setattr(callbacks, "save_model", save_model)


@pytest.mark.parametrize("kill", [kill_before_saving, kill_within_saving])
def test_a_killed_run_continues_to_the_weights_of_an_uninterrupted_one(
    kill, recipe, finished, tmp_path
):
    config = load_config(recipe)
    with pytest.MonkeyPatch.context() as patch:
        kill(patch)
        with pytest.raises(Killed):
            train(config, tmp_path / "run", progress=False)
    keras.utils.set_random_seed(12345)  # a new process has other generators
    folder = train(config, tmp_path / "run", progress=False)

    assert rows_of(folder) == rows_of(finished)
    assert [row["epoch"] for row in rows_of(folder)] == [1, 2, 3, 4]
    assert state_of(folder) == state_of(finished)
    ours, theirs = checkpoint_of(folder), checkpoint_of(finished)
    assert_equal(ours.get_weights(), theirs.get_weights())
    assert_equal(ours.optimizer.variables, theirs.optimizer.variables)
    assert_equal(weights_of(folder), weights_of(finished))


@pytest.mark.parametrize("form", ["steps", "two_pass"])
def test_scheduled_sampling_resumes_exactly_and_keeps_the_model_alone(
    form, recipe, finished, tmp_path
):
    prefix = "training.scheduled_sampling"
    settings = {"decay": "linear", "c": 0.02, "choice": "sample", "form": form}
    overrides = [f"{prefix}.{key}={value}" for key, value in settings.items()]
    config = load_config(recipe, overrides)
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_saving(patch)
        with pytest.raises(Killed):
            train(config, tmp_path / "run", progress=False)
    keras.utils.set_random_seed(12345)
    folder = train(config, tmp_path / "run", progress=False)

    assert rows_of(folder) == rows_of(whole)
    assert state_of(folder) == state_of(whole)
    assert state_of(whole)["sampling_updates"] == rows_of(whole)[-1]["updates"]
    ours, theirs = checkpoint_of(folder), checkpoint_of(whole)
    assert type(theirs) is RecurrentSeq2Seq
    assert_equal(ours.get_weights(), theirs.get_weights())
    assert_equal(ours.optimizer.variables, theirs.optimizer.variables)
    assert_equal(weights_of(folder), weights_of(whole))
    plain = checkpoint_of(finished).get_weights()
    pairs = zip(theirs.get_weights(), plain, strict=True)
    assert any((one != other).any() for one, other in pairs)


def test_the_compared_run_uses_every_part_of_the_state(finished):
    """Otherwise the comparison above would show little."""
    rows = rows_of(finished)
    assert rows[-1]["learning_rate"] < rows[0]["learning_rate"]
    assert all(state[1] > 0 for state in state_of(finished)["seeds"])
    assert seed_variables(checkpoint_of(finished))


def test_more_epochs_continue_a_finished_run(recipe, finished, tmp_path):
    short = load_config(recipe, ["training.epochs=3"])
    folder = train(short, tmp_path / "run", progress=False)
    assert [row["epoch"] for row in rows_of(folder)] == [1, 2, 3]
    train(load_config(recipe), folder, progress=False)
    assert rows_of(folder) == rows_of(finished)
    assert_equal(weights_of(folder), weights_of(finished))
    assert "epochs = 4" in (folder / "run.toml").read_text(encoding="utf-8")


def test_a_finished_run_says_so_and_changes_nothing(recipe, run, capsys):
    before = files_of(run)
    assert train(load_config(recipe), run) == run
    assert files_of(run) == before
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "finished after 4 epochs" in captured.err


def test_run_folder_is_complete_and_reports_on_the_data(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "run.toml",
        "tokenizer",
        "model.keras",
        "checkpoints",
        "metrics.jsonl",
        "data_report.json",
    }
    report = json.loads((finished / "data_report.json").read_text(encoding="utf-8"))
    assert report["train"]["kept"] == report["train"]["encoded"]["kept"] == 40
    assert report["valid"]["kept"] == 8
    assert [path.name for path in finished.parent.iterdir()] == ["finished"]


def test_rows_have_losses_from_token_totals(finished):
    for row in rows_of(finished):
        for prefix in ("", "val_"):
            loss, perplexity = row[f"{prefix}loss"], row[f"{prefix}perplexity"]
            assert perplexity == pytest.approx(np.exp(loss), rel=1e-4)
        assert {"val_bleu", "val_exact_match", "updates"} <= row.keys()


def test_the_best_model_needs_no_optimizer_and_is_that_of_its_epoch(finished):
    loaded = keras.saving.load_model(finished / "model.keras", safe_mode=True)
    assert not loaded.compiled
    state, rows = state_of(finished), rows_of(finished)
    best = max(rows, key=lambda row: (row["val_exact_match"], -row["val_loss"]))
    assert state["best_epoch"] == best["epoch"]
    assert state["best_value"] == best["val_exact_match"]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.units=3", "model.units: 4 there, 3 now"),
        ("training.seed=1", "training.seed: 2 there, 1 now"),
        ("data.cleaning.max_words=9", "data.cleaning.max_words: None there, 9 now"),
    ],
)
def test_another_run_in_the_folder_is_refused(recipe, run, override, line):
    before = files_of(run)
    with pytest.raises(ValueError) as error:
        train(load_config(recipe, [override]), run)
    assert str(run) in str(error.value)
    assert line in str(error.value)
    assert "--overwrite" in str(error.value)
    assert files_of(run) == before


def test_settings_of_use_may_change_and_are_kept(recipe, run, capsys):
    overrides = ["decoding.num_beams=2", "evaluation.lowercase=true"]
    train(load_config(recipe, overrides), run)
    assert "nothing to do" in capsys.readouterr().err
    kept = load_config(run / "run.toml")
    assert kept.decoding.num_beams == 2
    assert kept.evaluation.lowercase


def test_overwriting_replaces_the_run_and_spares_other_files(recipe, run):
    (run / "notes.txt").write_text("mine", encoding="utf-8")
    overrides = ["training.epochs=1", "model.units=3"]
    train(load_config(recipe, overrides), run, overwrite=True, progress=False)
    assert [row["epoch"] for row in rows_of(run)] == [1]
    assert keras.saving.load_model(run / "model.keras").get_config()["units"] == 3
    assert (run / "notes.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("data.train.path=nowhere.tsv", FileNotFoundError),
        ("tokenizer.vocabulary_size=5", ValueError),
        ("data.max_target_length=2", ValueError),
        ("model.units=0", ValueError),
        ("training.schedule=cosine", ValueError),  # 4000 updates of warm-up
    ],
)
def test_a_failed_overwrite_loses_nothing(recipe, run, override, error):
    before = files_of(run)
    with pytest.raises(error):
        train(load_config(recipe, [override]), run, overwrite=True, progress=False)
    assert files_of(run) == before
    assert [path.name for path in run.parent.iterdir()] == ["copy"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_other_things_is_refused(recipe, tmp_path, overwrite):
    (tmp_path / "thesis.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        train(load_config(recipe), tmp_path, overwrite=overwrite)
    with pytest.raises(ValueError, match="must be a folder"):
        train(load_config(recipe), tmp_path / "thesis.txt", overwrite=overwrite)


def test_changed_training_text_is_refused(run, finished, recipe, tmp_path):
    config = load_config(recipe, ["training.epochs=5"])
    path = recipe.parent / "train.tsv"
    original = path.read_bytes()
    try:
        write_pairs(path, TINY_PAIRS[1:41])
        with pytest.raises(ValueError, match=r"training data of .* has changed"):
            train(config, run, progress=False)
    finally:
        path.write_bytes(original)
    train(config, run, progress=False)
    assert [row["epoch"] for row in rows_of(run)] == [1, 2, 3, 4, 5]


def test_training_ends_early_when_nothing_improves(recipe, tmp_path, capsys):
    overrides = [
        "training.learning_rate=1e-30",
        "training.schedule=constant",
        "training.monitor=loss",
        "training.early_stopping_patience=2",
    ]
    config = load_config(recipe, overrides)
    folder = train(config, tmp_path / "run", progress=False)
    assert state_of(folder)["epoch"] == 3
    assert state_of(folder)["best_epoch"] == 1
    train(config, folder)
    assert "finished after 3 epochs" in capsys.readouterr().err


def test_a_loss_of_nan_ends_the_run_with_advice(recipe, tmp_path):
    overrides = [
        "training.learning_rate=1e38",
        "training.optimizer=sgd",
        "training.schedule=constant",
    ]
    config = load_config(recipe, overrides)
    with pytest.raises(
        ValueError, match=r"The loss is (nan|inf) in epoch \d.*clip_nor"
    ):
        train(config, tmp_path / "run", progress=False)


def test_mean_weights_become_the_model_if_they_validate_better(
    recipe, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(trainer, "is_better", lambda *_: True)
    config = load_config(recipe, ["training.epochs=2"])
    folder = train(config, tmp_path / "run")
    assert "mean weights of the last 2 epochs" in capsys.readouterr().err
    model = checkpoint_of(folder)
    kept = []
    for epoch in (1, 2):
        model.load_weights(folder / "checkpoints" / f"epoch_000{epoch}.weights.h5")
        kept.append(model.get_weights())
    for mean, first, second in zip(weights_of(folder), *kept, strict=True):
        np.testing.assert_allclose(mean, (first + second) / 2, atol=1e-7)
    best = keras.saving.load_model(folder / "checkpoints" / "best.keras")
    best_epoch = state_of(folder)["best_epoch"]
    assert_equal(best.get_weights(), kept[best_epoch - 1])

    # Killed after the mean was saved and before the run was marked as finished.
    state = state_of(folder) | {"completed": 0}
    (folder / "checkpoints" / "state.json").write_text(json.dumps(state), "utf-8")
    train(config, folder)
    best = keras.saving.load_model(folder / "checkpoints" / "best.keras")
    assert_equal(best.get_weights(), kept[best_epoch - 1])


@pytest.fixture
def averaged(recipe, tmp_path, monkeypatch):
    """A run of two epochs whose model is their mean."""
    monkeypatch.setattr(trainer, "is_better", lambda *_: True)
    config = load_config(recipe, ["training.epochs=2"])
    folder = train(config, tmp_path / "run", progress=False)
    monkeypatch.setattr(trainer, "is_better", lambda *_: False)
    return folder


def test_a_mean_that_is_put_back_is_forgotten_even_if_the_run_is_killed_then(
    recipe, averaged, monkeypatch
):
    assert state_of(averaged)["averaged_value"] is not None
    longer = load_config(recipe, ["training.epochs=3", "training.learning_rate=1e-30"])
    text = (averaged / "run.toml").read_text(encoding="utf-8")
    text = text.replace("learning_rate = 2.0", "learning_rate = 1e-30")
    (averaged / "run.toml").write_text(text, encoding="utf-8")
    best = keras.saving.load_model(averaged / "checkpoints" / "best.keras")
    with pytest.MonkeyPatch.context() as patch:
        kill_before_saving(patch)
        with pytest.raises(Killed):
            train(longer, averaged, progress=False)
    train(longer, averaged, progress=False)
    assert state_of(averaged)["averaged_value"] is None
    if state_of(averaged)["best_epoch"] < 3:
        assert_equal(weights_of(averaged), best.get_weights())


def test_averaging_that_is_turned_off_puts_the_best_epoch_back(recipe, averaged):
    best = keras.saving.load_model(averaged / "checkpoints" / "best.keras")
    overrides = ["training.epochs=2", "training.average_checkpoints=0"]
    train(load_config(recipe, overrides), averaged, progress=False)
    assert_equal(weights_of(averaged), best.get_weights())
    assert state_of(averaged)["averaged_value"] is None
    before = files_of(averaged)
    train(load_config(recipe, overrides), averaged, progress=False)
    assert files_of(averaged) == before


def test_only_the_last_epochs_are_averaged(recipe, tmp_path, monkeypatch, capsys):
    means = []
    monkeypatch.setattr(
        trainer, "set_mean_weights", lambda _, files: means.append(sorted(files))
    )
    settings = ((2, 2), (3, 0), (5, 4), (5, 2))  # epochs, of which so many averaged
    for epochs, count in settings:
        overrides = [f"training.epochs={epochs}"]
        overrides.append(f"training.average_checkpoints={count}")
        train(load_config(recipe, overrides), tmp_path / "run", progress=False)
    names = [[int(path.name[6:10]) for path in files] for files in means]
    assert names == [[1, 2], [4, 5], [4, 5]]
    (tmp_path / "run" / "checkpoints" / "epoch_0005.weights.h5").unlink()
    overrides[-1] = "training.average_checkpoints=3"
    train(load_config(recipe, overrides), tmp_path / "run")
    assert "average_checkpoints = 3 has nothing to average" in capsys.readouterr().err


def test_a_run_killed_while_it_is_prepared_can_be_prepared_again(
    recipe, tmp_path, monkeypatch
):
    original, run = type(tmp_path).rename, tmp_path / "run"

    def rename(self, target):
        original(self, target)
        if run in (target, target.parent):
            raise Killed

    config = load_config(recipe)
    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "rename", rename)
        with pytest.raises(Killed):
            train(config, run, prepare_only=True, progress=False)
    train(config, run, prepare_only=True, progress=False)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert (run / "run.toml").is_file() and (run / "tokenizer").is_dir()


def test_a_checkpoint_that_a_kill_left_behind_goes_with_the_next(recipe, run):
    left = run / "checkpoints" / "epoch_0002.keras"
    left.write_bytes(b"old")
    train(load_config(recipe, ["training.epochs=5"]), run, progress=False)
    found = {path.name for path in left.parent.glob("*.keras")} - {"best.keras"}
    assert found == {"epoch_0005.keras"}


def test_a_validation_loss_of_nan_ends_the_run_before_anything_is_saved(
    recipe, tmp_path
):
    # The one update is made after the loss of its batch, which is finite.
    options = ("learning_rate=1e38", "optimizer=sgd", "schedule=constant")
    options += ("num_buckets=1", "steps_per_epoch=1")
    config = load_config(recipe, [f"training.{option}" for option in options])
    with pytest.raises(ValueError, match=r"validation loss is (nan|inf) after epoch 1"):
        train(config, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "model.keras").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_without_progress_nothing_is_said_in_a_terminal(
    recipe, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    train(load_config(recipe, ["training.epochs=1"]), tmp_path / "run", progress=False)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_goes_to_stderr_one_line_an_epoch(recipe, tmp_path, capsys):
    train(load_config(recipe, ["training.epochs=2"]), tmp_path / "run")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2
    for part in ("epoch 1/2", "loss", "ppl", "val loss", "bleu", "tokens/s", "left"):
        assert part in lines[0]
    assert "train: 40 pairs read, 40 kept, 0 dropped" in captured.err


def test_a_run_without_validation_keeps_its_last_model(recipe, tmp_path):
    text = recipe.read_text(encoding="utf-8")
    start, end = text.index("[data.valid]"), text.index("[tokenizer]")
    path = tmp_path / "recipe.toml"
    path.write_text(text[:start] + text[end:], encoding="utf-8")
    with pytest.raises(ValueError, match=r"monitor, .*average.*, .*schedule needs val"):
        train(load_config(path), tmp_path / "run")
    overrides = [
        "training.monitor=loss",
        "training.average_checkpoints=0",
        "training.schedule=constant",
        "training.epochs=2",
    ]
    folder = train(load_config(path, overrides), tmp_path / "run", progress=False)
    assert_equal(weights_of(folder), checkpoint_of(folder).get_weights())
    assert "val_loss" not in rows_of(folder)[0]


def test_mixed_precision_trains_and_leaves_a_float32_model(recipe, tmp_path):
    before = keras.config.dtype_policy().name
    overrides = ["training.precision=mixed_bfloat16", "training.epochs=1"]
    folder = train(load_config(recipe, overrides), tmp_path / "run", progress=False)
    assert keras.config.dtype_policy().name == before
    assert checkpoint_of(folder).dtype_policy.name == "mixed_bfloat16"
    model = keras.saving.load_model(folder / "model.keras")
    assert model.dtype_policy.name == "float32"


def test_steps_per_epoch_counts_updates(recipe, tmp_path):
    overrides = ["training.steps_per_epoch=3", "training.epochs=2"]
    folder = train(load_config(recipe, overrides), tmp_path / "run", progress=False)
    assert [row["updates"] for row in rows_of(folder)] == [3, 6]


def test_tensorboard_logs_go_into_the_run_folder(recipe, tmp_path):
    overrides = ["training.tensorboard=true", "training.epochs=1"]
    folder = train(load_config(recipe, overrides), tmp_path / "run", progress=False)
    written = {}
    for path in (folder / "logs").rglob("*events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                written[path.parent.name, value.tag] = float(
                    tf.make_ndarray(value.tensor)
                )
    (row,) = rows_of(folder)
    assert written["train", "epoch_loss"] == pytest.approx(row["loss"])
    assert written["validation", "epoch_loss"] == pytest.approx(row["val_loss"])
    assert written["validation", "epoch_bleu"] == pytest.approx(row["val_bleu"])


def test_tensorboard_that_is_not_installed_is_said_at_once(
    recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install tensor"):
        train(load_config(recipe, ["training.tensorboard=true"]), tmp_path / "run")


def test_progress_in_a_terminal_shows_a_bar_that_ends(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress(epochs=2, epoch_size=100, monitor="bleu", state=RunState())
    progress.set_params({"steps": 5})
    with progress:
        for epoch in range(2):
            progress.on_epoch_begin(epoch)
            progress.shown = 0.0  # long ago
            progress.on_train_batch_end(3, {"token_loss": 1.5, "perplexity": 4.48})
            progress.on_epoch_end(epoch, {"loss": 1.25, "val_bleu": 30.0})
        progress.bar.refresh()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bleu 30.00" in captured.err
    assert progress.bar.finished or not progress.bar.live.is_started


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3725, "1:02:05"), (-3, "0:00")]
)
def test_durations_are_readable(seconds, text):
    assert duration(seconds) == text


def test_dry_run_reports_and_writes_nothing(recipe, tmp_path):
    report = train(load_config(recipe), tmp_path / "run", dry_run=True)
    assert list(tmp_path.iterdir()) == []
    assert "train: 40 pairs read, 40 kept, 0 dropped" in report
    assert report.count("  source_ids: ") == report.count("  target_ids: ") == 10
    pieces = [line for line in report.splitlines() if line.startswith("  target: ")]
    assert all(line.endswith(" </s>") for line in pieces)
    assert "parameters" in report
    assert "batches (B, S, T)" in report


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.optimizer=sgd", "training.beta_2=0.9"], "`beta_2` is no setting"),
        (["training.optimizer=adam", "training.momentum=0.9"], "momentum=0.9"),
    ],
)
def test_settings_that_an_optimizer_lacks_are_refused(
    recipe, tmp_path, overrides, message
):
    with pytest.raises(ValueError, match=message):
        train(load_config(recipe, overrides), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_lengths_beyond_the_positions_of_the_model_are_refused(recipe, tmp_path):
    text = recipe.read_text(encoding="utf-8")
    start, end = text.index("[model]"), text.index("[training]")
    model = '[model]\nname = "TransformerSeq2Seq"\ndim = 4\nnum_heads = 2\n'
    model += 'positions = "learned"\n'
    path = tmp_path / "recipe.toml"
    path.write_text(
        text[:start] + model + "max_positions = 100\n" + text[end:], encoding="utf-8"
    )
    with pytest.raises(ValueError, match="max_source_length=128, max_positions=100"):
        train(load_config(path), tmp_path / "run", progress=False)


def test_noam_takes_the_width_of_the_model_in_the_recipe_or_by_default(recipe):
    overrides = ["training.schedule=noam", "training.warmup_steps=10"]
    text = recipe.read_text(encoding="utf-8").replace("learning_rate = 2.0\n", "")
    path = recipe.with_name("noam.toml")
    path.write_text(text, encoding="utf-8")
    assert optimizers.learning_rate(load_config(path, overrides), 100).dim == 4
    path.write_text(text.replace("units = 4\n", ""), encoding="utf-8")
    assert optimizers.learning_rate(load_config(path, overrides), 100).dim == 256


def test_cosine_rises_and_falls_to_the_end_within_all_updates(recipe):
    options = ["schedule=cosine", "warmup_steps=10", "min_learning_rate=0.5"]
    config = load_config(recipe, [f"training.{option}" for option in options])
    rate = optimizers.learning_rate(config, 30)
    found = [float(rate(update)) for update in (0, 5, 10, 20, 30, 40)]
    assert found == pytest.approx([0.0, 1.0, 2.0, 1.25, 0.5, 0.5], abs=1e-6)
    with pytest.raises(ValueError, match="warmup_steps=10, 10 updates in all"):
        optimizers.learning_rate(config, 10)


def test_cosine_ends_with_the_last_epoch_of_the_run(recipe, tmp_path):
    options = ["schedule=cosine", "warmup_steps=1", "epochs=2"]
    settings = [f"training.{option}" for option in options]
    run = train(load_config(recipe, settings), tmp_path / "run", progress=False)
    rates = [line["learning_rate"] for line in rows_of(run)]
    assert rates[0] > 0 and rates[-1] == pytest.approx(0, abs=1e-6)
    longer = load_config(recipe, [*settings[:2], "training.epochs=3"])
    with pytest.raises(ValueError, match="epochs=3, 2 in"):
        train(longer, run, progress=False)


# 64 * 60 * 200,000 float32 logits, three times over.
def test_logits_that_hardly_fit_are_announced_with_numbers():
    with pytest.warns(UserWarning, match=r"64 targets x 60 tokens x 200,000.*8.6 GiB"):
        trainer._warn_of_large_logits([(4, 9, 9), (64, 50, 60)], 200_000)


def test_validation_keeps_to_the_lengths_of_the_decoding(monkeypatch):
    pairs = [Pair(source, target) for source, target in TINY_PAIRS]
    tokenizers = TokenizerPair.train(pairs, model_type="char")
    sizes = tokenizers.source.vocabulary_size, tokenizers.target.vocabulary_size
    model = RecurrentSeq2Seq(*sizes, units=4, embedding_dim=4)
    asked = []

    def noted(*arguments, **options):
        asked.append((options["min_length"], options["length_limits"].tolist()))
        return generate(*arguments, **options)

    generate = callbacks.generate
    monkeypatch.setattr(callbacks, "generate", noted)
    validation = TextValidation(
        [Pair("dé ca", "acdé"), Pair("d", "d")],
        tokenizers,
        metrics=["exact_match"],
        num_beams=1,
        decoding=DecodingConfig(
            min_length=3, max_length=9, max_length_ratio=1.0, max_length_offset=0
        ),
        evaluation=EvaluationConfig(),
        max_source_length=16,
    )
    validation.decode(model)
    lengths = [len(ids) for ids in validation.sources]
    assert asked == [(3, [lengths[0], max(3, lengths[1])])]


def test_validation_texts_keep_their_order_and_do_not_depend_on_the_batch():
    pairs = [Pair(source, target) for source, target in TINY_PAIRS]
    pairs = [*pairs[:5], Pair("a", "a"), Pair("dé ca" * 4, "acdé" * 4), *pairs[5:9]]
    tokenizers = TokenizerPair.train(pairs, model_type="char")
    keras.utils.set_random_seed(3)
    model = RecurrentSeq2Seq(
        tokenizers.source.vocabulary_size,
        tokenizers.target.vocabulary_size,
        units=4,
        embedding_dim=4,
        attention="none",
    )

    def validation(chosen, batch_tokens):
        return TextValidation(
            chosen,
            tokenizers,
            metrics=["exact_match"],
            num_beams=1,
            decoding=DecodingConfig(max_length=6, batch_tokens=batch_tokens),
            evaluation=EvaluationConfig(),
            max_source_length=16,
        )

    together = validation(pairs, 64)
    alone = [validation([pair], 8).decode(model)[0] for pair in pairs]
    assert together.decode(model) == alone
    assert len(set(alone)) > 1
    together.references = list(alone)
    assert together.scores(model) == {"val_exact_match": 100.0}
