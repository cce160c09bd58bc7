"""What verifications are made of: sums, manifests, quality lost."""

import json
from types import SimpleNamespace

import pytest

from keras_seq2seq.export import manifest
from keras_seq2seq.export.checks import check_bleu, check_files, listed
from keras_seq2seq.export.manifest import as_translator, file_sums, read_manifest

# The SHA-256 of "abc", FIPS 180-2, appendix B.1.
SUM_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def export(tmp_path):
    """A folder with a file in a folder, and the sums of both."""
    (tmp_path / "assets.extra").mkdir()
    for name in ("one", "assets.extra/two"):
        (tmp_path / name).write_text("abc", encoding="utf-8")
    sums = {"one": SUM_OF_ABC, "assets.extra/two": SUM_OF_ABC}
    text = json.dumps({"kind": "litert", "files": sums})
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    return tmp_path


def test_sums_are_of_all_files_but_the_manifest(export):
    assert file_sums(export) == {"one": SUM_OF_ABC, "assets.extra/two": SUM_OF_ABC}
    check = check_files(export)
    assert (check.ok, check.detail) == (True, "2 files as in manifest.json")


def test_changed_missing_and_new_files_are_named(export):
    (export / "one").write_text("abd", encoding="utf-8")
    assert check_files(export).detail == "not as in manifest.json: one"
    (export / "one").unlink()
    assert check_files(export).detail == "not as in manifest.json: one"
    (export / "more").write_text("abc", encoding="utf-8")
    assert check_files(export).detail == "not as in manifest.json: more, one"
    (export / "assets.extra" / "two").unlink()
    assert not check_files(export).ok
    assert "assets.extra/two, more, one" in check_files(export).detail


def test_warmup_requests_may_be_added_and_not_changed(export):
    (export / "assets.extra" / "tf_serving_warmup_requests").write_bytes(b"x")
    assert check_files(export).ok
    (export / "assets.extra" / "two").write_bytes(b"x")
    assert check_files(export).detail == "not as in manifest.json: assets.extra/two"


def test_a_folder_without_a_readable_manifest_is_named(export, tmp_path):
    file = export / "manifest.json"
    for text in ("[]", '{"kind": "litert"}'):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"manifest.json is no manifest of an exp"):
            read_manifest(export)
    file.write_text('{"files"', encoding="utf-8")
    with pytest.raises(ValueError, match=r"manifest.json"):
        read_manifest(export)
    file.unlink()
    assert check_files(export).detail == "no manifest.json; export the run again"
    with pytest.raises(FileNotFoundError, match=r"No manifest.json in .*`export` wr"):
        read_manifest(export)


def test_a_check_tells_a_few_of_many_wrong_things():
    check = listed("names", ["a", "b", "c", "d", "e"], "good")
    assert (check.ok, check.detail) == (False, "a; b; c; and 2 more")
    check = listed("names", ["a", "b"], "good", most=2)
    assert (check.ok, check.detail) == (False, "a; b")
    check = listed("names", [], "good")
    assert (check.ok, check.detail) == (True, "good")


def test_quality_may_fall_by_three_tenths_of_bleu():
    translator = SimpleNamespace(config=None)
    references = ["a b c d e f g h"] * 100
    assert check_bleu(references, references, references, translator).detail == (
        "100.00, the run 100.00: +0.00"
    )
    # The mean of log(1 - 1/800), log(1 - 1/700), log(1 - 1/600) and log(1 - 1/500).
    ours = ["a b c d e f g x", *references[1:]]
    check = check_bleu(ours, references, references, translator)
    assert (check.ok, check.detail) == (True, "99.84, the run 100.00: -0.16")
    # In the middle it is in two pairs, three triples and four quadruples.
    ours = ["a b c d x f g h", *references[1:]]
    check = check_bleu(ours, references, references, translator)
    assert (check.ok, check.detail) == (False, "99.57, the run 100.00: -0.43")
    # Better than the run is no fault.
    assert check_bleu(references, ours, references, translator).ok


def test_a_run_of_numbers_has_no_text_to_export(monkeypatch):
    monkeypatch.setattr(manifest, "load", lambda folder: SimpleNamespace())
    with pytest.raises(ValueError, match=r"must be one of text. Received: runs/ett, w"):
        as_translator("runs/ett")
