"""What one request may ask of a server, and how many may wait."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from keras_seq2seq.serving.errors import TOO_LONG, RequestError, invalid


@dataclass(frozen=True)
class Limits:
    """Limits that hold for REST and gRPC alike.

    Args:
        max_body_bytes: Most bytes of a request.
        max_rows: Most rows of a request.
        max_text_characters: Most characters of a string.
        max_waiting: Most requests that are being answered, or wait for it, at once.
        timeout_seconds: Longest that an answer may take.

    Raises:
        ValueError: If one is not positive.
    """

    max_body_bytes: int = 2**20
    max_rows: int = 128
    max_text_characters: int = 10_000
    max_waiting: int = 256
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"`{field.name}` must be positive. Received: {value}.")

    def check_body(self, size: int) -> None:
        """Refuses bodies that are too long.

        Args:
            size: Bytes of the body.

        Raises:
            RequestError: If they are too many.
        """
        if size > self.max_body_bytes:
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"A request may have `max_body_bytes` = {self.max_body_bytes} bytes. "
                f"Received: {size} or more. Send fewer rows at once.",
                http_status=TOO_LONG,
            )

    def check_rows(self, shape: tuple[int, ...], name: str) -> None:
        """Refuses tensors of no rows, and of too many.

        Args:
            shape: The tensor's shape.
            name: Its name.

        Raises:
            RequestError: If it has none or too many.
        """
        if shape and shape[0] < 1:
            raise invalid(f"`{name}` must have at least one row. Received: 0 rows.")
        if shape and shape[0] > self.max_rows:
            raise invalid(
                f"A request may have `max_rows` = {self.max_rows} rows. Received: "
                f"{shape[0]} rows of `{name}`. Send fewer rows at once."
            )

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Refuses inputs of too many rows or with too long texts.

        Args:
            inputs: Tensors by name.

        Raises:
            RequestError: If one is too large.
        """
        for name, values in inputs.items():
            self.check_rows(values.shape, name)
            if values.dtype != object:
                continue
            for text in values.flat:
                # Characters are at least a quarter of the bytes.
                if len(text) <= self.max_text_characters:
                    continue
                size = len(text.decode("utf-8", errors="replace"))
                if size > self.max_text_characters:
                    raise invalid(
                        "A text may have `max_text_characters` = "
                        f"{self.max_text_characters} characters. Received: {size} in "
                        f"`{name}`. Split it into sentences."
                    )
