"""The verbs of the command line that deploy: export, verify, serve."""

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

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
        typer.Option("--output", help="Folder to write; RUN/exports/FORMAT."),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            "--version", min=1, help="Of a SavedModel; by default the next one."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="What clients of a SavedModel call it; RUN's."),
    ] = None,
    jit: Annotated[
        bool, typer.Option("--jit", help="SavedModel for servers that allow XLA.")
    ] = False,
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            help="litert: float16 or dynamic (int8); ctranslate2: int8, float16, ...",
        ),
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a run for TF Serving, phones or CTranslate2; prints the folder."""
    given: dict[str, Any] = {
        "version": version,
        "name": name,
        "jit": jit or None,
        "quantization": quantization,
        "max_length": max_length,
    }
    taken = {
        "saved_model": {"version", "name", "jit", "max_length"},
        "litert": {"quantization", "max_length"},
        "ctranslate2": {"quantization"},
    }[format.value]
    for option, value in given.items():
        if value is not None and option not in taken:
            raise ValueError(
                f"`--{option.replace('_', '-')}` is not an option of --format "
                f"{format.value}. Received: {value}."
            )
    import_backend()
    write: Any
    if format is ExportFormat.saved_model:
        from keras_seq2seq.export.saved_model import export_saved_model

        write = export_saved_model
    elif format is ExportFormat.litert:
        from keras_seq2seq.export.litert import export_litert

        write = export_litert
    else:
        from keras_seq2seq.export.ctranslate2 import export_ctranslate2

        write = export_ctranslate2
    options = {key: value for key, value in given.items() if value is not None}
    folder = write(
        run,
        output or run / "exports" / format.value,
        num_beams=beam_size,
        length_penalty=length_penalty,
        overwrite=overwrite,
        **options,
    )
    typer.echo(str(folder))


def verify(
    path: Annotated[Path, typer.Argument(help="Folder that `export` wrote.")],
    run: Annotated[
        Path | None, typer.Option("--run", help="Run to compare its answers with.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--source", help="Text file of sentences to ask.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--target", help="Its references: tells the BLEU of both."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many lines of it at most.")
    ] = 200,
) -> None:
    """Run each signature of an export in a fresh process; exits 1 if one is wrong."""
    from keras_seq2seq.lines import read_lines

    if target is not None and (source is None or run is None):
        raise ValueError("`--target` needs --source and --run.")
    sentences, references = (
        None if file is None else list(islice(read_lines(file), limit))
        for file in (source, target)
    )
    import_backend()
    from keras_seq2seq.export.verify import verify as verify_export

    report = verify_export(path, run=run, sentences=sentences, references=references)
    typer.echo(report.table())
    if not report.ok:
        raise typer.Exit(1)


def serve(
    path: Annotated[
        Path, typer.Argument(help="Folder of versions, one version, or a run folder.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Of the model; by default the folder's."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Interface; by default this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Of REST; 0: any free one.")
    ] = 8501,
    grpc_port: Annotated[
        int | None,
        typer.Option("--grpc-port", min=0, max=65535, help="Also serve gRPC here."),
    ] = None,
    batching: Annotated[
        bool, typer.Option(help="Run requests that wait together.")
    ] = True,
    max_batch_size: Annotated[
        int, typer.Option("--max-batch-size", min=1, help="Most rows run together.")
    ] = 32,
    batch_timeout_micros: Annotated[
        int,
        typer.Option(
            "--batch-timeout-micros", min=0, help="How long to wait for more."
        ),
    ] = 5000,
    batching_config: Annotated[
        Path | None,
        typer.Option("--batching-config", help="TF Serving's file, in their place."),
    ] = None,
    max_body_bytes: Annotated[
        int, typer.Option("--max-body-bytes", min=1, help="Most bytes of a request.")
    ] = 2**20,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Most rows of a request.")
    ] = 128,
    max_text_characters: Annotated[
        int, typer.Option("--max-text-characters", min=1, help="Of one text.")
    ] = 10_000,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Most requests at once.")
    ] = 256,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Most seconds of an answer.")
    ] = 30.0,
    warmup: Annotated[
        bool, typer.Option(help="Replay a version's warm-up requests first.")
    ] = True,
) -> None:
    """Serve an export on this machine as TF Serving does; Ctrl-C ends it."""
    from keras_seq2seq.serving.server import Addresses, check_installed, run_server

    check_installed(grpc=grpc_port is not None)
    from keras_seq2seq.serving.batching import BatchingOptions
    from keras_seq2seq.serving.batching_config import read_batching_config
    from keras_seq2seq.serving.limits import Limits
    from keras_seq2seq.serving.versions import model_folder

    limits = Limits(max_body_bytes, max_rows, max_text_characters, max_waiting, timeout)
    options = None
    if batching_config is not None:
        options = read_batching_config(batching_config)
    elif batching:
        options = BatchingOptions(max_batch_size, batch_timeout_micros)
    model_folder(path)  # before the seconds that TensorFlow takes
    import_backend()
    run_server(
        path,
        name,
        addresses=Addresses(host, port, grpc_port),
        batching=options,
        limits=limits,
        warmup=warmup,
    )
