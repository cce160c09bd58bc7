"""Comparing systems: one table, nothing done twice, what cannot be compared."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from keras_seq2seq import comparison, trainer
from keras_seq2seq.cli import app
from keras_seq2seq.comparison import compare
from keras_seq2seq.config import load_config
from keras_seq2seq.pipelines import Translator, load
from keras_seq2seq.speed import decoding_speeds, hardware, hardware_line
from tests.helpers import TINY_PAIRS

DATA = """
[data]
train = { path = "train.tsv" }
valid = { path = "valid.tsv" }
test = { path = "test.tsv" }
max_source_length = 8
max_target_length = 8
[tokenizer]
model_type = "char"
[evaluation]
metrics = ["chrf", "exact_match"]
"""
RECURRENT = """
[model]
name = "RecurrentSeq2Seq"
cell = "simple"
attention = "none"
bidirectional = false
units = 4
embedding_dim = 4
[training]
epochs = 2
batch_tokens = 128
num_buckets = 1
learning_rate = 0.01
average_checkpoints = 2
jit_compile = false
[decoding]
num_beams = 2
max_length = 8
"""
TRANSFORMER = """
[model]
name = "TransformerSeq2Seq"
dim = 8
num_heads = 2
feedforward_dim = 8
num_encoder_layers = 1
num_decoder_layers = 1
[training]
epochs = 1
batch_tokens = 128
num_buckets = 1
monitor = "exact_match"
jit_compile = false
[decoding]
num_beams = 1
max_length = 8
"""


def write_pairs(path, pairs):
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    path.write_text(lines, encoding="utf-8", newline="")


def write_recipe(name, text, replaced=()):
    """Writes a recipe into the current folder, from where its paths go."""
    text = DATA + text
    for old, new in dict(replaced).items():
        assert old in text
        text = text.replace(old, new)
    path = Path(f"{name}.toml")
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the three files of data."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "train.tsv", TINY_PAIRS[:40])
    write_pairs(folder / "valid.tsv", TINY_PAIRS[40:44])
    write_pairs(folder / "test.tsv", TINY_PAIRS[44:])
    return folder


@pytest.fixture(autouse=True)
def here(data, tmp_path, monkeypatch):
    """A copy of that folder of the test's own, with two recipes, as the current one."""
    folder = shutil.copytree(data, tmp_path / "here")
    monkeypatch.chdir(folder)
    write_recipe("recurrent", RECURRENT)
    write_recipe("transformer", TRANSFORMER)
    return folder


RECIPES = ["recurrent.toml", "transformer.toml"]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder of a comparison that went through, and its result."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(data)
        write_recipe("recurrent", RECURRENT)
        write_recipe("transformer", TRANSFORMER)
        return folder, compare(RECIPES, folder, progress=False)


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of that folder, and its result."""
    folder, result = whole
    return shutil.copytree(folder, tmp_path / "finished"), result


@pytest.fixture
def no_clock(monkeypatch):
    """Does without the decoding that measures speed; returns whom it was asked of."""
    asked = []

    def speeds(translators, texts, *, rounds):
        asked.append(list(translators))
        return {name: {"greedy": {"num_beams": 1}} for name in translators}

    monkeypatch.setattr(comparison, "decoding_speeds", speeds)
    return asked


@pytest.fixture
def work(monkeypatch):
    """Counts trainings, texts decoded and targets scored."""
    done = {"fit": [], "translate": 0, "score": 0}

    def counting(owner, name, count):
        original = getattr(owner, name)

        def counted(self, *args, **options):
            count(self, *args)
            return original(self, *args, **options)

        monkeypatch.setattr(owner, name, counted)

    def add(name):
        def count(self, texts, *_):
            done[name] += len(texts)

        return count

    counting(keras.Model, "fit", lambda self, *_: done["fit"].append(type(self)))
    counting(Translator, "translate", add("translate"))
    counting(Translator, "score", add("score"))
    return done


def json_of(path):
    return json.loads(path.read_text(encoding="utf-8"))


def table_of(text):
    """The cells of each system, by its name and the column; equal heads get a mark."""
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    head = [f"{name}*" if name in head[:n] else name for n, name in enumerate(head)]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_rows_hold_what_the_run_folders_hold(whole):
    folder, result = whole
    assert [row.name for row in result.rows] == ["recurrent", "transformer"]
    assert result.failed == []
    for row, recipe in zip(result.rows, RECIPES, strict=True):
        run = folder / row.name
        measured = json_of(run / "results.json")
        model = load(run).model
        epochs = epochs_of(run)
        assert row.status == "finished"
        assert row.recipe == recipe
        assert row.model == type(model).__name__
        assert row.quality == {
            name: measured[name] for name in ("chrf", "exact_match", "perplexity")
        }
        assert row.sentences == measured["sentences"] == 4
        assert row.parameters == sum(w.size for w in model.get_weights())
        assert row.seconds == pytest.approx(sum(e["seconds"] for e in epochs))
        assert row.epochs == len(epochs)
    recurrent, transformer = result.rows
    assert (recurrent.epochs, transformer.epochs) == (2, 1)
    assert (recurrent.monitor, transformer.monitor) == ("loss", "exact_match")
    assert transformer.best_epoch == 1
    (epoch,) = epochs_of(folder / "transformer")
    assert transformer.validation == epoch["val_exact_match"]
    assert recurrent.quality["perplexity"] != transformer.quality["perplexity"]


def epochs_of(run):
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_validation_is_that_of_the_model_that_was_kept(whole):
    folder, result = whole
    recurrent = result.rows[0]
    state = json_of(folder / "recurrent" / "checkpoints" / "state.json")
    averaged = (folder / "recurrent" / "checkpoints" / "best.keras").exists()
    assert (recurrent.best_epoch is None) == averaged
    expected = state["averaged_value"] if averaged else state["best_value"]
    assert recurrent.validation == expected
    if averaged:
        assert state["averaged_value"] < state["best_value"]


def test_speeds_are_of_the_same_sources_greedy_and_by_the_recipes_beam(whole):
    _, result = whole
    recurrent, transformer = result.rows
    assert set(recurrent.speed) == {"greedy", "beam"}
    assert set(transformer.speed) == {"greedy"}  # its beam is 1
    assert recurrent.speed["greedy"]["num_beams"] == 1
    assert recurrent.speed["beam"]["num_beams"] == 2
    assert result.speed["part"] == "valid"
    assert result.speed["sentences"] == 4
    for row in result.rows:
        for speed in row.speed.values():
            per_sentence = speed["tokens_per_second"] / speed["sentences_per_second"]
            assert 1 <= per_sentence <= 8.1
    found = result.speed["hardware"]
    assert found["backend"].split()[0] == keras.backend.backend()
    assert found["cores"] >= 1
    assert found == hardware()


def test_the_table_shows_the_numbers_and_each_signature_once(whole):
    folder, result = whole
    text = (folder / "compare.md").read_text(encoding="utf-8")
    assert text == result.markdown()
    table = table_of(text)
    for row in result.rows:
        cells = table[row.name]
        assert cells["model"] == row.model
        assert cells["chrF"] == f"{row.quality['chrf']:.2f}"
        assert cells["exact match, %"] == f"{row.quality['exact_match']:.2f}"
        assert cells["parameters"] == f"{row.parameters:,}"
        assert cells["epochs"] == str(row.epochs)
        greedy = row.speed["greedy"]
        assert cells["greedy: sentences/s"] == f"{greedy['sentences_per_second']:,.1f}"
        assert cells["tokens/s"] == f"{greedy['tokens_per_second']:,.1f}"
    assert table["recurrent"]["beam"] == "2"
    assert table["transformer"]["beam"] == "–"
    assert table["recurrent"]["validation"] == f"loss {result.rows[0].validation:.4f}"
    signature = json_of(folder / "recurrent" / "results.json")["chrf_signature"]
    assert text.count(signature) == 1
    assert "test.tsv, 4 sentences" in text
    assert f"Hardware: {hardware_line(hardware())}" in text


def test_the_file_holds_the_comparison(whole):
    folder, result = whole
    saved = json_of(folder / "compare.json")
    assert [row["quality"] for row in saved["rows"]] == [
        row.quality for row in result.rows
    ]
    assert saved["rows"][0]["speed"] == result.rows[0].speed
    assert saved["data"]["test"]["path"].endswith("test.tsv")
    assert saved["evaluation"]["metrics"] == ["chrf", "exact_match"]


def test_called_again_it_trains_and_decodes_nothing(finished, work):
    folder, result = finished
    again = compare(RECIPES, folder, progress=False)
    assert work == {"fit": [], "translate": 0, "score": 0}
    assert again.markdown() == result.markdown()
    assert json_of(folder / "compare.json")["rows"][1]["speed"] == result.rows[1].speed


def test_only_table_reads_back_and_writes_nothing(finished, tmp_path, work):
    folder, result = finished
    again = compare(RECIPES, folder, only_table=True, progress=False)
    assert again.markdown() == result.markdown()
    none = compare(RECIPES, tmp_path / "none", only_table=True, progress=False)
    assert [row.status for row in none.rows] == ["waiting"] * 2
    assert table_of(none.markdown())["recurrent (not finished)"]["chrF"] == "–"
    assert not (tmp_path / "none").exists()
    assert work == {"fit": [], "translate": 0, "score": 0}


def test_stopped_by_the_user_it_keeps_what_is_finished_and_goes_on(
    tmp_path, monkeypatch, no_clock
):
    original = trainer._fit

    def stopped(config, *args, **options):
        if config.model["name"] == "TransformerSeq2Seq":
            raise KeyboardInterrupt
        return original(config, *args, **options)

    output = tmp_path / "out"
    arguments = ["compare", *RECIPES, "--output", str(output)]
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_fit", stopped)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    rows = json_of(output / "compare.json")["rows"]
    assert [row["status"] for row in rows] == ["finished", "waiting"]
    text = (output / "compare.md").read_text(encoding="utf-8")
    assert set(table_of(text)) == {"recurrent", "transformer (not finished)"}
    assert no_clock == []

    trained, decoded = [], []
    fit, evaluate = trainer._fit, comparison.evaluate_files

    def noted_fit(config, *args, **options):
        trained.append(config.model["name"])
        return fit(config, *args, **options)

    def noted_evaluate(translator, *args, **options):
        decoded.append(type(translator.model).__name__)
        return evaluate(translator, *args, **options)

    monkeypatch.setattr(trainer, "_fit", noted_fit)
    monkeypatch.setattr(comparison, "evaluate_files", noted_evaluate)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert trained == decoded == ["TransformerSeq2Seq"]
    assert no_clock == [["recurrent", "transformer"]]  # both in one pass
    assert result.stdout == (output / "compare.md").read_text(encoding="utf-8")
    rows = json_of(output / "compare.json")["rows"]
    assert all(row["status"] == "finished" and row["speed"] for row in rows)


@pytest.mark.parametrize("change", ["weights", "decoding", "text"])
def test_a_result_of_other_weights_settings_or_text_is_not_read_back(
    finished, change, work, no_clock
):
    folder, result = finished
    run, before, overrides = folder / "transformer", result.rows[1], []
    recipe = ["transformer.toml"]
    if change == "weights":
        model = load(run).model
        model.set_weights([2 * weight for weight in model.get_weights()])
        model.save(run / "model.keras")
    elif change == "decoding":
        overrides = ["decoding.max_length=3"]
    else:
        write_pairs(Path("test.tsv"), [*TINY_PAIRS[45:], ("a b", "a b")])
    options = {"overrides": overrides, "progress": False}
    stale = compare(recipe, folder, only_table=True, **options)
    assert [row.status for row in stale.rows] == ["waiting"]
    assert work["translate"] == 0
    (after,) = compare(recipe, folder, **options).rows
    assert after.status == "finished"
    assert work == {"fit": [], "translate": 4, "score": 4}
    assert (after.weights_sha256 != before.weights_sha256) == (change == "weights")
    assert after.decoding["max_length"] == (3 if change == "decoding" else 8)
    # What was measured of the system as it was says nothing of it as it is.
    assert no_clock == [["transformer"]]


def test_a_failed_system_is_reported_and_the_others_go_on(finished, work, no_clock):
    folder, _ = finished
    write_recipe(
        "diverges",
        RECURRENT,
        {"learning_rate = 0.01": "learning_rate = 1e38\noptimizer = 'sgd'"},
    )
    write_recipe("misspelt", RECURRENT, {"units = 4": "unit = 4"})
    write_recipe("heads", TRANSFORMER, {"num_heads = 2": "num_heads = 3"})
    names = ("diverges", "misspelt", "heads", "transformer")
    recipes = [f"{name}.toml" for name in names]
    result = CliRunner().invoke(app, ["compare", *recipes, "--output", str(folder)])
    assert result.exit_code == 1, result.output
    rows = {row["name"]: row for row in json_of(folder / "compare.json")["rows"]}
    assert [row["status"] for row in rows.values()] == [*["failed"] * 3, "finished"]
    assert "The loss is" in rows["diverges"]["reason"]
    assert 'Did you mean "units"' in rows["misspelt"]["reason"]
    assert "num_heads=3, dim=8" in rows["heads"]["reason"]
    table = table_of(result.stdout)
    assert set(table) == {*(f"{name} (failed)" for name in names[:3]), "transformer"}
    assert table["transformer"]["epochs"] == "1"
    assert "- diverges failed: The loss is" in result.stdout
    # What can be known before the first training is known before it.
    said = result.stderr
    assert said.index("misspelt failed") < said.index("heads failed")
    assert said.index("heads failed") < said.index("diverges, system 1 of 3")
    assert not (folder / "heads").exists()
    assert work["translate"] == 0


def test_a_fault_of_one_system_is_in_its_row_with_its_type(
    finished, monkeypatch, capsys, no_clock
):
    folder, _ = finished
    write_recipe("other", RECURRENT)

    def broken(*_, **__):
        raise MemoryError("no more")

    monkeypatch.setattr(trainer, "_fit", broken)
    result = compare(["other.toml", "transformer.toml"], folder, progress=False)
    assert [row.status for row in result.rows] == ["failed", "finished"]
    assert result.rows[0].reason == "MemoryError: no more"
    assert "Traceback" in capsys.readouterr().err


def test_a_folder_with_another_run_is_not_taken_for_this_one(finished):
    folder, _ = finished
    options = {"overrides": ["training.seed=5"], "progress": False}
    result = compare(RECIPES, folder, only_table=True, **options)
    assert [row.status for row in result.rows] == ["failed"] * 2
    assert "training.seed: 0 there, 5 now" in result.rows[0].reason


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({'"test.tsv"': '"valid.tsv"'}, r"- data.test: .*test.tsv.*valid.tsv"),
        ({'"train.tsv"': '"valid.tsv"'}, "- data.train: .*train.tsv.*valid.tsv"),
        (
            {'valid = { path = "valid.tsv" }\n': ""},
            "- data.valid: .* in recurrent.toml, None in other.toml",
        ),
        (
            {"[tokenizer]": "[data.cleaning]\ndrop_identical = true\n[tokenizer]"},
            "- data.cleaning: {} in recurrent.toml",
        ),
        (
            {'"chrf", "exact_match"': '"bleu"'},
            "- evaluation.metrics: .*'exact_match'.*'bleu'",
        ),
    ],
)
def test_recipes_of_other_data_or_evaluation_are_refused_with_the_difference(
    tmp_path, replaced, message
):
    write_recipe("other", TRANSFORMER, replaced)
    with pytest.raises(ValueError, match=message):
        compare(["recurrent.toml", "other.toml"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_overwriting_spares_the_runs_of_the_recipes(finished, work, no_clock):
    folder, result = finished
    options = {"overwrite": True, "progress": False}
    again = compare(RECIPES, folder, **options)
    assert again.markdown() == result.markdown()
    assert work == {"fit": [], "translate": 0, "score": 0}
    other = compare(RECIPES[1:], folder, overrides=["training.seed=5"], **options)
    assert [row.status for row in other.rows] == ["finished"]
    assert len(work["fit"]) == 1


def test_a_run_of_more_epochs_than_the_recipe_wants_is_not_taken_for_it(
    finished, work, no_clock
):
    folder, _ = finished
    options = {"overrides": ["training.epochs=1"], "progress": False}
    for only_table in (True, False):
        result = compare(RECIPES, folder, only_table=only_table, **options)
        assert [row.status for row in result.rows] == ["failed", "finished"]
        assert "a run of 2 epochs, the recipe wants 1" in result.rows[0].reason
    assert work["fit"] == []
    text = (folder / "recurrent" / "run.toml").read_text(encoding="utf-8")
    assert "epochs = 2" in text
    result = compare(RECIPES, folder, overwrite=True, **options)
    assert [row.epochs for row in result.rows] == [1, 1]
    assert len(work["fit"]) == 1


@pytest.mark.parametrize("part", ["train", "valid"])
def test_systems_trained_on_text_that_has_changed_since_are_not_mixed_with_others(
    finished, part, work, no_clock
):
    folder, _ = finished
    pairs = TINY_PAIRS[1:41] if part == "train" else TINY_PAIRS[41:44]
    write_pairs(Path(f"{part}.tsv"), pairs)
    result = compare(RECIPES, folder, progress=False)
    assert [row.status for row in result.rows] == ["failed"] * 2
    expected = f"[data.{part}] has changed since {folder / 'recurrent'} was made"
    assert expected in result.rows[0].reason
    assert work == {"fit": [], "translate": 0, "score": 0}
    result = compare(RECIPES[1:], folder, overwrite=True, progress=False)
    assert [row.status for row in result.rows] == ["finished"]


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": [{}], "speed": {}}'])
def test_a_table_that_cannot_be_read_is_measured_anew(finished, content, no_clock):
    folder, _ = finished
    (folder / "compare.json").write_text(content, encoding="utf-8")
    result = compare(RECIPES, folder, progress=False)
    assert result.failed == []
    assert no_clock == [["recurrent", "transformer"]]
    assert json_of(folder / "compare.json")["rows"][0]["status"] == "finished"


def test_sources_for_speed_are_spread_over_the_whole_set():
    write_pairs(Path("valid.tsv"), [(f"a{n}", "b") for n in range(400)])
    part, texts = comparison._speed_texts(load_config("recurrent.toml"))
    assert (part, len(texts), len(set(texts))) == ("valid", 256, 256)
    numbers = [int(text[1:]) for text in texts]
    assert numbers[0] == 0 and numbers[-1] == 398
    assert sum(number < 200 for number in numbers) == 128


def test_limits_of_length_and_tokenizers_may_differ():
    write_recipe("other", TRANSFORMER, {"max_source_length = 8": "too_long = 'cut'"})
    text = Path("other.toml").read_text(encoding="utf-8")
    Path("other.toml").write_text(text.replace('"char"', '"word"'), encoding="utf-8")
    result = compare(["recurrent.toml", "other.toml"], "out", only_table=True)
    assert [row.status for row in result.rows] == ["waiting"] * 2


SERIES = """
[series]
path = "no.csv"
targets = ["x"]
source_length = 4
target_length = 2
[model]
name = "RegressionSeq2Seq"
"""


def test_refusals_exit_2_with_one_message(tmp_path):
    Path("more").mkdir()
    shutil.copy("recurrent.toml", "more/recurrent.toml")
    write_recipe("untested", TRANSFORMER, {'test = { path = "test.tsv" }\n': ""})
    write_recipe("absent", RECURRENT, {"test.tsv": "absent.tsv"})
    write_recipe("broken", RECURRENT, {"units = 4": "unit = 4"})
    Path("series.toml").write_text(SERIES, encoding="utf-8")
    write_recipe("unscored", RECURRENT, {'"chrf", "exact_match"': '"chrf", "ter"'})
    for recipes, part in (
        (["recurrent.toml", "more/recurrent.toml"], "must differ in name"),
        (["untested.toml"], "no [data.test] in untested.toml"),
        (["absent.toml"], "absent.tsv"),
        (["no_such.toml"], "no_such.toml"),
        (["broken.toml"], 'Did you mean "units"'),
        (["series.toml"], "must be of text. Received: series.toml"),
        (["unscored.toml"], "'per'. Received: 'ter'"),
    ):
        output = tmp_path / "out"
        arguments = ["compare", *recipes, "--output", str(output)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("Error: ")
        assert part in result.stderr
        assert not output.exists()


class Clock:
    """A translator that takes a known time; the first call takes much longer."""

    def __init__(self, seconds, num_beams, clock):
        self.seconds, self.clock, self.calls = seconds, clock, []
        self.decoding = type("Decoding", (), {"num_beams": num_beams})

    def translate(self, texts, num_beams):
        first = num_beams not in self.calls
        self.calls.append(num_beams)
        # One of the later rounds is slow by chance.
        chance = 7.0 if self.calls.count(num_beams) == 3 else 1.0
        self.clock[0] += 99.0 if first else self.seconds * num_beams * chance
        hypothesis = type("Hypothesis", (), {"ids": np.zeros(6)})
        return [[hypothesis] for _ in texts]


def test_speed_is_the_median_without_the_round_that_compiles(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("keras_seq2seq.speed.time.perf_counter", lambda: now[0])
    quick, slow = Clock(0.5, 1, now), Clock(1.0, 4, now)
    found = decoding_speeds({"quick": quick, "slow": slow}, ["a"] * 8, rounds=3)
    assert quick.calls == [1] * 4
    assert slow.calls == [1, 4] * 4
    assert found["quick"] == {
        "greedy": {
            "num_beams": 1,
            "seconds": 0.5,
            "sentences_per_second": 16.0,
            "tokens_per_second": 96.0,
        }
    }
    assert found["slow"]["beam"]["seconds"] == 4.0
    assert found["slow"]["beam"]["tokens_per_second"] == 12.0
