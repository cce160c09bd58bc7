"""What training does to every kind of model: learns, stays finite, ignores padding."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import generate
from keras_seq2seq.losses import TokenCrossEntropy
from keras_seq2seq.models import (
    ConvSeq2Seq,
    MinimalRecurrentSeq2Seq,
    RecurrentSeq2Seq,
    TransformerSeq2Seq,
)

VOCABULARY = 12
PAD, START, END = 0, 2, 3
SOURCE = np.array([[5, 6, 7, 4, END], [8, 4, END, 0, 0], [0] * 5], "int32")
LABELS = np.array([[9, 5, 4, END], [6, END, 0, 0], [7, 8, END, 0]], "int32")


def transformer(**options):
    sizes = {"dim": 16, "num_heads": 2, "feedforward_dim": 32, "max_positions": 12}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
    return TransformerSeq2Seq(VOCABULARY, VOCABULARY, **{**sizes, **layers, **options})


def recurrent(**options):
    sizes = {"units": 24, "embedding_dim": 16, "dropout": 0.0}
    return RecurrentSeq2Seq(VOCABULARY, VOCABULARY, **{**sizes, **options})


def convolutional(**options):
    sizes = {"embedding_dim": 16, "output_dim": 16, "max_positions": 12}
    layers = {"encoder_channels": [16] * 2, "decoder_channels": [16] * 2}
    return ConvSeq2Seq(
        VOCABULARY, VOCABULARY, **{**sizes, **layers, "dropout": 0.0, **options}
    )


def minimal(**options):
    sizes = {"dim": 16, "num_heads": 2, "feedforward_dim": 32, "dropout": 0.0}
    return MinimalRecurrentSeq2Seq(VOCABULARY, VOCABULARY, **{**sizes, **options})


MODELS = {
    "transformer-post": (transformer, {}),
    "transformer-pre": (transformer, {"norm": "pre", "positions": "learned"}),
    "transformer-window": (
        transformer,
        {"norm": "pre", "positions": "rotary", "window": 5},
    ),
    "lstm-additive": (recurrent, {}),
    "gru-bilinear": (recurrent, {"cell": "gru", "attention": "bilinear"}),
    "lstm-none": (recurrent, {"attention": "none", "reverse_source": True}),
    "simple-dot": (
        recurrent,
        {"cell": "simple", "attention": "dot", "bidirectional": False},
    ),
    "convolutional": (convolutional, {}),
    "mingru": (minimal, {}),
    "minlstm-none": (minimal, {"cell": "minlstm", "attention": "none"}),
}


def make(name, **options):
    keras.utils.set_random_seed(5)
    build, arguments = MODELS[name]
    return build(**arguments, **options)


def batch_of(source, labels):
    """Inputs, labels and weights of a training step."""
    inputs = np.concatenate([np.full((len(labels), 1), START), labels[:, :-1]], axis=1)
    inputs = np.where((inputs == END) | (labels == PAD), PAD, inputs).astype("int32")
    return (
        {"source_ids": source, "target_ids": inputs},
        labels,
        (labels != PAD).astype("float32"),
    )


def loss_and_gradients(model, batch):
    import tensorflow as tf

    inputs, labels, weights = batch
    with tf.GradientTape() as tape:
        logits = model(inputs, training=True)
        loss = TokenCrossEntropy()(labels, logits, sample_weight=weights)
    gradients = tape.gradient(loss, [w.value for w in model.trainable_weights])
    return float(loss), [ops.convert_to_numpy(gradient) for gradient in gradients]


# The pairs to learn by heart: the target is the source, reversed, plus one.
PAIRS = [
    ((4, 5, 6), (7, 6, 5)),
    ((6, 4), (5, 7)),
    ((9, 8, 7, 4), (5, 8, 9, 10)),
    ((5,), (6,)),
    ((8, 8, 5), (6, 9, 9)),
    ((7, 9), (10, 8)),
    ((4, 4, 9, 6), (7, 10, 5, 5)),
    ((10, 5), (6, 11)),
]


def padded(rows):
    table = np.zeros((len(rows), max(map(len, rows)) + 1), "int32")
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids) + 1] = [*ids, END]
    return table


@pytest.mark.parametrize("name", MODELS)
def test_a_few_pairs_are_learnt_by_heart_from_their_sources(name):  # (B42, B59)
    model = make(name)
    # At twice the rate, unclipped, the loss ends anywhere from .0003 to .25, since sums
    # of several threads differ from run to run; so it ends below .004.
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0)
    model.compile(optimizer, TokenCrossEntropy(), jit_compile=False)
    source = padded([pair[0] for pair in PAIRS])
    target = padded([pair[1] for pair in PAIRS])
    inputs, labels, weights = batch_of(source, target)
    # One long epoch: the loop stays in the graph.
    repeated = [
        np.tile(array, (100, 1)) for array in (*inputs.values(), labels, weights)
    ]
    model.fit(
        dict(zip(inputs, repeated[:2], strict=True)),
        repeated[2],
        sample_weight=repeated[3],
        batch_size=len(PAIRS),
        shuffle=False,
        verbose=0,
    )
    loss = TokenCrossEntropy()
    right = float(loss(labels, model(inputs), sample_weight=weights))
    assert right < 0.05
    found = generate(model, source, max_length=target.shape[1])
    np.testing.assert_array_equal(found.ids[:, 0], target)
    # The answer comes from the source, and only in this direction.
    shuffled = {**inputs, "source_ids": source[::-1]}
    assert float(loss(labels, model(shuffled), sample_weight=weights)) > right + 1
    back = generate(model, target, max_length=source.shape[1])
    assert (back.ids[:, 0] != source).any()


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_neither_loss_nor_gradients(name):  # (B39, B48)
    model = make(name)
    loss, gradients = loss_and_gradients(model, batch_of(SOURCE[:2], LABELS[:2]))
    more = [np.pad(array[:2], ((0, 1), (0, 3))) for array in (SOURCE, LABELS)]
    again, others = loss_and_gradients(model, batch_of(*more))
    assert loss == pytest.approx(again, rel=1e-5)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(gradient, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize(
    "name",
    [
        "transformer-post",
        "lstm-additive",
        "gru-bilinear",
        "convolutional",
        "mingru",
        "minlstm-none",
    ],
)
def test_half_precision_with_an_empty_source_stays_close_to_float32(
    name, policy
):  # (B47, B54)
    batch = batch_of(SOURCE, LABELS)
    single = make(name)
    half = make(name, dtype=policy)
    half.set_weights(single.get_weights())
    expected, _ = loss_and_gradients(single, batch)
    loss, gradients = loss_and_gradients(half, batch)
    assert loss == pytest.approx(expected, rel=0.02)
    for gradient in gradients:
        assert np.isfinite(gradient.astype("float32")).all()


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "additive"},
        {"attention": "bilinear"},
        {"attention": "bilinear", "window": 2},
        {"attention": "location", "max_source_positions": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_fit_under_xla_takes_batches_and_lengths_unknown_beforehand(options):
    import tensorflow as tf

    ids, floats = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None])
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([batch_of(SOURCE, LABELS)]),
        output_signature=({"source_ids": ids, "target_ids": ids}, ids, floats),
    )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(1))
    weights = []
    for mode in ({"jit_compile": True}, {"run_eagerly": True}):
        keras.utils.set_random_seed(5)
        model = recurrent(units=4, embedding_dim=4, **options)
        model.supports_jit = True  # off by default on TensorFlow
        sgd = keras.optimizers.SGD(1.0)
        model.compile(sgd, TokenCrossEntropy(), **mode)
        assert model.jit_compile == ("jit_compile" in mode)
        # Larger weights, so that the gradient of none is lost in rounding.
        model.set_weights([3 * weight for weight in model.get_weights()])
        before = model.get_weights()
        model.fit(dataset, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for compiled, eager, old in zip(*weights, before, strict=True):
        assert np.abs(eager - old).max() > 0
        np.testing.assert_allclose(compiled, eager, atol=1e-4)


def test_parameters_are_as_many_as_the_formulas_say():
    vocabulary, dim, inner = VOCABULARY, 16, 32
    attention = 4 * dim * dim + 4 * dim
    feedforward = 2 * dim * inner + inner + dim
    norm = 2 * dim
    encoder = attention + feedforward + 2 * norm
    decoder = 2 * attention + feedforward + 3 * norm
    found = make("transformer-post").count_params()
    assert found == 2 * vocabulary * dim + encoder + decoder

    units, embedding = 24, 16
    cell = 4 * (embedding * units + units**2 + units)
    memory = 2 * units
    bridges = 2 * (memory * units + units)
    score = units * units + memory * units + units
    feedback = memory * 4 * units
    readout = (units + memory + embedding) * units + units
    output = units * vocabulary + vocabulary
    found = make("lstm-additive").count_params()
    assert found == (
        2 * vocabulary * embedding
        + 3 * cell
        + bridges
        + score
        + feedback
        + readout
        + output
    )


@pytest.mark.parametrize("preset", ["cho2014", "bahdanau2015_groundhog", "luong2015"])
def test_no_step_of_the_gradient_writes_zeros_around_a_slice(preset):
    import tensorflow as tf

    sizes = {"units": 4, "embedding_dim": 4}
    model = RecurrentSeq2Seq.from_preset(preset, VOCABULARY, VOCABULARY, **sizes)
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[{"source_ids": ids, "target_ids": ids}])
    def gradients(inputs):
        with tf.GradientTape() as tape:
            loss = ops.sum(model(inputs, training=True))
        return tape.gradient(loss, [w.value for w in model.trainable_weights])

    graph = gradients.get_concrete_function().graph.as_graph_def()
    bodies = [f for f in graph.library.function if "_body" in f.signature.name]
    kinds = {node.op for body in bodies for node in body.node_def}
    assert "MatMul" in kinds and "TanhGrad" in kinds
    assert not {"StridedSliceGrad", "UnsortedSegmentSum"} & kinds
