"""Tensors as protocol buffers, in requests, replies and warm-up files."""

from typing import Any

import numpy as np

from keras_seq2seq.serving.errors import RequestError, invalid
from keras_seq2seq.serving.limits import Limits
from keras_seq2seq.serving.signatures import NUMPY_TYPES, Signature

# Where a message keeps values of a type of NumPy.
_FIELDS = {
    "bool": "bool_val",
    "object": "string_val",
    "int8": "int_val",
    "int16": "int_val",
    "int32": "int_val",
    "int64": "int64_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "float32": "float_val",
    "float64": "double_val",
}


def read_inputs(
    tensors: Any, signature: Signature, limits: Limits
) -> dict[str, np.ndarray]:
    """The tensors of a request, none larger than it may be.

    Args:
        tensors: Messages by name.
        signature: The signature that they are for.
        limits: What a request may ask.

    Raises:
        RequestError: If a name, type or size is wrong, or a message is damaged.
    """
    found = {}
    for name, tensor in tensors.items():
        if name not in signature.inputs:
            raise invalid(
                f"input tensor alias not found in signature: {name}. Inputs expected "
                f"to be in the set {{{','.join(sorted(signature.inputs))}}}."
            )
        shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
        limits.check_rows(shape, name)
        # One value can stand for a tensor of any size.
        limits.check_body(int(np.prod(shape, dtype=object)))
        found[name] = _array(tensor, name, signature.inputs[name].dtype)
    return found


def _array(tensor: Any, name: str, wanted: str) -> np.ndarray:
    import tensorflow as tf

    try:
        found = tf.make_ndarray(tensor)
        given = tf.as_dtype(tensor.dtype).name
    except (TypeError, ValueError) as error:
        raise invalid(f"tensor parsing error: {name}") from error
    given = {"float32": "float", "float64": "double"}.get(given, given)
    if given != wanted:
        raise invalid(f"Expects `{name}` to be {wanted} but {given} is provided")
    return found.astype(NUMPY_TYPES[wanted], copy=False)


def fill(tensor: Any, value: np.ndarray, dtype: int) -> None:
    """Writes an array as TF Serving does: value by value, not as raw bytes.

    Args:
        tensor: The message.
        value: The array.
        dtype: TensorFlow's number of its type.

    Raises:
        RequestError: If messages here do not hold the type.
    """
    field = _FIELDS.get(value.dtype.name)
    if field is None:
        raise RequestError(
            "UNIMPLEMENTED", f"Outputs of type {value.dtype} can not be sent"
        )
    tensor.dtype = dtype
    for size in value.shape:
        tensor.tensor_shape.dim.add().size = size
    getattr(tensor, field).extend(value.reshape(-1).tolist())
