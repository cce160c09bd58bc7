"""Runs a CTranslate2 folder as a program of its own, with nothing of this package.

    python -P ctranslate2_process.py FOLDER REQUESTS.json REPORT.json

`verify` starts this file by its path in a fresh process. Pieces go in and come out.
"""

import json
import sys
from pathlib import Path

import ctranslate2


def main(folder, requests, report):
    """Translates every request of one file, and writes another."""
    asked = json.loads(Path(requests).read_text(encoding="utf-8"))
    translator = ctranslate2.Translator(str(folder), intra_threads=2)
    found = []
    for request in asked["requests"]:
        results = translator.translate_batch(
            request["sources"],
            max_decoding_length=request["limit"],
            min_decoding_length=0,
            max_input_length=0,
            return_end_token=True,
            return_scores=True,
            **asked["options"],
        )
        found.append([(r.hypotheses[0], r.scores[0]) for r in results])
    imported = sorted({"keras_seq2seq", "tensorflow", "keras"} & set(sys.modules))
    Path(report).write_text(
        json.dumps({"answers": found, "imported": imported}), encoding="utf-8"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
