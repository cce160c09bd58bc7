"""Every recipe in training/ loads, and its model builds at a tiny size."""

from pathlib import Path

import numpy as np
import pytest

from keras_seq2seq.config import RunConfig, load_config
from keras_seq2seq.forecaster import window_shape
from keras_seq2seq.models import MODELS, REGRESSION_MODELS

RECIPES = sorted((Path(__file__).parents[1] / "training").glob("*.toml"))
TEXT = [path for path in RECIPES if isinstance(load_config(path), RunConfig)]
SERIES = [path for path in RECIPES if path not in TEXT]

# Smaller values of the arguments that set a model's size; the rest stays as written.
TINY = {
    "dim": 8,
    "num_heads": 2,
    "feedforward_dim": 8,
    "units": 8,
    "embedding_dim": 8,
    "attention_dim": 8,
    "readout_dim": 8,
    "output_rank": 8,
    "position_dim": 4,
    "max_positions": 16,
}


def test_there_is_a_recipe_for_each_published_result():
    assert len(RECIPES) >= 5


@pytest.mark.parametrize("path", TEXT, ids=[path.stem for path in TEXT])
def test_recipe_loads_and_its_model_runs(path):
    config = load_config(path, [])
    settings = config.model if isinstance(config.model, dict) else dict(config.model)
    arguments = {
        key: min(TINY[key], value) if key in TINY and value is not None else value
        for key, value in settings.items()
        if key != "name"
    }
    model = MODELS[settings["name"]](
        source_vocabulary_size=11, target_vocabulary_size=11, **arguments
    )
    ids = np.array([[4, 5, 3, 0], [6, 7, 8, 3]], "int32")
    logits = model({"source_ids": ids, "target_ids": ids})
    assert tuple(logits.shape) == (2, 4, 11)
    assert np.all(np.isfinite(np.asarray(logits)))


@pytest.mark.parametrize("path", SERIES, ids=[path.stem for path in SERIES])
def test_recipe_of_a_series_loads_and_its_model_runs(path):
    config = load_config(path)
    shape = window_shape(config.series)
    sizes = shape.model_sizes
    model = REGRESSION_MODELS[config.model["name"]](
        **sizes, **{**config.model_arguments, "units": 4}
    )
    steps = [
        getattr(config.series, name) // shape.rows_per_step
        for name in ("source_length", "target_length")
    ]
    inputs = {
        "source": np.ones((2, steps[0], sizes["source_dim"]), "float32"),
        "future": np.ones((2, steps[1], sizes["future_dim"]), "float32"),
        "target": np.ones((2, steps[1], sizes["target_dim"]), "float32"),
    }
    outputs = np.asarray(model(inputs))
    assert outputs.shape == inputs["target"].shape
    assert np.all(np.isfinite(outputs))


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_recipe_head_says_command_and_result(path):
    head = path.read_text(encoding="utf-8").split("\n[", 1)[0]
    assert "keras-seq2seq train" in head
