"""Scheduled sampling: what the decoder is fed, and what training makes of it."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import generate
from keras_seq2seq.layers import TokenEmbedding, padding_mask
from keras_seq2seq.losses import TokenCrossEntropy
from keras_seq2seq.models import RecurrentSeq2Seq, Seq2Seq, TransformerSeq2Seq
from keras_seq2seq.schedules import ConstantGoldRate, LinearGoldRate
from keras_seq2seq.training_modes import ScheduledSampling, inner_model
from tests.helpers import check_saving

VOCABULARY = 8
PAD, START, END = 0, 2, 3
SOURCE = np.array([[5, 6, 7, 4, END], [6, 4, END, 0, 0], [7, 7, 5, END, 0]], "int32")
LABELS = np.array(
    [[7, 5, 4, 6, 6, END], [6, END, 0, 0, 0, 0], [5, 5, 7, END, 0, 0]], "int32"
)
TARGET = np.where(LABELS == END, PAD, LABELS)
TARGET = np.concatenate([np.full((3, 1), START), TARGET[:, :-1]], 1).astype("int32")
INPUTS = {"source_ids": SOURCE, "target_ids": TARGET}
WEIGHTS = (LABELS != PAD).astype("float32")


@keras.saving.register_keras_serializable("tests")
class ChainSeq2Seq(Seq2Seq):
    """A Markov chain: row v of its one table has the logits after token v."""

    def __init__(self, source_vocabulary_size, target_vocabulary_size, **kwargs):
        super().__init__(source_vocabulary_size, target_vocabulary_size, **kwargs)
        size = target_vocabulary_size
        self.target_embedding = TokenEmbedding(size, size, name="table")
        self.target_embedding.build()
        self.built = True

    def encode(self, source_ids, training=None):
        return {"mask": padding_mask(source_ids)}

    def decode(self, target_ids, memory, training=None):
        return self.target_embedding(target_ids)

    def initial_state(self, memory, max_length=None):
        return {"position": ops.zeros_like(memory["mask"][:, 0], dtype="int32")}

    def step(self, token_ids, memory, state):
        weights = ops.zeros_like(memory["mask"], dtype="float32")
        return self.target_embedding(token_ids), state, weights


def chain(table):
    model = ChainSeq2Seq(VOCABULARY, VOCABULARY)
    model.set_weights([np.asarray(table, "float32")])
    return model


def random_table(seed=0):
    return np.random.default_rng(seed).normal(0, 2, (VOCABULARY, VOCABULARY))


def transformer(**options):
    sizes = {"dim": 8, "num_heads": 2, "feedforward_dim": 8, "max_positions": 16}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
    model = TransformerSeq2Seq(VOCABULARY, VOCABULARY, **{**sizes, **layers, **options})
    return spread(model, seed=7)


def recurrent(**options):
    sizes = {"units": 8, "embedding_dim": 4, "dropout": 0.0, "cell": "gru"}
    model = RecurrentSeq2Seq(VOCABULARY, VOCABULARY, **{**sizes, **options})
    return spread(model, seed=8)


def spread(model, seed):
    """Gives every weight values that matter, and greedy search more than END."""
    generator = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(generator.normal(0, 0.7, weight.shape))
    return model


def stacked(**options):
    return recurrent(num_decoder_layers=2, attention="bilinear", cell="lstm", **options)


MODELS = {"recurrent": recurrent, "stacked": stacked, "transformer": transformer}


def sampling(model, rate, **options):
    return ScheduledSampling(model, ConstantGoldRate(rate), **{"seed": 3, **options})


def fed_to(wrapper, target=TARGET, source=SOURCE, rate=None):
    """What the decoder is fed, as NumPy."""
    memory = wrapper.model.encode(source)
    rate = wrapper.gold_rate(0) if rate is None else rate
    return ops.convert_to_numpy(wrapper.decoder_inputs(target, memory, rate))


def differentiate(forward, variables):
    """Value and gradients of a scalar function of the variables, as NumPy."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = forward()
        gradients = tape.gradient(value, [v.value for v in variables])
    else:
        import jax

        def objective(values):
            mapping = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return forward()

        compiled = jax.jit(jax.value_and_grad(objective))
        value, gradients = compiled([v.value for v in variables])
    return float(value), [ops.convert_to_numpy(gradient) for gradient in gradients]


def loss_and_gradients(model, inner=None):
    def forward():
        logits = model(INPUTS, training=True)
        return TokenCrossEntropy()(LABELS, logits, sample_weight=WEIGHTS)

    return differentiate(forward, (inner or model).trainable_variables)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def without_banned(logits):
    """Logits of a twin: PAD and START cannot be predicted."""
    logits = np.array(logits, "float64")
    logits[..., [PAD, START]] = -np.inf
    return logits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("form", "choice"),
    [("steps", "argmax"), ("steps", "sample"), ("two_pass", "sample")],
)
def test_always_gold_is_teacher_forcing_with_the_same_dropout(name, form, choice):
    model = MODELS[name](dropout=0.4)
    seeds = [v for v in model.variables if v.path.endswith("seed_generator_state")]
    start = [ops.convert_to_numpy(variable) for variable in seeds]
    loss, gradients = loss_and_gradients(model)
    for variable, value in zip(seeds, start, strict=True):
        variable.assign(value)
    wrapper = sampling(model, 1.0, form=form, choice=choice)
    again, others = loss_and_gradients(wrapper, model)
    assert again == loss
    # XLA fuses the two programs differently: 5e-8 apart on JAX.
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, gradient, atol=1e-6)


@pytest.mark.parametrize("choice", ["softmax", "gumbel", "sparsemax", "top_k"])
@pytest.mark.parametrize("name", MODELS)
def test_always_gold_mixtures_are_teacher_forcing(name, choice):
    model = MODELS[name]()
    loss, gradients = loss_and_gradients(model)
    wrapper = sampling(model, 1.0, form="two_pass", choice=choice)
    again, others = loss_and_gradients(wrapper, model)
    assert again == pytest.approx(loss, rel=1e-6)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, gradient, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_never_gold_feeds_what_greedy_search_writes(name):
    model = MODELS[name]()
    length = 8
    target = np.full((3, length), 5, "int32")
    target[:, 0] = START
    fed = fed_to(sampling(model, 0.0), target)
    written = generate(model, SOURCE, max_length=length).ids[:, 0]
    compared = 0
    for inputs, outputs in zip(fed, written, strict=True):
        assert inputs[0] == START
        last = length - 1
        if END in outputs:
            last = min(last, outputs.tolist().index(END) + 1)
        np.testing.assert_array_equal(inputs[1 : last + 1], outputs[:last])
        compared += last
    assert compared > 2 * len(fed)
    assert len(np.unique(written)) > 1
    assert (fed[:, 1:] != 5).any()


@pytest.mark.parametrize("name", MODELS)
def test_steps_train_what_a_loop_over_its_own_tokens_would(name):
    """The loop of the paper: one pass that chooses and is differentiated."""
    model = MODELS[name]()
    wrapper = sampling(model, 0.5)
    fed = fed_to(wrapper)
    assert (fed != TARGET).sum() > 2
    assert ((fed == TARGET) & (TARGET > START)).sum() > 2

    def loop():
        memory = model.encode(SOURCE, training=True)
        state = model.initial_state(memory, TARGET.shape[1])
        logits = []
        for position in range(TARGET.shape[1]):
            one, state, _ = model.step(fed[:, position], memory, state)
            logits.append(one)
        stack = ops.stack(logits, axis=1)
        loss = TokenCrossEntropy()(LABELS, stack, sample_weight=WEIGHTS)
        seen.append(stack)
        return loss

    seen = []
    loss, gradients = differentiate(loop, model.trainable_variables)
    if keras.backend.backend() == "tensorflow":
        own = without_banned(ops.convert_to_numpy(seen[0])).argmax(-1)
        for row, position in zip(*np.nonzero(fed != TARGET), strict=True):
            assert fed[row, position] == own[row, position - 1]
    wrapper = sampling(model, 0.5)  # the same coins again
    again, others = loss_and_gradients(wrapper, model)
    assert again == pytest.approx(loss, rel=1e-5)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, gradient, atol=1e-5, rtol=1e-4)


def test_two_passes_predict_each_position_from_the_gold_before_it():
    model = transformer()
    logits = ops.convert_to_numpy(model(INPUTS))
    own = without_banned(logits).argmax(-1)
    expected = np.where(TARGET == PAD, PAD, np.roll(own, 1, axis=1))
    expected[:, 0] = START
    fed = fed_to(sampling(model, 0.0, form="two_pass"))
    np.testing.assert_array_equal(fed, expected)


@pytest.mark.parametrize("choice", ["argmax", "sample", "softmax", "sparsemax"])
def test_two_passes_of_a_perfect_predictor_are_teacher_forcing(choice):
    order = [START, 7, 5, 4, 6, 1, END]
    table = np.zeros((VOCABULARY, VOCABULARY))
    for one, following in zip(order, order[1:], strict=False):
        table[one, following] = 40.0
    model = chain(table)
    labels = np.array([order[1:], [7, 5, 4, END, 0, 0]], "int32")
    target = np.array([order[:-1], [START, 7, 5, 4, 0, 0]], "int32")
    source = SOURCE[:2]

    def loss_of(wrapper):
        def forward():
            inputs = {"source_ids": source, "target_ids": target}
            logits = wrapper(inputs, training=True)
            weights = (labels != PAD).astype("float32")
            return TokenCrossEntropy()(labels, logits, sample_weight=weights)

        return differentiate(forward, model.trainable_variables)

    forced, (gradient,) = loss_of(model)
    loss, (other,) = loss_of(sampling(model, 0.0, form="two_pass", choice=choice))
    assert loss == pytest.approx(forced, rel=1e-5)
    np.testing.assert_allclose(other, gradient, atol=1e-6)


@pytest.mark.parametrize("form", ["steps", "two_pass"])
def test_coins_are_thrown_for_each_token_at_the_gold_rate(form):
    table = np.zeros((VOCABULARY, VOCABULARY))
    table[:, 7] = 9.0  # predicts what is never gold
    target = np.full((60, 50), 5, "int32")
    target[:, 0] = START
    fed = fed_to(sampling(chain(table), 0.3, form=form), target, np.ones((60, 3)))
    gold = fed[:, 1:] == 5
    np.testing.assert_array_equal(fed[:, 1:][~gold], 7)
    # Four standard deviations of the mean, and of the mean of a row or column.
    assert gold.mean() == pytest.approx(0.3, abs=4 * (0.21 / gold.size) ** 0.5)
    np.testing.assert_allclose(gold.mean(axis=1), 0.3, atol=0.3)
    np.testing.assert_allclose(gold.mean(axis=0), 0.3, atol=0.3)
    assert len(np.unique(gold, axis=0)) == len(gold)


def test_coins_differ_from_call_to_call_and_agree_for_a_seed():
    model = chain(random_table())
    target = np.full((8, 8), 5, "int32")
    one, same = sampling(model, 0.5), sampling(model, 0.5)
    source = np.ones((8, 3), "int32")
    first = fed_to(one, target, source)
    np.testing.assert_array_equal(fed_to(same, target, source), first)
    assert (fed_to(one, target, source) != first).any()


@pytest.mark.parametrize("peel", ["coins", "prefix"])
@pytest.mark.parametrize("form", ["steps", "two_pass"])
def test_start_and_padding_are_never_replaced(form, peel):
    table = np.zeros((VOCABULARY, VOCABULARY))
    table[:, 7] = 9.0
    target = np.array([[START, 5, 5, 5], [START, 6, 0, 0], [0, 0, 0, 0]], "int32")
    fed = fed_to(sampling(chain(table), 0.0, form=form, peel=peel), target)
    np.testing.assert_array_equal(fed, np.where(target > START, 7, target))


def test_padding_is_never_predicted():
    table = np.zeros((VOCABULARY, VOCABULARY))
    table[:, [PAD, START]] = 50.0
    table[:, 6] = 1.0
    target = np.where(np.arange(8) == 0, START, np.full((8, 8), 5)).astype("int32")
    source = np.ones((8, 3), "int32")
    fed = fed_to(sampling(chain(table), 0.0), target, source)
    np.testing.assert_array_equal(fed[:, 1:], 6)
    fed = fed_to(sampling(chain(table), 0.0, choice="sample"), target, source)
    assert set(np.unique(fed[:, 1:])) <= {1, 3, 4, 5, 6, 7}
    for choice in ("softmax", "gumbel", "sparsemax", "top_k"):
        wrapper = sampling(chain(table), 0.0, form="two_pass", choice=choice)
        assert fed_to(wrapper, target, source)[:, 1:, [PAD, START]].max() == 0


def test_the_prefix_that_stays_gold_is_a_share_of_each_target():
    table = np.zeros((VOCABULARY, VOCABULARY))
    table[:, 7] = 9.0
    target = np.full((3, 8), 5, "int32")
    target[:, 0] = START
    target[1, 4:] = PAD
    fed = fed_to(sampling(chain(table), 0.5, peel="prefix"), target)
    np.testing.assert_array_equal(fed[0], [START, 5, 5, 5, 7, 7, 7, 7])
    np.testing.assert_array_equal(fed[1], [START, 5, 7, 7, 0, 0, 0, 0])


@pytest.mark.parametrize("form", ["steps", "two_pass"])
def test_samples_follow_the_tempered_distribution(form):
    table = random_table()
    target = np.full((4000, 2), START, "int32")
    target[:, 1] = 5
    wrapper = sampling(chain(table), 0.0, form=form, choice="sample", temperature=2.0)
    fed = fed_to(wrapper, target, np.ones((4000, 2), "int32"))[:, 1]
    found = np.bincount(fed, minlength=VOCABULARY) / 4000
    expected = softmax(without_banned(table[START]) / 2.0)
    np.testing.assert_allclose(found, expected, atol=4 * 0.5 / 4000**0.5)


def sparsemax(scores):
    """Projection on the simplex, by the threshold's definition (bisection)."""
    low, high = scores.max() - 1, scores.max()
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if np.maximum(scores - middle, 0).sum() > 1
            else (low, middle)
        )
    return np.maximum(scores - low, 0)


def top_two(scores):
    kept = np.where(scores >= np.sort(scores)[-2], scores, -np.inf)
    return softmax(kept)


TWINS = {"softmax": softmax, "sparsemax": sparsemax, "top_k": top_two}


@pytest.mark.parametrize("choice", TWINS)
def test_mixtures_have_the_weights_of_their_definition(choice):
    table = random_table()
    wrapper = sampling(
        chain(table), 0.0, form="two_pass", choice=choice, temperature=1.5, top_k=2
    )
    fed = fed_to(wrapper)
    one_hot = np.eye(VOCABULARY)[TARGET]
    for row, position in np.ndindex(TARGET.shape):
        if position == 0 or TARGET[row, position] == PAD:
            expected = one_hot[row, position]
        else:
            scores = without_banned(table[TARGET[row, position - 1]]) / 1.5
            expected = TWINS[choice](scores)
        np.testing.assert_allclose(fed[row, position], expected, atol=1e-5)


def test_gumbel_mixtures_are_as_often_led_by_a_token_as_it_is_likely():
    table = random_table()
    target = np.full((4000, 2), START, "int32")
    target[:, 1] = 5
    options = {"form": "two_pass", "choice": "gumbel", "temperature": 0.5}
    fed = fed_to(sampling(chain(table), 0.0, **options), target, np.ones((4000, 2)))
    np.testing.assert_allclose(fed.sum(-1), 1.0, atol=1e-5)
    assert 0.01 < (fed[:, 1].max(-1) < 0.9).mean()  # they are mixtures
    found = np.bincount(fed[:, 1].argmax(-1), minlength=VOCABULARY) / 4000
    expected = softmax(without_banned(table[START]))
    np.testing.assert_allclose(found, expected, atol=4 * 0.5 / 4000**0.5)


@pytest.mark.parametrize("make", [recurrent, transformer])
@pytest.mark.parametrize("choice", ["softmax", "gumbel", "sparsemax", "top_k"])
def test_a_mixture_of_one_token_is_that_token(make, choice):
    model = make()
    memory = model.encode(SOURCE)
    expected = ops.convert_to_numpy(model.decode(TARGET, memory))
    one_hot = np.eye(VOCABULARY, dtype="float32")[TARGET]
    found = ops.convert_to_numpy(model.decode(one_hot, memory))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # A prediction without doubt: every choice gives it alone.
    table = np.where(np.roll(np.eye(VOCABULARY), 1, axis=1) == 1, 99.0, 0.0)
    table[[1, 7]] = np.eye(VOCABULARY)[4] * 99.0  # not to PAD or START
    tokens = fed_to(sampling(chain(table), 0.0, form="two_pass"))
    options = {"form": "two_pass", "choice": choice, "top_k": 1}
    mixed = fed_to(sampling(chain(table), 0.0, **options))
    np.testing.assert_allclose(mixed, np.eye(VOCABULARY)[tokens], atol=1e-6)


@pytest.mark.parametrize("through", [False, True])
def test_the_gradient_reaches_the_first_pass_when_asked(through):
    table = random_table(2) / 2
    options = {"form": "two_pass", "choice": "softmax", "first_pass_gradient": through}
    model = chain(table)
    wrapper = sampling(model, 0.0, **options)
    _, (gradient,) = loss_and_gradients(wrapper, model)

    def twin(first, second):
        probs = softmax(without_banned(first[TARGET]))
        fed = np.eye(VOCABULARY)[TARGET]
        fed[:, 1:] = np.where(
            (TARGET[:, 1:] != PAD)[..., None], probs[:, :-1], fed[:, 1:]
        )
        logits = fed @ second
        shifted = logits - logits.max(-1, keepdims=True)
        log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        chosen = np.take_along_axis(log_probs, LABELS[..., None], -1)[..., 0]
        return -(chosen * WEIGHTS).sum() / WEIGHTS.sum()

    numeric = np.zeros_like(table)
    for place in np.ndindex(table.shape):
        moved = [table.copy(), table.copy()]
        moved[0][place] += 1e-5
        moved[1][place] -= 1e-5
        up, down = (twin(new if through else table, new) for new in moved)
        numeric[place] = (up - down) / 2e-5
    np.testing.assert_allclose(gradient, numeric, atol=1e-5)


TRAINED = {
    "recurrent by steps": (recurrent, {"dropout": 0.3}, {"choice": "sample"}),
    "transformer by steps": (transformer, {"dropout": 0.3}, {}),
    "transformer, gumbel": (
        transformer,
        {},
        {"form": "two_pass", "choice": "gumbel", "first_pass_gradient": True},
    ),
    "transformer, top_k in bfloat16": (
        transformer,
        {"dtype": "mixed_bfloat16"},
        {"form": "two_pass", "choice": "top_k", "peel": "prefix", "top_k": 3},
    ),
}


def fit_two_updates(name):
    """Fits two batches of different shapes; returns validation and expected loss."""
    make, arguments, options = TRAINED[name]
    keras.utils.set_random_seed(0)
    model = make(**arguments)
    wrapper = ScheduledSampling(model, LinearGoldRate(c=0.8), seed=1, **options)
    wrapper.compile(
        keras.optimizers.Adam(0.01),
        TokenCrossEntropy(),
        # XLA of TensorFlow takes its time: one case, the one with a loop.
        jit_compile=keras.backend.backend() == "jax" or name == "transformer by steps",
    )
    batches = [
        (INPUTS, LABELS, WEIGHTS),
        (
            {"source_ids": SOURCE[:2, :4], "target_ids": TARGET[:2, :4]},
            LABELS[:2, :4],
            WEIGHTS[:2, :4],
        ),
    ]

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    before = model.get_weights()
    history = wrapper.fit(
        Batches(), shuffle=False, verbose=0, validation_data=batches[0]
    ).history
    assert np.isfinite(history["loss"][0])
    assert int(wrapper.updates) == 2
    moved = [
        np.abs(new - old).max()
        for new, old, weight in zip(
            model.get_weights(), before, model.weights, strict=True
        )
        if weight.trainable
    ]
    assert sum(change > 0 for change in moved) > 0.8 * len(moved)
    forced = TokenCrossEntropy()(LABELS, model(INPUTS), sample_weight=WEIGHTS)
    return history["val_loss"][0], float(forced)


@pytest.mark.parametrize("name", TRAINED)
def test_fit_updates_the_model_and_validates_by_teacher_forcing(name):
    validated, forced = fit_two_updates(name)
    rel = 0.02 if "bfloat16" in name else 1e-4
    assert validated == pytest.approx(forced, rel=rel)


def test_fit_does_the_same_on_jax():
    code = (
        "from tests.test_training_modes import TRAINED, fit_two_updates\n"
        "for name in TRAINED:\n"
        "    validated, forced = fit_two_updates(name)\n"
        "    assert abs(validated - forced) < 0.05, (name, validated, forced)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_the_gold_rate_falls_with_the_updates():
    asked = []

    class Recorded(LinearGoldRate):
        def __call__(self, updates):
            asked.append(int(updates))
            return super().__call__(updates)

    wrapper = ScheduledSampling(chain(random_table()), Recorded(c=0.5))
    for _ in range(3):
        wrapper(INPUTS, training=True)
    wrapper(INPUTS, training=False)
    assert asked == [0, 1, 2]
    assert int(wrapper.updates) == 3


def test_outside_training_it_is_the_model(tmp_path):
    model = transformer()
    wrapper = sampling(model, 0.0, choice="softmax", form="two_pass", temperature=0.5)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(wrapper(INPUTS)), ops.convert_to_numpy(model(INPUTS))
    )
    assert inner_model(wrapper) is model
    assert inner_model(model) is model
    loaded = check_saving(wrapper, INPUTS, tmp_path)
    assert loaded.gold_rate.rate == 0.0
    assert loaded.model.count_params() == model.count_params()
    assert loaded.choice == "softmax"


class Without(ChainSeq2Seq):
    """A model whose token vectors are no `TokenEmbedding`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.target_embedding = keras.layers.Embedding(8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "loop"}, "form='loop'"),
        ({"choice": "best"}, "choice='best'"),
        ({"peel": "half"}, "peel='half'"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"top_k": 0}, "top_k=0"),
        ({"choice": "softmax"}, '"softmax" is a mixture.*form="steps"'),
        ({"first_pass_gradient": True}, 'choice="argmax"'),
        ({"choice": "top_k", "form": "two_pass"}, "TokenEmbedding.*Received: Without"),
    ],
)
def test_wrong_arguments_are_refused_with_their_value(options, message):
    with pytest.raises(ValueError, match=message):
        sampling(Without(VOCABULARY, VOCABULARY), 1.0, **options)
