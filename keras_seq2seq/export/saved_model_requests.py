"""The requests of a verification, and what their answers must have in common."""

from typing import Any

import numpy as np

from keras_seq2seq.export.session_process import packed
from keras_seq2seq.export.text_signatures import SIGNATURES
from keras_seq2seq.lines import clean_line
from keras_seq2seq.tokenizers import END_ID, TokenizerPair

# What a client can send but no Python string can hold, or nobody means to send.
ODD_SOURCES = (b"\xff\xfe\x80", b"\xf0\x9f\x98", b"\x00\x01\r\n", b"", b"word " * 400)
# So many texts go alone and merged to each signature.
_NUM_ALONE = 8
# Rows of a request, where many are compared with Python.
_BATCH = 32
# Settings of the samples, by row.
_TEMPERATURES, _TOP_KS, _TOP_PS = (0.8, 0.0, 1.5), (10, 0), (0.95, 1.0, 0.5)
TOLERANCE = 1e-4


class Requests:
    """All requests, packed, and where the answers to which of them stand.

    Some texts go to each signature alone, then merged as TF Serving does it: short
    rows padded with the tensor's first element, and copies of the first row to fill
    the batch. Then come odd requests, which must be answered by something valid. All
    texts follow in batches, where they are compared with Python.

    Args:
        names: The signatures.
        tokenizers: The export's.
        texts: The texts.
        whole: Whether all texts are asked, for a comparison.
    """

    def __init__(
        self,
        names: list[str],
        tokenizers: TokenizerPair,
        texts: list[str],
        whole: bool,
    ) -> None:
        self.names = names
        self.texts = texts
        self.ids = [
            [*tokenizers.source.encode(clean_line(text)), END_ID] for text in texts
        ]
        rows = list(range(min(len(texts), _NUM_ALONE)))
        self.num_alone = len(rows)
        filling = [rows[0]] * (2 ** (len(rows) - 1).bit_length() + 1 - len(rows))
        self.packed: list[dict[str, Any]] = []
        self.alone = {name: [self._add(name, [row]) for row in rows] for name in names}
        self.merged = {name: self._add(name, rows + filling) for name in names}
        self._merged_rows = rows + filling
        #: Numbers of the requests that Python's loader answers too.
        self.eager = list(self.merged.values())
        self._add_odd(tokenizers.source.vocabulary_size)
        self._parts: dict[str, list[int]] = {}
        if whole:
            every = range(len(texts))
            batches = [every[start : start + _BATCH] for start in every[::_BATCH]]
            self._parts = {
                name: [self._add(name, batch, whole=True) for batch in batches]
                for name in names
                if name != "attention"  # its answers are large; some were asked
            }

    def _add_odd(self, vocabulary_size: int) -> None:
        """Adds what nobody means to send: no text, unknown ids, wrong lengths."""
        for name in self.names:
            inputs = self._inputs(name, [0] * len(ODD_SOURCES), whole=False)
            for key in inputs.keys() & {"source", "target"}:
                inputs[key] = list(ODD_SOURCES)
            if "source" in inputs:
                self._append(name, inputs)
            else:
                strange = [[vocabulary_size + 7, -5, END_ID], [4, 4, 4]]
                self._append(name, {"ids": strange, "lengths": [0, 99]})
                self._append(name, {"ids": np.zeros((2, 0)), "lengths": [0, 3]})

    def _add(self, name: str, rows: Any, *, whole: bool = False) -> int:
        return self._append(name, self._inputs(name, rows, whole=whole))

    def _append(self, name: str, inputs: dict[str, Any]) -> int:
        """Appends one request; returns its number."""
        kinds = {
            key: object if kind == "string" else kind
            for key, (_, kind) in SIGNATURES[name][0].items()
        }
        arrays = {key: np.asarray(value, kinds[key]) for key, value in inputs.items()}
        self.packed.append(packed(name, arrays))
        return len(self.packed) - 1

    def _inputs(self, name: str, rows: Any, *, whole: bool) -> dict[str, Any]:
        """The inputs of a signature for some of the texts."""
        ids = [self.ids[row] for row in rows]
        width = max(map(len, ids))
        texts = [self.texts[row].encode("utf-8") for row in rows]

        def by_row(values: tuple) -> list:
            # One setting for all where Python is asked, which has one a call.
            return [values[0 if whole else row % len(values)] for row in rows]

        values = {
            "source": texts,
            "target": texts,
            "ids": [row + [row[0]] * (width - len(row)) for row in ids],
            "lengths": list(map(len, ids)),
            "seed": list(rows),
            "temperature": by_row(_TEMPERATURES),
            "top_k": by_row(_TOP_KS),
            "top_p": by_row(_TOP_PS),
        }
        return {key: values[key] for key in SIGNATURES[name][0]}

    def whole(self, name: str, answers: list[dict]) -> dict[str, np.ndarray]:
        """The answers of a signature for all texts, in order.

        Args:
            name: The signature.
            answers: The answers to all requests.
        """
        parts = [answers[number] for number in self._parts[name]]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def invalid(self, answers: list[dict]) -> list[str]:
        """Names the replies that a server could not pass on.

        Args:
            answers: The answers to all requests.
        """
        wrong = []
        for request, answer in zip(self.packed, answers, strict=True):
            name = request["signature"]
            (num_rows,) = {value["shape"][0] for value in request["in"].values()}
            for key, value in answer.items():
                if key == "error":
                    continue
                if np.shape(value)[:1] != (num_rows,):
                    wrong.append(f"{name}: {key} has not {num_rows} rows")
                if value.dtype.kind == "f" and not np.all(np.isfinite(value)):
                    wrong.append(f"{name}: {key} is not finite")
                if value.dtype.kind == "O":
                    wrong += [
                        f"{name}: {key} holds {text!r}, no UTF-8"
                        for text in value.flat
                        if "\ufffd" in text.decode("utf-8", errors="replace")
                        and b"\xef\xbf\xbd" not in text
                    ]
        return wrong

    def not_blank(self, answers: list[dict]) -> list[str]:
        """Names the blank sources with another answer than a blank one.

        Args:
            answers: The answers to all requests.
        """
        wrong = []
        for name, number in self.merged.items():
            for row in range(self.num_alone):
                if len(self.ids[row]) > 1:
                    continue
                answer = {key: value[row] for key, value in answers[number].items()}
                texts = [answer.get("text", b""), *answer.get("texts", [])]
                lengths = np.asarray(answer.get("output_lengths", 0))
                if any(texts) or lengths.any():
                    wrong.append(f"{self.texts[row]!r} gives {texts} in {name}")
        return wrong

    def changed_by_merging(self, answers: list[dict]) -> list[str]:
        """Names the rows that are answered differently alone and in a batch.

        Args:
            answers: The answers to all requests.
        """
        wrong = []
        for name, number in self.merged.items():
            batch = answers[number]
            for place, row in enumerate(self._merged_rows):
                single = answers[self.alone[name][row]]
                if any(not same(single[key][0], batch[key][place]) for key in batch):
                    wrong.append(f"{self.texts[row]!r} in row {place} of {name}")
        return wrong


def same(one: Any, other: Any) -> bool:
    """Whether two values of an answer are equal, numbers within rounding.

    Args:
        one: A value, or an array.
        other: Another.
    """
    if isinstance(one, bytes) or np.asarray(one).dtype.kind in "iO":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE))
