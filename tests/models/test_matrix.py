"""Properties across all models beyond the contract: training, chance, size, toy tasks.

Models join by their `CASES` in test_contract.py and `MODELS` in test_training.py.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import generate, greedy_search
from keras_seq2seq.losses import TokenCrossEntropy
from keras_seq2seq.metrics import Perplexity, TokenLoss
from keras_seq2seq.models import MODELS, RecurrentSeq2Seq, TransformerSeq2Seq
from tests.helpers import one_case_each
from tests.models import test_training
from tests.models.test_contract import (
    CASES,
    END,
    SOURCE,
    START,
    VOCABULARY,
    decode_by_steps,
    logits_of,
    spread_weights,
)

# Three pairs whose sources and targets differ in length.
LABELS = np.array([[4, 5, 9, END], [6, 7, END, 0], [5, END, 0, 0]], "int32")
SOURCE_LENGTHS, TARGET_LENGTHS = (6, 3, 2), (4, 3, 2)
# For what is slow.
FEW = one_case_each(CASES, "attention")


def inputs_of(labels):
    """What the decoder reads: START, then the labels without END."""
    inputs = np.concatenate([np.full((len(labels), 1), START), labels[:, :-1]], 1)
    return np.where((inputs == END) | (labels == 0), 0, inputs).astype("int32")


def pairs(rows=slice(None), source_length=6, target_length=4):
    """Inputs, labels and weights of some of the pairs, cut to some lengths."""
    labels = LABELS[rows, :target_length]
    source = SOURCE[rows, :source_length]
    weights = (labels != 0).astype("float32")
    inputs = {"source_ids": source, "target_ids": inputs_of(labels)}
    return inputs, labels, weights


def pair_alone(row):
    return pairs(slice(row, row + 1), SOURCE_LENGTHS[row], TARGET_LENGTHS[row])


def made(case, seed=1, *, dropout=True):
    """The model of a case, with or without its dropout."""
    make, options = CASES[case]
    keras.utils.set_random_seed(seed)
    model = make(**options)
    if dropout:
        return model
    config = model.get_config()
    config |= {name: 0.0 for name in config if "dropout" in name}
    return type(model).from_config(config)


def compiled(model, loss):
    # Compiling takes longer than the step.
    model.compile(keras.optimizers.SGD(1.0), loss, run_eagerly=True)
    return model


def loss_and_gradients(model, batch):
    """The loss, and how far a step of rate 1 moves each weight; it is taken back."""
    before = model.get_weights()
    compiled(model, TokenCrossEntropy(reduction="sequence"))
    loss = float(model.train_on_batch(*batch))
    gradients = [b - a for b, a in zip(before, model.get_weights(), strict=True)]
    model.set_weights(before)
    return loss, gradients


def test_every_model_has_cases():
    classes = {type(made(case)) for case in CASES}
    assert classes >= set(MODELS.values())


@pytest.mark.parametrize("case", CASES)
def test_a_padded_batch_trains_as_the_mean_of_its_pairs_alone(case):
    model = made(case, dropout=False)
    spread_weights(model)
    loss, gradients = loss_and_gradients(model, pairs())
    alone = [loss_and_gradients(model, pair_alone(row)) for row in range(3)]
    assert loss == pytest.approx(np.mean([one for one, _ in alone]), rel=1e-5)
    others = zip(*(found for _, found in alone), strict=True)
    for weight, gradient, single in zip(model.weights, gradients, others, strict=True):
        np.testing.assert_allclose(
            gradient, np.mean(single, 0), atol=1e-5, rtol=1e-4, err_msg=weight.path
        )


@pytest.mark.parametrize("case", CASES)
def test_attention_of_a_padded_source_is_that_of_the_source_alone(case):
    model = made(case)
    spread_weights(model)
    target = inputs_of(LABELS)
    _, attention = decode_by_steps(model, SOURCE, target)
    for row, length in enumerate(SOURCE_LENGTHS):
        here = slice(row, row + 1)
        _, alone = decode_by_steps(model, SOURCE[here, :length], target[here])
        np.testing.assert_allclose(attention[row, :, :length], alone[0], atol=1e-5)


@pytest.mark.parametrize("case", FEW)
def test_greedy_search_writes_what_whole_calls_would_write(case):
    model = made(case)
    spread_weights(model)
    memory = model.encode(SOURCE)
    state = model.initial_state(memory, 4)
    found = greedy_search(model.step, memory, state, max_length=4)
    found = ops.convert_to_numpy(found.ids)[:, 0]
    target = np.full((3, 1), START, "int32")
    for position in range(4):
        logits = logits_of(model, SOURCE, target)[:, -1]
        logits[:, [0, START]] = -np.inf  # padding and START are never written
        chosen = logits.argmax(-1)
        ended = (target == END).any(1)
        expected = np.where(ended, 0, chosen)
        np.testing.assert_array_equal(found[:, position], expected)
        # What follows END is not looked at.
        target = np.concatenate([target, chosen[:, None]], 1).astype("int32")


@pytest.mark.parametrize("case", CASES)
def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(case):
    model = made(case)
    # Zero logits whatever the input, and no NaN from norms and softmaxes of zeros.
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    inputs, labels, weights = pairs()
    logits = model(inputs, training=True)
    assert (ops.convert_to_numpy(logits) == 0).all()
    for metric, expected in (
        (TokenCrossEntropy(), np.log(VOCABULARY)),
        (TokenCrossEntropy(label_smoothing=0.1), np.log(VOCABULARY)),
        (TokenCrossEntropy(reduction="sequence"), 3 * np.log(VOCABULARY)),
        (TokenLoss(), np.log(VOCABULARY)),
        (Perplexity(), VOCABULARY),
    ):
        found = float(metric(labels, logits, sample_weight=weights))
        assert found == pytest.approx(expected, rel=1e-5)


def seeds_of(model):
    return [
        ops.convert_to_numpy(variable)
        for variable in model.variables
        if variable.path.endswith("seed_generator_state")
    ]


@pytest.mark.parametrize("case", FEW)
def test_a_seed_decides_weights_and_dropout_and_inference_draws_nothing(case):
    runs = []
    for seed in (1, 1, 2):
        model = compiled(made(case, seed), TokenCrossEntropy())
        model.train_on_batch(*pairs())
        runs.append(model.get_weights())
    same = [np.array_equal(a, b) for a, b in zip(runs[0], runs[1], strict=True)]
    assert all(same)
    assert not all(np.array_equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))
    before = seeds_of(model)
    assert len(before) > 0  # there is dropout to be left out
    target = inputs_of(LABELS)
    logits = [logits_of(model, SOURCE, target) for _ in range(2)]
    np.testing.assert_array_equal(*logits)
    steps = [decode_by_steps(model, SOURCE, target)[0] for _ in range(2)]
    np.testing.assert_array_equal(*steps)
    for seed, old in zip(seeds_of(model), before, strict=True):
        np.testing.assert_array_equal(seed, old)
    # In training it does draw.
    inputs, _, _ = pairs()
    drawn = [ops.convert_to_numpy(model(inputs, training=True)) for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 0


TASKS = {"copy": lambda ids: ids, "reverse": lambda ids: ids[::-1], "sort": sorted}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", test_training.MODELS)
def test_eight_pairs_are_learnt_by_heart(name, task):
    sources = [source for source, _ in test_training.PAIRS]
    source = test_training.padded(sources)
    labels = test_training.padded([TASKS[task](ids) for ids in sources])
    batch = ({"source_ids": source, "target_ids": inputs_of(labels)}, labels)
    weights = (labels != 0).astype("float32")
    model = test_training.make(name)
    model.compile(
        keras.optimizers.Adam(0.02),
        TokenCrossEntropy(),
        jit_compile=keras.backend.backend() == "jax",
    )
    for _ in range(150):
        model.train_on_batch(*batch, weights)
    loss = float(TokenCrossEntropy()(labels, model(batch[0]), sample_weight=weights))
    assert loss < 0.01
    found = generate(model, source, max_length=labels.shape[1])
    np.testing.assert_array_equal(found.ids[:, 0], labels)


def recurrent_size(
    vocabulary,
    *,
    units,
    embedding,
    cell="lstm",
    attention="additive",
    sides=2,
    layers=(1, 1),
    input_feeding=True,
    tied=False,
):
    """Parameters of an encoder–decoder, by the equations of its papers."""
    gates = {"lstm": 4, "gru": 3, "simple": 1}[cell]
    states = 2 if cell == "lstm" else 1
    memory = sides * units

    def cell_size(inputs):
        # The GRU whose reset gate comes after the product has a second bias.
        biases = 2 if cell == "gru" else 1
        return gates * (inputs * units + units * units + biases * units)

    encoder = sides * (cell_size(embedding) + (layers[0] - 1) * cell_size(memory))
    decoder = cell_size(embedding) + (layers[1] - 1) * cell_size(units)
    bridges = layers[1] * states * (memory * units + units) if sides == 2 else 0
    score = {
        "none": 0,
        "dot": 0,
        "bilinear": units * memory,
        "additive": units * units + memory * units + units,
    }[attention]
    fed = {"none": 0, "additive": memory}.get(attention, input_feeding * units)
    readout = {
        "none": 0,
        "additive": (units + memory + embedding) * units + units,
    }.get(attention, (units + memory) * units)
    output = 0 if tied else units * vocabulary + vocabulary
    return (
        2 * vocabulary * embedding
        + encoder
        + decoder
        + bridges
        + score
        + fed * gates * units
        + readout
        + output
    )


@pytest.mark.parametrize("cell", ["lstm", "gru", "simple"])
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {}),
        ({"attention": "none", "bidirectional": False}, {"sides": 1}),
        ({"attention": "none"}, {}),
        ({"attention": "dot", "bidirectional": False}, {"sides": 1}),
        ({"attention": "bilinear"}, {}),
        ({"attention": "bilinear", "input_feeding": False}, {"input_feeding": False}),
        (
            {"num_encoder_layers": 2, "num_decoder_layers": 3, "tie_output": True},
            {"layers": (2, 3), "tied": True},
        ),
    ],
)
def test_recurrent_models_are_as_large_as_the_equations_say(cell, options, arguments):
    tied = options.get("tie_output", False)
    embedding = 6 if tied else 4
    model = RecurrentSeq2Seq(
        11, 11, cell=cell, units=6, embedding_dim=embedding, **options
    )
    expected = recurrent_size(
        11,
        cell=cell,
        units=6,
        embedding=embedding,
        attention=options.get("attention", "additive"),
        **arguments,
    )
    assert model.count_params() == expected


def transformer_size(
    vocabulary, dim, inner, layers, *, norm="post", tables=2, positions=0, output=0
):
    """Parameters of a Transformer: blocks, norms, and the tables beside them."""
    attention = 4 * dim * dim + 4 * dim
    feedforward = 2 * dim * inner + inner + dim
    encoder = attention + feedforward + 2 * 2 * dim
    decoder = 2 * attention + feedforward + 3 * 2 * dim
    final_norms = 2 * 2 * dim if norm == "pre" else 0
    return (
        tables * vocabulary * dim
        + 2 * positions
        + layers * (encoder + decoder)
        + final_norms
        + output
    )


# 37,000 pieces in one table for source, target and output.
def test_the_formula_gives_the_sizes_of_the_paper():
    assert transformer_size(37_000, 512, 2048, 6, tables=1) == 63_082_496
    assert transformer_size(37_000, 1024, 4096, 6, tables=1) == 214_245_376


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {}),
        ({"share_embeddings": True}, {"tables": 1}),
        ({"norm": "pre"}, {"norm": "pre"}),
        ({"tie_output": False}, {"output": 8 * 11 + 11}),
        ({"positions": "learned"}, {"positions": 16 * 8}),
        (
            # Token vectors of 6, position vectors of 2.
            {"combine_positions": "concat", "tie_output": False},
            {"tables": 2 * 6 / 8, "output": 8 * 11 + 11},
        ),
        (
            {
                "combine_positions": "concat",
                "tie_output": False,
                "positions": "learned",
            },
            {"tables": 2 * 6 / 8, "output": 8 * 11 + 11, "positions": 16 * 2},
        ),
    ],
)
@pytest.mark.parametrize("num_heads", [1, 4])
def test_transformers_are_as_large_as_the_formula_says(options, arguments, num_heads):
    model = TransformerSeq2Seq(
        11,
        11,
        dim=8,
        feedforward_dim=12,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_heads=num_heads,
        max_positions=16,
        **options,
    )
    assert model.count_params() == transformer_size(11, 8, 12, 2, **arguments)
