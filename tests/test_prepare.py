import gzip
import hashlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from keras_seq2seq import prepare as prepare_module
from keras_seq2seq.corpora import PairCorpus
from keras_seq2seq.prepare import EXPECTED, Expected, prepare


def expect(text):
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return Expected(text.count("\n"), digest)


SCAN = [f"walk {number}\tWALK {number}\n" for number in range(40)]


@pytest.fixture
def tiny(monkeypatch):
    """Stand-ins for the upstream files: path in the origin -> text."""
    files = {
        "lc.norm.tok/train.en": "a dog .\ntwo dogs .\n",
        "lc.norm.tok/train.de": "ein hund .\nzwei hunde .\n",
        "lc.norm.tok/val.en": "a cat .\n",
        "lc.norm.tok/val.de": "eine katze .\n",
        "aaa_train.tsv": "ab\ta b\n",
        "aaa_dev.tsv": "ba\tb a\n",
        "aaa_test.tsv": "bb\tb b\n",
        "bbb_train.tsv": "é\te ː\n",
        "bbb_dev.tsv": "éé\te ː e ː\n",
        "bbb_test.tsv": "e\te\n",
        "simple_train.tsv": "".join(SCAN),
        "simple_test.tsv": "jump\tJUMP\n",
        "taylor.csv": "half_hour,MW\n0,10\n1,12\n",
        "ETTh1.csv": "date,OT\n2020-01-01 00:00:00,1.5\n",
    }
    # The twentieth of `SCAN` whose hashes are lowest, found by the split itself.
    valid = [line for line in SCAN if line.split("\t")[0] in ("walk 12", "walk 15")]
    train = [line for line in SCAN if line not in valid]
    expected = {
        "multi30k": {
            f"{file.split('/')[1].replace('val', 'valid')}": expect(text)
            for file, text in files.items()
            if "/" in file
        },
        "sigmorphon2021_g2p": {
            file.replace("_dev", "_valid"): expect(text)
            for file, text in files.items()
            if file[:4] in ("aaa_", "bbb_")
        },
        "scan": {
            "train.tsv": expect("".join(train)),
            "valid.tsv": expect("".join(valid)),
            "test.tsv": expect(files["simple_test.tsv"]),
        },
        "taylor_electricity": {"taylor.csv": expect(files["taylor.csv"])},
        "ett": {"ETTh1.csv": expect(files["ETTh1.csv"])},
    }
    monkeypatch.setattr(prepare_module, "EXPECTED", expected)
    return files


def write_files(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        path.write_bytes(data)
    return folder


def names_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def serve(monkeypatch):
    """Serve files from memory on the loopback; return the address and the requests."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(files, *, promise=0, status=404):
        requests = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                requests.append(self.path)
                content = files.get(self.path.removeprefix("/base/"))
                if content is None:
                    self.send_error(status)
                    return
                data = content.encode("utf-8") if isinstance(content, str) else content
                self.send_response(200)
                self.send_header("Content-Length", str(len(data) + promise))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/base/", requests

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_expected_files_of_each_set_are_known():
    counts = {
        key: {name: expected.lines for name, expected in files.items()}
        for key, files in EXPECTED.items()
    }
    languages = {"train": 29_000, "valid": 1_014, "test_2016_flickr": 1_000}
    assert counts["multi30k"] == {
        f"{split}.{language}": lines
        for split, lines in languages.items()
        for language in ("en", "de")
    }
    assert len(counts["multi30k_raw"]) == 9
    assert counts["multi30k_raw"].items() >= counts["multi30k"].items()
    g2p = counts["sigmorphon2021_g2p"]
    assert len(g2p) == 24
    assert [g2p[f"fre_{side}.tsv"] for side in ("train", "valid", "test")] == [
        8_000,
        1_000,
        1_000,
    ]
    assert g2p["eng_us_train.tsv"] == 33_344
    scan = counts["scan"]
    assert scan["train.tsv"] + scan["valid.tsv"] == 16_728
    assert scan["test.tsv"] == 4_182
    sums = [file.sha256 for files in EXPECTED.values() for file in files.values()]
    assert all(len(digest) == 64 for digest in sums)
    assert len(set(sums)) == len(sums)


def test_multi30k_from_a_folder(tiny, tmp_path):
    origin = write_files(tmp_path / "origin", tiny)
    output = prepare("multi30k", origin=origin, output=tmp_path / "new" / "out")
    assert output == tmp_path / "new" / "out"
    assert names_in(output) == ["train.de", "train.en", "valid.de", "valid.en"]
    pairs = list(PairCorpus(source=output / "train.en", target=output / "train.de"))
    assert pairs == [("a dog .", "ein hund ."), ("two dogs .", "zwei hunde .")]


def test_multi30k_in_the_layout_of_the_project(tiny, tmp_path):
    # Upstream's lines may end in blanks and hold odd separators.
    odd = {"a dog .\n": "a\tdog . \n", "a cat .\n": "a\u2028cat .  \n"}
    upstream = {}
    for name, text in tiny.items():
        if "/" in name:
            split, language = name.removeprefix("lc.norm.tok/").split(".")
            for line, odd_line in odd.items():
                text = text.replace(line, odd_line)
            upstream[f"data/task1/tok/{split}.lc.norm.tok.{language}"] = text
    assert "a\tdog . \n" in upstream["data/task1/tok/train.lc.norm.tok.en"]
    origin = write_files(tmp_path / "origin", upstream)
    output = prepare("multi30k", origin=str(origin), output=str(tmp_path / "out"))
    text = (output / "train.en").read_text(encoding="utf-8")
    assert text == tiny["lc.norm.tok/train.en"]


def test_the_raw_variant_is_unzipped(monkeypatch, tmp_path):
    text = "Ein Hund.\nUn chien.\n"
    expected = {"valid.fr": expect(text)}
    monkeypatch.setitem(prepare_module.EXPECTED, "multi30k_raw", expected)
    monkeypatch.chdir(tmp_path)
    content = gzip.compress(text.encode("utf-8"))
    origin = write_files(tmp_path / "origin", {"data/task1/raw/val.fr.gz": content})
    output = prepare("multi30k", origin=origin, variant="raw")
    assert (tmp_path / output).resolve() == tmp_path / "data" / "multi30k_raw"
    assert (output / "valid.fr").read_text(encoding="utf-8") == text


def test_g2p_takes_the_languages_that_are_there(tiny, tmp_path):
    only = {name: text for name, text in tiny.items() if name.startswith("bbb_")}
    origin = write_files(tmp_path / "origin", only)
    for _ in range(2):
        output = prepare("sigmorphon2021_g2p", origin=origin, output=tmp_path / "out")
        assert names_in(output) == ["bbb_test.tsv", "bbb_train.tsv", "bbb_valid.tsv"]
    assert list(PairCorpus(path=output / "bbb_train.tsv")) == [("é", "e ː")]


def test_g2p_with_part_of_a_language_names_what_is_missing(tiny, tmp_path):
    del tiny["bbb_dev.tsv"]
    origin = write_files(tmp_path / "origin", tiny)
    with pytest.raises(FileNotFoundError, match=r"bbb_dev\.tsv, data/medium/bbb_dev"):
        prepare("sigmorphon2021_g2p", origin=origin, output=tmp_path / "out")


def test_scan_in_either_layout_gives_the_same_files(tiny, tmp_path):
    upstream = {}
    for side in ("train", "test"):
        rows = [line.split("\t") for line in tiny[f"simple_{side}.tsv"].splitlines()]
        upstream[f"simple_split/tasks_{side}_simple.txt"] = "".join(
            f"IN: {source} OUT: I_{target}\n" for source, target in rows
        )
    outputs = [
        prepare("scan", origin=write_files(tmp_path / name, files), output=out)
        for name, files, out in (
            ("a", tiny, tmp_path / "out_a"),
            ("b", upstream, tmp_path / "out_b"),
        )
    ]
    for name in ("train.tsv", "valid.tsv", "test.tsv"):
        first, second = ((output / name).read_bytes() for output in outputs)
        assert first == second
    held_out = (outputs[0] / "valid.tsv").read_text(encoding="utf-8")
    training = (outputs[0] / "train.tsv").read_text(encoding="utf-8")
    assert sorted((training + held_out).splitlines(keepends=True)) == sorted(SCAN)


def test_an_address_serves_as_origin_and_files_are_fetched_once(tiny, serve, tmp_path):
    address, requests = serve(tiny)
    output = prepare("scan", origin=address, output=tmp_path / "out")
    assert requests == ["/base/simple_train.tsv", "/base/simple_test.tsv"]
    assert names_in(tmp_path) == ["test.tsv", "train.tsv", "valid.tsv"]
    assert list(PairCorpus(path=output / "test.tsv")) == [("jump", "JUMP")]


def test_files_that_are_right_are_left_alone(tiny, serve, tmp_path):
    address, requests = serve(tiny)
    output = prepare("multi30k", origin=address, output=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in output.iterdir()}
    requests.clear()
    log = []
    prepare("multi30k", origin=address, output=tmp_path, log=log.append)
    prepare("multi30k", output=tmp_path)  # no origin is needed then
    assert requests == []
    assert {path: path.stat().st_mtime_ns for path in output.iterdir()} == before
    assert log == [
        f"{tmp_path / name}: already there"
        for name in ("train.en", "train.de", "valid.en", "valid.de")
    ]


def test_a_wrong_file_is_made_anew(tiny, serve, tmp_path):
    address, requests = serve(tiny)
    prepare("multi30k", origin=address, output=tmp_path)
    requests.clear()
    (tmp_path / "train.de").write_text("half a fi", encoding="utf-8")
    log = []
    prepare("multi30k", origin=address, output=tmp_path, log=log.append)
    assert requests == ["/base/lc.norm.tok/train.de"]
    assert f"{tmp_path / 'train.de'}: 2 lines" in log
    text = (tmp_path / "train.de").read_text(encoding="utf-8")
    assert text == tiny["lc.norm.tok/train.de"]


def test_a_file_of_another_version_is_refused_with_both_counts(tiny, tmp_path):
    tiny["lc.norm.tok/train.de"] += "drei hunde .\n"
    origin = write_files(tmp_path / "origin", tiny)
    with pytest.raises(
        ValueError, match=r"train\.de .*Expected 2 lines .* received 3 lines"
    ):
        prepare("multi30k", origin=origin, output=tmp_path / "out")
    assert names_in(tmp_path / "out") == ["train.en"]


def test_a_cut_download_leaves_no_file(tiny, serve, tmp_path):
    tiny["simple_train.tsv"] = tiny["simple_train.tsv"][:100]
    address, _ = serve(tiny, promise=500)
    with pytest.raises(ValueError, match=r"train\.tsv|reachable"):
        prepare("scan", origin=address, output=tmp_path / "out")
    assert names_in(tmp_path) == []


def test_an_address_without_the_files_names_them(tiny, serve, tmp_path):
    address, requests = serve({})
    with pytest.raises(FileNotFoundError) as error:
        prepare("scan", origin=address, output=tmp_path)
    error.match(r"simple_train\.tsv, simple_split/tasks_train_simple\.txt")
    error.match(address)
    assert requests[:2] == [
        "/base/simple_train.tsv",
        "/base/simple_split/tasks_train_simple.txt",
    ]


def test_a_failing_server_is_named_with_its_answer(tiny, serve, tmp_path):
    address, _ = serve({}, status=503)
    with pytest.raises(ValueError, match=r"/base/simple_train\.tsv answered: .*503"):
        prepare("scan", origin=address, output=tmp_path)


@pytest.mark.parametrize(
    ("name", "project"),
    [
        ("multi30k", "multi30k/dataset, commit a3d2e0d"),
        ("sigmorphon2021_g2p", "sigmorphon/2021-task1, commit 821bcde"),
        ("scan", "brendenlake/SCAN, commit c4b756c"),
    ],
)
def test_without_an_origin_the_message_says_where_the_data_is(name, project, tmp_path):
    with pytest.raises(ValueError, match=rf"pass --from .*{project}"):
        prepare(name, output=tmp_path)


def test_a_set_of_one_file_names_it_alone(tmp_path):
    with pytest.raises(ValueError, match=r"ETDataset.*: ETTh1\.csv, ETT-small/ETTh1"):
        prepare("ett", output=tmp_path)


def test_the_program_for_the_half_hourly_demand_makes_the_file(monkeypatch, tmp_path):
    """The message and the page on data have it; here pmdarima has two numbers."""
    datasets = ModuleType("pmdarima.datasets")
    datasets.load_taylor = lambda: [10.0, 12.0]
    monkeypatch.setitem(sys.modules, "pmdarima", ModuleType("pmdarima"))
    monkeypatch.setitem(sys.modules, "pmdarima.datasets", datasets)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="pmdarima==2.1.1") as error:
        prepare("taylor_electricity", output=tmp_path / "out")
    program = str(error.value).partition(":\n\n")[2]
    page = Path(__file__).parents[1] / "docs" / "data.md"
    assert f"```python\n{program}```" in page.read_text(encoding="utf-8")
    exec(program, {})  # noqa: S102
    assert Path("taylor.csv").read_bytes() == b"half_hour,MW\n0,10\n1,12\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "wmt14"}, "multi30k, sigmorphon2021_g2p, scan, dates. .*'wmt14'"),
        ({"name": "scan", "variant": "raw"}, "Received: 'raw' for scan"),
        ({"name": "multi30k", "variant": "bpe"}, "Received: 'bpe' for multi30k"),
        ({"name": "scan", "origin": "ftp://host/x"}, "Received: 'ftp://host/x'"),
        ({"name": "dates", "origin": "somewhere"}, "Received: 'somewhere'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        prepare(**arguments, output=tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder '.*nowhere'"):
        prepare("scan", origin=tmp_path / "nowhere", output=tmp_path)


def test_dates_are_generated_without_an_origin(monkeypatch, tmp_path):
    sizes = {"train": 60, "valid": 20, "test": 20}
    monkeypatch.setattr(prepare_module, "NUM_DATES", sizes)
    log = []
    output = prepare("dates", output=tmp_path, log=log.append)
    sides = {split: list(PairCorpus(path=output / f"{split}.tsv")) for split in sizes}
    assert {split: len(pairs) for split, pairs in sides.items()} == sizes
    sources = [pair.source for pairs in sides.values() for pair in pairs]
    assert len(set(sources)) == 100
    prepare("dates", output=tmp_path, log=log.append)
    paths = [tmp_path / f"{split}.tsv" for split in sizes]
    assert log == [
        *(f"{path}: {sizes[path.stem]} pairs" for path in paths),
        *(f"{path}: already there" for path in paths),
    ]


@pytest.mark.parametrize(
    ("name", "file", "place"),
    [
        ("taylor_electricity", "taylor.csv", ""),
        ("ett", "ETTh1.csv", ""),
        ("ett", "ETTh1.csv", "ETT-small/"),
    ],
)
def test_series_are_checked_and_copied_as_they_are(tiny, tmp_path, name, file, place):
    origin = write_files(tmp_path / "origin", {place + file: tiny[file]})
    output = prepare(name, origin=origin, output=tmp_path / "out")
    assert names_in(output) == [file]
    assert (output / file).read_text(encoding="utf-8") == tiny[file]
    write_files(origin, {place + file: tiny[file].replace("1", "2")})
    (output / file).unlink()
    with pytest.raises(ValueError, match=f"{file} does not come out"):
        prepare(name, origin=origin, output=output)
    assert names_in(output) == []


def test_the_series_of_the_recipes_are_known():
    counts = {
        key: {name: expected.lines for name, expected in EXPECTED[key].items()}
        for key in ("taylor_electricity", "ett")
    }
    assert counts == {
        "taylor_electricity": {"taylor.csv": 84 * 48 + 1},
        "ett": {"ETTh1.csv": 17_420 + 1},
    }
