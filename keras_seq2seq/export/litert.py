"""Writes the decoding of a model as a LiteRT file, the format of phones.

One signature, `decode_ids`, searches from source ids to target ids, for any number and
length of sources:

================== ===================== ==================================
input              output                meaning
================== ===================== ==================================
`ids` `(B, S)`                           int32, source ids with END
`lengths` `(B,)`                         int32, how many of them are real
                   `output_ids` `(B, L)` int32, with END where it was reached
                   `output_lengths`      int32, `(B,)`, END included
                   `score`               float32, `(B,)`, of the search
================== ===================== ==================================

The file has LiteRT's builtin operations only: no runtime but a whole TensorFlow could
run others.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_seq2seq.buffers import filled_by
from keras_seq2seq.decoding import beam_search
from keras_seq2seq.tokenizers import PAD_ID

#: What becomes of the weights: float32, float16, or int8 with activations quantised
#: row by row while running. Int8 activations with fixed ranges have no place in a loop
#: that feeds itself.
QUANTIZATIONS = (None, "float16", "dynamic")


def convert_search(
    model: keras.Model,
    *,
    quantization: str | None = None,
    max_length: int,
    **options: Any,
) -> bytes:
    """Converts encoder and search of a model.

    Args:
        model: A model of the four-call contract.
        quantization: None, `"float16"` or `"dynamic"`.
        max_length: Width `L` of the outputs, and their limit.
        **options: Fields of `SearchOptions`, and `length_limits` as a function of the
            real lengths `(B,)`.

    Returns:
        The file's content.

    Raises:
        ValueError: If there is no such quantization, tokens are to be drawn, or the
            model needs an operation that LiteRT does not have.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"`quantization` must be one of {', '.join(map(repr, QUANTIZATIONS))}. "
            f"Received: quantization={quantization!r}."
        )
    if options.get("temperature", 0) > 0:
        raise ValueError(
            "An export searches its answers; it cannot draw them yet. Received: "
            f"temperature={options['temperature']}."
        )
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "decode_ids",
        _search(model, max_length, **options),
        input_signature=[
            tf.TensorSpec((None, None), tf.int32, name="ids"),
            tf.TensorSpec((None,), tf.int32, name="lengths"),
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        archive.write_out(folder, verbose=False)
        return _convert(folder, quantization)


def _search(
    model: Any,
    max_length: int,
    *,
    length_limits: Callable | None = None,
    **options: Any,
) -> Callable:
    """The function of the signature."""

    # Loops are `ops.while_loop` already.
    @tf.autograph.experimental.do_not_convert
    def decode_ids(ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        positions = tf.expand_dims(tf.range(tf.shape(ids)[1]), 0)  # (1, S)
        real = positions < tf.expand_dims(lengths, 1)
        follows = {}
        if length_limits is not None:
            follows["length_limits"] = length_limits(lengths)
        with filled_by("slice"):
            memory = model.encode(tf.where(real, ids, PAD_ID), training=False)
            result = beam_search(
                model.step,
                memory,
                model.initial_state(memory, max_length),
                max_length=max_length,
                repeat_state=model.repeat_state,
                select_state=model.select_state,
                select_memory=model.select_memory,
                **follows,
                **options,
            )
        return {
            "output_ids": tf.ensure_shape(result.ids[:, 0], (None, max_length)),
            "output_lengths": result.lengths[:, 0],
            "score": result.scores[:, 0],
        }

    return decode_ids


def _convert(folder: str, quantization: str | None) -> bytes:
    """Converts a SavedModel."""
    converter = tf.lite.TFLiteConverter.from_saved_model(
        folder, signature_keys=["decode_ids"]
    )
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
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            "LiteRT has no builtin operation for a part of this model. The converter "
            f"says: {reason}"
        ) from error
