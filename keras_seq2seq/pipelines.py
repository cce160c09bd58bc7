"""Text in, text out: a trained model with its tokenizers and decoding settings.

The only place that knows both text and models. `load` makes a `Translator` of a run
folder; `evaluation`, `export` and the command line work through it.
"""

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import keras
import numpy as np

from keras_seq2seq import models  # noqa: F401  (registers the classes to load)
from keras_seq2seq.batches import inference_batches, pad_rows, round_up
from keras_seq2seq.config import DecodingConfig, RunConfig, load_config
from keras_seq2seq.decoding import SearchResult, generate
from keras_seq2seq.forecaster import Forecaster
from keras_seq2seq.lines import clean_line
from keras_seq2seq.scoring import Score, TargetScorer, perplexity
from keras_seq2seq.series import Scaling
from keras_seq2seq.series_config import SeriesRunConfig
from keras_seq2seq.tokenizers import END_ID, TokenizerPair

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Hypothesis:
    """One output for one source.

    Args:
        text: The output, without special tokens.
        score: What hypotheses are ranked by, higher is better: the log-probability
            divided by the length penalty.
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


class Translator:
    """A trained model that turns source text into target text.

    Every text passes through the rules of training: `corpora.clean_line`, then the
    normal form inside the tokenizer. A text without a token (blank, or only characters
    that are removed) is answered by an empty text without asking the model.

    Args:
        model: A `Seq2Seq` model with its weights.
        tokenizers: The tokenizers that the model was trained with.
        config: The run's configuration, whose `[decoding]` table gives the defaults
            of `translate`; None for the package's defaults.

    Raises:
        ValueError: If the tokenizers' vocabulary sizes are not the model's.

    Example:
        translator = load("saved_models/quickstart")
        translator("3 mars 2024")
        translator(["3 mars 2024", "May 1st, 1999"], num_beams=4)
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizers: TokenizerPair,
        config: RunConfig | None = None,
    ) -> None:
        for side in ("source", "target"):
            found = getattr(tokenizers, side).vocabulary_size
            expected = getattr(model, f"{side}_vocabulary_size")
            if found != expected:
                raise ValueError(
                    f"The {side} tokenizer has {found:,} pieces but the model expects "
                    f"{expected:,}. They must come from the same run folder."
                )
        self.model = model
        self.tokenizers = tokenizers
        self.config = config
        self.decoding = DecodingConfig() if config is None else config.decoding
        self._scorer: TargetScorer | None = None

    @overload
    def __call__(self, text_or_texts: str, **options: Any) -> str: ...
    @overload
    def __call__(self, text_or_texts: Sequence[str], **options: Any) -> list[str]: ...
    def __call__(
        self, text_or_texts: str | Sequence[str], **options: Any
    ) -> str | list[str]:
        """Return the best output of one text, or of each of a list.

        Args:
            text_or_texts: A text or a list of texts.
            **options: Options of `translate`.

        Returns:
            A text for a text, a list of texts for a list.
        """
        if isinstance(text_or_texts, str):
            return self.translate([text_or_texts], **options)[0][0].text
        return [found[0].text for found in self.translate(text_or_texts, **options)]

    def translate(
        self,
        texts: Sequence[str],
        *,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        min_length: int | None = None,
        n_best: int = 1,
        batch_tokens: int | None = None,
        return_attention: bool = False,
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode texts in batches of similar length.

        No result depends on the other texts of the call. With `n_best` above 1 the
        texts of one list differ from each other; where fewer different ones were
        found, the list is shorter.

        Args:
            texts: Source texts, without line ends.
            num_beams: Width of the beam; 1 is greedy search.
            length_penalty: Exponent of the GNMT length penalty; 0 for none.
            max_length: Most tokens of an output, END included. By default it follows
                the length of the source (`max_length_ratio`, `max_length_offset`).
            min_length: Fewest tokens of an output before END.
            n_best: Number of hypotheses for each text; more than `num_beams` widens
                the beam unless `num_beams` was given.
            batch_tokens: Source tokens of a batch, padding included.
            return_attention: Whether hypotheses carry their attention weights.
            progress: Called with the number of texts each time a batch is done.

        Returns:
            For each text, in order, its hypotheses, best first.

        Raises:
            TypeError: If `texts` is one string or contains something else.
            ValueError: If an option is out of range.
        """
        options = self._options(
            num_beams, length_penalty, max_length, min_length, n_best, batch_tokens
        )
        sources = self._encode_sources(texts)
        found: list[list[Hypothesis]] = [[Hypothesis("", 0.0, 0.0)] for _ in sources]
        asked = [index for index, source in enumerate(sources) if source.ids]
        if progress is not None and len(asked) < len(sources):
            progress(len(sources) - len(asked))
        lengths = [len(sources[index].ids) for index in asked]
        for batch in inference_batches(
            lengths,
            batch_tokens=options.batch_tokens,
            max_width=self.model.max_positions,
        ):
            rows = [asked[i] for i in batch.rows]
            limits = [self._limit(len(sources[i].ids), options) for i in rows]
            # Rows that only fill the batch end after one token.
            limits += [1] * (batch.height - len(rows))
            result = generate(
                self.model,
                pad_rows([sources[i].ids for i in rows], batch.height, batch.width),
                num_beams=options.num_beams,
                max_length=round_up(max(limits), most=self.model.max_positions),
                length_limits=np.asarray(limits, dtype="int32"),
                min_length=options.min_length,
                length_penalty=options.length_penalty,
                # All of them, as some may differ in tokens but not in text.
                n_best=options.num_beams if n_best > 1 else 1,
                return_attention=return_attention,
            )
            for row, index in enumerate(rows):
                found[index] = self._hypotheses(result, row, sources[index], n_best)
            if progress is not None:
                progress(len(rows))
        return found

    def translate_lines(
        self, lines: Iterable[str], *, chunk_size: int = 2048, **options: Any
    ) -> Iterator[list[Hypothesis]]:
        """Decode a stream of any length, reading `chunk_size` texts ahead.

        Args:
            lines: Source texts.
            chunk_size: How many texts are read, sorted and decoded together.
            **options: Options of `translate`.

        Yields:
            For each text, in order, its hypotheses, best first.

        Raises:
            ValueError: If `chunk_size` is not positive or an option is out of range.
        """
        _check_count("chunk_size", chunk_size, 1)
        iterator = iter(lines)
        while chunk := list(islice(iterator, chunk_size)):
            yield from self.translate(chunk, **options)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        batch_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> list[Score]:
        """Return the log-probability that the model gives to each target.

        Targets too long for the model are cut, with a warning, and the score is that
        of the part kept.

        Args:
            sources: Source texts.
            targets: A target text for each source.
            batch_tokens: Tokens of a batch, padding included.
            progress: Called with the number of pairs each time a batch is done.

        Returns:
            For each pair the sum of token log-probabilities, END included, and the
            number of tokens.

        Raises:
            TypeError: If a side is one string or contains something else.
            ValueError: If the counts differ.
        """
        encoded = self._encode_sources(sources)
        labels, cut = self._encode_targets(targets)
        if len(encoded) != len(labels):
            raise ValueError(
                "`sources` and `targets` must have the same number of texts. "
                f"Received: {len(encoded)} sources, {len(labels)} targets."
            )
        _warn_cut("targets", cut, len(labels), self.model.max_positions)
        budget = self.decoding.batch_tokens if batch_tokens is None else batch_tokens
        _check_count("batch_tokens", budget, 1)
        if self._scorer is None:
            self._scorer = TargetScorer(self.model)
        ids = [source.ids or (END_ID,) for source in encoded]
        return self._scorer.score(ids, labels, batch_tokens=budget, progress=progress)

    def perplexity(self, pairs: Iterable[tuple[str, str]], **options: Any) -> float:
        """Return the perplexity of the targets, from totals over all their tokens.

        Args:
            pairs: Sources with their targets.
            **options: Options of `score`.

        Returns:
            exp of the negative log-probability per token, END included.

        Raises:
            ValueError: If there are no pairs.
        """
        sources, targets = [], []
        for source, target in pairs:
            sources.append(source)
            targets.append(target)
        return perplexity(self.score(sources, targets, **options))

    def _options(
        self,
        num_beams: int | None,
        length_penalty: float | None,
        max_length: int | None,
        min_length: int | None,
        n_best: int,
        batch_tokens: int | None,
    ) -> "_Options":
        """Fill in the run's defaults and check every value's range."""
        defaults = self.decoding
        _check_count("n_best", n_best, 1)
        if num_beams is None:
            num_beams = max(defaults.num_beams, n_best)
        options = _Options(
            num_beams=num_beams,
            length_penalty=(
                defaults.length_penalty if length_penalty is None else length_penalty
            ),
            max_length=max_length,
            min_length=defaults.min_length if min_length is None else min_length,
            batch_tokens=(
                defaults.batch_tokens if batch_tokens is None else batch_tokens
            ),
        )
        _check_count("num_beams", options.num_beams, 1)
        _check_count("min_length", options.min_length, 0)
        _check_count("batch_tokens", options.batch_tokens, 1)
        if n_best > options.num_beams:
            raise ValueError(
                f"`n_best` must be at most `num_beams`. Received: n_best={n_best}, "
                f"num_beams={options.num_beams}."
            )
        if not 0 <= options.length_penalty < math.inf:
            raise ValueError(
                "`length_penalty` must be a finite number of at least 0. Received: "
                f"{options.length_penalty}."
            )
        if max_length is not None:
            _check_count("max_length", max_length, 1)
            if max_length < options.min_length:
                raise ValueError(
                    "`max_length` must not be below `min_length`. Received: "
                    f"max_length={max_length}, min_length={options.min_length}."
                )
        return replace(options, length_penalty=float(options.length_penalty))

    def _limit(self, source_length: int, options: "_Options") -> int:
        """Return the most tokens that a source of this length may be answered with."""
        if options.max_length is not None:
            return self._fit(options.max_length)
        limit = self.decoding.length_limit(source_length)
        return self._fit(max(limit, options.min_length))

    def _fit(self, length: int) -> int:
        """Clamp a length to the model's table of positions, if it has one."""
        positions = self.model.max_positions
        return length if positions is None else min(length, positions)

    def _encode_sources(self, texts: Sequence[str]) -> list["_Source"]:
        """Encode texts, END appended; a text without a token gets no ids at all."""
        encoded = []
        for ids in self._encode(texts, "texts", self.tokenizers.source):
            kept = self._fit(len(ids) + 1) - 1 if ids else 0
            encoded.append(
                _Source((*ids[:kept], END_ID) if ids else (), kept < len(ids))
            )
        cut = sum(source.truncated for source in encoded)
        _warn_cut("sources", cut, len(encoded), self.model.max_positions)
        return encoded

    def _encode_targets(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Encode target texts, END appended, and count those that had to be cut."""
        encoded = self._encode(texts, "targets", self.tokenizers.target)
        labels = [[*ids, END_ID] for ids in encoded]
        kept = [label[: self._fit(len(label))] for label in labels]
        cut = sum(len(k) < len(label) for k, label in zip(kept, labels, strict=True))
        return kept, cut

    @staticmethod
    def _encode(texts: Sequence[str], name: str, tokenizer: Any) -> list[list[int]]:
        if isinstance(texts, str | bytes):
            raise TypeError(
                f"`{name}` must be a list of strings. Received one string: "
                f"{texts[:40]!r}. Put it in a list."
            )
        cleaned = []
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"`{name}` must contain strings only. Received at index {index}: "
                    f"{text!r}."
                )
            cleaned.append(clean_line(text))
        return tokenizer.encode(cleaned)

    def _hypotheses(
        self, result: SearchResult, row: int, source: "_Source", n_best: int
    ) -> list[Hypothesis]:
        """Make text of one row of a search, leaving out texts that came before."""
        found: dict[str, Hypothesis] = {}
        source_tokens = tuple(self.tokenizers.source.pieces(list(source.ids)))
        for n in range(result.ids.shape[1]):
            length = int(result.lengths[row, n])
            ids = [int(i) for i in result.ids[row, n, :length]]
            text = self.tokenizers.target.decode(ids)
            if text in found:
                continue
            attention = result.attention
            if attention is not None:
                attention = attention[row, n, :length, : len(source.ids)]
            found[text] = Hypothesis(
                text=text,
                score=float(result.scores[row, n]),
                log_prob=float(result.log_probs[row, n]),
                ids=tuple(ids),
                tokens=tuple(self.tokenizers.target.pieces(ids)),
                source_tokens=source_tokens,
                finished=bool(result.finished[row, n]),
                truncated_source=source.truncated,
                attention=attention,
            )
            if len(found) == n_best:
                break
        return list(found.values())


def load(run_folder: str | Path) -> Any:
    """Load a run folder that `train` wrote.

    Nothing in the folder is executed: no pickles, no Lambda layers.

    Args:
        run_folder: The folder; it may have been moved.

    Returns:
        A `Translator`, or for a run with `[series]` a `Forecaster`.

    Raises:
        FileNotFoundError: If the folder or one of its parts is missing.
        ValueError: If a part is damaged, or model and tokenizers do not belong
            together.
    """
    folder = Path(run_folder)
    _check_parts(folder, "", "run.toml")
    config = load_config(folder / "run.toml")
    is_series = isinstance(config, SeriesRunConfig)
    _check_parts(folder, "scaling.json" if is_series else "tokenizer", "model.keras")
    path = folder / "model.keras"
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # Keras raises anything from BadZipFile to KeyError here, by kind of damage.
        raise ValueError(
            f"{path} cannot be loaded; it is damaged, or not a model that this version "
            f"of keras_seq2seq wrote: {error}"
        ) from error
    try:
        if is_series:
            return Forecaster(model, Scaling.load(folder / "scaling.json"), config)
        return Translator(model, TokenizerPair.load(folder / "tokenizer"), config)
    except ValueError as error:
        raise ValueError(f"In {folder}: {error}") from None


def _check_parts(folder: Path, *parts: str) -> None:
    for part in parts:
        if not (folder / part).exists():
            raise FileNotFoundError(
                "`run_folder` must be a folder that `train` wrote, with run.toml, "
                "model.keras and tokenizer/ or scaling.json. Received: "
                f"{folder}, where {folder / part} does not exist."
            )


@dataclass(frozen=True)
class _Options:
    num_beams: int
    length_penalty: float
    max_length: int | None
    min_length: int
    batch_tokens: int


class _Source(NamedTuple):
    ids: tuple[int, ...]
    truncated: bool


def _check_count(name: str, value: int, least: int) -> None:
    try:
        valid = not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        valid = False
    if not valid:
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}. Received: {value!r}."
        )


def _warn_cut(what: str, cut: int, total: int, limit: int | None) -> None:
    if cut:
        warnings.warn(
            f"{cut} of {total} {what} have more than the {limit:,} tokens that the "
            "model can hold; they were cut.",
            stacklevel=3,
        )
