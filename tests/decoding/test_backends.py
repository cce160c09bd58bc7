"""One search, compiled five ways, gives one result."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import SearchResult, beam_search, generate, greedy_search
from tests.decoding.oracles import HistoryModel, assert_same

SOURCES = np.array([[4, 5, 6], [7, 8, 0], [9, 0, 0]], "int32")
LIMITS = np.array([8, 5, 2], "int32")
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 4, "n_best": 3},
    "beam_min_length": {"num_beams": 3, "min_length": 2, "length_penalty": 0.0},
}
ROOT = Path(__file__).resolve().parents[2]


def search(model, source_ids, limits, options):
    memory = model.encode(source_ids)
    state = model.initial_state(memory, 8)
    common = {"max_length": 8, "length_limits": limits, "return_attention": True}
    if options["num_beams"] == 1:
        return greedy_search(model.step, memory, state, **common)
    select_state = model.select_state
    return beam_search(
        model.step, memory, state, select_state=select_state, **common, **options
    )


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_with_dynamic_shapes_equals_eager(name, jit_compile):
    import tensorflow as tf

    model = HistoryModel()
    compiled = tf.function(
        lambda ids, limits: search(model, ids, limits, SEARCHES[name]),
        input_signature=[
            tf.TensorSpec((None, None), tf.int32),
            tf.TensorSpec((None,), tf.int32),
        ],
        jit_compile=jit_compile,
    )
    for rows in (3, 1):
        expected = search(model, SOURCES[:rows], LIMITS[:rows], SEARCHES[name])
        assert_same(expected, compiled(SOURCES[:rows], LIMITS[:rows]))
    assert compiled.experimental_get_tracing_count() == 1


def jax_results(folder):
    """Runs in a process of its own, on the JAX backend: jit, and `generate`."""
    import jax

    model = HistoryModel()
    for name, options in SEARCHES.items():
        compiled = jax.jit(
            lambda ids, limits, options=options: search(model, ids, limits, options)
        )
        save(folder / f"{name}.npz", compiled(SOURCES, LIMITS))
        save(
            folder / f"{name}_generate.npz",
            generate(
                model,
                SOURCES,
                max_length=8,
                length_limits=LIMITS,
                return_attention=True,
                **options,
            ),
        )
    weights = model.arrays["source_weights"]
    before = generate(model, SOURCES, max_length=8)
    weights.assign(-weights)
    after = generate(model, SOURCES, max_length=8)
    assert not np.allclose(before.scores, after.scores)
    fresh = search(model, SOURCES, None, {"num_beams": 1})
    assert_same(after, fresh._replace(attention=None, scores=after.scores))
    assert "tensorflow" not in sys.modules


def save(path, result):
    np.savez(path, **{k: ops.convert_to_numpy(v) for k, v in result._asdict().items()})


def test_jax_equals_tensorflow(tmp_path):
    script = (
        "import pathlib; from tests.decoding.test_backends import jax_results; "
        f"jax_results(pathlib.Path({str(tmp_path)!r}))"
    )
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert keras.backend.backend() == "tensorflow"
    model = HistoryModel()
    for name, options in SEARCHES.items():
        expected = search(model, SOURCES, LIMITS, options)
        found = SearchResult(**np.load(tmp_path / f"{name}.npz"))
        assert_same(expected, found)
        generated = SearchResult(**np.load(tmp_path / f"{name}_generate.npz"))
        assert_same(
            expected._replace(scores=found.scores),
            generated._replace(scores=found.scores),
        )
