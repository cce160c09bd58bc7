"""Folders appear whole, and what killed processes left is cleaned up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_seq2seq.export import folders
from keras_seq2seq.export.folders import (
    check_new_folder,
    recover,
    written_whole,
)

ENDED = 2**22 + 1  # above the largest id that Linux gives


def fill(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text(text, encoding="utf-8")


def write(final, text):
    with written_whole(final) as folder:
        fill(folder, text)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_folder_appears_at_the_end_and_replaces_the_old_one(tmp_path):
    for text in ("first", "second"):
        with written_whole(tmp_path / "1") as folder:
            assert not folder.exists()
            fill(folder, text)
            assert names_in(tmp_path)[-1] == f"writing-1-{os.getpid()}"
        assert names_in(tmp_path) == ["1"]
        assert (tmp_path / "1" / "file").read_text(encoding="utf-8") == text


def test_failure_leaves_what_stood_there_before(tmp_path):
    write(tmp_path / "1", "first")
    with pytest.raises(KeyError), written_whole(tmp_path / "1") as folder:
        fill(folder, "second")
        raise KeyError
    assert names_in(tmp_path) == ["1"]
    assert (tmp_path / "1" / "file").read_text(encoding="utf-8") == "first"


def test_failed_rename_puts_the_old_folder_back(tmp_path):
    write(tmp_path / "1", "first")
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "1"):
        pass  # nothing is written, so there is nothing to rename
    assert names_in(tmp_path) == ["1"]
    assert (tmp_path / "1" / "file").read_text(encoding="utf-8") == "first"


KILLED_WHILE = {
    "writing": """
with written_whole(final) as folder:
    folder.mkdir()
    (folder / "file").write_text("half", encoding="utf-8")
    print("now", flush=True)
    time.sleep(60)
""",
    "renaming": """
rename = Path.rename

def stop(self, target):
    if self.name.startswith("writing-"):
        print("now", flush=True)
        time.sleep(60)
    return rename(self, target)

Path.rename = stop
with written_whole(final) as folder:
    folder.mkdir()
    (folder / "file").write_text("whole", encoding="utf-8")
""",
}


def kill_while(action, final):
    """Kills a process that writes `final` in the middle of it; returns its id."""
    code = f"""
import time
from pathlib import Path
from keras_seq2seq.export.folders import written_whole
final = Path({str(final)!r})
{KILLED_WHILE[action]}
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    return process.pid


def test_export_killed_while_writing_leaves_the_last_version_as_it_was(tmp_path):
    write(tmp_path / "1", "first")
    before = (tmp_path / "1" / "file").stat().st_mtime_ns
    process = kill_while("writing", tmp_path / "2")
    assert names_in(tmp_path) == ["1", f"writing-2-{process}"]
    assert (tmp_path / "1" / "file").read_text(encoding="utf-8") == "first"
    assert (tmp_path / "1" / "file").stat().st_mtime_ns == before
    # The next export cleans up before it writes, and in the end.
    with written_whole(tmp_path / "2") as folder:
        assert names_in(tmp_path) == ["1"]
        fill(folder, "second")
    assert names_in(tmp_path) == ["1", "2"]


def test_export_killed_between_two_renames_is_undone_by_the_next(tmp_path):
    write(tmp_path / "1", "first")
    process = kill_while("renaming", tmp_path / "1")
    assert names_in(tmp_path) == [f"replaced-1-{process}", f"writing-1-{process}"]
    with pytest.raises(KeyError), written_whole(tmp_path / "1"):
        assert names_in(tmp_path) == ["1"]
        assert (tmp_path / "1" / "file").read_text(encoding="utf-8") == "first"
        raise KeyError
    assert names_in(tmp_path) == ["1"]


def test_a_version_lost_between_two_renames_counts_before_the_next_is_numbered(
    tmp_path,
):
    write(tmp_path / "6", "sixth")
    write(tmp_path / "7", "seventh")
    kill_while("renaming", tmp_path / "7")
    recover(tmp_path)
    assert names_in(tmp_path) == ["6", "7"]
    assert (tmp_path / "7" / "file").read_text(encoding="utf-8") == "seventh"
    kill_while("renaming", tmp_path / "7")
    with pytest.raises(ValueError, match="which exists"):
        check_new_folder(tmp_path / "7", overwrite=False)


def test_old_folder_is_deleted_where_the_new_one_is_there(tmp_path):
    write(tmp_path / "1", "second")
    fill(tmp_path / f"replaced-1-{ENDED}", "first")
    fill(tmp_path / f"replaced-1-{os.getpid()}", "first")
    write(tmp_path / "1", "third")
    assert names_in(tmp_path) == ["1"]


def test_the_latest_of_several_old_folders_comes_back(tmp_path):
    for time, text in ((20, "second"), (10, "first")):
        folder = tmp_path / f"replaced-1-{ENDED + time}"
        fill(folder, text)
        os.utime(folder, (time, time))
    with pytest.raises(KeyError), written_whole(tmp_path / "1"):
        raise KeyError
    assert names_in(tmp_path) == ["1"]
    assert (tmp_path / "1" / "file").read_text(encoding="utf-8") == "second"


def test_others_at_work_and_other_names_are_left_alone(tmp_path):
    parent = os.getppid()
    kept = [
        f"replaced-1-{parent}",
        f"writing-1-{parent}",
        f"writing-2-{ENDED}",  # another version
        f"writing-1-2-{ENDED}",  # of a folder named 1-2
        "writing-1-x",
    ]
    for name in kept:
        fill(tmp_path / name, "kept")
    write(tmp_path / "1", "first")
    assert names_in(tmp_path) == sorted(["1", *kept])


def test_ids_too_large_or_of_other_users_are_told_apart(monkeypatch):
    assert not folders._is_running(10**30)
    assert not folders._is_running(ENDED)

    def kill(process, number):
        raise PermissionError

    monkeypatch.setattr(folders.os, "kill", kill)
    assert folders._is_running(1)


def test_nothing_counts_as_ended_on_windows(monkeypatch):
    monkeypatch.setattr(folders.os, "name", "nt")
    assert folders._is_running(ENDED)
