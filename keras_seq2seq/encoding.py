"""Encoded corpora: the ids of a corpus in memory-mapped files, written once.

Between tokenizers and datasets: a corpus of any size is read pair by pair and takes no
memory for its ids, then or later.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_seq2seq.tokenizers import END_ID, TokenizerPair
from keras_seq2seq.untrusted import read_json

_FORMAT = 1
_CHUNK = 1000  # pairs that are encoded at once


class EncodedCorpus:
    """The ids of a corpus, memory-mapped: opening takes no memory for the pairs.

    Each source and each target ends with END. `corpus[i]` is a pair of int32 arrays.

    Args:
        folder: A folder that `encode_corpus` wrote.

    Raises:
        FileNotFoundError: If the folder isn't there or incomplete.
        ValueError: If its files don't agree.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        description = self.folder / "corpus.json"
        if not description.is_file():
            raise FileNotFoundError(
                f"No encoded corpus in {self.folder}: corpus.json is missing. "
                "Write it by `encode_corpus`."
            )
        self.metadata: dict[str, Any] = read_json(description)
        self._ids = {}
        self._offsets = {}
        for side in ("source", "target"):
            self._ids[side] = _mapped(self.folder / f"{side}_ids.npy")
            self._offsets[side] = _mapped(self.folder / f"{side}_offsets.npy")
            received = (len(self._offsets[side]) - 1, len(self._ids[side]))
            expected = (self.metadata["kept"], self.metadata[f"num_{side}_tokens"])
            if received != expected:
                raise ValueError(
                    f"{self.folder} is damaged: corpus.json speaks of {expected[0]} "
                    f"pairs and {expected[1]} {side} tokens, the files hold "
                    f"{received[0]} and {received[1]}. Delete the folder."
                )

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "EncodedCorpus":
        """Return the corpus in a folder; the same as calling the class."""
        return cls(folder)

    def __len__(self) -> int:
        return self.metadata["kept"]

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"`index` must be below {len(self)}, the number of pairs. "
                f"Received: {index}."
            )
        return self._row("source", index), self._row("target", index)

    def _row(self, side: str, index: int) -> np.ndarray:
        index %= len(self)
        start, stop = self._offsets[side][index : index + 2]
        return self._ids[side][start:stop].astype(np.int32)

    def lengths(self, side: str) -> np.ndarray:
        """Return the number of ids of each row, END included, (pairs,) int32.

        Args:
            side: `"source"` or `"target"`.
        """
        return np.diff(self._offsets[side]).astype(np.int32)

    @property
    def num_source_tokens(self) -> int:
        """Number of source ids, END included."""
        return self.metadata["num_source_tokens"]

    @property
    def num_target_tokens(self) -> int:
        """Number of target ids, END included: what a pass predicts."""
        return self.metadata["num_target_tokens"]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all ids and lengths, in hexadecimal."""
        return self.metadata["fingerprint"]

    @property
    def counts(self) -> dict[str, int]:
        """Pairs read, kept, dropped and cut; read = kept + both kinds dropped."""
        names = (
            "read",
            "kept",
            "dropped_empty",
            "dropped_too_long",
            "cut_source",
            "cut_target",
        )
        return {name: self.metadata[name] for name in names}


def _mapped(path: Path) -> np.ndarray:
    """Opens a file of whole numbers; unlike `np.load`, this cannot unpickle at all."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise ValueError(
            f"{path} must be an array that `encode_corpus` wrote. It cannot be read: "
            f"{error}. Delete the folder."
        ) from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{path} must be a row of whole numbers. Received: an array of shape "
            f"{array.shape} and type {array.dtype}. Delete the folder."
        )
    return array


def encode_corpus(
    pairs: Iterable[tuple[str, str]],
    tokenizers: TokenizerPair,
    folder: str | os.PathLike[str],
    *,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    too_long: str = "drop",
    progress: Callable[[int], None] | None = None,
) -> EncodedCorpus:
    """Write the ids of a corpus to a folder, or reuse the folder if it has them.

    The folder appears whole or not at all. Memory use doesn't depend on the corpus.
    Pairs with a side that has no ids are dropped and counted.

    Args:
        pairs: Source and target texts. Texts that can be read again are compared with
            what the folder holds; an iterator is always encoded.
        tokenizers: Tokenizers of both sides.
        folder: Where the ids go; an encoding of something else there is replaced.
        max_source_length: The most ids of a source, END included.
        max_target_length: The most ids of a target, END included.
        too_long: `"drop"` leaves a longer pair out, `"cut"` shortens it, keeping END.
        progress: Called with the number of pairs read, now and then.

    Returns:
        The corpus.

    Raises:
        ValueError: If an argument is out of range or no pair is left.
    """
    if too_long not in ("drop", "cut"):
        raise ValueError(f'`too_long` must be "drop" or "cut". Received: {too_long!r}.')
    limits = {"source": max_source_length, "target": max_target_length}
    for side, limit in limits.items():
        if limit is not None and limit < 2:
            raise ValueError(
                f"`max_{side}_length` must be at least 2, a token and END. "
                f"Received: {limit}."
            )
    folder = Path(folder)
    settings = {
        "format": _FORMAT,
        "source_tokenizer": tokenizers.source.fingerprint,
        "target_tokenizer": tokenizers.target.fingerprint,
        "max_source_length": max_source_length,
        "max_target_length": max_target_length,
        "too_long": too_long,
    }
    if iter(pairs) is not pairs and _holds(folder, settings, pairs):
        return EncodedCorpus(folder)
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        counts = _write_corpus(pairs, tokenizers, temporary, limits, too_long, progress)
        description = json.dumps(settings | counts, indent=2) + "\n"
        (temporary / "corpus.json").write_text(description, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return EncodedCorpus(folder)


def _holds(folder: Path, settings: dict[str, Any], pairs: Iterable) -> bool:
    """Whether the folder has these texts in these settings."""
    try:
        metadata = EncodedCorpus(folder).metadata
    except (OSError, ValueError, KeyError):
        return False
    if {name: metadata.get(name) for name in settings} != settings:
        return False
    return texts_sha256(pairs) == metadata["texts_sha256"]


def texts_sha256(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the sum of pairs of texts that `EncodedCorpus.metadata` has, too.

    Args:
        pairs: Source and target texts.
    """
    texts = _TextHash()
    for source, target in pairs:
        texts.add(source, target)
    return texts.hexdigest()


class _TextHash:
    """SHA-256 of pairs of texts, where no two corpora share a byte sequence."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, source: str, target: str) -> None:
        for text in (source, target):
            data = text.encode("utf-8", "surrogatepass")
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _ArrayWriter:
    """Writes a one-dimensional .npy file whose length is known at the end only."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.size = 0
        self._dtype = np.dtype(dtype)
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        # NumPy leaves room in the header for the length to grow.
        header = np.lib.format.header_data_from_array_1_0(np.empty(0, self._dtype))
        header["shape"] = (self.size,)
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: Any) -> None:
        array = np.asarray(values, self._dtype)
        self._file.write(array.tobytes())
        self.size += len(array)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()


class _SideWriter:
    """Writes the ids and offsets of one side."""

    def __init__(self, folder: Path, side: str, vocabulary_size: int) -> None:
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        self.ids = _ArrayWriter(folder / f"{side}_ids.npy", dtype)
        self._offsets = _ArrayWriter(folder / f"{side}_offsets.npy", np.int64)
        self._offsets.append([0])

    def append(self, ids: list[int]) -> None:
        self.ids.append(ids)
        self._offsets.append([self.ids.size])

    def close(self) -> None:
        self.ids.close()
        self._offsets.close()


def _write_corpus(
    pairs: Iterable[tuple[str, str]],
    tokenizers: TokenizerPair,
    folder: Path,
    limits: dict[str, int | None],
    too_long: str,
    progress: Callable[[int], None] | None,
) -> dict[str, Any]:
    """Write both sides' files and return the counts."""
    counts = dict.fromkeys(("read", "kept", "dropped_empty", "dropped_too_long"), 0) | {
        "cut_source": 0,
        "cut_target": 0,
    }
    texts, ids_hash = _TextHash(), hashlib.sha256()
    writers = {
        "source": _SideWriter(folder, "source", tokenizers.source.vocabulary_size),
        "target": _SideWriter(folder, "target", tokenizers.target.vocabulary_size),
    }
    try:
        for chunk in _chunks(pairs):
            for pair in chunk:
                texts.add(*pair)
            encoded = zip(
                tokenizers.source.encode([source for source, _ in chunk]),
                tokenizers.target.encode([target for _, target in chunk]),
                strict=True,
            )
            for source_ids, target_ids in encoded:
                sides = {"source": source_ids, "target": target_ids}
                if not _fitted(sides, limits, too_long, counts):
                    continue
                for side, ids in sides.items():
                    writers[side].append(ids)
                    ids_hash.update(np.asarray([len(ids), *ids], "<i4").tobytes())
            if progress is not None:
                progress(counts["read"])
    finally:
        for writer in writers.values():
            writer.close()
    if not counts["kept"]:
        raise ValueError(
            f"`pairs` must have at least one pair to keep. Received: {counts['read']} "
            f"pairs, of which {counts['dropped_empty']} had an empty side and "
            f"{counts['dropped_too_long']} were too long."
        )
    return {
        **counts,
        "num_source_tokens": writers["source"].ids.size,
        "num_target_tokens": writers["target"].ids.size,
        "texts_sha256": texts.hexdigest(),
        "fingerprint": ids_hash.hexdigest(),
    }


def _chunks(pairs: Iterable[tuple[str, str]]) -> Iterable[list[tuple[str, str]]]:
    chunk: list[tuple[str, str]] = []
    for source, target in pairs:
        chunk.append((source, target))
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _fitted(
    sides: dict[str, list[int]],
    limits: dict[str, int | None],
    too_long: str,
    counts: dict[str, int],
) -> bool:
    """Count the pair, end both sides by END within the limits; whether to keep it."""
    counts["read"] += 1
    if not all(sides.values()):
        counts["dropped_empty"] += 1
        return False
    kept_ids = {side: limit - 1 for side, limit in limits.items() if limit is not None}
    long_sides = [side for side, most in kept_ids.items() if len(sides[side]) > most]
    if long_sides and too_long == "drop":
        counts["dropped_too_long"] += 1
        return False
    for side in long_sides:
        del sides[side][kept_ids[side] :]
        counts[f"cut_{side}"] += 1
    for ids in sides.values():
        ids.append(END_ID)
    counts["kept"] += 1
    return True
