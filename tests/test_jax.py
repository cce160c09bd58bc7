"""A run trained on TensorFlow, used and trained anew on JAX."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_seq2seq.config import load_config
from keras_seq2seq.pipelines import load
from keras_seq2seq.trainer import train
from tests.helpers import TINY_PAIRS

ROOT = Path(__file__).parents[1]
RECIPE = """
[data.train]
path = "{folder}/train.tsv"
[data.valid]
path = "{folder}/valid.tsv"
[tokenizer]
model_type = "char"
[model]
{model}
[training]
epochs = 2
batch_tokens = 512
num_buckets = 1
learning_rate = 0.03
[decoding]
num_beams = 3
max_length = 8
"""
MODELS = {
    "recurrent": 'name = "RecurrentSeq2Seq"\nunits = 8\nembedding_dim = 4\n'
    'attention = "bilinear"',
    "transformer": 'name = "TransformerSeq2Seq"\ndim = 8\nnum_heads = 2\n'
    "feedforward_dim = 8\nnum_encoder_layers = 1\nnum_decoder_layers = 1\n"
    "max_positions = 16",
    "convolutional": 'name = "ConvSeq2Seq"\nembedding_dim = 8\noutput_dim = 8\n'
    "encoder_channels = [8]\ndecoder_channels = [8, 6]\n"
    "decoder_kernel_size = [3, 1]",
}
TEXTS = ["déca", "", "b c", "a b d"]
SOURCE = np.array([[5, 4, 6, 7, 3], [6, 3, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
TARGET = np.array([[2, 5, 4], [2, 7, 0], [2, 6, 6]], "int32")

# In a process of its own, as if TensorFlow were not installed, where no file may be
# opened in the locale's encoding (B123), and where importing the package is enough for
# Keras to load a model (B68).
SCRIPT = """
import sys, warnings
absent = ("tensorflow", "tensorflow_text", "keras_hub")
sys.modules.update(dict.fromkeys(absent))
warnings.filterwarnings("error", category=EncodingWarning, module="keras_seq2seq")
import keras, keras_seq2seq
model = keras.saving.load_model(sys.argv[1] + "/recurrent/model.keras")
assert type(model) is keras_seq2seq.RecurrentSeq2Seq
from tests.test_jax import use_on_jax
use_on_jax(sys.argv[1])
assert not [name for name in sys.modules if name.startswith("tensorflow.")]
assert not any(sys.modules[name] for name in absent)
"""


def answers_of(folder):
    """Logits of fixed ids, and what two searches answer to the texts."""
    translator = load(folder)
    # Weights far from their start make every difference show. A product of many
    # layers' gains grows faster, and float32 rounds it where it is large.
    spread = 1.5 if Path(folder).name == "convolutional" else 3
    translator.model.set_weights([spread * w for w in translator.model.get_weights()])
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    answers = {"logits": np.asarray(translator.model(inputs, training=False))}
    for num_beams in (1, 3):
        options = {"num_beams": num_beams, "min_length": 5}
        found = [best for (best,) in translator.translate(TEXTS, **options)]
        ids = np.zeros((len(found), 8), "int32")
        for row, best in zip(ids, found, strict=True):
            row[: len(best.ids)] = best.ids
        answers[f"ids_{num_beams}"] = ids
        answers[f"scores_{num_beams}"] = np.array([best.score for best in found])
    return answers


def use_on_jax(folder):
    """Decodes with every run and trains each again, by its own run.toml."""
    import keras

    assert keras.backend.backend() == "jax"
    losses = {}
    for name in MODELS:
        run = Path(folder) / name
        np.savez(Path(folder) / f"{name}.npz", **answers_of(run))
        config = load_config(run / "run.toml", ["training.jit_compile=auto"])
        again = train(config, Path(folder) / f"{name}_jax", progress=False)
        text = (again / "metrics.jsonl").read_text(encoding="utf-8")
        losses[name] = [json.loads(line)["val_loss"] for line in text.splitlines()]
    (Path(folder) / "losses.json").write_text(json.dumps(losses), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both runs, trained here, and what the other process made of them."""
    folder = tmp_path_factory.mktemp("runs")
    for name, pairs in (("train", TINY_PAIRS[:40]), ("valid", TINY_PAIRS[40:])):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8", newline="")
    for name, model in MODELS.items():
        recipe = folder / f"{name}.toml"
        text = RECIPE.format(folder=folder.as_posix(), model=model)
        recipe.write_text(text, encoding="utf-8")
        # XLA of TensorFlow is not what is looked at here, and takes its time.
        config = load_config(recipe, ["training.jit_compile=false"])
        train(config, folder / name, progress=False)
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", SCRIPT, str(folder)],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONPATH": str(ROOT),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_answers_are_equal_on_jax(folder, name):
    found, expected = np.load(folder / f"{name}.npz"), answers_of(folder / name)
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-4)
    for num_beams in (1, 3):
        key = f"ids_{num_beams}"
        np.testing.assert_array_equal(found[key], expected[key])
        key = f"scores_{num_beams}"
        np.testing.assert_allclose(found[key], expected[key], atol=1e-4)
    assert len(np.unique(expected["ids_3"], axis=0)) > 2
    assert not expected["ids_1"][1].any()


@pytest.mark.parametrize("name", MODELS)
def test_the_recipe_of_a_run_trains_on_jax(folder, name):
    losses = json.loads((folder / "losses.json").read_text(encoding="utf-8"))[name]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    # The start is as good as a uniform guess, whatever the backend.
    text = (folder / name / "metrics.jsonl").read_text(encoding="utf-8")
    here = json.loads(text.splitlines()[-1])["val_loss"]
    assert losses[1] == pytest.approx(here, rel=0.2)


SECOND_PROCESS = """
from keras_seq2seq.console import import_backend
import_backend()
import jax, keras
from keras_seq2seq.decoding import generate
from keras_seq2seq.models import TransformerSeq2Seq
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
model = TransformerSeq2Seq(9, 9, dim=8, num_heads=2, feedforward_dim=8,
                           num_encoder_layers=1, num_decoder_layers=1)
generate(model, [[4, 5, 3]], max_length=4, start_id=2, end_id=3)
print(found.count("/jax/compilation_cache/cache_hits") > 0)
print(jax.config.jax_compilation_cache_dir)
"""


def test_programs_are_kept_for_the_next_process(tmp_path):
    def run(**variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        environment |= {"KERAS_BACKEND": "jax", "XDG_CACHE_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", SECOND_PROCESS],
            env=environment | variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    kept = str(tmp_path / "keras_seq2seq" / "jax")
    assert run() == ["False", kept]
    assert run() == ["True", kept]
    own = str(tmp_path / "own")
    assert run(JAX_COMPILATION_CACHE_DIR=own) == ["False", own]
