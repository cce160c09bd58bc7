"""A long job over a file, written so that it goes on where it was stopped.

Finished output is kept in `OUTPUT.partial`, and in `OUTPUT.partial.json` how much of it
counts, of which job. What was written after that is thrown away when the job goes on,
so no line is lost or repeated, whenever the process was killed.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO


def file_sum(path: str | Path) -> str:
    """Computes the SHA-256 of a file, as hexadecimal digits.

    Args:
        path: The file.
    """
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_job(
    output: str | Path,
    job: Mapping[str, Any],
    make: Callable[[int], Iterable[list[str]]],
    *,
    every: int,
    started: Callable[[int], None] = lambda count: None,
) -> int:
    """Writes the lines of a job, going on with what an earlier process left.

    Args:
        output: The file, replaced when the job is done.
        job: What the output depends on, as JSON can hold it: another job's part of an
            output is not gone on with.
        make: `make(first)` gives the lines of each item, from the item `first` on.
        every: How many items are written before they are kept.
        started: Told at the start how many items were kept before.

    Returns:
        The number of items.

    Raises:
        ValueError: If there is a part of another job's output.
    """
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    state_file = output.with_name(output.name + ".partial.json")
    job = json.loads(json.dumps(job))  # as it will be read back
    items, size = _kept(partial, state_file, job)
    started(items)
    try:
        partial.touch()
        with partial.open("r+b") as stream:
            stream.truncate(size)
            stream.seek(size)
            remaining = iter(make(items))
            while chunk := list(islice(remaining, every)):
                for lines in chunk:
                    for line in lines:
                        stream.write(_checked(line, output) + b"\n")
                items += len(chunk)
                _keep(stream, state_file, job, items)
    except (ValueError, TypeError):
        # A mistake in the input or the options: this output will never be finished.
        partial.unlink(missing_ok=True)
        state_file.unlink(missing_ok=True)
        raise
    partial.replace(output)
    state_file.unlink(missing_ok=True)
    return items


def _kept(partial: Path, state_file: Path, job: Mapping[str, Any]) -> tuple[int, int]:
    """How many items of the job were kept, in how many bytes."""
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
        items, size, other = state["items"], state["bytes"], state["job"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0, 0
    if not partial.exists() or partial.stat().st_size < size:
        return 0, 0
    if other != job:
        differing = [key for key in job if other.get(key) != job[key]]
        raise ValueError(
            f"{partial} holds {items:,} items of another job: "
            f"{', '.join(differing) or 'its settings'} differed. Remove it and "
            f"{state_file.name}, or choose another `--output`."
        )
    return items, size


def _keep(
    stream: BinaryIO, state_file: Path, job: Mapping[str, Any], items: int
) -> None:
    """Notes what is on the disk, once it is there."""
    stream.flush()
    os.fsync(stream.fileno())
    state = {"items": items, "bytes": stream.tell(), "job": job}
    temporary = state_file.with_name(state_file.name + ".tmp")
    temporary.write_text(json.dumps(state), encoding="utf-8")
    temporary.replace(state_file)


def _checked(line: str, output: Path) -> bytes:
    if "\n" in line or "\r" in line:
        raise ValueError(
            f"A line of {output} must hold no line end. Received: {line!r}."
        )
    return line.encode("utf-8")
