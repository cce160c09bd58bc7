"""Files to sentence pairs, cleaned and counted, and their split.

First stage of the pipeline: files, pairs, tokenizers, datasets. `lines` reads the
files, `cleaning` decides what is dropped; here rows become pairs.
"""

import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from keras_seq2seq.cleaning import Cleaning as Cleaning
from keras_seq2seq.cleaning import CorpusReport as CorpusReport
from keras_seq2seq.cleaning import Pair as Pair
from keras_seq2seq.lines import check_file, is_blank, raw_lines, write_lines
from keras_seq2seq.lines import clean_line as clean_line
from keras_seq2seq.lines import read_lines as read_lines

FORMATS = ("auto", "text", "tsv", "jsonl")
_SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


class PairCorpus:
    r"""Sentence pairs of text files, read anew at each iteration.

    Either two line-aligned text files (`source`, `target`) or one file of pairs
    (`path`, TSV or JSON lines); each may be gzipped. Memory does not grow with the
    corpus. Each iteration fills a new `report`.

    A TSV row is split at tabs alone, and quote characters are text, unless `quoting`
    (then a field may stand in double quotes, with inner quotes doubled, on one line).
    Columns beyond the chosen ones are ignored. A row of JSON lines is an object with
    the keys `columns` ("source" and "target" unless given) or an array.

    Args:
        source: File of source texts, one a line.
        target: File of target texts, one a line.
        path: File of pairs, in place of `source` and `target`.
        format: Format of `path`: "tsv", "jsonl", or "auto" (by suffix); "text" is
            that of `source` and `target`.
        columns: The source's and the target's column, as numbers from 0 or as names.
            Names of TSV columns are looked up in the first line.
        quoting: Whether TSV fields may be quoted.
        encoding: Encoding of the files.
        strict: Whether a malformed row is an error (naming file and line), or else
            is dropped and counted.
        cleaning: Which pairs to drop; only those with a blank side unless given.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the arguments contradict one another; while iterating, if the
            files have different numbers of lines (found before any pair is yielded),
            a row is malformed, or a file cannot be decoded.

    Example:
        corpus = PairCorpus(source="train.en", target="train.de")
        pairs = list(corpus)
        print(*corpus.report.lines(), sep="\n")
    """

    def __init__(
        self,
        *,
        source: str | Path | None = None,
        target: str | Path | None = None,
        path: str | Path | None = None,
        format: str = "auto",
        columns: Sequence[int] | Sequence[str] = (0, 1),
        quoting: bool = False,
        encoding: str = "utf-8",
        strict: bool = True,
        cleaning: Cleaning | None = None,
    ) -> None:
        files = {"source": source, "target": target, "path": path}
        given = [name for name, file in files.items() if file is not None]
        if given not in (["source", "target"], ["path"]):
            raise ValueError(
                "A corpus needs either `source` and `target`, or `path`. Received: "
                f"{', '.join(given) or 'none of them'}."
            )
        for name in given:
            check_file(files[name] or "", name)
        self.source, self.target, self.path = source, target, path
        self.format = _resolve_format(path, format)
        self.columns = _check_columns(columns)
        self.quoting = quoting
        self.encoding = encoding
        self.strict = strict
        self.cleaning = cleaning or Cleaning()
        self.report = CorpusReport()

    def __iter__(self) -> Iterator[Pair]:
        report = self.report = CorpusReport()
        seen: set[bytes] = set()
        for number, row in self._rows(report):
            if isinstance(row, Pair):
                reason = self.cleaning.reason_to_drop(row)
            else:
                reason = row
            if reason is None and self.cleaning.drop_duplicates:
                digest = hashlib.blake2b(
                    "\t".join(row).encode(), digest_size=16
                ).digest()
                reason = "duplicate" if digest in seen else None
                seen.add(digest)
            if reason is None and isinstance(row, Pair):
                report.keep(row)
                yield row
            else:
                report.drop(str(reason), number)

    def _rows(self, report: CorpusReport) -> Iterator[tuple[int, Pair | str]]:
        """Yield line numbers with pairs, or with the reasons why a line is none."""
        if self.source is not None and self.target is not None:
            _check_line_counts(self.source, self.target, self.encoding)
            sides = [
                read_lines(file, encoding=self.encoding, counts=report.removed)
                for file in (self.source, self.target)
            ]
            for number, texts in enumerate(zip(*sides, strict=True), start=1):
                yield number, Pair(*texts)
            return
        path = str(self.path)
        lines = enumerate(
            read_lines(path, encoding=self.encoding, counts=report.removed), start=1
        )
        columns = self.columns
        if self.format == "tsv" and isinstance(columns[0], str):
            header = _split_row(next(lines, (1, ""))[1], self.quoting)
            columns = _find_columns(path, header, columns)
        for number, line in lines:
            if is_blank(line):
                yield number, "blank line"
                continue
            try:
                if self.format == "jsonl":
                    pair = _parse_json(line, columns, report.removed)
                else:
                    pair = _parse_row(line, columns, self.quoting)
            except ValueError as error:
                if self.strict:
                    raise ValueError(
                        f"{path}, line {number}: {error} Mend the line, or pass "
                        "strict=False to drop and count such lines."
                    ) from None
                yield number, "malformed line"
            else:
                yield number, pair


def _resolve_format(path: str | Path | None, format: str) -> str:
    if format not in FORMATS:
        raise ValueError(
            f"`format` must be one of {', '.join(FORMATS)}. Received: {format!r}."
        )
    if (path is None) != (format == "text") and format != "auto":
        raise ValueError(
            '`format` must be "text" (or "auto") with `source` and `target`, and '
            f'"tsv" or "jsonl" (or "auto") with `path`. Received: {format!r}.'
        )
    if path is None or format != "auto":
        return "text" if path is None else format
    suffix = Path(str(path).lower().removesuffix(".gz")).suffix
    if suffix not in _SUFFIXES:
        raise ValueError(
            f"The format of {str(path)!r} does not show in its suffix (known: "
            f'{", ".join(_SUFFIXES)}). Pass format="tsv" or format="jsonl".'
        )
    return _SUFFIXES[suffix]


def _check_columns(columns: Sequence[int] | Sequence[str]) -> tuple[Any, ...]:
    given: tuple[Any, ...] = tuple(columns)
    kinds = {type(column) for column in given}
    wrong_number = kinds == {int} and min(given) < 0
    if len(given) != 2 or kinds not in ({int}, {str}) or wrong_number:
        raise ValueError(
            "`columns` must be two column numbers, counted from 0, or two names. "
            f"Received: {columns!r}."
        )
    return given


def _find_columns(path: str, header: list[str], names: tuple) -> tuple[int, ...]:
    for name in names:
        if name not in header:
            raise ValueError(
                f"`columns` must name columns of {path}: its first line has "
                f"{', '.join(map(repr, header))}. Received: {name!r}."
            )
    return tuple(header.index(name) for name in names)


_QUOTED_FIELD = re.compile(r'"((?:[^"]|"")*)"(\t|$)')


def _split_row(line: str, quoting: bool) -> list[str]:
    if not quoting:
        return line.split("\t")
    fields, start, more = [], 0, True
    while more:
        if match := _QUOTED_FIELD.match(line, start):
            fields.append(match[1].replace('""', '"'))
            start, more = match.end(), bool(match[2])
        elif line.startswith('"', start):
            raise ValueError("expected a closing quote before a tab or the line end.")
        else:
            field, tab, _ = line[start:].partition("\t")
            fields.append(field)
            start, more = start + len(field) + 1, bool(tab)
    return fields


def _parse_row(line: str, columns: tuple, quoting: bool) -> Pair:
    fields = _split_row(line, quoting)
    if len(fields) <= max(columns):
        raise ValueError(
            f"expected at least {max(columns) + 1} columns separated by tabs, received "
            f"{len(fields)}."
        )
    return Pair(*(fields[column] for column in columns))


def _parse_json(line: str, columns: tuple, counts: Counter[str]) -> Pair:
    try:
        row = json.loads(line, strict=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected one JSON value, received: {error}.") from None
    if isinstance(row, dict) and isinstance(columns[0], int):
        columns = Pair._fields
    try:
        texts = [row[column] for column in columns]
    except (KeyError, IndexError, TypeError):
        raise ValueError(
            f"expected {' and '.join(map(repr, columns))}, received {_shorten(line)}."
        ) from None
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected two strings, received {_shorten(line)}.")
    return Pair(*(clean_line(text, counts) for text in texts))


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."


def _check_line_counts(source: str | Path, target: str | Path, encoding: str) -> None:
    counts = [
        sum(1 for _ in raw_lines(file, str(file), encoding))
        for file in (source, target)
    ]
    if counts[0] == counts[1]:
        return
    for file in (source, target):
        # Another encoding, which has other line ends, is the better explanation.
        deque(read_lines(file, encoding=encoding), maxlen=0)
    raise ValueError(
        f"`source` and `target` must have the same number of lines. Received: {source} "
        f"has {counts[0]:,}, {target} has {counts[1]:,}."
        f"{_suspicious_line(source, target, encoding)}"
    )


def _suspicious_line(source: str | Path, target: str | Path, encoding: str) -> str:
    """Point at the first line where one file alone is blank, or else repeats itself."""
    names = str(source), str(target)
    sides = [raw_lines(name, name, encoding) for name in names]
    previous: tuple[bytes | str | None, ...] = (None, None)
    repeat = ""
    for number, lines in enumerate(zip_longest(*sides), start=1):
        for side, name in enumerate(names):
            line, other = lines[side], lines[1 - side]
            if line is None or (other is not None and not other.strip()):
                continue
            where = f" Look first at line {number} of {name}:"
            if not line.strip():
                return f"{where} it is blank."
            if not repeat and line == previous[side] and other != previous[1 - side]:
                repeat = f"{where} it repeats the line before."
        previous = lines
    return repeat


def split_pairs(
    pairs: Iterable[Pair], *, valid: float | int, test: float | int, seed: int
) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Split pairs into training, validation and test sets.

    The side is a function of the source text and the seed, so pairs with the same
    source (duplicates among them) always fall on the same side, whatever their order.
    Pairs with a blank side stay in the training set.

    Args:
        pairs: The pairs.
        valid: Share of the source texts for validation (a float below 1), or their
            number (an int).
        test: Share or number for the test, of the same type.
        seed: Seed of the split.

    Returns:
        Training, validation and test pairs, each in the given order.

    Raises:
        ValueError: If nothing would be left to train on.
    """
    pairs = list(pairs)
    ranks = {
        pair.source: _rank(pair.source, seed)
        for pair in pairs
        if not (is_blank(pair.source) or is_blank(pair.target))
    }
    ends: list[float] = [valid, valid + test]
    if isinstance(valid, int) and isinstance(test, int):
        in_order = [*sorted(ranks.values()), 1.0]
        ends = [in_order[min(end, len(ranks))] for end in (valid, valid + test)]
    too_many = ends[1] >= 1
    if valid < 0 or test < 0 or too_many:
        raise ValueError(
            "`valid` and `test` must be at least 0 and leave sources to train on. "
            f"Received: valid={valid}, test={test}, with {len(ranks):,} sources."
        )
    sides: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for pair in pairs:
        rank = 1.0
        if not (is_blank(pair.source) or is_blank(pair.target)):
            rank = ranks[pair.source]
        sides[1 if rank < ends[0] else 2 if rank < ends[1] else 0].append(pair)
    return sides


def _rank(text: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}\t{text}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> int:
    """Write pairs as a TSV file, whole or not at all.

    Args:
        path: The file; its folder is made if needed.
        pairs: The pairs, whose texts hold neither tabs nor line ends.

    Returns:
        The number of pairs.

    Raises:
        ValueError: If a text holds a tab or a line end.
    """

    def rows() -> Iterator[str]:
        for pair in pairs:
            if "\t" in pair.source or "\t" in pair.target:
                raise ValueError(
                    f"A text in {path} must not hold a tab. Received: {pair!r}."
                )
            yield f"{pair.source}\t{pair.target}"

    return write_lines(path, rows())
