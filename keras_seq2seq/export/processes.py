"""Starts a program of this folder in a fresh process, and reads its report."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 1800


def report_of(program: Path, folder: Path, asked: Any) -> Any:
    """Runs a program over a copy of an export, which it finds under another name.

    Args:
        program: File to run: `python -P program FOLDER REQUESTS.json REPORT.json`.
        folder: The export.
        asked: What the program reads, values for JSON.

    Returns:
        What the program wrote.

    Raises:
        RuntimeError: If it fails, with the last line that it printed.
        subprocess.TimeoutExpired: If it takes half an hour.
    """
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        moved = Path(place) / "renamed" / "7"
        shutil.copytree(folder, moved)
        requests, report = Path(place) / "requests.json", Path(place) / "report.json"
        requests.write_text(json.dumps(asked), encoding="utf-8")
        done = subprocess.run(
            # -P: neither this folder nor the current one is searched for modules.
            [sys.executable, "-P", str(program), moved, requests, report],
            cwd=place,
            # The server's usual device, whatever is in use here.
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise RuntimeError(f"the process that loads it failed: {lines[-1]}")
        return json.loads(report.read_text(encoding="utf-8"))
