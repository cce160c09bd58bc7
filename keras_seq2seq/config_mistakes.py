"""What is wrong in a recipe, said in the words of the file."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

# Parts of a pydantic location that name a choice of a union, not a key.
_UNION_TAGS = {"bool", "literal['auto']", "tuple[int, int]", "tuple[str, str]"}


def complete_error(text: str) -> PydanticCustomError:
    """A mistake whose text names the table and key itself.

    Args:
        text: The text, a line for each mistake.
    """
    return PydanticCustomError("complete", "{text}", {"text": text})


def suggestion(word: str, valid: Iterable[str]) -> str:
    """The question whether the nearest valid word was meant; empty if none is near.

    Args:
        word: What was written.
        valid: What could have been.
    """
    close = difflib.get_close_matches(word, list(valid), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


def check_arguments(
    table: str, function: Callable[..., Any], arguments: dict, *, given: tuple[str, ...]
) -> None:
    """Refuses arguments that a function does not take, or of another type, or lacks.

    Args:
        table: The table that they are in, in brackets.
        function: The function.
        arguments: The arguments.
        given: Names of arguments that come from elsewhere.

    Raises:
        PydanticCustomError: With all mistakes at once.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(
            function, eval_str=True
        ).parameters.items()
        if parameter.kind
        not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        and name not in given
    }
    mistakes = []
    for name, value in arguments.items():
        if name in given:
            mistakes.append(f'"{name}" in {table} is set by the tokenizers; remove it.')
        elif name not in parameters:
            mistakes.append(_unknown_key(name, table, parameters))
        elif parameters[name].annotation is not inspect.Parameter.empty:
            mistakes += _mistaken_type(table, name, parameters[name].annotation, value)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in arguments:
            mistakes.append(f'{table} needs a value for "{name}".')
    if mistakes:
        raise complete_error("\n".join(mistakes))


def _mistaken_type(table: str, name: str, wanted: Any, value: Any) -> list[str]:
    try:
        TypeAdapter(wanted).validate_python(value, strict=True)
    except ValidationError as error:
        expected = list(dict.fromkeys(item["msg"] for item in error.errors()))
        text = ", or ".join(
            message.removeprefix("Input should ") for message in expected
        )
        return [f'"{name}" in {table} should {text}. Received: {value!r}.']
    return []


def _unknown_key(name: str, table: str, valid: Iterable[str]) -> str:
    valid = list(valid)
    return (
        f'Unknown key "{name}" in {table}.{suggestion(name, valid)} '
        f"Valid keys: {', '.join(valid)}."
    )


def describe(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line a mistake.

    Args:
        error: What pydantic found.
        root: The table of the whole file.
    """
    lines = []
    for mistake in error.errors():
        # A number is the place in a list, whose key says more.
        where = [
            part
            for part in mistake["loc"]
            if isinstance(part, str) and part not in _UNION_TAGS
        ]
        table = f"[{'.'.join(where[:-1])}]" if len(where) > 1 else "the file"
        if mistake["type"] == "extra_forbidden":
            fields = _fields(root, where[:-1])
            lines.append(_unknown_key(where[-1], table, fields))
        elif mistake["type"] == "missing" and isinstance(mistake["loc"][-1], int):
            lines.append(
                f'"{where[-1]}" in {table} must have more values. Received: '
                f"{mistake['input']!r}."
            )
        elif mistake["type"] == "missing":
            lines.append(f'{table} needs a value for "{where[-1]}".')
        elif mistake["type"] == "complete":
            lines.extend(mistake["ctx"]["text"].splitlines())
        elif mistake["type"] == "value_error":
            text = str(mistake["ctx"]["error"]).rstrip(".")
            lines.append(f"[{'.'.join(where)}]: {text}.")
        else:
            message = mistake["msg"][0].lower() + mistake["msg"][1:]
            received = mistake["input"]
            lines.append(
                f'"{where[-1]}" in {table}: {message}. Received: {received!r}.'
            )
    return list(dict.fromkeys(lines))


def _fields(table: type[BaseModel], tables: list[str]) -> list[str]:
    """Valid keys of a nested table."""
    for name in tables:
        annotation = table.model_fields[name].annotation
        # Tables that may be missing, `DataFiles | None`, are the one union of tables.
        table = next(iter([*get_args(annotation), annotation]))
    return list(table.model_fields)
