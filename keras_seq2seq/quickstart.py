"""The whole path on one small task: data, training, scores, picture, export, answers.

Dates as people write them in ten languages become ISO 8601 dates. The data is
generated, so that nothing is downloaded.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from keras_seq2seq.console import say

RECIPE = Path(__file__).with_name("quickstart.toml")

# What a server does: no code of this package, only TensorFlow and the operations of
# TensorFlow Text. Texts come and answers go as JSON.
_ASK = """
import json, sys
import tensorflow as tf
import tensorflow_text
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answers = serve(source=tf.constant(json.load(sys.stdin)))["text"].numpy()
if "keras_seq2seq" in sys.modules:
    raise RuntimeError("keras_seq2seq was imported.")
json.dump([answer.decode("utf-8") for answer in answers], sys.stdout)
"""


def run_quickstart(
    output: str | Path = "saved_models/quickstart",
    *,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Make dates, train on them, evaluate, draw, export, and ask the export.

    Steps are told on standard error, results on standard output. Started again, it
    goes on where it stopped.

    Args:
        output: Run folder; the picture and the export are inside. The data goes to
            `data/dates` in the current folder, as `prepare dates` puts it.
        overrides: Settings in place of the recipe's, as `training.epochs=3`.
        overwrite: Whether another run in that folder is replaced.

    Returns:
        The run folder.

    Raises:
        ValueError: If the folder holds another run.
        RuntimeError: If the export answers otherwise than the model.
    """
    from keras_seq2seq.actions import draw_alignment, evaluate_files
    from keras_seq2seq.config import load_config
    from keras_seq2seq.evaluation import result_lines, write_results
    from keras_seq2seq.export.saved_model import export_saved_model
    from keras_seq2seq.pipelines import load
    from keras_seq2seq.prepare import prepare
    from keras_seq2seq.trainer import train

    start = time.monotonic()
    run = Path(output)
    say("1/6 Data: dates of ten languages from Babel's locale data")
    data = prepare("dates")  # where the recipe expects it: data/dates
    config = load_config(RECIPE, overrides)

    say("2/6 Training")
    train(config, run, overwrite=overwrite)

    say("3/6 Evaluation on dates that were held out")
    translator = load(run)
    files = config.data.test.model_dump(exclude_none=True) if config.data.test else {}
    result = evaluate_files(translator, files, tokenize=None)
    write_results(run / "results.json", result)
    typer.echo("\n".join(result_lines(result)))

    say("4/6 Examples and the alignment of the first")
    sources, references = _examples(data / "test.tsv")
    answers = translator(sources)
    for source, answer, reference in zip(sources, answers, references, strict=True):
        mark = "" if answer == reference else f"  (expected {reference})"
        typer.echo(f"  {source}  ->  {answer}{mark}")
    draw_alignment(translator, sources[0], run / "alignment.png")

    say("5/6 Export as a SavedModel")
    path = run / "exports" / "saved_model"
    folder = export_saved_model(translator, path, name=run.resolve().name)

    say("6/6 The same questions to the export, in a process with TensorFlow only")
    served = ask_saved_model(folder, sources)
    if served != answers:
        raise RuntimeError(
            f"{folder} must answer as the model does. Received: {served}, from the "
            f"model: {answers}."
        )
    say(f"All {len(served)} answers are the same.")
    say(f"Done in {time.monotonic() - start:.0f} s. The run is in {run}:")
    say(f"  {run / 'alignment.png'} shows what each digit was read from")
    say(f"  {folder} is ready for TF Serving")
    say(f'  echo "3 mars 2024" | keras-seq2seq translate {run}')
    return run


def ask_saved_model(folder: Path, texts: Sequence[str]) -> list[str]:
    """Ask a SavedModel in a fresh process that does not import this package.

    Args:
        folder: Version folder that `export_saved_model` wrote.
        texts: Source texts.

    Returns:
        Its answers, in order.

    Raises:
        RuntimeError: If the process fails, with what it printed.
    """
    done = subprocess.run(
        # -I: this folder's packages and PYTHONPATH are not found by chance.
        [sys.executable, "-I", "-c", _ASK, str(folder)],
        input=json.dumps(list(texts)),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if done.returncode != 0:
        raise RuntimeError(f"{folder} cannot be served:\n{done.stderr}")
    return json.loads(done.stdout)


def _examples(path: Path, count: int = 10) -> tuple[list[str], list[str]]:
    """Sources and references spread over a test set."""
    from keras_seq2seq.corpora import PairCorpus

    pairs = list(PairCorpus(path=path))
    chosen = pairs[:: max(1, len(pairs) // count)][:count]
    return [pair.source for pair in chosen], [pair.target for pair in chosen]
