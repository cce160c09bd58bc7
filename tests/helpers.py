"""Checks that many tests apply to one layer, model or step function."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np

# Sorted letters; nothing here comes from a data set.
TINY_PAIRS = tuple(
    (word, "".join(sorted(word)))
    for word in ("".join(letters) for letters in itertools.permutations("déca b", 4))
    if word == word.strip()
)[:48]


def one_case_each(cases, *names):
    """Names of cases, one for each function that makes a model and for each value of
    some of its options: enough where a test is too slow for all.

    Args:
        cases: What `tests/models/test_contract.py` has as `CASES`.
        *names: Names of options.
    """
    first = {}
    for name, (make, options) in cases.items():
        key = (make.__name__, *(str(options.get(option)) for option in names))
        first.setdefault(key, name)
    return list(first.values())


def check_layer(layer, *inputs, training=False):
    """Checks that a layer builds, runs, reports its shape, and survives its config."""
    import keras

    outputs = layer(*inputs, training=training) if training else layer(*inputs)
    assert layer.built
    predicted = layer.compute_output_shape(*[np.shape(value) for value in inputs])
    for output, shape in zip(_leaves(outputs), _shapes(predicted), strict=True):
        assert tuple(output.shape) == tuple(shape)

    twin = layer.__class__.from_config(layer.get_config())
    twin(*inputs)
    assert len(twin.weights) == len(layer.weights)
    twin.set_weights(layer.get_weights())
    again = twin(*inputs, training=training) if training else twin(*inputs)
    for output, other in zip(_leaves(outputs), _leaves(again), strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(output), keras.ops.convert_to_numpy(other)
        )
    return outputs


def check_saving(model, inputs, path: Path):
    """Checks that a model read back from a `.keras` file computes the same numbers."""
    import keras

    before = keras.ops.convert_to_numpy(model(inputs, training=False))
    file = path / "model.keras"
    model.save(file)
    moved = path / "moved" / "renamed.keras"
    moved.parent.mkdir()
    file.rename(moved)
    loaded = keras.saving.load_model(moved, compile=False, safe_mode=True)
    assert loaded.get_config() == model.get_config()
    after = keras.ops.convert_to_numpy(loaded(inputs, training=False))
    np.testing.assert_array_equal(before, after)
    return loaded


def check_step_matches_call(model, source_ids, target_ids, tolerance=1e-5):
    """Checks that `step` repeated along the target gives the logits of `call`."""
    import keras

    ops = keras.ops
    logits = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
    memory = model.encode(source_ids)
    state = model.initial_state(memory, np.shape(target_ids)[1])
    for position in range(np.shape(target_ids)[1]):
        tokens = ops.convert_to_tensor(np.asarray(target_ids)[:, position])
        step_logits, state, attention_weights = model.step(tokens, memory, state)
        np.testing.assert_allclose(
            ops.convert_to_numpy(step_logits),
            ops.convert_to_numpy(logits)[:, position],
            atol=tolerance,
            rtol=tolerance,
        )
        assert tuple(attention_weights.shape) == tuple(np.shape(source_ids))


def chain_step(transitions):
    """Makes a step function of a Markov chain, whose best sequence is known by hand.

    Args:
        transitions: Probability of the next token given the last one, `(V, V)`.
    """
    from keras import ops

    with np.errstate(divide="ignore"):
        table = np.maximum(np.log(np.asarray(transitions, "float32")), -1e9)

    def step(token_ids, memory, state):
        rows = ops.take(ops.convert_to_tensor(table), token_ids, axis=0)
        num_beams = ops.shape(token_ids)[0] // ops.shape(memory["mask"])[0]
        weights = ops.repeat(ops.cast(memory["mask"], "float32"), num_beams, axis=0)
        return rows, state, weights

    return step


def spread(model, seed=0):
    """Gives matrices values large enough for answers to differ; returns the model."""
    generator = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            weight.assign(generator.normal(0, 0.6, weight.shape))
    return model


def end_early(model):
    """Makes outputs of a Transformer differ and end soon; returns the model."""
    import keras

    generator = np.random.default_rng(0)
    # Biases and norms are constants in a new model.
    model.set_weights(
        [
            1.5 * weight + generator.normal(scale=0.1, size=weight.shape)
            for weight in model.get_weights()
        ]
    )
    end = keras.ops.convert_to_numpy(
        model.target_embedding.embeddings[3]
        if model.output_projection is None
        else model.output_projection.kernel[:, 3]
    )
    last = model.decoder_norm or model.decoder_blocks[-1].feedforward_norm
    last.beta.assign(last.beta + end / np.linalg.norm(end))
    return model


def rewrite(export: Path, name: str, content: str | bytes):
    """Replaces a file of an export, and its sum in the manifest."""
    content = content.encode() if isinstance(content, str) else content
    (export / name).write_bytes(content)
    manifest = json.loads((export / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"][name] = hashlib.sha256(content).hexdigest()
    text = json.dumps(manifest, ensure_ascii=False)
    (export / "manifest.json").write_text(text, encoding="utf-8")


def write_untrained_run(
    folder: Path,
    tokenizers,
    *,
    decoding=None,
    evaluation=None,
    change=None,
    **model_settings,
):
    """Writes a run folder whose model has fresh weights; returns the folder.

    `change` gives the model other ones.
    """
    from keras_seq2seq.config import config_to_toml, load_config
    from keras_seq2seq.models import MODELS

    folder.mkdir(parents=True)
    tokenizers.save(folder / "tokenizer")
    arguments = {key: value for key, value in model_settings.items() if key != "name"}
    model = MODELS[model_settings["name"]](
        source_vocabulary_size=tokenizers.source.vocabulary_size,
        target_vocabulary_size=tokenizers.target.vocabulary_size,
        **arguments,
    )
    ids = np.full((1, 3), 4, "int32")
    model({"source_ids": ids, "target_ids": ids})
    if change is not None:
        change(model)
    model.save(folder / "model.keras")

    recipe = folder / "recipe.toml"
    tables = {
        "data.train": {"path": "train.tsv"},
        "data.valid": {"path": "valid.tsv"},
        "tokenizer": {"vocabulary_size": 64, "model_type": "char"},
        "model": model_settings,
        "decoding": decoding or {},
        "evaluation": evaluation or {},
    }
    recipe.write_text(_toml(tables), encoding="utf-8")
    config = load_config(recipe, [])
    recipe.unlink()
    (folder / "run.toml").write_text(config_to_toml(config), encoding="utf-8")
    return folder


def _toml(tables) -> str:
    """Tables of strings, numbers and booleans as TOML."""
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        for key, value in table.items():
            text = str(value).lower() if isinstance(value, bool) else repr(value)
            lines.append(f"{key} = {text}")
    return "\n".join(lines) + "\n"


def _leaves(outputs):
    """The tensors of a tensor, tuple or dict of tensors."""
    import keras

    return keras.tree.flatten(outputs)


def _shapes(predicted):
    """The shapes of a shape, tuple or dict of shapes."""
    if isinstance(predicted, dict):
        return [shape for _, shape in sorted(predicted.items())]
    if predicted and isinstance(predicted[0], (tuple, list)):
        return list(predicted)
    return [predicted]
