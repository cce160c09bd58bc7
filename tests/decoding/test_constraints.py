import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seq2seq.decoding import beam_search, generate
from keras_seq2seq.decoding.constraints import in_turn, progress_with, wanted_tokens
from tests.decoding.oracles import (
    END,
    HistoryModel,
    assert_same,
    chain_inputs,
    chain_log_probs,
    check_against,
    exhaustive,
    hypotheses,
    random_chain,
    row_of,
)
from tests.decoding.test_processors import holds
from tests.helpers import chain_step

ALL_BEAMS = 3**3 * 4

# Of each set one phrase, by source.
SETS = {
    "one word": [[(4,)]],
    "one phrase": [[(5, 4)]],
    "either": [[(4, 4), (1,)]],
    "two words": [[(4,)], [(5,)]],
    "overlapping": [[(4, 5)], [(5, 4)]],
    "longer than its rival": [[(4, 5, 4), (5, 5)]],
    "the same twice": [[(4,)], [(4,)]],
    "nothing": [],
}


def as_array(sets, shape=(2, 2, 3)):
    array = np.zeros(shape, "int32")
    for row, phrases in enumerate(sets):
        for column, phrase in enumerate(phrases):
            array[row, column, : len(phrase)] = phrase
    return array


def meets(tokens, sets):
    return all(any(holds(tokens, phrase) for phrase in phrases) for phrases in sets)


def unlikely(seed):
    """A chain that seldom writes 4 on its own."""
    chain = random_chain(seed)
    chain[:, 4] *= 1e-4
    return chain / chain.sum(axis=1, keepdims=True)


# Overlapping phrases count in full, so that they do not fit into four tokens.
@pytest.mark.parametrize("name", [name for name in SETS if name != "overlapping"])
def test_wide_search_equals_exhaustive_search_of_what_meets_the_sets(name):
    chain = random_chain(11)
    result = beam_search(
        chain_step(chain),
        *chain_inputs(),
        num_beams=ALL_BEAMS,
        n_best=8,
        max_length=4,
        required_phrases=as_array(SETS[name])[None],
    )
    expected = exhaustive(
        chain_log_probs(chain),
        6,
        4,
        alpha=0.6,
        keep=lambda tokens: meets(tokens, SETS[name]),
    )
    check_against(expected, result)


@given(
    seed=st.integers(0, 10_000),
    num_beams=st.integers(2, 5),
    limit=st.integers(0, 3),
    alpha=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_narrow_searches_meet_the_sets_of_every_source(seed, num_beams, limit, alpha):
    chain = unlikely(seed)
    batch = len(SETS)
    result = beam_search(
        chain_step(chain),
        *chain_inputs(batch),
        num_beams=num_beams,
        n_best=num_beams,
        max_length=8,
        # From what is needed at the least, to much more.
        length_limits=np.full((batch,), 5 + limit),
        length_penalty=alpha,
        required_phrases=np.stack([as_array(sets) for sets in SETS.values()]),
    )
    for row, sets in enumerate(SETS.values()):
        found = hypotheses(result, row)
        assert found
        for tokens in found:
            assert meets(tokens, sets), (row, tokens)
            assert len(tokens) <= 5 + limit


def test_phrases_go_on_where_a_failed_start_left_them():
    # 4 4 5 after 4 4: another 4 keeps two tokens of the phrase.
    phrases = np.array([[[[4, 4, 5]]]], "int32")
    history = np.array([[4, 4, 0, 0]], "int32")
    met = np.zeros((1, 1), bool)
    found = progress_with(phrases, met, history, 2, np.array([[4, 5, 1]], "int32"))
    assert ops.convert_to_numpy(found.needed).tolist() == [[1, 0, 3]]
    assert ops.convert_to_numpy(found.met).tolist() == [[[False], [True], [False]]]
    wanted = wanted_tokens(phrases, met, history, 2)
    assert ops.convert_to_numpy(wanted).tolist() == [[5]]


def test_what_is_begun_saves_tokens_in_one_set_only():
    phrases = np.array([[[[4, 5, 0]], [[4, 1, 1]]]], "int32")
    met = np.zeros((1, 2), bool)
    history = np.zeros((1, 4), "int32")
    found = progress_with(phrases, met, history, 0, np.array([[4, 1]], "int32"))
    assert ops.convert_to_numpy(found.needed).tolist() == [[4, 5]]


def test_those_who_need_equally_much_take_turns():
    choice = np.array([[-1.0, -2.0, -3.0, -9.0, -1e9]], "float32")
    needed = np.array([[2, 2, 2, 0, 0]], "int32")
    order, columns = in_turn(choice, needed, 4)
    assert ops.convert_to_numpy(columns).tolist() == [[3, 0, 1, 2]]
    assert (np.diff(ops.convert_to_numpy(order)) <= 0).all()


def test_rows_do_not_depend_on_their_batch_and_graphs_agree():
    model = HistoryModel(vocabulary_size=7, seed=4)
    sources = np.array([[4, 5, 6], [7, 8, 9], [4, 4, 4]], "int32")
    required = np.stack(
        [as_array(SETS[n]) for n in ("one phrase", "either", "nothing")]
    )
    options = {"num_beams": 3, "n_best": 3, "max_length": 8}
    together = generate(model, sources, required_phrases=required, **options)
    for row in range(3):
        alone = generate(
            model,
            sources[row : row + 1],
            required_phrases=required[row : row + 1],
            **options,
        )
        assert_same(row_of(together, row), alone)
    compiled = generate(
        model, sources, required_phrases=required, jit_compile=True, **options
    )
    assert_same(together, compiled, tolerance=1e-4)
    # A source that asks for nothing gets what it would get without the others.
    free = generate(model, sources, num_beams=3, n_best=3, max_length=8)
    assert hypotheses(together, 2) == hypotheses(free, 2)


def test_bans_hold_beside_what_is_required():
    chain = random_chain(2)
    result = beam_search(
        chain_step(chain),
        *chain_inputs(),
        num_beams=4,
        n_best=4,
        max_length=7,
        required_phrases=as_array([[(4,)], [(5,)]])[None],
        banned_phrases=np.array([[[4, 5]]]),
        no_repeat_ngram_size=2,
    )
    found = hypotheses(result, 0)
    assert found
    for tokens in found:
        assert meets(tokens, [[(4,)], [(5,)]])
        assert not holds(tokens, (4, 5))
        assert tokens[-1] == END
