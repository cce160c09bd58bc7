"""One call of `Translator.translate`: its settings, and what each text asks for."""

import difflib
import reprlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.decoding import (
    SearchOptions,
    check_number,
    check_phrases_fit,
    check_prefixes_fit,
)
from keras_seq2seq.tokenizers import PAD_ID, START_ID, UNK_ID

# Settings that the search has under the same name.
_SEARCHED = (
    "min_length",
    "length_penalty",
    "length_penalty_base",
    "coverage_penalty",
    "length_reward",
    "stop",
    "num_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
)


@dataclass(frozen=True)
class Request:
    """The settings of one call, checked.

    Attributes:
        settings: The run's `[decoding]`, with what the call said in its place.
        max_length: Most tokens of every output; None to follow the source.
        n_best: Outputs wanted for each text.
        constants: Fields of `SearchOptions`, `max_length` aside.
    """

    settings: DecodingConfig
    max_length: int | None
    n_best: int
    constants: dict[str, Any]

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        return self.constants["temperature"] > 0

    def limit(self, source_length: int) -> int:
        """Returns the most tokens of an output, END included.

        Args:
            source_length: Tokens of its source, END included.
        """
        if self.max_length is not None:
            return self.max_length
        least = self.settings.least_length(source_length)
        return max(self.settings.length_limit(source_length), least)

    def length_inputs(self, source_lengths: Sequence[int]) -> dict[str, Any]:
        """Returns what follows the lengths of the sources, of `SearchInputs`."""
        settings = self.settings
        found = {}
        if settings.min_length_ratio:
            least = [settings.least_length(length) for length in source_lengths]
            found["min_lengths"] = np.asarray(least, dtype="int32")
        if settings.length_reward:
            ratio = settings.length_reward_ratio
            rewarded = [int(ratio * length) for length in source_lengths]
            found["reward_lengths"] = np.asarray(rewarded, dtype="int32")
        return found


def make_request(
    defaults: DecodingConfig,
    overrides: dict[str, Any],
    *,
    n_best: int = 1,
    max_length: int | None = None,
    num_samples: int | None = None,
    alternatives: bool = False,
    return_attention: bool = False,
    return_token_scores: bool = False,
) -> Request:
    """Puts a call's settings in place of the run's, and checks every value.

    Args:
        defaults: The run's `[decoding]`.
        overrides: Settings by name; None for the run's.
        n_best: Outputs wanted for each text.
        max_length: Most tokens of every output.
        num_samples: Samples to draw of each text, where more than `n_best`.
        alternatives: Whether the outputs differ in their first token.
        return_attention: Whether attention is wanted.
        return_token_scores: Whether the tokens' log-probabilities are wanted.

    Raises:
        TypeError: If there is no such setting.
        ValueError: If a value is out of range, or two contradict each other.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    _check_names(given)
    check_number("n_best", n_best, 1, whole=True)
    if num_samples is not None:
        check_number("mbr_samples", num_samples, 1, whole=True)
    if given.keys() & {"top_k", "top_p"} and not defaults.temperature:
        given.setdefault("temperature", 1.0)
    settings = defaults.model_copy(update=given)
    for name in ("batch_tokens", "max_length_offset"):
        check_number(name, getattr(settings, name), name == "batch_tokens", whole=True)
    ratios = ("max_length_ratio", "min_length_ratio", "length_reward_ratio")
    for name in (*ratios, "temperature"):
        check_number(name, getattr(settings, name), 0)
    check_number("min_length", settings.min_length, 0, whole=True)
    check_number("num_beams", settings.num_beams, 1, whole=True)
    if max_length is not None:
        check_number("max_length", max_length, 1, whole=True)
        if max_length < settings.min_length:
            raise ValueError(
                "`max_length` must not be below `min_length`. Received: "
                f"max_length={max_length}, min_length={settings.min_length}."
            )
    constants = {name: getattr(settings, name) for name in _SEARCHED}
    constants |= {
        "banned_ids": (PAD_ID, START_ID) + (UNK_ID,) * (not settings.allow_unknown),
        "alternatives": alternatives,
        "return_attention": return_attention,
        "return_token_scores": return_token_scores,
    }
    constants |= _breadth(settings, given, n_best, num_samples, alternatives)
    if constants["num_beams"] == 1:
        constants["num_groups"] = 1
    # A longer limit than any: lengths were checked, and follow the source.
    SearchOptions(**constants, max_length=settings.min_length + 1)
    return Request(settings, max_length, n_best, constants)


def _breadth(
    settings: DecodingConfig,
    given: dict[str, Any],
    n_best: int,
    num_samples: int | None,
    alternatives: bool,
) -> dict[str, int]:
    """How many beams are kept, and how many hypotheses are asked for."""
    if settings.temperature > 0:
        # The run's beams are for searching.
        beams = given.get("num_beams", 1)
        return {"num_beams": beams, "n_best": max(n_best, num_samples or 1)}
    if num_samples is not None:
        raise ValueError(
            "`mbr_samples` needs a `temperature` above 0. Received: "
            f"mbr_samples={num_samples}, temperature={settings.temperature}."
        )
    beams = settings.num_beams
    if "num_beams" not in given:
        beams = n_best if alternatives else max(beams, n_best)
    if n_best > beams:
        raise ValueError(
            f"`n_best` must be at most `num_beams`. Received: n_best={n_best}, "
            f"num_beams={beams}."
        )
    # All of them, as some may differ in tokens but not in text.
    return {"num_beams": beams, "n_best": beams if n_best > 1 else 1}


def _check_names(given: dict[str, Any]) -> None:
    known = [*DecodingConfig.model_fields]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            raise TypeError(f"There is no option `{name}` of decoding.{hint}")


def row_seeds(seed: int | Sequence[int] | None, count: int, first: int = 0) -> Any:
    """A number to draw by for each text, int32 `(count,)`.

    Args:
        seed: One for all, from which each text's own follows by its place; or one for
            each text; None for a new one at each call.
        count: Number of texts.
        first: Place of the first.

    Raises:
        ValueError: If something else is given, or not as many as there are texts.
    """
    if seed is None:
        seed = secrets.randbits(32)
    single = np.ndim(seed) == 0
    given: list[Any] = [seed] if single else list(seed)  # type: ignore[arg-type]
    whole = all(isinstance(s, Integral) and not isinstance(s, bool) for s in given)
    if not whole or not (single or len(given) == count):
        raise ValueError(
            "`seed` must be one whole number, or one for each text. Received: "
            f"seed={reprlib.repr(seed)}, {len(given)} for {count} texts."
        )
    if not single:
        return np.asarray([int(s) % 2**32 for s in given], "uint32").view("int32")
    places = np.arange(first, first + count, dtype="uint32")
    # Far from each other, so that no text's seed is another's of the next call.
    seeds = np.uint32(int(given[0]) % 2**32) + places * np.uint32(0x9E3779B9)
    return seeds.astype("uint32").view("int32")


def constraint_columns(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str]
) -> dict[str, list[Any]]:
    """Sorts what is asked for each text into arguments of `Translator.translate`.

    Args:
        rows: For each text a mapping with `prefix`, `required` and `banned`, each of
            which may be left out.
        texts: The texts.

    Returns:
        `prefixes`, `required` and `banned`, those that any text has.

    Raises:
        ValueError: If a mapping is missing or has something else.
    """
    if len(rows) < len(texts):
        raise ValueError(
            "There must be constraints for each text. Received: "
            f"{len(rows)} for the last {len(texts)} texts."
        )
    columns = {"prefixes": "prefix", "required": "required", "banned": "banned"}
    for row in rows:
        if not isinstance(row, Mapping) or set(row) - set(columns.values()):
            raise ValueError(
                "The constraints of a text must be a mapping that has nothing but "
                f"`prefix`, `required` and `banned`. Received: {row!r}."
            )
    empty: dict[str, Any] = {"prefixes": "", "required": [], "banned": []}
    return {
        name: [row.get(key, empty[name]) for row in rows]
        for name, key in columns.items()
        if any(key in row for row in rows)
    }


class PhraseEncoder:
    """Makes ids of prefixes and phrases, padded to few shapes.

    Args:
        encode: Ids of each of a list of target texts, without END.
        space_id: Id that every text starts with and phrases do not, where tokens are
            characters: a phrase may stand inside a word. None where there is none.
    """

    def __init__(
        self, encode: Callable[[list[str]], list[list[int]]], space_id: int | None
    ) -> None:
        self._encode = encode
        self._space_id = space_id

    def inputs(
        self,
        limits: Sequence[int],
        *,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str | Sequence[str]]] | None = None,
        banned: Sequence[Sequence[str]] | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns ids of what is asked for each text, by the names of `SearchInputs`.

        Args:
            limits: Most tokens of the output for each text.
            prefixes: As in `Translator.translate`.
            required: As there.
            banned: As there.

        Raises:
            TypeError: If a phrase stands where a list of phrases should.
            ValueError: If there is not one entry for each text, a phrase cannot be
                written, or what is asked does not fit into a limit.
        """
        asked = {"prefixes": prefixes, "required": required, "banned": banned}
        for name, value in asked.items():
            if value is not None:
                _check_entries(name, value, len(limits))
        found: dict[str, np.ndarray] = {}
        room = np.asarray(limits)
        if prefixes is not None:
            found["prefix_ids"] = self.prefixes(prefixes)
            check_prefixes_fit(room, found["prefix_ids"], name="prefixes")
        if required is not None:
            found["required_phrases"] = self.sets(required, "required")
            check_phrases_fit(room, found["required_phrases"], found.get("prefix_ids"))
        if banned is not None:
            found["banned_phrases"] = self.phrases(banned, "banned")
        return found

    def prefixes(self, texts: Sequence[str]) -> np.ndarray:
        """Returns ids of target prefixes, int32 `(B, P)`."""
        return _padded(self._encode(list(texts)), rank=2)

    def phrases(self, rows: Sequence[Sequence[str]], name: str) -> np.ndarray:
        """Returns ids of the phrases of each text, int32 `(B, C, P)`."""
        return _padded([self._ids(phrases, name) for phrases in rows], rank=3)

    def sets(self, rows: Sequence[Sequence[Any]], name: str) -> np.ndarray:
        """Returns ids of sets of phrases of each text, int32 `(B, C, A, P)`."""
        found = []
        for sets in rows:
            _check_list(sets, name)
            alternatives = [[x] if isinstance(x, str) else x for x in sets]
            found.append([self._ids(phrases, name) for phrases in alternatives])
        return _padded(found, rank=4)

    def _ids(self, phrases: Sequence[str], name: str) -> list[list[int]]:
        _check_list(phrases, name)
        found = self._encode(list(phrases))
        if self._space_id is not None:
            found = [ids[ids[:1] == [self._space_id] :] for ids in found]
        for phrase, ids in zip(phrases, found, strict=True):
            if not ids or UNK_ID in ids:
                raise ValueError(
                    f"`{name}` must hold phrases that the target tokenizer can write. "
                    f"Received: {phrase!r}, which "
                    f"{'has an unknown piece' if ids else 'has no piece'}."
                )
        return found


def _check_entries(name: str, value: Sequence[Any], count: int) -> None:
    if isinstance(value, str) or len(value) != count:
        found = f"{value!r}" if isinstance(value, str) else f"{len(value)}"
        raise ValueError(
            f"`{name}` must hold one entry for each text. Received: {found} for "
            f"{count} texts."
        )


def _check_list(phrases: Any, name: str) -> None:
    if isinstance(phrases, str):
        raise TypeError(
            f"`{name}` must hold a list of phrases for each text. Received: "
            f"{phrases!r}. Put it in a list."
        )


def _padded(rows: Sequence[Any], rank: int) -> np.ndarray:
    """An array of nested lists of unequal lengths, sizes rounded up to powers of 2."""
    shape, level = [len(rows)], list(rows)
    for _ in range(rank - 1):
        longest = max(map(len, level), default=0)
        shape.append(1 << max(0, longest - 1).bit_length())
        level = [item for row in level for item in row]
    array = np.full(shape, PAD_ID, dtype="int32")
    _fill(array, rows)
    return array


def _fill(array: np.ndarray, rows: Sequence[Any]) -> None:
    if array.ndim == 1:
        array[: len(rows)] = rows
        return
    for part, row in zip(array, rows, strict=False):
        _fill(part, row)
