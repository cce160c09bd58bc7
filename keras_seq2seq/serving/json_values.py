"""The bodies of requests of REST, read as TF Serving reads them.

A request has `instances`, a list of rows, or `inputs`, the tensors whole. Binary
strings travel as `{"b64": "..."}`. Unlike TF Serving's, error messages cut long values.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_seq2seq.serving.errors import RequestError, invalid
from keras_seq2seq.serving.signatures import NUMPY_TYPES, Tensor

_SHOWN_CHARACTERS = 400
_MAX_RANK = 16
_INTEGERS = {
    # All that fit an int32 are taken for the narrow ones.
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), (-(2**31), 2**31)),
    "int64": (-(2**63), 2**63),
    "uint32": (0, 2**32),
    "uint64": (0, 2**64),
}
# Bits of the whole numbers that are exact, and the largest number.
_FLOATS = {
    "float": (24, float(np.finfo(np.float32).max)),
    "double": (53, float(np.finfo(np.float64).max)),
}

# A JSON value's class names, in the words of TF Serving.
_TYPES = {dict: "Object", list: "Array", str: "String", type(None): "Null"}


@dataclass(frozen=True)
class JsonRequest:
    """A request as it stands in a body.

    Args:
        signature_name: As given; empty for the default.
        inputs: Tensors by name.
        by_row: Whether it had `instances`, and wants `predictions`.
    """

    signature_name: str
    inputs: dict[str, np.ndarray]
    by_row: bool


def read_request(
    body: bytes, inputs_of: Callable[[str], Mapping[str, Tensor]]
) -> JsonRequest:
    """Reads the body of a `predict` request.

    Args:
        body: JSON.
        inputs_of: Gives the inputs of a signature by its name, or raises.

    Raises:
        RequestError: If the body is no JSON, or does not fit the signature.
    """
    document = read_object(body)
    name = signature_name(document)
    inputs = inputs_of(name)
    if not inputs:
        raise invalid(f"Failed to get input map for signature: {name or 'DEFAULT'}")
    if "instances" in document and "inputs" in document:
        raise invalid(
            f"JSON Value: {_shown(document)} Not formatted correctly expecting only "
            "one of 'inputs' or 'instances' keys to exist"
        )
    if "instances" in document:
        instances = document["instances"]
        if not isinstance(instances, list):
            raise invalid(
                f"JSON Value: {_shown(document)} Expecting 'instances' to be an "
                "list/array"
            )
        if not instances:
            raise invalid(
                f"JSON Value: {_shown(document)} No values in 'instances' array"
            )
        return JsonRequest(name, _from_rows(instances, inputs), by_row=True)
    if "inputs" in document:
        columns = _from_columns(document["inputs"], inputs)
        return JsonRequest(name, columns, by_row=False)
    raise invalid("Missing 'inputs' or 'instances' key")


def read_object(body: bytes) -> dict[str, Any]:
    """Reads a JSON object; bytes that are no UTF-8 are kept in its strings.

    Args:
        body: JSON.

    Raises:
        RequestError: If it is none.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        document = json.loads(body.decode("utf-8-sig", errors="surrogateescape"))
    except json.JSONDecodeError as error:
        raise invalid(
            f"JSON Parse error: {error.msg} at offset: {error.pos}"
        ) from error
    except (RecursionError, ValueError) as error:  # too deep, or thousands of digits
        raise invalid(f"JSON Parse error: {str(error).split(';')[0]}") from error
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {_shown(document)} Is not object")
    return document


def signature_name(document: Mapping[str, Any]) -> str:
    """The signature that a body asks for; empty for the default.

    Args:
        document: The body.

    Raises:
        RequestError: If it is no string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            f"JSON Value: {_shown(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def _from_rows(instances: list, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Tensors of which each row is one element of a list."""
    if not isinstance(instances[0], dict) and len(inputs) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple "
            "input tensors required as per tensorinfo_map"
        )
    named = _is_plain_object(instances[0])
    only = next(iter(inputs))
    columns: dict[str, list[list]] = {}
    shapes: dict[str, list[int]] = {}
    for number, element in enumerate(instances):
        if named != _is_plain_object(element):
            kinds = ("value/list", "object")[:: -1 if named else 1]
            raise invalid(
                f"Expecting {kinds[0]} but got {kinds[1]} at item {number} of input "
                "list"
            )
        for name, value in (element if named else {only: element}).items():
            try:
                row, shape = _row(value, name, inputs, shapes)
            except RequestError as error:
                key = f" key: {name}" if named else ""
                raise invalid(
                    f"Failed to process element: {number}{key} of 'instances' list. "
                    f"Error: INVALID_ARGUMENT: {error.message}"
                ) from error
            shapes.setdefault(name, shape)
            columns.setdefault(name, []).append(row)
        if named and element.keys() != inputs.keys():
            raise invalid(
                f"Failed to process element: {number} of 'instances' list. JSON "
                f"object: {_shown(element)} keys must be equal to: "
                f"{','.join(sorted(inputs))}"
            )
    return {
        name: _array(
            [value for row in rows for value in row],
            inputs[name].dtype,
            [len(rows), *shapes[name]],
        )
        for name, rows in columns.items()
    }


def _row(
    value: Any,
    name: str,
    inputs: Mapping[str, Tensor],
    shapes: Mapping[str, list[int]],
) -> tuple[list, list[int]]:
    """The values of one row of one tensor, which must be shaped as those before."""
    if name not in inputs:
        raise invalid(f"JSON object: does not have named input: {name}")
    shape = _shape_of(value)
    values = list(_leaves(value, shape, 0, inputs[name].dtype))
    if name in shapes and (expected := shapes[name]) != shape:
        size = int(np.prod(expected))
        if size != len(values):
            raise invalid(f"Expecting tensor size: {size} but got: {len(values)}")
        raise invalid(
            f"Expecting shape {_shape_text(expected)} but got: {_shape_text(shape)}"
        )
    return values, shape


def _from_columns(columns: Any, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Tensors that stand in the body whole."""
    if not _is_plain_object(columns):
        if len(inputs) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple "
                "input tensors required as per tensorinfo_map"
            )
        columns = {next(iter(inputs)): columns}
    found = {}
    for name, tensor in inputs.items():
        if name not in columns:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
        shape = _shape_of(columns[name])
        values = list(_leaves(columns[name], shape, 0, tensor.dtype))
        found[name] = _array(values, tensor.dtype, shape)
    return found


def _array(values: list, dtype: str, shape: list[int]) -> np.ndarray:
    """Values of JSON as an array of TensorFlow's type."""
    if dtype == "string":
        array = np.empty(len(values), object)
        array[:] = values
        return array.reshape(shape)
    # Narrow integers wrap around, as in TF Serving.
    wide = np.int64 if dtype in ("int8", "int16", "uint8", "uint16") else None
    found = np.array(values, wide or NUMPY_TYPES[dtype])
    return found.astype(NUMPY_TYPES[dtype]).reshape(shape)


def _shape_of(value: Any) -> list[int]:
    """Sizes along the first elements."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > _MAX_RANK:
            raise invalid(f"A tensor may have {_MAX_RANK} axes. Received: more.")
        if not value:
            break
        value = value[0]
    return shape


def _leaves(value: Any, shape: list[int], level: int, dtype: str) -> Iterator[Any]:
    """The values of a nested list, which must be a box of a shape."""
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid(
                f"JSON Value: {_shown(value)} found at incorrect level: {level + 1} "
                f"in the JSON DOM. Expected at level: {len(shape)}"
            )
        yield _leaf(value, dtype)
        return
    if level >= len(shape):
        raise invalid(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        )
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for element in value:
        yield from _leaves(element, shape, level + 1, dtype)


def _leaf(value: Any, dtype: str) -> Any:
    """One value of JSON as one of a tensor."""
    if dtype == "string":
        if isinstance(value, dict):
            return _from_base64(value)
        if isinstance(value, str):
            return _text_bytes(value)
    elif dtype == "bool":
        if isinstance(value, bool):
            return value
    elif dtype in _INTEGERS:
        low, end = _INTEGERS[dtype]
        if type(value) is int and low <= value < end:
            return value
    elif dtype in _FLOATS:
        if type(value) in (int, float):
            _check_lossless(value, dtype)
            return value
    else:
        raise RequestError(
            "UNIMPLEMENTED",
            f"Conversion of JSON Value: {_shown(value)} to type: {dtype}",
        )
    kind = _TYPES.get(type(value), "Number")
    kind = str(value) if isinstance(value, bool) else kind
    raise invalid(
        f"JSON Value: {_shown(value)} Type: {kind} is not of expected type: {dtype}"
    )


def _check_lossless(value: float, dtype: str) -> None:
    bits, largest = _FLOATS[dtype]
    if type(value) is int and -(2**63) <= value < 2**64:
        fits = abs(value) < 2**bits
    else:  # longer integers are read as numbers with a point
        try:
            exact = float(value)
        except OverflowError:
            fits = False
        else:
            fits = not np.isfinite(exact) or abs(exact) <= largest
    if not fits:
        raise invalid(
            f"Cannot convert JSON value: {_shown(value)} to {dtype} without loss of "
            "precision."
        )


def _text_bytes(text: str) -> bytes:
    """The bytes of a string of a body, also where they were no UTF-8."""
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise invalid(
            "JSON Parse error: The surrogate pair in string is invalid."
        ) from error


def _is_base64(value: Any) -> bool:
    """Whether a value is `{"b64": "..."}` and nothing else."""
    return (
        isinstance(value, dict)
        and len(value) == 1
        and isinstance(value.get("b64"), str)
    )


def _is_plain_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _from_base64(value: dict) -> bytes:
    if not _is_base64(value):
        raise invalid(
            f"JSON Value: {_shown(value)} not formatted correctly for base64 data"
        )
    text = re.sub(r"\s", "", value["b64"]).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("Unable to base64 decode") from error


def _shown(value: Any) -> str:
    """A value in an error message, cut where it is long."""
    try:
        text = json.dumps(value, indent=4, ensure_ascii=False)
    except RecursionError:
        return "of hundreds of levels"
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _shape_text(shape: list[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
