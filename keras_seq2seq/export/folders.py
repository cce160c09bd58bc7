"""Folders that appear complete or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(final: Path) -> Iterator[Path]:
    """Gives the name of a folder to write, and renames it at the end.

    The name is one that servers ignore, beside the final one. Where writing fails, what
    stood there before stays.

    Args:
        final: The folder's name; what is there is replaced.

    Yields:
        Where to write; nothing is there yet.
    """
    temporary = final.with_name(f"writing-{final.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
        _publish(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, final: Path) -> None:
    """Renames the complete folder to its name, replacing an earlier one."""
    replaced = None
    if final.exists():
        replaced = final.with_name(f"replaced-{final.name}-{os.getpid()}")
        final.rename(replaced)
    try:
        temporary.rename(final)
    except OSError:
        if replaced is not None:
            replaced.rename(final)
        raise
    if replaced is not None:
        shutil.rmtree(replaced)
