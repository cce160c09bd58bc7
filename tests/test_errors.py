"""What users get wrong: one clear message, exit code 2, and nothing lost."""

import pytest
from typer.testing import CliRunner

from keras_seq2seq.cli import app
from tests.helpers import TINY_PAIRS

RECIPE = """
[data.train]
source = "{folder}/train.source"
target = "{folder}/train.target"
[tokenizer]
model_type = "{model_type}"
vocabulary_size = {vocabulary_size}
[model]
name = "RecurrentSeq2Seq"
units = 4
embedding_dim = 4
[training]
epochs = 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Parallel text, a recipe for it, and a run of another recipe."""
    for side, name in enumerate(("source", "target")):
        lines = "".join(f"{pair[side]}\n" for pair in TINY_PAIRS)
        path = tmp_path / f"train.{name}"
        path.write_text(lines, encoding="utf-8", newline="")
    write_recipe(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)
    return tmp_path


def write_recipe(folder, *, model_type="char", vocabulary_size=64):
    text = RECIPE.format(
        folder=folder.as_posix(), model_type=model_type, vocabulary_size=vocabulary_size
    )
    (folder / "recipe.toml").write_text(text, encoding="utf-8")


def cli(*arguments, input=None):
    return CliRunner().invoke(app, [str(item) for item in arguments], input=input)


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def train_in_vain(folder, *options):
    """The one message of a `train` that fails and leaves every file as it was."""
    before = contents(folder)
    recipe, output = folder / "recipe.toml", folder / "run"
    result = cli("train", recipe, "--output", output, *options)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("Error: ") == 1
    assert "Traceback" not in result.stderr
    assert contents(folder) == before
    return result.stderr[result.stderr.index("Error: ") :]


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("epochs", "epoch", 'key "epoch" in [training]. Did you mean "epochs"?'),
        ("[training]", "[trainig]", '"trainig" in the file. Did you mean "training"?'),
        ("units", "unit", 'key "unit" in [model]. Did you mean "units"?'),
        ("source =", "sorce =", '"sorce" in [data.train]. Did you mean "source"?'),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest(folder, right, wrong, found):
    recipe = folder / "recipe.toml"
    text = recipe.read_text(encoding="utf-8").replace(right, wrong)
    recipe.write_text(text, encoding="utf-8")
    assert found in train_in_vain(folder)


def test_a_misspelt_override_is_named_with_the_nearest(folder):
    message = train_in_vain(folder, "--set", "training.lerning_rate=0.1")
    assert 'Did you mean "learning_rate"?' in message


def test_a_missing_recipe_is_named(folder):
    (folder / "recipe.toml").unlink()
    assert "recipe.toml" in train_in_vain(folder)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_missing_data_file_is_named(folder, side):
    (folder / f"train.{side}").unlink()
    message = train_in_vain(folder)
    assert f"train.{side}" in message and f"`{side}`" in message


def test_a_missing_validation_file_is_found_before_training(folder):
    message = train_in_vain(folder, "--set", "data.valid.path=nowhere.tsv")
    assert "nowhere.tsv" in message


def test_unequal_line_counts_name_both_files_and_counts(folder):
    with (folder / "train.source").open("a", encoding="utf-8") as file:
        file.write("\nmore\n")
    message = train_in_vain(folder)
    assert "train.source has 50" in message
    assert "train.target has 48" in message
    assert "Look first at line 49" in message


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("déca\n".encode("cp1252") * 48, ["line 1", "0xe9", 'encoding="cp1252"']),
        (("ok\n" * 48).encode("utf-16"), ["line 1", 'encoding="utf-16"']),
    ],
)
def test_a_wrong_encoding_names_file_line_and_option(folder, content, parts):
    (folder / "train.target").write_bytes(content)
    message = train_in_vain(folder)
    for part in ("train.target", *parts):
        assert part in message


def test_an_encoding_given_in_the_recipe_is_used(folder):
    text = (folder / "train.source").read_text(encoding="utf-8")
    for side in ("source", "target"):
        (folder / f"train.{side}").write_bytes(text.encode("cp1252"))
    option = ("--set", "data.train.encoding=cp1252", "--dry-run")
    result = cli("train", folder / "recipe.toml", "--output", folder / "run", *option)
    assert result.exit_code == 0, result.stderr
    assert "48" in result.stdout


@pytest.mark.parametrize("lines", ["", "\n\n", " \n\u200b\n"])
def test_an_empty_corpus_is_refused(folder, lines):
    for side in ("source", "target"):
        (folder / f"train.{side}").write_text(lines, encoding="utf-8", newline="")
    message = train_in_vain(folder)
    assert "[data.train] must have at least one pair" in message
    for part in ("train.source", "train.target", "read, 0 kept"):
        assert part in message


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("key", ["vocabulary_size", "target_vocabulary_size"])
def test_a_named_vocabulary_size_that_the_corpus_cannot_fill_is_refused(
    folder, model_type, key
):
    message = train_in_vain(
        folder,
        *("--set", f"tokenizer.model_type={model_type}"),
        *("--set", "tokenizer.vocabulary_size=25"),
        *("--set", f"tokenizer.{key}=8000"),
    )
    assert f"`{key}` in [tokenizer]" in message
    assert "8,000; the largest possible is " in message


@pytest.mark.filterwarnings("default:The texts allow:UserWarning")
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_default_vocabulary_size_becomes_the_largest_possible(
    folder, model_type
):  # (B22)
    write_recipe(folder, model_type=model_type, vocabulary_size=8000)
    recipe = folder / "recipe.toml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("vocabulary_size = 8000\n", ""), encoding="utf-8")
    before = contents(folder)
    recipe = folder / "recipe.toml"
    result = cli("train", recipe, "--output", folder / "run", "--dry-run")
    assert result.exit_code == 0, result.stderr
    warned = [line for line in result.stderr.splitlines() if "8000" in line]
    assert warned
    assert all(line.startswith("Warning: ") for line in warned)
    assert contents(folder) == before


def test_a_vocabulary_smaller_than_the_alphabet_names_the_least(folder):  # (B23)
    write_recipe(folder, vocabulary_size=5)
    message = train_in_vain(folder)
    assert "`vocabulary_size` must be at least" in message
    assert "Received: 5" in message


def test_another_run_in_the_folder_is_kept_and_the_difference_named(folder, tiny_run):
    tiny_run.rename(folder / "run")
    message = train_in_vain(folder)
    assert "holds another run" in message
    assert "model.name: 'TransformerSeq2Seq' there, 'RecurrentSeq2Seq' now" in message
    assert "--overwrite" in message


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_folder_of_other_things_is_kept(folder, overwrite):
    (folder / "run").mkdir()
    (folder / "run" / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert "holds no run" in train_in_vain(folder, *overwrite)


def test_a_failed_overwrite_keeps_the_other_run(folder, tiny_run):
    tiny_run.rename(folder / "run")
    (folder / "train.target").write_bytes(b"caf\xe9\n" * 48)
    assert "train.target, line 1" in train_in_vain(folder, "--overwrite")


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.txt", b"caf\xe9\n", "a.txt, line 1"),
        ("missing.txt", None, "missing.txt"),
    ],
)
def test_a_bad_input_file_leaves_the_output_as_it_was(
    folder, tiny_run, name, content, part
):
    if content is not None:
        (folder / name).write_bytes(content)
    (folder / "out.txt").write_text("earlier\n", encoding="utf-8")
    before = contents(folder)
    options = ("--input", folder / name, "--output", folder / "out.txt")
    result = cli("translate", tiny_run, *options)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ") and part in result.stderr
    assert contents(folder) == before
