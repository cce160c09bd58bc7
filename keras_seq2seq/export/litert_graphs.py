"""The decoding of a model as a LiteRT file with builtin operations only.

No runtime but a whole TensorFlow could run others. Signatures, for any number and
length of sources; N is the width of the beam, L the most tokens of an output:

==================== ======================= ====================================
signature            inputs                  outputs
==================== ======================= ====================================
`translate`          `ids` int32 `(B, S)`,   `output_ids` int32 `(B, L)`,
                     `lengths` int32 `(B,)`  `output_lengths` int32 `(B,)`,
                                             `score` float32 `(B,)`
`translate_greedy`   the same                the same
`translate_beam`     the same                `output_ids` `(B, N, L)`,
                                             `output_lengths` and `scores` `(B, N)`
`encode`             the same                `memory_…` and `state_…`: what
                                             `step` takes, at first
`step`               `token_ids` int32       `logits` float32 `(B, V)`, and
                     `(B,)`, `memory_…`,     `next_state_…` for the next step
                     `state_…`
==================== ======================= ====================================
"""

import re
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_seq2seq.buffers import filled_by
from keras_seq2seq.export.graph_search import GraphSearch

#: What becomes of the weights: float32, float16, or int8 with activations quantised
#: row by row while running. Int8 activations with fixed ranges have no place in a loop
#: that feeds itself.
QUANTIZATIONS = (None, "float16", "dynamic")


def convert(
    search: GraphSearch,
    *,
    quantization: str | None = None,
    signatures: tuple[str, ...] | None = None,
) -> bytes:
    """Converts encoder, search and single steps of a model.

    Args:
        search: The search, made with `fills="slice"`.
        quantization: None, `"float16"` or `"dynamic"`.
        signatures: Which ones; by default all. Without a beam there is but
            `translate` of the first three.

    Returns:
        The file's content.

    Raises:
        ValueError: If there is no such quantization, or the model needs an operation
            that LiteRT does not have.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"`quantization` must be one of {', '.join(map(repr, QUANTIZATIONS))}. "
            f"Received: quantization={quantization!r}."
        )
    if signatures is None:
        beams = ("translate_greedy", "translate_beam") * (search.num_beams > 1)
        signatures = ("translate", *beams, "encode", "step")
    archive = keras.export.ExportArchive()
    for name, (function, specs) in _functions(search).items():
        if name in signatures:
            archive.add_endpoint(name, function, input_signature=specs)
    with tempfile.TemporaryDirectory() as folder:
        archive.write_out(folder, verbose=False)
        return _converted(folder, quantization, list(signatures))


def _functions(search: GraphSearch) -> dict[str, tuple[Callable, list]]:
    """The functions of all signatures, with what they take."""
    sources = [
        tf.TensorSpec((None, None), tf.int32, name="ids"),
        tf.TensorSpec((None,), tf.int32, name="lengths"),
    ]
    steps = _Steps(search)
    return {
        "translate": (_plain(search.best), sources),
        "translate_greedy": (_plain(search.greedy), sources),
        "translate_beam": (_plain(search.n_best), sources),
        "encode": (_plain(steps.encode), sources),
        "step": (_plain(steps.step), steps.inputs()),
    }


def _plain(function: Callable) -> Callable:
    # Loops are `ops.while_loop` already.
    return tf.autograph.experimental.do_not_convert(function)


class _Steps:
    """Encoder and decoder step on flat dictionaries, for loops of an app's own."""

    def __init__(self, search: GraphSearch) -> None:
        self.search = search
        small, large = self._example(rows=2, width=3), self._example(rows=3, width=5)
        self._structures = small
        # What differs between the two has the rows or the source's length in it.
        self._shapes = [
            {
                name: tuple(
                    size if size == other else None
                    for size, other in zip(x.shape, two[name].shape, strict=True)
                )
                for name, x in one.items()
            }
            for one, two in zip(map(_named, small), map(_named, large), strict=True)
        ]

    def _example(self, rows: int, width: int) -> tuple[Any, Any]:
        """`memory` and `state` of some sources."""
        ids = ops.convert_to_tensor(np.full((rows, width), 3, "int32"))
        return self._encoded(ids)

    def _encoded(self, ids: Any) -> tuple[Any, Any]:
        model = self.search.model
        with filled_by("slice"):
            memory = model.encode(ids, training=False)
            state = model.initial_state(memory, self.search.max_length)
            return memory, model.repeat_state(state, 1)

    def inputs(self) -> list[tf.TensorSpec]:
        """What `step` takes."""
        specs = [tf.TensorSpec((None,), tf.int32, name="token_ids")]
        for prefix, tree, shapes in zip(
            ("memory", "state"), self._structures, self._shapes, strict=True
        ):
            specs += [
                tf.TensorSpec(shapes[name], x.dtype, name=f"{prefix}_{name}")
                for name, x in _named(tree).items()
            ]
        return specs

    def encode(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """What the decoder reads, and its first state."""
        memory, state = self._encoded(self.search.real_ids(ids, lengths)[0])
        return {
            **{f"memory_{name}": x for name, x in _named(memory).items()},
            **{f"state_{name}": x for name, x in _named(state).items()},
        }

    def step(self, token_ids: tf.Tensor, *tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        """The logits after one more token, and the state for the next one."""
        memory, state = self._structures
        count = len(_named(memory))
        memory = _packed(memory, tensors[:count])
        state = _packed(state, tensors[count:])
        with filled_by("slice"):
            logits, state, _ = self.search.model.step(token_ids, memory, state)
        return {
            "logits": tf.cast(logits, tf.float32),
            **{f"next_state_{name}": x for name, x in _named(state).items()},
        }


def _named(tree: Any) -> dict[str, Any]:
    """The tensors of a tree by the names on the way to them."""
    return {
        "_".join(map(str, path)): x
        for path, x in keras.tree.flatten_with_path(tree)
        if x is not None
    }


def _packed(tree: Any, tensors: tuple) -> Any:
    """A tree like another, of other tensors."""
    waiting = iter(tensors)
    flat = [None if x is None else next(waiting) for x in keras.tree.flatten(tree)]
    return keras.tree.pack_sequence_as(tree, flat)


def _converted(folder: str, quantization: str | None, names: list[str]) -> bytes:
    """Converts a SavedModel."""
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=names)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if quantization is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    try:
        return converter.convert()
    # The converter's own class is not public.
    except Exception as error:
        if type(error).__name__ != "ConverterError":
            raise
        raise ValueError(
            "LiteRT has no builtin operation for a part of this model. The converter "
            f"says: {_reason(str(error))}"
        ) from error


def _reason(text: str) -> str:
    """The lines of a long message that name operations, or its first error."""
    lines = [line.strip() for line in text.strip().splitlines()]
    named = [line for line in lines if re.match("(TF Select|Custom) ops:", line)]
    errors = [line for line in lines if "error: " in line]
    return "; ".join(named or errors[:1] or lines[:1])
