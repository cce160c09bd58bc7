"""The blocks compute what KerasHub's Transformer layers compute, on shared weights."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import (
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    causal_mask,
)

if keras.backend.backend() != "tensorflow":
    pytest.skip("KerasHub needs TensorFlow", allow_module_level=True)

keras_hub = pytest.importorskip("keras_hub")

DIM, HEADS, INNER = 8, 2, 12
SIZES = {"intermediate_dim": INNER, "num_heads": HEADS, "layer_norm_epsilon": 1e-6}


def ramp(layer, seed=0):
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(generator.normal(0, 0.5, weight.shape))


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def copy_weights(ours, theirs):
    for weight, other in zip(ours.weights, theirs.weights, strict=True):
        other.assign(weight)


def copy_attention(projections, output, theirs):
    """Copies `(kernel, bias)` of query, key and value, cut into heads."""
    for name, (kernel, bias) in zip(
        ("query", "key", "value"), projections, strict=True
    ):
        dense = getattr(theirs, f"_{name}_dense")
        dense.kernel.assign(ops.reshape(kernel, (DIM, HEADS, DIM // HEADS)))
        dense.bias.assign(ops.reshape(bias, (HEADS, DIM // HEADS)))
    dense = theirs._output_dense
    dense.kernel.assign(ops.reshape(output.kernel, (HEADS, DIM // HEADS, DIM)))
    dense.bias.assign(output.bias)


def parts(dense, count):
    """One dense layer's `(kernel, bias)` as `count` layers side by side."""
    kernels = ops.split(dense.kernel, count, axis=1)
    return list(zip(kernels, ops.split(dense.bias, count), strict=True))


def copy_block(ours, theirs):
    attention = ours.self_attention
    copy_attention(
        parts(attention.input_projection, 3),
        attention.output_projection,
        theirs._self_attention_layer,
    )
    copy_weights(ours.self_attention_norm, theirs._self_attention_layer_norm)
    copy_weights(ours.inner, theirs._feedforward_intermediate_dense)
    copy_weights(ours.outer, theirs._feedforward_output_dense)
    copy_weights(ours.feedforward_norm, theirs._feedforward_layer_norm)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_block_equals_that_of_keras_hub(norm):
    ours = TransformerEncoderBlock(DIM, HEADS, INNER, norm=norm)
    ours.build()
    ramp(ours)
    theirs = keras_hub.layers.TransformerEncoder(**SIZES, normalize_first=norm == "pre")
    theirs.build((None, None, DIM))
    copy_block(ours, theirs)
    x = data(2, 6, DIM)
    real = np.array([[True] * 6, [True] * 4 + [False] * 2])
    np.testing.assert_allclose(
        ours(x, real[:, None, None]), theirs(x, padding_mask=real), atol=1e-4
    )


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_block_equals_that_of_keras_hub(norm):
    ours = TransformerDecoderBlock(DIM, HEADS, INNER, norm=norm)
    ours.build()
    ramp(ours)
    theirs = keras_hub.layers.TransformerDecoder(**SIZES, normalize_first=norm == "pre")
    theirs.build((None, None, DIM), (None, None, DIM))
    copy_block(ours, theirs)
    cross = ours.cross_attention
    copy_attention(
        parts(cross.query_projection, 1) + parts(cross.memory_projection, 2),
        cross.output_projection,
        theirs._cross_attention_layer,
    )
    copy_weights(ours.cross_attention_norm, theirs._cross_attention_layer_norm)
    x, memory = data(2, 5, DIM), data(2, 6, DIM, seed=1)
    real = np.array([[True] * 6, [True] * 4 + [False] * 2])
    found, _ = ours(
        x, cross.project_memory(memory), real[:, None, None], causal_mask(5)[None, None]
    )
    expected = theirs(x, memory, encoder_padding_mask=real)
    np.testing.assert_allclose(found, expected, atol=1e-4)
