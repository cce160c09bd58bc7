"""The contract of DESIGN: one set of properties over every model and option."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.models import (
    MODELS,
    ConvSeq2Seq,
    MinimalRecurrentSeq2Seq,
    RecurrentSeq2Seq,
    TransformerSeq2Seq,
)
from keras_seq2seq.models.presets import PRESETS

VOCABULARY = 11
START, END = 2, 3
SOURCE = np.array(
    [[5, 6, 7, 4, 9, END], [8, 4, END, 0, 0, 0], [10, END, 0, 0, 0, 0]], "int32"
)
TARGET = np.array([[START, 4, 5, 9], [START, 6, 7, 8], [START, 5, 0, 0]], "int32")


def transformer(**options):
    return TransformerSeq2Seq(
        VOCABULARY,
        VOCABULARY,
        **{
            "dim": 8,
            "num_heads": 2,
            "feedforward_dim": 12,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "max_positions": 16,
            **options,
        },
    )


def recurrent(**options):
    return RecurrentSeq2Seq(
        VOCABULARY, VOCABULARY, **{"units": 8, "embedding_dim": 8, **options}
    )


def recurrent_preset(preset, **options):
    return RecurrentSeq2Seq.from_preset(
        preset, VOCABULARY, VOCABULARY, units=8, embedding_dim=8, **options
    )


def convolutional(**options):
    return ConvSeq2Seq(
        VOCABULARY,
        VOCABULARY,
        **{
            "embedding_dim": 8,
            "encoder_channels": [8, 8],
            "decoder_channels": [8, 8],
            "output_dim": 8,
            "max_positions": 16,
            **options,
        },
    )


def minimal(**options):
    return MinimalRecurrentSeq2Seq(
        VOCABULARY,
        VOCABULARY,
        **{"dim": 8, "feedforward_dim": 12, "num_heads": 2, **options},
    )


CASES = {}
for norm, positions, combine in itertools.product(
    ("post", "pre"), ("sinusoidal", "learned"), ("sum", "concat")
):
    CASES[f"transformer-{norm}-{positions}-{combine}"] = (
        transformer,
        {
            "norm": norm,
            "positions": positions,
            "combine_positions": combine,
            "tie_output": combine == "sum",
            "share_embeddings": norm == "pre",
        },
    )
for name, options in {
    "rotary-post": {"positions": "rotary"},
    "rotary-pre-bilinear": {
        "positions": "rotary",
        "norm": "pre",
        "attention_score": "bilinear",
    },
    "no-positions": {"positions": "none", "attention_score": "dot"},
    "additive": {"attention_score": "additive"},
    "halves-without-bias": {"sinusoid_layout": "halves", "attention_bias": False},
    "window-post": {"window": 3},
    "window-pre-rotary": {"window": 2, "norm": "pre", "positions": "rotary"},
    "window-additive": {"window": 3, "attention_score": "additive"},
}.items():
    CASES[f"transformer-{name}"] = (transformer, options)
for cell, attention in itertools.product(
    ("lstm", "gru", "simple"), ("none", "bilinear", "additive")
):
    CASES[f"recurrent-{cell}-{attention}"] = (
        recurrent,
        {"cell": cell, "attention": attention},
    )
CASES["recurrent-dot-one-direction"] = (
    recurrent,
    {"attention": "dot", "bidirectional": False},
)
CASES["recurrent-without-input-feeding"] = (
    recurrent,
    {"attention": "bilinear", "input_feeding": False},
)
CASES["recurrent-stacked"] = (
    recurrent,
    {
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "attention": "bilinear",
        "tie_output": True,
        "share_embeddings": True,
    },
)
CASES["recurrent-stacked-additive-reversed"] = (
    recurrent,
    {"num_encoder_layers": 2, "num_decoder_layers": 2, "reverse_source": True},
)
CASES["recurrent-stacked-plain-reversed"] = (
    recurrent,
    {
        "attention": "none",
        "bidirectional": False,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "reverse_source": True,
    },
)
for preset in PRESETS:
    CASES[f"recurrent-{preset}"] = (recurrent_preset, {"preset": preset})
for name, options in {
    "input-bridge": {"bridge": "input", "attention": "none", "cell": "gru"},
    "mean-context": {"bridge": "context", "summary": "mean", "attention": "none"},
    "location": {"attention": "location", "max_source_positions": 4},
    "scaled-dot-without-end": {
        "attention": "scaled_dot",
        "attend_end": False,
        "bidirectional": False,
    },
    "additive-luong": {"attention": "additive", "decoder": "luong"},
    "monotonic": {
        "attention": "bilinear",
        "window": 2,
        "window_center": "monotonic",
    },
    "monotonic-after-loop": {
        "attention": "bilinear",
        "window": 2,
        "window_center": "monotonic",
        "input_feeding": False,
    },
    "factorised-output": {"readout_dim": 6, "output_rank": 8, "tie_output": True},
    "gated-attention-context": {"cell": "gru", "gate_context": True},
}.items():
    CASES[f"recurrent-{name}"] = (recurrent, options)
CASES["convolutional"] = (convolutional, {})
CASES["convolutional-widths-and-kernels"] = (
    convolutional,
    {
        "encoder_channels": [6, 8, 4],
        "encoder_kernel_size": [5, 2, 1],
        "decoder_channels": [4, 8, 6],
        "decoder_kernel_size": [3, 1, 4],
        "output_dim": 5,
    },
)
CASES["convolutional-wide-kernels"] = (
    convolutional,
    {"encoder_kernel_size": 5, "decoder_kernel_size": 5, "share_embeddings": True},
)
CASES["convolutional-shared-and-tied"] = (
    convolutional,
    {"share_embeddings": True, "tie_output": True, "decoder_channels": [6]},
)
for cell, attention in itertools.product(
    ("mingru", "minlstm"), ("none", "scaled_dot", "additive")
):
    CASES[f"minimal-{cell}-{attention}"] = (
        minimal,
        {
            "cell": cell,
            "attention": attention,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
        },
    )
CASES["minimal-stacked"] = (
    minimal,
    {"num_encoder_layers": 2, "num_decoder_layers": 3, "share_embeddings": True},
)
CASES["minimal-stacked-none-one-direction"] = (
    minimal,
    {
        "cell": "minlstm",
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "attention": "none",
        "bidirectional": False,
        "tie_output": False,
    },
)


def spread_weights(model, seed=0):
    """Gives every weight values large enough for an error to show."""
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(generator.normal(0, 0.5, weight.shape))


@pytest.fixture(params=list(CASES), scope="module")
def model(request):
    make, options = CASES[request.param]
    keras.utils.set_random_seed(1)
    built = make(**options)
    spread_weights(built)
    return built


def logits_of(model, source, target):
    inputs = {"source_ids": source, "target_ids": target}
    return ops.convert_to_numpy(model(inputs, training=False))


def decode_by_steps(model, source, target, copies=1):
    """Runs `step` along `target`; `copies` hypotheses of each source."""
    memory = model.encode(source)
    state = model.initial_state(memory, target.shape[1])
    state = model.repeat_state(state, copies)
    logits, attention = [], []
    for position in range(target.shape[1]):
        tokens = ops.convert_to_tensor(target[:, position])
        step_logits, state, weights = model.step(tokens, memory, state)
        logits.append(ops.convert_to_numpy(step_logits))
        attention.append(ops.convert_to_numpy(weights))
    return np.stack(logits, 1), np.stack(attention, 1)


@pytest.fixture(scope="module")
def whole(model):
    """The logits of `SOURCE` and `TARGET`, computed once for each model."""
    return logits_of(model, SOURCE, TARGET)


@pytest.fixture(scope="module")
def by_steps(model):
    """The logits and the attention of the same, step by step."""
    return decode_by_steps(model, SOURCE, TARGET)


def test_call_equals_repeated_step(whole, by_steps):
    stepwise, _ = by_steps
    assert whole.shape == (3, 4, VOCABULARY)
    assert whole.std() > 0.05
    np.testing.assert_allclose(stepwise, whole, atol=1e-5, rtol=1e-5)


def test_step_equals_call_for_many_hypotheses_of_each_source(model):
    generator = np.random.default_rng(3)
    target = generator.integers(4, VOCABULARY, (6, 4)).astype("int32")
    stepwise, _ = decode_by_steps(model, SOURCE, target, copies=2)
    whole = logits_of(model, np.repeat(SOURCE, 2, axis=0), target)
    np.testing.assert_allclose(stepwise, whole, atol=1e-5, rtol=1e-5)


def test_select_state_carries_each_hypothesis_with_its_past(model):
    target = np.array([[2, 4, 5], [2, 9, 8]], "int32")
    source = SOURCE[:1]
    memory = model.encode(source)
    state = model.initial_state(memory, 3)
    state = model.repeat_state(state, 2)
    for position in range(2):
        tokens = ops.convert_to_tensor(target[:, position])
        _, state, _ = model.step(tokens, memory, state)
    state = model.select_state(state, ops.convert_to_tensor([1, 0]))
    swapped, _, _ = model.step(ops.convert_to_tensor(target[::-1, 2]), memory, state)
    whole = logits_of(model, np.repeat(source, 2, axis=0), target)[:, 2]
    np.testing.assert_allclose(
        ops.convert_to_numpy(swapped), whole[::-1], atol=1e-5, rtol=1e-5
    )


def test_padding_and_batch_mates_change_nothing(model, whole):
    for row, length in enumerate((6, 3, 2)):
        alone = logits_of(model, SOURCE[row : row + 1, :length], TARGET[row : row + 1])
        np.testing.assert_allclose(whole[row], alone[0], atol=1e-5, rtol=1e-5)


def test_target_padding_changes_nothing_before_it(model, whole):
    padded = np.pad(TARGET, ((0, 0), (0, 3)))
    np.testing.assert_allclose(
        logits_of(model, SOURCE, padded)[:, :4], whole, atol=1e-5, rtol=1e-5
    )


def test_future_target_tokens_change_nothing_earlier(model, whole):
    changed = TARGET.copy()
    changed[:, 2:] = 10
    after = logits_of(model, SOURCE, changed)
    np.testing.assert_allclose(whole[:, :2], after[:, :2], atol=1e-6)
    assert np.abs(whole[:, 2:] - after[:, 2:]).max() > 1e-3


def test_source_reaches_the_logits(model, whole):
    other = SOURCE.copy()
    other[0, 0] = 10
    difference = whole - logits_of(model, other, TARGET)
    assert np.abs(difference[0]).max() > 1e-4
    assert np.abs(difference[1:]).max() == 0


def test_attention_is_a_distribution_over_the_real_source(model, by_steps):
    _, attention = by_steps
    real = SOURCE != 0
    assert (attention[~np.broadcast_to(real[:, None], attention.shape)] == 0).all()
    config = model.get_config()
    if config.get("attention") == "none":
        assert (attention == 0).all()
    elif config.get("window_center") == "predictive" and config.get("window"):
        assert (attention.sum(-1) <= 1 + 1e-6).all()  # the Gaussian of local attention
        assert attention.sum() > 1
    else:
        np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-5)


def test_an_empty_source_gives_finite_logits_and_gradients(model):
    source = SOURCE.copy()
    source[1] = 0
    logits = logits_of(model, source, TARGET)
    assert np.isfinite(logits).all()
    alone = logits_of(model, source[:1], TARGET[:1])
    np.testing.assert_allclose(logits[:1], alone, atol=1e-5, rtol=1e-5)


def test_saved_model_gives_the_same_logits_after_loading(model, whole, tmp_path):
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path, safe_mode=True)
    assert type(loaded) is type(model)
    for weight, own in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(weight, own)
    np.testing.assert_array_equal(logits_of(loaded, SOURCE, TARGET), whole)


def test_config_round_trip_makes_the_same_architecture(model):
    config = model.get_config()
    again = type(model).from_config(config)
    assert [tuple(w.shape) for w in again.weights] == [
        tuple(w.shape) for w in model.weights
    ]
    assert again.get_config() == config


@pytest.mark.parametrize("case", list(CASES))
def test_one_fit_step_trains_every_weight_and_stays_finite(case):
    make, options = CASES[case]
    keras.utils.set_random_seed(2)
    trained = make(**options)
    spread_weights(trained)
    before = [ops.convert_to_numpy(w) for w in trained.trainable_weights]
    trained.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        run_eagerly=True,  # compiling takes longer than the step
    )
    source = SOURCE.copy()
    source[2] = 0  # one row without any source
    labels = np.roll(TARGET, -1, axis=1)
    labels[:, -1] = END
    loss = trained.train_on_batch(
        {"source_ids": source, "target_ids": TARGET},
        labels,
        sample_weight=(labels != 0).astype("float32"),
    )
    assert np.isfinite(loss)
    for weight, old in zip(trained.trainable_weights, before, strict=True):
        new = ops.convert_to_numpy(weight)
        assert np.isfinite(new).all(), weight.path
        # Keys have no bias gradient: a constant added to all scores is no change.
        assert np.abs(new - old).max() > 0, weight.path


def test_initial_loss_is_that_of_a_uniform_guess():
    for make in (transformer, recurrent, convolutional, minimal):
        logits = logits_of(make(), SOURCE, TARGET)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        assert -log_probs.mean() == pytest.approx(np.log(VOCABULARY), rel=0.35)


def test_models_lists_every_model_by_its_class_name():
    assert {name: cls.__name__ for name, cls in MODELS.items()} == {
        name: name for name in MODELS
    }


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (transformer, {"num_heads": 3}, ["num_heads=3", "dim=8"]),
        (transformer, {"norm": "both"}, ["norm='both'"]),
        (
            transformer,
            {"positions": "relative"},
            ["positions='relative'", '"rotary"'],
        ),
        (
            transformer,
            {"positions": "rotary", "combine_positions": "concat"},
            ["positions='rotary'", 'combine_positions="concat"'],
        ),
        (
            transformer,
            {"positions": "rotary", "dim": 6},
            ["num_heads=2", "dim=6"],
        ),
        (
            transformer,
            {"positions": "rotary", "attention_score": "additive"},
            ["score='additive'", '"bilinear"'],
        ),
        (
            transformer,
            {"positions": "learned", "sinusoid_layout": "halves"},
            ["sinusoid_layout='halves'", "positions='learned'"],
        ),
        (transformer, {"sinusoid_layout": "t2t"}, ["sinusoid_layout='t2t'"]),
        (transformer, {"attention_score": "cosine"}, ["score='cosine'"]),
        (transformer, {"attention_score": "location"}, ["score='location'"]),
        (transformer, {"window": 0}, ["window=0"]),
        (transformer, {"combine_positions": "mean"}, ["combine_positions='mean'"]),
        (
            transformer,
            {"combine_positions": "concat"},
            ["tie_output=True", "position_dim=2"],
        ),
        (
            transformer,
            {"combine_positions": "concat", "position_dim": 8, "tie_output": False},
            ["position_dim=8", "dim=8"],
        ),
        (recurrent, {"cell": "rnn"}, ["cell='rnn'", "'lstm'"]),
        (recurrent, {"attention": "luong"}, ["attention='luong'", "'bilinear'"]),
        (recurrent, {"decoder": "cho"}, ["decoder='cho'", "'groundhog'"]),
        (recurrent, {"bridge": "copy"}, ["bridge='copy'", "'plain_context'"]),
        (recurrent, {"summary": "max"}, ["summary='max'", "'mean'"]),
        (
            recurrent,
            {"bridge": "backward", "bidirectional": False},
            ["bridge='backward'", "bidirectional=False"],
        ),
        (recurrent, {"bridge": "context"}, ["attention='additive'", "fixed context"]),
        (
            recurrent,
            {"gate_context": True, "attention": "additive"},
            ["cell='lstm'", "attention='additive'"],
        ),
        (recurrent, {"window": 3, "attention": "none"}, ["window=3"]),
        (recurrent, {"window": 0}, ["window=0"]),
        (
            recurrent,
            {"window": 3, "window_center": "middle"},
            ["window_center='middle'"],
        ),
        (recurrent, {"readout": "relu"}, ["readout='relu'", '"maxout"']),
        (recurrent, {"readout": "state"}, ["readout='state'"]),
        (
            recurrent,
            {"attention": "location", "max_source_positions": 0},
            ["max_source_positions=0"],
        ),
        (recurrent, {"attention": "tied_additive"}, ["hidden 8", "memory 16"]),
        (recurrent, {"attention": "dot"}, ["decoder 8", "encoder 16"]),
        (recurrent, {"units": 0}, ["units=0"]),
        (
            recurrent,
            {"tie_output": True, "embedding_dim": 4},
            ["embedding_dim=4", "units=8"],
        ),
        (convolutional, {"embedding_dim": 0}, ["embedding_dim=0"]),
        (convolutional, {"decoder_channels": []}, ["decoder_channels=[]"]),
        (convolutional, {"encoder_channels": [8, 0]}, ["dim=0"]),
        (convolutional, {"decoder_kernel_size": 0}, ["kernel_size=0"]),
        (
            convolutional,
            {"encoder_kernel_size": [3]},
            ["encoder_kernel_size=[3]", "encoder_channels=[8, 8]"],
        ),
        (
            convolutional,
            {"tie_output": True, "output_dim": 4},
            ["output_dim=4", "embedding_dim=8"],
        ),
        (minimal, {"cell": "gru"}, ["cell='gru'", "'minlstm'"]),
        (minimal, {"attention": "luong"}, ["attention='luong'", "'scaled_dot'"]),
        (minimal, {"num_heads": 3}, ["num_heads=3", "dim=8"]),
        (minimal, {"expansion": 0.1}, ["expansion=0.1", "dim=8"]),
        (minimal, {"num_decoder_layers": 0}, ["num_decoder_layers=0"]),
    ],
)
def test_contradicting_arguments_are_refused_with_their_values(make, options, words):
    with pytest.raises(ValueError) as error:
        make(**options)
    for word in words:
        assert word in str(error.value)


def test_shared_embeddings_need_one_vocabulary():
    with pytest.raises(ValueError, match="source_vocabulary_size=5"):
        TransformerSeq2Seq(5, 6, dim=8, num_heads=2, share_embeddings=True)
    with pytest.raises(ValueError, match="target_vocabulary_size=6"):
        RecurrentSeq2Seq(5, 6, units=8, share_embeddings=True)
    with pytest.raises(ValueError, match="target_vocabulary_size=6"):
        ConvSeq2Seq(5, 6, share_embeddings=True)
    with pytest.raises(ValueError, match="source_vocabulary_size=5"):
        MinimalRecurrentSeq2Seq(5, 6, dim=8, share_embeddings=True)
