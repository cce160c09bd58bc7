"""The whole path of the quick start, to the quality that README promises."""

import json

import pytest

from keras_seq2seq.quickstart import run_quickstart


@pytest.mark.slow
def test_quickstart_reads_dates_and_its_export_answers_alike(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    run = run_quickstart(tmp_path / "run", overrides=["training.epochs=2"])
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert results["sentences"] == 1000
    assert results["exact_match"] >= 97
    assert (run / "alignment.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "exports" / "saved_model" / "1" / "saved_model.pb").is_file()
    printed = capsys.readouterr()
    assert "All 10 answers are the same." in printed.err
    assert "->" in printed.out
