"""Whether benchmarks/decode_length.py runs; what it measures is no matter here."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_decode_length_measures_tiny_models(tmp_path):
    file = tmp_path / "decode_length.json"
    script = ROOT / "benchmarks" / "decode_length.py"
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "together, one batch" in done.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert set(report) == {
        *("backend", "machine", "settings", "parameters", "lengths", "mixed"),
    }
    searches = [(model, beams) for model in ("transformer", "gru") for beams in (1, 2)]

    found = [(r["model"], r["beams"], r["length"]) for r in report["lengths"]]
    assert found == [(*search, length) for search in searches for length in (4, 8)]
    for row in report["lengths"]:
        assert row["ms"] > 0
        assert row["ratio"] is None if row["length"] == 4 else row["ratio"] > 0

    ways = ["short alone", "long alone", "together, batch_tokens 24"]
    ways.append("together, one batch")
    found = [(r["model"], r["beams"], r["way"]) for r in report["mixed"]]
    assert found == [(*search, way) for search in searches for way in ways]
    assert all(row["ms"] > 0 and row["ratio"] > 0 for row in report["mixed"])
    # Rows and width of each batch: of 24 positions at most, or of all that there is.
    batches = [row["batches"] for row in report["mixed"][:4]]
    assert batches == [[[2, 8], [1, 8]], [[1, 8]], [[2, 8], [2, 8]], [[4, 8]]]
