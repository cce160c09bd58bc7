"""Runs the signatures of a SavedModel as TF Serving does: a program of its own.

TF Serving's C++ loader is the Session loader. Python's `tf.saved_model.load` finds
weights in another way, and loads files that a server cannot, so it proves nothing.

    python -P session_process.py FOLDER REQUESTS.json REPLIES.json

`verify` starts this file by its path in a fresh process. It must not import
keras_seq2seq: the SavedModel has to work where the package is not installed. Strings
travel as base64, since they may be invalid UTF-8.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

# Registers the SentencePiece operations, which the stock TF Serving image holds.
import tensorflow_text  # noqa: F401


def pack(array) -> dict:
    """An array as JSON values."""
    values = np.asarray(array)
    if values.dtype == object:
        encoded = [base64.b64encode(value).decode("ascii") for value in values.flat]
        return {"dtype": "string", "shape": list(values.shape), "values": encoded}
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "values": values.reshape(-1).tolist(),
    }


def unpack(packed: dict):
    """The array that `pack` was given."""
    if packed["dtype"] == "string":
        values = np.array([base64.b64decode(v) for v in packed["values"]], object)
    else:
        values = np.array(packed["values"], packed["dtype"])
    return values.reshape(packed["shape"])


def _run(session, signature, inputs: dict) -> dict:
    """One request: the reply, or the text of the error."""
    feeds = {
        signature.inputs[name].name: unpack(value) for name, value in inputs.items()
    }
    fetches = {name: tensor.name for name, tensor in signature.outputs.items()}
    try:
        outputs = session.run(fetches, feeds)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return {"error": str(error).splitlines()[0]}
    return {"outputs": {name: pack(value) for name, value in outputs.items()}}


def main(folder: str, requests: str, replies: str) -> None:
    """Answers every request of one file in another."""
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], folder)
        answers = [
            _run(session, meta_graph.signature_def[request["signature"]], request["in"])
            for request in json.loads(Path(requests).read_text(encoding="utf-8"))
        ]
    report = {
        "answers": answers,
        "package_imported": "keras_seq2seq" in sys.modules,
    }
    Path(replies).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
