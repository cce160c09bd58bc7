import datetime
import re
import sys
from collections import Counter

import pytest

from keras_seq2seq.dates import (
    FIRST_DATE,
    LAST_DATE,
    LOCALES,
    date_patterns,
    generate_dates,
    write_date,
)


def dates_of(*years):
    for year in years:
        date = datetime.date(year, 1, 1)
        while date.year == year:
            yield date
            date += datetime.timedelta(days=1)


@pytest.mark.parametrize(
    ("locale", "date", "sources"),
    [
        ("en_US", "2024-03-03", ["Mar 3, 2024", "Sunday, March 3, 2024"]),
        ("en_US", "2024-03-22", ["3/22/24", "March 22nd, 2024", "Mar 22, ’24"]),
        ("en_GB", "1999-09-03", ["3 Sept 1999", "3rd September 1999"]),
        ("en_GB", "1999-09-11", ["the 11th of September 1999"]),
        ("de", "2024-03-03", ["03.03.24", "3. März 2024", "Sonntag, den 3. März 2024"]),
        ("fr", "2024-03-01", ["1er mars 2024", "vendredi 1 mars 2024"]),
        ("fr", "2024-03-25", ["25/03/2024", "le 25 mars 2024"]),
        ("es", "2024-03-03", ["3 de marzo de 2024", "3 mar 2024"]),
        ("it", "2024-03-01", ["1º marzo 2024", "venerdì 1 marzo 2024"]),
        ("pt_BR", "2024-03-01", ["1º de março de 2024", "1 de mar. de 2024"]),
        ("nl", "2024-03-25", ["25-3-2024", "ma 25 mrt 2024"]),
        ("sv", "2024-03-03", ["2024-03-03", "söndagen den 3 mars 2024"]),
        ("pl", "2024-03-03", ["3.03.2024", "niedziela, 3 marca 2024"]),
    ],
)
def test_dates_are_written_as_in_each_language(locale, date, sources):
    date = datetime.date.fromisoformat(date)
    written = [write_date(date, pattern, locale) for pattern in date_patterns(locale)]
    assert set(sources) <= set(written)


@pytest.mark.parametrize(
    ("day", "ending"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"),
     (13, "13th"), (21, "21st"), (22, "22nd"), (23, "23rd"), (30, "30th")],
)  # fmt: skip
def test_english_ordinals(day, ending):
    date = datetime.date(2024, 5, day)
    assert write_date(date, "d'~' MMMM y", "en_GB") == f"{ending} May 2024"


@pytest.mark.parametrize(
    ("pattern", "day_12", "day_13"),
    [
        ("M/d/yy", None, "3/13/24"),
        ("dd-MM-y", None, "13-03-2024"),
        ("dd.MM.y", "12.03.2024", "13.03.2024"),
        ("y-MM-dd", "2024-03-12", "2024-03-13"),
    ],
)
def test_forms_of_digits_alone_are_used_where_they_read_one_way(
    pattern, day_12, day_13
):
    dates = [datetime.date(2024, 3, day) for day in (12, 13)]
    assert [write_date(date, pattern, "nl") for date in dates] == [day_12, day_13]


def test_no_source_has_two_readings():
    # Every pattern on every day of years whose digits could be taken for days.
    readings = {}
    for locale in LOCALES:
        for pattern in date_patterns(locale):
            for date in dates_of(2012, 2031):
                source = write_date(date, pattern, locale)
                if source is not None:
                    assert readings.setdefault(source, date) == date, source
                    assert 8 <= len(source) < 45 or len(source) == 7, source
                    assert source == source.strip()
                    assert "~" not in source


def test_a_generated_set_is_unique_right_and_even():
    pairs = generate_dates(3000, seed=1)
    assert len({pair.source for pair in pairs}) == len(pairs) == 3000
    years = Counter(pair.target[:3] for pair in pairs)
    assert set(years) == {f"{decade}" for decade in range(195, 205)}
    assert min(years.values()) > 200
    for pair in pairs:
        date = datetime.date.fromisoformat(pair.target)
        assert FIRST_DATE <= date <= LAST_DATE
        numbers = {int(number) for number in re.findall(r"\d+", pair.source)}
        assert date.day in numbers
        assert date.year in numbers or date.year % 100 in numbers


def test_languages_take_turns():
    pairs = generate_dates(300, seed=2)
    dates = [datetime.date.fromisoformat(pair.target) for pair in pairs]
    shares = Counter()
    for pair, date in zip(pairs, dates, strict=True):
        writers = [
            locale
            for locale in LOCALES
            if any(
                write_date(date, pattern, locale) == pair.source
                for pattern in date_patterns(locale)
            )
        ]
        shares.update({locale: 1 / len(writers) for locale in writers})
    # 30 each, but for forms that several languages share.
    assert set(shares) == set(LOCALES)
    assert min(shares.values()) > 20
    assert max(shares.values()) < 40


def test_generation_is_a_function_of_the_seed():
    pairs = generate_dates(200, seed=3)
    assert generate_dates(200, seed=3) == pairs
    assert generate_dates(300, seed=3)[:200] == pairs
    assert generate_dates(200, seed=4) != pairs
    assert generate_dates(0, seed=3) == []


@pytest.mark.parametrize("count", [-1, 500_001])
def test_an_impossible_count_is_refused(count):
    with pytest.raises(ValueError, match=f"Received: {count}"):
        generate_dates(count, seed=0)


def test_without_babel_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ValueError, match="pip install Babel"):
        generate_dates(1, seed=0)
