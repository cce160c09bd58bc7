import gzip
import io
import subprocess
import sys
from collections import Counter

import pytest

from keras_seq2seq.lines import clean_line, read_lines, write_lines


@pytest.fixture
def write(tmp_path):
    """Write bytes (or UTF-8 text) to a named file, and return its path."""

    def write_file(name, content):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("good\x00 day", "good day", "NUL"),  # (B01)
        ("left\u2028right", "left right", "line separator"),  # (B02)
        ("left\u2029right", "left right", "line separator"),
        ("left\x85right", "left right", "line separator"),
        ("left\x0bright", "left right", "line separator"),
        ("left\x0cright", "left right", "line separator"),
        ("left\x1cright", "left right", "line separator"),
        ("a message\nof two lines", "a message of two lines", "line separator"),
        ("\ufeffhello", "hello", "byte-order mark"),  # (B04)
        ("one\rtwo", "one two", "carriage return"),  # (B05)
        ("x\u0083y", "xy", "control character"),  # (B17)
        ("x\x07y\x7f", "xy", "control character"),
        ("x\ud800y", "x\ufffdy", "lone surrogate"),
    ],
)
def test_odd_characters_are_removed_or_become_a_space(text, expected, kind):
    counts = Counter()
    assert clean_line(text, counts) == expected
    assert set(counts) == {kind}
    assert clean_line(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "\u0d9a\u0dca\u200d\u0dba",  # (B16) Sinhala with a joiner
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, a non-joiner
        "\U0001f468\u200d\U0001f469",
        "probable \u06db\u00bb",  # (B17)
        "\u200f(\u05e9\u05dc\u05d5\u05dd)",
        "e\u030c \u1ec7 ｆｕｌｌ",  # normal forms are the tokenizer's business
        "a\tb",
        "  two  spaces ",
        "",
    ],
)
def test_all_other_text_survives_unchanged(text):
    counts = Counter()
    assert clean_line(text, counts) == text
    assert not counts


def test_line_ends_are_cut_and_not_counted():
    counts = Counter()
    assert [clean_line(line, counts) for line in ("a\n", "b\r\n", "c")] == list("abc")
    assert not counts


def test_only_newlines_end_lines(write):
    path = write("a.txt", "1\u20282\n3\x854\n5\x0b6\n7\r8\r\n9\x1c\x1d\x1e\n\nlast")
    lines = ["1 2", "3 4", "5 6", "7 8", "9   ", "", "last"]
    assert list(read_lines(path)) == lines


def test_gzip_is_known_by_its_first_bytes(write):
    path = write("renamed.txt", gzip.compress("é\r\n中😀\n".encode()))
    assert list(read_lines(path)) == ["é", "中😀"]


def test_a_cut_gzip_file_is_an_error_that_names_it(write):
    path = write("cut.txt", gzip.compress(b"some text\n" * 999)[:-20])
    with pytest.raises(ValueError, match=r"cut\.txt is a damaged or cut gzip file"):
        list(read_lines(path))


def test_a_binary_stream_is_read_by_the_same_rule():
    stream = io.BytesIO(b"hello\r\n\n   \nbye")
    assert list(read_lines(stream)) == ["hello", "", "   ", "bye"]
    assert not stream.closed


def test_bytes_of_another_encoding_are_an_error_with_their_place(write):
    # (B12): line 2 has its bad byte at position 4, after the 3 bytes of line 1.
    path = write("latin.txt", b"ok\ncaf\xe9\nit\x92s\n")
    with pytest.raises(ValueError) as error:
        list(read_lines(path))
    message = str(error.value)
    assert f"{path}, line 2: expected utf-8, received the byte 0xe9" in message
    assert "byte 4 of the line (offset 6 in the file)" in message
    assert 'encoding="cp1252"' in message
    assert list(read_lines(path, encoding="cp1252")) == ["ok", "café", "it’s"]


def test_the_encoding_that_was_asked_for_is_named(write):
    path = write("odd.txt", b"a\x81\n")  # cp1252 has no character for it
    with pytest.raises(ValueError, match=r"expected cp1252.*encoding=\"utf-8\""):
        list(read_lines(path, encoding="cp1252"))


def test_bytes_that_are_no_text_are_refused(write):
    with pytest.raises(ValueError, match="0xff"):  # (B34)
        list(read_lines(write("a.txt", b"good\n\xff\xfe\n")))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_wide_encodings_are_split_at_newlines_alone(write, encoding):
    path = write("wide.txt", "one\u0a0a\r\ntwo\rthree\n\n".encode(encoding))
    assert list(read_lines(path, encoding=encoding)) == ["one\u0a0a", "two three", ""]


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("one\n".encode("utf-16"), 'pass encoding="utf-16"'),
        (b"PK\x03\x04\xff\n", "unpack it first"),
    ],
)
def test_other_kinds_of_file_are_recognised(write, content, hint):
    with pytest.raises(ValueError, match=hint):
        list(read_lines(write("a.txt", content)))


@pytest.mark.parametrize("encoding", ["utf-9", "hex", "undefined", ""])
def test_an_unknown_encoding_is_an_error(write, encoding):
    with pytest.raises(ValueError, match=f"Received: '{encoding}'"):
        list(read_lines(write("a.txt", "a\n"), encoding=encoding))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no '.*none\.txt'"):
        list(read_lines(tmp_path / "none.txt"))


def test_files_are_utf8_whatever_the_locale(tmp_path):  # (B123)
    code = (
        "import sys; from keras_seq2seq.corpora import *\n"
        "pair = Pair('\\xe9\\u4e2d\\U0001f600', '\\xdf')\n"
        "write_pairs(sys.argv[1], [pair])\n"
        "sys.exit(list(PairCorpus(path=sys.argv[1])) != [pair])"
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-X", "warn_default_encoding", "-W", "error", "-c", code]
    run = subprocess.run(
        [*command, str(tmp_path / "a.tsv")], env=environment, capture_output=True,
        text=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


def test_written_lines_are_counted(tmp_path):
    assert write_lines(tmp_path / "a.txt", iter(["one", ""])) == 2
    assert (tmp_path / "a.txt").read_bytes() == b"one\n\n"
