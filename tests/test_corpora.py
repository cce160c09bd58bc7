import gzip
import json

import pytest

from keras_seq2seq.corpora import (
    Cleaning,
    CorpusReport,
    Pair,
    PairCorpus,
    clean_line,
    split_pairs,
    write_pairs,
)
from keras_seq2seq.lines import is_blank


@pytest.fixture
def write(tmp_path):
    """Write bytes (or UTF-8 text) to a named file, and return its path."""

    def write_file(name, content):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


@pytest.fixture
def parallel(write):
    """Make the corpus of two parallel texts."""

    def make(source, target, **options):
        return PairCorpus(
            source=write("train.src", source), target=write("train.tgt", target),
            **options,
        )  # fmt: skip

    return make


# Parallel text.


def test_null_bytes_do_not_split_lines(parallel):  # (B01)
    corpus = parallel("good\x00 day\nsecond\n", "bonjour\ndeux\n")
    assert list(corpus) == [("good day", "bonjour"), ("second", "deux")]
    assert corpus.report.removed == {"NUL": 1}
    assert "1 NUL removed or replaced" in corpus.report.lines()


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_odd_separators_do_not_shift_pairs(parallel, odd):  # (B02)
    corpus = parallel(f"one\nleft{odd}right\nthree\n", "un\ndeux\ntrois\n")
    pairs = [("one", "un"), ("left right", "deux"), ("three", "trois")]
    assert list(corpus) == pairs


def test_windows_line_ends_leave_no_trace(parallel):  # (B03)
    assert list(parallel("a b\r\nc\r\n", "x\ny\n")) == [("a b", "x"), ("c", "y")]


def test_byte_order_marks_are_removed_everywhere_and_counted(parallel):  # (B04)
    corpus = parallel("\ufeffhello\nmid\n\ufeffhello\n", "x\ny\nz\n")
    assert [pair.source for pair in corpus] == ["hello", "mid", "hello"]
    assert corpus.report.removed == {"byte-order mark": 2}


def test_a_lone_carriage_return_keeps_words_apart(parallel):  # (B05)
    corpus = parallel("one\rtwo\nthree\n", "x\ny\n")
    assert list(corpus) == [("one two", "x"), ("three", "y")]


@pytest.mark.parametrize(
    ("source", "target", "place"),
    [
        ("a\nb\nc\n", "x\ny\n", ""),
        ("a\n\nb\n", "x\ny\n", r"line 2 of \S*train\.src: it is blank"),
        ("a\na\n\n", "x\ny\n", r"line 3 of \S*train\.src: it is blank"),
        ("a\nb\nb\nc\n", "x\ny\nz\n", r"line 3 of \S*train\.src: it repeats"),
    ],
)
def test_unequal_files_stop_before_any_pair(parallel, source, target, place):  # (B06)
    corpus = parallel(source, target)
    with pytest.raises(ValueError) as error:
        next(iter(corpus))
    error.match(
        rf"train\.src has {source.count(chr(10))}, .*train\.tgt has "
        rf"{target.count(chr(10))}\.( Look first at {place})?"
    )
    if place:
        error.match(f"Look first at {place}")


def test_unequal_counts_of_a_file_in_another_encoding_name_the_encoding(parallel):
    corpus = parallel("ok\nok\n", "ok\nok\n".encode("utf-16"))
    with pytest.raises(ValueError, match=r"train\.tgt, line 1: expected utf-8.*utf-16"):
        next(iter(corpus))


def test_a_pair_with_one_blank_side_goes_and_the_rest_stay_aligned(parallel):  # (B07)
    corpus = parallel("a\n\nc\n", "x\ny\nz\n")
    assert list(corpus) == [("a", "x"), ("c", "z")]
    assert corpus.report.lines() == [
        "3 pairs read, 2 kept, 1 dropped",
        "1 pair dropped: empty source (line 2)",
    ]


@pytest.mark.parametrize("blank", ["", "   ", "\u3000", "\u200b\u200e", "\ufeff"])
def test_text_that_shows_nothing_is_blank(parallel, blank):
    assert is_blank(clean_line(blank))
    corpus = parallel(f"a\n{blank}\n", f"{blank}\n{blank}\n")
    assert list(corpus) == []
    assert corpus.report.dropped == {"empty target": 1, "empty source and target": 1}


def test_gzipped_parallel_text_is_read(write):
    corpus = PairCorpus(source=write("a.en.gz", "a\n"), target=write("a.de", "ä"))
    assert list(corpus) == [("a", "ä")]


def test_an_empty_corpus_yields_nothing(parallel):
    corpus = parallel("", "")
    assert list(corpus) == []
    assert corpus.report.lines() == ["0 pairs read, 0 kept, 0 dropped"]


def test_iterating_again_gives_the_same_pairs_and_a_new_report(parallel):
    corpus = parallel("a\n\nc\n", "x\ny\nz\n")
    first, report = list(corpus), corpus.report
    assert list(corpus) == first
    assert corpus.report == report
    assert corpus.report is not report


# TSV.


def test_quotes_are_text_in_tsv(write):  # (B10)
    rows = ['"Hi\tSalut', "a\tb", "c\td", "e\tf", 'it"s\tc"est']
    corpus = PairCorpus(path=write("a.tsv", "\n".join(rows) + "\n"))
    assert list(corpus) == [tuple(row.split("\t")) for row in rows]


def test_quoted_tsv_by_option(write):
    rows = '"say ""hi""\tnow"\t"x"\nplain 1" pipe\ty\textra\n""\tz\n'
    corpus = PairCorpus(path=write("a.tsv", rows), quoting=True)
    assert list(corpus) == [('say "hi"\tnow', "x"), ('plain 1" pipe', "y")]
    assert corpus.report.dropped == {"empty source": 1}


def test_an_open_quote_swallows_no_rows(write):
    path = write("a.tsv", 'a\tb\n"Hi\tSalut\nc\td\n')
    with pytest.raises(ValueError, match=r"a\.tsv, line 2: expected a closing quote"):
        list(PairCorpus(path=path, quoting=True))
    corpus = PairCorpus(path=path, quoting=True, strict=False)
    assert list(corpus) == [("a", "b"), ("c", "d")]


RAGGED = "a\tb\nc\nd\te\tCC-BY x\nf g\t\n"


def test_a_short_row_is_an_error_with_its_line(write):  # (B11)
    corpus = PairCorpus(path=write("a.tsv", RAGGED))
    with pytest.raises(
        ValueError, match=r"a\.tsv, line 2: expected at least 2 columns .* received 1\."
    ):
        list(corpus)


def test_a_short_row_is_dropped_and_counted_when_lenient(write):  # (B11)
    corpus = PairCorpus(path=write("a.tsv", RAGGED), strict=False)
    assert list(corpus) == [("a", "b"), ("d", "e")]
    assert corpus.report.as_dict() == {
        "read": 4,
        "kept": 2,
        "dropped": {"malformed line": 1, "empty target": 1},
        "examples": {"malformed line": [2], "empty target": [4]},
        "removed": {},
        "identical": 0,
    }


def test_columns_are_chosen_by_number_or_by_name(write):
    path = write("a.tsv", "id\ten\tde\n7\tdog\tHund\n")
    by_number = PairCorpus(path=path, columns=(2, 1))
    assert list(by_number) == [("de", "en"), ("Hund", "dog")]
    by_name = PairCorpus(path=path, columns=["en", "de"])
    assert list(by_name) == [("dog", "Hund")]
    assert by_name.report.read == 1
    with pytest.raises(ValueError, match="'id', 'en', 'de'. Received: 'fr'"):
        list(PairCorpus(path=path, columns=("en", "fr")))


def test_a_format_shows_in_a_suffix_of_any_case(write):
    path = write("a.gz", "a\tb\n")
    assert list(PairCorpus(path=path.rename(path.with_name("A.TSV.GZ")))) == [
        ("a", "b")
    ]


# JSON lines.


def test_json_lines_are_objects_or_arrays(write):
    rows = [
        {"source": "a", "target": "b", "note": None},
        {"target": "d\n\ud800", "source": "c\u2028c"},
        ["e", "f", 3],
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    corpus = PairCorpus(path=write("a.jsonl.gz", text))
    assert list(corpus) == [("a", "b"), ("c c", "d \ufffd"), ("e", "f")]
    assert corpus.report.removed == {"line separator": 2, "lone surrogate": 1}


def test_json_keys_are_chosen_by_name(write):
    path = write("a.jsonl", '{"translation": "x", "text": "a", "id": 4}\n')
    assert list(PairCorpus(path=path, columns=("text", "translation"))) == [("a", "x")]


@pytest.mark.parametrize(
    "bad",
    [
        '{"sour',
        '{"source": "a"}',
        '["a"]',
        '{"source": 1, "target": "b"}',
        "3",
        "[" * 9,
    ],
)
def test_a_broken_json_row_is_an_error_or_counted(write, bad):  # (B14)
    good = '{"source": "hi", "target": "yo"}'
    path = write("a.jsonl", f"{good}\n\n{good}\n{bad}")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 4: expected"):
        list(PairCorpus(path=path))
    corpus = PairCorpus(path=path, strict=False)
    assert list(corpus) == [("hi", "yo")] * 2
    assert corpus.report.dropped == {"blank line": 1, "malformed line": 1}
    assert corpus.report.read == 4


def test_deeply_nested_json_is_malformed_and_no_crash(write):
    path = write("a.jsonl", "[" * 100_000)
    assert list(PairCorpus(path=path, strict=False)) == []


# Arguments.


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`target` .*none\.txt"):
        PairCorpus(source=__file__, target=tmp_path / "none.txt")
    with pytest.raises(ValueError, match="`path` must be a regular file"):
        PairCorpus(path=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Received: none of them"),
        ({"source": __file__}, "Received: source"),
        ({"source": __file__, "path": __file__}, "Received: source, path"),
        ({"path": __file__}, r"test_corpora\.py' does not show"),
        ({"path": __file__, "format": "csv"}, "Received: 'csv'"),
        ({"path": __file__, "format": "text"}, "Received: 'text'"),
        ({"path": __file__, "format": "tsv", "columns": (0,)}, r"Received: \(0,\)"),
        ({"path": __file__, "format": "tsv", "columns": (0, "a")}, "Received: "),
        (
            {"path": __file__, "format": "tsv", "columns": (-1, 0)},
            r"Received: \(-1, 0\)",
        ),
    ],
)
def test_contradicting_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PairCorpus(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_words": 0}, "`min_words` must be at least 1. Received: 0"),
        (
            {"min_words": 3, "max_words": 2},
            "`max_words` must be at least 3. Received: 2",
        ),
        ({"max_characters": -1}, "`max_characters` must be at least 1. Received: -1"),
        ({"max_length_ratio": 0.5}, "`max_length_ratio` must be at least 1"),
        ({"max_length_ratio": float("nan")}, "Received: nan"),
    ],
)
def test_cleaning_limits_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Cleaning(**options)


# Cleaning.


@pytest.mark.parametrize(
    ("cleaning", "source", "target", "reason"),
    [
        (Cleaning(), "a", "b", None),
        (Cleaning(min_words=2), "a b", "c", "too short"),
        (Cleaning(max_words=2), "a b", "c  d ", None),
        (Cleaning(max_words=2), "a b", "c d e", "too long"),
        (Cleaning(max_characters=3), " abc ", "a", None),
        (Cleaning(max_characters=3), "abcd", "a", "too long"),
        (Cleaning(max_length_ratio=2), "abcd", "ab", None),
        (Cleaning(max_length_ratio=2), "ab", "abcde", "length ratio"),
        (Cleaning(), "same", "same", None),
        (Cleaning(drop_identical=True), "same", "same ", "identical"),
        (Cleaning(drop_identical=True), "same", "Same", None),
    ],
)
def test_each_rule_drops_what_it_says(cleaning, source, target, reason):
    assert cleaning.reason_to_drop(Pair(source, target)) == reason


def test_the_report_adds_up_by_reason_with_line_numbers(parallel):  # (B18)
    rows = [("fine words", "gute Wörter")] * 82
    rows[10:10] = [("", "leer")] * 5
    rows[40:40] = [("a " * 31, "lang")] * 10
    rows += [("a", "viel zu lang dafür")] * 3
    sources, targets = zip(*rows, strict=True)
    cleaning = Cleaning(max_words=30, max_length_ratio=9)
    corpus = parallel("\n".join(sources), "\n".join(targets), cleaning=cleaning)
    assert len(list(corpus)) == 82
    report = corpus.report
    assert report.dropped == {"too long": 10, "empty source": 5, "length ratio": 3}
    assert report.read == report.kept + sum(report.dropped.values()) == 100
    assert report.lines() == [
        "100 pairs read, 82 kept, 18 dropped",
        "10 pairs dropped: too long (lines 41, 42, 43, 44, 45, ...)",
        "5 pairs dropped: empty source (lines 11, 12, 13, 14, 15)",
        "3 pairs dropped: length ratio (lines 98, 99, 100)",
    ]
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()


def test_the_report_adds_up_at_every_moment(parallel):
    corpus = parallel("a\n\nb\n\n", "x\ny\nz\n\n")
    for number, _ in enumerate(corpus, start=1):
        report = corpus.report
        assert report.kept == number
        assert report.read == report.kept + sum(report.dropped.values())


def test_identical_pairs_are_counted_and_dropped_by_option(parallel):  # (B09)
    text = "same\nother\nsame \n"
    corpus = parallel(text, "same\nanders\nsame\n")
    assert len(list(corpus)) == 3
    assert corpus.report.identical == 2
    assert corpus.report.lines()[-1] == "2 kept pairs with the same text on both sides"
    corpus = parallel(
        text, "same\nanders\nsame\n", cleaning=Cleaning(drop_identical=True)
    )
    assert list(corpus) == [("other", "anders")]
    assert corpus.report.dropped == {"identical": 2}


def test_duplicates_are_dropped_by_option(parallel):
    source, target = "a\na\na\nb\n", "x\ny\nx\nx\n"
    assert len(list(parallel(source, target))) == 4
    corpus = parallel(source, target, cleaning=Cleaning(drop_duplicates=True))
    for _ in range(2):
        assert list(corpus) == [("a", "x"), ("a", "y"), ("b", "x")]
        assert corpus.report.examples == {"duplicate": [3]}


def test_a_very_long_line_is_dropped_and_counted(parallel):  # (B13)
    source = "short\n" * 10 + "x" * 100_000 + "\n" + "short\n" * 10
    corpus = parallel(source, "kurz\n" * 21, cleaning=Cleaning(max_characters=1000))
    assert len(list(corpus)) == 20
    assert corpus.report.examples == {"too long": [11]}


def test_an_empty_report_adds_up():
    assert CorpusReport().as_dict()["read"] == 0


# Splits and writing.


PAIRS = [Pair(f"source {number}", f"target {number}") for number in range(400)]


@pytest.mark.parametrize("shares", [(0.1, 0.2), (40, 80)])
def test_a_split_is_complete_deterministic_and_of_the_asked_size(shares):
    valid, test = shares
    sides = split_pairs(PAIRS, valid=valid, test=test, seed=1)
    assert sorted(sum(sides, [])) == sorted(PAIRS)
    assert sides == split_pairs(iter(PAIRS), valid=valid, test=test, seed=1)
    assert sides != split_pairs(PAIRS, valid=valid, test=test, seed=2)
    sizes = [len(side) for side in sides]
    if shares == (40, 80):
        assert sizes == [280, 40, 80]
    else:  # 4 standard deviations
        assert abs(sizes[1] - 40) < 24
        assert abs(sizes[2] - 80) < 32


def test_a_pair_stays_on_its_side_when_others_come_and_go():
    whole = split_pairs(PAIRS, valid=0.1, test=0.2, seed=1)
    part = split_pairs(PAIRS[::-3], valid=0.1, test=0.2, seed=1)
    for side, smaller in zip(whole, part, strict=True):
        assert set(smaller) <= set(side)


@pytest.mark.parametrize("shares", [(0.3, 0.3), (6, 6)])
def test_duplicates_and_equal_sources_never_straddle(shares):
    pairs = PAIRS[:20] * 3 + [Pair(pair.source, "another") for pair in PAIRS[:20]]
    sides = split_pairs(pairs, valid=shares[0], test=shares[1], seed=0)
    sources = [{pair.source for pair in side} for side in sides]
    assert all(sources)
    assert not sources[0] & sources[1] | sources[0] & sources[2]
    assert not sources[1] & sources[2]


@pytest.mark.parametrize("share", [0.45, 4])
def test_blank_pairs_are_never_held_out(share):  # (B09)
    pairs = [Pair("", "x"), Pair("y", " "), *(Pair(f"{n}", f"{n}") for n in range(9))]
    train, valid, test = split_pairs(pairs, valid=share, test=share, seed=3)
    assert {Pair("", "x"), Pair("y", " ")} <= set(train)
    assert valid + test


def test_nothing_is_held_out_when_not_asked():
    assert split_pairs(PAIRS, valid=0, test=0, seed=0) == (PAIRS, [], [])


@pytest.mark.parametrize("shares", [(0.5, 0.5), (200, 200), (-1, 0), (0.1, -0.1)])
def test_a_split_that_leaves_nothing_is_refused(shares):
    with pytest.raises(ValueError, match=f"valid={shares[0]}, test={shares[1]}"):
        split_pairs(PAIRS, valid=shares[0], test=shares[1], seed=0)


def test_written_pairs_are_read_back(tmp_path):
    pairs = [Pair('"a" \u200d', "é中😀"), Pair(" b ", "c")]
    path = tmp_path / "new" / "pairs.tsv"
    assert write_pairs(path, pairs) == 2
    assert path.read_bytes() == '"a" \u200d\té中😀\n b \tc\n'.encode()
    assert list(PairCorpus(path=path)) == pairs


@pytest.mark.parametrize("bad", ["a\tb", "a\nb", "a\r"])
def test_a_failed_write_leaves_the_old_file(tmp_path, bad):
    path = tmp_path / "pairs.tsv"
    write_pairs(path, [Pair("old", "x")])
    with pytest.raises(ValueError, match="pairs.tsv"):
        write_pairs(path, [Pair("new", "y"), Pair(bad, "z")])
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.tsv"]
    assert path.read_text(encoding="utf-8") == "old\tx\n"
