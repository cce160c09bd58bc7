"""TOML text: reading a file, overriding single keys, writing tables."""

import json
import tomllib
from pathlib import Path
from typing import Any

from keras_seq2seq.untrusted import read_limited


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Args:
        path: The file, UTF-8, with or without a byte-order mark.

    Returns:
        Its tables.

    Raises:
        ValueError: If the file isn't TOML, or too large to be settings.
    """
    content = read_limited(path)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    # The last is for brackets nested deeper than Python calls may be.
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a valid TOML file: {error}.") from error


def apply_override(values: dict[str, Any], override: str) -> None:
    """Sets one key of nested tables.

    Args:
        values: The tables; changed in place.
        override: Text `table.key=value`; the value is TOML, or else a string.

    Raises:
        ValueError: If the text has another form, or a table's name is that of a value.
    """
    key, equals, text = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or len(names) < 2 or not all(names):
        raise ValueError(
            "An override must look like table.key=value, for example "
            f"training.epochs=3. Received: {override!r}."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = values
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(
                f"The override {override!r} treats {name!r} as a table, but it is "
                f"the value {table!r}."
            )
    table[names[-1]] = value


def write_toml(table: dict[str, Any]) -> str:
    """Writes tables as TOML; values of None and empty tables are left out.

    Args:
        table: The tables, of what JSON can hold.

    Returns:
        The text.
    """
    lines: list[str] = []
    _write_table(lines, (), table)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(lines: list[str], names: tuple[str, ...], table: dict) -> None:
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    if names:
        lines.extend(["", f"[{'.'.join(_key(name) for name in names)}]"])
    for key, value in table.items():
        if key not in tables and value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in tables.items():
        if value:
            _write_table(lines, (*names, key), value)


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, str):
        # JSON escapes all that TOML wants escaped, except DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
