"""What can be said of a SavedModel by reading it, without running anything.

`verify` runs a graph only if every check here passes: a SavedModel is a program.
"""

import re

import tensorflow as tf

from keras_seq2seq.export.checks import Check, listed
from keras_seq2seq.export.operations import (
    CORE_OPERATIONS,
    SAVER_OPERATIONS,
    TEXT_OPERATIONS,
    XLA_OPERATIONS,
    Graph,
)
from keras_seq2seq.export.text_signatures import (
    DEFAULT,
    DEFAULT_IS,
    OPTIONAL,
    SIGNATURES,
)

# Ids go in and out of these: they need no operation of TensorFlow Text.
_WITHOUT_TEXT = ("decode_ids", "decode_ids_beam")


def static_checks(graph: Graph, *, jit: bool = False) -> list[Check]:
    """Looks at signatures and operations.

    Args:
        graph: The graph of a version folder.
        jit: Whether it says of itself that it is compiled by XLA.

    Returns:
        The checks, in order.
    """
    return [
        _check_signatures(graph),
        _check_names(graph),
        _check_types(graph),
        _check_operations(graph, jit),
        _check_xla(graph, jit),
    ]


def _check_signatures(graph: Graph) -> Check:
    expected = {
        name: (set(inputs), set(outputs))
        for name, (inputs, outputs) in SIGNATURES.items()
    }
    expected[DEFAULT] = expected[DEFAULT_IS]
    found = {
        name: (set(signature.inputs), set(signature.outputs))
        for name, signature in graph.signatures.items()
    }
    wrong = [
        f"{name} is missing" if name not in found else f"{name} has other tensors"
        for name in sorted(expected)
        if found.get(name) != expected[name]
        and not (name in OPTIONAL and name not in found)
    ]
    return listed("signatures", wrong, ", ".join(sorted(found)))


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
    return listed("names", wrong, good)


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
    return listed("types and shapes", wrong, good)


def _check_operations(graph: Graph, jit: bool) -> Check:
    """Allowed operations only; those of ids without any of TensorFlow Text."""
    operations = graph.operations() - (XLA_OPERATIONS if jit else frozenset())
    wrong = [
        f"{operation} is not allowed"
        for operation in sorted(
            operations - CORE_OPERATIONS - TEXT_OPERATIONS - SAVER_OPERATIONS
        )
    ]
    wrong += [
        f"{operation} is not allowed while loading"
        for operation in sorted(
            graph.initializer_operations() - CORE_OPERATIONS - TEXT_OPERATIONS
        )
    ]
    for name in graph.signatures:
        text = frozenset() if name in _WITHOUT_TEXT else TEXT_OPERATIONS
        allowed = CORE_OPERATIONS | text
        wrong += [
            f"{operation} is not allowed in {name}"
            for operation in sorted(
                operations & graph.signature_operations(name) - allowed
            )
        ]
    good = f"{len(operations)} kinds, all allowed; no cuDNN, no Python, no files"
    return listed("operations", wrong, good, most=5)


def _check_xla(graph: Graph, jit: bool) -> Check:
    """The stock server refuses what demands compilation."""
    marked = graph.xla_compiled()
    if jit:
        return Check(
            "XLA",
            bool(marked),
            "compiled by XLA as asked, which the stock server refuses"
            if marked
            else "nothing is compiled, though the manifest says so",
        )
    wrong = [f"must be compiled: {name}" for name in marked]
    return listed("no XLA", wrong, "nothing demands compilation")
