"""One search, compiled six ways, gives one result."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.buffers import filled_by
from keras_seq2seq.decoding import SearchResult, beam_search, generate
from keras_seq2seq.decoding.sampling import uniform_noise
from tests.decoding.oracles import HistoryModel, assert_same

SOURCES = np.array([[4, 5, 6], [7, 8, 0], [9, 0, 0]], "int32")
LIMITS = np.array([8, 5, 2], "int32")
# Every option of the searches; the inputs are for three sources.
SEARCHES = {
    "greedy": {"num_beams": 1},
    "greedy_rules": {
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.3,
        "min_lengths": np.array([3, 0, 1], "int32"),
        "banned_phrases": np.array([[[4, 1]], [[5, 0]], [[0, 0]]], "int32"),
        "return_token_scores": True,
    },
    "beam": {"num_beams": 4, "n_best": 3},
    "beam_min_length": {"num_beams": 3, "min_length": 2, "length_penalty": 0.0},
    "beam_penalties": {
        "num_beams": 3,
        "n_best": 3,
        "coverage_penalty": 0.3,
        "length_penalty": 1.0,
        "length_penalty_base": 0.0,
        "length_reward": 0.4,
        "reward_lengths": np.array([4, 5, 1], "int32"),
        "return_token_scores": True,
        "stop": "count",
    },
    "beam_rules": {
        "num_beams": 4,
        "n_best": 2,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.3,
        "prefix_ids": np.array([[4, 0], [0, 0], [5, 0]], "int32"),
    },
    "beam_required": {
        "num_beams": 3,
        "required_phrases": np.array(
            [[[[4, 5]], [[1, 0]]], [[[5, 5]], [[0, 0]]], [[[4, 0]], [[0, 0]]]], "int32"
        ),
    },
    "groups": {"num_beams": 4, "n_best": 4, "num_groups": 2, "diversity_penalty": 0.5},
    "alternatives": {"num_beams": 3, "n_best": 3, "alternatives": True},
    "samples": {
        "temperature": 1.4,
        "top_k": 4,
        "top_p": 0.9,
        "n_best": 3,
        "seeds": np.array([1, 2, 3], "int32"),
    },
}
ROOT = Path(__file__).resolve().parents[2]


def search(model, source_ids, limits, options):
    memory = model.encode(source_ids)
    state = model.initial_state(memory, 8)
    common = {"max_length": 8, "length_limits": limits, "return_attention": True}
    common |= {"repeat_state": model.repeat_state, "select_state": model.select_state}
    return beam_search(model.step, memory, state, **common, **options)


def rows_of(options, rows):
    """The options for the first rows of the sources."""
    return {k: v[:rows] if isinstance(v, np.ndarray) else v for k, v in options.items()}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_with_dynamic_shapes_equals_eager(name, jit_compile):
    import tensorflow as tf

    model = HistoryModel()
    inputs = {k: v for k, v in SEARCHES[name].items() if isinstance(v, np.ndarray)}
    constants = {k: v for k, v in SEARCHES[name].items() if k not in inputs}
    compiled = tf.function(
        lambda ids, limits, inputs: search(model, ids, limits, constants | inputs),
        input_signature=[
            tf.TensorSpec((None, None), tf.int32),
            tf.TensorSpec((None,), tf.int32),
            {
                k: tf.TensorSpec((None, *v.shape[1:]), tf.int32)
                for k, v in inputs.items()
            },
        ],
        jit_compile=jit_compile,
    )
    for rows in (3, 1):
        options = rows_of(SEARCHES[name], rows)
        expected = search(model, SOURCES[:rows], LIMITS[:rows], options)
        found = compiled(SOURCES[:rows], LIMITS[:rows], rows_of(inputs, rows))
        assert_same(expected, found)
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
    found = {k: v for k, v in result._asdict().items() if v is not None}
    np.savez(path, **{k: ops.convert_to_numpy(v) for k, v in found.items()})


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


@pytest.mark.export
@pytest.mark.parametrize("name", SEARCHES)
def test_litert_equals_eager(name, tmp_path):
    """With and without the delegate that LiteRT runs by default."""
    import tensorflow as tf

    litert = pytest.importorskip("ai_edge_litert.interpreter")
    model, options = HistoryModel(), dict(SEARCHES[name])
    if "seeds" in options:  # integer hashing is no operation of LiteRT
        options["noise"] = ops.convert_to_numpy(
            uniform_noise(options.pop("seeds"), options["n_best"], 8)
        )

    @tf.autograph.experimental.do_not_convert
    def whole(ids, limits):
        with filled_by("slice"):
            result = search(model, ids, limits, options)
        return {k: v for k, v in result._asdict().items() if v is not None}

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "whole",
        whole,
        input_signature=[
            tf.TensorSpec(SOURCES.shape, tf.int32, name="ids"),
            tf.TensorSpec(LIMITS.shape, tf.int32, name="limits"),
        ],
    )
    archive.write_out(str(tmp_path), verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(tmp_path), signature_keys=["whole"]
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    content = converter.convert()
    expected = search(model, SOURCES, LIMITS, options)
    for resolver in ("BUILTIN", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"):
        interpreter = litert.Interpreter(
            model_content=content,
            experimental_op_resolver_type=litert.OpResolverType[resolver],
        )
        run = interpreter.get_signature_runner("whole")
        assert_same(expected, SearchResult(**run(ids=SOURCES, limits=LIMITS)))
