"""Time of a training step: GRU, a loop over time, against MinGRU, a scan.

    python benchmarks/minimal_recurrent.py

Forward and backward of one layer, compiled as the backend compiles by default: a plain
graph on TensorFlow, `jax.jit` on JAX. Each number is the fastest of a few runs, so that
other work on the machine counts little. Prints a table, then the same as JSON.
"""

import json
import sys
import time

import keras
import numpy as np
from keras import ops

from keras_seq2seq.layers import MinGRU, RecurrentLayer

LENGTHS = (64, 256, 512, 1024)
ROWS, WIDTH, UNITS = 16, 64, 64
RUNS = 3


def training_step(layer):
    """Returns a compiled function: gradients of all weights for inputs and mask."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step(x, mask):
            with tf.GradientTape() as tape:
                loss = ops.mean(layer(x, mask)[0] ** 2)
            return tape.gradient(loss, [w.value for w in layer.trainable_weights])

        return step
    import jax

    def loss(weights, x, mask):
        (outputs, _), _ = layer.stateless_call(weights, [], x, mask)
        return ops.mean(outputs**2)

    gradient = jax.jit(jax.grad(loss))
    weights = [w.value for w in layer.trainable_weights]
    return lambda x, mask: jax.block_until_ready(gradient(weights, x, mask))


def seconds(layer, length):
    """Returns the fastest of `RUNS` steps after one that compiles."""
    layer.build((None, None, WIDTH))
    step = training_step(layer)
    generator = np.random.default_rng(0)
    x = ops.convert_to_tensor(
        generator.normal(size=(ROWS, length, WIDTH)).astype("float32")
    )
    mask = ops.ones((ROWS, length), dtype="bool")
    step(x, mask)
    found = []
    for _ in range(RUNS):
        start = time.perf_counter()
        step(x, mask)
        found.append(time.perf_counter() - start)
    return min(found)


def main():
    backend = keras.backend.backend()
    print(f"{backend}, {ROWS} rows, inputs {WIDTH}, units {UNITS}, milliseconds")
    print("length      GRU   MinGRU    ratio")
    rows = []
    for length in LENGTHS:
        gru = seconds(RecurrentLayer("gru", UNITS), length)
        minimal = seconds(MinGRU(UNITS), length)
        rows.append({"length": length, "gru": gru, "mingru": minimal})
        print(
            f"{length:6}{1e3 * gru:9.1f}{1e3 * minimal:9.1f}{gru / minimal:9.1f}",
            flush=True,
        )
    json.dump({"backend": backend, "seconds": rows}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
