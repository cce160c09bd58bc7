"""Signatures as plain data, so that requests can be read without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from keras_seq2seq.serving.errors import RequestError, invalid

DEFAULT_SIGNATURE = "serving_default"
PREDICT_METHOD = "tensorflow/serving/predict"

# TensorFlow's names of the types that requests and replies can hold, and NumPy's.
NUMPY_TYPES = {
    "bool": "bool",
    "string": "object",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float": "float32",
    "double": "float64",
}


@dataclass(frozen=True)
class Tensor:
    """One input or output of a signature.

    Args:
        dtype: TensorFlow's name of the type, such as `string` or `float`.
        shape: Sizes, -1 where any will do; None for a shape of any rank.
    """

    dtype: str
    shape: tuple[int, ...] | None

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether values of a shape fit.

        Args:
            shape: The shape of the values.
        """
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            wanted in (-1, size) for wanted, size in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True)
class Signature:
    """One function that a model offers.

    Args:
        inputs: Its inputs by name.
        outputs: Its outputs by name.
        method_name: What kind of function it is.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    method_name: str = PREDICT_METHOD


def find_signature(
    signatures: Mapping[str, Signature], name: str
) -> tuple[str, Signature]:
    """The signature that a request means.

    Args:
        signatures: What the model offers.
        name: The name in the request; empty for the default one.

    Raises:
        RequestError: If there is none of that name.
    """
    key = name or DEFAULT_SIGNATURE
    if key not in signatures:
        raise RequestError(
            "FAILED_PRECONDITION", f'Serving signature key "{key}" not found.'
        )
    return key, signatures[key]


def check_inputs(signature: Signature, inputs: Mapping[str, np.ndarray]) -> int:
    """Looks whether inputs are those of a signature, before they meet others.

    Args:
        signature: The signature.
        inputs: Values by name.

    Returns:
        The rows that all inputs have, or 1 if one has no rows or they differ.

    Raises:
        RequestError: If a name is missing or unknown, or a type or shape is wrong.
    """
    wanted, given = sorted(signature.inputs), sorted(inputs)
    if wanted != given:
        extra = ",".join(sorted(set(given) - set(wanted)))
        missing = ",".join(sorted(set(wanted) - set(given)))
        raise invalid(
            f"input size does not match signature: {len(given)}!={len(wanted)} "
            f"len({{{','.join(given)}}}) != len({{{','.join(wanted)}}}). "
            f"Sent extra: {{{extra}}}. Missing but required: {{{missing}}}."
        )
    for name, values in inputs.items():
        tensor = signature.inputs[name]
        if not tensor.takes(values.shape):
            raise invalid(
                f"`{name}` must have the shape {list(tensor.shape or ())}, with any "
                f"size for -1. Received: {list(values.shape)}."
            )
    sizes = {values.shape[0] if values.ndim else 1 for values in inputs.values()}
    return sizes.pop() if len(sizes) == 1 else 1


def check_outputs(signature: Signature, names: tuple[str, ...]) -> tuple[str, ...]:
    """The outputs that a request asks for.

    Args:
        signature: The signature.
        names: What the request names; none for all.

    Raises:
        RequestError: If a name is unknown or there twice.
    """
    for place, name in enumerate(names):
        if name not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs expected "
                f"to be in the set {{{','.join(sorted(signature.outputs))}}}."
            )
        if name in names[:place]:
            raise invalid(f"duplicate output tensor alias: {name}")
    return names or tuple(sorted(signature.outputs))
