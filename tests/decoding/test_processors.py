import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seq2seq.decoding import beam_search, greedy_search, sample
from keras_seq2seq.decoding.processors import (
    block,
    follows,
    penalise_repeated,
    phrase_ends,
    repeated_ngram_ends,
)
from tests.decoding.oracles import (
    BANNED,
    END,
    START,
    chain_inputs,
    chain_log_probs,
    check_against,
    exhaustive,
    hypotheses,
    random_chain,
)
from tests.helpers import chain_step

ALL_BEAMS = 3**3 * 4


def ngrams(tokens, size):
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


def holds(tokens, phrase):
    return tuple(phrase) in ngrams(tokens, len(phrase))


@given(
    history=st.lists(st.integers(1, 4), min_size=0, max_size=9),
    size=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_tokens_that_repeat_an_ngram_are_those_of_a_plain_list(history, size):
    buffer = np.zeros((2, 9), "int32")
    buffer[0, : len(history)] = history
    buffer[1, : len(history)] = history[::-1]
    found = ops.convert_to_numpy(repeated_ngram_ends(buffer, len(history), size))
    for row, tokens in enumerate((history, history[::-1])):
        seen = set(ngrams(tokens, size))
        expected = {
            token
            for token in range(1, 5)
            if len(tokens) >= size - 1
            and (*tokens[len(tokens) - size + 1 :], token) in seen
        }
        assert set(found[row].tolist()) - {-1} == expected


@given(history=st.lists(st.integers(1, 3), min_size=0, max_size=6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_phrases_end_where_the_tokens_before_are_theirs(history):
    phrases = np.array([[[1, 2, 1], [2, 2, 0], [3, 0, 0], [0, 0, 0]]], "int32")
    buffer = np.zeros((1, 6), "int32")
    buffer[0, : len(history)] = history
    found = ops.convert_to_numpy(phrase_ends(buffer, len(history), phrases))[0]
    for phrase, end in zip(([1, 2, 1], [2, 2], [3]), found, strict=False):
        before = phrase[:-1]
        there = history[len(history) - len(before) :] == before
        assert end == (phrase[-1] if there else -1)
    assert found[3] == -1
    assert ops.convert_to_numpy(follows(buffer, len(history), phrases, 0)).all()


def test_repeated_tokens_lose_by_the_rule_of_the_paper():
    logits = np.array([[1.0, -1.0, 2.0, -2.0, 0.5]], "float32")
    history = np.array([[2, 3, 2, 4]], "int32")
    found = penalise_repeated(logits, history, 3, 2.0)
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), [[1.0, -1.0, 1.0, -4.0, 0.5]]
    )


def test_block_spares_end_and_other_rows():
    logits = np.zeros((2, 5), "float32")
    found = block(
        logits, np.array([[1, END, -1], [-1, -1, -1]], "int32"), except_id=END
    )
    found = ops.convert_to_numpy(found)
    assert (found < -1e8).tolist() == [[False, True, False, False, False], [False] * 5]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocked_ngrams_never_appear_in_any_search(size, seed):
    chain = random_chain(seed)
    chain[:, END] *= 0.05  # a model that goes on and on
    chain = chain / chain.sum(axis=1, keepdims=True)
    step, inputs = chain_step(chain), chain_inputs(2)
    options = {"max_length": 9, "no_repeat_ngram_size": size}
    found = [
        greedy_search(step, *inputs, **options),
        beam_search(step, *inputs, num_beams=4, n_best=4, **options),
        sample(step, *inputs, temperature=1.0, seeds=np.arange(2), n_best=5, **options),
    ]
    for result in found:
        for row in range(2):
            for tokens in hypotheses(result, row):
                written = ngrams([t for t in tokens if t != END], size)
                assert len(set(written)) == len(written)
    repeating = greedy_search(step, *inputs, max_length=9)
    written = ngrams(hypotheses(repeating, 0)[0], size)
    assert len(set(written)) < len(written)


def test_where_every_word_is_blocked_the_hypothesis_ends():
    chain = random_chain(0)
    for search in (greedy_search, beam_search):
        result = search(
            chain_step(chain),
            *chain_inputs(),
            max_length=8,
            no_repeat_ngram_size=1,
            **({"num_beams": 3} if search is beam_search else {}),
        )
        (tokens,) = hypotheses(result, 0)
        assert tokens[-1] == END
        assert len(tokens) <= 4


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("size", [1, 2])
def test_search_without_repeated_ngrams_equals_exhaustive_search(alpha, size):
    chain = random_chain(7)
    expected = exhaustive(
        chain_log_probs(chain),
        6,
        4,
        alpha=alpha,
        keep=lambda tokens: len(set(ngrams(tokens, size))) == len(ngrams(tokens, size)),
    )
    result = beam_search(
        chain_step(chain),
        *chain_inputs(),
        num_beams=ALL_BEAMS,
        n_best=9,
        max_length=4,
        length_penalty=alpha,
        no_repeat_ngram_size=size,
    )
    check_against(expected, result)


@given(seed=st.integers(0, 1000))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_search_without_banned_phrases_equals_exhaustive_search(seed):
    chain = random_chain(seed)
    phrases = np.array([[[4, 5], [1, 0], [0, 0]], [[5, 5], [4, 0], [5, 1]]], "int32")
    result = beam_search(
        chain_step(chain),
        *chain_inputs(2),
        num_beams=ALL_BEAMS,
        n_best=5,
        max_length=4,
        banned_phrases=phrases,
    )
    for row, banned in enumerate((((4, 5), (1,)), ((5, 5), (4,), (5, 1)))):
        expected = exhaustive(
            chain_log_probs(chain),
            6,
            4,
            alpha=0.6,
            keep=lambda tokens, banned=banned: (
                not any(holds(tokens, b) for b in banned)
            ),
        )
        check_against(expected, result, row)


def test_repetition_ranks_lower_and_log_probs_stay_the_models_own():
    chain = random_chain(4)
    table = np.maximum(np.log(chain), -1e9)

    def penalised(tokens):
        logits = table[tokens[-1] if tokens else START].copy()
        for token in set(tokens):
            logits[token] *= 1.5 if logits[token] < 0 else 1 / 1.5
        return logits - np.log(np.exp(logits).sum())

    result = beam_search(
        chain_step(chain),
        *chain_inputs(),
        num_beams=ALL_BEAMS,
        n_best=6,
        max_length=4,
        length_penalty=0.0,
        repetition_penalty=1.5,
    )
    expected = exhaustive(penalised, 6, 4)[:6]
    assert hypotheses(result, 0) == [tokens for tokens, _, _ in expected]
    np.testing.assert_allclose(
        ops.convert_to_numpy(result.scores)[0], [e[2] for e in expected], atol=1e-4
    )
    own = [
        sum(np.log(chain[a, b]) for a, b in zip([START, *tokens], tokens, strict=False))
        for tokens, _, _ in expected
    ]
    np.testing.assert_allclose(
        ops.convert_to_numpy(result.log_probs)[0], own, rtol=1e-4
    )


@pytest.mark.parametrize("search", ["greedy", "beam", "sample"])
def test_prefixes_come_first_and_the_search_goes_on_from_them(search):
    chain = random_chain(5)
    prefix = np.array([[4, 1], [5, 0], [0, 0]], "int32")
    options = {"max_length": 5, "prefix_ids": prefix, "length_penalty": 0.0}
    arguments = (chain_step(chain), *chain_inputs(3))
    if search == "greedy":
        result = greedy_search(*arguments, **options)
    elif search == "sample":
        result = sample(
            *arguments, temperature=1.0, seeds=np.arange(3), n_best=6, **options
        )
    else:
        result = beam_search(*arguments, num_beams=ALL_BEAMS, n_best=6, **options)
    for row, given_tokens in enumerate(([4, 1], [5], [])):
        found = hypotheses(result, row)
        assert all(tokens[: len(given_tokens)] == given_tokens for tokens in found)
        if search == "beam":
            expected = exhaustive(
                chain_log_probs(chain),
                6,
                5,
                keep=lambda t, given=given_tokens: t[: len(given)] == given,
            )
            check_against(expected, result, row)


def test_a_prefix_may_hold_what_is_banned_and_be_as_unlikely_as_it_likes():
    chain = random_chain(5)
    chain[START, 4] = 1e-12
    chain = chain / chain.sum(axis=1, keepdims=True)
    result = greedy_search(
        chain_step(chain),
        *chain_inputs(),
        max_length=4,
        min_length=1,
        prefix_ids=np.array([[4]]),
        banned_ids=(*BANNED, 4),
        return_token_scores=True,
    )
    (tokens,) = hypotheses(result, 0)
    assert tokens[0] == 4
    assert 4 not in tokens[1:]
    first = float(result.token_log_probs[0, 0, 0])
    assert first == pytest.approx(np.log(chain[START, 4]), rel=1e-4)
