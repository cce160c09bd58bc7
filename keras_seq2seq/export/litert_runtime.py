"""Runs the files of `litert` on this machine: ids in, ids out, without TensorFlow."""

import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np


class LiteRTDecoder:
    """Decodes batches with a signature of a LiteRT file.

    A batch is cut into parts for several interpreters of one thread each: beside a
    search that one interpreter runs on many threads, much of it works on one only.
    Several callers at once take turns at the interpreters.
    Needs `pip install 'keras-seq2seq[litert]'`.

    Args:
        file_or_content: A `.tflite` file, or its content.
        num_workers: Interpreters that work at once: for batches, one a core.
        rows: Most sources of a part. Caches of few rows stay in the processor's.
        num_threads: Threads of each interpreter: for single sources, one a core.
        signature: `"translate"`, `"translate_greedy"` or `"translate_beam"`.

    Call arguments:
        ids: Source ids with END, padded on the right, int `(B, S)`.
        lengths: How many of them are real, int `(B,)`.

    Returns:
        The signature's outputs by name, NumPy arrays of `B` rows.

    Raises:
        ValueError: If a number is not positive, or the file has no such signature.
        ImportError: If LiteRT is not installed.

    Example:
        decoder = LiteRTDecoder("model.tflite", num_workers=2)
        found = decoder([[5, 6, 3]], [3])
        print(found["output_ids"], found["output_lengths"])
    """

    def __init__(
        self,
        file_or_content: str | Path | bytes,
        *,
        num_workers: int = 1,
        rows: int = 8,
        num_threads: int = 1,
        signature: str = "translate",
    ) -> None:
        sizes = {"num_workers": num_workers, "rows": rows, "num_threads": num_threads}
        for name, value in sizes.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={value}."
                )
        self.num_workers = num_workers
        self.rows = rows
        self._interpreters = [
            _interpreter(file_or_content, num_threads, signature)
            for _ in range(num_workers)
        ]
        self._idle: queue.SimpleQueue = queue.SimpleQueue()
        for interpreter in self._interpreters:
            self._idle.put(interpreter.get_signature_runner(signature))

    def __call__(self, ids: Any, lengths: Any) -> dict[str, np.ndarray]:
        ids, lengths = np.asarray(ids, "int32"), np.asarray(lengths, "int32")
        if ids.ndim != 2 or lengths.shape != ids.shape[:1]:
            raise ValueError(
                "`ids` must be (B, S) and `lengths` (B,). Received: shapes "
                f"{ids.shape} and {lengths.shape}."
            )
        starts = range(0, max(len(ids), 1), self.rows)
        with ThreadPoolExecutor(self.num_workers) as pool:
            parts = list(
                pool.map(
                    self._decode,
                    [ids[start : start + self.rows] for start in starts],
                    [lengths[start : start + self.rows] for start in starts],
                )
            )
        return {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }

    def _decode(self, ids: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        runner = self._idle.get()
        try:
            return runner(ids=ids, lengths=lengths)
        finally:
            self._idle.put(runner)


def signatures_of(file_or_content: str | Path | bytes) -> dict[str, dict]:
    """Tells the tensors of each signature of a LiteRT file.

    Args:
        file_or_content: A `.tflite` file, or its content.

    Returns:
        By signature `inputs` and `outputs`, by name `dtype` and `shape`, -1 for what
        may vary.

    Raises:
        ImportError: If LiteRT is not installed.
    """
    interpreter = _loaded(file_or_content, threads=1)

    def described(details: dict) -> dict:
        return {
            name: {
                "dtype": np.dtype(detail["dtype"]).name,
                "shape": [int(size) for size in detail["shape_signature"]],
            }
            for name, detail in sorted(details.items())
        }

    found = {}
    for name in sorted(interpreter.get_signature_list()):
        runner = interpreter.get_signature_runner(name)
        found[name] = {
            "inputs": described(runner.get_input_details()),
            "outputs": described(runner.get_output_details()),
        }
    return found


def _interpreter(
    file_or_content: str | Path | bytes, threads: int, signature: str
) -> Any:
    interpreter = _loaded(file_or_content, threads)
    found = sorted(interpreter.get_signature_list())
    if signature not in found:
        raise ValueError(
            f"The file must have the signature {signature!r}. Received one with "
            f"{', '.join(found) or 'none'}. Write it with `export --format litert`."
        )
    return interpreter


def _loaded(file_or_content: str | Path | bytes, threads: int) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        raise ImportError(
            "LiteRT is not installed. Install it: pip install 'keras-seq2seq[litert]'."
        ) from None
    if isinstance(file_or_content, bytes):
        return Interpreter(model_content=file_or_content, num_threads=threads)
    return Interpreter(model_path=str(file_or_content), num_threads=threads)
