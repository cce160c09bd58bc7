"""Splitting running text into sentences, by rules that hold for many languages."""

import re

# Ends of sentences; the wide ones of Chinese and Japanese need no space after them.
_END = re.compile(
    r"""
    (?:
        [.!?\u2026\u061f\u06d4\u0964\u1362]+      # . ! ? … ؟ ۔ । ።
        (?:["'\u2019\u201d\u00bb\u00ab)\]]       # what closes behind them
         | [\ \u00a0\u202f]\u00bb)*
        (?=\s)
      | [\u3002\uff01\uff1f\uff61]+               # 。 ！ ？ ｡
        ["'\u2019\u201d\u300d\u300f\uff09)]*
    )
    \s*
    """,
    re.VERBOSE,
)
# The last word before a full stop, letters and inner full stops.
_LAST_WORD = re.compile(r"([\w.\u00b7-]+)\.[\"'\u2019\u201d\u00bb)\]]*\s*$")
# Words that stand before a name or a number with a full stop of their own.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof sr jr st mt ft gen col sgt capt lt rev hon gov sen rep "
    "no nos nr vol pp fig figs eq sec ch ed eds vs cf ca approx est al etc eg ie "
    "hr fr frl dipl ing abs art bd bzw evtl ggf inkl max min usw vgl z.b d.h u.a "
    "m mm mme mlle me p.ex av bd "
    "sra srta ud uds pág núm art ej".split()
)


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Splits a text at the ends of its sentences.

    A sentence ends at a full stop, question or exclamation mark, with what closes
    behind it (quotes, brackets), before a space. A full stop does not end one behind
    an initial, a known abbreviation, or a number that counts (`3. März`), nor before
    a small letter. Chinese and Japanese marks end one also without a space.

    Args:
        text: One line of text.

    Returns:
        Sentences, each with the spaces that follow it; joined they are the text. A
        blank text is one sentence.
    """
    found: list[tuple[str, str]] = []
    start = 0
    for match in _END.finditer(text):
        after = text[match.end() :]
        if not after or not _ends(text[start : match.end()], after):
            continue
        piece = text[start : match.end()]
        sentence = piece.rstrip()
        found.append((sentence, piece[len(sentence) :]))
        start = match.end()
    rest = text[start:]
    if rest or not found:
        found.append((rest, ""))
    return found


def _ends(before: str, after: str) -> bool:
    """Whether the mark that `before` ends with is the end of a sentence."""
    opened = after.lstrip("\"'\u2018\u201c\u00ab\u00bf\u00a1([-\u2013\u2014 ")
    if opened[:1].islower():
        return False
    word = _LAST_WORD.search(before)
    if word is None:
        return True
    last = word[1].lower()
    if last in _ABBREVIATIONS:
        return False
    # An initial (J. S. Bach), or letters with full stops between (U.S. Army).
    if re.fullmatch(r"[^\W\d_](\.[^\W\d_])*", last):
        return False
    # A number that counts what follows (3. März, 21. Jahrhundert).
    return not (last.isdigit() and len(last) <= 2)
