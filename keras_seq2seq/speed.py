"""How fast translators decode, on the same sources and on which hardware."""

import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras


def decoding_speeds(
    translators: Mapping[str, Any], texts: Sequence[str], *, rounds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Measures how fast each translator decodes the same texts.

    They take turns, so that what else the machine does falls on all of them alike.
    A first round, in which searches are compiled, is not measured.

    Args:
        translators: Name and `pipelines.Translator` of each system.
        texts: Sources.
        rounds: Times that each search is measured; the median counts.

    Returns:
        For each name, for `"greedy"` and, where the translator's own `num_beams` is
        more than 1, for `"beam"`: `num_beams`, `seconds`, `sentences_per_second` and
        `tokens_per_second`, tokens being those of the best outputs, END included.
    """
    searches = [
        (name, kind, num_beams)
        for name, translator in translators.items()
        for kind, num_beams in (("greedy", 1), ("beam", translator.decoding.num_beams))
        if kind == "greedy" or num_beams > 1
    ]
    times: dict[tuple[str, str], list[float]] = {}
    tokens: dict[tuple[str, str], int] = {}
    for turn in range(rounds + 1):
        for name, kind, num_beams in searches:
            start = time.perf_counter()
            found = translators[name].translate(texts, num_beams=num_beams)
            seconds = time.perf_counter() - start
            if turn > 0:
                times.setdefault((name, kind), []).append(seconds)
            tokens[name, kind] = sum(len(hypotheses[0].ids) for hypotheses in found)
    speeds: dict[str, dict[str, dict[str, float]]] = {name: {} for name in translators}
    for name, kind, num_beams in searches:
        seconds = statistics.median(times[name, kind])
        speeds[name][kind] = {
            "num_beams": num_beams,
            "seconds": round(seconds, 4),
            "sentences_per_second": round(len(texts) / seconds, 1),
            "tokens_per_second": round(tokens[name, kind] / seconds, 1),
        }
    return speeds


def hardware() -> dict[str, Any]:
    """Finds what speeds depend on: backend, versions, devices, processor, cores.

    Returns:
        A dict that JSON can hold.
    """
    backend = keras.backend.backend()
    devices = keras.distribution.list_devices()
    try:
        cores = len(os.sched_getaffinity(0))  # those that this process may use
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    return {
        "backend": f"{backend} {version(backend)}",
        "keras": version("keras"),
        "devices": devices,
        "accelerators": _accelerators() if "gpu" in "".join(devices) else [],
        "processor": _processor(),
        "cores": cores,
    }


def hardware_line(found: dict[str, Any]) -> str:
    """Writes out what `hardware` found.

    Args:
        found: The dict.
    """
    parts = [f"{found['cores']} cores of {found['processor']}"]
    parts += found["accelerators"] or [", ".join(found["devices"])]
    return ", ".join([*parts, found["backend"], f"Keras {found['keras']}"])


def _processor() -> str:
    """The processor's name, or at least its kind."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, "").strip() or platform.processor() or platform.machine()


def _accelerators() -> list[str]:
    """Names of the graphics processors, if the driver's tool is there to tell."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    return done.stdout.splitlines() if done.returncode == 0 else []
