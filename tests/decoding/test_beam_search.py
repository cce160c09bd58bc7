import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seq2seq.decoding import beam, beam_search, generate, greedy_search
from keras_seq2seq.models import TransformerSeq2Seq
from tests.decoding.oracles import (
    END,
    GARDEN_PATH,
    START,
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
from tests.helpers import chain_step

SOURCES = np.random.default_rng(1).integers(4, 20, size=(4, 3)).astype("int32")


# Beams that hold every continuation of 3 words and END up to 4 tokens.
ALL_BEAMS = 3**3 * 4


def search_chain(transitions, batch=1, **options):
    defaults = {"num_beams": 4, "max_length": 4}
    return beam_search(
        chain_step(transitions), *chain_inputs(batch), **{**defaults, **options}
    )


def search_model(model, sources=SOURCES, **options):
    memory = model.encode(sources)
    defaults = {
        "num_beams": 4,
        "max_length": 6,
        "repeat_state": model.repeat_state,
        "select_state": model.select_state,
    }
    return beam_search(
        model.step, memory, model.initial_state(memory, 6), **{**defaults, **options}
    )


def test_garden_path_is_escaped_by_two_beams():
    greedy = search_chain(GARDEN_PATH, num_beams=1, length_penalty=0.0)
    assert hypotheses(greedy, 0) == [[4, END]]
    np.testing.assert_allclose(np.exp(float(greedy.scores[0, 0])), 0.30, rtol=1e-5)
    wider = search_chain(GARDEN_PATH, num_beams=2, length_penalty=0.0)
    assert hypotheses(wider, 0) == [[5, END]]
    np.testing.assert_allclose(np.exp(float(wider.scores[0, 0])), 0.36, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_wide_search_of_a_chain_equals_exhaustive_search(alpha, limit):
    chain = random_chain(seed=7)
    expected = exhaustive(chain_log_probs(chain), 6, limit, alpha=alpha)
    result = search_chain(
        chain, num_beams=ALL_BEAMS, n_best=9, length_penalty=alpha, max_length=limit
    )
    check_against(expected, result)


@given(
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.0, 0.3, 0.6, 1.0, 4.0]),
    limit=st.integers(1, 3),
    min_length=st.integers(0, 2),
    n_best=st.integers(1, 30),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_wide_search_of_random_chains_equals_exhaustive_search(
    seed, alpha, limit, min_length, n_best
):
    chain = random_chain(seed)
    # The buffer is longer than the limit: only the limit may count.
    result = search_chain(
        chain,
        num_beams=36,
        n_best=n_best,
        length_penalty=alpha,
        max_length=4,
        length_limits=np.array([limit]),
        min_length=min_length,
    )
    expected = exhaustive(
        chain_log_probs(chain), 6, limit, alpha=alpha, min_length=min_length
    )
    check_against(expected, result)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_wide_search_with_history_equals_exhaustive_search_in_every_row(alpha):
    model = HistoryModel(vocabulary_size=7)
    limits = np.array([3, 2, 3, 1])
    result = search_model(
        model,
        num_beams=80,
        n_best=12,
        max_length=3,
        length_limits=limits,
        length_penalty=alpha,
    )
    for row, limit in enumerate(limits):
        log_probs_of, _ = model.reference(SOURCES[row])
        check_against(exhaustive(log_probs_of, 7, limit, alpha=alpha), result, row)


@pytest.mark.parametrize("stop", ["exact", "count"])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("base", [0.0, 2.0])
def test_wide_search_by_other_length_penalties_equals_exhaustive_search(
    stop, alpha, base
):
    chain = random_chain(seed=12)
    expected = exhaustive(
        chain_log_probs(chain),
        6,
        4,
        score=lambda t, total: total / ((base + len(t)) / (base + 1)) ** alpha,
    )
    result = search_chain(
        chain,
        num_beams=ALL_BEAMS,
        n_best=9,
        length_penalty=alpha,
        length_penalty_base=base,
        stop=stop,
    )
    check_against(expected, result)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("most", [None, [2, 3, 1, 9]])
def test_wide_search_with_a_reward_for_length_equals_exhaustive_search(alpha, most):
    model = HistoryModel(vocabulary_size=7)
    result = search_model(
        model,
        num_beams=80,
        n_best=12,
        max_length=3,
        length_penalty=alpha,
        length_reward=0.9,
        reward_lengths=None if most is None else np.array(most),
    )
    for row, source in enumerate(SOURCES):
        log_probs_of, _ = model.reference(source)

        def score(tokens, total, row=row):
            rewarded = min(len(tokens), 99 if most is None else most[row])
            return total / ((5 + len(tokens)) / 6) ** alpha + 0.9 * rewarded

        check_against(exhaustive(log_probs_of, 7, 3, score=score), result, row)


def coverage_of(attention_of, tokens, width):
    """Coverage of a hypothesis by the reference model, over real positions."""
    total = sum(attention_of(tokens[:position]) for position in range(len(tokens)))
    return np.log(np.clip(total[:width], 1e-9, 1.0)).sum()


@pytest.mark.parametrize("beta", [0.2, 2.0])
def test_wide_search_with_coverage_equals_exhaustive_search(beta):
    model = HistoryModel(vocabulary_size=7)
    sources = SOURCES.copy()
    sources[1, 2] = 0  # one position of padding
    result = search_model(
        model, sources, num_beams=80, n_best=12, max_length=3, coverage_penalty=beta
    )
    for row, source in enumerate(sources):
        log_probs_of, attention_of = model.reference(source)
        width = int((source != 0).sum())

        def score(tokens, total, attention_of=attention_of, width=width):
            covered = coverage_of(attention_of, tokens, width)
            return total / ((5 + len(tokens)) / 6) ** 0.6 + beta * covered

        check_against(exhaustive(log_probs_of, 7, 3, score=score), result, row)


def test_coverage_without_attention_is_refused():
    def step(token_ids, memory, state):
        return ops.zeros((ops.shape(token_ids)[0], 6)), state, None

    with pytest.raises(ValueError, match="Received: None"):
        beam_search(
            step, *chain_inputs(), num_beams=2, max_length=2, coverage_penalty=0.1
        )


@pytest.mark.parametrize("num_beams", [3, 6])
def test_counting_stops_when_as_many_have_ended_as_there_are_beams(num_beams):
    steps = []
    chain = random_chain(seed=3)
    plain = chain_step(chain)

    def step(*arguments):
        steps.append(1)
        return plain(*arguments)

    options = {"num_beams": num_beams, "n_best": num_beams, "max_length": 12}
    result = beam_search(step, *chain_inputs(), **options, stop="count")
    counted = len(steps)
    beam_search(step, *chain_inputs(), **options)
    assert counted < len(steps) - counted
    lengths = ops.convert_to_numpy(result.lengths)
    assert lengths.max() == counted
    assert ops.convert_to_numpy(result.finished).all()


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("limit", [3, 6])
def test_token_scores_are_those_of_the_returned_tokens(num_beams, limit):
    model = HistoryModel(vocabulary_size=9, seed=5)
    result = search_model(
        model,
        num_beams=num_beams,
        n_best=num_beams,
        length_limits=np.full((4,), limit),
        return_token_scores=True,
    )
    found = ops.convert_to_numpy(result.token_log_probs)
    for row, source in enumerate(SOURCES):
        log_probs_of, _ = model.reference(source)
        for rank, tokens in enumerate(hypotheses(result, row)):
            expected = [log_probs_of(tokens[:i])[t] for i, t in enumerate(tokens)]
            np.testing.assert_allclose(
                found[row, rank, : len(tokens)], expected, atol=1e-4
            )
            assert not found[row, rank, len(tokens) :].any()


def test_minimum_lengths_may_differ_by_row():
    model = HistoryModel(seed=4)
    least = np.array([0, 1, 3, 4])
    for num_beams in (1, 3):
        result = search_model(model, num_beams=num_beams, min_lengths=least)
        for row in range(4):
            alone = search_model(
                model,
                SOURCES[row : row + 1],
                num_beams=num_beams,
                min_length=int(least[row]),
            )
            assert hypotheses(result, row) == hypotheses(alone, 0)
            assert len(hypotheses(result, row)[0]) > least[row]


@pytest.mark.parametrize("num_beams", [2, 3, 5])
def test_each_hypothesis_has_the_log_prob_and_attention_of_its_own_tokens(num_beams):
    model = HistoryModel(vocabulary_size=9, seed=5)
    result = search_model(
        model, num_beams=num_beams, n_best=num_beams, return_attention=True
    )
    for row, source in enumerate(SOURCES):
        log_probs_of, attention_of = model.reference(source)
        for rank, tokens in enumerate(hypotheses(result, row)):
            total = sum(log_probs_of(tokens[:i])[t] for i, t in enumerate(tokens))
            found = float(result.log_probs[row, rank])
            np.testing.assert_allclose(found, total, rtol=1e-4)
            penalty = ((5 + len(tokens)) / 6) ** 0.6
            found = float(result.scores[row, rank])
            np.testing.assert_allclose(found, total / penalty, rtol=1e-4)
            expected = np.zeros((6, 3))
            for position in range(len(tokens)):
                expected[position] = attention_of(tokens[:position])
            np.testing.assert_allclose(result.attention[row, rank], expected, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_one_beam_is_greedy_search(alpha):
    model = HistoryModel(seed=2)
    memory = model.encode(SOURCES)
    greedy = greedy_search(
        model.step,
        memory,
        model.initial_state(memory, 6),
        max_length=6,
        return_attention=True,
    )
    single = search_model(
        model, num_beams=1, length_penalty=alpha, return_attention=True
    )
    penalty = ((5 + ops.convert_to_numpy(greedy.lengths)) / 6) ** alpha
    scores = ops.convert_to_numpy(greedy.log_probs) / penalty
    assert_same(greedy._replace(scores=scores.astype("float32")), single)


def test_batch_of_rows_equals_each_row_alone():
    model = HistoryModel(seed=4)
    limits = np.array([6, 2, 4, 6])
    options = {"n_best": 3, "return_attention": True}
    together = search_model(model, length_limits=limits, **options)
    for row in range(4):
        alone = search_model(
            model,
            SOURCES[row : row + 1],
            length_limits=limits[row : row + 1],
            **options,
        )
        assert_same(row_of(together, row), alone)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("n_best", [1, 4])
def test_early_stop_equals_no_early_stop(monkeypatch, alpha, n_best):
    steps = []

    def search(model):
        def step(*arguments):
            steps.append(1)
            return model.step(*arguments)

        memory = model.encode(SOURCES)
        return beam_search(
            step,
            memory,
            model.initial_state(memory, 8),
            num_beams=4,
            max_length=8,
            n_best=n_best,
            length_penalty=alpha,
        )

    model = HistoryModel(seed=6)
    early = search(model)
    count, steps = len(steps), []
    monkeypatch.setattr(beam, "_cannot_improve", lambda scores, _: scores[:, 0] > 1)
    late = search(model)
    assert_same(early, late)
    assert len(steps) == 8
    if alpha == 0.0 and n_best == 1:
        assert count < 8


def test_hypotheses_are_distinct_sorted_and_hold_nothing_after_end():
    chain = random_chain(seed=8)
    result = search_chain(chain, batch=2, num_beams=5, n_best=5, max_length=7)
    scores = ops.convert_to_numpy(result.scores)
    assert (np.diff(scores, axis=1) <= 0).all()
    for row in range(2):
        found = hypotheses(result, row)
        assert len(set(map(tuple, found))) == len(found) == 5
        assert all(tokens.index(END) == len(tokens) - 1 for tokens in found)
        padding = ops.convert_to_numpy(result.ids)[row]
        for tokens, length in zip(padding, result.lengths[row], strict=True):
            assert not tokens[int(length) :].any()


def test_finished_hypotheses_are_frozen_while_others_go_on():
    # "4 END" finishes at the second step; "5 5 5 5 END" is what the search goes on for.
    chain = np.zeros((6, 6))
    chain[START, [4, 5]] = 0.3, 0.7
    chain[4, END] = 1.0
    chain[5, [5, END]] = 0.8, 0.2
    chain[END, 5] = 1.0
    result = search_chain(
        chain, num_beams=3, n_best=3, max_length=5, length_penalty=0.0
    )
    expected = exhaustive(chain_log_probs(chain), 6, 5)
    check_against(expected, result)
    assert hypotheses(result, 0)[0] == [4, END]
    np.testing.assert_allclose(np.exp(float(result.scores[0, 0])), 0.3, rtol=1e-5)


def test_more_beams_than_words_work_and_leave_surplus_slots_empty():
    chain = random_chain(seed=1, vocabulary_size=5)
    expected = exhaustive(chain_log_probs(chain), 5, 2)
    result = search_chain(chain, num_beams=20, n_best=20, max_length=2)
    assert len(expected) == 3 == len(hypotheses(result, 0))
    assert ops.convert_to_numpy(result.lengths)[0, 3:].tolist() == [0] * 17
    np.testing.assert_array_equal(result.scores[0, 3:], np.full(17, -1e9, "float32"))
    assert not ops.convert_to_numpy(result.finished)[0, 3:].any()
    assert not ops.convert_to_numpy(result.ids)[0, 3:].any()


def test_without_end_the_best_unfinished_hypotheses_are_returned():
    chain = random_chain(seed=2)
    chain[:, END] = 0
    chain = chain / chain.sum(axis=1, keepdims=True)
    result = search_chain(chain, batch=2, num_beams=81, n_best=3, max_length=4)
    expected = exhaustive(chain_log_probs(chain), 6, 4, alpha=0.6)
    for row in range(2):
        check_against(expected, result, row)
    assert not ops.convert_to_numpy(result.finished).any()


def test_an_unfinished_hypothesis_never_takes_the_place_of_a_finished_one():
    chain = np.zeros((6, 6))
    chain[START, [4, END]] = 0.6, 0.4
    chain[4, 4] = 1.0
    result = search_chain(chain, num_beams=2, n_best=2, length_penalty=0.0)
    assert hypotheses(result, 0) == [[END]]
    assert ops.convert_to_numpy(result.finished).tolist() == [[True, False]]


def test_min_length_puts_off_end_in_every_hypothesis():
    chain = random_chain(seed=3)
    chain[:, END] += 3.0
    chain = chain / chain.sum(axis=1, keepdims=True)
    assert hypotheses(search_chain(chain), 0) == [[END]]
    result = search_chain(chain, n_best=4, min_length=2, num_beams=ALL_BEAMS)
    expected = exhaustive(chain_log_probs(chain), 6, 4, alpha=0.6, min_length=2)
    check_against(expected, result)
    assert min(map(len, hypotheses(result, 0))) == 3


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_without_a_distribution_neither_crash_nor_write_banned_ids(broken):
    model = HistoryModel()

    def step(token_ids, memory, state):
        logits, state, attention = model.step(token_ids, memory, state)
        rotten = ops.expand_dims(token_ids == 4, axis=1)
        return ops.where(rotten, broken, logits), state, attention

    memory = model.encode(SOURCES)
    state = model.initial_state(memory, 6)
    result = beam_search(step, memory, state, num_beams=4, n_best=4, max_length=6)
    assert np.isfinite(ops.convert_to_numpy(result.scores)).all()
    written = [t for row in range(4) for h in hypotheses(result, row) for t in h]
    assert written
    assert set(written) <= {1, END, 5}


def test_a_model_of_nothing_but_nan_gives_empty_hypotheses():
    def step(token_ids, memory, state):
        return ops.full((ops.shape(token_ids)[0], 6), np.nan), state, None

    result = beam_search(step, *chain_inputs(2), num_beams=3, n_best=2, max_length=5)
    assert not ops.convert_to_numpy(result.lengths).any()
    assert not ops.convert_to_numpy(result.ids).any()
    assert not ops.convert_to_numpy(result.finished).any()
    assert np.isfinite(ops.convert_to_numpy(result.scores)).all()


def test_one_nan_logit_stops_only_the_beam_that_has_it():
    chain = np.log(random_chain(seed=4)).astype("float32")
    chain[4, 1] = np.nan

    def step(token_ids, memory, state):
        return ops.take(ops.convert_to_tensor(chain), token_ids, axis=0), state, None

    result = beam_search(
        step, *chain_inputs(1), num_beams=ALL_BEAMS, n_best=8, max_length=4
    )
    dead = random_chain(seed=4)
    dead[4] = 0.0
    check_against(exhaustive(chain_log_probs(dead), 6, 4, alpha=0.6), result)


def test_select_state_of_the_model_is_used_in_place_of_the_gather():
    model = HistoryModel(seed=9)
    seen = []

    def select_state(state, rows):
        seen.append(ops.convert_to_numpy(rows))
        return model.select_state(state, rows)

    result = search_model(model, num_beams=3, select_state=select_state)
    generic = search_model(model, num_beams=3, repeat_state=None, select_state=None)
    assert_same(result, generic)
    # Rows are numbers among all B * N, and stay within their own source.
    sources = np.stack(seen).reshape(len(seen), 4, 3) // 3
    np.testing.assert_array_equal(
        sources, np.broadcast_to([[[0], [1], [2], [3]]], sources.shape)
    )

    def keep_all(state, rows):
        return state

    forgetful = search_model(model, num_beams=3, select_state=keep_all)
    assert not np.allclose(forgetful.scores, result.scores)


@pytest.mark.parametrize("name", ["repeat_state", "select_state"])
def test_a_model_repeats_and_selects_or_does_neither(name):
    with pytest.raises(ValueError, match=rf"{name}=None.*both or neither"):
        search_model(HistoryModel(), **{name: None})


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("options", [{}, {"num_groups": 2}])
def test_beams_that_share_caches_find_what_beams_with_their_own_find(window, options):
    """The Transformer's beams against a search that copies every cache."""
    keras.utils.set_random_seed(3)
    model = TransformerSeq2Seq(
        *(20, 20),
        dim=8,
        num_heads=2,
        feedforward_dim=12,
        num_encoder_layers=1,
        num_decoder_layers=2,
        window=window,
        tie_output=False,
    )
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            weight.assign(generator.normal(0, 0.7, weight.shape))
    options = {"n_best": 4, "min_length": 4, "banned_ids": (0, 1, 2), **options}
    options["max_length"] = 6
    result = search_model(model, **options)
    generic = search_model(model, repeat_state=None, select_state=None, **options)
    assert_same(result, generic)
    # Beams that each kept its own past would have found something else.
    forgetful = search_model(model, select_state=lambda state, rows: state, **options)
    assert not np.allclose(forgetful.scores, result.scores, atol=1e-3)
    assert_same(result, generate(model, SOURCES, num_beams=4, **options))
    under_xla = generate(model, SOURCES, num_beams=4, jit_compile=True, **options)
    assert_same(result, under_xla)


def test_memory_is_never_repeated_and_state_of_any_structure_is():
    batches = set()

    def step(token_ids, memory, state):
        counts, (totals, extra) = state["counts"], state["nested"]
        batches.add((memory["mask"].shape[0], token_ids.shape[0], totals.shape[0]))
        logits = ops.expand_dims(totals, 1) * ops.one_hot(token_ids, 6)
        state = {"counts": counts + 1, "nested": [totals + 1.0, extra]}
        return logits, state, None

    memory, _ = chain_inputs(2)
    state = {
        "counts": ops.zeros((2, 3), dtype="int32"),
        "nested": [ops.zeros((2,)), ops.zeros((2, 2, 2), dtype="bool")],
    }
    beam_search(step, memory, state, num_beams=3, max_length=3)
    assert batches == {(2, 6, 6)}


def test_half_precision_logits_are_summed_in_float32():
    chain = random_chain(seed=11)
    step = chain_step(chain)

    def half_step(*arguments):
        logits, state, attention = step(*arguments)
        return ops.cast(logits, "bfloat16"), state, attention

    result = beam_search(half_step, *chain_inputs(), num_beams=4, max_length=4)
    assert keras.backend.standardize_dtype(result.scores.dtype) == "float32"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams=0"),
        ({"n_best": 5}, "n_best=5, num_beams=4"),
        ({"n_best": 0}, "n_best=0"),
        ({"length_penalty": -0.5}, "length_penalty=-0.5"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"max_length": 0}, "max_length=0"),
        ({"min_length": 4}, "min_length=4, max_length=4"),
        ({"banned_ids": (END,)}, r"banned_ids=\(3,\), end_id=3"),
    ],
)
def test_impossible_options_are_refused_with_their_values(options, message):
    with pytest.raises(ValueError, match=message):
        search_chain(GARDEN_PATH, **options)


def test_attention_is_refused_without_a_mask_to_tell_the_source_length_by():
    with pytest.raises(ValueError, match=r'needs `memory\["mask"\]`'):
        beam_search(
            chain_step(GARDEN_PATH),
            {},
            {"unused": ops.zeros((1, 1))},
            num_beams=2,
            max_length=2,
            return_attention=True,
        )
