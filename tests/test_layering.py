"""Holds the rules of CONTRIBUTING.md on which module may import which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "keras_seq2seq"
TENSORFLOW = {"tensorflow", "tensorflow_text", "keras_hub", "keras_nlp"}

# First name below the package: the first names that it may import, itself aside.
ALLOWED = {
    # Tensors, no text.
    "buffers": set(),
    "gathers": set(),
    "layers": {"buffers", "gathers"},
    "models": {"buffers", "gathers", "layers"},
    "decoding": {"buffers", "gathers"},
    "losses": {"gathers"},
    "metrics": {"losses"},
    "schedules": set(),
    "training_modes": {"buffers", "layers"},
    # Text, no tensors.
    "lines": set(),
    "cleaning": {"lines"},
    "corpora": {"lines", "cleaning"},
    "dates": {"corpora"},
    "prepare": {"lines", "corpora", "dates"},
    # What reads files that may come from strangers.
    "untrusted": set(),
    "normalization": set(),
    "tokenizer_training": {"normalization"},
    "tokenizers": {"normalization", "tokenizer_training", "untrusted"},
    "encoding": {"tokenizers", "corpora", "untrusted"},
    "datasets": {"encoding", "corpora", "tokenizers"},
    "batches": set(),
    "series": {"lines", "untrusted"},
    "series_windows": set(),
    "analysis": set(),
    # The configuration stops at these, `pipelines` and the command line.
    "toml_files": {"untrusted"},
    "tables": set(),
    "config_mistakes": set(),
    "config": {
        "config_mistakes",
        "toml_files",
        "models",
        "corpora",
        "schedules",
        "series_config",
        "tables",
        "training_modes",
    },
    "series_config": {"config_mistakes", "models", "tables"},
    "runs": {
        "config",
        "series_config",
        "corpora",
        "tokenizers",
        "encoding",
        "datasets",
        "untrusted",
    },
    "callbacks": {
        "config",
        "series_config",
        "runs",
        "batches",
        "corpora",
        "tokenizers",
        "decoding",
        "evaluation",
        "requests",
        "training_modes",
    },
    "progress": {"runs"},
    "optimizers": {"config", "models", "schedules", "series_config"},
    "trainer": {
        "config",
        "optimizers",
        "runs",
        "callbacks",
        "progress",
        "datasets",
        "tokenizers",
        "models",
        "losses",
        "metrics",
        "schedules",
        "training_modes",
        "untrusted",
    },
    # Text and tensors together.
    "scoring": {"batches", "decoding", "tokenizers"},
    "requests": {"config", "decoding", "tokenizers"},
    "outputs": {"decoding", "tokenizers"},
    "jobs": set(),
    "sentences": set(),
    "translator": {
        "sentences",
        "requests",
        "outputs",
        "config",
        "lines",
        "batches",
        "scoring",
        "tokenizers",
        "decoding",
    },
    "pipelines": {
        "translator",
        "outputs",
        "config",
        "models",
        "forecaster",
        "series",
        "series_config",
        "tokenizers",
        "untrusted",
    },
    "ensembles": {"models", "pipelines"},
    "evaluation": {"lines", "scoring"},
    "speed": set(),
    "comparison_table": {"progress", "runs", "speed"},
    "comparison": {
        "actions",
        "comparison_table",
        "config",
        "console",
        "corpora",
        "encoding",
        "evaluation",
        "pipelines",
        "runs",
        "speed",
        "trainer",
    },
    # Numbers in place of text.
    "forecaster": {"series", "series_config", "series_windows"},
    "forecast_evaluation": {"forecaster", "series", "series_windows"},
    "forecasting": {
        "config",
        "series_config",
        "series_windows",
        "series",
        "runs",
        "callbacks",
        "progress",
        "models",
        "optimizers",
        "forecaster",
        "untrusted",
    },
    "export": {
        "batches",
        "buffers",
        "config",
        "corpora",
        "decoding",
        "evaluation",
        "lines",
        "outputs",
        "pipelines",
        "requests",
        "scoring",
        "tokenizers",
        "translator",
        "untrusted",
    },
    "serving": {"export"},
}
# The command line: may import every module, all but each other inside functions only.
FRONT = {
    "__init__",
    "__main__",
    "actions",
    "cli",
    "cli_deploy",
    "cli_options",
    "console",
    "doctor",
    "quickstart",
}

# Where one function needs TensorFlow itself, and why.
TENSORFLOW_INSIDE_FUNCTIONS = {
    "decoding/programs.py": "tf.function compiles the search on that backend",
    "gathers.py": "tf.gather is one operation where Keras's are many",
    "serving/grpc_client.py": "the protocol is made of TensorFlow's messages",
    "serving/loaded.py": "the loader that TF Serving uses",
    "serving/tensor_messages.py": "tensors as TensorFlow's messages",
    "serving/warmup.py": "TensorFlow reads its records",
}
WITHOUT_TENSORFLOW = (
    "layers",
    "models",
    "decoding",
    "losses",
    "metrics",
    "schedules",
    "training_modes",
    "corpora",
    "tokenizers",
    "datasets",
    "config",
    "trainer",
    "pipelines",
    "evaluation",
    "series_windows",
    "forecaster",
    "forecasting",
    "forecast_evaluation",
    "serving.client",
    "serving.json_replies",
    "serving.json_values",
    "serving.rest",
)

MODULES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """Full names that a module imports, each with whether it does so at top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        or _is_type_checking(function)
        for node in ast.walk(function)
    }
    package = ("keras_seq2seq", *path.relative_to(PACKAGE).parent.parts)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(name, id(node) not in inside) for name in names]
    return found


def _is_type_checking(node) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def own_name(path: Path) -> str:
    """The first name below the package: `models` for models/base.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_module_imports_only_the_layers_below_it(path):
    name = own_name(path)
    siblings = {own_name(module) for module in MODULES} - {"__init__"}
    for imported, _ in imports_of(path):
        parts = imported.split(".")
        if parts[0] != "keras_seq2seq" or name in FRONT:
            continue
        assert len(parts) > 1 and parts[1] in siblings, (
            f"{name} imports {imported}; name the module in place of the package"
        )
        assert parts[1] == name or parts[1] in ALLOWED[name], (
            f"{name} may not import {imported}"
        )


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_tensorflow_is_imported_by_export_only(path):
    relative = path.relative_to(PACKAGE).as_posix()
    for imported, at_top_level in imports_of(path):
        if imported.split(".")[0] not in TENSORFLOW or own_name(path) == "export":
            continue
        assert not at_top_level, f"{relative} imports {imported} at top level"
        assert relative in TENSORFLOW_INSIDE_FUNCTIONS, f"{relative}: {imported}"


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_command_line_imports_nothing_heavy_at_top_level(path):
    if own_name(path) not in FRONT:
        return
    for imported, at_top_level in imports_of(path):
        top = imported.split(".")[0]
        if at_top_level and top not in {"typer", "keras_seq2seq"}:
            assert top in sys.stdlib_module_names, f"{path.name} imports {imported}"
        if at_top_level and top == "keras_seq2seq":
            # Front modules are light themselves.
            light = {*FRONT, "__version__"}
            assert imported.split(".")[1] in light, f"{path.name} imports {imported}"


def opens_text_without_encoding(call: ast.Call) -> bool:
    """Whether a call opens, reads or writes text in the locale's encoding."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else ""
    name = function.id if isinstance(function, ast.Name) else name
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in given or None in given:
        return False
    if name in {"read_text", "write_text"}:  # of a path, not `runs.write_text`
        return isinstance(function, ast.Attribute)
    if name == "TextIOWrapper":
        return True
    if name in {"run", "Popen", "check_output"}:
        return bool({"text", "universal_newlines"} & given.keys())
    if name not in {"open", "fdopen", "NamedTemporaryFile", "TemporaryFile"}:
        return False
    # `EncodedCorpus.open`, `gzip.open` and such open no text by default.
    owner = function.value if isinstance(function, ast.Attribute) else None
    if isinstance(owner, ast.Name) and owner.id in {"gzip", "EncodedCorpus"}:
        return False
    modes = [given["mode"]] if "mode" in given else call.args
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    return not any(isinstance(text, str) and "b" in text for text in texts)


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_text_is_never_opened_in_the_encoding_of_the_locale(path):  # (B123)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if opens_text_without_encoding(call)]


def test_the_search_for_locale_encodings_finds_some():
    bad = ("open(p)", "p.open('w')", "p.read_text()", "run(c, text=True)")
    good = ("open(p, 'rb')", "p.open(mode='wb')", "p.read_text(encoding='utf-8')")
    for line in bad + good:
        (statement,) = ast.parse(line).body
        assert opens_text_without_encoding(statement.value) == (line in bad), line


def test_every_module_has_a_place_in_the_layers():
    assert {own_name(path) for path in MODULES} - FRONT <= set(ALLOWED)


def test_no_module_may_import_one_that_may_import_it():
    below = {name: set(imported) for name, imported in ALLOWED.items()}
    for middle in below:
        for name in below:
            if middle in below[name]:
                below[name] |= below[middle]
    assert not [name for name, found in below.items() if name in found]


def test_modules_stay_below_five_hundred_lines():
    long = {
        identity: lines
        for path, identity in zip(MODULES, IDS, strict=True)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert not long


def run_python(code: str, **environment: str) -> str:
    """Standard output of a fresh Python process that runs `code`."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=PACKAGE.parent,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_runs_on_jax_where_tensorflow_is_not_installed():
    code = f"""
import importlib, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {TENSORFLOW!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, NotInstalled())
for name in {WITHOUT_TENSORFLOW!r}:
    importlib.import_module("keras_seq2seq." + name)
import keras
print(keras.backend.backend(), sorted({TENSORFLOW!r} & set(sys.modules)))
"""
    assert run_python(code, KERAS_BACKEND="jax") == "jax []\n"


def test_models_decoding_and_trainer_import_no_installed_tensorflow_on_jax():
    code = """
import sys
import keras_seq2seq.models, keras_seq2seq.decoding, keras_seq2seq.trainer
print("tensorflow" in sys.modules)
"""
    assert run_python(code, KERAS_BACKEND="jax") == "False\n"


def test_importing_the_package_and_its_command_line_loads_nothing_heavy():
    code = f"""
import sys
import keras_seq2seq, keras_seq2seq.cli
heavy = {TENSORFLOW!r} | {{"keras", "numpy", "jax", "matplotlib", "sacrebleu"}}
print(sorted(heavy & set(sys.modules)))
"""
    assert run_python(code) == "[]\n"
