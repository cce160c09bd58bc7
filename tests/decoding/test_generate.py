import gc
import itertools
import logging
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import beam_search, generate, greedy_search
from tests.decoding.oracles import (
    HistoryModel,
    assert_same,
    check_against,
    exhaustive,
    hypotheses,
    row_of,
    tiny_model,
)

SOURCES = np.array([[4, 5, 6], [7, 8, 0], [9, 3, 0]], "int32")


@pytest.fixture(params=["transformer", "recurrent", "convolutional"])
def model(request):
    keras.utils.set_random_seed(3)
    model = tiny_model(request.param)
    # Sharper than fresh weights, so that searches differ and ties are unlikely.
    for variable in model.trainable_variables:
        variable.assign(1.7 * variable)
    return model


def teacher_forced(model, source, targets):
    """Log-probabilities that `call` gives after every prefix of the targets."""
    target_ids = np.array([[2, *target] for target in targets], "int32")
    source_ids = np.repeat(source[None], len(targets), axis=0)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    logits = ops.convert_to_numpy(model(inputs, training=False)).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return {
        tuple(target[:position]): log_probs[row, position]
        for row, target in enumerate(targets)
        for position in range(len(target) + 1)
    }


def test_generate_with_every_beam_equals_exhaustive_teacher_forcing(model):
    result = generate(model, SOURCES, num_beams=36, n_best=6, max_length=3)
    prefixes = list(itertools.product((1, 4, 5), repeat=2))
    for row, source in enumerate(SOURCES):
        table = teacher_forced(model, source, prefixes)
        expected = exhaustive(lambda t, table=table: table[tuple(t)], 6, 3, alpha=0.6)
        check_against(expected, result, row)


def test_generate_greedy_follows_teacher_forcing(model):
    result = generate(model, SOURCES, max_length=7)
    for row, source in enumerate(SOURCES):
        (tokens,) = hypotheses(result, row)
        table = teacher_forced(model, source, [tokens])
        for position, token in enumerate(tokens):
            log_probs = table[tuple(tokens[:position])].copy()
            log_probs[[0, 2]] = -np.inf
            assert token == log_probs.argmax()
        assert len(tokens) == 7 or tokens[-1] == 3


@pytest.mark.parametrize("num_beams", [1, 3])
def test_batch_mates_and_padding_change_nothing(model, num_beams):
    options = {"num_beams": num_beams, "max_length": 6, "return_attention": True}
    together = generate(model, np.pad(SOURCES, ((0, 0), (0, 2))), **options)
    for row, source in enumerate(SOURCES):
        alone = generate(model, source[None, source != 0], **options)
        width = alone.attention.shape[-1]
        trimmed = together._replace(attention=together.attention[..., :width])
        assert_same(row_of(trimmed, row), alone, tolerance=1e-4)


def test_generate_equals_eager_search(model):
    limits = np.array([7, 4, 2])
    memory = model.encode(SOURCES)
    options = {"max_length": 7, "length_limits": limits, "return_attention": True}
    found = generate(model, SOURCES, **options)
    expected = greedy_search(
        model.step, memory, model.initial_state(memory, 7), **options
    )
    assert_same(expected._replace(scores=found.scores), found, tolerance=1e-4)
    options |= {"num_beams": 3, "n_best": 2}
    expected = beam_search(
        model.step,
        memory,
        model.initial_state(memory, 7),
        repeat_state=model.repeat_state,
        select_state=model.select_state,
        **options,
    )
    assert_same(expected, generate(model, SOURCES, **options), tolerance=1e-4)


def test_generate_under_xla_equals_the_plain_graph(model):
    options = {"num_beams": 3, "n_best": 2, "max_length": 6}
    assert_same(
        generate(model, SOURCES, **options),
        generate(model, SOURCES, jit_compile=True, **options),
        tolerance=1e-4,
    )


def test_generate_sees_weights_that_training_changed(model):
    scores = []

    class Decode(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            scores.append(generate(self.model, SOURCES, max_length=6).scores)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    target = np.array([[2, 4, 5], [2, 5, 4], [2, 4, 4]], "int32")
    model.fit(
        {"source_ids": SOURCES, "target_ids": target},
        np.array([[4, 5, 3], [5, 4, 3], [4, 4, 3]]),
        epochs=2,
        verbose=0,
        callbacks=[Decode()],
    )
    assert not np.allclose(*scores)
    memory = model.encode(SOURCES)
    fresh = greedy_search(
        model.step, memory, model.initial_state(memory, 6), max_length=6
    )
    found = generate(model, SOURCES, max_length=6)
    np.testing.assert_allclose(fresh.log_probs, found.log_probs, atol=1e-5)


def test_one_program_serves_all_shapes_and_lengths_share_a_few():
    model = HistoryModel(max_length=256)
    traces = []
    step = model.step
    model.step = lambda *arguments: traces.append(1) or step(*arguments)
    for rows in (1, 2, 3):
        for limit in (3, 16, 128):
            limits = np.full((rows,), limit)
            generate(model, SOURCES[:rows], max_length=limit, length_limits=limits)
    first = len(traces)
    generate(model, SOURCES, max_length=256, length_limits=np.array([2, 129, 30]))
    generate(model, SOURCES, max_length=256, length_limits=np.array([200, 1, 1]))
    assert len(traces) == 2 * first


def test_result_is_as_long_as_max_length_whatever_the_buffers():
    model = HistoryModel(max_length=40)
    limits = np.array([3, 2, 1])
    options = {"max_length": 40, "return_attention": True, "num_beams": 2}
    short = generate(model, SOURCES, length_limits=limits, **options)
    assert short.ids.shape == (3, 1, 40)
    assert short.attention.shape == (3, 1, 40, 3)
    assert not short.ids[..., 3:].any()
    # The same limits in the longest buffer.
    long = generate(
        model,
        np.concatenate([SOURCES, SOURCES[:1]]),
        length_limits=np.append(limits, 40),
        **options,
    )
    for row in range(3):
        assert_same(row_of(short, row), row_of(long, row))


def test_a_model_that_is_dropped_is_freed():
    model = HistoryModel()
    generate(model, SOURCES, max_length=4)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_lengths_are_bounded_by_the_positions_of_the_model():
    model = tiny_model("transformer")
    result = generate(model, SOURCES, max_length=500)
    assert result.ids.shape == (3, 1, 20)
    with pytest.raises(ValueError, match="21 tokens, max_positions=20"):
        generate(model, np.full((1, 21), 4), max_length=5)


def test_limits_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2,\) for 3 rows"):
        generate(HistoryModel(), SOURCES, max_length=5, length_limits=[1, 2])


def test_an_empty_batch_gives_an_empty_result():
    result = generate(HistoryModel(), SOURCES[:0], num_beams=2, max_length=5)
    assert result.ids.shape == (0, 1, 5)


def test_programs_of_many_options_raise_no_alarm_about_tracing():
    import tensorflow as tf

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    try:
        model = HistoryModel()
        for number in range(12):
            for rows in (1, 2):
                least = number // 2
                options = {"num_beams": 1 + number % 2, "min_length": least}
                generate(model, SOURCES[:rows], max_length=8, **options)
    finally:
        tf.get_logger().removeHandler(handler)
    assert not [text for text in said if "retracing" in text]
