"""Runs what `export_ctranslate2` wrote: batches of ids in and out."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.batches import num_cores
from keras_seq2seq.requests import Request
from keras_seq2seq.tokenizers import PAD_ID
from keras_seq2seq.untrusted import TOKENIZER_LIMIT, read_limited

# An id of each that the folder's vocabularies may be under.
_VOCABULARIES = {
    "source": ("source_vocabulary.json", "shared_vocabulary.json"),
    "target": ("target_vocabulary.json", "shared_vocabulary.json"),
}
_LOWEST = -1.0e9


class CTranslate2Engine:
    """Decodes batches with CTranslate2, each on one thread, as many as there are cores.

    CTranslate2 has one limit for a batch. A row whose output grew past its own limit
    is decoded again by itself with that.

    Args:
        folder: The export.
        allow_unknown: Whether UNK may be written.

    Raises:
        ImportError: If CTranslate2 is not installed.
    """

    def __init__(self, folder: Path, *, allow_unknown: bool = True) -> None:
        try:
            import ctranslate2
        except ImportError as error:
            raise ImportError(
                "CTranslate2 is not installed: pip install "
                "'keras-seq2seq[ctranslate2]'."
            ) from error
        self._source = vocabulary_of(folder, "source")
        self._target_ids = {
            token: index for index, token in enumerate(vocabulary_of(folder, "target"))
        }
        self._allow_unknown = allow_unknown
        self._translator = ctranslate2.Translator(
            str(folder), inter_threads=num_cores(), intra_threads=1
        )

    def __call__(
        self, ids: Any, lengths: Any, limits: Any, request: Request
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decode a batch: see `runtimes.Engine`."""
        # END is put behind the source by CTranslate2.
        sources = [
            [self._source[index] for index in row[: length - 1]]
            for row, length in zip(ids, lengths, strict=True)
        ]
        found = self._decode(sources, int(max(limits)), request)
        for row, limit in enumerate(limits):
            if limit < max(limits) and any(len(h[0]) > limit for h in found[row]):
                (found[row],) = self._decode([sources[row]], int(limit), request)
        return self._arrays(found, int(max(limits)), request.constants["n_best"])

    def _decode(
        self, sources: list[list[str]], limit: int, request: Request
    ) -> list[list[tuple[list[int], float]]]:
        """Ids and score of each hypothesis of each source."""
        constants = request.constants
        results = self._translator.translate_batch(
            sources,
            beam_size=constants["num_beams"],
            num_hypotheses=constants["n_best"],
            length_penalty=constants["length_penalty"],
            max_decoding_length=limit,
            min_decoding_length=0,
            max_input_length=0,  # by default it cuts at 1024, and does not say so
            disable_unk=not self._allow_unknown,
            return_end_token=True,
            return_scores=True,
        )
        return [
            [
                ([self._target_ids[token] for token in tokens], score)
                for tokens, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _arrays(
        self, found: list[list[tuple[list[int], float]]], length: int, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = np.full((len(found), count, length), PAD_ID, "int32")
        lengths = np.zeros(ids.shape[:2], "int32")
        scores = np.full(ids.shape[:2], _LOWEST, "float32")
        for row, hypotheses in enumerate(found):
            for place, (tokens, score) in enumerate(hypotheses):
                kept = tokens[:length]
                ids[row, place, : len(kept)] = kept
                lengths[row, place], scores[row, place] = len(kept), score
        return ids, lengths, scores


def vocabulary_of(folder: Path, side: str) -> list[str]:
    """Reads the tokens of one side, by id.

    Args:
        folder: The export.
        side: `"source"` or `"target"`.

    Raises:
        FileNotFoundError: If it is not there.
    """
    for name in _VOCABULARIES[side]:
        if (folder / name).is_file():
            return json.loads(read_limited(folder / name, TOKENIZER_LIMIT))
    raise FileNotFoundError(
        f"No vocabulary of the {side} in {folder}. Expected "
        f"{' or '.join(_VOCABULARIES[side])}."
    )
