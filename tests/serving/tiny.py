"""Small SavedModels made by hand, and plain HTTP."""

import http.client
import json
from pathlib import Path


def save_tiny(folder: Path, mark: str = "v1") -> Path:
    """Writes a SavedModel whose answers are easy to foretell.

    `serving_default` puts a text in brackets with a mark behind it, `total` adds up the
    first `lengths` ids of a row, `copy` gives bytes back, `halve` divides by two, and
    `slow` counts.
    """
    import tensorflow as tf

    module = tf.Module()
    module.factor = tf.Variable(0.5)

    def bracket(source):
        text = tf.strings.join(["<", source, ">", mark])
        return {"text": text, "score": tf.cast(tf.strings.length(source), tf.float32)}

    def total(ids, lengths):
        positions = tf.expand_dims(tf.range(tf.shape(ids)[1]), 0)
        real = positions < tf.expand_dims(lengths, 1)
        return {"total": tf.reduce_sum(tf.where(real, ids, 0), 1)}

    def copy(data):
        return {"copy_bytes": tf.identity(data)}

    def halve(x):
        return {"half": x * module.factor}

    def slow(steps):
        most = tf.reduce_max(steps)
        count = tf.while_loop(lambda n: n < most, lambda n: [n + 1], [tf.constant(0)])
        return {"count": steps + 0 * count[0]}

    specs = {
        "serving_default": (bracket, {"source": ([None], tf.string)}),
        "total": (
            total,
            {"ids": ([None, None], tf.int32), "lengths": ([None], "int32")},
        ),
        "copy": (copy, {"data": ([None], tf.string)}),
        "halve": (halve, {"x": ([None, 2], tf.float32)}),
        "slow": (slow, {"steps": ([None], tf.int32)}),
    }
    signatures = {}
    for name, (function, inputs) in specs.items():
        signatures[name] = tf.function(
            function,
            input_signature=[
                tf.TensorSpec(shape, dtype, name=key)
                for key, (shape, dtype) in inputs.items()
            ],
            autograph=False,
        )
        setattr(module, f"run_{name}", signatures[name])
    tf.saved_model.save(module, str(folder), signatures)
    return folder


def ask(port, method, path, body=None, headers=None):
    """Status and JSON of the answer to one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, content, headers or {})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def predict(port, body, where="tiny"):
    """Status and JSON of the answer to a `predict` request."""
    return ask(port, "POST", f"/v1/models/{where}:predict", body)
