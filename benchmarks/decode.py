"""Time of decoding with the same weights in each runtime, ours and others'.

    pip install -r benchmarks/requirements.txt
    python benchmarks/decode.py --json decode.json
    python benchmarks/decode.py --run saved_models/de_en --text test.de
    python benchmarks/decode.py --run saved_models/de_en --text test.de --throughput

A Transformer of random weights writes outputs of exactly `--length` tokens; a run
decodes sentences, which end where they end. Each runtime is a process of its own, idle
while the others work; they take turns within each repetition, so that other work on the
machine disturbs all alike. A ratio is the peer's median time over ours: above 1 we are
faster.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import RUNTIMES, environment, serve, versions
from throughput import FILE_RUNTIMES

OURS_FLOAT32 = ("graph", "xla", "jax", "litert_float32")
OURS_INT8 = ("litert_int8",)
# Name, ours, the peer, and the least ratio at batch 1 and at larger ones.
GOALS = (
    ("float32 / CTranslate2", OURS_FLOAT32, "ctranslate2_float32", (1.2, 1.0)),
    ("int8 / CTranslate2 int8", OURS_INT8, "ctranslate2_int8", (1.8, 1.0)),
    ("any / Marian", (*OURS_FLOAT32, *OURS_INT8), "marian", (3.0, 2.0)),
    ("float32 / Marian", OURS_FLOAT32, "marian", (3.0, 2.0)),
    ("graph / CTranslate2", ("graph",), "ctranslate2_float32", (0.8, 0.8)),
)
# Of whole files, the ratio of sentences a second.
FILE_GOALS = tuple(
    (f"files / {peer}", FILE_RUNTIMES[:2], f"ctranslate2_{peer}", (1.0, 1.0))
    for peer in ("float32_file", "float32_parallel", "int8_file", "int8_parallel")
)
# OpenMP's threads look for more work for a fifth of a second before they sleep.
PAUSE = 0.25
QUICK = {
    "layers": 1,
    "dim": 16,
    "heads": 2,
    "feedforward": 32,
    "vocabulary": 40,
    "source_length": 5,
    "length": 4,
    "batches": [1, 2],
    "beams": [1, 2],
    "repeats": 1,
}


class Worker:
    """A runtime in its own process."""

    def __init__(self, script, name, folder, threads):
        self.name = name
        self.log = folder / f"{name}.log"
        command = [sys.executable, script, "--worker", name, "--folder", str(folder)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w", encoding="utf-8"),
            env=environment(name, threads),
            text=True,
            encoding="utf-8",
        )
        self.missing = self._answer().get("missing")

    def ask(self, **request):
        """Sends a request and waits for what comes of it; None where it failed."""
        if self.missing:
            return None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.missing = answer.get("missing") or answer.get("failed")
        return None if self.missing else answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _answer(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        last = self.log.read_text(encoding="utf-8").splitlines()[-1:]
        return {"missing": f"its process ended: {''.join(last)}"}


def run_workers(script, folder, arguments, names, requests):
    """Answers to each request of each runtime, `(first, times)`, and who is missing.

    The first answer warms up; it alone is asked for what was written.
    """
    workers = []
    try:
        for name in names:
            say(f"loading {name}")
            workers.append(Worker(script, name, folder, arguments.threads))
        first, times = {}, {}
        for request in requests:
            for worker in workers:
                say(f"{request}: warming up {worker.name}")
                first[request, worker.name] = worker.ask(cell=request, tokens=True)
                times[request, worker.name] = []
        for repetition in range(arguments.repeats):
            for request in requests:
                say(f"repetition {repetition + 1} of {arguments.repeats}: {request}")
                for worker in workers:
                    time.sleep(PAUSE)
                    answer = worker.ask(cell=request, tokens=False)
                    if answer is not None:
                        times[request, worker.name].append(answer["seconds"])
        missing = {w.name: w.missing for w in workers if w.missing}
        return first, times, missing
    finally:
        for worker in workers:
            worker.close()


def say(text):
    """Writes progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def cells_of(arguments):
    """The cells by name; of `--throughput` each decodes the whole file."""

    def name(batch, beams):
        search = "greedy" if beams == 1 else f"beam {beams}"
        return f"file, {search}" if batch is None else f"batch {batch}, {search}"

    return {
        name(batch, beams): {"batch": batch, "beams": beams}
        for batch in ([None] if arguments.throughput else arguments.batches)
        for beams in arguments.beams
    }


def report_of(arguments, cells, first, times, missing):
    """The figures of every cell, and which goals they reach."""
    rows = []
    for name, cell in cells.items():
        row = {"cell": name, **cell, "runtimes": {}}
        reference = None
        for runtime in arguments.runtimes:
            seconds = times[name, runtime]
            if not seconds:
                continue
            tokens = first[name, runtime]["tokens"]
            reference = reference or tokens
            same = sum(a == b for a, b in zip(tokens, reference, strict=True))
            row["runtimes"][runtime] = {
                "times_ms": [1000 * value for value in seconds],
                "median_ms": 1000 * statistics.median(seconds),
                "fastest_ms": 1000 * min(seconds),
                "outputs_per_second": len(tokens) / statistics.median(seconds),
                "agreement": same / len(reference),
                "mean_length": statistics.fmean(map(len, tokens)),
            }
        rows.append(row)
    return {
        "machine": machine(),
        "load": os.getloadavg(),
        "versions": versions(),
        "settings": {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(arguments).items()
            if key not in ("json", "worker", "folder")
        },
        "missing": missing,
        "cells": rows,
        "goals": [goal for row in rows for goal in goals_of(row)],
    }


def goals_of(row):
    """The goals that a cell has figures for."""
    medians = {name: value["median_ms"] for name, value in row["runtimes"].items()}
    for name, ours, peer, least in (*GOALS, *FILE_GOALS):
        measured = [runtime for runtime in ours if runtime in medians]
        if not measured or peer not in medians:
            continue
        best = min(measured, key=medians.get)
        ratio = medians[peer] / medians[best]
        wanted = least[0] if row["batch"] == 1 else least[1]
        yield {
            "cell": row["cell"],
            "goal": name,
            "runtime": best,
            "ratio": ratio,
            "wanted": wanted,
            "holds": ratio >= wanted,
        }


def machine():
    """The processor's name and the number of its cores."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        names = [line.split(": ")[1] for line in lines if line.startswith("model name")]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores"


def table(report):
    """The report as text."""
    rows = report["cells"]
    runtimes = report["settings"]["runtimes"]

    def line(title, values):
        return f"{title:29}" + "".join(f"{value:>20}" for value in values)

    def figures(runtime, write):
        for row in rows:
            found = row["runtimes"].get(runtime)
            yield "-" if found is None else write(found)

    lines = [line("median (fastest) ms", [row["cell"] for row in rows])]
    lines += [
        line(
            runtime,
            figures(runtime, lambda x: f"{x['median_ms']:.1f} ({x['fastest_ms']:.1f})"),
        )
        for runtime in runtimes
    ]
    lines += ["", line("outputs a second", [row["cell"] for row in rows])]
    lines += [
        line(runtime, figures(runtime, lambda x: f"{x['outputs_per_second']:.2f}"))
        for runtime in runtimes
    ]
    lines += ["", line("same outputs, share", [row["cell"] for row in rows])]
    lines += [
        line(runtime, figures(runtime, lambda x: f"{x['agreement']:.2f}"))
        for runtime in runtimes
    ]
    lines += [f"missing: {name}: {why}" for name, why in report["missing"].items()]
    lines += ["", f"{'goal':26}{'cell':18}{'ours':>18}{'ratio':>8}{'wanted':>8}"]
    lines += [
        f"{goal['goal']:26}{goal['cell']:18}{goal['runtime']:>18}{goal['ratio']:8.2f}"
        f"{goal['wanted']:8.1f}  {'holds' if goal['holds'] else 'falls short'}"
        for goal in report["goals"]
    ]
    return "\n".join(lines)


def measure(script, folder, arguments):
    """Prepares the folder, runs the workers, and reports."""
    cells = cells_of(arguments)
    positions = max(1024, arguments.max_length, arguments.length)
    settings = {
        **{
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(arguments).items()
        },
        "cells": cells,
        "max_positions": positions,
        "model": {
            "dim": arguments.dim,
            "num_heads": arguments.heads,
            "feedforward_dim": arguments.feedforward,
            "num_encoder_layers": arguments.layers,
            "num_decoder_layers": arguments.layers,
            "sinusoid_layout": "halves",
            "share_embeddings": True,
        },
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    say("preparing")
    preparation = Worker(script, "prepare", folder, arguments.threads)
    preparation.close()
    if preparation.missing:
        raise SystemExit(
            f"Nothing to measure: {preparation.missing}\n"
            + preparation.log.read_text(encoding="utf-8")
        )
    found = run_workers(script, folder, arguments, arguments.runtimes, list(cells))
    return report_of(arguments, cells, *found)


def parsed(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runtimes", nargs="+", choices=(*RUNTIMES, *FILE_RUNTIMES))
    add("--batches", type=int, nargs="+", default=[1, 32])
    add("--beams", type=int, nargs="+", default=[1, 4])
    add("--repeats", type=int, default=5)
    add("--threads", type=int, default=2, help="of every runtime (default: 2)")
    add("--layers", type=int, default=6, help="of encoder and decoder, each")
    add("--dim", type=int, default=512)
    add("--heads", type=int, default=8)
    add("--feedforward", type=int, default=2048)
    add("--vocabulary", type=int, default=8000)
    add("--source-length", type=int, default=32, help="tokens, END included")
    add("--length", type=int, default=32, help="tokens of every output")
    add("--seed", type=int, default=0)
    add("--run", type=Path, help="a run folder, in place of random weights")
    add("--text", type=Path, help="its sentences, one a line")
    add("--limit", type=int, default=1000, help="most sentences (default: 1000)")
    add("--max-length", type=int, default=128, help="most tokens of an output of --run")
    add("--throughput", action="store_true", help="--text as a file, to another file")
    add("--quick", action="store_true", help="a tiny model, to see that all works")
    add("--json", type=Path, help="file for the figures")
    add("--worker", help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.quick:
        vars(arguments).update(QUICK)
    if (arguments.run is None) != (arguments.text is None):
        parser.error("--run and --text go together")
    if arguments.throughput and arguments.run is None:
        parser.error("--throughput needs --run and --text")
    known = FILE_RUNTIMES if arguments.throughput else tuple(RUNTIMES)
    arguments.runtimes = arguments.runtimes or list(known)
    for name in arguments.runtimes:
        if name not in known:
            parser.error(f"--runtimes {name}: choose from {', '.join(known)}")
    return arguments


def main():
    arguments = parsed()
    if arguments.worker:
        serve(arguments.worker, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        report = measure(__file__, Path(folder), arguments)
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
