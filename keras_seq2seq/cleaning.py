"""Which pairs a corpus drops, and the report that says so.

Used by `corpora`: `Cleaning` names the reason for dropping a pair, `CorpusReport`
counts what was read, kept and dropped.
"""

import dataclasses
from collections import Counter
from typing import NamedTuple

from keras_seq2seq.lines import is_blank

NUM_EXAMPLES = 5


class Pair(NamedTuple):
    """One source text and its target text."""

    source: str
    target: str


@dataclasses.dataclass
class CorpusReport:
    """What one pass over a corpus read, kept and dropped; the numbers add up.

    At any moment `read == kept + sum(dropped.values())`.

    Attributes:
        read: Pairs read so far.
        kept: Pairs yielded so far.
        dropped: Number of pairs dropped, by reason.
        examples: The line numbers (from 1) of the first dropped pairs, by reason.
        removed: Number of characters removed or replaced by a space, by kind.
        identical: Kept pairs whose two sides are the same text.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    removed: Counter[str] = dataclasses.field(default_factory=Counter)
    identical: int = 0

    def drop(self, reason: str, line_number: int) -> None:
        """Count one dropped pair."""
        self.read += 1
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < NUM_EXAMPLES:
            examples.append(line_number)

    def keep(self, pair: Pair) -> None:
        """Count one kept pair."""
        self.read += 1
        self.kept += 1
        self.identical += pair.source.strip() == pair.target.strip()

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain values for JSON."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "examples": {key: list(value) for key, value in self.examples.items()},
            "removed": dict(self.removed),
            "identical": self.identical,
        }

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        total = sum(self.dropped.values())
        lines = [
            f"{_count(self.read, 'pair')} read, {self.kept:,} kept, {total:,} dropped"
        ]
        for reason, count in self.dropped.most_common():
            numbers = ", ".join(str(number) for number in self.examples[reason])
            more = ", ..." if count > NUM_EXAMPLES else ""
            where = "line" if count == 1 else "lines"
            lines.append(
                f"{_count(count, 'pair')} dropped: {reason} ({where} {numbers}{more})"
            )
        for kind, count in self.removed.most_common():
            lines.append(f"{_count(count, kind)} removed or replaced")
        if self.identical:
            pairs = _count(self.identical, "kept pair")
            lines.append(f"{pairs} with the same text on both sides")
        return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """Which pairs to drop. Pairs with a blank side always go.

    Words are what white space separates; characters are code points of the text
    without outer white space. A limit holds for both sides.

    Args:
        min_words: Fewest words.
        max_words: Most words, or None.
        max_characters: Most characters, or None.
        max_length_ratio: Most characters of the longer side for each character of
            the shorter, or None.
        drop_identical: Whether to drop pairs whose two sides are the same text.
        drop_duplicates: Whether to drop pairs seen before. This alone needs memory
            that grows with the corpus (about 100 bytes a pair).

    Raises:
        ValueError: If a limit is out of range.
    """

    min_words: int = 1
    max_words: int | None = None
    max_characters: int | None = None
    max_length_ratio: float | None = None
    drop_identical: bool = False
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        lowest = {
            "min_words": 1,
            "max_words": self.min_words,
            "max_characters": 1,
            "max_length_ratio": 1,
        }
        for name, least in lowest.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(
                    f"`{name}` must be at least {least}. Received: {value!r}."
                )

    def reason_to_drop(self, pair: Pair) -> str | None:
        """Name the reason why a pair must go, or return None."""
        blank = [side for side in Pair._fields if is_blank(getattr(pair, side))]
        if blank:
            return "empty " + " and ".join(blank)
        source, target = (text.strip() for text in pair)
        lengths = len(source), len(target)
        num_words = len(source.split()), len(target.split())
        if min(num_words) < self.min_words:
            return "too short"
        if self.max_words is not None and max(num_words) > self.max_words:
            return "too long"
        if self.max_characters is not None and max(lengths) > self.max_characters:
            return "too long"
        limit = self.max_length_ratio
        if limit is not None and max(lengths) > limit * min(lengths):
            return "length ratio"
        if self.drop_identical and source == target:
            return "identical"
        return None
