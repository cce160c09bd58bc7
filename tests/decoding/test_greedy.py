import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import greedy_search
from tests.decoding.oracles import (
    END,
    GARDEN_PATH,
    PAD,
    START,
    UNK,
    HistoryModel,
    assert_same,
    chain_inputs,
    hypotheses,
    random_chain,
    row_of,
)
from tests.helpers import chain_step


def greedy(transitions, batch=1, **options):
    return greedy_search(
        chain_step(transitions), *chain_inputs(batch), **{"max_length": 6, **options}
    )


def test_greedy_takes_the_likeliest_token_and_stops_at_end():
    result = greedy(GARDEN_PATH)
    assert hypotheses(result, 0) == [[4, END]]
    np.testing.assert_allclose(np.exp(float(result.log_probs[0, 0])), 0.3, rtol=1e-5)


def test_greedy_matches_a_numpy_loop_with_history():
    model = HistoryModel()
    sources = np.array([[4, 5, 6], [7, 8, 0]], "int32")
    memory = model.encode(sources)
    result = greedy_search(
        model.step,
        memory,
        model.initial_state(memory, 8),
        max_length=8,
        return_attention=True,
    )
    for row, source in enumerate(sources):
        log_probs_of, attention_of = model.reference(source)
        tokens, total, attention = [], 0.0, np.zeros((8, 3))
        while len(tokens) < 8 and tokens[-1:] != [END]:
            log_probs = log_probs_of(tokens)
            log_probs[[PAD, START]] = -np.inf
            attention[len(tokens)] = attention_of(tokens)
            tokens.append(int(log_probs.argmax()))
            total += log_probs.max()
        assert hypotheses(result, row) == [tokens]
        np.testing.assert_allclose(float(result.log_probs[row, 0]), total, rtol=1e-4)
        np.testing.assert_allclose(result.attention[row, 0], attention, atol=1e-5)


def test_ended_rows_write_padding_and_keep_their_score():
    chain = np.zeros((6, 6))
    chain[START, 4] = chain[4, END] = 1.0
    # Whatever follows END would be likely, and must not be read.
    chain[END, 5] = chain[PAD, 5] = chain[5, 5] = 1.0
    result = greedy(chain)
    assert ops.convert_to_numpy(result.ids).tolist() == [[[4, END, 0, 0, 0, 0]]]
    np.testing.assert_allclose(float(result.log_probs[0, 0]), 0.0, atol=1e-6)
    assert bool(result.finished[0, 0])


def test_a_chain_without_end_stops_at_the_limit_unfinished():
    chain = np.zeros((6, 6))
    chain[START, 4] = chain[4, 4] = 1.0
    result = greedy(chain, batch=3, max_length=8, length_limits=np.array([2, 8, 99]))
    assert ops.convert_to_numpy(result.lengths).tolist() == [[2], [8], [8]]
    assert not ops.convert_to_numpy(result.finished).any()
    assert hypotheses(result, 0) == [[4, 4]]


def test_min_length_puts_off_end():
    chain = np.full((6, 6), 1e-9)
    chain[:, END], chain[:, 4] = 0.7, 0.3
    assert hypotheses(greedy(chain), 0) == [[END]]
    assert hypotheses(greedy(chain, min_length=1), 0) == [[4, END]]
    assert hypotheses(greedy(chain, min_length=3), 0) == [[4, 4, 4, END]]
    # The log-probability is the model's own, not renormalised without END.
    result = greedy(chain, min_length=1)
    np.testing.assert_allclose(np.exp(float(result.log_probs[0, 0])), 0.21, rtol=1e-4)


def test_banned_tokens_are_never_written():
    chain = np.full((6, 6), 0.01)
    chain[:, PAD], chain[:, START], chain[:, 5] = 0.4, 0.3, 0.2
    tokens = hypotheses(greedy(chain), 0)[0]
    assert tokens == [5] * 6
    tokens = hypotheses(greedy(chain, banned_ids=(PAD, UNK, START, 5)), 0)[0]
    assert set(tokens) <= {END, 4}


def test_batch_of_rows_equals_each_row_alone():
    model = HistoryModel(seed=3)
    sources = np.random.default_rng(0).integers(4, 20, size=(5, 3)).astype("int32")
    limits = np.array([3, 8, 5, 1, 8])

    def search(sources, limits):
        memory = model.encode(sources)
        return greedy_search(
            model.step,
            memory,
            model.initial_state(memory, 8),
            max_length=8,
            length_limits=limits,
            return_attention=True,
        )

    together = search(sources, limits)
    for row in range(5):
        alone = search(sources[row : row + 1], limits[row : row + 1])
        assert_same(row_of(together, row), alone)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_without_a_distribution_stop_the_row_unfinished(broken):
    good = np.log(random_chain(0)).astype("float32")
    good[:, END] = -50

    def step(token_ids, memory, state):
        logits = ops.take(ops.convert_to_tensor(good), token_ids, axis=0)
        rotten = ops.expand_dims(state["steps"] >= 2, axis=1)
        return ops.where(rotten, broken, logits), {"steps": state["steps"] + 1}, None

    memory, _ = chain_inputs(2)
    state = {"steps": ops.convert_to_tensor([0, -9], dtype="int32")}
    result = greedy_search(step, memory, state, max_length=5)
    assert ops.convert_to_numpy(result.lengths).tolist() == [[2], [5]]
    assert np.isfinite(ops.convert_to_numpy(result.scores)).all()
    written = {token for row in (0, 1) for token in hypotheses(result, row)[0]}
    assert written <= {UNK, 4, 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "max_length=0"),
        ({"min_length": 6}, "min_length=6, max_length=6"),
        ({"min_length": -1}, "min_length=-1"),
        ({"banned_ids": (0, 3)}, r"banned_ids=\(0, 3\), end_id=3"),
        ({"banned_ids": (0, 1, 2, 4, 5)}, r"banned_ids=\(0, 1, 2, 4, 5\).*6 tokens"),
    ],
)
def test_impossible_options_are_refused_with_their_values(options, message):
    with pytest.raises(ValueError, match=message):
        greedy(GARDEN_PATH, **options)


def test_attention_is_refused_where_the_step_has_none():
    def step(token_ids, memory, state):
        return ops.zeros((1, 6)), state, None

    with pytest.raises(ValueError, match="Received: None"):
        greedy_search(step, *chain_inputs(), max_length=2, return_attention=True)
