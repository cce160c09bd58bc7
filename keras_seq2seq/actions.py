"""What the command line and the quick start do with a trained run."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_seq2seq.console import say


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
        The dict of `evaluation.evaluate`, with the files and the decoding options.
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
        tokenize=tokenize or settings.bleu_tokenize,
        lowercase=settings.lowercase,
        metrics=settings.metrics,
        **decoding,
    )
    result["data"] = files
    result["decoding"] = translator.decoding.model_dump() | {
        name: value
        for name, value in decoding.items()
        if value is not None and name != "progress"
    }
    return result


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


def evaluate_series(forecaster: Any, paths: list[Path]) -> list[str]:
    """Evaluate a forecasting run on its test part.

    Args:
        forecaster: What `load` returned.
        paths: JSON files to write.

    Returns:
        Lines of the table.
    """
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
