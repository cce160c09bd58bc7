"""The command line around exports: what is written, verified, and decoded with."""

import json
import shutil

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from keras_seq2seq import actions, translator
from keras_seq2seq.cli import app
from tests.helpers import end_early, spread, write_untrained_run

pytestmark = pytest.mark.export

LINES = ["ca déb", "", "b", "dc a", "  ", "日 x", "abcd abcd", "déca", "a"]
TEXT = "".join(f"{line}\n" for line in LINES)


def ending(model):
    """Outputs that end, without the tokens that CTranslate2 does not ban."""
    end_early(model)
    bias = np.array(model.output_projection.bias)
    bias[:3] = -100.0
    model.output_projection.bias.assign(bias)


@pytest.fixture(scope="module")
def transformer_run(tmp_path_factory, tiny_tokenizers):
    """A run that searches as CTranslate2 does, and whose outputs end."""
    keras.utils.set_random_seed(5)
    return write_untrained_run(
        tmp_path_factory.mktemp("cli") / "transformer",
        tiny_tokenizers,
        name="TransformerSeq2Seq",
        dim=8,
        num_heads=2,
        feedforward_dim=8,
        num_encoder_layers=1,
        num_decoder_layers=2,
        norm="pre",
        tie_output=False,
        change=ending,
        decoding={
            "num_beams": 2,
            "max_length": 64,
            "stop": "count",
            "length_penalty_base": 0.0,
        },
    )


@pytest.fixture(scope="module")
def recurrent_run(tmp_path_factory, tiny_tokenizers):
    return write_untrained_run(
        tmp_path_factory.mktemp("cli") / "recurrent",
        tiny_tokenizers,
        name="RecurrentSeq2Seq",
        cell="gru",
        units=8,
        embedding_dim=8,
        change=spread,
        decoding={"num_beams": 1, "max_length": 8, "max_length_offset": 3},
    )


@pytest.fixture(scope="module")
def cli():
    """Runs a command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.setattr("warnings.showwarning", lambda *_, **__: None)
        runner = CliRunner()

        def run(*arguments, input=None):
            return runner.invoke(app, [str(item) for item in arguments], input=input)

        yield run


@pytest.fixture(scope="module")
def fast(cli, transformer_run):
    """The run with an export for CTranslate2 that the command line wrote."""
    pytest.importorskip("ctranslate2")
    result = cli("export", transformer_run, "--format", "ctranslate2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{transformer_run / 'exports' / 'ctranslate2'}\n"
    return transformer_run


@pytest.fixture(scope="module")
def small(cli, recurrent_run):
    """The run with an export for phones that the command line wrote."""
    pytest.importorskip("ai_edge_litert.interpreter")
    result = cli(
        *("export", recurrent_run, "--format", "litert", "--quantization", "float16"),
        *("--output", recurrent_run / "exports" / "litert"),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{recurrent_run / 'exports' / 'litert'}\n"
    return recurrent_run


def refused(result, *parts):
    """One message, exit code 2, and nothing else."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def test_export_takes_options_of_its_format(cli, fast, small, tmp_path):
    assert manifest_of(small / "exports" / "litert")["quantization"] == "float16"
    assert manifest_of(fast / "exports" / "ctranslate2")["quantization"] is None
    folder = tmp_path / "int8"
    options = ("--quantization", "int8", "--beam-size", 3, "--length-penalty", 0.25)
    result = cli(
        *("export", fast, "--format", "ctranslate2", "--output", folder, *options)
    )
    assert (result.exit_code, result.stdout) == (0, f"{folder}\n"), result.stderr
    manifest = manifest_of(folder)
    assert manifest["quantization"] == "int8"
    assert manifest["decoding"]["num_beams"] == 3
    assert manifest["decoding"]["length_penalty"] == 0.25


@pytest.mark.parametrize(
    ("format", "option", "value"),
    [
        ("ctranslate2", "max-length", "5"),
        ("ctranslate2", "version", "2"),
        ("ctranslate2", "name", "dates"),
        ("litert", "name", "dates"),
        ("litert", "version", "2"),
        ("litert", "jit", None),
        ("saved_model", "quantization", "int8"),
    ],
)
def test_options_of_another_format_are_refused(
    cli, transformer_run, tmp_path, format, option, value
):
    given = [f"--{option}"] if value is None else [f"--{option}", value]
    output = tmp_path / "export"
    result = cli(
        *("export", transformer_run, "--format", format, "--output", output, *given)
    )
    shown = "True" if value is None else value
    refused(
        result,
        f"`--{option}` is not an option of --format {format}. Received: {shown}.",
    )
    assert not output.exists()


def test_wrong_quantizations_and_existing_folders_are_refused(cli, fast, small):
    export = ("export", fast, "--format", "ctranslate2")
    refused(cli(*export), "exports/ctranslate2, which exists", "`overwrite`")
    again = cli(*export, "--overwrite")
    assert again.exit_code == 0, again.stderr
    result = cli(*export, "--quantization", "int7", "--overwrite")
    refused(result, "Received: quantization='int7'")
    result = cli("export", small, "--format", "ctranslate2")
    refused(result, "CTranslate2 runs Transformers only. Received: RecurrentSeq2Seq")
    result = cli("export", small, "--format", "onnx")
    assert result.exit_code == 2
    assert "'onnx' is not one of" in result.stderr


def test_verify_reads_sentences_and_references(cli, fast, tmp_path):
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text(TEXT, encoding="utf-8")
    answers = cli("translate", fast, input=TEXT).stdout
    target.write_text(answers, encoding="utf-8")
    verify = ("verify", fast / "exports" / "ctranslate2")
    files = ("--source", source, "--run", fast)
    result = cli(*verify, *files, "--target", target)
    assert result.exit_code == 0, result.output
    rows = [line.split(maxsplit=1)[0] for line in result.stdout.splitlines()]
    assert rows == ["files", "vocabularies", "runs", "merged", "translate", "BLEU"]
    assert "9 answers as in Python" in result.stdout
    result = cli(*verify, *files, "--target", target, "--limit", 4)
    assert "4 answers as in Python" in result.stdout
    for missing in (("--source", source), ("--run", fast)):
        refused(cli(*verify, *missing, "--target", target), "`--target` needs --source")
    target.write_text("one\n", encoding="utf-8")
    refused(cli(*verify, *files, "--target", target), "Received: 1 for 9.")
    refused(cli(*verify, "--source", tmp_path / "no.txt"), "no.txt")


def test_verify_exits_1_where_a_check_fails(cli, fast, small, tmp_path):
    folder = shutil.copytree(fast / "exports" / "ctranslate2", tmp_path / "export")
    assert cli("verify", folder).exit_code == 0
    with (folder / "model.bin").open("ab") as file:
        file.write(b"x")
    result = cli("verify", folder)
    assert (result.exit_code, result.stderr) == (1, "")
    assert "files         FAILED  not as in manifest.json: model.bin" in result.stdout
    whole = cli("verify", small / "exports" / "litert", "--run", small)
    assert whole.exit_code == 0, whole.output
    assert "8 of 8 answers as in Python" in whole.stdout


@pytest.mark.parametrize("kind", ["ctranslate2", "litert"])
def test_a_runtime_writes_what_the_run_does(cli, request, kind):
    run = request.getfixturevalue({"ctranslate2": "fast", "litert": "small"}[kind])
    expected = cli("translate", run, input=TEXT)
    assert expected.exit_code == 0, expected.stderr
    assert len(set(expected.stdout.splitlines())) > 3
    for folder in (run, run / "exports" / kind):
        found = cli("translate", folder, "--runtime", kind, input=TEXT)
        assert found.exit_code == 0, found.stderr
        assert found.stdout == expected.stdout
    lines = [
        cli("translate", run, *more, "--format", "jsonl", input=TEXT).stdout
        for more in ((), ("--runtime", kind))
    ]
    assert "NaN" not in lines[1]
    for one, two in zip(*(text.splitlines() for text in lines), strict=True):
        (mine,), (theirs,) = (json.loads(line)["hypotheses"] for line in (one, two))
        assert theirs.pop("score") == pytest.approx(mine.pop("score"), rel=2e-3)
        # An engine tells one number, and of a blank line it is known.
        assert theirs.pop("log_prob") in (None, 0.0)
        mine.pop("log_prob")
        assert theirs == mine


def test_a_file_job_goes_on_with_the_same_export_only(cli, fast, tmp_path, monkeypatch):
    run = shutil.copytree(fast, tmp_path / "run")
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text(TEXT, encoding="utf-8")
    options = ("--input", source, "--output", output, "--runtime", "ctranslate2")
    monkeypatch.setattr(actions, "CHUNK", 2)
    result = cli("translate", run, *options)
    assert result.exit_code == 0, result.stderr
    expected = output.read_bytes()
    assert expected == cli("translate", run, input=TEXT).stdout.encode()
    output.unlink()

    translate, calls = translator.Translator.translate, []

    def killed(self, *arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return translate(self, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(translator.Translator, "translate", killed)
        assert cli("translate", run, *options).exit_code != 0
    assert not output.exists()
    # The run itself is another model than its export.
    refused(cli("translate", run, *options[:4]), "4 items of another job: the model")
    again = ("--format", "ctranslate2", "--overwrite")
    assert cli("export", run, *again, "--quantization", "int8").exit_code == 0
    refused(cli("translate", run, *options), "4 items of another job: the model")
    assert cli("export", run, *again).exit_code == 0
    result = cli("translate", run, *options)
    assert result.exit_code == 0, result.stderr
    assert "Going on after line 4" in result.stderr
    assert output.read_bytes() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "decoding.num_beams=1"), "`--set` needs --runtime keras"),
        (("--ensemble", "RUN"), "`--ensemble` needs --runtime keras. Received: --runt"),
        (("--temperature", "0.5"), "An export has no samples (temperature = 0.5)."),
        (("--stream",), "An export has no streaming. Received: runtime 'ctranslate2'"),
        (("--alternatives", "--n-best", "2"), "An export has no alternatives"),
        (("--details", "--format", "jsonl"), "An export has no attention"),
        (("--replace-unknown",), "An export has no attention"),
        (("--min-length", "3"), "with min_length = 0. Received: min_length = 3."),
    ],
)
def test_options_that_a_runtime_lacks_are_refused(cli, fast, options, message):
    given = (fast if option == "RUN" else option for option in options)
    result = cli("translate", fast, "--runtime", "ctranslate2", *given, input="a\n")
    refused(result, message)


def test_a_missing_export_is_named_with_the_command(cli, fast, tmp_path):
    result = cli("translate", fast, "--runtime", "saved_model", input="a\n")
    refused(result, "keras-seq2seq export RUN --format saved_model")
    result = cli("translate", tmp_path / "no", "--runtime", "litert", input="a\n")
    refused(result, "`RUN` must be a folder that `train` or `export` wrote")
    folder = fast / "exports" / "ctranslate2"
    result = cli("translate", folder, "--runtime", "litert", input="a\n")
    refused(result, "an export of the kind 'litert'. Received: 'ctranslate2'")
