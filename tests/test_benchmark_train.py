"""The training benchmark runs and writes its figures; PyTorch is not needed."""

import json
import subprocess
import sys
from pathlib import Path

import keras

ROOT = Path(__file__).parents[1]


def test_it_reports_the_time_and_the_loss_of_each_side(tmp_path):
    file = tmp_path / "train.json"
    command = [sys.executable, "benchmarks/train.py", "--quick", "--models", "bahdanau"]
    command += ["--ours", keras.backend.backend(), "--peers", "--json", str(file)]
    process = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["settings"]["dim"] == 8
    (result,) = report["results"]
    assert (result["model"], result["ratio"]) == ("bahdanau", None)
    (row,) = result["rows"]
    assert row["side"] == keras.backend.backend()
    assert len(row["times_ms"]) == 2 and min(row["times_ms"]) > 0
    # Targets of at most 4 x 6 tokens; the loss starts at log 20 = 3.0.
    assert 0 < row["tokens_per_second"] <= 24 / (min(row["times_ms"]) / 1000)
    assert 2.5 < row["loss"] < 3.5
    assert f"{row['tokens_per_second']:,.0f}" in process.stdout
