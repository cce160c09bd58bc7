"""Scores of decoded text against references, comparable with published numbers.

BLEU and chrF come from sacreBLEU, with their signatures. All texts, hypotheses and
references alike, first pass through one rule: Unicode NFC, and every run of white
space, the no-break spaces of French typography included, becomes one space. Metrics
see text only, never model tokens. BLEU, chrF and all shares are between 0 and 100.
"""

import importlib.util
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from keras_seq2seq.lines import write_lines

METRICS = ("bleu", "chrf", "exact_match", "wer", "per")
DEFAULT_METRICS = ("bleu", "chrf", "exact_match", "wer")
# The tokenizers of sacreBLEU that need no download.
BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab")
_MECAB_PACKAGES = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}
# Languages whose words are not what spaces separate; the others go by "13a".
_LANGUAGE_TOKENIZERS = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    "th": "char",
    "lo": "char",
    "km": "char",
    "my": "char",
}
_SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh",
    "HANGUL": "ko",
    "THAI": "th",
    "LAO": "lo",
    "KHMER": "km",
    "MYANMAR": "my",
}
# What is left of subwords and special tokens when text was not detokenized.
_MODEL_MARKS = ("\u2581", " ##", "@@ ", "<unk>", "<s>", "</s>", "<pad>", "\u2047")

References = Sequence[str] | Sequence[Sequence[str]]


def evaluate_texts(
    hypotheses: Sequence[str],
    references: References,
    *,
    tokenize: str | None = None,
    language: str | None = None,
    lowercase: bool = False,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> dict[str, Any]:
    """Score detokenized texts, one hypothesis for each entry of the references.

    An empty hypothesis counts, with score 0. An empty reference counts too: only an
    empty hypothesis equals it, and it adds nothing to BLEU's matches. Both numbers are
    in the result. Corpora so short that no text has four tokens have BLEU 0 by
    sacreBLEU's rule, even where hypothesis and reference are equal.

    Args:
        hypotheses: One text for each sentence.
        references: For each sentence a text, or a list of alternative texts.
        tokenize: Tokenizer of BLEU, one of `BLEU_TOKENIZERS`; `"none"` for text that
            is tokenized already. By default it follows `language`.
        language: Two-letter code of the target language, such as `"ja"`. By default
            the script of the references decides.
        lowercase: Whether case is ignored, by every metric.
        metrics: What to compute, of `METRICS`. `wer` is the share of sentences that
            are not exactly right, as grapheme-to-phoneme results give it (the words
            are the sentences there); `per` is the edit distance over tokens between
            spaces, divided by the number of reference tokens.

    Returns:
        A dict with one number for each metric, `bleu_signature` and
        `chrf_signature`, the counts `sentences`, `empty_hypotheses` and
        `empty_references`, and `notes`, a list of sentences about what looks wrong.

    Raises:
        TypeError: If a single string was given in place of a list.
        ValueError: If the counts differ, there is nothing to score, or a metric or a
            tokenizer is unknown or not installed.
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown or isinstance(metrics, str):
        raise ValueError(
            f"`metrics` must be a list of names of {', '.join(METRICS)}. "
            f"Received: {metrics!r}."
        )
    texts, alternatives = _check_texts(hypotheses, references)
    notes = _notes(texts, alternatives)
    result: dict[str, Any] = {
        "sentences": len(texts),
        "empty_hypotheses": sum(not text for text in texts),
        "empty_references": sum(not any(group) for group in alternatives),
    }
    # sacreBLEU wants one list for each alternative, with None where there is none.
    streams = [list(stream) for stream in zip_longest(*alternatives)]
    if "bleu" in metrics:
        from sacrebleu.metrics import BLEU

        tokenizer, note = bleu_tokenizer(tokenize, language, alternatives)
        notes += [note] if note else []
        bleu = BLEU(lowercase=lowercase, tokenize=tokenizer, force=True)
        score = bleu.corpus_score(texts, streams)
        result["bleu"] = float(score.score)
        if not score.totals[-1]:
            notes.append(
                "No hypothesis has four tokens, so BLEU is 0 by sacreBLEU's rule: "
                "look at the other numbers."
            )
        result["bleu_signature"] = bleu.get_signature().format()
    if "chrf" in metrics:
        from sacrebleu.metrics import CHRF

        chrf = CHRF(lowercase=lowercase)
        result["chrf"] = float(chrf.corpus_score(texts, streams).score)
        result["chrf_signature"] = chrf.get_signature().format()
    if lowercase:
        texts = [text.lower() for text in texts]
        alternatives = [[text.lower() for text in group] for group in alternatives]
    shares = {
        "exact_match": exact_match,
        "wer": word_error_rate,
        "per": token_error_rate,
    }
    for name, function in shares.items():
        if name in metrics:
            result[name] = function(texts, alternatives)
    result["notes"] = notes
    return result


def exact_match(hypotheses: Sequence[str], references: References) -> float:
    """Return the percentage of hypotheses equal to one of their references.

    Args:
        hypotheses: One text for each sentence.
        references: For each sentence a text, or a list of alternative texts.

    Returns:
        A number between 0 and 100.

    Raises:
        TypeError: If a single string was given in place of a list.
        ValueError: If the counts differ or there is nothing to score.
    """
    texts, alternatives = _check_texts(hypotheses, references)
    right = sum(text in group for text, group in zip(texts, alternatives, strict=True))
    return 100.0 * right / len(texts)


def word_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Return the percentage of hypotheses equal to none of their references.

    This is the word error rate of grapheme-to-phoneme conversion, where each line is
    the pronunciation of one word. It is not the edit distance of speech recognition:
    `token_error_rate` on word-tokenized text is.

    Args:
        hypotheses: One text for each word.
        references: For each word a pronunciation, or a list of alternatives.

    Returns:
        A number between 0 and 100.
    """
    return 100.0 - exact_match(hypotheses, references)


def token_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Return edits per hundred reference tokens, tokens being split at white space.

    Where a sentence has several references, the one with the fewest edits counts.

    Args:
        hypotheses: One text for each sentence, such as a phone sequence.
        references: For each sentence a text, or a list of alternative texts.

    Returns:
        A number from 0 up; above 100 where hypotheses are much too long.

    Raises:
        TypeError: If a single string was given in place of a list.
        ValueError: If the counts differ or there is nothing to score.
    """
    texts, alternatives = _check_texts(hypotheses, references)
    edits = length = 0
    for text, group in zip(texts, alternatives, strict=True):
        tokens = text.split()
        distance, size = min(
            (_edit_distance(tokens, reference.split()), len(reference.split()))
            for reference in group
        )
        edits += distance
        length += size
    if length == 0:
        return 0.0 if edits == 0 else 100.0
    return 100.0 * edits / length


def bleu_tokenizer(
    tokenize: str | None,
    language: str | None,
    references: Sequence[Sequence[str]],
) -> tuple[str, str | None]:
    """Choose sacreBLEU's tokenizer by name, else by language, else by script.

    Args:
        tokenize: The tokenizer that the user wants, or None.
        language: Two-letter code of the target language, or None.
        references: Lists of reference texts, whose script decides if both are None.

    Returns:
        The tokenizer's name, and a note where it is not what the language wants.

    Raises:
        ValueError: If `tokenize` is unknown, or needs a package that is missing.
    """
    if tokenize is not None:
        if tokenize not in BLEU_TOKENIZERS:
            raise ValueError(
                f"`tokenize` must be one of {', '.join(BLEU_TOKENIZERS)}. "
                f"Received: {tokenize!r}."
            )
        if not _installed(tokenize):
            raise ValueError(_missing_package(tokenize))
        wanted = _LANGUAGE_TOKENIZERS.get(language or _main_language(references))
        if wanted is not None and tokenize in ("13a", "intl"):
            return tokenize, (
                f"BLEU was computed with tokenize={tokenize!r}, but the references "
                f"put no spaces between words: use tokenize={wanted!r}, or read chrF."
            )
        return tokenize, None
    code = (language or _main_language(references)).lower().split("_")[0].split("-")[0]
    wanted = _LANGUAGE_TOKENIZERS.get(code, "13a")
    if _installed(wanted):
        return wanted, None
    return "char", (
        f"BLEU is computed over characters. {_missing_package(wanted)} Scores with "
        "different tokenizers cannot be compared; the signature names it."
    )


def evaluate(
    translator: Any,
    pairs: Iterable[tuple[str, str]],
    *,
    tokenize: str | None = None,
    language: str | None = None,
    lowercase: bool = False,
    metrics: Sequence[str] = DEFAULT_METRICS,
    **decoding: Any,
) -> dict[str, Any]:
    """Decode the sources of a test set and score the result.

    Args:
        translator: What `keras_seq2seq.load` returned, or anything with the methods
            `translate` and `score` of `pipelines.Translator`.
        pairs: Sources with their references.
        tokenize: Tokenizer of BLEU, see `evaluate_texts`.
        language: Target language, see `evaluate_texts`.
        lowercase: Whether case is ignored.
        metrics: What to compute, see `evaluate_texts`.
        **decoding: Options of `Translator.translate`, such as `num_beams`.

    Returns:
        The dict of `evaluate_texts`, with `perplexity` and `target_tokens` (of the
        references, from token totals) and `unfinished`, the number of hypotheses that
        were cut at the length limit.

    Raises:
        ValueError: If there are no pairs, or an option is wrong.
    """
    sources, references = [], []
    for source, reference in pairs:
        sources.append(source)
        references.append(reference)
    if not sources:
        raise ValueError("`pairs` must have at least one pair. Received: none.")
    if tokenize is not None:
        bleu_tokenizer(tokenize, language, [])  # a mistake here costs no decoding
    best = [found[0] for found in translator.translate(sources, **decoding)]
    result = evaluate_texts(
        [hypothesis.text for hypothesis in best],
        references,
        tokenize=tokenize,
        language=language,
        lowercase=lowercase,
        metrics=metrics,
    )
    notes = result.pop("notes")
    from keras_seq2seq.scoring import perplexity

    scored = translator.score(sources, references)
    result["target_tokens"] = sum(score.num_tokens for score in scored)
    result["perplexity"] = perplexity(scored)
    result["unfinished"] = sum(not hypothesis.finished for hypothesis in best)
    if result["unfinished"]:
        notes.append(
            f"{result['unfinished']} of {len(best)} outputs were cut at the length "
            "limit before the model ended them."
        )
    result["notes"] = notes
    return result


def result_lines(result: dict[str, Any]) -> list[str]:
    """Lay the numbers of a result out as a table, signatures beside their scores.

    Args:
        result: What `evaluate` or `evaluate_texts` returned.

    Returns:
        Lines of text.
    """
    rows = [("sentences", f"{result['sentences']:,}", "")]
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF")):
        if name in result:
            signature = result[f"{name}_signature"]
            rows.append((label, f"{result[name]:.2f}", signature))
    for name, label, meaning in (
        ("exact_match", "exact match", "outputs equal to a reference"),
        ("wer", "WER", "outputs equal to no reference"),
        ("per", "PER", "edits for each 100 reference tokens"),
    ):
        if name in result:
            rows.append((label, f"{result[name]:.2f} %", meaning))
    if "perplexity" in result:
        tokens = f"of {result['target_tokens']:,} reference tokens"
        rows.append(("perplexity", f"{result['perplexity']:.3f}", tokens))
    lines = [f"{label:<13}{value:>10}  {note}".rstrip() for label, value, note in rows]
    return lines + [f"note: {note}" for note in result.get("notes", [])]


def write_results(path: str | Path, result: dict[str, Any]) -> None:
    """Write a result as a JSON file, whole or not at all.

    Args:
        path: The file, replaced if it exists.
        result: What `evaluate` or `evaluate_texts` returned.
    """
    text = json.dumps(result, ensure_ascii=False, indent=2, allow_nan=True)
    write_lines(path, text.split("\n"))


def _check_texts(
    hypotheses: Sequence[str], references: References
) -> tuple[list[str], list[list[str]]]:
    """Check types and counts; return tidy texts and lists of alternatives."""
    for name, value in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(value, str | bytes):
            raise TypeError(
                f"`{name}` must be a list of texts, one for each sentence. Received "
                f"one string: {value[:40]!r}. Put it in a list."
            )
    hypotheses, references = list(hypotheses), list(references)
    if len(hypotheses) != len(references):
        raise ValueError(
            "`hypotheses` and `references` must have one entry for each sentence. "
            f"Received: {len(hypotheses)} hypotheses, {len(references)} references."
        )
    if not len(hypotheses):
        raise ValueError("There is nothing to score: `hypotheses` is empty.")
    texts, alternatives = [], []
    for index, (text, group) in enumerate(zip(hypotheses, references, strict=True)):
        options = [group] if isinstance(group, str) else list(group)
        if not isinstance(text, str) or not all(isinstance(o, str) for o in options):
            raise TypeError(
                "Hypotheses must be strings, and references strings or lists of "
                f"strings. Received at index {index}: {text!r} and {group!r}."
            )
        if not options:
            raise ValueError(
                f"`references` must have at least one text for each sentence. "
                f"Received at index {index}: an empty list."
            )
        texts.append(_tidy(text))
        alternatives.append([_tidy(option) for option in options])
    return texts, alternatives


def _tidy(text: str) -> str:
    """Bring a text to NFC with single spaces; `str.split` knows no-break spaces."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the number of insertions, deletions and substitutions (Levenshtein)."""
    row = list(range(len(right) + 1))
    for i, token in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(right, start=1):
            substitution = diagonal + (token != other)
            diagonal = row[j]
            row[j] = min(substitution, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def _main_language(references: Sequence[Sequence[str]]) -> str:
    """Return a code for the script of most letters; "" for those with word spaces."""
    counts: Counter[str] = Counter()
    for group in references[:1000]:
        for character in group[0]:
            if character.isalpha():
                script = unicodedata.name(character, "?").split()[0]
                counts[_SCRIPTS.get(script, "")] += 1
    # Japanese mixes kana with Chinese characters, of which there may be more.
    if counts["ja"] * 10 > counts["zh"] > 0:
        counts["ja"] += counts.pop("zh")
    return counts.most_common(1)[0][0] if counts else ""


def _installed(tokenizer: str) -> bool:
    package = _MECAB_PACKAGES.get(tokenizer)
    return package is None or importlib.util.find_spec(package) is not None


def _missing_package(tokenizer: str) -> str:
    extra = tokenizer.split("-")[0]
    return (
        f"BLEU's tokenizer {tokenizer!r} is not installed: "
        f"pip install 'sacrebleu[{extra}]'."
    )


def _notes(texts: list[str], alternatives: list[list[str]]) -> list[str]:
    """Say what makes scores incomparable or shows a model that ignores its input."""
    notes = []
    total = len(texts)
    firsts = [group[0] for group in alternatives]
    for name, lines in (("hypotheses", texts), ("references", firsts)):
        # sacreBLEU's own sign of tokenized text, at a share in place of 100 lines.
        tokenized = sum(line.endswith(" .") for line in lines)
        if tokenized * 10 >= total:
            notes.append(
                f"{tokenized} of {total} {name} end in ' .' and look tokenized: BLEU "
                "of tokenized text cannot be compared with BLEU of plain text."
            )
        marks = [m for m in _MODEL_MARKS if any(m in line for line in lines)]
        if marks:
            notes.append(
                f"Some {name} contain {', '.join(map(repr, marks))}: detokenize and "
                "remove special tokens before scoring."
            )
    empty = sum(not text for text in texts)
    if empty:
        notes.append(f"{empty} of {total} hypotheses are empty.")
    text, count = Counter(texts).most_common(1)[0]
    if total >= 10 and text and count > total / 2 and Counter(firsts)[text] < count / 2:
        notes.append(
            f"{count} of {total} hypotheses are the same text, {text[:40]!r}: the "
            "model hardly looks at its input."
        )
    return notes
