"""What the command line and the quick start do with a trained run."""

import csv
import hashlib
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from keras_seq2seq.console import import_backend, progress, say

# Lines that are read, sorted by length and decoded together, and kept when done.
CHUNK = 2048


def evaluate_files(
    translator: Any, files: dict[str, Any], *, tokenize: str | None, **decoding: Any
) -> dict[str, Any]:
    """Evaluate on files, as the run's `[evaluation]` table says.

    Args:
        translator: What `load` returned.
        files: Arguments of `PairCorpus`.
        tokenize: Tokenizer of BLEU in place of the run's.
        **decoding: Options of `Translator.translate`.

    Returns:
        The dict of `evaluation.evaluate`, with what it was measured on and with: the
        files, the settings, and sums of the text and of the weights.
    """
    from keras_seq2seq.corpora import PairCorpus
    from keras_seq2seq.evaluation import evaluate

    settings = translator.config.evaluation
    corpus = PairCorpus(**files)
    pairs = list(corpus)
    if corpus.report.kept < corpus.report.read:
        say("\n".join(corpus.report.lines()))
    if not pairs:
        raise ValueError(f"The test set must have at least one pair. Received: {files}")
    result = evaluate(
        translator,
        pairs,
        tokenize=settings.bleu_tokenize if tokenize is None else tokenize,
        lowercase=settings.lowercase,
        metrics=settings.metrics,
        **decoding,
    )
    return result | _measured_with(translator, files, pairs, tokenize, decoding)


def saved_evaluation(
    path: Path, translator: Any, files: dict[str, Any]
) -> dict[str, Any] | None:
    """Read what `evaluate_files` measured before, if it would measure the same again.

    Args:
        path: File that `evaluation.write_results` wrote; it need not be there.
        translator: What `load` returned.
        files: Arguments of `PairCorpus`.

    Returns:
        The result; None if there is none, or if it belongs to other weights, other
        text or other settings of decoding or evaluation.
    """
    from keras_seq2seq.corpora import PairCorpus

    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    wanted = _measured_with(translator, files, PairCorpus(**files), None, {})
    # What was read has lists where the settings have tuples.
    wanted = json.loads(json.dumps(wanted))
    same = all(result.get(name) == value for name, value in wanted.items())
    return result if same else None


def _measured_with(
    translator: Any,
    files: dict[str, Any],
    pairs: Iterable[Any],
    tokenize: str | None,
    decoding: dict[str, Any],
) -> dict[str, Any]:
    """Everything that an evaluation depends on, beside the code."""
    text, weights = hashlib.sha256(), hashlib.sha256()
    for source, target in pairs:
        text.update(f"{source}\t{target}\n".encode())
    for weight in translator.model.get_weights():
        weights.update(f"{weight.shape}".encode() + weight.tobytes())
    given = {
        name: value
        for name, value in decoding.items()
        if value is not None and name != "progress"
    }
    evaluation = translator.config.evaluation.model_dump()
    if tokenize is not None:
        evaluation["bleu_tokenize"] = tokenize
    return {
        "data": files,
        "data_sha256": text.hexdigest(),
        "weights_sha256": weights.hexdigest(),
        "decoding": translator.decoding.model_dump() | given,
        "evaluation": evaluation,
    }


def set_decoding(translator: Any, run: Path, overrides: Sequence[str]) -> None:
    """Put settings of the command line in place of the run's `[decoding]`.

    Args:
        translator: What `load` returned.
        run: Its folder.
        overrides: Texts `decoding.key=value`.

    Raises:
        ValueError: If one is of another table, or with all mistakes at once.
    """
    from keras_seq2seq.config import load_config

    for override in overrides:
        if not override.startswith("decoding."):
            raise ValueError(
                "`--set` takes settings of [decoding] here, as "
                f"decoding.no_repeat_ngram_size=3. Received: {override!r}."
            )
    translator.decoding = load_config(run / "run.toml", overrides).decoding


class TranslatedText:
    """The output for the lines of a file or of standard input.

    Args:
        translator: What `load` returned.
        options: Options of `translate_lines`.
        input_file: File of sources; None for standard input.
        constraints: File of JSON lines beside it, or None.
        jsonl: Whether to write one JSON object a source.
        details: Whether objects have tokens, their scores and the alignment.
    """

    def __init__(
        self,
        translator: Any,
        options: dict[str, Any],
        *,
        input_file: Path | None,
        constraints: Path | None,
        jsonl: bool,
        details: bool,
    ) -> None:
        self.translator = translator
        self.options = options
        self.input_file = input_file
        self.constraints = constraints
        self.jsonl = jsonl
        self.details = details

    def lines(self, *, shown_progress: bool) -> Iterator[str]:
        """Yield the lines as they come.

        Args:
            shown_progress: Whether to count on standard error.
        """
        with progress("lines", shown=shown_progress) as bar:
            for lines in self._from(0, bar):
                yield from lines

    def write_file(self, output: Path, runs: Sequence[Path]) -> None:
        """Write a file; a job that was stopped goes on where it was.

        Args:
            output: The file to write.
            runs: The run folders that the translator was loaded from.
        """
        from keras_seq2seq.jobs import file_sum, write_job

        files = {"the input": self.input_file, "the constraints": self.constraints}
        job = {
            **{name: file and file_sum(file) for name, file in files.items()},
            "the model": self._model_sums(runs),
            "[decoding]": self.translator.decoding.model_dump(),
            "the options": self.options,
            "the format": [self.jsonl, self.details],
        }
        with progress("lines") as bar:

            def started(count: int) -> None:
                if count:
                    say(f"Going on after line {count:,}")
                bar(count)

            def make(first: int) -> Iterator[list[str]]:
                return self._from(first, bar)

            write_job(output, job, make, every=CHUNK, started=started)

    def _model_sums(self, runs: Sequence[Path]) -> list[str]:
        """What tells models apart: an export's manifest has the sums of its files."""
        from keras_seq2seq.jobs import file_sum

        export = getattr(self.translator, "folder", None)
        if export is not None:
            return [file_sum(export / "manifest.json")]
        return [file_sum(run / "model.keras") for run in runs]

    def stream(self, output: Path | None) -> None:
        """Write each output to standard output, piece by piece as it is decoded.

        Args:
            output: What was given as `--output`.

        Raises:
            ValueError: If an option was given that cannot be streamed.
        """
        from keras_seq2seq.lines import read_lines

        options = dict(self.options)
        others = {
            "--output": output,
            "--constraints": self.constraints,
            "--format jsonl": self.jsonl,
            "--n-best": options.pop("n_best") > 1,
            "--mbr-samples": options.pop("mbr_samples"),
            "--alternatives": options.pop("alternatives"),
            "--replace-unknown": options.pop("replace_unknown"),
            "--split-sentences": options.pop("by_sentence"),
        }
        for name, given in others.items():
            if given:
                raise ValueError(f"`--stream` cannot go with {name}.")
        options["num_beams"] = options["num_beams"] or 1
        for line in read_lines(self.input_file or sys.stdin.buffer):
            for piece in self.translator.stream(line, **options):
                sys.stdout.write(piece)
                sys.stdout.flush()
            sys.stdout.write("\n")
        sys.stdout.flush()

    def _from(self, first: int, bar: Any) -> Iterator[list[str]]:
        """Lines of each source, from the source `first` on."""
        from keras_seq2seq.lines import read_json_lines, read_lines

        # A person who types waits for the answer to each line.
        typed = self.input_file is None and sys.stdin.isatty()
        lines = read_lines(self.input_file or sys.stdin.buffer)
        sources, kept = itertools.tee(itertools.islice(lines, first, None))
        wanted = None
        if self.constraints is not None:
            wanted = itertools.islice(read_json_lines(self.constraints), first, None)
        found = self.translator.translate_lines(
            sources,
            chunk_size=1 if typed else CHUNK,
            first=first,
            constraints=wanted,
            return_attention=self.details,
            return_token_scores=self.details,
            progress=bar,
            **self.options,
        )
        for source, hypotheses in zip(kept, found, strict=True):
            yield self._rendered(source, hypotheses)

    def _rendered(self, source: str, hypotheses: list[Any]) -> list[str]:
        """Lines of one source."""
        if self.jsonl:
            fields = ["text", "score", "log_prob", "finished", "truncated_source"]
            more = ["tokens", "token_scores", "source_tokens", "alignment"]
            fields += more * self.details
            rows = [{name: _value(h, name) for name in fields} for h in hypotheses]
            found = {"source": source, "hypotheses": rows}
            return [json.dumps(found, ensure_ascii=False)]
        if self.options["n_best"] > 1:
            return [
                f"{rank}\t{hypothesis.score:.6f}\t{hypothesis.text}"
                for rank, hypothesis in enumerate(hypotheses, start=1)
            ]
        return [hypotheses[0].text]


def _value(hypothesis: Any, name: str) -> Any:
    """A field, None where an export's engine does not tell it: JSON has no NaN."""
    value = getattr(hypothesis, name)
    return None if value != value else value


def compare_recipes(
    recipes: Sequence[Path], output: Path, overrides: Sequence[str], **options: Any
) -> None:
    """Compare recipes and print the table.

    Args:
        recipes: TOML files.
        output: Folder of the runs and of the table.
        overrides: Settings in place of those of every recipe.
        **options: Options of `comparison.compare`.

    Raises:
        typer.Exit: With 1 if a system failed, with 130 if the user stopped it.
    """
    for recipe in recipes:
        if not recipe.is_file():  # before the seconds that Keras takes
            raise FileNotFoundError(
                f"`RECIPE` must be a TOML file. Received: {recipe}."
            )
    import_backend()
    from keras_seq2seq.comparison import compare

    try:
        comparison = compare(recipes, output, overrides=overrides, **options)
    except KeyboardInterrupt:
        say("\nStopped. What is finished is kept; the same command goes on.")
        raise typer.Exit(130) from None
    typer.echo(comparison.markdown(), nl=False)
    if comparison.failed:
        raise typer.Exit(1)


def train_recipe(config: Any, folder: Path, **options: Any) -> Any:
    """Train a run of text, or one of a series.

    Args:
        config: What `load_config` returned.
        folder: The run folder.
        **options: Options of `trainer.train`.

    Returns:
        The run folder or, for a dry run, the report.
    """
    if hasattr(config, "series"):
        from keras_seq2seq.forecasting import train_forecaster

        return train_forecaster(config, folder, **options)
    from keras_seq2seq import trainer

    return trainer.train(config, folder, **options)


def evaluate_series(
    forecaster: Any, paths: list[Path], **text_options: Any
) -> list[str]:
    """Evaluate a forecasting run on its test part.

    Args:
        forecaster: What `load` returned.
        paths: JSON files to write.
        **text_options: Options of the command line that only text has a use for.

    Returns:
        Lines of the table.

    Raises:
        ValueError: If one of those options is given.
    """
    for name, value in text_options.items():
        if value is not None:
            raise ValueError(
                f"`--{name.replace('_', '-')}` is for runs of text. Received: {value}, "
                "for a run with [series]. Leave it out."
            )
    from keras_seq2seq.evaluation import write_results
    from keras_seq2seq.forecast_evaluation import evaluate_forecaster, forecast_table

    result = evaluate_forecaster(forecaster)
    for path in paths:
        write_results(path, result)
    return forecast_table(result)


def forecast_lines(forecaster: Any, path: Path, **options: Any) -> Iterator[str]:
    """Continue the series of a file, as lines of CSV.

    Args:
        forecaster: What `load` returned.
        path: CSV file with the run's columns.
        **options: Options of `Forecaster.forecast`.

    Yields:
        The line of names, then a line for each row.
    """
    times, values = forecaster.forecast_file(path, **options)
    settings = forecaster.config.series
    yield csv_line([settings.time or "row", *settings.targets])
    for time, row in zip(times, values, strict=True):
        yield csv_line([time, *(f"{value:.10g}" for value in row)])


def csv_line(cells: list[str]) -> str:
    """Write one line of CSV, without its line end.

    Args:
        cells: The cells.
    """
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    return stream.getvalue()


def draw_alignment(
    translator: Any, text: str, path: Path, *, num_beams: int | None = None
) -> str:
    """Translate a text and draw its alignment.

    Args:
        translator: What `load` returned.
        text: Source text.
        path: PNG file to write.
        num_beams: Width of the beam in place of the run's.

    Returns:
        The output text.

    Raises:
        ValueError: If the text is blank or the model has no attention.
    """
    from keras_seq2seq.analysis import plot_alignment

    options = {"num_beams": num_beams, "return_attention": True}
    hypothesis = translator.translate([text], **options)[0][0]
    if not hypothesis.tokens:
        raise ValueError("The text must not be blank, or there is nothing to align.")
    if hypothesis.attention is None or not hypothesis.attention.any():
        raise ValueError(
            "The model must have attention to draw alignments. Received: a "
            f"{type(translator.model).__name__} without."
        )
    plot_alignment(
        hypothesis.attention, hypothesis.source_tokens, hypothesis.tokens, path
    )
    return hypothesis.text
