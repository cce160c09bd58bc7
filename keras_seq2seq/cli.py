"""The command line: one thin function for each verb, heavy imports inside.

Text goes from standard input to standard output; messages and progress go to standard
error. A user's mistake prints one message and exits 2; a fault of the package keeps
its traceback.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from keras_seq2seq import cli_deploy
from keras_seq2seq.cli_options import (
    Alternatives,
    BeamSize,
    Constraints,
    DecodingOverrides,
    Details,
    Ensemble,
    Format,
    LengthPenalty,
    MaxLength,
    MbrSamples,
    MinLength,
    NBest,
    Output,
    Overrides,
    Overwrite,
    ReplaceUnknown,
    Run,
    Runtime,
    RuntimeName,
    Seed,
    SplitSentences,
    Stream,
    Temperature,
    TextFormat,
    TopK,
    TopP,
)
from keras_seq2seq.console import (
    import_backend,
    is_user_mistake,
    json_line,
    message,
    progress,
    say,
    show_version,
    show_warning,
    write,
)


class _Commands(TyperGroup):
    """Commands whose foreseen errors become one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (OSError, ValueError, TypeError, ImportError) as error:
            if not is_user_mistake(error):
                raise
            say(f"Error: {message(error)}")
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    help="Train, evaluate and deploy sequence-to-sequence models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
inspect_app = typer.Typer(
    cls=_Commands,
    help="Draw what a trained model does.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(inspect_app, name="inspect")
app.command()(cli_deploy.export)
app.command()(cli_deploy.verify)
app.command()(cli_deploy.serve)


def main() -> None:
    """Run the command line (the entry point `keras-seq2seq`)."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Names of files may hold bytes that are no UTF-8.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    app()


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the versions and exit.",
        ),
    ] = False,
) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.showwarning = show_warning


@app.command()
def quickstart(
    output: Annotated[Path, typer.Option("--output", help="Run folder.")] = Path(
        "saved_models/quickstart"
    ),
    overwrite: Overwrite = False,
) -> None:
    """Train on dates of ten languages, evaluate, export and ask the export."""
    import_backend()
    from keras_seq2seq.quickstart import run_quickstart

    run_quickstart(output, overwrite=overwrite)


@app.command()
def prepare(
    name: Annotated[
        str,
        typer.Argument(
            help="multi30k, sigmorphon2021_g2p, scan, dates, taylor_electricity or ett."
        ),
    ],
    origin: Annotated[
        str | None, typer.Option("--from", help="Folder or address of the files.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder to write; data/NAME.")
    ] = None,
    variant: Annotated[
        str, typer.Option("--variant", help="Of multi30k: tokenised or raw.")
    ] = "tokenised",
) -> None:
    """Make the files of a named data set; sums and counts are checked."""
    from keras_seq2seq import prepare as preparing

    folder = preparing.prepare(
        name, origin=origin, output=output, variant=variant, log=say
    )
    typer.echo(str(folder))


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="TOML file of the run.")],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder; saved_models/RECIPE.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the data report and ten examples only."),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Train the model of a recipe, or resume where the same command was stopped."""
    if not recipe.is_file():  # before the seconds that Keras takes
        raise FileNotFoundError(f"`RECIPE` must be a TOML file. Received: {recipe}.")
    import_backend()
    from keras_seq2seq.config import load_config

    config = load_config(recipe, overrides or [])
    from keras_seq2seq.actions import train_recipe

    folder = output or Path("saved_models") / recipe.stem
    typer.echo(str(train_recipe(config, folder, overwrite=overwrite, dry_run=dry_run)))


@app.command()
def compare(
    recipes: Annotated[list[Path], typer.Argument(help="TOML files of one data set.")],
    overrides: Overrides = None,
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the runs and the table.")
    ] = Path("saved_models/compare"),
    only_table: Annotated[
        bool, typer.Option("--only-table", help="Train nothing: show what is there.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Train systems on one data set and put them in one table; exits 1 if one fails."""
    from keras_seq2seq.actions import compare_recipes

    compare_recipes(
        recipes, output, overrides or [], only_table=only_table, overwrite=overwrite
    )


@app.command()
def translate(
    run: Run,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Text file; else standard input.")
    ] = None,
    output: Output = None,
    ensemble: Ensemble = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    n_best: NBest = 1,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    mbr_samples: MbrSamples = None,
    alternatives: Alternatives = False,
    constraints: Constraints = None,
    replace_unknown: ReplaceUnknown = False,
    overrides: DecodingOverrides = None,
    details: Details = False,
    split_sentences: SplitSentences = False,
    stream: Stream = False,
    format: Format = TextFormat.text,
    runtime: RuntimeName = Runtime.keras,
) -> None:
    """Decode: one line in, one line out, in order; a blank line stays blank."""
    for name, file in (("--input", input_file), ("--constraints", constraints)):
        if file is not None and not file.exists():
            raise FileNotFoundError(f"`{name}` must be a file. Received: {file}.")
    if details and format is not TextFormat.jsonl:
        raise ValueError("`--details` needs --format jsonl. Received: --format text.")
    if overrides and runtime is not Runtime.keras:
        raise ValueError(
            "`--set` needs --runtime keras: an export's options were set when it was "
            f"written. Received: {overrides[0]!r}."
        )
    whole = bool(input_file and not stream)
    if runtime is Runtime.keras:
        translator = _load(run, ensemble, series=False, file=whole)
    else:
        translator = _load_export(run, runtime, ensemble, file=whole)
    from keras_seq2seq.actions import TranslatedText, set_decoding

    if runtime is Runtime.keras:
        set_decoding(translator, run, overrides or [])
    options: dict[str, Any] = {
        "num_beams": beam_size,
        "length_penalty": length_penalty,
        "max_length": max_length,
        "min_length": min_length,
        "n_best": n_best,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "mbr_samples": mbr_samples,
        "alternatives": alternatives,
        "replace_unknown": replace_unknown,
        "by_sentence": split_sentences,
    }
    text = TranslatedText(
        translator,
        options,
        input_file=input_file,
        constraints=constraints,
        jsonl=format is TextFormat.jsonl,
        details=details,
    )
    if stream:
        text.stream(output)
    elif input_file is not None and output is not None:
        text.write_file(output, [run, *(ensemble or [])])
    else:
        shown = output is not None or not sys.stdout.isatty()
        write(output, text.lines(shown_progress=shown))


@app.command()
def score(
    run: Run,
    source: Annotated[Path, typer.Option("--source", help="Text file of sources.")],
    target: Annotated[Path, typer.Option("--target", help="Text file of targets.")],
    output: Output = None,
    format: Format = TextFormat.text,
) -> None:
    """Write the log-probability and the number of tokens of each target."""
    from keras_seq2seq.lines import read_lines

    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise ValueError(
            "`--source` and `--target` must have the same number of lines. Received: "
            f"{source} with {len(sources)}, {target} with {len(targets)}."
        )
    if not sources:
        raise ValueError(f"`--source` must have at least one line. Received: {source}.")
    translator = _load(run, series=False)
    from keras_seq2seq.scoring import perplexity

    with progress("pairs", total=len(sources)) as bar:
        scores = translator.score(sources, targets, progress=bar)
    if format is TextFormat.jsonl:
        write(output, (json_line(score._asdict()) for score in scores))
    else:
        write(output, (f"{log_prob:.6f}\t{n}" for log_prob, n in scores))
    say(f"Perplexity: {perplexity(scores):.4f}")


@app.command()
def evaluate(
    run: Run,
    source: Annotated[
        Path | None, typer.Option("--source", help="Sources; else the run's test set.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--target", help="References of --source.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers here.")
    ] = None,
    ensemble: Ensemble = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    tokenize: Annotated[
        str | None, typer.Option("--tokenize", help="Tokenizer of sacreBLEU.")
    ] = None,
) -> None:
    """Decode a test set and print its scores; results.json is in the run folder.

    The scores of an ensemble are no single run's: they are printed, and written with
    --json only.
    """
    from keras_seq2seq.actions import evaluate_files, evaluate_series
    from keras_seq2seq.evaluation import result_lines, write_results

    translator = _load(run, ensemble, file=True)
    own_test_set = source is None and target is None
    if hasattr(translator.config, "series"):
        options: dict[str, Any] = {"source": source, "target": target}
        options |= {"beam_size": beam_size, "length_penalty": length_penalty}
        paths = [path for path in (run / "results.json", json_file) if path is not None]
        lines = evaluate_series(translator, paths, tokenize=tokenize, **options)
        typer.echo("\n".join(lines))
        return
    if own_test_set:
        if translator.config.data.test is None:
            raise ValueError(
                f"{run / 'run.toml'} has no [data.test]: give --source and --target."
            )
        files = translator.config.data.test.model_dump(exclude_none=True)
    elif source is None or target is None:
        raise ValueError("`--source` and `--target` must be given together.")
    else:
        files = {"source": str(source), "target": str(target)}
    with progress("sentences") as bar:
        result = evaluate_files(
            translator,
            files,
            tokenize=tokenize,
            num_beams=beam_size,
            length_penalty=length_penalty,
            progress=bar,
        )
    typer.echo("\n".join(result_lines(result)))
    kept = own_test_set and not ensemble
    for path in [run / "results.json"] * kept + [json_file]:
        if path is not None:
            write_results(path, result)


@app.command()
def forecast(
    run: Run,
    input_file: Annotated[
        Path, typer.Option("--input", help="CSV file with the run's columns.")
    ],
    output: Output = None,
    horizon: Annotated[
        int | None,
        typer.Option("--horizon", min=1, help="Rows; the run's target_length."),
    ] = None,
) -> None:
    """Continue a series: the rows after the last one of a CSV file, as CSV."""
    if not input_file.is_file():
        raise FileNotFoundError(f"`--input` must be a file. Received: {input_file}.")
    from keras_seq2seq.actions import forecast_lines

    forecaster = _load(run, series=True)
    write(output, forecast_lines(forecaster, input_file, horizon=horizon))


@inspect_app.command()
def alignments(
    run: Run,
    text: Annotated[
        str | None, typer.Argument(help="Source text; else a line of standard input.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", help="PNG file to write.")] = Path(
        "alignment.png"
    ),
    beam_size: BeamSize = None,
) -> None:
    """Draw which source tokens each output token was made of."""
    from keras_seq2seq.actions import draw_alignment
    from keras_seq2seq.lines import read_lines

    if text is None:
        text = next(iter(read_lines(sys.stdin.buffer)), "")
    else:
        # Arguments come in the locale's encoding, by bytes that are UTF-8.
        text = os.fsencode(text).decode("utf-8", errors="replace")
    translator = _load(run, series=False)
    typer.echo(draw_alignment(translator, text, output, num_beams=beam_size))
    say(f"The picture is in {output}")


@app.command()
def doctor() -> None:
    """Show versions, backend, devices and optional parts; exits 1 on a problem."""
    import_backend(required=False)
    from keras_seq2seq.doctor import diagnose

    rows, problems = diagnose()
    for name, value in rows:
        typer.echo(f"{name:<24}{value}")
    for problem in problems:
        typer.echo(f"problem: {problem}")
    if problems:
        raise typer.Exit(1)


def _load(
    run: Path,
    ensemble: list[Path] | None = None,
    *,
    series: bool | None = None,
    file: bool = False,
) -> Any:
    """Load run folders, looking at them before the seconds that Keras takes."""
    runs = [run, *(ensemble or [])]
    for folder in runs:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"`RUN` must be a folder that `train` wrote. Received: {folder}, which "
                f"{'is a file' if folder.exists() else 'does not exist'}."
            )
    import_backend(file=file)
    from keras_seq2seq.ensembles import load_ensemble
    from keras_seq2seq.pipelines import load

    loaded = load_ensemble(runs) if ensemble else load(run)
    if series is not None and hasattr(loaded.config, "series") != series:
        kinds = ("with [series]", "of text")[:: 1 if series else -1]
        raise ValueError(f"`RUN` must be one {kinds[0]}. Received: {run}, {kinds[1]}.")
    return loaded


def _load_export(
    run: Path, runtime: Runtime, ensemble: list[Path] | None, *, file: bool
) -> Any:
    """Load an export in place of its run."""
    if ensemble:
        raise ValueError(
            f"`--ensemble` needs --runtime keras. Received: --runtime {runtime.value}."
        )
    if not run.is_dir():
        raise FileNotFoundError(
            f"`RUN` must be a folder that `train` or `export` wrote. Received: {run}."
        )
    import_backend(file=file)
    from keras_seq2seq.export.runtimes import load_runtime

    return load_runtime(run, runtime.value)
