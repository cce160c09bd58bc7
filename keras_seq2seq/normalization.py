"""Normal forms: what a text goes through before it is cut into pieces.

The forms are tables of rewriting rules that go inside a SentencePiece model, so that
whatever loads the model normalises alike.
"""

import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

NORMALIZATIONS = ("nfc", "nfkc", "identity")
SPACE_PIECE = "\u2581"  # SentencePiece writes a space as this character

_SURROGATES = re.compile("[\ud800-\udfff]")
_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029" + SPACE_PIECE
_CONTROL_LIKE = "\u2028\u2029\ufeff" + SPACE_PIECE


def guarded_text(text: str) -> str:
    """Take away what SentencePiece can't be given, and all of a blank text.

    Args:
        text: Any string.

    Returns:
        The text without NUL, U+FFFD for each lone surrogate; empty if it is blank.

    Raises:
        TypeError: If it is no string.
    """
    if not isinstance(text, str):
        raise TypeError(f"`text` must be a string. Received: {type(text).__name__}.")
    text = _SURROGATES.sub("\ufffd", text.replace("\0", ""))
    return text if text.strip() else ""


def normalization_options(
    normalization: str, lowercase: bool, folder: str
) -> dict[str, str]:
    """Return the options that give SentencePiece's trainer a normal form.

    Args:
        normalization: One of `NORMALIZATIONS`.
        lowercase: Whether to lower-case, too.
        folder: Where the file of rules goes; the trainer reads it from there.
    """
    rules = normalization_rules(normalization, lowercase)
    if not rules:
        return {"normalization_rule_name": "identity"}
    path = Path(folder) / "rules.tsv"

    def codes(text: str) -> str:
        return " ".join(f"{ord(character):X}" for character in text)

    lines = (f"{codes(before)}\t{codes(after)}\n" for before, after in rules.items())
    path.write_text("".join(lines), encoding="utf-8")
    return {"normalization_rule_tsv": str(path)}


@lru_cache(maxsize=len(NORMALIZATIONS) * 2)
def normalization_rules(normalization: str, lowercase: bool) -> dict[str, str]:
    """Return the rewriting rules, longest match first, of a normal form.

    SentencePiece's own tables would turn U+200D into a space (B16) and have none for
    NFC, so the rules come from Unicode's data: each character that changes, and each
    way to spell a composed character by letter and marks.

    Args:
        normalization: `"nfc"`, `"nfkc"` or `"identity"`.
        lowercase: Whether the rules lower-case, too.

    Returns:
        What becomes what; a rule to the empty string deletes.
    """
    compose = unicodedata.normalize
    form: Literal["NFC", "NFKC"] = "NFKC" if normalization == "nfkc" else "NFC"

    def fold(text: str) -> str:
        if normalization != "identity":
            text = compose(form, text)
        if lowercase:
            text = text.lower()
        if normalization != "identity":
            text = compose(form, text)
        return text

    rules: dict[str, str] = {}
    spellings: dict[str, list[str]] = defaultdict(list)
    composed = []
    for code in itertools.chain(range(1, 0xD800), range(0xE000, 0x110000)):
        character = chr(code)
        folded = fold(character)
        if normalization != "identity":
            if unicodedata.category(character) == "Cc" or character in _CONTROL_LIKE:
                folded = " " if character in _SPACES else ""
            elif unicodedata.decomposition(character)[:1] not in ("", "<"):
                composed.append(character)
        if folded != character:
            rules[character] = folded
            if len(folded) == 1 and not 0x1D400 <= code <= 0x1D7FF:
                spellings[folded].append(character)
    if normalization != "identity":
        for character in composed:
            rules |= _composition_rules(character, spellings, fold)
        # Not over single jamo in other forms: a fifth of a million rules for text that
        # nobody writes.
        for character in map(chr, range(0xAC00, 0xD7A4)):
            rules |= _composition_rules(character, {}, fold)
    return rules


def _composition_rules(
    character: str, spellings: Mapping[str, list[str]], fold: Callable[[str], str]
) -> dict[str, str]:
    """Return a rule for each spelling of a composed character."""
    compose = unicodedata.normalize
    decomposed = compose("NFD", character)
    base, marks = decomposed[0], decomposed[1:]
    if not marks or compose("NFC", character) != character:
        return {}  # excluded from composition: its own rule takes it apart
    rules = {}
    for order in itertools.permutations(marks):
        spelling = base + "".join(order)
        if compose("NFC", spelling) != character:
            continue
        for length in range(1, len(spelling)):
            start = compose("NFC", spelling[:length])
            if len(start) > 1:
                continue
            parts = start + spelling[length:]
            # Other characters that fold to the parts, such as capitals or wide forms.
            choices = ([part, *spellings.get(part, ())] for part in parts)
            for chosen in itertools.product(*choices):
                variant = "".join(chosen)
                rules[variant] = fold(variant)
    return rules
