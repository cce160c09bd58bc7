"""Dates as people write them in ten languages, with their ISO 8601 form.

A real data set that needs no download: month and day names and the usual patterns
are those of the Unicode CLDR, which Babel ships. Used by `prepare` and the quick
start; each pair reads in one way only.
"""

import datetime
import random
from typing import Any

from keras_seq2seq.corpora import Pair

LOCALES = ("en_US", "en_GB", "de", "fr", "es", "it", "pt_BR", "nl", "sv", "pl")
# A hundred years, so that two digits name one year.
FIRST_DATE = datetime.date(1950, 1, 1)
LAST_DATE = datetime.date(2049, 12, 31)
MAX_COUNT = 500_000

# Common variants beside CLDR's short, medium, long and full patterns, in CLDR's
# notation: E weekday, d day, M month, y year. "~" is the place of an ordinal's ending.
VARIANTS = {
    "en_US": (
        "E, MMM d, y",
        "E, MMMM d, y",
        "MMM d, ’yy",
        "MMMM d'~', y",
        "EEEE, MMMM d'~', y",
    ),
    "en_GB": (
        "E, d MMM y",
        "EEEE d MMMM y",
        "d MMM ’yy",
        "d'~' MMMM y",
        "'the' d'~' 'of' MMMM y",
    ),
    "de": (
        "d.M.y",
        "d. MMM y",
        "E, d. MMM y",
        "E, d.M.y",
        "'den' d. MMMM y",
        "EEEE, 'den' d. MMMM y",
    ),
    "fr": ("E d MMM y", "E d MMMM y", "d'~' MMMM y", "'le' d'~' MMMM y"),
    "es": ("E, d MMM y", "E, d 'de' MMMM 'de' y", "'el' d 'de' MMMM 'de' y"),
    "it": ("E d MMM y", "E d MMMM y", "d'~' MMMM y", "'il' d'~' MMMM y"),
    "pt_BR": (
        "d MMM y",
        "E, d 'de' MMM 'de' y",
        "E, d 'de' MMMM 'de' y",
        "d'~' 'de' MMMM 'de' y",
    ),
    "nl": ("E d MMM y", "E d MMMM y", "d-M-y"),
    "sv": ("E d MMM y", "E d MMMM y", "'den' d MMMM y", "EEEE'en' 'den' d MMMM y"),
    "pl": ("E, d MMM y", "E, d MMMM y", "d MMMM y 'r.'", "d.MM.y 'r.'"),
}


def generate_dates(count: int, *, seed: int) -> list[Pair]:
    """Generate dates as people write them, each with its ISO 8601 form.

    The languages take turns; pattern and day are drawn evenly. Case and punctuation
    are as each language writes them. A form of digits alone that languages read
    differently (3/4/2024) occurs only where the day is past 12; two-digit years
    stand for 1950 to 2049. So no source has two readings.

    Args:
        count: Number of pairs.
        seed: Seed of the choice. The same seed gives the same pairs, with the same
            version of Babel, and the first pairs of a longer list.

    Returns:
        Pairs in random order, no source twice.

    Raises:
        ValueError: If `count` is negative or above 500,000.

    Example:
        generate_dates(1000, seed=0)[0]
    """
    if not 0 <= count <= MAX_COUNT:
        raise ValueError(
            f"`count` must be between 0 and {MAX_COUNT:,}. Received: {count}."
        )
    rng = random.Random(seed)
    num_days = (LAST_DATE - FIRST_DATE).days + 1
    patterns = {locale: date_patterns(locale) for locale in LOCALES}
    pairs: dict[str, str] = {}
    turn: list[str] = []
    while len(pairs) < count:
        turn = turn or rng.sample(LOCALES, len(LOCALES))
        pattern = rng.choice(patterns[turn[-1]])
        date = FIRST_DATE + datetime.timedelta(days=rng.randrange(num_days))
        source = write_date(date, pattern, turn[-1])
        if source is not None and source not in pairs:
            pairs[source] = date.isoformat()
            turn.pop()
    return [Pair(source, target) for source, target in pairs.items()]


def date_patterns(locale: str) -> tuple[str, ...]:
    """Return the patterns of one of `LOCALES`: CLDR's four and the variants."""
    formats = _locale(locale).date_formats
    cldr = (formats[width].pattern for width in ("short", "medium", "long", "full"))
    return tuple(dict.fromkeys((*cldr, *VARIANTS[locale])))


def write_date(date: datetime.date, pattern: str, locale: str) -> str | None:
    """Write a date by a pattern, or return None where it would be ambiguous."""
    by_digits = "MMM" not in pattern
    day_first_or_iso = "." in pattern or pattern.startswith("y")
    if by_digits and not day_first_or_iso and date.day <= 12:
        return None
    from babel.dates import format_date

    text = format_date(date, pattern, locale=_locale(locale))
    return text.replace("~", _ordinal_ending(date.day, locale))


def _locale(name: str) -> Any:
    try:
        from babel import Locale
    except ImportError:
        raise ValueError(
            "The set of dates needs the package Babel. Install it: pip install Babel."
        ) from None
    return Locale.parse(name)


def _ordinal_ending(day: int, locale: str) -> str:
    if locale.startswith("en"):
        if day in (11, 12, 13):
            return "th"
        return {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    if day != 1:
        return ""
    return "er" if locale == "fr" else "º"
