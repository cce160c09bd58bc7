"""Options that several verbs of the command line share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class TextFormat(StrEnum):
    """How lines of output are written."""

    text = "text"
    jsonl = "jsonl"


class ExportFormat(StrEnum):
    """What `export` can write."""

    saved_model = "saved_model"


Run = Annotated[Path, typer.Argument(help="Run folder that `train` wrote.")]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="RUN",
        help="A further run to average with; may be given more than once.",
    ),
]
BeamSize = Annotated[
    int | None, typer.Option("--beam-size", min=1, help="Width of the beam; 1: greedy.")
]
LengthPenalty = Annotated[
    float | None,
    typer.Option("--length-penalty", min=0.0, help="GNMT exponent; 0: none."),
]
MaxLength = Annotated[
    int | None,
    typer.Option("--max-length", min=1, help="Most tokens of an output, END included."),
]
MinLength = Annotated[
    int | None, typer.Option("--min-length", min=0, help="Fewest tokens of an output.")
]
Output = Annotated[Path | None, typer.Option("--output", help="File to write.")]
Format = Annotated[TextFormat, typer.Option("--format", help="Lines of output.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override, as training.epochs=3; repeatable."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what another run left there.")
]
