"""Whether benchmarks/serving.py runs; what it measures is no matter here."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_benchmark_counts_answers_and_finds_no_mix_up(tiny_model, tmp_path):
    file, texts = tmp_path / "serving.json", tmp_path / "texts.txt"
    texts.write_text("a\nbü\n\na\nc d\n", encoding="utf-8")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "serving.py"), str(tiny_model)]
        + ["--clients", "2", "--requests", "3"]
        + ["--texts", str(texts), "--json", str(file)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "at once, merged" in done.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert set(report) == {"machine", "cores", "settings", "rows"}
    rows = report["rows"]
    assert [row["way"] for row in rows] == [
        *("one by one", "at once, not merged", "at once, merged"),
    ]
    assert [row["clients"] for row in rows] == [1, 2, 2]
    assert {row["answers"] for row in rows} == {6}
    assert {row["errors"] + row["mix_ups"] for row in rows} == {0}
    assert rows[0]["ratio"] == 1.0
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in rows)
