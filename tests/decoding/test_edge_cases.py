"""What the other files do not ask of every search: ends, ties, gaps, wrong values."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import (
    SearchOptions,
    beam_search,
    generate,
    greedy_search,
    sample,
    stream,
)
from keras_seq2seq.models import RecurrentSeq2Seq, TransformerSeq2Seq
from keras_seq2seq.outputs import Hypothesis, different_texts
from tests.decoding.oracles import (
    END,
    GARDEN_PATH,
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

SOURCES = np.array([[4, 5, 6], [7, 8, 0]], "int32")
# Every kind of search, for one source.
SEARCHES = {
    "greedy": {},
    "beam": {"num_beams": 3, "n_best": 3},
    "count": {"num_beams": 3, "n_best": 3, "stop": "count"},
    "groups": {"num_beams": 4, "n_best": 4, "num_groups": 2, "diversity_penalty": 0.5},
    "alternatives": {"num_beams": 3, "n_best": 3, "alternatives": True},
    "rules": {"num_beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    "required": {"num_beams": 3, "required_phrases": np.array([[[[4]]]])},
    "samples": {"temperature": 1.0, "n_best": 3, "seeds": np.array([1])},
    "top_k": {"temperature": 1.0, "top_k": 3, "seeds": np.array([1])},
    "top_p": {"temperature": 1.0, "top_p": 0.5, "seeds": np.array([1])},
}


def search(step, **options):
    return beam_search(step, *chain_inputs(), **{"max_length": 4, **options})


def steps_of(logits):
    """A step function of the same logits for every token."""

    def step(token_ids, memory, state):
        rows = ops.zeros((ops.shape(token_ids)[0], 1))
        weights = ops.ones((ops.shape(token_ids)[0], 2)) / 2
        return rows + ops.convert_to_tensor(logits), state, weights

    return step


@pytest.mark.parametrize("name", [n for n in SEARCHES if n != "required"])
def test_a_model_that_never_ends_is_stopped_at_the_limit_unfinished(name):  # (B84)
    steps = []
    chain = random_chain(2)
    chain[:, END] = 0
    plain = chain_step(chain)

    def step(*arguments):
        steps.append(1)
        return plain(*arguments)

    options = {**SEARCHES[name], "max_length": 12}
    if name == "rules":  # a search that runs out of n-grams has to end
        options["no_repeat_ngram_size"] = 0
    result = search(step, length_limits=np.array([8]), **options)
    assert len(steps) == 8
    assert {len(tokens) for tokens in hypotheses(result, 0)} == {8}
    assert not ops.convert_to_numpy(result.finished).any()


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_an_end_of_30_percent_at_each_step_ranks_as_computed_by_hand(alpha):  # (B78)
    chain = np.zeros((6, 6))
    chain[:, END], chain[:, 4] = 0.3, 0.7
    result = search(
        chain_step(chain),
        num_beams=2,
        n_best=2,
        max_length=5,
        length_penalty=alpha,
        length_penalty_base=0.0,
    )
    # Without a penalty the shortest wins; the mean of a token grows with the words.
    shortest, second, longest, last = [END], [4, END], [4] * 4 + [END], [4] * 3 + [END]
    expected = [shortest, second] if alpha == 0 else [longest, last]
    assert hypotheses(result, 0) == expected
    totals = [np.log(0.3) + (len(t) - 1) * np.log(0.7) for t in expected]
    scores = [s / len(t) ** alpha for s, t in zip(totals, expected, strict=True)]
    np.testing.assert_allclose(ops.convert_to_numpy(result.scores)[0], scores, 1e-5)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.0}])
def test_the_likeliest_of_equals_is_the_lowest_id(options):
    even = np.zeros(8, "float32")  # PAD and START among them, which are banned
    greedy = search(steps_of(even), min_length=3)
    assert hypotheses(greedy, 0) == [[UNK] * 4]
    drawn = search(
        steps_of(even), min_length=3, temperature=1.0, seeds=np.array([3]), **options
    )
    assert_same(greedy, drawn)


def test_equal_hypotheses_are_told_apart_and_come_in_one_order():  # (B75)
    even = chain_step(np.full((8, 8), 1 / 8))
    options = {"num_beams": 7, "n_best": 7, "length_penalty": 0.0}
    found = search(even, **options)
    tokens = hypotheses(found, 0)
    assert len(set(map(tuple, tokens))) == len(tokens) > 1
    lengths = np.array([len(hypothesis) for hypothesis in tokens])
    scores = ops.convert_to_numpy(found.scores)[0, : len(tokens)]
    np.testing.assert_allclose(scores, -lengths * np.log(8), rtol=1e-5)
    assert (np.diff(lengths) >= 0).all()
    assert_same(found, search(even, **options))
    together = beam_search(even, *chain_inputs(3), max_length=4, **options)
    for row in range(3):
        assert_same(found, row_of(together, row))


def test_texts_that_came_before_are_left_out_of_an_n_best_list():  # (B76)
    found = [
        Hypothesis("a", -1.0, -1.0, ids=(4, END)),
        Hypothesis("a", -2.0, -2.0, ids=(5, 6, END)),
        Hypothesis("b", -3.0, -3.0, ids=(7, END)),
        Hypothesis("a", -4.0, -4.0, ids=(4,)),
        Hypothesis("c", -5.0, -5.0, ids=(8, END)),
    ]
    assert different_texts(found, 2) == [found[0], found[2]]
    assert different_texts(found, 9) == [found[0], found[2], found[4]]
    assert different_texts([], 2) == []


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.5}])
def test_a_temperature_of_0_is_greedy_search_and_draws_nothing(options):  # (B81)
    model = HistoryModel(seed=2)
    greedy = generate(model, SOURCES, max_length=6)
    found = generate(
        model, SOURCES, max_length=6, temperature=0, seeds=[1, 2], **options
    )
    assert_same(greedy, found)


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_a_top_k_above_the_vocabulary_is_all_of_it(top_p):  # (B81)
    model = HistoryModel(seed=2)
    options = {"max_length": 6, "temperature": 1.5, "top_p": top_p, "seeds": [1, 2]}
    everything = generate(model, SOURCES, n_best=5, top_k=0, **options)
    for top_k in (6, 7, 1000):
        found = generate(model, SOURCES, n_best=5, top_k=top_k, **options)
        assert_same(everything, found)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_no_search_writes_a_token_of_a_model_without_a_distribution(name, broken):
    result = search(steps_of(np.full(6, broken, "float32")), **SEARCHES[name])
    assert hypotheses(result, 0) == []
    assert not ops.convert_to_numpy(result.ids).any()
    assert not ops.convert_to_numpy(result.finished).any()
    # As in any place that is left over: no score is lower.
    assert (ops.convert_to_numpy(result.scores) == np.float32(-1e9)).all()
    assert (ops.convert_to_numpy(result.log_probs) == np.float32(-1e9)).all()


def test_a_sample_without_a_token_ranks_behind_those_that_have_one():
    logits = np.log(random_chain(0)).astype("float32")

    def step(token_ids, memory, state):
        row = ops.take(ops.convert_to_tensor(logits), token_ids, axis=0)
        rotten = ops.convert_to_tensor([[True], [False], [True]])
        return ops.where(rotten, np.nan, row), state, None

    options = {"temperature": 1.0, "n_best": 3, "seeds": np.array([1])}
    result = search(step, **options)
    lengths = ops.convert_to_numpy(result.lengths)[0]
    assert lengths[0] > 0
    assert not lengths[1:].any()
    scores = ops.convert_to_numpy(result.scores)[0]
    assert scores[0] > -100
    assert (scores[1:] == np.float32(-1e9)).all()


@pytest.mark.parametrize(
    "name", [n for n in SEARCHES if n not in ("rules", "required")]
)
def test_one_possible_token_is_written_by_every_search(name):
    logits = np.full(6, -np.inf, "float32")
    logits[5] = 3.0
    result = search(steps_of(logits), **SEARCHES[name])
    assert {tuple(tokens) for tokens in hypotheses(result, 0)} == {(5, 5, 5, 5)}
    np.testing.assert_allclose(float(result.log_probs[0, 0]), 0.0, atol=1e-6)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_row_of_nan_changes_nothing_in_the_other_rows(name):
    model = HistoryModel(seed=3)
    inputs = {k: v for k, v in SEARCHES[name].items() if isinstance(v, np.ndarray)}
    twice = {k: np.repeat(v, 2, axis=0) for k, v in inputs.items()}
    options = {**SEARCHES[name], "max_length": 6}

    def found(rotten, sources, options):
        memory = model.encode(sources)
        memory["rotten"] = ops.convert_to_tensor(rotten)

        def step(token_ids, memory, state):
            logits, state, attention = model.step(token_ids, memory, state)
            copies = ops.shape(token_ids)[0] // ops.shape(memory["rotten"])[0]
            rows = ops.expand_dims(ops.repeat(memory["rotten"], copies), axis=1)
            return ops.where(rows, np.nan, logits), state, attention

        return beam_search(step, memory, model.initial_state(memory, 6), **options)

    together = found([False, True], SOURCES, {**options, **twice})
    alone = found([False], SOURCES[:1], options)
    assert_same(row_of(together, 0), alone)
    assert hypotheses(together, 0)
    assert not hypotheses(together, 1)


@pytest.mark.parametrize("name", ["transformer", "recurrent"])
@pytest.mark.parametrize("search_name", ["greedy", "beam", "samples"])
def test_an_empty_source_is_answered_and_changes_no_other(name, search_name):
    keras.utils.set_random_seed(3)
    if name == "transformer":
        model = TransformerSeq2Seq(
            *(12, 6),
            dim=8,
            num_heads=2,
            feedforward_dim=8,
            num_encoder_layers=1,
            num_decoder_layers=1,
        )
    else:
        model = RecurrentSeq2Seq(12, 6, units=8, embedding_dim=8)
    options = {"max_length": 5, "return_attention": True, **SEARCHES[search_name]}
    if search_name == "beam":
        options["coverage_penalty"] = 0.3
    if "seeds" in options:
        options["seeds"] = np.array([1, 1, 1])
    sources = np.concatenate([SOURCES, np.zeros((1, 3), "int32")])
    together = generate(model, sources, **options)
    assert hypotheses(together, 2)
    assert np.isfinite(together.scores[2]).all()
    assert not together.attention[2].any()
    if "seeds" in options:
        options["seeds"] = np.array([1, 1])
    others = generate(model, SOURCES, **options)
    for row in range(2):
        assert_same(row_of(together, row), row_of(others, row), tolerance=1e-4)


def test_a_stream_of_a_model_without_end_or_distribution_stops():
    never = np.where(np.arange(6) == END, -1e9, 0.0).astype("float32")
    for added, count in ((never, 5), (np.full(6, np.nan, "float32"), 1)):
        model = HistoryModel(seed=2)

        def step(*arguments, plain=model.step, added=added):
            logits, state, attention = plain(*arguments)
            return logits + ops.convert_to_tensor(added), state, attention

        model.step = step
        steps = list(stream(model, SOURCES[:1], max_length=5))
        assert len(steps) == count
        assert steps[-1].done.all()
        assert END not in [int(step.token_ids[0]) for step in steps]


@pytest.mark.parametrize("function", [greedy_search, beam_search, sample])
def test_every_search_refuses_a_name_that_it_does_not_know(function):
    with pytest.raises(TypeError, match=r"`beams` of a search.*`num_beams`\?"):
        function(chain_step(GARDEN_PATH), *chain_inputs(), max_length=2, beams=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": -0.1}, "`top_p` must lie between 0 and 1.*top_p=-0.1"),
        ({"top_k": 2.5}, "`top_k` must be a whole number.*at least 0.*top_k=2.5"),
        ({"temperature": float("nan")}, "`temperature`.*finite.*temperature=nan"),
        ({"temperature": "1"}, "`temperature`.*finite.*temperature='1'"),
        ({"max_length": None}, "`max_length` must be a whole.*max_length=None"),
        ({"num_groups": 0}, "`num_groups`.*at least 1.*num_groups=0"),
        ({"repetition_penalty": float("inf")}, "above 0, and finite.*penalty=inf"),
        ({"stop": None}, '`stop` must be "exact" or "count".*stop=None'),
    ],
)
def test_values_that_are_no_numbers_or_not_finite_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SearchOptions(**{"max_length": 8, **options})


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-40, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.5}])
def test_a_temperature_near_0_is_greedy_search(temperature, options):
    step = chain_step(random_chain(3))
    drawn = search(step, temperature=temperature, seeds=np.array([1]), **options)
    assert_same(search(step), drawn)


def test_a_group_without_an_end_does_not_outrank_one_that_ended():
    chain = np.zeros((6, 6))
    chain[START, [4, 5, END]] = 0.4, 0.39, 0.21
    chain[4, END] = chain[5, 5] = 1.0
    options = {"num_beams": 2, "n_best": 2, "return_token_scores": True}
    grouped = {"num_groups": 2, "diversity_penalty": 1.0}
    result = search(chain_step(chain), **options, **grouped)
    assert hypotheses(result, 0) == [[4, END]]
    assert not ops.convert_to_numpy(result.ids)[0, 1].any()
    assert not ops.convert_to_numpy(result.token_log_probs)[0, 1].any()
    assert ops.convert_to_numpy(result.scores)[0, 1] == np.float32(-1e9)
    # Alternatives stand each by itself, the one that was cut being likelier here.
    result = search(chain_step(chain), **options, alternatives=True)
    assert hypotheses(result, 0) == [[5, 5, 5, 5], [4, END]]
    assert ops.convert_to_numpy(result.finished).tolist() == [[False, True]]
    # Where no group has an end, what was cut is all that there is.
    chain[4] = np.eye(6)[4]
    result = search(chain_step(chain), **options, **grouped, min_length=3)
    assert sorted(hypotheses(result, 0)) == [[4] * 4, [5] * 4]
    assert not ops.convert_to_numpy(result.finished).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"diversity_penalty": -1}, "`diversity_penalty`.*at least 0.*penalty=-1"),
        ({"diversity_penalty": float("nan")}, "`diversity_penalty`.*penalty=nan"),
        ({"top_p": "0.9"}, "`top_p`.*0 and 1.*top_p='0.9'"),
        ({"top_p": None}, "`top_p`.*0 and 1.*top_p=None"),
        ({"top_p": True}, "`top_p`.*0 and 1.*top_p=True"),
        ({"repetition_penalty": None}, "`repetition_penalty`.*penalty=None"),
        ({"repetition_penalty": "2"}, "`repetition_penalty`.*penalty='2'"),
        ({"repetition_penalty": True}, "`repetition_penalty`.*penalty=True"),
        ({"banned_ids": 0}, "`banned_ids`.*banned_ids=0"),
        ({"banned_ids": ["a"]}, r"`banned_ids`.*banned_ids=.*'a'"),
        ({"banned_ids": [0, 1.5]}, r"`banned_ids`.*banned_ids=\[0, 1.5\]"),
        ({"banned_ids": "02"}, r"`banned_ids`.*banned_ids='02'"),
        ({"end_id": None}, "`end_id`.*end_id=None"),
        ({"start_id": -1}, "`start_id`.*at least 0.*start_id=-1"),
        ({"pad_id": 0.0}, "`pad_id`.*whole number.*pad_id=0.0"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        SearchOptions(max_length=8, num_beams=4, num_groups=2, **options)


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        ([4, 5, 6], {}, r"`source_ids`.*shape \(3,\)"),
        (4, {}, r"`source_ids`.*shape \(\)"),
        ([[4], [5, 6]], {}, r"`source_ids`.*equal length.*\[\[4\], \[5, 6\]\]"),
        ([[4.0, 5.0]], {}, "`source_ids` must hold whole.*4.0, of float64"),
        ([["4", "5"]], {}, "`source_ids` must hold whole.*'4'"),
        ([[True]], {}, "`source_ids` must hold whole.*True, of bool"),
        ([[4, 5], [6, -1]], {}, "`source_ids`.*at least 0.*-1 for.*index 1"),
        (
            [[4, 5, 6]],
            {"temperature": 1.0, "noise": np.zeros((1, 1, 2))},
            r"`noise`.*shape \(1, 2\) for each source, n_best=1.*to 4 tokens",
        ),
        ([[4]], {"noise": [[["1"]]]}, "`noise` must hold numbers.*'1'"),
        (
            [[4]],
            {"temperature": 1.0, "temperatures": [-0.5]},
            r"`temperatures` must hold numbers of at least 0.*Received: -0\.5 for",
        ),
        (
            [[4], [4]],
            {"temperature": 1.0, "top_ps": [1.0, np.nan]},
            "`top_ps` must hold numbers.*at most 1.*nan for the source at index 1",
        ),
        ([[4]], {"temperature": 1.0, "top_ks": [-1]}, "`top_ks` must.*Received: -1"),
        ([[4]], {"prefix_ids": [[4.5]]}, "`prefix_ids` must hold whole.*4.5"),
        ([[4]], {"prefix_ids": [[-4]]}, "`prefix_ids`.*at least 0.*-4 for"),
        ([[4]], {"prefix_ids": [[5] * 5]}, "`prefix_ids` must fit.*index 0: 5.*4 can"),
        (
            [[4], [5]],
            {"prefix_ids": [[5, 0], [4, 5]], "length_limits": [1, 1]},
            "`prefix_ids` must fit.*index 1: 2 tokens, where 1 can",
        ),
        ([[4]], {"banned_phrases": [[[2**31]]]}, "`banned_phrases`.*2147483648 for"),
        (
            [[4], [5], [6]],
            {"length_limits": [2, 0, -1]},
            "`length_limits`.*at least 1.*0 for the source at index 1",
        ),
    ],
)
def test_arrays_of_another_shape_or_kind_are_refused_by_name(sources, options, message):
    for function in (generate, lambda *args, **named: list(stream(*args, **named))):
        with pytest.raises(ValueError, match=message):
            function(HistoryModel(), sources, max_length=4, **options)


@pytest.mark.parametrize("name", ["source_ids", "prefix_ids", "banned_phrases"])
def test_ids_outside_the_vocabulary_of_their_side_are_refused(name):
    model = RecurrentSeq2Seq(12, 6, units=8, embedding_dim=8)
    sizes = {"source_ids": 12, "prefix_ids": 6, "banned_phrases": 6}
    ranks = {"source_ids": 2, "prefix_ids": 2, "banned_phrases": 3}

    def found(token_id):
        ids = np.full((1,) * ranks[name], token_id)
        arguments = {"source_ids": [[4, 5]], name: ids}
        return generate(model, arguments.pop("source_ids"), max_length=4, **arguments)

    assert hypotheses(found(sizes[name] - 1), 0)
    message = f"`{name}`.*less than {sizes[name]},.*{sizes[name]} for .* index 0"
    with pytest.raises(ValueError, match=message):
        found(sizes[name])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("prefix_ids", (2, 0)),
        ("banned_phrases", (2, 0, 3)),
        ("required_phrases", (2, 1, 0, 1)),
        ("required_phrases", (2, 3, 2, 0)),
    ],
)
def test_constraints_without_a_token_are_none(name, shape):
    model = HistoryModel()
    options = {"max_length": 4, "num_beams": 2}
    found = generate(model, SOURCES, **options, **{name: np.zeros(shape)})
    assert_same(generate(model, SOURCES, **options), found)


def test_a_prefix_as_long_as_the_limit_is_all_that_is_written():
    options = {"max_length": 4, "length_limits": [2, 4]}
    prefix_ids = np.array([[5, 4, 0], [5, 4, 1]])
    found = generate(HistoryModel(), SOURCES, prefix_ids=prefix_ids, **options)
    assert hypotheses(found, 0) == [[5, 4]]
    assert hypotheses(found, 1)[0][:3] == [5, 4, 1]
    assert len(hypotheses(found, 1)[0]) == 4


def test_noise_may_reach_further_than_the_buffers():
    model = HistoryModel(max_length=40)
    noise = np.random.default_rng(0).random((2, 3, 40))
    options = {"temperature": 1.0, "n_best": 3, "noise": noise}
    short = generate(model, SOURCES, max_length=40, length_limits=[3, 6], **options)
    long = generate(model, SOURCES, max_length=40, length_limits=[3, 40], **options)
    assert_same(row_of(short, 0), row_of(long, 0))


def test_sources_of_no_width_are_answered_by_a_recurrent_model():
    model = RecurrentSeq2Seq(12, 6, units=8, embedding_dim=8)
    empty, padded = np.zeros((2, 0), "int32"), np.zeros((2, 3), "int32")
    found = generate(model, empty, max_length=4)
    assert_same(generate(model, padded, max_length=4), found)
