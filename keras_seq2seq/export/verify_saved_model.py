"""What is checked of a SavedModel, by running every signature as a server does."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.export import session_process
from keras_seq2seq.export.checks import Check, check_bleu, check_files, listed
from keras_seq2seq.export.graph_search import LOWEST_SCORE
from keras_seq2seq.export.manifest import MANIFEST, read_manifest
from keras_seq2seq.export.operations import Graph
from keras_seq2seq.export.processes import report_of
from keras_seq2seq.export.saved_model_requests import Requests, same
from keras_seq2seq.export.server_files import WARMUP, read_warmup
from keras_seq2seq.export.static_checks import static_checks
from keras_seq2seq.pipelines import Translator
from keras_seq2seq.tokenizers import TokenizerPair

# Between two programs that compute the same in another order.
TOLERANCE = 1e-4
#: How samples are drawn when they are compared with Python's.
DRAWING = {"temperature": 0.8, "top_k": 10, "top_p": 0.95}
# A server refuses more.
_MOST_WARMUP_REQUESTS = 1000


def checks_of(
    folder: Path,
    texts: list[str],
    translator: Translator | None,
    references: list[str] | None = None,
) -> list[Check]:
    """Checks a version folder.

    Args:
        folder: The folder with `saved_model.pb`.
        texts: Texts to translate.
        translator: What the answers must equal; None to check the folder in itself.
        references: Target texts, to tell the quality by.

    Returns:
        The checks, in order.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ValueError: If `saved_model.pb` is damaged.
    """
    graph = Graph(folder)
    known = (folder / MANIFEST).is_file()
    manifest = read_manifest(folder) if known else {}
    checks = [
        check_files(folder),
        *static_checks(graph, jit=bool(manifest.get("jit"))),
    ]
    # A SavedModel is a program: one that fails here is not run.
    if not all(check.ok for check in checks):
        checks.append(Check("runs", False, "not run, since a check above failed"))
        return checks
    names = [name for name in graph.signatures if name != "serving_default"]
    requests = Requests(
        names, TokenizerPair.load(folder / "tokenizer"), texts, translator is not None
    )
    warmup, complaint = _warmup_requests(folder)
    try:
        report = run_in_fresh_process(folder, requests.packed + warmup, requests.eager)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        checks.append(Check("runs", False, str(error)))
        return checks
    replayed = report["session"][len(requests.packed) :]
    answers = report["session"][: len(requests.packed)]
    checks.append(_check_runs(answers, report["package_imported"]))
    checks.append(_check_warmup(warmup, replayed, complaint))
    good = "one row for each asked, finite scores, valid UTF-8"
    checks.append(_check("replies", good, requests.invalid, answers))
    if not all(check.ok for check in checks):
        return checks
    merged = f"{requests.num_alone} requests merged, padded and filled answer as alone"
    checks += [
        _check_loaders(requests, answers, report["eager"]),
        _check(
            "blank sources",
            "blank sources get blank texts",
            requests.not_blank,
            answers,
        ),
        _check("merged requests", merged, requests.changed_by_merging, answers),
    ]
    if translator is not None:
        checks += _checks_with_python(requests, answers, translator, manifest)
        if references is not None:
            served = requests.whole("translate", answers)["text"]
            written = [text.decode("utf-8") for text in served]
            run = translator(
                texts,
                num_beams=manifest["decoding"]["num_beams"],
                length_penalty=manifest["decoding"]["length_penalty"],
                temperature=0.0,
            )
            checks.append(check_bleu(written, run, references, translator))
    return checks


def run_in_fresh_process(
    folder: Path, requests: list[dict], eager: list[int]
) -> dict[str, Any]:
    """Answers requests; the errors stand in the answers.

    Args:
        folder: The version folder.
        requests: Packed requests.
        eager: Numbers of those that Python's loader answers too.

    Returns:
        `session` and `eager`, answers; `package_imported`.
    """
    asked = {"requests": requests, "eager": eager}
    report = report_of(Path(session_process.__file__), folder, asked)
    for loader in ("session", "eager"):
        report[loader] = [
            {name: session_process.unpack(v) for name, v in answer["outputs"].items()}
            if "outputs" in answer
            else answer
            for answer in report[loader]
        ]
    return report


def _warmup_requests(folder: Path) -> tuple[list[dict], str]:
    """The requests of the warm-up, packed, or why there are none."""
    if not (folder / WARMUP).is_file():
        return [], "none: written where tensorflow-serving-api is installed"
    try:
        found = read_warmup(folder / WARMUP)
    except ImportError:
        return [], "not read: tensorflow-serving-api is not installed"
    return [session_process.packed(name, inputs) for name, inputs in found], ""


def _check_warmup(warmup: list[dict], replayed: list[dict], complaint: str) -> Check:
    """A request that fails keeps a server from loading the model."""
    wrong = [answer["error"] for answer in replayed if "error" in answer]
    if len(warmup) > _MOST_WARMUP_REQUESTS:
        wrong.append(f"{len(warmup)} requests, of which a server takes 1,000")
    good = f"{len(warmup)} requests answered"
    return listed("warm-up", wrong, complaint or good)


def _check(
    name: str, good: str, find: Callable[[list[dict]], list[str]], answers: list[dict]
) -> Check:
    """A check that lists what is wrong."""
    return listed(name, find(answers), good)


def _check_runs(answers: list[dict], imported: bool) -> Check:
    errors = [answer["error"] for answer in answers if "error" in answer]
    if imported:
        errors.append("the fresh process imported keras_seq2seq")
    good = f"{len(answers)} requests answered in a fresh process, from a moved copy"
    return listed("runs", errors, good, most=2)


def _check_loaders(requests: Requests, session: list[dict], eager: list[dict]) -> Check:
    """The same answers through Python's loader, which finds resources otherwise."""
    wrong = [
        f"request {number} to {requests.packed[number]['signature']} is answered "
        "otherwise"
        for number, other in zip(requests.eager, eager, strict=True)
        if session[number].keys() != other.keys()
        or not all(same(session[number][name], other[name]) for name in other)
    ]
    return listed("Python loader", wrong, "tf.saved_model.load answers as the server's")


def _checks_with_python(
    requests: Requests, answers: list[dict], translator: Translator, manifest: dict
) -> list[Check]:
    """The same answers as the Translator in Python, for every signature."""
    texts, decoding = requests.texts, manifest["decoding"]
    settings = {
        "num_beams": decoding["num_beams"],
        "length_penalty": decoding["length_penalty"],
        "max_length": None if decoding["follows_source"] else decoding["max_length"],
        "temperature": 0.0,
    }
    best = [found[0] for found in translator.translate(texts, **settings)]
    beams = translator.translate(texts, n_best=decoding["num_beams"], **settings)
    drawn = translator.translate(
        texts,
        seed=list(range(len(texts))),
        **{**settings, "num_beams": None, **DRAWING},
    )
    scored = translator.score(texts, texts)
    found = {
        name: answers[requests.merged[name]]
        if name == "attention"
        else requests.whole(name, answers)
        for name in requests.names
    }
    expected: dict[str, Callable[[int], bool]] = {
        "translate": lambda row: _is(found["translate"], row, best[row]),
        "decode_ids": lambda row: _is_ids(found["decode_ids"], row, best[row]),
        "translate_beam": lambda row: _are(found["translate_beam"], row, beams[row]),
        "translate_sample": lambda row: _is(
            found["translate_sample"], row, drawn[row][0]
        ),
        "score": lambda row: bool(
            _near(found["score"]["log_prob"][row], scored[row].log_prob)
            and found["score"]["num_tokens"][row] == scored[row].num_tokens
        ),
    }
    if "attention" in found:
        some = texts[: requests.num_alone]
        seen = [
            hypotheses[0]
            for hypotheses in translator.translate(
                some, return_attention=True, **settings
            )
        ]
        expected["attention"] = lambda row: _attends(found["attention"], row, seen[row])
    return [
        listed(
            f"{name} = Python",
            [repr(texts[row]) for row in rows if not is_right(row)],
            f"{len(rows)} answers as in Python",
        )
        for name, is_right in expected.items()
        for rows in [range(requests.num_alone if name == "attention" else len(texts))]
    ]


def _near(one: float, other: float) -> bool:
    return abs(float(one) - other) <= TOLERANCE * max(1.0, abs(other))


def _is(found: dict, row: int, expected: Any) -> bool:
    text = found["text"][row].decode("utf-8")
    return text == expected.text and _near(found["score"][row], expected.score)


def _is_ids(found: dict, row: int, expected: Any) -> bool:
    ids = found["output_ids"][row][: found["output_lengths"][row]]
    return tuple(ids) == expected.ids and _near(found["score"][row], expected.score)


def _are(found: dict, row: int, expected: list[Any]) -> bool:
    kept = found["scores"][row] > LOWEST_SCORE
    texts = [text.decode("utf-8") for text in found["texts"][row][kept]]
    return texts == [hypothesis.text for hypothesis in expected] and all(
        _near(score, hypothesis.score)
        for score, hypothesis in zip(found["scores"][row], expected, strict=False)
    )


def _attends(found: dict, row: int, expected: Any) -> bool:
    text, weights = found["text"][row].decode("utf-8"), found["weights"][row]
    if expected.attention is None:  # of a blank source
        return text == expected.text and not weights.any()
    length, width = expected.attention.shape
    width = min(width, weights.shape[1])
    near = np.abs(weights[:length, :width] - expected.attention[:, :width])
    return text == expected.text and bool((near <= 10 * TOLERANCE).all())
