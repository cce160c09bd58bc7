"""Text files, line by line: one byte-level reader, one rule for odd characters.

Every text file of the package is read by `read_lines` and every text that a user
sends passes `clean_line`, so that training, evaluation and inference agree on what a
line is. Below `corpora` in the pipeline; nothing is held in memory but the line.
"""

import gzip
import io
import json
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

# What `clean_line` acts on; the tab is not among them (it separates TSV columns).
_ODD = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_SEPARATORS = frozenset("\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029")
_OTHER_FILES = {
    b"\xff\xfe": 'It looks like UTF-16: pass encoding="utf-16".',
    b"\xfe\xff": 'It looks like UTF-16: pass encoding="utf-16".',
    b"PK\x03\x04": "It looks like a zip archive: unpack it first.",
    b"BZh": "It looks like a bzip2 file: unpack it first.",
    b"\xfd7zXZ": "It looks like an xz file: unpack it first.",
    b"\x28\xb5\x2f\xfd": "It looks like a zstd file: unpack it first.",
}


def clean_line(text: str, counts: Counter[str] | None = None) -> str:
    r"""Apply the package's rule for odd characters to one line of text.

    The same rule holds for corpora and for text that users send: one line end
    (`\n` or `\r\n`) is cut off; U+FEFF, NUL and other C0 and C1 controls are
    removed; a carriage return or a character that some readers take for a line end
    (VT, FF, FS, GS, RS, US, U+0085, U+2028, U+2029, an inner `\n`) becomes a space; a
    lone surrogate becomes U+FFFD. All else survives: tabs, joiners (U+200C, U+200D),
    direction marks, combining marks.

    Args:
        text: One line, with or without its line end.
        counts: Counter that receives the number of characters acted on, by kind.

    Returns:
        The line without its line end.
    """
    text = text.removesuffix("\n").removesuffix("\r")
    if not _ODD.search(text):
        return text

    def replace(match: re.Match[str]) -> str:
        kind, replacement = _kind_and_replacement(match[0])
        if counts is not None:
            counts[kind] += 1
        return replacement

    return _ODD.sub(replace, text)


def clean_texts(texts: Sequence[str], name: str) -> list[str]:
    """Apply `clean_line` to each text of an argument.

    Args:
        texts: The texts.
        name: What the argument is called.

    Raises:
        TypeError: If it is one string or contains something else.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(
            f"`{name}` must be a list of strings. Received one string: "
            f"{texts[:40]!r}. Put it in a list."
        )
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"`{name}` must contain strings only. Received at index {index}: "
                f"{text!r}."
            )
    return [clean_line(text) for text in texts]


def _kind_and_replacement(character: str) -> tuple[str, str]:
    if character == "\r":
        return "carriage return", " "
    if character in _SEPARATORS:
        return "line separator", " "
    if character == "\ufeff":
        return "byte-order mark", ""
    if character == "\x00":
        return "NUL", ""
    if "\ud800" <= character <= "\udfff":
        return "lone surrogate", "\ufffd"
    return "control character", ""


def is_blank(text: str) -> bool:
    """Tell whether a text shows nothing: only spaces and invisible characters."""
    return all(
        character.isspace() or unicodedata.category(character) in ("Cf", "Cc")
        for character in text
    )


def read_lines(
    file: str | Path | BinaryIO,
    *,
    encoding: str = "utf-8",
    counts: Counter[str] | None = None,
) -> Iterator[str]:
    r"""Read the lines of a text file, gzipped or not, cleaned by `clean_line`.

    Only `\n` ends a line, and a last line without one counts, so that the number of
    lines is that of the shell's tools. Gzip is known by its first bytes.

    Args:
        file: A path, or an open binary stream (standard input's buffer).
        encoding: Name of the file's encoding.
        counts: Counter that receives the number of characters acted on, by kind.

    Yields:
        The lines, in order, without line ends.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not valid in this encoding (with line and byte
            offset), is a damaged gzip file, or the encoding is unknown.
    """
    name = str(getattr(file, "name", "the stream"))
    if isinstance(file, str | Path):
        name = str(file)
        check_file(file, "file")
    offset = 0
    for number, line in enumerate(raw_lines(file, name, encoding), start=1):
        if isinstance(line, bytes):
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError as error:
                message = _undecodable(name, number, offset, line, encoding, error)
                raise ValueError(message) from None
            offset += len(line)
        else:
            text = line
        yield clean_line(text, counts)


def read_json_lines(path: str | Path) -> Iterator[Any]:
    """Read a file of JSON lines.

    Args:
        path: The file, UTF-8, gzipped or not.

    Yields:
        The value of each line.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not JSON, with its number.
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected JSON ({error}). Received: "
                f"{line[:80]!r}."
            ) from None


def raw_lines(
    file: str | Path | BinaryIO, name: str, encoding: str
) -> Iterator[bytes | str]:
    r"""Split a file into lines, gunzipped if need be, each with its line end.

    Args:
        file: A path, or an open binary stream.
        name: How to name the file in messages.
        encoding: The file's encoding.

    Yields:
        Bytes, or decoded text where the encoding does not write `\n` as that one
        byte (UTF-16 and UTF-32).

    Raises:
        ValueError: If the encoding is unknown, or the file is damaged.
    """
    try:
        one_byte_line_ends = "\n".encode(encoding) == b"\n"
    except (LookupError, UnicodeError):
        raise ValueError(
            f"`encoding` must be an encoding that Python knows. Received: {encoding!r}."
        ) from None
    stream = _open(file) if isinstance(file, str | Path) else file
    reader: BinaryIO | io.TextIOWrapper = stream
    if not one_byte_line_ends:
        reader = io.TextIOWrapper(stream, encoding=encoding, newline="\n")
    try:
        yield from reader
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{name} is a damaged or cut gzip file ({error}). Fetch it again."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not valid {encoding} ({error.reason}). "
            "Pass the file's real encoding."
        ) from None
    finally:
        if stream is not file:
            reader.close()
        elif isinstance(reader, io.TextIOWrapper):
            reader.detach()


def _open(path: str | Path) -> BinaryIO:
    with Path(path).open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if zipped else Path(path).open("rb")


def check_file(path: str | Path, argument: str) -> None:
    """Raise unless `path`, given as `argument`, is an existing regular file."""
    if not Path(path).exists():
        raise FileNotFoundError(
            f"`{argument}` must name an existing file. There is no {str(path)!r}."
        )
    if not Path(path).is_file():
        raise ValueError(
            f"`{argument}` must be a regular file, since it is read more than once. "
            f"Received: {str(path)!r}."
        )


def _undecodable(
    name: str,
    number: int,
    offset: int,
    line: bytes,
    encoding: str,
    error: UnicodeDecodeError,
) -> str:
    other = "utf-8" if "1252" in encoding else "cp1252"
    advice = (
        f'Pass the file\'s real encoding, such as encoding="{other}", or convert the '
        "file to UTF-8."
    )
    if number == 1:
        for start, hint in _OTHER_FILES.items():
            advice = hint if line.startswith(start) else advice
    return (
        f"{name}, line {number}: expected {encoding}, received the byte "
        f"0x{line[error.start]:02x} at byte {error.start + 1} of the line (offset "
        f"{offset + error.start} in the file). {advice}"
    )


def write_lines(path: str | Path, lines: Iterable[str]) -> int:
    r"""Write a UTF-8 file of lines, each ended by `\n`, whole or not at all.

    Args:
        path: The file; its folder is made if needed.
        lines: The lines, without line ends.

    Returns:
        The number of lines.

    Raises:
        ValueError: If a line holds a line end.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = 0
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            for line in lines:
                if "\n" in line or "\r" in line:
                    raise ValueError(
                        f"A line of {path} must hold no line end. Received: {line!r}."
                    )
                stream.write(line + "\n")
                count += 1
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count
