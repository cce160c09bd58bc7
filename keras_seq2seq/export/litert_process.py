"""Runs a LiteRT file as an app does: a program of its own, without TensorFlow.

    python -P litert_process.py FOLDER REQUESTS.json REPORT.json

`verify` starts this file by its path in a fresh process. It must not import
keras_seq2seq. Every request goes to one interpreter with the delegates that LiteRT
adds by itself, and to one without, in order, so that both are resized up and down.
"""

import json
import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

RESOLVERS = ("BUILTIN", "BUILTIN_WITHOUT_DEFAULT_DELEGATES")


def answers(interpreter, requests):
    """The outputs of each request, as lists, or the text of the error."""
    runners, found = {}, []
    for request in requests:
        name = request["signature"]
        if name not in runners:
            runners[name] = interpreter.get_signature_runner(name)
        inputs = {key: np.asarray(v, "int32") for key, v in request["in"].items()}
        if inputs["ids"].ndim == 1:  # rows without a column
            inputs["ids"] = inputs["ids"].reshape(-1, 0)
        try:
            outputs = runners[name](**inputs)
        except (RuntimeError, ValueError) as error:
            found.append({"error": str(error).strip().splitlines()[0]})
            continue
        found.append({key: value.tolist() for key, value in outputs.items()})
    return found


def write_greedily(interpreter, task):
    """Ids of one source, step by step, as an app's own loop would write them."""
    encode = interpreter.get_signature_runner("encode")
    step = interpreter.get_signature_runner("step")
    ids = np.asarray([task["ids"]], "int32")
    tensors = encode(ids=ids, lengths=np.asarray([ids.shape[1]], "int32"))
    token = task["start_id"]
    written: list[int] = []
    while len(written) < task["limit"] and token != task["end_id"]:
        found = step(token_ids=np.asarray([token], "int32"), **tensors)
        logits = found.pop("logits")[0]
        logits[task["banned_ids"]] = -np.inf
        if len(written) < task["least"]:
            logits[task["end_id"]] = -np.inf
        token = int(logits.argmax())
        written.append(token)
        tensors |= {key.removeprefix("next_"): value for key, value in found.items()}
    return written


def main(folder, requests, report):
    """Answers every request of one file in another."""
    asked = json.loads(Path(requests).read_text(encoding="utf-8"))
    content = str(Path(folder) / "model.tflite")
    found = {}
    for name in RESOLVERS:
        interpreter = Interpreter(
            model_path=content,
            experimental_op_resolver_type=OpResolverType[name],
            num_threads=2,
        )
        found[name] = answers(interpreter, asked["requests"])
    found["steps"] = [write_greedily(interpreter, task) for task in asked["steps"]]
    found["imported"] = sorted({"keras_seq2seq", "tensorflow"} & set(sys.modules))
    Path(report).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
