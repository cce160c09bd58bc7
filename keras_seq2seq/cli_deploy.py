"""The verbs of the command line that deploy: export, verify."""

from pathlib import Path
from typing import Annotated

import typer

from keras_seq2seq.cli_options import (
    BeamSize,
    ExportFormat,
    LengthPenalty,
    MaxLength,
    Overwrite,
    Run,
)
from keras_seq2seq.console import import_backend


def export(
    run: Run,
    format: Annotated[
        ExportFormat, typer.Option("--format", help="What to write.")
    ] = ExportFormat.saved_model,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Model folder; RUN/exports/saved_model."),
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="By default the next one.")
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a run for TF Serving; prints the folder of the new version."""
    import_backend()
    from keras_seq2seq.export.saved_model import export_saved_model

    folder = export_saved_model(
        run,
        output or run / "exports" / format.value,
        version=version,
        num_beams=beam_size,
        length_penalty=length_penalty,
        max_length=max_length,
        overwrite=overwrite,
    )
    typer.echo(str(folder))


def verify(
    path: Annotated[Path, typer.Argument(help="Folder that `export` wrote.")],
    run: Annotated[
        Path | None, typer.Option("--run", help="Run to compare its answers with.")
    ] = None,
) -> None:
    """Run each signature of an export in a fresh process; exits 1 if one is wrong."""
    import_backend()
    from keras_seq2seq.export.verify import verify as verify_export

    report = verify_export(path, run=run)
    typer.echo(report.table())
    if not report.ok:
        raise typer.Exit(1)
