"""What a search wrote, as text, and the choice among samples by their agreement."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from keras_seq2seq.decoding import SearchResult
from keras_seq2seq.tokenizers import END_ID, UNK_ID, TokenizerPair

_SPACE = "\u2581"


@dataclass(frozen=True)
class Hypothesis:
    """One output for one source.

    Args:
        text: The output, without special tokens.
        score: What hypotheses are ranked by, higher is better: the log-probability
            divided by the length penalty, with what else `[decoding]` adds; of a
            choice among samples (`mbr_samples`) the mean chrF, 0 to 100.
        log_prob: Sum of the log-probabilities of the tokens, END included.
        ids: Token ids, END included where the model produced it.
        tokens: The same as pieces.
        source_tokens: Pieces of the source, END included.
        finished: Whether the model ended the output; False if it was cut at the
            length limit.
        truncated_source: Whether the source was cut to what the model can hold.
        attention: Weights of the output's tokens over the source's tokens,
            `(len(tokens), len(source_tokens))`, or None if not asked for or if the
            model has no attention.
        token_scores: Log-probability of each token, or None if not asked for.
    """

    text: str
    score: float
    log_prob: float
    ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    source_tokens: tuple[str, ...] = ()
    finished: bool = True
    truncated_source: bool = False
    attention: np.ndarray | None = None
    token_scores: tuple[float, ...] | None = None

    @property
    def alignment(self) -> tuple[int, ...] | None:
        """Index of the source token that each token attended to most."""
        if self.attention is None or not self.attention.any():
            return None
        return tuple(int(index) for index in self.attention.argmax(axis=1))


class Source(NamedTuple):
    """Ids of a source text, END included, and whether it was cut."""

    ids: tuple[int, ...]
    truncated: bool


def make_hypotheses(
    result: SearchResult, row: int, source: Source, tokenizers: TokenizerPair
) -> list[Hypothesis]:
    """Makes text of one row of a search.

    Args:
        result: What `generate` returned.
        row: The row.
        source: Its source.
        tokenizers: The tokenizers of both sides.

    Returns:
        Hypotheses, best first.
    """
    found = []
    source_tokens = tuple(tokenizers.source.pieces(list(source.ids)))
    for n in range(result.ids.shape[1]):
        length = int(result.lengths[row, n])
        if not length and n:
            continue  # an empty place
        ids = [int(i) for i in result.ids[row, n, :length]]
        attention, scores = result.attention, result.token_log_probs
        if attention is not None:
            attention = attention[row, n, :length, : len(source.ids)]
        if scores is not None:
            scores = tuple(float(score) for score in scores[row, n, :length])
        found.append(
            Hypothesis(
                text=tokenizers.target.decode(ids),
                score=float(result.scores[row, n]),
                log_prob=float(result.log_probs[row, n]),
                ids=tuple(ids),
                tokens=tuple(tokenizers.target.pieces(ids)),
                source_tokens=source_tokens,
                finished=bool(result.finished[row, n]),
                truncated_source=source.truncated,
                attention=attention,
                token_scores=scores,
            )
        )
    return found


def different_texts(hypotheses: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """Returns the first `count`, leaving out texts that came before."""
    found: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        found.setdefault(hypothesis.text, hypothesis)
    return list(found.values())[:count]


def with_unknown_replaced(hypothesis: Hypothesis) -> Hypothesis:
    """Puts a word of the source in the place of each unknown token.

    The word that the token attended to most.

    Args:
        hypothesis: A hypothesis with attention.

    Returns:
        The hypothesis with another text, or itself where nothing is unknown.

    Reference:
        Luong et al., 2015, "Addressing the Rare Word Problem", section 3.3, by
        attention in place of a learned alignment.
    """
    if UNK_ID not in hypothesis.ids:
        return hypothesis
    alignment = hypothesis.alignment
    if alignment is None:
        raise ValueError(
            "`replace_unknown` needs a model that has attention over the source."
        )
    pieces = []
    pairs = zip(hypothesis.ids, hypothesis.tokens, alignment, strict=True)
    for token_id, piece, place in pairs:
        if token_id == UNK_ID:
            pieces.append(_SPACE + _word_at(hypothesis.source_tokens, place))
        elif token_id != END_ID:
            pieces.append(piece)
    text = "".join(pieces).replace(_SPACE, " ").strip()
    return replace(hypothesis, text=text)


def _word_at(pieces: Sequence[str], place: int) -> str:
    """The word that a piece of the source belongs to."""
    pieces = pieces[:-1]  # END
    if not pieces:
        return ""
    first = min(place, len(pieces) - 1)
    last = first + 1
    while first > 0 and not pieces[first].startswith(_SPACE):
        first -= 1
    while last < len(pieces) and not pieces[last].startswith(_SPACE):
        last += 1
    return "".join(pieces[first:last]).removeprefix(_SPACE)


def by_agreement(samples: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Sorts samples by how much they agree with all of them, the most first.

    The choice of least risk: each text's mean chrF against the samples, every
    sample counting as often as it was drawn.

    Args:
        samples: Samples of one source.

    Returns:
        Different texts, with their mean chrF as score.

    Reference:
        Eikema and Aziz, 2020, section 6 (minimum Bayes risk over samples).
    """
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.text] = counts.get(sample.text, 0) + 1

    def mean(text: str) -> float:
        total = sum(
            count * metric.sentence_score(text, [other]).score
            for other, count in counts.items()
        )
        return total / len(samples)

    found = different_texts(samples, len(samples))
    found = [replace(sample, score=mean(sample.text)) for sample in found]
    return sorted(found, key=lambda sample: -sample.score)


def joined(parts: Sequence[Hypothesis], spaces: Sequence[str]) -> Hypothesis:
    """Puts the outputs for the sentences of a text together.

    Args:
        parts: The best hypothesis of each sentence.
        spaces: What stood behind each sentence.

    Returns:
        One hypothesis: texts with those spaces between, scores and log-probabilities
        added, tokens one after the other without the inner ENDs; no attention.
    """
    if len(parts) == 1:
        return parts[0]
    text = "".join(part.text + space for part, space in zip(parts, spaces, strict=True))
    kept = [
        [place for place, token_id in enumerate(part.ids) if token_id != END_ID]
        for part in parts[:-1]
    ] + [list(range(len(parts[-1].ids)))]
    ids = tuple(p.ids[i] for p, places in zip(parts, kept, strict=True) for i in places)
    tokens = tuple(
        p.tokens[i] for p, places in zip(parts, kept, strict=True) for i in places
    )
    return Hypothesis(
        text=text.strip(),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        ids=ids,
        tokens=tokens,
        source_tokens=tuple(token for part in parts for token in part.source_tokens),
        finished=all(part.finished for part in parts),
        truncated_source=any(part.truncated_source for part in parts),
    )


def warn_cut(what: str, cut: int, total: int, limit: int | None) -> None:
    """Warns of texts that were cut, if there are any, as the caller's caller.

    Args:
        what: What the texts are.
        cut: How many were cut.
        total: How many there are.
        limit: Most tokens that the model can hold.
    """
    if cut:
        warnings.warn(
            f"{cut} of {total} {what} have more than the {limit:,} tokens that the "
            "model can hold; they were cut.",
            stacklevel=3,
        )
