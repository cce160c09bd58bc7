"""Runs the signatures of a SavedModel as TF Serving does: a program of its own.

TF Serving's C++ loader is the Session loader. Python's `tf.saved_model.load` finds
weights and resources in another way: it loads files that a server cannot, and others
wrongly that a server loads well. So both answer every request.

    python -P session_process.py FOLDER REQUESTS.json REPORT.json

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


def packed(signature: str, inputs: dict) -> dict:
    """A request to a signature as JSON values."""
    return {
        "signature": signature,
        "in": {name: pack(value) for name, value in inputs.items()},
    }


def _reply(run) -> dict:
    """The reply that `run` computes, or the text of the error."""
    try:
        outputs = run()
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return {"error": str(error).splitlines()[0]}
    return {"outputs": {name: pack(value) for name, value in outputs.items()}}


def answer_in_session(folder: str, requests: list[dict]) -> list[dict]:
    """Answers requests through the Session loader."""
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], folder)

        def run(request: dict) -> dict:
            signature = meta_graph.signature_def[request["signature"]]
            feeds = {
                signature.inputs[name].name: unpack(value)
                for name, value in request["in"].items()
            }
            fetches = {name: out.name for name, out in signature.outputs.items()}
            return session.run(fetches, feeds)

        return [_reply(lambda request=request: run(request)) for request in requests]


def answer_eagerly(folder: str, requests: list[dict]) -> list[dict]:
    """Answers requests through Python's loader."""
    loaded = tf.saved_model.load(folder)

    def run(request: dict) -> dict:
        inputs = {
            name: tf.constant(unpack(value)) for name, value in request["in"].items()
        }
        outputs = loaded.signatures[request["signature"]](**inputs)
        return {name: value.numpy() for name, value in outputs.items()}

    return [_reply(lambda request=request: run(request)) for request in requests]


def main(folder: str, requests: str, report: str) -> None:
    """Answers every request of one file in another."""
    asked = json.loads(Path(requests).read_text(encoding="utf-8"))
    also_eagerly = [asked["requests"][number] for number in asked["eager"]]
    found = {
        "session": answer_in_session(folder, asked["requests"]),
        "eager": answer_eagerly(folder, also_eagerly),
        "package_imported": "keras_seq2seq" in sys.modules,
    }
    Path(report).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
