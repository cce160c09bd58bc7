"""Training in 16 bits is stable for every kind of model, and resumes exactly."""

import keras
import numpy as np
import pytest
from keras.optimizers import LossScaleOptimizer

from keras_seq2seq.config import load_config
from keras_seq2seq.losses import TokenCrossEntropy
from keras_seq2seq.trainer import train
from tests.helpers import TINY_PAIRS, one_case_each
from tests.models.test_contract import CASES, END, START, VOCABULARY

# Bfloat16 has the range of float32: there the kind of attention makes no difference.
CASES_AND_POLICIES = [
    *((case, "mixed_bfloat16") for case in one_case_each(CASES)),
    *((case, "mixed_float16") for case in one_case_each(CASES, "attention")),
]
STEPS = 50


def copy_task():
    """Eight pairs of a source and itself: inputs, labels and weights."""
    generator = np.random.default_rng(4)
    ids = np.zeros((8, 5), "int32")
    for row, length in zip(ids, (4, 4, 3, 3, 2, 2, 1, 4), strict=True):
        row[: length + 1] = [*generator.integers(4, VOCABULARY, length), END]
    inputs = np.concatenate([np.full((8, 1), START), ids[:, :-1]], 1)
    inputs = np.where((inputs == END) | (ids == 0), 0, inputs).astype("int32")
    weights = (ids != 0).astype("float32")
    return {"source_ids": ids, "target_ids": inputs}, ids, weights


@pytest.fixture
def policy(request):
    """Sets Keras' policy, as a run with that `precision` does."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(("case", "policy"), CASES_AND_POLICIES, indirect=["policy"])
def test_the_loss_falls_and_everything_stays_finite(case, policy):
    make, options = CASES[case]
    keras.utils.set_random_seed(3)
    model = make(**options)
    model.compile(
        keras.optimizers.Adam(0.02, global_clipnorm=1.0),
        TokenCrossEntropy(label_smoothing=0.1, reduction="sequence"),
        jit_compile=keras.backend.backend() == "jax",
    )
    # Float16 alone has a range so small that gradients vanish.
    scaled = isinstance(model.optimizer, LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    inputs, labels, weights = copy_task()
    losses = []
    for _ in range(STEPS):
        model.reset_metrics()  # Keras would return the mean since the first step
        losses.append(float(model.train_on_batch(inputs, labels, weights)))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    for variable in (*model.weights, *model.optimizer.variables):
        assert np.isfinite(np.asarray(variable)).all(), variable.path
    for weight in model.trainable_weights:
        assert weight.dtype == "float32", weight.path
    # Updates are left out while the scale is too high, which ends soon.
    assert int(model.optimizer.iterations) > STEPS - 10
    if scaled:
        assert float(model.optimizer.dynamic_scale) >= 2.0**5
    logits = np.asarray(model(inputs, training=False))
    assert logits.dtype == np.float32 and np.isfinite(logits).all()


@pytest.mark.parametrize("size", [1.0, 12.0])
@pytest.mark.parametrize("case", one_case_each(CASES, "attention"))
def test_float16_gives_finite_logits_near_those_of_float32(case, size):
    # A source without a token, and scores of a size that training may reach.
    make, options = CASES[case]
    keras.utils.set_random_seed(3)
    single = make(**options)
    half = make(**options, dtype="mixed_float16")
    weights = [
        size * value if value.ndim > 1 else value for value in single.get_weights()
    ]
    single.set_weights(weights)
    half.set_weights(weights)
    inputs, _, _ = copy_task()
    inputs["source_ids"][2] = 0
    expected = np.asarray(single(inputs, training=False))
    logits = np.asarray(half(inputs, training=False))
    assert np.isfinite(logits).all()
    if size == 1.0:
        np.testing.assert_allclose(logits, expected, atol=0.02, rtol=0.02)


RECIPE = """
[data.train]
path = "{folder}/train.tsv"
[data.valid]
path = "{folder}/valid.tsv"
[tokenizer]
model_type = "char"
[model]
name = "RecurrentSeq2Seq"
cell = "simple"
units = 4
embedding_dim = 4
attention = "none"
bidirectional = false
[training]
epochs = 3
batch_tokens = 64
num_buckets = 1
learning_rate = 0.01
schedule = "plateau"
clip_norm = 1.0
precision = "mixed_float16"
jit_compile = false
validate_every = 3
[decoding]
max_length = 8
"""


def test_a_run_in_float16_resumes_with_its_loss_scale(tmp_path):
    for name, pairs in (("train", TINY_PAIRS[:40]), ("valid", TINY_PAIRS[40:])):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        file = tmp_path / f"{name}.tsv"
        file.write_text(lines, encoding="utf-8", newline="")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(folder=tmp_path.as_posix()), encoding="utf-8")
    optimizers, weights = [], []
    for name, stops in (("whole", (3,)), ("stopped", (1, 2, 3))):
        for epochs in stops:
            config = load_config(recipe, [f"training.epochs={epochs}"])
            folder = train(config, tmp_path / name, progress=False)
        model = keras.saving.load_model(
            folder / "checkpoints" / "epoch_0003.keras", safe_mode=True
        )
        assert model.dtype_policy.name == "mixed_float16"
        optimizers.append(model.optimizer)
        weights.append(model.get_weights())
    whole, stopped = optimizers
    assert isinstance(whole, LossScaleOptimizer)
    # Every update since the start was counted, with none left out.
    assert int(whole.step_counter) == int(whole.iterations) > 3
    for one, other in zip(whole.variables, stopped.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
