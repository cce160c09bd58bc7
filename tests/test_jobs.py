import json
import os
import signal
import subprocess
import sys
import time

import pytest

from keras_seq2seq.jobs import file_sum, write_job

JOB = {"the input": "abc", "the options": {"num_beams": 2}}


def items(first, last=10):
    """Two lines for each even item, one for each odd one."""
    for number in range(first, last):
        yield [f"{number} é"] * (2 - number % 2)


EXPECTED = "".join(line + "\n" for lines in items(0) for line in lines).encode()


class Stopped(Exception):
    pass


def stopping(after):
    def make(first):
        for number, lines in enumerate(items(first), start=first):
            if number == after:
                raise Stopped
            yield lines

    return make


@pytest.mark.parametrize("after", range(10))
@pytest.mark.parametrize("every", [1, 3, 20])
def test_a_stopped_job_goes_on_and_loses_or_repeats_no_line(tmp_path, after, every):
    output, told = tmp_path / "new" / "out.txt", []
    with pytest.raises(Stopped):
        write_job(output, JOB, stopping(after), every=every)
    assert not output.exists()
    count = write_job(output, JOB, items, every=every, started=told.append)
    assert output.read_bytes() == EXPECTED
    assert (count, told) == (10, [after // every * every])
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]


def test_bytes_behind_what_was_kept_are_thrown_away(tmp_path):
    output = tmp_path / "out.txt"
    with pytest.raises(Stopped):
        write_job(output, JOB, stopping(7), every=2)
    with (tmp_path / "out.txt.partial").open("ab") as stream:
        stream.write(b"half a li")
    write_job(output, JOB, items, every=2)
    assert output.read_bytes() == EXPECTED


@pytest.mark.parametrize("damage", ["state", "partial", "short"])
def test_a_damaged_part_is_begun_anew(tmp_path, damage):
    output = tmp_path / "out.txt"
    with pytest.raises(Stopped):
        write_job(output, JOB, stopping(7), every=2)
    partial, state = tmp_path / "out.txt.partial", tmp_path / "out.txt.partial.json"
    if damage == "state":
        state.write_text('{"items": 3', encoding="utf-8")
    elif damage == "partial":
        partial.unlink()
    else:
        partial.write_bytes(b"0")
    write_job(output, JOB, items, every=2)
    assert output.read_bytes() == EXPECTED


def test_another_jobs_part_is_refused_and_kept(tmp_path):
    output = tmp_path / "out.txt"
    with pytest.raises(Stopped):
        write_job(output, JOB, stopping(7), every=2)
    other = {**JOB, "the input": "abd"}
    with pytest.raises(ValueError, match="6 items of another job: the input differed"):
        write_job(output, other, items, every=2)
    write_job(output, JOB, items, every=2)
    assert output.read_bytes() == EXPECTED


def test_a_mistake_of_the_user_leaves_nothing_behind(tmp_path):
    def broken(first):
        yield from items(first, 4)
        raise ValueError("line 5 is no UTF-8")

    output = tmp_path / "out.txt"
    output.write_bytes(b"before")
    with pytest.raises(ValueError, match="line 5"):
        write_job(output, JOB, broken, every=2)
    with pytest.raises(ValueError, match="no line end"):
        write_job(output, JOB, lambda first: iter([["a\nb"]]), every=2)
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert output.read_bytes() == b"before"


def test_a_killed_process_loses_and_repeats_nothing(tmp_path):
    output = tmp_path / "out.txt"
    script = (
        "import sys, time\n"
        "from tests.test_jobs import JOB, items\n"
        "from keras_seq2seq.jobs import write_job\n"
        "def make(first):\n"
        "    for lines in items(first, 4000):\n"
        "        time.sleep(0.0005)\n"
        "        yield lines\n"
        f"write_job({str(output)!r}, JOB, make, every=7)\n"
    )
    state = tmp_path / "out.txt.partial.json"
    kept = 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", script])
        while True:
            try:
                found = json.loads(state.read_text(encoding="utf-8"))["items"]
            except FileNotFoundError:
                found = 0
            if found > kept + 20:
                break
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kept = json.loads(state.read_text(encoding="utf-8"))["items"]
    assert 0 < kept < 4000
    write_job(output, JOB, lambda first: items(first, 4000), every=100)
    expected = [line for lines in items(0, 4000) for line in lines]
    assert output.read_text(encoding="utf-8").splitlines() == expected


def test_sum_is_of_the_bytes(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    assert file_sum(file).startswith("ba7816bf")
