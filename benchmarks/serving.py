"""Requests of several clients at once, merged by the server, beside one by one.

    keras-seq2seq export saved_models/multi30k_en_de_transformer
    python benchmarks/serving.py saved_models/multi30k_en_de_transformer
    python benchmarks/serving.py served/dates --texts dates.txt --json serving.json

Starts `keras-seq2seq serve` on this machine twice, without and with server-side
batching, and asks by REST. Each text is asked alone first; an answer under load that
differs is a mix-up. Times are those of a client, connection included. The server and
the clients share the processor.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from keras_seq2seq.serving import Client

PROGRAM = "from keras_seq2seq.cli import main; main()"
SUBJECTS = ("a man", "two dogs", "a young woman", "children", "an old man in a hat")
VERBS = ("is playing", "run", "sits", "are standing and talking", "rides a bicycle")
PLACES = ("outside .", "on the street .", "near a lake with a small boat .", "today .")


def made_up_texts():
    """A hundred sentences of different lengths."""
    return [
        f"{subject} {verb} {place}"
        for subject in SUBJECTS
        for verb in VERBS
        for place in PLACES
    ]


@contextlib.contextmanager
def server(path, *options):
    """Starts a server; gives a client of it, and stops it at the end."""
    command = [sys.executable, "-c", PROGRAM, "serve", str(path), "--port", "0"]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    try:
        line = process.stdout.readline().strip()
        if not line:
            raise SystemExit("The server did not start.")
        address, _, model = line.partition("/v1/models/")
        yield Client(address, model=model, timeout=120)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def asked_alone(client, texts):
    """The answer to each text when nothing else is asked."""
    return {text: client.translate([text])[0] for text in texts}


def under_load(client, expected, clients, requests):
    """Seconds of each request, of all together, errors and mix-ups."""
    times, errors, mixed = [], [], []
    ready = threading.Barrier(clients + 1)

    def work(number):
        texts = random.Random(number).choices(sorted(expected), k=requests)
        ready.wait()
        for text in texts:
            start = time.perf_counter()
            try:
                (found,) = client.translate([text])
            except (OSError, ValueError) as error:
                errors.append(str(error))
                continue
            times.append(time.perf_counter() - start)
            if found != expected[text]:
                mixed.append((text, found))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return times, time.perf_counter() - start, errors, mixed


def row_of(way, clients, measured):
    """What is told of one way of asking."""
    times, seconds, errors, mixed = measured
    ordered = sorted(times) or [float("nan")]
    return {
        "way": way,
        "clients": clients,
        "answers": len(times),
        "errors": len(errors),
        "mix_ups": len(mixed),
        "per_second": len(times) / seconds,
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


def measure(arguments, texts):
    """One row for each way of asking."""
    count, requests = arguments.clients, arguments.requests
    with server(arguments.path, "--no-batching") as client:
        expected = asked_alone(client, texts)
        one = under_load(client, expected, 1, count * requests)
        several = under_load(client, expected, count, requests)
    options = ["--max-batch-size", str(arguments.max_batch_size)]
    options += ["--batch-timeout-micros", str(arguments.batch_timeout_micros)]
    with server(arguments.path, *options) as client:
        asked_alone(client, texts)
        merged = under_load(client, expected, count, requests)
    rows = [
        row_of("one by one", 1, one),
        row_of("at once, not merged", count, several),
        row_of("at once, merged", count, merged),
    ]
    for row in rows:
        row["ratio"] = row["per_second"] / rows[0]["per_second"]
    return rows


def table(rows):
    """The rows as text."""
    lines = [
        "way                  clients  answers  errors  mix-ups  answers/s"
        "    p50 ms    p99 ms  ratio"
    ]
    for row in rows:
        lines.append(
            f"{row['way']:<20} {row['clients']:7d} {row['answers']:8d} "
            f"{row['errors']:7d} {row['mix_ups']:8d} {row['per_second']:10.1f} "
            f"{row['p50_ms']:9.1f} {row['p99_ms']:9.1f} {row['ratio']:6.2f}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("path", type=Path, help="what `keras-seq2seq serve` takes")
    add("--clients", type=int, default=8)
    add("--requests", type=int, default=200, help="of each client")
    add("--texts", type=Path, help="a text on each line (default: made up, English)")
    add("--max-batch-size", type=int, default=32)
    add("--batch-timeout-micros", type=int, default=5000)
    add("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    texts = made_up_texts()
    if arguments.texts:
        lines = arguments.texts.read_text(encoding="utf-8").splitlines()
        texts = list(dict.fromkeys(line for line in lines if line.strip()))
    rows = measure(arguments, texts)
    print(table(rows))
    if arguments.json:
        settings = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(arguments).items()
            if key != "json"
        }
        report = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "settings": settings,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if any(row["errors"] or row["mix_ups"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
