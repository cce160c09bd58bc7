"""Folders that appear complete or not at all."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(final: Path) -> Iterator[Path]:
    """Gives the name of a folder to write, and renames it at the end.

    The name is one that servers ignore, beside the final one. Where writing fails, what
    stood there before stays. What a killed process left beside the same final name is
    cleaned up first: an old folder that it had moved away comes back, the rest goes.

    Args:
        final: The folder's name; what is there is replaced.

    Yields:
        Where to write; nothing is there yet.
    """
    _clean_up(final)
    temporary = final.with_name(f"writing-{final.name}-{os.getpid()}")
    try:
        yield temporary
        _publish(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def recover(parent: Path) -> None:
    """Puts folders back that a killed process had moved away to replace them.

    What is decided by which folders there are needs this first.

    Args:
        parent: Where they stand.
    """
    pattern = re.compile("replaced-(.+)-([0-9]+)")
    for entry in sorted(parent.iterdir()) if parent.is_dir() else ():
        match = pattern.fullmatch(entry.name)
        # Another thread of this process may be at it.
        if match and int(match[2]) != os.getpid() and not _is_running(int(match[2])):
            _clean_up(parent / match[1])


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


def _clean_up(final: Path) -> None:
    """Puts an older folder back that was lost between two renames; deletes the rest.

    Process ids are those of this machine: two that share a disk must not write the same
    folder at once.
    """
    replaced = _left_behind(final, "replaced")
    if replaced and not final.exists():
        max(replaced, key=lambda path: path.stat().st_mtime).rename(final)
    for path in [*_left_behind(final, "writing"), *_left_behind(final, "replaced")]:
        shutil.rmtree(path, ignore_errors=True)


def _left_behind(final: Path, kind: str) -> list[Path]:
    """Temporary folders of a final name whose process has ended.

    One of this process's own id was left by an earlier process of that id, as in
    containers, where ids are small and come again.
    """
    pattern = re.compile(rf"{kind}-{re.escape(final.name)}-([0-9]+)")
    siblings = final.parent.iterdir() if final.parent.is_dir() else ()
    matches = [(path, pattern.fullmatch(path.name)) for path in siblings]
    return sorted(
        path
        for path, match in matches
        if match and (int(match[1]) == os.getpid() or not _is_running(int(match[1])))
    )


def _is_running(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is a real one
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def check_new_folder(path: Path, overwrite: bool) -> None:
    """Refuses to write where something stands.

    Args:
        path: The folder to write.
        overwrite: Whether a folder may be replaced.

    Raises:
        ValueError: With the path.
    """
    recover(path.parent)
    if path.exists() and not (overwrite and path.is_dir()):
        raise ValueError(
            f"`path` must be a new folder. Received: {path}, which exists. Choose "
            "another, or pass `overwrite` to replace a folder."
        )
