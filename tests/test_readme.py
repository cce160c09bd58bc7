"""What the documentation shows exists: commands, options, links, keys and code."""

import ast
import inspect
import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from keras import ops

import keras_seq2seq as ks
from keras_seq2seq.cli import app
from keras_seq2seq.config import (
    DataConfig,
    DataFiles,
    DecodingConfig,
    EvaluationConfig,
    RunConfig,
    ScheduledSamplingConfig,
    TokenizerConfig,
    TrainingConfig,
    load_config,
)
from keras_seq2seq.corpora import Cleaning
from keras_seq2seq.series_config import SeriesConfig, SeriesTrainingConfig

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / "training" / "README.md", ROOT / "saved_models" / "README.md"),
]
RECIPES = sorted((ROOT / "training").glob("*.toml"))
# Tables of training.md by the heading or sentence that they follow.
KEY_TABLES = {
    "## `[data]`": DataConfig,
    "Each of `train`, `valid` and `test` is a table:": DataFiles,
    "## `[tokenizer]`": TokenizerConfig,
    "## `[training]`": TrainingConfig,
    "### `[training.scheduled_sampling]`": ScheduledSamplingConfig,
    "## `[decoding]`": DecodingConfig,
    "## `[evaluation]`": EvaluationConfig,
}


def read(path):
    return path.read_text(encoding="utf-8")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def blocks(path, language):
    """Code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(path), re.DOTALL | re.M)


def commands_in(path):
    """Argument lists of every `keras-seq2seq` command with a verb on a page."""
    if path.suffix == ".toml":
        lines = re.findall(r"^#\s+(keras-seq2seq .*)$", read(path), re.M)
    else:
        shell = "\n".join(blocks(path, "bash")).replace("\\\n", " ")
        rest = re.sub(r"^```.*?^```$", "", read(path), flags=re.DOTALL | re.M)
        lines = shell.splitlines() + re.findall(r"`(keras-seq2seq [^`]+)`", rest)
    found = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        while "keras-seq2seq" in words:
            words = words[words.index("keras-seq2seq") + 1 :]
            ends = (i for i, word in enumerate(words) if set(word) <= set("|&;<>()"))
            arguments = words[: next(ends, len(words))]
            if arguments:
                found.append(arguments)
    return found


def documented_commands():
    return [
        pytest.param(arguments, id=f"{name_of(path)}: {' '.join(arguments)}"[:90])
        for path in [*PAGES, *RECIPES]
        for arguments in commands_in(path)
    ]


def parse(arguments):
    """Parses as the command line does, running nothing; returns the parameters."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert arguments[0] in command.commands, f"no verb {arguments[0]}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command.make_context(command.name, list(arguments)).params


def rows_after(text, heading):
    """Cells of the first table after a line."""
    after = text[text.index(f"\n{heading}\n") :]
    table = re.search(r"^\|(?:.*\|\n)+", after, re.M)
    assert table, f"no table after {heading}"
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def as_written(default):
    """A default value as the tables write it."""
    if default is None:
        return "–"
    if default in (inspect.Parameter.empty, ...) or "Undefined" in repr(default):
        return "required"
    return f"`{json.dumps(default)}`"


def slugs(path):
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", read(path), flags=re.DOTALL | re.M)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("arguments", documented_commands())
def test_documented_command_is_one_that_the_command_line_takes(arguments):
    parameters = parse(arguments)
    recipes = [parameters.get("recipe"), *parameters.get("recipes", [])]
    for recipe in recipes:
        if recipe is None or recipe.parts[0] != "training":
            continue
        load_config(ROOT / recipe, parameters["overrides"] or [])


def test_commands_are_found_and_wrong_ones_are_refused():
    readme = commands_in(ROOT / "README.md")
    assert ["quickstart"] in readme
    assert ["translate", "saved_models/quickstart"] in readme  # behind a pipe
    for wrong in (["trian", "a.toml"], ["train", "a.toml", "--beam-size", "2"]):
        with pytest.raises(Exception, match=r"trian|beam-size"):
            parse(wrong)


def test_every_verb_is_documented():
    verbs = {arguments[0] for page in PAGES for arguments in commands_in(page)}
    assert verbs >= set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_relative_links_resolve(path):
    text = re.sub(r"^```.*?^```$", "", read(path), flags=re.DOTALL | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in slugs(linked), f"{target}: no such heading"


def test_readme_links_every_page_of_the_documentation():
    readme = read(ROOT / "README.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in readme


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_toml_is_valid(path, tmp_path):
    for number, text in enumerate(blocks(path, "toml")):
        values = tomllib.loads(text)
        if {"data", "model"} <= values.keys() or "series" in values:
            recipe = tmp_path / f"{number}.toml"
            recipe.write_text(text, encoding="utf-8")
            load_config(recipe)
        else:
            values.setdefault("model", {"name": "TransformerSeq2Seq"})
            values.setdefault("data", {}).setdefault("train", {"path": "a.tsv"})
            RunConfig.model_validate(values)


@pytest.mark.parametrize(
    ("heading", "table"),
    [("## `[series]`", SeriesConfig), ("## `[training]`", SeriesTrainingConfig)],
)
def test_forecasting_page_has_every_key_with_its_default(heading, table):
    rows = rows_after(read(ROOT / "docs" / "forecasting.md"), heading)
    assert {row[0].strip("`"): row[1] for row in rows} == {
        name: as_written(field.default) for name, field in table.model_fields.items()
    }


def test_forecasting_page_has_every_argument_with_its_default():
    rows = rows_after(read(ROOT / "docs" / "forecasting.md"), "## RegressionSeq2Seq")
    parameters = inspect.signature(ks.RegressionSeq2Seq).parameters.values()
    assert {row[0].strip("`"): row[1] for row in rows} == {
        parameter.name: as_written(parameter.default)
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }


@pytest.mark.parametrize("heading", KEY_TABLES)
def test_training_page_has_every_key_with_its_default(heading):
    fields = KEY_TABLES[heading].model_fields
    rows = rows_after(read(ROOT / "docs" / "training.md"), heading)
    assert {row[0].strip("`"): row[1] for row in rows} == {
        name: as_written(field.default) for name, field in fields.items()
    }


def test_data_page_has_every_cleaning_option_with_its_default():
    rows = rows_after(read(ROOT / "docs" / "data.md"), "## Cleaning")
    written = {row[0].strip("`"): row[1].strip("`") for row in rows}
    assert written == {
        name: as_written(parameter.default).strip("`")
        for name, parameter in inspect.signature(Cleaning).parameters.items()
    }


@pytest.mark.parametrize("name", sorted(ks.MODELS))
def test_models_page_has_every_argument_with_its_default(name):
    rows = rows_after(read(ROOT / "docs" / "models.md"), f"## {name}")
    parameters = inspect.signature(ks.MODELS[name]).parameters.values()
    assert {row[0].strip("`"): row[1] for row in rows} == {
        parameter.name: as_written(parameter.default)
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_python_compiles_and_uses_names_that_exist(path):
    for text in blocks(path, "python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ks":
                assert node.attr in ks.__all__, f"ks.{node.attr}"
            if isinstance(node, ast.ImportFrom):
                module = (node.module or "").split(".")
                if module[0] == "keras_seq2seq":
                    assert defined_in(module) >= {name.name for name in node.names}


def defined_in(module):
    """Names at the top level of one of the package's modules."""
    file = ROOT.joinpath(*module)
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    names = set()
    for node in ast.parse(read(file)).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def test_jax_install_command_has_all_dependencies_but_those_of_tensorflow():
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    wanted = {
        name.replace(" ", "")
        for name in project["dependencies"]
        if not name.startswith(("tensorflow", "keras-nlp"))
    }
    (text,) = (b for b in blocks(ROOT / "README.md", "bash") if "--no-deps" in b)
    lines = text.replace("\\\n", " ").splitlines()
    (command,) = (line for line in lines if "'keras" in line)
    installed = set(shlex.split(command)[2:])
    names = {re.split(r"[<>=]", requirement)[0] for requirement in wanted}
    assert {re.split(r"[<>=]", item)[0] for item in installed} == names | {"jax"}
    assert {item for item in installed if re.search("[<>=]", item)} <= wanted


def test_model_of_the_page_on_adding_one_keeps_the_contract():
    (text,) = blocks(ROOT / "docs" / "adding_a_model.md", "python")
    names = {}
    exec(compile(text, "adding_a_model.md", "exec"), names)
    model = names["MeanSeq2Seq"](9, 7, dim=4)
    source_ids = np.array([[5, 6, 3, 0], [8, 3, 0, 0]], "int32")
    target_ids = np.array([[2, 4, 5], [2, 6, 0]], "int32")
    logits = model({"source_ids": source_ids, "target_ids": target_ids})
    memory = model.encode(source_ids)
    state = model.initial_state(memory, 3)
    for position in range(3):
        found, state, _ = model.step(target_ids[:, position], memory, state)
        np.testing.assert_allclose(
            ops.convert_to_numpy(found),
            ops.convert_to_numpy(logits[:, position]),
            atol=1e-6,
        )
    result = ks.beam_search(
        model.step, memory, model.initial_state(memory, 5), num_beams=3, max_length=5
    )
    assert np.all(ops.convert_to_numpy(result.lengths) >= 1)
    copy = type(model).from_config(model.get_config())
    assert copy.count_params() == model.count_params()
