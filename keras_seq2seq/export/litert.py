"""Writes a trained run for phones: a LiteRT file with all that an app needs beside it.

================= =======================================================
file              holds
================= =======================================================
`model.tflite`    the signatures of `litert_graphs`: ids in, ids out
`tokenizer/`      the SentencePiece models, for the app's own library
`config.json`     special ids, limits, and names and shapes of all tensors
`golden.jsonl`    texts with their ids and outputs, which an app must match
`manifest.json`   versions, the search's options, sums
================= =======================================================
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.export.folders import check_new_folder, written_whole
from keras_seq2seq.export.graph_search import GraphSearch, check_backend
from keras_seq2seq.export.litert_graphs import convert
from keras_seq2seq.export.litert_runtime import LiteRTDecoder, signatures_of
from keras_seq2seq.export.manifest import as_translator, write_manifest
from keras_seq2seq.lines import clean_texts
from keras_seq2seq.pipelines import Translator
from keras_seq2seq.tokenizers import END_ID, PAD_ID, START_ID, UNK_ID, TokenizerPair

MODEL, CONFIG, GOLDEN = "model.tflite", "config.json", "golden.jsonl"
# Lengths of the made-up sources of the golden vectors.
_GOLDEN_LENGTHS = (1, 3, 8, 20)
_GOLDEN_TEXTS = ("a b c", "  two  spaces ", "A1, b2!", "é ß \u4e2d \U0001f600")


def export_litert(
    run_or_translator: str | Path | Translator,
    path: str | Path,
    *,
    quantization: str | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the folder of an app.

    The folder appears complete or not at all: it is written under another name beside
    it, the file is run once, and then it is renamed.

    Args:
        run_or_translator: A run folder, or what `load` made of one.
        path: The folder to write.
        quantization: What becomes of the weights: None for float32; `"float16"`; or
            `"dynamic"` for int8 weights, where activations stay float32. Either
            halves a model of a large vocabulary: in int8 a table of embeddings that
            is tied to the output is there twice.
        num_beams: Width of the beam; by default the run's.
        length_penalty: Exponent of the length penalty; by default the run's.
        max_length: Most tokens of an output, END included, for every source; by default
            it follows the source's length as the run says.
        overwrite: Whether what stands at `path` is replaced.

    Returns:
        The folder.

    Raises:
        ValueError: If the folder exists, a value is out of range, the run is not one of
            text, Keras does not run on TensorFlow, or LiteRT lacks an operation.
        FileNotFoundError: If the run folder is missing or incomplete.
        ImportError: If LiteRT is not installed, which runs the file once.
    """
    check_backend("A LiteRT file")
    path = Path(path)
    check_new_folder(path, overwrite)
    translator = as_translator(run_or_translator)
    search = GraphSearch(
        translator.model,
        translator.decoding,
        num_beams=num_beams,
        length_penalty=length_penalty,
        max_length=max_length,
        fills="slice",
    )
    content = convert(search, quantization=quantization)
    decoder = LiteRTDecoder(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as folder:
        folder.mkdir()
        (folder / MODEL).write_bytes(content)
        translator.tokenizers.save(folder / "tokenizer")
        config = _config(search, translator, content, quantization)
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
        lines = [
            json.dumps(entry, ensure_ascii=False)
            for entry in _golden(decoder, translator.tokenizers)
        ]
        (folder / GOLDEN).write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_manifest(
            folder,
            "litert",
            translator,
            decoding=search.described,
            facts={
                "settings": search.request.settings.model_dump(),
                "quantization": quantization,
            },
            more_versions=("ai-edge-litert",),
        )
    return path


def _config(
    search: GraphSearch,
    translator: Translator,
    content: bytes,
    quantization: str | None,
) -> dict[str, Any]:
    """What an app must know."""
    pair = translator.tokenizers
    shared = pair.source.fingerprint == pair.target.fingerprint
    names = ("shared", "shared") if shared else ("source", "target")
    return {
        "model": MODEL,
        "quantization": quantization or "none",
        "tokenizers": {
            side: f"tokenizer/{name}.model"
            for side, name in zip(("source", "target"), names, strict=True)
        },
        "pad_id": PAD_ID,
        "unk_id": UNK_ID,
        "start_id": START_ID,
        "end_id": END_ID,
        "banned_ids": list(search.request.constants["banned_ids"]),
        "max_source_tokens": search.model.max_positions,
        "max_length": search.max_length,
        "num_beams": search.num_beams,
        # By the length of the source, END included; the last entry for longer ones.
        "length_limits": search.tables["length_limits"],
        "min_lengths": [
            max(least, search.request.constants["min_length"])
            for least in search.tables.get("min_lengths", [0])
        ],
        "signatures": signatures_of(content),
    }


def _golden(decoder: LiteRTDecoder, tokenizers: TokenizerPair) -> list[dict[str, Any]]:
    """Texts with what becomes of them, by the file itself."""
    made_up = [
        tokenizers.source.decode(
            (4 + np.arange(n) % (tokenizers.source.vocabulary_size - 4)).tolist()
        )
        for n in _GOLDEN_LENGTHS
    ]
    texts = [*_GOLDEN_TEXTS, *made_up]
    ids = source_ids(tokenizers, texts)
    kept = [(text, row) for text, row in zip(texts, ids, strict=True) if len(row) > 1]
    entries = []
    for text, row in kept:
        found = decoder([row], [len(row)])
        output = found["output_ids"][0][: found["output_lengths"][0]].tolist()
        entries.append(
            {
                "source": text,
                "ids": row,
                "output_ids": output,
                "target": tokenizers.target.decode(output),
                "score": round(float(found["score"][0]), 5),
            }
        )
    return entries


def source_ids(tokenizers: TokenizerPair, texts: Sequence[str]) -> list[list[int]]:
    """Encodes texts as a Translator does, END appended.

    Args:
        tokenizers: The tokenizers.
        texts: Source texts.
    """
    encoded = tokenizers.source.encode(clean_texts(texts, "texts"))
    return [[*row, END_ID] for row in encoded]
