"""What can be said of a SavedModel by reading it, without running anything.

`verify` runs a graph only if every check here passes: a SavedModel is a program.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from keras_seq2seq.export.operations import (
    CORE_OPERATIONS,
    SAVER_OPERATIONS,
    TEXT_OPERATIONS,
    Graph,
)
from keras_seq2seq.export.saved_model import MANIFEST, file_sums

SIGNATURES = {
    "serving_default": ({"source"}, {"text", "score"}),
    "decode_ids": ({"ids", "lengths"}, {"output_ids", "output_lengths", "score"}),
}


@dataclass(frozen=True)
class Check:
    """One property that was looked at.

    Args:
        name: The property.
        ok: Whether it holds.
        detail: What was found.
    """

    name: str
    ok: bool
    detail: str


def static_checks(folder: Path, graph: Graph) -> list[Check]:
    """Looks at files, signatures and operations.

    Args:
        folder: The version folder.
        graph: The graph in it.

    Returns:
        The checks, in order.
    """
    return [
        _check_files(folder),
        _check_signatures(graph),
        _check_names(graph),
        _check_types(graph),
        _check_operations(graph),
        _check_xla(graph),
    ]


def _check_files(folder: Path) -> Check:
    """Sums as in the manifest: integrity, not trust."""
    if not (folder / MANIFEST).is_file():
        return Check("files", False, f"no {MANIFEST}; export the run again")
    expected = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    # What deployment adds later: warm-up requests.
    found = {
        name: digest
        for name, digest in file_sums(folder).items()
        if not name.startswith("assets.extra/")
    }
    wrong = sorted(
        name for name in expected | found if expected.get(name) != found.get(name)
    )
    if wrong:
        return Check("files", False, f"not as in {MANIFEST}: {', '.join(wrong[:3])}")
    return Check("files", True, f"{len(found)} files as in {MANIFEST}")


def _check_signatures(graph: Graph) -> Check:
    found = {
        name: (set(signature.inputs), set(signature.outputs))
        for name, signature in graph.signatures.items()
    }
    wrong = sorted(name for name in SIGNATURES if found.get(name) != SIGNATURES[name])
    if wrong:
        return Check(
            "signatures",
            False,
            f"missing or with other inputs and outputs: {', '.join(wrong)}",
        )
    return Check("signatures", True, ", ".join(sorted(found)))


def _check_names(graph: Graph) -> Check:
    wrong = []
    for name, signature in graph.signatures.items():
        both = set(signature.inputs) & set(signature.outputs)
        wrong += [f"{name}: {key} is input and output" for key in sorted(both)]
        keys = [*signature.inputs, *signature.outputs]
        wrong += [
            f"{name}: {key!r} is no plain name"
            for key in keys
            if not re.fullmatch(r"[a-z][a-z0-9_]*", key)
        ]
    good = "inputs and outputs have different, plain names"
    return Check("names", not wrong, "; ".join(wrong[:3]) or good)


def _check_types(graph: Graph) -> Check:
    """Batch first everywhere, fixed output widths, types that JSON carries."""
    allowed = {tf.string.as_datatype_enum, tf.int32.as_datatype_enum}
    allowed.add(tf.float32.as_datatype_enum)
    wrong = []
    for name, signature in graph.signatures.items():
        for side in ("inputs", "outputs"):
            for key, tensor in getattr(signature, side).items():
                shape = [dim.size for dim in tensor.tensor_shape.dim]
                if tensor.dtype not in allowed:
                    dtype = tf.as_dtype(tensor.dtype).name
                    wrong.append(f"{name}: {key} is {dtype}")
                if tensor.tensor_shape.unknown_rank or not shape or shape[0] != -1:
                    wrong.append(f"{name}: {key} has no batch axis first")
                elif side == "outputs" and -1 in shape[1:]:
                    wrong.append(f"{name}: {key} has no fixed width: {shape}")
    good = "string, int32, float32; batch first; fixed output widths"
    return Check("types and shapes", not wrong, "; ".join(wrong[:3]) or good)


def _check_operations(graph: Graph) -> Check:
    """Allowed operations only; `decode_ids` without those of TensorFlow Text."""
    operations = graph.operations()
    wrong = [
        f"{operation} is not allowed"
        for operation in sorted(
            operations - CORE_OPERATIONS - TEXT_OPERATIONS - SAVER_OPERATIONS
        )
    ]
    for name in graph.signatures:
        allowed = CORE_OPERATIONS | (TEXT_OPERATIONS if name != "decode_ids" else set())
        wrong += [
            f"{operation} is not allowed in {name}"
            for operation in sorted(graph.signature_operations(name) - allowed)
        ]
    good = f"{len(operations)} kinds, all allowed; no cuDNN, no Python, no files"
    return Check("operations", not wrong, "; ".join(wrong[:5]) or good)


def _check_xla(graph: Graph) -> Check:
    marked = graph.xla_compiled()
    return Check(
        "no XLA",
        not marked,
        f"must be compiled: {', '.join(marked[:3])}"
        if marked
        else "nothing demands compilation, which the stock server refuses",
    )
