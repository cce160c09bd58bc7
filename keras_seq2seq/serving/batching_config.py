"""Reads the file that TF Serving takes as `--batching_parameters_file`.

It is a protocol buffer as text, such as

    max_batch_size { value: 32 }
    allowed_batch_sizes: [8, 32]
    pad_variable_length_inputs: true
"""

import re
from pathlib import Path
from typing import Any

from keras_seq2seq.serving.batching import BatchingOptions

# Numbers in a message of their own, so that TF Serving can tell 0 from none.
_WRAPPED = {
    "max_batch_size",
    "batch_timeout_micros",
    "max_enqueued_batches",
    "num_batch_threads",
}
_REPEATED = "allowed_batch_sizes"
_FLAG = "pad_variable_length_inputs"
_IGNORED = {"thread_pool_name"}
KEYS = sorted({*_WRAPPED, _REPEATED, _FLAG})

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<token>[A-Za-z_]\w*|-?\d+|[{}\[\]:,;]|"[^"\n]*"|'[^'\n]*')"""
)


def read_batching_config(path: str | Path) -> BatchingOptions:
    """Reads batching options; what the file leaves out has its default here.

    Without `pad_variable_length_inputs`, inputs are not padded, as in TF Serving.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not of that form, or a key or number is wrong.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"`batching_config` must be a text file. Received: {path}."
        )
    text = Path(path).read_text(encoding="utf-8")
    values: dict[str, Any] = {_FLAG: False}
    sizes: list[int] = []
    tokens = _Tokens(text, path)
    while tokens.more:
        key = tokens.take()
        if key in _WRAPPED:
            values[key] = tokens.wrapped(tokens.number)
        elif key == _REPEATED:
            sizes += tokens.numbers()
        elif key == _FLAG:
            values[key] = tokens.flag()
        elif key in _IGNORED:
            tokens.wrapped(tokens.take)
        else:
            raise ValueError(
                f'Unknown key "{key}" in {path}. Valid keys: {", ".join(KEYS)}.'
            )
        tokens.skip(",", ";")
    return BatchingOptions(**values, allowed_batch_sizes=tuple(sizes))


class _Tokens:
    """The words of a text, taken one by one."""

    def __init__(self, text: str, path: str | Path) -> None:
        self._path = path
        self._tokens: list[str] = []
        place = 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise ValueError(
                    f"{path} must be a protocol buffer as text. Received: "
                    f"{text[place : place + 20]!r} at character {place}."
                )
            if match["token"]:
                self._tokens.append(match["token"])
            place = match.end()
        self._tokens.reverse()

    @property
    def more(self) -> bool:
        return bool(self._tokens)

    def take(self, expected: str | None = None) -> str:
        found = self._tokens.pop() if self._tokens else "the end of the file"
        if expected is not None and found != expected:
            raise ValueError(
                f'{self._path} must have "{expected}" where it has: {found}.'
            )
        return found

    def skip(self, *words: str) -> bool:
        if self._tokens and self._tokens[-1] in words:
            self._tokens.pop()
            return True
        return False

    def wrapped(self, read: Any) -> Any:
        """A value as `{ value: 1 }`."""
        self.skip(":")
        self.take("{")
        self.take("value")
        self.take(":")
        found = read()
        self.skip(",", ";")
        self.take("}")
        return found

    def number(self) -> int:
        word = self.take()
        if not re.fullmatch(r"-?\d+", word):
            raise ValueError(f"{self._path} must have a number where it has: {word}.")
        return int(word)

    def numbers(self) -> list[int]:
        """One number, or several as `[1, 2]`."""
        self.take(":")
        if not self.skip("["):
            return [self.number()]
        found = [self.number()]
        while self.skip(","):
            found.append(self.number())
        self.take("]")
        return found

    def flag(self) -> bool:
        self.take(":")
        word = self.take()
        if word not in ("true", "false", "1", "0"):
            raise ValueError(
                f"{self._path} must have true or false where it has: {word}."
            )
        return word in ("true", "1")
