"""ConvSeq2Seq against its formulas, written once more in NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.models import ConvSeq2Seq, convolutional

VOCABULARY = 11
SOURCE = np.array([[5, 6, 7, 4, 9, 3], [8, 4, 3, 0, 0, 0]], "int32")
TARGET = np.array([[2, 4, 5, 9], [2, 6, 7, 8]], "int32")
HALF = 0.5**0.5


def make(**options):
    keras.utils.set_random_seed(6)
    sizes = {
        "embedding_dim": 5,
        "encoder_channels": [4, 6],
        "encoder_kernel_size": [3, 4],
        "decoder_channels": [6, 4],
        "decoder_kernel_size": [3, 1],
        "output_dim": 7,
        "max_positions": 12,
    }
    return ConvSeq2Seq(VOCABULARY, VOCABULARY, **{**sizes, **options})


def spread(model):
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(generator.normal(0, 0.5, weight.shape))
    return model


def array(x):
    return ops.convert_to_numpy(x).astype("float64")


def product(layer, x):
    """A weight-normalised convolution of `(T + k - 1, D)`, gated if it is."""
    direction = array(layer.direction)
    norms = np.sqrt((direction**2).sum((0, 1)))
    kernel = direction / norms * array(layer.gain)
    length = len(x) - len(kernel) + 1
    y = sum(x[tap : tap + length] @ kernel[tap] for tap in range(len(kernel)))
    y = y + array(layer.bias)
    if layer.gated:
        y, gate = np.split(y, 2, axis=-1)
        y = y / (1 + np.exp(-gate))
    return y


def embed(embedding, positions, ids):
    return array(embedding.embeddings)[ids] + array(positions.table)[: len(ids)]


def by_hand(model, source, target):
    """Logits and mean attention of one pair without padding, `(T, V)`, `(T, S)`."""
    e = embed(model.source_embedding, model.source_positions, source)
    x = product(model.encoder_input, e)
    for block in model.encoder_blocks:
        left, size = (block.kernel_size - 1) // 2, block.kernel_size
        seen = np.pad(x, ((left, size - 1 - left), (0, 0)))
        if block.residual_projection is not None:
            x = product(block.residual_projection, x)
        x = (product(block.convolution, seen) + x) * HALF
    z = product(model.encoder_output, x)
    values = (z + e) * HALF

    g = embed(model.target_embedding, model.target_positions, target)
    h, attention = product(model.decoder_input, g), []
    for block in model.decoder_blocks:
        v = product(block.convolution, np.pad(h, ((block.kernel_size - 1, 0), (0, 0))))
        scores = (product(block.query_projection, v) + g) * HALF @ z.T
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        context = weights @ values * np.sqrt(len(source))
        v = (product(block.context_projection, context) + v) * HALF
        if block.residual_projection is not None:
            h = product(block.residual_projection, h)
        h = (v + h) * HALF
        attention.append(weights)
    output = product(model.decoder_output, h)
    if model.output_projection is None:
        logits = output @ array(model.target_embedding.embeddings).T
        logits = logits + array(model.output_bias)
    else:
        logits = product(model.output_projection, output)
    return logits, np.mean(attention, axis=0)


@pytest.mark.parametrize(
    "options", [{}, {"tie_output": True, "output_dim": 5, "share_embeddings": True}]
)
def test_logits_and_attention_equal_the_formulas(options):
    model = spread(make(**options))
    logits = model({"source_ids": SOURCE, "target_ids": TARGET}, training=False)
    memory = model.encode(SOURCE)
    state = model.initial_state(memory)
    attention = []
    for position in range(TARGET.shape[1]):
        _, state, weights = model.step(TARGET[:, position], memory, state)
        attention.append(ops.convert_to_numpy(weights))
    attention = np.stack(attention, 1)
    for row, source in enumerate(SOURCE):
        source = source[source != 0]
        expected, weights = by_hand(model, source, TARGET[row])
        np.testing.assert_allclose(logits[row], expected, atol=1e-4)
        np.testing.assert_allclose(attention[row, :, : len(source)], weights, atol=1e-5)
        assert (attention[row, :, len(source) :] == 0).all()


def test_state_is_a_window_of_each_layers_last_inputs():
    model = make(decoder_kernel_size=[5, 1])
    memory = model.encode(SOURCE)
    state = model.initial_state(memory, 9)
    windows = [tuple(window.shape) for window in state["windows"]]
    assert windows == [(2, 4, 6), (2, 0, 6)]
    for window in state["windows"]:
        np.testing.assert_array_equal(window, np.zeros(window.shape))
    for token in (2, 4, 5):
        _, state, _ = model.step(np.array([token, token]), memory, state)
    first = ops.convert_to_numpy(state["windows"][0])
    e = embed(model.target_embedding, model.target_positions, [2, 4, 5])
    np.testing.assert_allclose(
        first[0], np.pad(product(model.decoder_input, e), ((1, 0), (0, 0))), atol=1e-5
    )
    np.testing.assert_array_equal(state["position"], [3, 3])


def gradients(model):
    """Gradient of a fixed function of the logits, by path."""
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    shape = (*TARGET.shape, VOCABULARY)
    wanted = np.random.default_rng(9).normal(size=shape).astype("float32")
    weights = model.trainable_weights
    if keras.backend.backend() == "jax":
        import jax

        def loss(values):
            frozen = [v.value for v in model.non_trainable_variables]
            logits, _ = model.stateless_call(values, frozen, inputs, training=False)
            return ops.sum(logits * wanted)

        found = jax.grad(loss)([weight.value for weight in weights])
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = ops.sum(model(inputs, training=False) * wanted)
        found = tape.gradient(loss, [weight.value for weight in weights])
    return {w.path: array(g) for w, g in zip(weights, found, strict=True)}


def test_gradient_into_the_encoder_is_divided_by_twice_the_decoders_layers(monkeypatch):
    model = spread(make())
    scaled = gradients(model)
    monkeypatch.setattr(convolutional, "scale_gradient", lambda x, scale: x)
    plain = gradients(model)
    for path, value in plain.items():
        factor = 1 / (2 * 2) if path.startswith("encoder_") else 1
        if "source_embedding" not in path and "source_positions" not in path:
            np.testing.assert_allclose(
                scaled[path], factor * value, rtol=1e-3, atol=1e-5, err_msg=path
            )
    assert sum(path.startswith("encoder_") for path in plain) == 3 + 3 + 6 + 3


def test_gradient_into_the_embeddings_as_values_is_not_scaled(monkeypatch):
    model = spread(make())
    # z is constant, so that the embeddings act as values only.
    model.encoder_output.gain.assign(np.zeros(5))
    scaled = gradients(model)
    monkeypatch.setattr(convolutional, "scale_gradient", lambda x, scale: x)
    plain = gradients(model)
    for path, value in plain.items():
        if "source_embedding" in path or "source_positions" in path:
            assert np.abs(value).max() > 1e-3
            np.testing.assert_allclose(scaled[path], value, atol=1e-6)


def test_weights_start_as_published():
    model = make(
        embedding_dim=64,
        encoder_channels=[48],
        encoder_kernel_size=5,
        decoder_channels=[80],
        decoder_kernel_size=3,
        output_dim=32,
        max_positions=64,
        dropout=0.2,
    )
    expected = {
        "source_embedding/embeddings": 0.1,
        "target_positions/table": 0.1,
        "encoder_input/direction": (0.8 / 64) ** 0.5,
        "encoder_0/convolution/direction": (4 * 0.8 / (5 * 48)) ** 0.5,
        "encoder_output/direction": (1 / 48) ** 0.5,
        "decoder_input/direction": (0.8 / 64) ** 0.5,
        "decoder_0/convolution/direction": (4 * 0.8 / (3 * 80)) ** 0.5,
        "decoder_0/query_projection/direction": (1 / 80) ** 0.5,
        "decoder_0/context_projection/direction": (1 / 64) ** 0.5,
        "decoder_output/direction": (1 / 80) ** 0.5,
        "output_projection/direction": (0.8 / 32) ** 0.5,
    }
    for path, deviation in expected.items():
        (weight,) = (w for w in model.weights if w.path.endswith(path))
        assert array(weight).std() == pytest.approx(deviation, rel=0.15), path
    for weight in model.weights:
        if weight.path.endswith("bias"):
            np.testing.assert_array_equal(weight, np.zeros(weight.shape))


def test_parameters_are_as_many_as_the_formula_says():
    def layer(inputs, outputs, size=1):
        return size * inputs * outputs + 2 * outputs  # directions, gains, biases

    expected = 2 * VOCABULARY * 5 + 2 * 12 * 5  # tokens and positions
    expected += layer(5, 4) + layer(4, 8, 3) + layer(4, 12, 4) + layer(4, 6)
    expected += layer(6, 5)
    attention = layer(6, 5) + layer(5, 6) + layer(4, 5) + layer(5, 4)
    expected += layer(5, 6) + layer(6, 12, 3) + layer(6, 8, 1) + layer(6, 4)
    expected += attention + layer(4, 7) + layer(7, VOCABULARY)
    assert make().count_params() == expected


def test_published_architecture_can_be_written_and_decodes_as_it_trains():
    """The layers of the WMT'14 English to German model, 128 times narrower."""
    model = make(
        embedding_dim=6,
        encoder_channels=[4] * 9 + [8] * 4 + [16] * 2,
        encoder_kernel_size=[3] * 13 + [1] * 2,
        decoder_channels=[4] * 9 + [8] * 4 + [16] * 2,
        decoder_kernel_size=[3] * 13 + [1] * 2,
        output_dim=4,
    )
    projected = [
        block.residual_projection is not None for block in model.encoder_blocks
    ]
    assert np.nonzero(projected)[0].tolist() == [9, 13]
    logits = model({"source_ids": SOURCE, "target_ids": TARGET}, training=False)
    memory = model.encode(SOURCE)
    state = model.initial_state(memory)
    for position in range(TARGET.shape[1]):
        found, state, _ = model.step(TARGET[:, position], memory, state)
        np.testing.assert_allclose(found, logits[:, position], atol=1e-5)


def test_texts_longer_than_the_positions_are_refused():
    model = make()
    assert model.max_positions == 12
    with pytest.raises(ValueError, match="13 tokens.*max_positions=12"):
        model.encode(np.full((1, 13), 4, "int32"))


def test_dropout_is_on_in_training_only():
    model = make(dropout=0.5)
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    calm = [array(model(inputs, training=False)) for _ in range(2)]
    np.testing.assert_array_equal(*calm)
    assert np.abs(array(model(inputs, training=True)) - calm[0]).max() > 1e-2


def test_compiled_training_equals_eager():
    """Gradients of convolutions and windows, under XLA as without."""
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    labels = np.roll(TARGET, -1, axis=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    after = []
    for options in ({"jit_compile": True}, {"run_eagerly": True}):
        model = spread(make(dropout=0.0))
        before = model.get_weights()
        model.compile(keras.optimizers.SGD(1.0), loss, **options)
        model.fit(inputs, labels, batch_size=2, epochs=1, verbose=0)
        after.append(model.get_weights())
    for compiled, eager, old in zip(*after, before, strict=True):
        assert np.abs(eager - old).max() > 0
        np.testing.assert_allclose(compiled, eager, atol=1e-4)
