"""The whole Transformer computes what PyTorch's computes, on shared weights."""

import numpy as np
import pytest
from keras import ops

from keras_seq2seq.models import TransformerSeq2Seq

pytestmark = pytest.mark.torch

VOCABULARY, DIM = 11, 8
SOURCE = np.array([[5, 6, 7, 4, 9, 3], [8, 4, 3, 0, 0, 0]], "int32")
TARGET = np.array([[2, 4, 5, 9], [2, 6, 7, 0]], "int32")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def make(norm):
    model = TransformerSeq2Seq(
        VOCABULARY,
        VOCABULARY,
        dim=DIM,
        num_heads=2,
        feedforward_dim=12,
        num_encoder_layers=2,
        num_decoder_layers=2,
        norm=norm,
    )
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(generator.normal(0, 0.5, weight.shape))
    return model


def dense(layer):
    """PyTorch keeps a dense layer's matrix transposed: outputs in rows."""
    return {
        "weight": ops.convert_to_numpy(layer.kernel).T,
        "bias": ops.convert_to_numpy(layer.bias),
    }


def norm_of(layer):
    return {
        "weight": ops.convert_to_numpy(layer.gamma),
        "bias": ops.convert_to_numpy(layer.beta),
    }


def attention(projections, output):
    """Query, key and value are the thirds of one matrix of `3 D` rows."""
    stacked = [dense(layer) for layer in projections]
    return {
        "in_proj_weight": np.concatenate([layer["weight"] for layer in stacked]),
        "in_proj_bias": np.concatenate([layer["bias"] for layer in stacked]),
        **{f"out_proj.{key}": value for key, value in dense(output).items()},
    }


def block_weights(block):
    own = block.self_attention
    groups = {
        "self_attn": attention([own.input_projection], own.output_projection),
        "linear1": dense(block.inner),
        "linear2": dense(block.outer),
        "norm1": norm_of(block.self_attention_norm),
    }
    if hasattr(block, "cross_attention"):
        cross = block.cross_attention
        groups["multihead_attn"] = attention(
            [cross.query_projection, cross.memory_projection], cross.output_projection
        )
        groups["norm2"] = norm_of(block.cross_attention_norm)
        groups["norm3"] = norm_of(block.feedforward_norm)
    else:
        groups["norm2"] = norm_of(block.feedforward_norm)
    return {
        f"{group}.{key}": value
        for group, weights in groups.items()
        for key, value in weights.items()
    }


def state_dict(model, torch):
    """The model's weights under PyTorch's names."""
    weights = {}
    for stack in ("encoder", "decoder"):
        for index, block in enumerate(getattr(model, f"{stack}_blocks")):
            for key, value in block_weights(block).items():
                weights[f"{stack}.layers.{index}.{key}"] = value
        final = getattr(model, f"{stack}_norm")
        if final is not None:
            for key, value in norm_of(final).items():
                weights[f"{stack}.norm.{key}"] = value
    return {key: torch.tensor(value) for key, value in weights.items()}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # it has no effect here
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_equal_those_of_the_torch_transformer(norm, torch):
    model = make(norm)
    theirs = torch.nn.Transformer(
        d_model=DIM,
        nhead=2,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dim_feedforward=12,
        dropout=0.0,
        activation="relu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=norm == "pre",
    )
    if norm == "post":  # PyTorch normalises once more after each stack, the paper not
        theirs.encoder.norm = theirs.decoder.norm = None
    theirs.load_state_dict(state_dict(model, torch), strict=True)
    theirs.eval()

    embedded = [
        torch.tensor(ops.convert_to_numpy(model._embed(*arguments)))
        for arguments in (
            (model.source_embedding, model.source_positions, SOURCE),
            (model.target_embedding, model.target_positions, TARGET),
        )
    ]
    padding = torch.tensor(SOURCE == 0)  # True is left out there
    length = TARGET.shape[1]
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    # With gradients on: without them PyTorch takes another path for encoders.
    output = theirs(
        *embedded,
        tgt_mask=future,
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    output = output.detach().numpy()
    table = ops.convert_to_numpy(model.target_embedding.embeddings)
    logits = model({"source_ids": SOURCE, "target_ids": TARGET}, training=False)
    np.testing.assert_allclose(logits, output @ table.T, atol=1e-4)
    assert np.abs(ops.convert_to_numpy(logits)).max() > 0.5


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_cells_equal_those_of_torch(kind, torch):
    from keras_seq2seq.layers import GRUCell, LSTMCell, scan_time

    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype("float32")
    cell = {"LSTM": LSTMCell, "GRU": GRUCell}[kind](4)
    cell.build((None, None, 3))
    generator = np.random.default_rng(0)
    for weight in cell.weights:
        weight.assign(generator.normal(0, 0.6, weight.shape))
    # Keras orders the gates i f g o and z r h; PyTorch i f g o and r z h.
    order = [0, 1, 2, 3] if kind == "LSTM" else [1, 0, 2]

    def gates(weight):
        blocks = np.split(ops.convert_to_numpy(weight), len(order), axis=-1)
        return torch.tensor(np.concatenate([blocks[gate] for gate in order], -1).T)

    theirs = getattr(torch.nn, kind)(3, 4, batch_first=True)
    recurrent_bias = getattr(cell, "recurrent_bias", None)
    bias = gates(cell.input_projection.bias)
    theirs.load_state_dict(
        {
            "weight_ih_l0": gates(cell.input_projection.kernel),
            "weight_hh_l0": gates(cell.recurrent_kernel),
            "bias_ih_l0": bias,
            "bias_hh_l0": (
                torch.zeros_like(bias)
                if recurrent_bias is None
                else gates(recurrent_bias)
            ),
        }
    )

    def step(projected, states):
        states = cell(projected, states)
        return states[0], states

    outputs, _ = scan_time(step, cell.project_inputs(x), cell.zero_states(2))
    with torch.no_grad():
        expected, _ = theirs(torch.tensor(x))
    np.testing.assert_allclose(outputs, expected.numpy(), atol=1e-4)
