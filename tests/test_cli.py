"""The command line: what goes where, which messages, which exit codes."""

import functools
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keras_seq2seq import __version__, pipelines
from keras_seq2seq.cli import app
from keras_seq2seq.doctor import diagnose, text_mismatch
from tests.helpers import write_untrained_run

ROOT = Path(__file__).parents[1]
VERBS = [
    *("quickstart", "prepare", "train", "compare", "translate", "score", "evaluate"),
    *("forecast", "inspect", "export", "verify", "serve", "doctor"),
]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, tiny_tokenizers):
    """A run folder that no test changes."""
    return write_untrained_run(
        tmp_path_factory.mktemp("cli") / "run",
        tiny_tokenizers,
        name="RecurrentSeq2Seq",
        units=8,
        embedding_dim=4,
        bidirectional=False,
    )


@pytest.fixture(scope="module")
def load_once():
    """`load`, once for each folder: searches stay compiled from test to test."""
    return functools.cache(pipelines.load)


@pytest.fixture
def cli(monkeypatch, load_once):
    """Runs a command in this process; keeps its settings from leaking."""
    monkeypatch.setattr(pipelines, "load", load_once)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)
    runner = CliRunner()

    def run(*arguments, input=None):
        return runner.invoke(app, [str(item) for item in arguments], input=input)

    return run


def environment():
    """A locale without UTF-8, and no log level, as the command line sets its own."""
    kept = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return {**kept, "PYTHONUTF8": "0", "LC_ALL": "C"}


def fresh(*arguments, **options):
    """Runs the command line in a process of its own."""
    code = "from keras_seq2seq.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        timeout=300,
        **options,
    )


def test_help_names_every_verb(cli):
    result = cli("--help")
    assert result.exit_code == 0
    for verb in VERBS:
        assert verb in result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_answers(cli, verb):
    result = cli(verb, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_help_and_version_import_nothing_heavy():
    code = """
import sys
from keras_seq2seq.cli import main
for argument in ("--help", "--version"):
    sys.argv = ["keras-seq2seq", argument]
    try:
        main()
    except SystemExit as end:
        assert not end.code
heavy = ("keras", "tensorflow", "jax", "numpy", "matplotlib", "sacrebleu", "babel")
sys.stderr.write(" ".join(name for name in heavy if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"keras-seq2seq {__version__} (keras 3" in done.stdout


def test_unknown_verb_or_option_exits_2_with_usage(cli):
    assert cli("tranlsate").exit_code == 2
    result = cli("translate", "run", "--beam-size", "0")
    assert result.exit_code == 2
    assert "--beam-size" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("translate", "MISSING"),
        ("evaluate", "MISSING"),
        ("inspect", "alignments", "MISSING", "text"),
        ("train", "MISSING"),
        ("compare", "MISSING"),
        ("export", "MISSING"),
        ("verify", "MISSING"),
    ],
)
def test_missing_file_is_one_message_and_exit_2(cli, tmp_path, arguments):
    missing = str(tmp_path / "no_such_thing")
    result = cli(*(missing if a == "MISSING" else a for a in arguments), input="a\n")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert "no_such_thing" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_misspelt_key_of_a_recipe_is_one_message_with_the_nearest(cli, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[data.train]\npath = "a.tsv"\n[model]\nname = "RecurrentSeq2Seq"\n'
        "[training]\nepoch = 3\n",
        encoding="utf-8",
    )
    result = cli("train", recipe, "--output", tmp_path / "run")
    assert result.exit_code == 2
    assert 'Did you mean "epochs"?' in result.stderr
    assert not (tmp_path / "run").exists()


def test_existing_folder_that_is_no_run_is_left_alone(cli, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work", encoding="utf-8")
    result = cli("translate", folder, input="a\n")
    assert result.exit_code == 2
    assert "run.toml" in result.stderr
    assert (folder / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_translate_keeps_order_blank_lines_and_line_count(cli, run_folder):
    lines = "déca\n\n   \nb c\na\u2028d\r\nlast without end"
    result = cli("translate", run_folder, "--beam-size", 1, input=lines)
    assert result.exit_code == 0, result.stderr
    answers = result.stdout.split("\n")
    assert answers.pop() == ""
    assert len(answers) == 6
    assert answers[1] == answers[2] == ""
    alone = cli("translate", run_folder, "--beam-size", 1, input="b c\n")
    assert alone.stdout == answers[3] + "\n"


def test_translate_of_nothing_is_nothing(cli, run_folder):
    result = cli("translate", run_folder, input="")
    assert (result.exit_code, result.stdout) == (0, "")


def test_translate_draws_by_a_seed_and_takes_settings(cli, run_folder):
    options = ("--temperature", 1.0, "--top-p", 0.9, "--seed", 7, "--n-best", 2)
    first = cli("translate", run_folder, *options, input="déca\nb\n")
    assert first.exit_code == 0, first.stderr
    assert (
        first.stdout == cli("translate", run_folder, *options, input="déca\nb\n").stdout
    )
    other = ("--temperature", 1.0, "--seed", 8, "--mbr-samples", 8)
    chosen = cli("translate", run_folder, *other, input="déca\nb\n")
    assert (chosen.exit_code, len(chosen.stdout.splitlines())) == (0, 2)
    settings = ("--set", "decoding.num_beams=1", "--set", "decoding.max_length=1")
    short = cli("translate", run_folder, *settings, "--format", "jsonl", input="b\n")
    assert json.loads(short.stdout)["hypotheses"][0]["finished"] in (True, False)
    wrong = cli("translate", run_folder, "--set", "training.epochs=1", input="b\n")
    assert wrong.exit_code == 2
    assert "training.epochs=1" in wrong.stderr
    wrong = cli("translate", run_folder, "--set", "decoding.num_beam=1", input="b\n")
    assert wrong.exit_code == 2
    assert "num_beams" in wrong.stderr


def test_streamed_lines_are_those_of_greedy_search(cli, run_folder):
    lines = "déca\n\nb c\n"
    streamed = cli("translate", run_folder, "--stream", input=lines)
    assert streamed.exit_code == 0, streamed.stderr
    greedy = cli("translate", run_folder, "--beam-size", 1, input=lines)
    assert streamed.stdout == greedy.stdout
    for wrong in (("--n-best", 2), ("--format", "jsonl"), ("--alternatives",)):
        result = cli("translate", run_folder, "--stream", *wrong, input=lines)
        assert result.exit_code == 2
        assert f"cannot go with {' '.join(map(str, wrong[:1]))}" in result.stderr


def test_lines_are_split_into_sentences_and_stay_lines(cli, run_folder):
    options = ("--beam-size", 1, "--split-sentences")
    result = cli("translate", run_folder, *options, input="Déca. B c!\n\nd\n")
    assert result.exit_code == 0, result.stderr
    alone = cli("translate", run_folder, "--beam-size", 1, input="Déca.\nB c!\nd\n")
    first, second, third = alone.stdout.splitlines()
    assert result.stdout.splitlines() == [f"{first} {second}".strip(), "", third]
    result = cli("translate", run_folder, *options, "--n-best", 2, input="a\n")
    assert result.exit_code == 2
    assert "n_best=2" in result.stderr


def test_translate_keeps_to_constraints_and_tells_details(cli, run_folder, tmp_path):
    file = tmp_path / "constraints.jsonl"
    rows = [{"prefix": "d"}, {}, {"required": [["c", "d"]], "banned": ["a"]}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    options = ("--constraints", file, "--format", "jsonl", "--details")
    result = cli("translate", run_folder, *options, input="déca\nb\nab\n")
    assert result.exit_code == 0, result.stderr
    found = [json.loads(line)["hypotheses"][0] for line in result.stdout.splitlines()]
    assert found[0]["text"].startswith("d")
    assert {"\u2581c", "\u2581d", "c", "d"} & set(found[2]["tokens"])
    for hypothesis in found:
        assert len(hypothesis["tokens"]) == len(hypothesis["token_scores"])
        total = sum(hypothesis["token_scores"])
        assert total == pytest.approx(hypothesis["log_prob"], abs=1e-4)
    file.write_text("{}\nno json\n", encoding="utf-8")
    result = cli("translate", run_folder, *options, input="déca\nb\n")
    assert result.exit_code == 2
    assert "line 2: expected JSON" in result.stderr
    result = cli("translate", run_folder, "--details", input="b\n")
    assert result.exit_code == 2
    assert "--format jsonl" in result.stderr


def test_translate_reads_and_writes_files_whole_or_not_at_all(
    cli, run_folder, tmp_path
):
    source, output = tmp_path / "in.gz", tmp_path / "out.txt"
    source.write_bytes(gzip.compress("déca\n\nb\n".encode()))
    options = ("--input", source, "--output", output, "--beam-size", 1)
    result = cli("translate", run_folder, *options)
    assert (result.exit_code, result.stdout) == (0, "")
    written = output.read_bytes()
    assert written.count(b"\n") == 3
    source.write_bytes(b"caf\xe9\n")
    result = cli("translate", run_folder, *options)
    assert result.exit_code == 2
    assert "in.gz, line 1" in result.stderr
    assert output.read_bytes() == written
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["in.gz", "out.txt"]


def test_a_killed_translation_of_a_file_goes_on(cli, run_folder, tmp_path, monkeypatch):
    from keras_seq2seq import actions, pipelines

    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("déca\nb\n\na\nc d\nab\nb\n", encoding="utf-8")
    drawn = ("--temperature", 1.0, "--seed", 3)
    options = ("--input", source, "--output", output, *drawn)
    monkeypatch.setattr(actions, "CHUNK", 2)
    assert cli("translate", run_folder, *options).exit_code == 0
    expected = output.read_bytes()
    output.unlink()

    translate, calls = pipelines.Translator.translate, []

    def killed(self, *arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return translate(self, *arguments, **more)

    monkeypatch.setattr(pipelines.Translator, "translate", killed)
    assert cli("translate", run_folder, *options).exit_code != 0
    assert not output.exists()
    other = cli("translate", run_folder, *options[:-1], 4)
    assert other.exit_code == 2
    assert "4 items of another job: the options differed" in other.stderr
    result = cli("translate", run_folder, *options)
    assert result.exit_code == 0, result.stderr
    assert "Going on after line 4" in result.stderr
    assert output.read_bytes() == expected


def test_n_best_as_text_and_as_json_lines(cli, run_folder):
    options = ("--n-best", 2, "--beam-size", 3, "--max-length", 5)
    result = cli("translate", run_folder, *options, input="déca\n\n")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "2", "1"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[2][2] == ""
    result = cli(
        "translate", run_folder, *options, "--format", "jsonl", input="déca\n\n"
    )
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first["source"] == "déca"
    assert [h["text"] for h in first["hypotheses"]] == [row[2] for row in rows[:2]]
    assert set(first["hypotheses"][0]) == {
        *("text", "score", "log_prob", "finished", "truncated_source")
    }
    assert [h["text"] for h in second["hypotheses"]] == [""]


def test_n_best_above_the_beam_is_a_mistake(cli, run_folder):
    result = cli("translate", run_folder, "--n-best", 3, "--beam-size", 2, input="a\n")
    assert result.exit_code == 2
    assert "n_best=3, num_beams=2" in result.stderr


def test_score_writes_a_line_for_each_pair_and_the_perplexity(
    cli, run_folder, tmp_path
):
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text("déca\n\nb\n", encoding="utf-8")
    target.write_text("acdé\nb\n\n", encoding="utf-8")
    options = ("score", run_folder, "--source", source, "--target", target)
    result = cli(*options)
    assert result.exit_code == 0, result.stderr
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert len(rows) == 3
    assert all(float(log_prob) < 0 for log_prob, _ in rows)
    assert int(rows[2][1]) == 1  # END alone
    assert result.stderr.startswith("Perplexity: ")
    result = cli(*options, "--format", "jsonl")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [set(row) for row in rows] == [{"log_prob", "num_tokens"}] * 3


def test_unequal_line_counts_name_files_and_counts(cli, run_folder, tmp_path):
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text("a\nb\nc\n", encoding="utf-8")
    target.write_text("a\nb\n", encoding="utf-8")
    for verb in ("score", "evaluate"):
        result = cli(verb, run_folder, "--source", source, "--target", target)
        assert result.exit_code == 2
        for part in ("s.txt", "t.txt", "3", "2"):
            assert part in result.stderr


def test_evaluate_prints_the_numbers_and_keeps_them(cli, run_folder, tmp_path):
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text("déca\nb c\n", encoding="utf-8")
    target.write_text("acdé\nbc\n", encoding="utf-8")
    file = tmp_path / "numbers.json"
    options = ("--source", source, "--target", target, "--json", file)
    result = cli("evaluate", run_folder, *options, "--beam-size", 1)
    assert result.exit_code == 0, result.stderr
    numbers = json.loads(file.read_text(encoding="utf-8"))
    assert numbers["bleu_signature"] in result.stdout
    assert f"{numbers['perplexity']:.3f}" in result.stdout
    assert numbers["decoding"]["num_beams"] == 1
    assert numbers["data"] == {"source": str(source), "target": str(target)}
    # Only the run's own test set is the run's result.
    assert not (run_folder / "results.json").exists()


def test_evaluate_without_a_test_set_says_what_to_give(cli, run_folder, tmp_path):
    result = cli("evaluate", run_folder)
    assert result.exit_code == 2
    assert "has no [data.test]: give --source and --target" in result.stderr
    result = cli("evaluate", run_folder, "--source", tmp_path / "s.txt")
    assert result.exit_code == 2
    assert "`--source` and `--target` must be given together" in result.stderr


def test_evaluate_on_the_runs_own_test_set_writes_results(cli, tiny_run, tmp_path):
    test = tmp_path / "test.tsv"
    test.write_text("déca\tacdé\n\tblank\nb\tb\n", encoding="utf-8")
    toml = tiny_run / "run.toml"
    text = f"\n[data.test]\npath = {json.dumps(str(test))}\n"
    toml.write_text(toml.read_text(encoding="utf-8") + text, encoding="utf-8")
    result = cli("evaluate", tiny_run, "--beam-size", 1)
    assert result.exit_code == 0, result.stderr
    assert "1 dropped" in result.stderr
    numbers = json.loads((tiny_run / "results.json").read_text(encoding="utf-8"))
    assert numbers["sentences"] == 2


def test_an_ensemble_translates_and_is_no_runs_result(cli, tiny_run, tmp_path):
    test = tmp_path / "test.tsv"
    test.write_text("déca\tacdé\nb\tb\n", encoding="utf-8")
    toml = tiny_run / "run.toml"
    text = f"\n[data.test]\npath = {json.dumps(str(test))}\n"
    toml.write_text(toml.read_text(encoding="utf-8") + text, encoding="utf-8")
    again = ("--ensemble", tiny_run, "--beam-size", 1)
    file = tmp_path / "numbers.json"
    result = cli("evaluate", tiny_run, *again, "--json", file)
    assert result.exit_code == 0, result.stderr
    assert json.loads(file.read_text(encoding="utf-8"))["sentences"] == 2
    assert not (tiny_run / "results.json").exists()
    together = cli("translate", tiny_run, *again, input="déca\nb\n")
    alone = cli("translate", tiny_run, "--beam-size", 1, input="déca\nb\n")
    assert together.stdout == alone.stdout
    missing = cli("translate", tiny_run, "--ensemble", tmp_path / "no", input="b\n")
    assert missing.exit_code == 2
    assert f"{tmp_path / 'no'}, which does not exist" in missing.stderr


def test_alignment_is_drawn_and_the_answer_printed(cli, run_folder, tmp_path):
    picture = tmp_path / "a.png"
    options = ("--output", picture, "--beam-size", 1)
    result = cli("inspect", "alignments", run_folder, "déca", *options)
    assert result.exit_code == 0, result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    answer = cli("translate", run_folder, "--beam-size", 1, input="déca\n").stdout
    assert result.stdout == answer
    result = cli("inspect", "alignments", run_folder, "  ", *options)
    assert result.exit_code == 2
    assert "must not be blank" in result.stderr


def test_unknown_data_set_names_those_there_are(cli):
    result = cli("prepare", "multi31k")
    assert result.exit_code == 2
    assert "multi30k" in result.stderr and "'multi31k'" in result.stderr


def test_faults_of_the_package_keep_their_traceback(cli, run_folder, monkeypatch):
    def broken(folder):
        return int("not a number")  # raised by Python, not by a `raise` of ours

    monkeypatch.setattr(pipelines, "load", broken)
    result = cli("translate", run_folder, input="a\n")
    assert isinstance(result.exception, ValueError)
    assert "invalid literal" in str(result.exception)


def test_doctor_finds_this_installation_sound(cli):
    result = cli("doctor")
    assert result.exit_code == 0, result.stdout
    for name in ("keras ", "tensorflow-text ", "backend ", "devices "):
        assert f"\n{name}" in result.stdout
    rows, problems = diagnose()
    assert problems == []
    assert dict(rows)["keras-seq2seq"] == __version__


def test_doctor_names_versions_that_do_not_fit_and_the_command():
    assert text_mismatch("2.21.0", "2.21.1") == []
    assert text_mismatch(None, "2.21.1") == []
    (problem,) = text_mismatch("2.21.0", "2.20.1")
    assert "tensorflow 2.21.0 and tensorflow-text 2.20.1" in problem
    assert "pip install 'tensorflow-text==2.21.*'" in problem


def test_legacy_keras_is_a_problem(cli, monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    result = cli("doctor")
    assert result.exit_code == 1
    assert "problem: TF_USE_LEGACY_KERAS is set" in result.stdout


def test_a_process_of_its_own_speaks_utf8_and_is_quiet(run_folder):
    done = fresh(
        *("translate", run_folder, "--beam-size", 1, "--format", "jsonl"),
        input="déca 日\n".encode(),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("utf-8"))["source"] == "déca 日"
    assert done.stderr == b""


def test_a_process_of_its_own_exits_2_with_one_message(tmp_path):
    done = fresh("translate", tmp_path / "né")
    assert done.returncode == 2
    message = done.stderr.decode("utf-8")
    assert message.startswith("Error: ") and message.count("\n") == 1
    assert "né, which does not exist" in message


def test_closed_pipe_ends_quietly(run_folder):
    code = "from keras_seq2seq.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "translate", run_folder, "--beam-size", "1"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        process.stdin.write(b"a\n" * 5)
        process.stdin.close()
        message = process.stderr.read()
        assert process.wait(timeout=300) == 1
    assert message == b""


def test_recipe_of_the_quick_start_is_the_one_in_training():
    packaged = (ROOT / "keras_seq2seq" / "quickstart.toml").read_bytes()
    assert packaged == (ROOT / "training" / "dates.toml").read_bytes()
