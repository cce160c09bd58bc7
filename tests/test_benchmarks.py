"""Whether the scripts of benchmarks/ run; what they measure is no matter here."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_decode_measures_a_tiny_model_in_a_worker(tmp_path):
    file = tmp_path / "decode.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "decode.py"), "--quick"]
    command += ["--runtimes", "graph", "--json", str(file)]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "batch 2, greedy" in done.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["missing"] == {}
    cells = {row["cell"]: row["runtimes"]["graph"] for row in report["cells"]}
    assert list(cells) == [
        "batch 1, greedy",
        "batch 1, beam 2",
        "batch 2, greedy",
        "batch 2, beam 2",
    ]
    for found in cells.values():
        assert found["median_ms"] == found["fastest_ms"] == found["times_ms"][0] > 0
        assert found["agreement"] == 1
        assert found["mean_length"] == 4
