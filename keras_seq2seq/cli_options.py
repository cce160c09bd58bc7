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
    litert = "litert"
    ctranslate2 = "ctranslate2"


class Runtime(StrEnum):
    """What `translate` can decode with."""

    keras = "keras"
    saved_model = "saved_model"
    litert = "litert"
    ctranslate2 = "ctranslate2"


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
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", min=0.0, help="Draw tokens; 0: search."),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", min=0, help="Draw from the likeliest; 0: all.")
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", min=0.0, max=1.0, help="Draw from what adds up to it."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="What to draw by; else a new one.")
]
NBest = Annotated[
    int,
    typer.Option(
        "--n-best",
        min=1,
        help="Outputs for each line; as text, lines of rank, score and output "
        "with tabs between, rank 1 for the next line.",
    ),
]
MbrSamples = Annotated[
    int | None,
    typer.Option(
        "--mbr-samples", min=1, help="Draw so many, take what agrees most with all."
    ),
]
Alternatives = Annotated[
    bool, typer.Option("--alternatives", help="Outputs that begin differently.")
]
Constraints = Annotated[
    Path | None,
    typer.Option(
        "--constraints",
        help="JSON lines beside the input, each with prefix, required and banned.",
    ),
]
ReplaceUnknown = Annotated[
    bool, typer.Option("--replace-unknown", help="Put source words for unknown ones.")
]
Details = Annotated[
    bool,
    typer.Option("--details", help="In jsonl also tokens, their scores and alignment."),
]
SplitSentences = Annotated[
    bool, typer.Option("--split-sentences", help="Decode sentence by sentence.")
]
Stream = Annotated[
    bool,
    typer.Option("--stream", help="Write outputs as they are decoded; greedy."),
]
Output = Annotated[Path | None, typer.Option("--output", help="File to write.")]
Format = Annotated[TextFormat, typer.Option("--format", help="Lines of output.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override, as training.epochs=3; repeatable."),
]
DecodingOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override, as decoding.no_repeat_ngram_size=3; repeatable."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what another run left there.")
]
RuntimeName = Annotated[
    Runtime,
    typer.Option("--runtime", help="Decode with an export, in RUN/exports or RUN."),
]
