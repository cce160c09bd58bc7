"""Training throughput of the models beside the same models written in PyTorch.

    python benchmarks/train.py
    python benchmarks/train.py --models luong --json luong.json
    python benchmarks/train.py --peers torch torch_compile

Each side is a process of its own, so that no thread pool disturbs another, and they
work in turn: some updates of ours, some of PyTorch's, again and again. What counts is
the median time of an update over these turns, and the ratio within this run, since
machines are noisy. Ours is `fit` as the trainer calls it, with its loss and metrics;
the peer (`train_peers.py`) is a plain loop with the same loss. The batches are the
same: random tokens, targets of three quarters of the full length to the full one.

`tensorflow` is the plain graph, `tensorflow_xla` the graph compiled by XLA. PyTorch
runs eagerly; `torch_compile` is compared to where it is asked for, and on accelerators.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

MODELS = ("transformer", "luong", "bahdanau")
OURS = ("tensorflow", "tensorflow_xla", "jax")
PEERS = ("torch", "torch_compile")
START_ID, FIRST_ID = 2, 4  # ids below 4 are special; 0 is padding

QUICK = {
    "dim": 8,
    "heads": 2,
    "feedforward": 8,
    "layers": 1,
    "vocabulary": 20,
    "batch_size": 4,
    "source_length": 6,
    "target_length": 6,
    "steps": 1,
    "rounds": 2,
}


def random_ids(generator, arguments, length):
    """Padded rows `(B, length)` of random tokens; the first row is full."""
    shape = (arguments.batch_size, length)
    ids = generator.integers(FIRST_ID, arguments.vocabulary, shape, dtype="int32")
    lengths = generator.integers(3 * length // 4, length + 1, arguments.batch_size)
    lengths[0] = length
    return np.where(np.arange(length) < lengths[:, None], ids, 0).astype("int32")


def make_batches(arguments):
    """The batches that every side trains on: source, target and label ids."""
    generator = np.random.default_rng(0)
    batches = []
    for _ in range(arguments.steps):
        source_ids = random_ids(generator, arguments, arguments.source_length)
        label_ids = random_ids(generator, arguments, arguments.target_length)
        target_ids = np.roll(label_ids, 1, axis=1)
        target_ids[:, 0] = START_ID
        target_ids[label_ids == 0] = 0
        batches.append((source_ids, target_ids, label_ids))
    return batches


def our_model(name, arguments):
    """The model of this package."""
    import keras_seq2seq as ks

    vocabularies = (arguments.vocabulary, arguments.vocabulary)
    if name == "transformer":
        return ks.TransformerSeq2Seq(
            *vocabularies,
            dim=arguments.dim,
            num_heads=arguments.heads,
            feedforward_dim=arguments.feedforward,
            num_encoder_layers=arguments.layers,
            num_decoder_layers=arguments.layers,
            dropout=arguments.dropout,
        )
    preset = {"luong": "luong2015", "bahdanau": "bahdanau2015"}[name]
    # PyTorch's GRU, like cuDNN's, has its reset gate after the product.
    more = {"reset_after": True} if name == "bahdanau" else {}
    return ks.RecurrentSeq2Seq.from_preset(
        preset,
        *vocabularies,
        units=arguments.dim,
        embedding_dim=arguments.dim,
        dropout=arguments.dropout,
        **more,
    )


def our_training(name, side, arguments):
    """Facts about our side, and a function that trains on all batches."""
    import keras

    from keras_seq2seq.callbacks import TokenTotals
    from keras_seq2seq.losses import TokenCrossEntropy
    from keras_seq2seq.metrics import Perplexity, TokenAccuracy, TokenLoss

    class Batches(keras.utils.PyDataset):
        def __init__(self, batches):
            super().__init__(workers=2)  # as the trainer's data sets
            self.batches = [
                (
                    {"source_ids": source_ids, "target_ids": target_ids},
                    label_ids,
                    (label_ids != 0).astype("float32"),
                )
                for source_ids, target_ids, label_ids in batches
            ]

        def __len__(self):
            return len(self.batches)

        def __getitem__(self, index):
            return self.batches[index]

    keras.utils.set_random_seed(0)
    model = our_model(name, arguments)
    jit = side == "jax" or side.endswith("_xla")
    model.supports_jit = model.supports_jit or jit
    model.compile(
        optimizer=keras.optimizers.Adam(arguments.learning_rate),
        loss=TokenCrossEntropy(arguments.label_smoothing),
        weighted_metrics=[TokenLoss(), Perplexity(), TokenAccuracy()],
        jit_compile=jit,
    )
    model.optimizer.build(model.trainable_variables)
    batches = Batches(make_batches(arguments))

    def train():
        history = model.fit(
            batches, shuffle=False, verbose=0, callbacks=[TokenTotals()]
        )
        return history.history["loss"][0]

    return {
        "device": our_device(),
        "version": f"keras {keras.__version__}",
        "parameters": model.count_params(),
    }, train


def our_device():
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend()
    import tensorflow as tf

    return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


def work(side, name, arguments):
    """One side, as a process: says that it is ready, then trains when it is told."""
    if side in PEERS:
        from train_peers import peer_training

        facts, train = peer_training(
            name, arguments, make_batches(arguments), compiled=side == "torch_compile"
        )
    else:
        facts, train = our_training(name, side, arguments)
    train()  # compiles
    answers = os.fdopen(arguments.answers, "w", encoding="utf-8")
    print(json.dumps(facts), file=answers, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = train()
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, loss]), file=answers, flush=True)


class Side:
    """A running process of one side; its times are seconds of an update."""

    def __init__(self, side, name, arguments):
        self.side = side
        reading, writing = os.pipe()
        options = dict(vars(arguments))
        options |= {"answers": writing, "json": None}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", side, name, json.dumps(options)],
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
            env={**os.environ, **environment(side)},
        )
        os.close(writing)
        self.answers = os.fdopen(reading, encoding="utf-8")
        self.facts = self._answer()
        self.num_steps = arguments.steps
        self.times = []
        self.loss = None

    def _answer(self):
        line = self.answers.readline()
        if not line:
            raise SystemExit(f"{self.side} ended with {self.process.wait()}.")
        return json.loads(line)

    def turn(self):
        print("train", file=self.process.stdin, flush=True)
        seconds, self.loss = self._answer()
        self.times.append(seconds / self.num_steps)

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def row(self, num_tokens):
        """The figures: milliseconds of an update and real target tokens a second."""
        seconds = statistics.median(self.times)
        return {
            "side": self.side,
            **self.facts,
            "ms": 1000 * seconds,
            "fastest_ms": 1000 * min(self.times),
            "times_ms": [1000 * time for time in self.times],
            "tokens_per_second": num_tokens / seconds,
            "loss": self.loss,
        }


def environment(side):
    """What the process of a side gets in its environment."""
    values = {"PYTHONPATH": f"{Path(__file__).parents[1]}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if side not in PEERS:
        values["KERAS_BACKEND"] = side.removesuffix("_xla")
    return values


def installed(side):
    package = "torch" if side in PEERS else side.removesuffix("_xla")
    return importlib.util.find_spec(package) is not None


def chosen_peers(arguments):
    if arguments.peers is not None:
        return arguments.peers
    return PEERS if shutil.which("nvidia-smi") else PEERS[:1]


def measure(name, arguments):
    """All sides of one model in turn."""
    wanted = [*arguments.ours, *chosen_peers(arguments)]
    sides = []
    try:
        for side in filter(installed, wanted):
            sides.append(Side(side, name, arguments))
        for _ in range(arguments.rounds):
            for side in sides:
                side.turn()
    finally:
        for side in sides:
            side.close()
    batches = make_batches(arguments)
    num_tokens = sum(int(np.sum(labels != 0)) for *_, labels in batches) / len(batches)
    rows = [side.row(num_tokens) for side in sides]
    return {"model": name, "rows": rows, "ratio": ratio_of(rows)}


def ratio_of(rows):
    """Speed of our best side over that of PyTorch's; None where one is missing."""
    speeds = {
        theirs: [r["tokens_per_second"] for r in rows if (r["side"] in PEERS) == theirs]
        for theirs in (False, True)
    }
    if not all(speeds.values()):
        return None
    return max(speeds[False]) / max(speeds[True])


def table(result):
    """The rows of one model as text."""
    lines = [
        f"{result['model']:<16} device  ms/update  fastest  target tokens/s   loss"
    ]
    lines += [
        f"  {row['side']:<14} {row['device']:<6} {row['ms']:10.1f} "
        f"{row['fastest_ms']:8.1f} {row['tokens_per_second']:16,.0f} {row['loss']:6.2f}"
        for row in result["rows"]
    ]
    if result["ratio"] is not None:
        lines.append(f"  best of ours / best of PyTorch: {result['ratio']:.2f}")
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=MODELS)
    add("--ours", nargs="+", choices=OURS, default=OURS)
    add("--peers", nargs="*", choices=PEERS, help="default: torch, on GPUs both")
    add("--dim", type=int, default=256, help="width of everything")
    add("--heads", type=int, default=4, help="of the Transformer")
    add("--feedforward", type=int, default=1024, help="of the Transformer")
    add("--layers", type=int, default=3, help="of each side of the Transformer")
    add("--vocabulary", type=int, default=8000)
    add("--batch-size", type=int, default=64)
    add("--source-length", type=int, default=32)
    add("--target-length", type=int, default=32)
    add("--dropout", type=float, default=0.1)
    add("--label-smoothing", type=float, default=0.1)
    add("--learning-rate", type=float, default=0.001)
    add("--steps", type=int, default=4, help="updates of a turn")
    add("--rounds", type=int, default=7, help="turns of each side")
    add("--quick", action="store_true", help="tiny sizes: whether it runs")
    add("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    return arguments


def main():
    if sys.argv[1:2] == ["--worker"]:
        side, name, options = sys.argv[2:]
        work(side, name, argparse.Namespace(**json.loads(options)))
        return
    arguments = parse()
    results = []
    for name in arguments.models:
        results.append(measure(name, arguments))
        print(table(results[-1]), flush=True)
    if arguments.json:
        settings = {
            key: value for key, value in vars(arguments).items() if key != "json"
        }
        report = {
            "machine": platform.processor() or platform.machine(),
            "settings": settings,
            "results": results,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
