"""The files of named data sets, made from where the user has them and checked.

Behind the command `prepare`: it takes the upstream files from a folder or an address,
brings them into the form that `corpora` reads, and compares line counts and SHA-256
sums. The texts themselves are no part of this package.
"""

import hashlib
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPException
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from keras_seq2seq.corpora import Pair, split_pairs, write_pairs
from keras_seq2seq.dates import generate_dates
from keras_seq2seq.lines import read_lines, write_lines

NAMES = (
    "multi30k",
    "sigmorphon2021_g2p",
    "scan",
    "dates",
    "taylor_electricity",
    "ett",
)
VARIANTS = ("tokenised", "raw")
NUM_DATES = {"train": 20_000, "valid": 1_000, "test": 1_000}
UPSTREAM = {
    "multi30k": "multi30k/dataset, commit a3d2e0d26b56f3846f66a952536ffed4e401d05a",
    "sigmorphon2021_g2p": (
        "sigmorphon/2021-task1, commit 821bcdece5a47820872215969f275004b0abe80c"
    ),
    "scan": "brendenlake/SCAN, commit c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f",
    "ett": "zhouhaoyi/ETDataset, commit 1d16c8f4f943005d613b5bc962e9eeb06058cf07",
}
# Upstream has the numbers as code, so this makes the file that is read here.
TAYLOR_PROGRAM = """\
from pmdarima.datasets import load_taylor

with open("taylor.csv", "w", encoding="utf-8", newline="\\n") as file:
    file.write("half_hour,MW\\n")
    for number, demand in enumerate(load_taylor()):
        file.write(f"{number},{demand:.0f}\\n")
"""

# Number of lines, SHA-256 sum and name of each prepared file.
_MULTI30K = """
29000 65781ae8280c389323b3f9c38794021c633d1eb12a74c02e0310974cd61195f8 train.en
29000 cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505 train.de
1014 46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec valid.en
1014 97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00 valid.de
1000 5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2 test_2016_flickr.en
1000 c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4 test_2016_flickr.de
"""  # noqa: E501
_MULTI30K_RAW = """
29000 460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6 train.en
29000 128675a4ceba176e2180e4f71ba3095b0b896475204506bc8b21ab4189a9f033 train.de
29000 b47e97734763b5252a979d767955c270f2c93e9e79f8ef063f71088a26e3c5a9 train.fr
1014 1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227 valid.en
1014 660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660 valid.de
1014 05f2ed05aa5bf06567b3d7ad3121f6346ebd909265383dc79dbe08ef707b7bc2 valid.fr
1000 399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182 test_2016_flickr.en
1000 4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16 test_2016_flickr.de
1000 57a705a12ffb81f3da3539798bdaaaa8f2df5824de3a84e0f4ea378dab959b62 test_2016_flickr.fr
"""  # noqa: E501
_G2P = """
8000 2cfc0ded02151377cb6fa25cae112acb7f3c0d1d92d5479de19799687b0be8d2 arm_e_train
1000 151b26dd407836cbaea4110018a2090e6d627cb98ca5febcfe29bb48bec3bff1 arm_e_valid
1000 4b2301ef999b9f63d71b05825002a015ef4ce62b1dd56de924c78f237ebb5545 arm_e_test
8000 a0ad49ef705339bf7d7a301cf97cd33a5ab72743b4367914abe42c18ee835170 bul_train
1000 f503124b83dff9ff2f248f39374bf7b8f93a915dafdee6c72f15f7bdf4317d01 bul_valid
1000 b4a7d382bf94ca5f1b8e5d6c03f567b5837eb5272da67fab8aef1dcfe967450b bul_test
8000 08d327412cbf809a4cf894e015975d91588a38e8e05fb86450f42a4a38e534b8 dut_train
1000 77a896e9510b6ebc610a9bc6a1bf32a06bc85489e9056caf77d996bb107318aa dut_valid
1000 eb31a13e8f797f1bda23194689805c8ea0cd6960e86f739d1e818f1815c287ae dut_test
33344 bbe76f57ee799ef9094b1ed1fecf8861e754ac57c6aa4db7d5b18892c5401f7f eng_us_train
4168 dcce99504c5f8a00ebf13499aa4d4c2b7fc37614b65127c98aa871855e77080e eng_us_valid
4168 726192932a69a7197348ee64898613e94968234ce426cfc67d984baf5ddd317c eng_us_test
8000 e9de4f5125d2478e50506c5ed278f69d5fb17d8d213f99f845305c24e28a55c2 fre_train
1000 3b42f14f318367dd94faa6d59e8fafabd845a3998800b6ce71a7c67e999490da fre_valid
1000 6202c2b7b8d5fbd76a4d40373f9564a9946671dab617438b534bd47c64071c92 fre_test
8000 b4bf802445c2de3db73e20c2d6c51868e6c66ddb7abc64f5398469cf5c54e9c5 hbs_latn_train
1000 38b3ab21d522b0553e97d62784287cf62e29460360bec8f20b32bbb47b2a7cbc hbs_latn_valid
1000 8d0bdc358b35ccaf1cc2068b5304d92a90768c7ac608c2bba8d632e90bfaffd8 hbs_latn_test
8000 cd6bea5ae552bc73a63abf459af5f41d27c1c276b4a15de49f1fffd23ee4d363 hun_train
1000 a2892c27cf6d3075aacdd195c02bf34f8b509bcc08bb230b758d7978a7d920d0 hun_valid
1000 e9ec4ba9c89808864e6518e529e21cda6fe51287ad7a5a1fc23668cc64f31159 hun_test
8000 8f2a60af78668db3c2c4d201938a822d7fc7808ffd64b12504723f3ff64fea4c vie_hanoi_train
1000 5d56e7d14dc4d90758d2d4ba0c74f3531b4e05b5344346786e2a1b1b447093ca vie_hanoi_valid
1000 ed555cb71d164b1be52e72b5bd398fe5a787e1a598418498b67dcb1ab6fb439e vie_hanoi_test
"""
_SCAN = """
15874 05e810677a91a6013aa52640d93c02e9f55ba4f6e7a20b7f231b154f240a9d25 train.tsv
854 1b661e0da87588f770baef8c03477e37f05dfe2fd4e01fea948b725951f4bad1 valid.tsv
4182 d4b3adcfefebd8b6138f5e7d256b5eda0f81f18bb8f2ccc89c9737c5cc077100 test.tsv
"""
_TAYLOR = """
4033 6e33bad7f586c826e82bac1fdf01b0343482d68997abfec2b1e1d7796ce86c58 taylor.csv
"""
_ETT = """
17421 f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066 ETTh1.csv
"""


class Expected(NamedTuple):
    """What a prepared file must be: its number of lines and its SHA-256 sum."""

    lines: int
    sha256: str


def _parse(table: str, suffix: str = "") -> dict[str, Expected]:
    rows = (line.split() for line in table.strip().splitlines())
    return {name + suffix: Expected(int(lines), digest) for lines, digest, name in rows}


EXPECTED = {
    "multi30k": _parse(_MULTI30K),
    "multi30k_raw": _parse(_MULTI30K_RAW),
    "sigmorphon2021_g2p": _parse(_G2P, ".tsv"),
    "scan": _parse(_SCAN),
    "taylor_electricity": _parse(_TAYLOR),
    "ett": _parse(_ETT),
}


def prepare(
    name: str,
    *,
    origin: str | Path | None = None,
    output: str | Path | None = None,
    variant: str = "tokenised",
    log: Callable[[str], None] | None = None,
) -> Path:
    """Make the files of a named data set.

    `multi30k`: `{train,valid,test_2016_flickr}.{en,de}`, lower-cased and tokenised, or
    also `fr`, as first written, in the variant "raw". `sigmorphon2021_g2p`:
    `LANGUAGE_{train,valid,test}.tsv`, word and phones, for the languages of the
    origin. `scan` (simple split): `{train,valid,test}.tsv`, where a twentieth of
    upstream's training set makes the validation set. `dates`: `{train,valid,test}.tsv`,
    generated. `taylor_electricity`: `taylor.csv`; `ett`: `ETTh1.csv`; both series.

    Files that are right already are left alone; no file appears under its final name
    before it is whole and checked.

    Args:
        name: Name of the set, one of `NAMES`.
        origin: Folder or http(s) address that holds the upstream files, in the
            upstream project's layout or side by side. Not for `dates`.
        output: Folder for the files. Default: `data/NAME`, and `data/multi30k_raw`
            for the raw variant.
        variant: "tokenised" or "raw", of `multi30k`.
        log: Function that is told what was done, one line a file.

    Returns:
        The output folder.

    Raises:
        FileNotFoundError: If the origin lacks a file.
        ValueError: If an argument is wrong, the origin cannot be reached, or a file
            differs from the expected one.
    """
    if name not in NAMES:
        raise ValueError(
            f"`name` must be one of {', '.join(NAMES)}. Received: {name!r}."
        )
    if variant not in VARIANTS or (variant == "raw" and name != "multi30k"):
        raise ValueError(
            '`variant` must be "tokenised" or, for multi30k, "raw". '
            f"Received: {variant!r} for {name}."
        )
    log = log or (lambda line: None)
    key = name if variant == "tokenised" else f"{name}_{variant}"
    folder = Path("data", key) if output is None else Path(output)
    if name == "dates":
        _prepare_dates(folder, origin, log)
        return folder
    expected = EXPECTED[key]
    wrong = [file for file in expected if not _is_right(folder / file, expected[file])]
    for file in expected:
        if file not in wrong:
            log(f"{folder / file}: already there")
    if wrong and origin is None:
        raise ValueError(
            f"The set {name} needs the place of its files: pass --from (in Python, "
            f"`origin`) with a folder or an http(s) address. {_source(key, wrong)}"
        )
    if wrong:
        with tempfile.TemporaryDirectory() as downloads:
            place = _Place(str(origin), Path(downloads))
            _make_files(key, wrong, place, folder, log)
    return folder


def _prepare_dates(
    folder: Path, origin: str | Path | None, log: Callable[[str], None]
) -> None:
    if origin is not None:
        raise ValueError(
            "`origin` (--from) is not for the set dates, which is generated. "
            f"Received: {str(origin)!r}."
        )
    pairs = generate_dates(sum(NUM_DATES.values()), seed=0)
    for split, count in NUM_DATES.items():
        path = folder / f"{split}.tsv"
        chosen, pairs = pairs[:count], pairs[count:]
        text = "".join(f"{pair.source}\t{pair.target}\n" for pair in chosen)
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
        if _is_right(path, Expected(count, digest)):
            log(f"{path}: already there")
        else:
            log(f"{path}: {write_pairs(path, chosen):,} pairs")


def _make_files(
    key: str,
    files: list[str],
    place: "_Place",
    folder: Path,
    log: Callable[[str], None],
) -> None:
    """Make files of a set; a language that the origin lacks entirely is left out."""
    made = 0
    for _, group in groupby(files, lambda file: _language(key, file)):
        found = {file: place.find(_origins(key, file)) for file in group}
        missing = [file for file, path in found.items() if path is None]
        if missing and not (key == "sigmorphon2021_g2p" and len(missing) == 3):
            raise _missing(key, missing[0], place)
        for file, path in found.items():
            if path is not None:
                lines = _checked(_lines(key, file, path), EXPECTED[key][file], file)
                log(f"{folder / file}: {write_lines(folder / file, lines):,} lines")
                made += 1
    if not made and len(files) == len(EXPECTED[key]):
        raise _missing(key, files[0], place)


def _source(key: str, files: list[str]) -> str:
    """Says where a user gets what `origin` must hold."""
    if key == "taylor_electricity":
        return (
            "This program makes the file taylor.csv of the numbers in the "
            "Python package pmdarima (pip install pmdarima==2.1.1):\n\n"
            f"{TAYLOR_PROGRAM}"
        )
    names = ", ".join(_origins(key, files[0]))
    project = UPSTREAM[key.removesuffix("_raw")]
    more = " and so on" if len(files) > 1 else ""
    return f"They come from the GitHub project {project}: {names}{more}."


def _missing(key: str, file: str, place: "_Place") -> FileNotFoundError:
    return FileNotFoundError(
        f"`origin` must hold one of {', '.join(_origins(key, file))}. "
        f"Received: {place.origin}. {_source(key, [file])}"
    )


def _language(key: str, file: str) -> str:
    return file.rsplit("_", 1)[0] if key == "sigmorphon2021_g2p" else ""


def _origins(key: str, file: str) -> tuple[str, ...]:
    """Where a prepared file's text may lie: side by side, or as in the project."""
    if key == "taylor_electricity":
        return (file,)
    if key == "ett":
        return file, f"ETT-small/{file}"
    if key == "scan":
        side = "test" if file == "test.tsv" else "train"
        return f"simple_{side}.tsv", f"simple_split/tasks_{side}_simple.txt"
    if key == "sigmorphon2021_g2p":
        file = file.replace("_valid.", "_dev.")
        return file, f"data/medium/{file}", f"data/high/{file}"
    file = file.replace("valid.", "val.")
    if key == "multi30k_raw":
        return file, f"data/task1/raw/{file}.gz"
    split, language = file.split(".")
    upstream = f"data/task1/tok/{split}.lc.norm.tok.{language}"
    return f"lc.norm.tok/{file}", upstream


def _lines(key: str, file: str, path: Path) -> Iterable[str]:
    """Read an upstream file in the form of the prepared one."""
    lines = read_lines(path)
    if key == "scan":
        pairs = [_parse_scan(line) for line in lines]
        train, valid, _ = split_pairs(pairs, valid=0.05, test=0.0, seed=0)
        chosen = {"train.tsv": train, "valid.tsv": valid, "test.tsv": pairs}[file]
        return [f"{pair.source}\t{pair.target}" for pair in chosen]
    if key in ("sigmorphon2021_g2p", "taylor_electricity", "ett"):
        return lines
    return (line.replace("\t", " ").rstrip() for line in lines)


def _parse_scan(line: str) -> Pair:
    match = re.fullmatch(r"IN: (.*) OUT: (.*)", line)
    if match:
        return Pair(match[1], re.sub(r"\bI_", "", match[2]))
    source, _, target = line.partition("\t")
    return Pair(source, target)


def _checked(lines: Iterable[str], expected: Expected, name: str) -> Iterator[str]:
    """Pass lines through, and raise after the last one unless they are right."""
    digest, count = hashlib.sha256(), 0
    for count, line in enumerate(lines, start=1):  # noqa: B007
        digest.update(f"{line}\n".encode())
        yield line
    received = Expected(count, digest.hexdigest())
    if received != expected:
        raise ValueError(
            f"{name} does not come out as it must, so the origin's file is another "
            f"version or damaged. Expected {expected.lines:,} lines with the SHA-256 "
            f"sum {expected.sha256}, received {received.lines:,} lines with "
            f"{received.sha256}."
        )


def _is_right(path: Path, expected: Expected) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == expected.sha256


class _Place:
    """A folder or an http(s) address with files; downloads each file once."""

    def __init__(self, origin: str, downloads: Path) -> None:
        self.origin = origin
        self.downloads = downloads
        scheme = origin.partition("://")[0].lower() if "://" in origin else ""
        if scheme not in ("", "http", "https"):
            raise ValueError(
                "`origin` must be a folder or an address that starts with http:// or "
                f"https://. Received: {origin!r}."
            )
        self.is_address = bool(scheme)
        if not self.is_address and not Path(origin).is_dir():
            raise FileNotFoundError(
                "`origin` must be an existing folder or an address. There is no "
                f"folder {origin!r}."
            )

    def find(self, names: Iterable[str]) -> Path | None:
        """Return a local path of the first of these files that exists."""
        for name in names:
            path = self._download(name) if self.is_address else Path(self.origin, name)
            if path is not None and path.is_file():
                return path
        return None

    def _download(self, name: str) -> Path | None:
        path = self.downloads / quote(name, safe="")
        address = f"{self.origin.rstrip('/')}/{quote(name)}"
        if path.exists():
            return path
        try:
            with urllib.request.urlopen(address, timeout=60) as response:
                with path.open("wb") as stream:
                    shutil.copyfileobj(response, stream)
        except (OSError, HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code in (404, 410):
                    return None
            raise ValueError(
                f"`origin` must be reachable. {address} answered: {error}. Try again, "
                "or fetch the files by other means and pass their folder."
            ) from None
        return path
