import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import greedy_search, sample, uniform_noise
from tests.decoding.oracles import (
    BANNED,
    END,
    GARDEN_PATH,
    START,
    HistoryModel,
    assert_same,
    chain_inputs,
    hypotheses,
    random_chain,
    row_of,
)
from tests.helpers import chain_step

# O11.6 of the oracles: (.5, .25, .15, .1) for the tokens 4 to 7.
FOUR = np.zeros((8, 8))
FOUR[START, 4:] = 0.5, 0.25, 0.15, 0.1
FOUR[4:, END] = 1.0
GRID = (np.arange(2000) + 0.5) / 2000


def first_tokens(chain=FOUR, **options):
    """Shares of the first tokens, over an even grid of numbers to draw by."""
    noise = np.repeat(GRID[None, :, None], 2, axis=2).astype("float32")
    result = sample(
        chain_step(chain),
        *chain_inputs(),
        **{"max_length": 2, "temperature": 1.0, **options},
        n_best=len(GRID),
        noise=noise,
    )
    tokens = ops.convert_to_numpy(result.ids)[0, :, 0]
    return np.bincount(tokens, minlength=len(chain)) / len(GRID)


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, (0.5, 0.25, 0.15, 0.1)),
        ({"temperature": 0.5}, (0.7246, 0.1812, 0.0652, 0.0290)),
        ({"temperature": 2.0}, (0.3701, 0.2617, 0.2027, 0.1655)),
        ({"temperature": 1e-6}, (1, 0, 0, 0)),
        ({"top_p": 0.75}, (2 / 3, 1 / 3, 0, 0)),
        ({"top_p": 0.8}, (0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0)),
        # p is of what top-k left: .5556 + .2778 reaches .8.
        ({"top_k": 3, "top_p": 0.8}, (2 / 3, 1 / 3, 0, 0)),
        ({"top_k": 2}, (2 / 3, 1 / 3, 0, 0)),
        ({"top_k": 1}, (1, 0, 0, 0)),
        ({"top_p": 0.0}, (1, 0, 0, 0)),
        ({"top_k": 50}, (0.5, 0.25, 0.15, 0.1)),
        # The temperature comes first: (.7246, .1812, …) reaches .9 with two.
        ({"temperature": 0.5, "top_p": 0.9}, (0.8, 0.2, 0, 0)),
        ({"banned_ids": (0, 2, 4)}, (0, 0.5, 0.3, 0.2)),
    ],
)
def test_tokens_are_drawn_as_often_as_their_probability(options, shares):
    found = first_tokens(**options)
    np.testing.assert_allclose(found[4:], shares, atol=1.1e-3)
    assert not found[:4].any()


def test_ties_of_top_k_go_to_the_lowest_ids():
    even = np.zeros((8, 8))
    even[START, 4:] = 0.25
    even[4:, END] = 1.0
    np.testing.assert_allclose(
        first_tokens(even, top_k=2)[4:], (0.5, 0.5, 0, 0), atol=1e-3
    )


def test_all_tokens_and_probability_one_is_plain_sampling():
    chain = random_chain(3, vocabulary_size=9)
    plain = first_tokens(chain)
    np.testing.assert_array_equal(first_tokens(chain, top_k=9, top_p=1.0), plain)


def test_log_probs_are_of_the_model_and_the_likeliest_sample_comes_first():
    chain = random_chain(1)
    result = sample(
        chain_step(chain),
        *chain_inputs(2),
        max_length=5,
        temperature=2.0,
        top_k=3,
        n_best=4,
        seeds=np.array([5, 6]),
        return_token_scores=True,
    )
    scores = ops.convert_to_numpy(result.scores)
    assert (np.diff(scores, axis=1) <= 0).all()
    parts = ops.convert_to_numpy(result.token_log_probs)
    for row in range(2):
        for rank, tokens in enumerate(hypotheses(result, row)):
            pairs = zip([START, *tokens], tokens, strict=False)
            steps = np.log([chain[before, token] for before, token in pairs])
            np.testing.assert_allclose(
                parts[row, rank, : len(tokens)], steps, rtol=1e-4
            )
            assert not parts[row, rank, len(tokens) :].any()
            total = float(result.log_probs[row, rank])
            assert total == pytest.approx(steps.sum(), rel=1e-4)


def test_a_row_depends_on_its_seed_and_not_on_its_batch():
    model = HistoryModel(seed=3)
    sources = np.random.default_rng(0).integers(4, 20, size=(5, 3)).astype("int32")
    seeds = np.array([3, 1, 4, 1, 5])

    def drawn(sources, seeds, **options):
        memory = model.encode(sources)
        return sample(
            model.step,
            memory,
            model.initial_state(memory, 8),
            **{"max_length": 8, "temperature": 1.5, "n_best": 3, **options},
            seeds=seeds,
            return_attention=True,
        )

    together = drawn(sources, seeds)
    for row in range(5):
        alone = drawn(sources[row : row + 1], seeds[row : row + 1])
        assert_same(row_of(together, row), alone)
    other = drawn(sources, seeds + 100)
    assert not np.array_equal(together.ids, other.ids)
    samples = {tuple(map(int, ids)) for ids in ops.convert_to_numpy(together.ids)[0]}
    assert len(samples) > 1


def test_one_token_to_draw_from_is_greedy_search():
    model = HistoryModel(seed=2)
    memory = model.encode(np.array([[4, 5, 6], [7, 8, 9]]))
    options = {"max_length": 8, "min_length": 2}
    drawn = sample(
        model.step,
        memory,
        model.initial_state(memory, 8),
        temperature=0.7,
        top_k=1,
        seeds=np.array([1, 2]),
        **options,
    )
    greedy = greedy_search(
        model.step, memory, model.initial_state(memory, 8), **options
    )
    assert_same(greedy, drawn)


@pytest.mark.parametrize("noise", [0.0, 1 - 2**-24])
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_the_ends_of_the_numbers_draw_nothing_that_is_forbidden(noise, options):
    model = HistoryModel(vocabulary_size=30, seed=1)
    memory = model.encode(np.array([[4, 5, 6]]))
    result = sample(
        model.step,
        memory,
        model.initial_state(memory, 8),
        max_length=8,
        min_length=7,
        temperature=1.0,
        noise=np.full((1, 1, 8), noise, "float32"),
        banned_ids=(*BANNED, 29, 4),
        **options,
    )
    (tokens,) = hypotheses(result, 0)
    assert len(tokens) == 8
    assert not {*BANNED, 29, 4, END} & set(tokens[:7])


def test_a_row_of_nan_or_without_an_allowed_token_stops_unfinished():
    chain = np.log(random_chain(0)).astype("float32")
    chain[4] = np.nan

    def step(token_ids, memory, state):
        return ops.take(ops.convert_to_tensor(chain), token_ids, axis=0), state, None

    result = sample(
        step,
        *chain_inputs(),
        max_length=6,
        n_best=40,
        temperature=1.0,
        seeds=np.array([0]),
    )
    for tokens, finished in zip(
        hypotheses(result, 0), ops.convert_to_numpy(result.finished)[0], strict=True
    ):
        assert set(tokens) <= {1, END, 4, 5}
        assert finished == (tokens[-1] == END)
        assert 4 not in tokens[:-1]


def test_sampling_without_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature=0"):
        sample(chain_step(GARDEN_PATH), *chain_inputs(), max_length=3)


def test_noise_is_even_independent_and_the_same_everywhere():
    noise = ops.convert_to_numpy(uniform_noise(np.arange(200), 5, 20))
    assert noise.shape == (200, 5, 20)
    assert noise.min() >= 0
    assert noise.max() < 1
    shares = np.histogram(noise, bins=50, range=(0, 1))[0] / noise.size
    np.testing.assert_allclose(shares, 0.02, atol=0.004)
    for axis in range(3):
        left, right = np.delete(noise, 0, axis), np.delete(noise, -1, axis)
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.03
    # Numbers that no release may change: a seed stands for its samples.
    expected = reference_noise(np.array([0, 1, -7, 2**31 - 1]), 2, 3)
    found = ops.convert_to_numpy(uniform_noise(np.array([0, 1, -7, 2**31 - 1]), 2, 3))
    np.testing.assert_array_equal(found, expected)


def reference_noise(seeds, num_samples, length):
    """The same in NumPy's uint32."""

    def mixed(x):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))

    x = mixed(seeds.astype("int32").view("uint32") + np.uint32(1))
    x = mixed(x[:, None] + np.arange(num_samples, dtype="uint32"))
    x = mixed(x[:, :, None] + np.arange(length, dtype="uint32"))
    return (x >> np.uint32(8)).astype("float32") * np.float32(2**-24)


# Of four sources, each with settings of its own.
ROWS = {
    "temperatures": [1.0, 0.5, 0.0, 2.0],
    "top_ks": [0, 3, 0, 50],
    "top_ps": [1.0, 0.9, 1.0, 0.6],
}


def row_options(row):
    temperature, top_k, top_p = (values[row] for values in ROWS.values())
    # A search has temperature 0; the least one draws the likeliest.
    return {"temperature": temperature or 1e-30, "top_k": top_k, "top_p": top_p}


@pytest.mark.parametrize(
    "names", [("temperatures",), ("top_ks",), ("top_ps",), tuple(ROWS)]
)
def test_each_source_is_drawn_by_settings_of_its_own(names):
    chain = random_chain(3, vocabulary_size=9)
    options = {"max_length": 12, "n_best": 3, "temperature": 1.0}
    seeds = np.arange(4, dtype="int32") * 77
    given = {name: np.array(ROWS[name]) for name in names}
    found = sample(chain_step(chain), *chain_inputs(4), seeds=seeds, **options, **given)
    for row in range(4):
        own = row_options(row)
        own = {name.removesuffix("s"): own[name.removesuffix("s")] for name in names}
        alone = sample(
            chain_step(chain),
            *chain_inputs(1),
            seeds=seeds[row : row + 1],
            **{**options, **own},
        )
        assert_same(row_of(found, row), row_of(alone, 0))
