"""The bodies of replies of REST, written as TF Serving writes them.

The outputs of `instances` are `predictions`, those of `inputs` are `outputs`; binary
strings are `{"b64": "..."}` where the output's name ends in `_bytes`. NaN and
infinities are bare words, as there; exports of this package hold none. Text that is not
UTF-8 is repaired, where TF Serving writes JSON that no client can read.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_seq2seq.serving.errors import invalid


def write_reply(outputs: Mapping[str, np.ndarray], *, by_row: bool) -> bytes:
    """Writes the body of the reply to a `predict` request.

    Args:
        outputs: Tensors by name.
        by_row: Whether to write `predictions`, one for each row, or `outputs`.

    Raises:
        RequestError: If outputs have no rows, or different numbers of them.
    """
    if not outputs:
        raise invalid("Cannot convert empty tensor map to JSON")
    single = len(outputs) == 1
    if not by_row:
        parts = {name: _text(name, value) for name, value in outputs.items()}
        body = next(iter(parts.values())) if single else _object(parts)
        return _object({"outputs": body}).encode("utf-8")
    rows = []
    for number in range(_num_rows(outputs)):
        parts = {name: _text(name, value[number]) for name, value in outputs.items()}
        rows.append(next(iter(parts.values())) if single else _object(parts))
    body = "[" + ",\n".join(rows) + "]"
    return _object({"predictions": body}).encode("utf-8")


def _num_rows(outputs: Mapping[str, np.ndarray]) -> int:
    """The rows of all outputs, which must have the same number."""
    expected = 0
    for name, value in outputs.items():
        if not np.ndim(value):
            raise invalid(f"Tensor name: {name} has no shape information")
        if len(value) < 1:
            raise invalid(f"Tensor name: {name} has invalid batch size: {len(value)}")
        if expected and len(value) != expected:
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: {len(value)} "
                f"expecting: {expected}"
            )
        expected = len(value)
    return expected


def _object(parts: Mapping[str, str]) -> str:
    inner = ", ".join(f"{json.dumps(name)}: {part}" for name, part in parts.items())
    return "{" + inner + "}"


def _text(name: str, value: Any) -> str:
    """One output, or a row of it, as JSON."""
    if isinstance(value, bytes | str):
        return _string(name, value)
    if np.ndim(value):
        if np.ndim(value) == 1 and value.dtype.kind in "iu":
            return str(value.tolist())  # the same, and much faster
        return "[" + ", ".join(_text(name, element) for element in value) + "]"
    if isinstance(value, np.float32 | np.float64):
        return decimal(value)
    number: Any = np.asarray(value)
    kind = number.dtype.kind
    if kind == "O":
        return _string(name, number.item())
    if kind == "b":
        return "true" if number else "false"
    if kind in "iu":
        return str(int(number))
    if number.dtype in (np.float32, np.float64):
        return decimal(number[()])
    raise invalid(f"Failed to write JSON value for tensor type: {number.dtype}")


def _string(name: str, value: bytes | str) -> str:
    raw = value.encode("utf-8") if isinstance(value, str) else value
    if name.endswith("_bytes"):
        return _object({"b64": json.dumps(base64.b64encode(raw).decode("ascii"))})
    return json.dumps(raw.decode("utf-8", errors="replace"), ensure_ascii=False)


def decimal(value: np.floating) -> str:
    """A number as TF Serving writes it: six digits where they tell it, else all.

    Args:
        value: A float32 or float64.
    """
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "-Infinity" if value < 0 else "Infinity"
    text = f"{float(value):.6g}"
    if type(value)(text) != value:
        text = f"{float(value):.{9 if isinstance(value, np.float32) else 17}g}"
    return text if "." in text or "e" in text else f"{text}.0"
