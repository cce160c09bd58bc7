"""Training of SentencePiece models, made safe for small, large and odd corpora.

`Tokenizer.train` is the way in; here are the trainer's options and what it says when
it fails, put in terms of the arguments.
"""

import io
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import sentencepiece

from keras_seq2seq.normalization import (
    NORMALIZATIONS,
    guarded_text,
    normalization_options,
)

MODEL_TYPES = ("unigram", "bpe", "char", "word")
UNKNOWN_TEXT = "\u2047"  # what an unknown piece reads as in decoded text
# A word model's unknown piece stands for a whole word, so its space comes with it.
UNKNOWN_WORD_TEXT = " " + UNKNOWN_TEXT

_RESERVED_NAMES = ("<pad>", "<unk>", "<s>", "</s>")
# SentencePiece's trainer skips every line that holds one of these.
_TRAINER_RESERVED = str.maketrans({"\t": " ", "\u2047": " ", "\u2585": " "})
# A fixed number: the trainer's sums, and so its model, depend on it.
_TRAINER_THREADS = 4


def train_model(
    texts: Iterable[str],
    *,
    vocabulary_size: int,
    model_type: str,
    normalization: str,
    lowercase: bool,
    character_coverage: float,
    byte_fallback: bool,
    symbols: Sequence[str],
    max_line_length: int,
    max_lines: int,
    seed: int,
    special_ids: tuple[int, int, int, int],
) -> bytes:
    """Return a serialised SentencePiece model; see `Tokenizer.train`.

    Args:
        texts: Lines of text, read once.
        vocabulary_size: The most pieces.
        model_type: One of `MODEL_TYPES`.
        normalization: One of `NORMALIZATIONS`.
        lowercase: Whether the model lower-cases.
        character_coverage: Share of characters with a piece.
        byte_fallback: Whether the unknown is spelt in bytes.
        symbols: Names of control pieces.
        max_line_length: A longer line is cut in parts of so many characters.
        max_lines: Of more lines than that, a sample is used.
        seed: Chooses the sample.
        special_ids: Ids of padding, unknown, start and end.

    Raises:
        ValueError: If the texts can't be trained on in this way.
    """
    _check_arguments(
        vocabulary_size=vocabulary_size,
        model_type=model_type,
        normalization=normalization,
        character_coverage=character_coverage,
        byte_fallback=byte_fallback,
        symbols=symbols,
        max_line_length=max_line_length,
        max_lines=max_lines,
    )
    model = io.BytesIO()
    pad_id, unk_id, start_id, end_id = special_ids
    lines = _TrainingLines(texts, max_line_length, max_lines, seed)
    options: dict[str, Any] = {
        "sentence_iterator": iter(lines),
        "model_writer": model,
        "vocab_size": vocabulary_size,
        "hard_vocab_limit": False,
        # A char model would drop the rarest characters without a word: let it have
        # them all, and compare afterwards.
        "use_all_vocab": model_type == "char",
        "model_type": model_type,
        "character_coverage": character_coverage,
        "byte_fallback": byte_fallback,
        "control_symbols": list(symbols),
        "pad_id": pad_id,
        "unk_id": unk_id,
        "bos_id": start_id,
        "eos_id": end_id,
        "unk_surface": UNKNOWN_WORD_TEXT if model_type == "word" else UNKNOWN_TEXT,
        "remove_extra_whitespaces": normalization != "identity",
        "max_sentence_length": 4 * max_line_length + 4,  # counts bytes
        "num_threads": _TRAINER_THREADS,
        "minloglevel": 2,
    }
    with tempfile.TemporaryDirectory() as folder:
        options |= normalization_options(normalization, lowercase, folder)
        try:
            sentencepiece.SentencePieceTrainer.train(**options)
        except RuntimeError as error:
            raise _training_error(error, vocabulary_size) from error
    model_bytes = _without_rule_path(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    trained = processor.get_piece_size()
    if model_type == "char" and trained > vocabulary_size:
        raise _too_small(vocabulary_size, trained)
    if model_type in ("unigram", "bpe") and trained < vocabulary_size:
        warnings.warn(
            f"The texts allow {trained} pieces, fewer than the vocabulary_size="
            f"{vocabulary_size} asked for; the tokenizer has {trained}.",
            stacklevel=3,
        )
    if lines.cut:
        warnings.warn(
            f"{lines.cut} lines longer than {max_line_length} characters were cut in "
            "parts to train the tokenizer.",
            stacklevel=3,
        )
    return model_bytes


def _without_rule_path(model_bytes: bytes) -> bytes:
    """Take the name of the file of rules out of a model: it is another at each call.

    A model is a protocol buffer; the name is field 6, normalization_rule_tsv, of its
    field 3, normalizer_spec.
    """
    parts = []
    for number, raw, content in _protobuf_fields(model_bytes):
        if number == 3:
            kept = [part for field, part, _ in _protobuf_fields(content) if field != 6]
            content = b"".join(kept)
            raw = b"\x1a" + _varint(len(content)) + content
        parts.append(raw)
    return b"".join(parts)


def _protobuf_fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield number, all bytes and content of each field of a protocol buffer."""

    def read_varint(start: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = message[start]
            value |= (byte & 0x7F) << shift
            start, shift = start + 1, shift + 7
            if byte < 0x80:
                return value, start

    position = 0
    while position < len(message):
        key, start = read_varint(position)
        kind = key & 7
        if kind == 0:
            end = read_varint(start)[1]
        elif kind == 2:
            length, start = read_varint(start)
            end = start + length
        else:  # 1 is a fixed 8 bytes, 5 a fixed 4
            end = start + (8 if kind == 1 else 4)
        yield key >> 3, message[position:end], message[start:end]
        position = end


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _check_arguments(
    *,
    vocabulary_size: int,
    model_type: str,
    normalization: str,
    character_coverage: float,
    byte_fallback: bool,
    symbols: Sequence[str],
    max_line_length: int,
    max_lines: int,
) -> None:
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"`model_type` must be one of {', '.join(MODEL_TYPES)}. "
            f"Received: {model_type!r}."
        )
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"`normalization` must be one of {', '.join(NORMALIZATIONS)}. "
            f"Received: {normalization!r}."
        )
    if not 0.98 <= character_coverage <= 1:
        raise ValueError(
            "`character_coverage` must be between 0.98 and 1. "
            f"Received: {character_coverage}."
        )
    if byte_fallback and model_type == "word":
        raise ValueError(
            "`byte_fallback` is not for words: it would spell whole words, spaces "
            "included, in bytes. Received: byte_fallback=True, model_type='word'."
        )
    for name, value in (
        ("vocabulary_size", vocabulary_size),
        ("max_line_length", max_line_length),
        ("max_lines", max_lines),
    ):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {value}.")
    taken = set(_RESERVED_NAMES)
    for symbol in symbols:
        if not symbol or symbol in taken or not symbol.isprintable():
            raise ValueError(
                "`symbols` must be printable names, all different and none of "
                f"{', '.join(_RESERVED_NAMES)}. Received: {symbol!r}."
            )
        taken.add(symbol)


class _TrainingLines:
    """Texts as the trainer can take them; counts the lines that it cuts."""

    def __init__(
        self, texts: Iterable[str], max_line_length: int, max_lines: int, seed: int
    ) -> None:
        self._texts = texts
        self._max_line_length = max_line_length
        self._max_lines = max_lines
        self._seed = seed
        self.cut = 0

    def __iter__(self) -> Iterator[str]:
        # Reservoir sampling. The trainer's own gives another sample at each call.
        random = Random(self._seed)
        sample: list[str] = []
        for number, line in enumerate(self._lines()):
            if len(sample) < self._max_lines:
                sample.append(line)
            elif (place := random.randrange(number + 1)) < self._max_lines:
                sample[place] = line
        return iter(sample)

    def _lines(self) -> Iterator[str]:
        for text in self._texts:
            line = guarded_text(text).translate(_TRAINER_RESERVED)
            self.cut += len(line) > self._max_line_length
            for start in range(0, len(line), self._max_line_length):
                yield line[start : start + self._max_line_length]


def _training_error(error: RuntimeError, vocabulary_size: int) -> ValueError:
    message = str(error)
    sizes = re.search(r"required_chars\. (\d+) vs (\d+)", message)
    if sizes:
        return _too_small(vocabulary_size, int(sizes.group(2)))
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return ValueError(
            "`texts` must have at least one line with text to train a tokenizer. "
            "Received: none."
        )
    return ValueError(f"SentencePiece could not train on these texts: {message}")


def _too_small(vocabulary_size: int, minimum: int) -> ValueError:
    return ValueError(
        f"`vocabulary_size` must be at least {minimum} for the characters of these "
        f"texts. Received: {vocabulary_size}. Use a larger one, or lower "
        "`character_coverage` (0.9995, say) with or without `byte_fallback`."
    )
