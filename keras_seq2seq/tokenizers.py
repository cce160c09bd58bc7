"""SentencePiece tokenizers: between cleaned text and ids, in both directions.

One serialised SentencePiece model holds everything that turns text into ids, the
normal form included, so Python, the exported graph and a phone app that load the same
bytes give the same ids.
"""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from keras_seq2seq.normalization import SPACE_PIECE, guarded_text
from keras_seq2seq.tokenizer_training import UNKNOWN_TEXT, train_model
from keras_seq2seq.untrusted import (
    TOKENIZER_LIMIT,
    file_inside,
    read_json,
    read_limited,
)

PAD_ID, UNK_ID, START_ID, END_ID = 0, 1, 2, 3

# Ids are decoded behind an unknown one, whose text is then taken away together with the
# space before and behind: versions of SentencePiece differ in how many of the leading
# spaces of a text they drop, but not within it.
UNKNOWN_START = re.compile(f"^ ?{UNKNOWN_TEXT} ?")


class Tokenizer:
    """Text to ids and back, by one SentencePiece model.

    Ids 0 to 3 are PAD, UNK, START and END; user symbols follow. Text never encodes to
    PAD, START, END or a user symbol, whatever it spells: those are put in as ids.

    What survives `decode(encode(text))`, if no character is unknown:

    * `"nfc"` and `"nfkc"`: the text in that normal form, with runs of white space made
      one space and none at the ends. Tabs, line ends, other controls that are white
      space and U+2581 count as a space; other control characters and U+FEFF vanish.
      U+200C, U+200D and all accents stay; no-break spaces stay under `"nfc"`.
    * `"identity"`: the text as it is, each space kept. Only U+2581 becomes a space. A
      tab or line end is an unknown character here unless `byte_fallback` is on.

    In every mode NUL is dropped, a lone surrogate becomes U+FFFD, and text of nothing
    but white space has no ids. The normal forms are rules of the model over letters
    with their marks in any order. Where a mark that combines follows one that doesn't,
    the two stay as typed.

    Attributes:
        vocabulary_size: Number of pieces, the real one.
        fingerprint: SHA-256 of the model, in hexadecimal.
        symbols: Id of each user symbol.
        hidden_ids: PAD, START and the symbols: ids that decode to nothing.

    Args:
        model_bytes: A serialised SentencePiece model with ids 0 to 3 as above.
        settings: What the model was trained with, kept for the record.

    Raises:
        ValueError: If the bytes are no such model.
    """

    def __init__(
        self, model_bytes: bytes, settings: Mapping[str, Any] | None = None
    ) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(
                model_proto=model_bytes
            )
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                "`model_bytes` must be a serialised SentencePiece model. Received: "
                f"{len(model_bytes)} bytes that cannot be read as one."
            ) from error
        processor = self._processor
        received = (
            processor.pad_id(),
            processor.unk_id(),
            processor.bos_id(),
            processor.eos_id(),
        )
        if received != (PAD_ID, UNK_ID, START_ID, END_ID):
            raise ValueError(
                "The SentencePiece model must have the ids pad=0, unk=1, bos=2, eos=3. "
                f"Received: pad={received[0]}, unk={received[1]}, bos={received[2]}, "
                f"eos={received[3]}. Train it by `Tokenizer.train`."
            )
        self.model_bytes = bytes(model_bytes)
        self.settings: dict[str, Any] = dict(settings or {})
        self.vocabulary_size: int = processor.get_piece_size()
        self.fingerprint: str = hashlib.sha256(self.model_bytes).hexdigest()
        self.symbols: dict[str, int] = {
            processor.id_to_piece(index): index
            for index in range(END_ID + 1, self.vocabulary_size)
            if processor.is_control(index)
        }
        self.hidden_ids = frozenset((PAD_ID, START_ID, *self.symbols.values()))

    @classmethod
    def from_bytes(cls, model_bytes: bytes) -> "Tokenizer":
        """Return the tokenizer of a serialised model.

        Args:
            model_bytes: What `model_bytes` of another tokenizer holds.

        Raises:
            ValueError: If the bytes are no such model.
        """
        return cls(model_bytes)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocabulary_size: int = 8000,
        model_type: str = "unigram",
        normalization: str = "nfc",
        lowercase: bool = False,
        character_coverage: float = 1.0,
        byte_fallback: bool = False,
        symbols: Sequence[str] = (),
        max_line_length: int = 4096,
        max_lines: int = 2_000_000,
        seed: int = 0,
    ) -> "Tokenizer":
        """Train a tokenizer; the same texts and settings give the same bytes.

        A vocabulary larger than the texts allow becomes the largest possible one, with
        a warning for `"unigram"` and `"bpe"`; read the real size from
        `vocabulary_size` of the result. `"char"` has one piece for each character and
        `"word"` the most frequent words between spaces.

        Args:
            texts: Lines of text, read once.
            vocabulary_size: The most pieces to have, ids 0 to 3 and symbols included.
            model_type: `"unigram"`, `"bpe"`, `"char"`, or `"word"` for text that is
                split into tokens already.
            normalization: `"nfc"`, `"nfkc"`, or `"identity"` for none.
            lowercase: Whether text is lower-cased, by Unicode's rules and keeping
                accents, in training and use.
            character_coverage: The share of characters, 0.98 to 1, that must have a
                piece of their own.
            byte_fallback: Whether what has no piece is spelt in bytes rather than
                unknown; takes 256 pieces. Not for `"word"`.
            symbols: Names of further ids, such as turn markers. They get the ids from 4
                on, can't be typed, and decode to nothing.
            max_line_length: A longer line is cut in parts of so many characters.
            max_lines: Of more lines than that, a sample is used.
            seed: Chooses that sample.

        Raises:
            ValueError: If an argument is out of range, there is no text, or the
                vocabulary is too small for the characters.
        """
        settings: dict[str, Any] = {
            "model_type": model_type,
            "normalization": normalization,
            "lowercase": lowercase,
            "character_coverage": character_coverage,
            "byte_fallback": byte_fallback,
        }
        model_bytes = train_model(
            texts,
            vocabulary_size=vocabulary_size,
            symbols=symbols,
            max_line_length=max_line_length,
            max_lines=max_lines,
            seed=seed,
            special_ids=(PAD_ID, UNK_ID, START_ID, END_ID),
            **settings,
        )
        return cls(model_bytes, settings)

    def encode(self, text: str | Iterable[str]) -> Any:
        """Turn text into ids, without START or END.

        Args:
            text: A string, or an iterable of strings.

        Returns:
            A list of ids for a string, a list of such lists for an iterable. A string
            of nothing but white space gives no ids.

        Raises:
            TypeError: If something else than a string comes.
        """
        if isinstance(text, str):
            return self._processor.encode(guarded_text(text))
        if isinstance(text, bytes):
            raise TypeError(
                "`text` must be a string or an iterable of strings. Received: bytes. "
                "Decode them first."
            )
        return self._processor.encode([guarded_text(line) for line in text])

    def decode(self, ids: Iterable[Any], *, keep_specials: bool = False) -> Any:
        """Turn ids into text.

        Args:
            ids: Ids of one text, or an iterable of such sequences.
            keep_specials: Whether PAD, START, END and symbols appear by name, and text
                behind END is shown. Otherwise they are left out and END ends the text.

        Returns:
            A string, or a list of strings for a list of sequences.

        Raises:
            ValueError: If an id is outside the vocabulary.
        """
        ids = list(ids)
        if ids and np.ndim(ids[0]):
            return [self.decode(row, keep_specials=keep_specials) for row in ids]
        checked = self._checked(ids)
        if keep_specials:
            return self._decode_with_specials(checked)
        if END_ID in checked:
            checked = checked[: checked.index(END_ID)]
        return self._decode_text([i for i in checked if i not in self.hidden_ids])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id, where U+2581 stands for a space.

        Args:
            ids: Ids of one text.

        Raises:
            ValueError: If an id is outside the vocabulary.
        """
        return [self._processor.id_to_piece(index) for index in self._checked(ids)]

    @property
    def word_start_id(self) -> int | None:
        """Id of the space that each text begins with where tokens are characters.

        None for other kinds of tokens.
        """
        if self.settings.get("model_type") != "char":
            return None
        return int(self._processor.piece_to_id("\u2581"))

    def normalize(self, text: str) -> str:
        """Return the text as the model sees it before it is cut into pieces.

        Args:
            text: Any string.
        """
        normalized = self._processor.normalize(guarded_text(text))
        return normalized.removeprefix(SPACE_PIECE).replace(SPACE_PIECE, " ")

    def _checked(self, ids: Iterable[Any]) -> list[int]:
        checked = [int(index) for index in ids]
        for index in checked:
            if not 0 <= index < self.vocabulary_size:
                raise ValueError(
                    f"`ids` must be between 0 and {self.vocabulary_size - 1}, the size "
                    f"of the vocabulary less one. Received: {index}."
                )
        return checked

    def _decode_text(self, ids: list[int]) -> str:
        return UNKNOWN_START.sub("", self._processor.decode([UNK_ID, *ids]), count=1)

    def _decode_with_specials(self, ids: list[int]) -> str:
        parts = []
        specials = self.hidden_ids | {END_ID}
        for special, group in itertools.groupby(ids, specials.__contains__):
            run = list(group)
            parts += self.pieces(run) if special else [self._decode_text(run)]
        return " ".join(part for part in parts if part)


class TokenizerPair:
    """The tokenizers of source and target, two or one and the same.

    Args:
        source: Tokenizer of the source side.
        target: Tokenizer of the target side; None where the source's serves both.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer | None = None) -> None:
        self.source = source
        self.target = source if target is None else target
        self.shared = self.source.fingerprint == self.target.fingerprint

    @classmethod
    def train(
        cls,
        pairs: Iterable[tuple[str, str]],
        *,
        shared: bool = False,
        vocabulary_size: int = 8000,
        source_vocabulary_size: int | None = None,
        target_vocabulary_size: int | None = None,
        model_type: str = "unigram",
        source_model_type: str | None = None,
        target_model_type: str | None = None,
        normalization: str = "nfc",
        lowercase: bool = False,
        character_coverage: float = 1.0,
        byte_fallback: bool = False,
        symbols: Sequence[str] = (),
        seed: int = 0,
    ) -> "TokenizerPair":
        """Train on the texts of a corpus; see `Tokenizer.train`.

        Args:
            pairs: Source and target texts. Read twice, or kept in memory where they
                can be read but once, if the vocabularies are separate.
            shared: Whether one vocabulary, of both sides' texts, serves both.
            vocabulary_size: Of the shared vocabulary, or of each side's.
            source_vocabulary_size: Another size for the source.
            target_vocabulary_size: Another size for the target.
            model_type: Of the shared model, or of each side's.
            source_model_type: Another type for the source.
            target_model_type: Another type for the target.
            normalization: Normal form of both.
            lowercase: Whether both lower-case.
            character_coverage: Share of characters with a piece, for both.
            byte_fallback: Whether both spell the unknown in bytes; a word model of one
                side goes without.
            symbols: Further ids of both.
            seed: Chooses the sample of a very large corpus.

        Raises:
            ValueError: If `shared` comes with settings of one side only, or a
                vocabulary can't be trained.
        """
        one_sided = {
            "source_vocabulary_size": source_vocabulary_size,
            "target_vocabulary_size": target_vocabulary_size,
            "source_model_type": source_model_type,
            "target_model_type": target_model_type,
        }
        given = [name for name, value in one_sided.items() if value is not None]
        if shared and given:
            raise ValueError(
                f"`{given[0]}` is for separate vocabularies. Received: shared=True, "
                f"{given[0]}={one_sided[given[0]]!r}. Set `vocabulary_size` and "
                "`model_type`, or shared=False."
            )

        def trained(texts: Iterable[str], size: int | None, kind: str | None):
            kind = kind or model_type
            return Tokenizer.train(
                texts,
                vocabulary_size=size or vocabulary_size,
                model_type=kind,
                normalization=normalization,
                lowercase=lowercase,
                character_coverage=character_coverage,
                byte_fallback=byte_fallback and (shared or kind != "word"),
                symbols=symbols,
                seed=seed,
            )

        if shared:
            return cls(trained(itertools.chain.from_iterable(pairs), None, None))
        if iter(pairs) is pairs:
            pairs = list(pairs)
        sources = (source for source, _ in pairs)
        targets = (target for _, target in pairs)
        return cls(
            trained(sources, source_vocabulary_size, source_model_type),
            trained(targets, target_vocabulary_size, target_model_type),
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the models and `tokenizer.json`, which describes them.

        Args:
            folder: Made if missing. Files of an earlier pair are replaced.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        description: dict[str, Any] = {"version": 1, "shared": self.shared}
        for side, tokenizer in (("source", self.source), ("target", self.target)):
            name = "shared.model" if self.shared else f"{side}.model"
            _write_whole(path / name, tokenizer.model_bytes)
            description[side] = {
                "file": name,
                "vocabulary_size": tokenizer.vocabulary_size,
                "sha256": tokenizer.fingerprint,
                "symbols": tokenizer.symbols,
                "settings": tokenizer.settings,
            }
        text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
        _write_whole(path / "tokenizer.json", text.encode("utf-8"))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "TokenizerPair":
        """Read what `save` wrote, from wherever the folder is now.

        Args:
            folder: The folder.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If a file isn't the one that `tokenizer.json` describes.
        """
        path = Path(folder)
        try:
            description = read_json(_existing(path / "tokenizer.json"))
            sides = [description["source"], description["target"]]
            if description["shared"]:
                sides = sides[:1]
            tokenizers = [_load_described(path, side) for side in sides]
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path / 'tokenizer.json'} must be a file that `TokenizerPair.save` "
                f"wrote. It cannot be read: {error}."
            ) from error
        return cls(*tokenizers)


def _load_described(folder: Path, description: dict[str, Any]) -> Tokenizer:
    named_by = f"{folder / 'tokenizer.json'}"
    path = _existing(file_inside(folder, description["file"], named_by))
    model_bytes = read_limited(path, TOKENIZER_LIMIT)
    received = hashlib.sha256(model_bytes).hexdigest()
    if received != description["sha256"]:
        raise ValueError(
            f"{path} is not the tokenizer of this folder. Expected SHA-256 "
            f"{description['sha256']} (tokenizer.json), found {received}. Restore the "
            "file that belongs to the model."
        )
    tokenizer = Tokenizer(model_bytes, description["settings"])
    if tokenizer.vocabulary_size != description["vocabulary_size"]:
        raise ValueError(
            f"{path} has {tokenizer.vocabulary_size} pieces but tokenizer.json says "
            f"{description['vocabulary_size']}. Both must come from one run folder."
        )
    return tokenizer


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(
            f"No tokenizer file {path}. Expected tokenizer.json and the .model files "
            "that it names, as `TokenizerPair.save` writes them."
        )
    return path


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
