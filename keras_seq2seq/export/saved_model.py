"""Writes a trained run as a SavedModel that TF Serving loads.

Its signatures, each with the batch on axis 0 of every tensor; N is the width of the
beam, L the most tokens of an output:

=================== ========================= ========================================
signature           inputs                    outputs
=================== ========================= ========================================
`serving_default`,  `source` string `(B,)`    `text` string `(B,)`, `score` float32
`translate`                                   `(B,)`
`translate_beam`    `source`                  `texts` string `(B, N)`, `scores` float32
                                              `(B, N)`, best first
`translate_sample`  `source`; of each row     `text`, `score`
                    `seed`, `top_k` int32,
                    `temperature`, `top_p`
                    float32, all `(B,)`
`decode_ids`        `ids` int32 `(B, S)`,     `output_ids` int32 `(B, L)`,
                    `lengths` int32 `(B,)`    `output_lengths` int32 `(B,)`, `score`
`decode_ids_beam`   `ids`, `lengths`          `output_ids` int32 `(B, N, L)`,
                                              `output_lengths` int32 `(B, N)`, `scores`
`score`             `source`, `target` string `log_prob` float32 `(B,)`, `num_tokens`
                    `(B,)`                    int32 `(B,)`, END included
`attention`         `source`                  `text`; `source_tokens` string `(B, L)`,
                                              `target_tokens` string `(B, L)`,
                                              `weights` float32 `(B, L, L)`, by target
                                              and source token
=================== ========================= ========================================

`ids` are those of the source tokenizer with END appended; `output_ids` hold END where
the search reached it. `score` is the ranking value of the search, always finite, and 0
for blank sources; where a beam found fewer hypotheses than N, the others are empty
texts of score -1e9.
"""

import re
from pathlib import Path

import keras
import tensorflow as tf

from keras_seq2seq.export.checks import VerifyReport, check_files
from keras_seq2seq.export.folders import recover, written_whole
from keras_seq2seq.export.graph_search import GraphSearch, check_backend
from keras_seq2seq.export.manifest import as_translator, write_manifest
from keras_seq2seq.export.operations import Graph
from keras_seq2seq.export.server_files import write_server_files, write_warmup
from keras_seq2seq.export.static_checks import static_checks
from keras_seq2seq.export.text_signatures import TextSignatures
from keras_seq2seq.pipelines import Translator


def export_saved_model(
    run_or_translator: str | Path | Translator,
    path: str | Path,
    *,
    version: int | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    jit: bool = False,
    name: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes `path/<version>/` with the signatures above.

    The folder appears complete or not at all: it is written under a name that servers
    ignore, checked as far as that goes without running it, and then renamed. Beside
    the graph it holds the tokenizers, for clients that send ids; warm-up requests, if
    `tensorflow-serving-api` is installed; and `manifest.json` (versions, operations,
    signatures, sums). Beside the versions stand `models.config`, `batching.config` and
    `serve.sh` for TF Serving, unless they are there already.

    Args:
        run_or_translator: A run folder, or what `load` made of one.
        path: The model's folder, whose subfolders are versions.
        version: Number of the version; by default one above the largest there.
        num_beams: Width of the beam; by default the run's.
        length_penalty: Exponent of the length penalty; by default the run's.
        max_length: Most tokens of an output, END included, for every source; by default
            it follows the source's length as the run says.
        jit: Whether encoder and search are compiled by XLA when they run: for servers
            that allow it, which the stock TF Serving does not unless told so.
        name: What clients call the model; by default the run folder's name.
        overwrite: Whether an existing version of this number is replaced.

    Returns:
        The version folder.

    Raises:
        ValueError: If the version exists, a number is out of range, the run is not one
            of text, Keras does not run on TensorFlow, or the graph holds what a server
            may not run.
        FileNotFoundError: If the run folder is missing or incomplete.
    """
    check_backend("A SavedModel")
    path = Path(path)
    version = _check_version(path, version, overwrite)
    translator = as_translator(run_or_translator)
    search = GraphSearch(
        translator.model,
        translator.decoding,
        num_beams=num_beams,
        length_penalty=length_penalty,
        max_length=max_length,
        fills="slice" if jit else "grow",
    )
    if name is None:
        given = isinstance(run_or_translator, str | Path)
        name = Path(run_or_translator if given else path).resolve().name  # type: ignore[arg-type]

    path.mkdir(parents=True, exist_ok=True)
    final = path / str(version)
    with written_whole(final) as folder:
        _write_graph(search, translator, folder, jit)
        translator.tokenizers.save(folder / "tokenizer")
        _finish(search, translator, folder, jit)
    write_server_files(path, name)
    return final


def _write_graph(
    search: GraphSearch, translator: Translator, folder: Path, jit: bool
) -> None:
    """Writes the SavedModel; the archive is the one way that servers load rightly."""
    archive = keras.export.ExportArchive()
    TextSignatures(translator, search, jit=jit).add_to(archive)
    archive.write_out(str(folder), verbose=False)


def _finish(
    search: GraphSearch, translator: Translator, folder: Path, jit: bool
) -> None:
    """Writes what stands beside the graph, and looks at all of it once."""
    graph = Graph(folder)
    num_requests = write_warmup(folder, translator.tokenizers, list(graph.signatures))
    write_manifest(
        folder,
        "saved_model",
        translator,
        decoding=search.described,
        facts={
            "settings": search.request.settings.model_dump(),
            "jit": jit,
            "warmup_requests": num_requests,
            "signatures": _described(graph),
            "operations": sorted(graph.operations()),
        },
    )
    report = VerifyReport(folder, (check_files(folder), *static_checks(graph, jit=jit)))
    if not report.ok:
        raise ValueError(
            "The export must pass the checks of `verify`. Received:\n"
            f"{report.table()}\nNothing was published."
        )


def _described(graph: Graph) -> dict[str, dict]:
    """Names, types and shapes of all signatures, for the manifest."""
    return {
        name: {
            side: {
                key: {
                    "dtype": tf.as_dtype(tensor.dtype).name,
                    "shape": [dim.size for dim in tensor.tensor_shape.dim],
                }
                for key, tensor in sorted(getattr(signature, side).items())
            }
            for side in ("inputs", "outputs")
        }
        for name, signature in graph.signatures.items()
    }


def _check_version(path: Path, version: int | None, overwrite: bool) -> int:
    """Decides the version's number; refuses one that would lose something."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"`path` must be a folder. Received the file: {path}.")
    recover(path)
    existing = sorted(
        int(entry.name)
        for entry in (path.iterdir() if path.is_dir() else ())
        if re.fullmatch(r"[0-9]+", entry.name)
    )
    if version is None:
        return existing[-1] + 1 if existing else 1
    _at_least("version", version, 0)
    if version in existing and not overwrite:
        raise ValueError(
            f"Version {version} exists in {path}. Choose another `version` (the next "
            f"is {existing[-1] + 1}) or pass `overwrite`."
        )
    return version


def _at_least(name: str, value: int, least: int) -> int:
    """Checks that an argument is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}. Received: {value!r}."
        )
    return value
