"""Time of full and of windowed self-attention as the sequence grows.

    python benchmarks/local_attention.py
    python benchmarks/local_attention.py --json local_attention.json

One layer, batch 1, forward pass, compiled by the backend. Of each length the fastest of
several runs counts, those of both layers in turn, so that other work on the machine
disturbs both alike. Doubling the length should double the time of the windowed layer,
and in the end quadruple that of the full one.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import keras
import numpy as np

from keras_seq2seq.layers import SelfAttention


def compiled(layer):
    """The layer as one compiled function that returns when its output is there."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        function = tf.function(lambda x: layer(x)[0])
    elif keras.backend.backend() == "jax":
        import jax

        function = jax.jit(lambda x: layer(x)[0])
    else:
        raise SystemExit("Run with KERAS_BACKEND=tensorflow or jax.")
    return lambda x: np.asarray(function(x))


def measure(length, arguments):
    """Seconds of one forward pass of the full and of the windowed layer."""
    reach = arguments.window // 2
    layers = []
    for window in (None, (reach, reach)):
        layer = SelfAttention(arguments.heads, arguments.dim, window=window)
        layer.build((None, None, arguments.dim))
        layers.append(layer)
    layers[1].set_weights(layers[0].get_weights())
    functions = [compiled(layer) for layer in layers]
    generator = np.random.default_rng(0)
    x = keras.ops.convert_to_tensor(
        generator.normal(size=(1, length, arguments.dim)).astype("float32")
    )
    for function in functions:
        function(x)  # compiles
    best = [float("inf"), float("inf")]
    for _ in range(arguments.repeats):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function(x)
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def rows_of(arguments):
    """One row a length, with the ratios to the length before."""
    rows = []
    for length in arguments.lengths:
        full, local = measure(length, arguments)
        last = rows[-1] if rows else None
        rows.append(
            {
                "length": length,
                "full_ms": 1000 * full,
                "local_ms": 1000 * local,
                "full_ratio": last and 1000 * full / last["full_ms"],
                "local_ratio": last and 1000 * local / last["local_ms"],
                "speedup": full / local,
            }
        )
    return rows


def table(rows):
    """The rows as text."""

    def ratio(value):
        return "-" if value is None else f"{value:.2f}"

    lines = ["length   full ms  ratio   window ms  ratio   full / window"]
    lines += [
        f"{row['length']:6d} {row['full_ms']:9.2f} {ratio(row['full_ratio']):>6} "
        f"{row['local_ms']:11.2f} {ratio(row['local_ratio']):>6} "
        f"{row['speedup']:15.1f}"
        for row in rows
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096]
    )
    parser.add_argument("--window", type=int, default=65, help="size r (default: 65)")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    rows = rows_of(arguments)
    print(table(rows))
    if arguments.json:
        settings = {
            key: value for key, value in vars(arguments).items() if key != "json"
        }
        report = {
            "backend": keras.backend.backend(),
            "machine": platform.processor() or platform.machine(),
            "settings": settings,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
