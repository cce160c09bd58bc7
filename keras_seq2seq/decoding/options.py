"""What a search is asked for: constants of its program, and tensors that vary."""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, NamedTuple

__all__ = ["SearchInputs", "SearchOptions", "check_number", "split_options"]


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Constants of a search, the same for every source of a batch.

    A hypothesis Y is ranked, when it ends, by

        log P(Y) / ((b + |Y|) / (b + 1)) ** a  +  c(Y)  +  r * min(|Y|, w)

    with a = `length_penalty`, b = `length_penalty_base`, `|Y|` its tokens with END,
    r = `length_reward`, w the source's `reward_lengths`, and the coverage
    `c(Y) = coverage_penalty * sum over source positions of log min(attention that
    they received, 1)`. b = 5 is the penalty of GNMT; b = 0 that of fairseq and
    Sockeye, with a = 1 the mean log-probability.

    Args:
        max_length: Most tokens of a hypothesis, END included; the length L of the
            result.
        min_length: Fewest tokens before END. A row whose limit is not greater ends
            at its limit, unfinished.
        num_beams: Hypotheses of each source kept alive, over all groups; may exceed
            the vocabulary. 1 is greedy search, for every way of ranking.
        n_best: Hypotheses returned of each source: at most `num_beams`, or any
            number of samples.
        length_penalty: a, at least 0. 0 leaves log-probabilities as they are, larger
            values favour longer hypotheses.
        length_penalty_base: b, at least 0.
        coverage_penalty: At least 0; above 0 the step must return attention weights.
        length_reward: r, at least 0: log-probability given for each token.
        stop: `"exact"`: a source is done when no living hypothesis could still enter
            its `n_best`, which changes nothing in the result. `"count"`: when as many
            hypotheses have ended as there are beams, which is faster and may lose a
            better one.
        num_groups: Groups of beams that differ from each other (diverse beam
            search); must divide `num_beams`. What is unfinished at the limit is
            returned only where no group of the source has finished anything.
        diversity_penalty: Log-probability taken, in the choice of a step, from a
            token for each earlier group's beam that took it; at least 0.
        alternatives: Whether the beams take different tokens at the first position
            after the prefix, and go on from there greedily. Each is a search of its
            own, and returned whether it has finished or not.
        temperature: 0 to search; above 0 tokens are drawn, from the distribution of
            the logits divided by it. What is too small for a float32 counts as the
            smallest one.
        top_k: Number of likeliest tokens to draw from; 0 for all.
        top_p: Of those, the fewest likeliest whose probabilities add up to it.
        repetition_penalty: Above 0. What a logit above 0 is divided by, and one below
            0 multiplied by, if its token was written before; 1 for none.
        no_repeat_ngram_size: Length of the sequences of tokens that are never
            written twice; 0 for none.
        start_id: Token that the first step is fed.
        end_id: Token that ends a hypothesis.
        pad_id: Token written after the end.
        banned_ids: Tokens that are never written, but where a prefix says so; a
            collection of whole numbers.
        return_attention: Whether to return the attention over the source.
        return_token_scores: Whether to return each token's log-probability.

    Raises:
        ValueError: If a value is out of its range, or two contradict each other.

    Reference:
        Wu et al., 2016, section 7 (length and coverage); Huang et al., 2017 (bounded
        length reward); Vijayakumar et al., 2018 (groups); Holtzman et al., 2020
        (top-p); Keskar et al., 2019 (repetition); Paulus et al., 2018 (n-grams).
    """

    max_length: int
    min_length: int = 0
    num_beams: int = 1
    n_best: int = 1
    length_penalty: float = 0.6
    length_penalty_base: float = 5.0
    coverage_penalty: float = 0.0
    length_reward: float = 0.0
    stop: str = "exact"
    num_groups: int = 1
    diversity_penalty: float = 0.0
    alternatives: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    start_id: int = 2
    end_id: int = 3
    pad_id: int = 0
    banned_ids: tuple[int, ...] = (0, 2)
    return_attention: bool = False
    return_token_scores: bool = False

    def __post_init__(self) -> None:
        self._check_banned_ids()
        for name, least in _LEAST_COUNTS.items():
            check_number(name, getattr(self, name), least, whole=True)
        for name in _NOT_NEGATIVE:
            check_number(name, getattr(self, name), 0)
        self._check_lengths()
        self._check_choice()
        self._check_groups()

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn and not searched for."""
        return self.temperature > 0

    @property
    def uses_history(self) -> bool:
        """Whether a step needs the tokens written before."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0

    def _check_banned_ids(self) -> None:
        try:
            banned_ids: tuple[int, ...] | None = tuple(self.banned_ids)
        except TypeError:  # nothing that could be listed
            banned_ids = None
        if banned_ids is None or not all(
            _is_number(banned_id, Integral) for banned_id in banned_ids
        ):
            raise ValueError(
                "`banned_ids` must be a collection of whole numbers. Received: "
                f"banned_ids={self.banned_ids!r}. Put a single id in a list."
            )
        object.__setattr__(self, "banned_ids", banned_ids)

    def _check_lengths(self) -> None:
        if self.min_length >= self.max_length:
            raise ValueError(
                "`min_length` counts the tokens before END, so it must be less than "
                f"`max_length`. Received: min_length={self.min_length}, "
                f"max_length={self.max_length}."
            )
        if self.end_id in self.banned_ids:
            raise ValueError(
                "`banned_ids` must not contain `end_id`; use `min_length` to put off "
                f"END. Received: banned_ids={self.banned_ids}, end_id={self.end_id}."
            )

    def _check_choice(self) -> None:
        if not _is_number(self.top_p, Real) or not 0 <= self.top_p <= 1:
            raise ValueError(
                f"`top_p` must lie between 0 and 1. Received: top_p={self.top_p!r}."
            )
        penalty = self.repetition_penalty
        if not _is_number(penalty, Real) or not 0 < penalty < math.inf:
            raise ValueError(
                "`repetition_penalty` must be a number above 0, and finite; 1 is none. "
                f"Received: repetition_penalty={penalty!r}."
            )
        if self.stop not in ("exact", "count"):
            raise ValueError(
                f'`stop` must be "exact" or "count". Received: stop={self.stop!r}.'
            )
        if self.samples and self.num_beams > 1:
            raise ValueError(
                "`num_beams` must be 1 where tokens are drawn; `n_best` is the number "
                f"of samples. Received: num_beams={self.num_beams}, "
                f"temperature={self.temperature}."
            )
        if not self.samples and self.n_best > self.num_beams:
            raise ValueError(
                "`n_best` must lie between 1 and `num_beams`. Received: "
                f"n_best={self.n_best}, num_beams={self.num_beams}."
            )

    def _check_groups(self) -> None:
        if self.num_beams % self.num_groups:
            raise ValueError(
                "`num_groups` must divide `num_beams`. Received: "
                f"num_groups={self.num_groups}, num_beams={self.num_beams}."
            )
        if self.alternatives and self.num_groups > 1:
            raise ValueError(
                "`alternatives` makes a group of every beam: leave `num_groups` at 1. "
                f"Received: num_groups={self.num_groups}."
            )


class SearchInputs(NamedTuple):
    """Tensors of a search, one row for each source; None for what is not asked.

    Attributes:
        length_limits: Most tokens of each source's hypotheses, END included, at least
            1, int32 `(B,)`; None for `max_length`.
        min_lengths: Fewest tokens before END, int32 `(B,)`, beside `min_length`.
        reward_lengths: Most tokens that `length_reward` is given for, `(B,)`.
        prefix_ids: Tokens that each hypothesis starts with, int32 `(B, P)`; PAD after
            the last. At most as many as the limit.
        banned_phrases: Sequences of tokens that are never written, int32
            `(B, C, P)`; PAD after the last token.
        required_phrases: What must be written: of each of C sets one of its A
            sequences, int32 `(B, C, A, P)`; PAD after the last token, sequences and
            sets of nothing but PAD ask for nothing.
        seeds: What the samples of each source are drawn by, int32 `(B,)`.
        noise: Numbers from 0 to 1 in place of seeds, float32 `(B, N, L)`, for each
            of `n_best` samples at least `max_length`.
        temperatures: Where tokens are drawn, the temperature of each source in place
            of the option; 0 takes the likeliest. float32 `(B,)`.
        top_ks: In the same way, int32 `(B,)`.
        top_ps: In the same way, float32 `(B,)`.
    """

    length_limits: Any = None
    min_lengths: Any = None
    reward_lengths: Any = None
    prefix_ids: Any = None
    banned_phrases: Any = None
    required_phrases: Any = None
    seeds: Any = None
    noise: Any = None
    temperatures: Any = None
    top_ks: Any = None
    top_ps: Any = None


#: The inputs that are no whole numbers.
FRACTIONS = ("noise", "temperatures", "top_ps")


_LEAST_COUNTS = {
    "max_length": 1,
    "min_length": 0,
    "num_beams": 1,
    "n_best": 1,
    "num_groups": 1,
    "top_k": 0,
    "no_repeat_ngram_size": 0,
    "start_id": 0,
    "end_id": 0,
    "pad_id": 0,
}
_NOT_NEGATIVE = (
    "length_penalty",
    "length_penalty_base",
    "coverage_penalty",
    "length_reward",
    "diversity_penalty",
    "temperature",
)


def check_number(name: str, value: Any, least: int, *, whole: bool = False) -> None:
    """Refuses what is no number of at least `least`, or infinite.

    Args:
        name: Name of the argument.
        value: What was given.
        least: The smallest number allowed.
        whole: Whether it must be a whole number.

    Raises:
        ValueError: With name, range and value.
    """
    kind = "a whole number of" if whole else "a finite number of"
    valid = _is_number(value, Integral if whole else Real)
    if not valid or not least <= value < math.inf:
        raise ValueError(
            f"`{name}` must be {kind} at least {least}. Received: {name}={value!r}."
        )


def _is_number(value: Any, kind: type) -> bool:
    """Whether a value is a number of a kind, and not a truth value."""
    return isinstance(value, kind) and not isinstance(value, bool)


def split_options(options: dict[str, Any]) -> tuple[SearchOptions, SearchInputs]:
    """Sorts keyword arguments into constants and tensors.

    Args:
        options: Fields of `SearchOptions` and `SearchInputs`.

    Raises:
        TypeError: If there is no such option.
        ValueError: If a constant is out of its range.
    """
    constants = {field.name for field in fields(SearchOptions)}
    _check_names(options, [*sorted(constants), *SearchInputs._fields])
    return (
        SearchOptions(**{k: v for k, v in options.items() if k in constants}),
        SearchInputs(**{k: v for k, v in options.items() if k not in constants}),
    )


def _check_names(options: Iterable[str], known: list[str]) -> None:
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            raise TypeError(f"There is no option `{name}` of a search.{hint}")
    if "max_length" not in options:
        raise TypeError("`max_length` must be given: the most tokens of a hypothesis.")
