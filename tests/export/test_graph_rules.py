"""What LiteRT cannot convert or run is not written where exports reach.

The converter fails late, and only for what a test happens to export; the source shows
it at once.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "keras_seq2seq"
# Whatever runs inside an exported graph.
REACHED = sorted(
    path
    for pattern in ("decoding/*.py", "layers/*.py", "models/*.py", "*ers.py")
    for path in PACKAGE.glob(pattern)
    if path.parent != PACKAGE or path.stem in ("buffers", "gathers")
) + [PACKAGE / "export" / f"{name}.py" for name in ("graph_search", "litert_graphs")]
#: By module, what it may hold all the same, and why.
EXCEPTIONS: dict[str, dict[str, str]] = {}


def odd_parts(tree, *, may_draw):
    """What is wrong in a module, each with its line."""
    found = []
    types = {id(part) for node in ast.walk(tree) for part in annotations(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and id(node) not in types:
            parts = (
                node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            )
            # On int and bool tensors this becomes tf.StridedSlice; `ops.expand_dims`.
            if any(map(is_new_axis, parts)):
                found.append(("new axis", node.lineno))
        name = ""
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            name = f"{owner}.{node.attr}" if owner else node.attr
        elif isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found += [
                ("random", node.lineno)
                for alias in node.names
                if not may_draw and "random" in f"{alias.name}".split(".")
            ]
        # It tells -0.0 from 0.0 by bits: tf.BitwiseAnd; `ops.top_k`.
        if name in ("ops.argmax", "ops.argmin"):
            found.append((name, node.lineno))
        if name.split(".")[-1] == "TensorArray":
            found.append(("TensorArray", node.lineno))
        # Noise is an input of the program.
        if not may_draw and name in ("keras.random", "tf.random"):
            found.append(("random", node.lineno))
    return found


def annotations(node):
    """Every node of the types that a statement or an argument declares."""
    for name in ("annotation", "returns"):
        if (found := getattr(node, name, None)) is not None:
            yield from ast.walk(found)


def is_new_axis(part):
    return (isinstance(part, ast.Constant) and part.value is None) or (
        isinstance(part, ast.Attribute) and part.attr == "newaxis"
    )


@pytest.mark.parametrize(
    "path", REACHED, ids=[str(path.relative_to(PACKAGE)) for path in REACHED]
)
def test_module_holds_nothing_that_litert_has_no_operation_for(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # Dropout draws while a model is trained.
    may_draw = path.parent.name in ("layers", "models")
    allowed = EXCEPTIONS.get(path.relative_to(PACKAGE).as_posix(), {})
    found = odd_parts(tree, may_draw=may_draw)
    assert not [part for part in found if part[0] not in allowed]
    # A reason that nothing needs any more goes.
    assert allowed.keys() <= {name for name, _ in found}


def test_the_search_for_odd_parts_finds_some():
    bad = {
        "x[:, None]": "new axis",
        "x[..., tf.newaxis, :]": "new axis",
        "x[None]": "new axis",
        "ops.argmax(x, axis=-1)": "ops.argmax",
        "tf.TensorArray('int32', 3)": "TensorArray",
        "keras.random.uniform((2,))": "random",
        "from keras import random": "random",
    }
    for line, name in bad.items():
        assert [n for n, _ in odd_parts(ast.parse(line), may_draw=False)] == [name]
    good = ("x[:, 0]", "x[a:None]", "tf.argmax(x)", "ops.top_k(x, 1)", "d[None or 1]")
    good += ("def f() -> Iterator[None]: pass", "x: dict[str, None] = {}")
    for line in good:
        assert odd_parts(ast.parse(line), may_draw=False) == []
    assert odd_parts(ast.parse("keras.random.uniform((2,))"), may_draw=True) == []


def test_the_search_reaches_all_that_exports_reach():
    names = {path.relative_to(PACKAGE).as_posix() for path in REACHED}
    assert {"buffers.py", "gathers.py", "decoding/beam.py"} <= names
    assert {"layers/attention.py", "models/recurrent.py"} <= names
