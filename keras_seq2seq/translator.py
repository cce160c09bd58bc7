"""Text in, text out: a trained model with its tokenizers and decoding settings."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, overload

import keras
import numpy as np

from keras_seq2seq.batches import (
    Batch,
    inference_batches,
    pad_rows,
    round_up,
    side_by_side,
)
from keras_seq2seq.config import DecodingConfig, RunConfig
from keras_seq2seq.decoding import (
    SearchResult,
    check_number,
    compiled_by_shape,
    generate,
    stream,
)
from keras_seq2seq.lines import clean_texts
from keras_seq2seq.outputs import (
    Hypothesis,
    Source,
    by_agreement,
    different_texts,
    joined,
    make_hypotheses,
    warn_cut,
    with_unknown_replaced,
)
from keras_seq2seq.requests import (
    PhraseEncoder,
    Request,
    constraint_columns,
    make_request,
    row_seeds,
)
from keras_seq2seq.scoring import Score, perplexity, score_targets
from keras_seq2seq.sentences import split_sentences
from keras_seq2seq.tokenizers import END_ID, TokenizerPair

Progress = Callable[[int], None]

# More than any text needs.
_NO_LIMIT = 2**30


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
        n_best: int = 1,
        max_length: int | None = None,
        seed: int | Sequence[int] | None = None,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str | Sequence[str]]] | None = None,
        banned: Sequence[Sequence[str]] | None = None,
        alternatives: bool = False,
        mbr_samples: int | None = None,
        replace_unknown: bool = False,
        return_attention: bool = False,
        return_token_scores: bool = False,
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Hypothesis]]:
        """Decode texts in batches of similar length.

        No result depends on the other texts of the call. With `n_best` above 1 the
        texts of one list differ from each other, but for samples; where fewer
        different ones were found, the list is shorter.

        Args:
            texts: Source texts, without line ends.
            n_best: Number of hypotheses for each text; more than `num_beams` widens
                the beam unless `num_beams` was given.
            max_length: Most tokens of an output, END included. By default it follows
                the length of the source (`max_length_ratio`, `max_length_offset`).
            seed: What samples are drawn by: one number for the call, or one for each
                text; None for others at each call.
            prefixes: How the output of each text starts.
            required: For each text a list of phrases that its output must hold; in
                place of a phrase, a list of phrases of which one must be held.
            banned: For each text a list of phrases that its output must not hold.
            alternatives: Whether the hypotheses differ in their first token after the
                prefix, and go on greedily.
            mbr_samples: Number of samples to draw of each text, to return those that
                agree most with all of them (minimum Bayes risk, by chrF).
            replace_unknown: Whether unknown tokens are replaced by the source's word
                that was attended to most.
            return_attention: Whether hypotheses carry their attention weights.
            return_token_scores: Whether they carry their tokens' log-probabilities.
            progress: Called with the number of texts each time a batch is done.
            **settings: Settings of `[decoding]` in place of the run's, such as
                `num_beams` or `temperature`; `top_k` and `top_p` alone mean a
                temperature of 1.

        Returns:
            For each text, in order, its hypotheses, best first.

        Raises:
            TypeError: If `texts` is one string or contains something else, or there
                is no such setting.
            ValueError: If an option is out of range.
        """
        request = make_request(
            self.decoding,
            settings,
            n_best=n_best,
            max_length=max_length,
            num_samples=mbr_samples,
            alternatives=alternatives,
            return_attention=return_attention or replace_unknown,
            return_token_scores=return_token_scores,
        )
        sources = self._encode_sources(texts)
        inputs = self._inputs(
            [self._limit(request, source) for source in sources],
            prefixes=prefixes,
            required=required,
            banned=banned,
        )
        seeds = row_seeds(seed, len(sources))
        if request.samples:
            inputs["seeds"] = seeds
        found: list[list[Hypothesis]] = [[Hypothesis("", 0.0, 0.0)] for _ in sources]
        asked = [index for index, source in enumerate(sources) if source.ids]
        if progress is not None and len(asked) < len(sources):
            progress(len(sources) - len(asked))
        batches = inference_batches(
            [len(sources[index].ids) for index in asked],
            batch_tokens=request.settings.batch_tokens,
            max_width=self.model.max_positions,
            exact=not compiled_by_shape(),
        )

        def search(batch: Batch) -> SearchResult:
            rows = [asked[i] for i in batch.rows]
            return self._search(request, sources, inputs, rows, batch)

        for batch, result in side_by_side(search, batches):
            rows = [asked[i] for i in batch.rows]
            for row, index in enumerate(rows):
                hypotheses = make_hypotheses(
                    result, row, sources[index], self.tokenizers
                )
                if replace_unknown:
                    hypotheses = [with_unknown_replaced(h) for h in hypotheses]
                if mbr_samples is not None:
                    hypotheses = by_agreement(hypotheses)
                elif not request.samples:
                    hypotheses = different_texts(hypotheses, n_best)
                found[index] = hypotheses[:n_best]
            if progress is not None:
                progress(len(rows))
        return found

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        chunk_size: int = 2048,
        seed: int | None = None,
        first: int = 0,
        constraints: Iterable[Mapping[str, Any]] | None = None,
        by_sentence: bool = False,
        **options: Any,
    ) -> Iterator[list[Hypothesis]]:
        """Decode a stream of any length, reading `chunk_size` texts ahead.

        Args:
            lines: Source texts.
            chunk_size: How many texts are read, sorted and decoded together.
            seed: What samples are drawn by; None for others at each call.
            first: Place of the first text, where those before were decoded earlier:
                samples go on as if they had been decoded now.
            constraints: For each line a mapping that may have `prefix`, `required`
                and `banned`: its entries of `prefixes`, `required` and `banned` of
                `translate`.
            by_sentence: Whether each text is split into sentences, which are decoded
                by themselves and put together again: for texts longer than those
                that the model was trained on.
            **options: Further options of `translate`.

        Yields:
            For each text, in order, its hypotheses, best first.

        Raises:
            ValueError: If `chunk_size` is not positive, an option is out of range,
                the constraints end before the lines, or more is asked of sentences
                than one output each.
        """
        check_number("chunk_size", chunk_size, 1, whole=True)
        if seed is None:
            seed = secrets.randbits(32)
        iterator = iter(lines)
        wanted = None if constraints is None else iter(constraints)
        while chunk := list(islice(iterator, chunk_size)):
            # By the place in the whole stream: the same for every chunk size.
            seeds = row_seeds(seed, len(chunk), first)
            first += len(chunk)
            asked: dict[str, Any] = {}
            if wanted is not None:
                asked = constraint_columns(list(islice(wanted, len(chunk))), chunk)
            if by_sentence:
                yield from self._by_sentence(chunk, seeds, **asked, **options)
            else:
                yield from self.translate(chunk, seed=seeds, **asked, **options)

    def _by_sentence(
        self, texts: Sequence[str], seeds: Sequence[int], **options: Any
    ) -> list[list[Hypothesis]]:
        """One hypothesis for each text, put together from those of its sentences."""
        per_text = ("prefixes", "required", "banned")
        if options.get("n_best", 1) > 1 or any(name in options for name in per_text):
            raise ValueError(
                "`by_sentence` gives one output for each text, without constraints. "
                f"Received: n_best={options.get('n_best', 1)}"
                f"{''.join(f', {name}' for name in per_text if name in options)}."
            )
        split = [split_sentences(text) for text in texts]
        sentences = [sentence for parts in split for sentence, _ in parts]
        own = [
            int(own_seed)
            for seed, parts in zip(seeds, split, strict=True)
            for own_seed in row_seeds(int(seed), len(parts))
        ]
        found = iter(self.translate(sentences, seed=own, **options))
        return [
            [joined([next(found)[0] for _ in parts], [space for _, space in parts])]
            for parts in split
        ]

    def stream(
        self,
        text: str,
        *,
        max_length: int | None = None,
        seed: int | None = None,
        prefix: str = "",
        banned: Sequence[str] = (),
        **settings: Any,
    ) -> Iterator[str]:
        """Decode one text and yield its output piece by piece, as it is written.

        The pieces together are what `translate` gives for the same options.

        Args:
            text: Source text.
            max_length: Most tokens of the output, END included.
            seed: What a sample is drawn by; None for another at each call.
            prefix: How the output starts.
            banned: Phrases that it must not hold.
            **settings: Settings of `[decoding]` in place of the run's; `num_beams`
                is 1.

        Yields:
            Pieces of text, none of them empty.

        Raises:
            TypeError: If `text` is no string, or there is no such setting.
            ValueError: If an option is out of range.
        """
        request = make_request(
            self.decoding, {"num_beams": 1, **settings}, max_length=max_length
        )
        (source,) = self._encode_sources([text])
        if not source.ids:
            return
        limit = self._limit(request, source)
        inputs = self._inputs(
            [limit],
            prefixes=[prefix] if prefix else None,
            banned=[banned] if banned else None,
        )
        seeds = row_seeds(seed, 1)
        if request.samples:
            inputs["seeds"] = seeds
        width = round_up(len(source.ids), most=self.model.max_positions)
        ids: list[int] = []
        shown = ""
        for step in stream(
            self.model,
            pad_rows([source.ids], 1, width),
            max_length=round_up(limit, most=self.model.max_positions),
            length_limits=[limit],
            **request.constants,
            **request.length_inputs([len(source.ids)]),
            **inputs,
        ):
            ids.append(int(step.token_ids[0]))
            written = self.tokenizers.target.decode(ids)
            # Half of a character that is spelt in bytes may still become another.
            half = written.endswith("\ufffd") and not step.done[0]
            if not half and written.startswith(shown) and written != shown:
                yield written[len(shown) :]
                shown = written

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
        warn_cut("targets", cut, len(labels), self.model.max_positions)
        budget = self.decoding.batch_tokens if batch_tokens is None else batch_tokens
        check_number("batch_tokens", budget, 1, whole=True)
        ids = [source.ids or (END_ID,) for source in encoded]
        return score_targets(
            self.model, ids, labels, batch_tokens=budget, progress=progress
        )

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

    def _inputs(self, limits: Sequence[int], **asked: Any) -> dict[str, np.ndarray]:
        """Ids of what is asked for each text, by the names of `SearchInputs`."""
        tokenizer = self.tokenizers.target
        encoder = PhraseEncoder(
            lambda texts: tokenizer.encode(clean_texts(texts, "phrases")),
            tokenizer.word_start_id,
        )
        return encoder.inputs(limits, **asked)

    def _search(
        self,
        request: Request,
        sources: Sequence[Source],
        inputs: dict[str, np.ndarray],
        rows: Sequence[int],
        batch: Batch,
    ) -> SearchResult:
        """Decode one batch, whose rows are filled up to its height."""
        lengths = [len(sources[row].ids) for row in rows]
        limits = [self._limit(request, sources[row]) for row in rows]
        own: dict[str, Any] = {n: value[list(rows)] for n, value in inputs.items()}
        own |= request.length_inputs(lengths)
        own["length_limits"] = np.asarray(limits, "int32")
        filling = batch.height - len(rows)
        own = {
            name: np.pad(value, ((0, filling), *[(0, 0)] * (value.ndim - 1)))
            for name, value in own.items()
        }
        # Rows that only fill the batch end after one token.
        own["length_limits"] = np.maximum(own["length_limits"], 1)
        return generate(
            self.model,
            pad_rows([sources[i].ids for i in rows], batch.height, batch.width),
            max_length=round_up(max(limits), most=self.model.max_positions),
            **request.constants,
            **own,
        )

    def _limit(self, request: Request, source: Source) -> int:
        """The most tokens of a source's output; of a blank one, nothing is asked."""
        return self._fit(request.limit(len(source.ids))) if source.ids else _NO_LIMIT

    def _fit(self, length: int) -> int:
        """Clamp a length to the model's table of positions, if it has one."""
        positions = self.model.max_positions
        return length if positions is None else min(length, positions)

    def _encode_sources(self, texts: Sequence[str]) -> list[Source]:
        """Encode texts, END appended; a text without a token gets no ids at all."""
        encoded = []
        for ids in self.tokenizers.source.encode(clean_texts(texts, "texts")):
            kept = self._fit(len(ids) + 1) - 1 if ids else 0
            encoded.append(
                Source((*ids[:kept], END_ID) if ids else (), kept < len(ids))
            )
        cut = sum(source.truncated for source in encoded)
        warn_cut("sources", cut, len(encoded), self.model.max_positions)
        return encoded

    def _encode_targets(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Encode target texts, END appended, and count those that had to be cut."""
        encoded = self.tokenizers.target.encode(clean_texts(texts, "targets"))
        labels = [[*ids, END_ID] for ids in encoded]
        kept = [label[: self._fit(len(label))] for label in labels]
        cut = sum(len(k) < len(label) for k, label in zip(kept, labels, strict=True))
        return kept, cut
