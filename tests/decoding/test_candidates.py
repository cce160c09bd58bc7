import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import beam_search, candidates, greedy_search
from tests.decoding.oracles import assert_same, chain_inputs, random_chain
from tests.helpers import chain_step


@pytest.mark.parametrize("width", [70, 1024, 1500])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_top_of_large_equals_a_stable_sort_with_and_without_ties(width, count):
    generator = np.random.default_rng(width + count)
    for values in (
        generator.normal(size=(5, width)),
        generator.integers(0, 30, size=(5, width)),
        np.where(generator.random((5, width)) < 0.02, 1.0, -np.inf),
        -np.ones((5, width)) * 1e30,
    ):
        values = values.astype("float32")
        largest, columns = candidates.top_of_large(ops.convert_to_tensor(values), count)
        columns = ops.convert_to_numpy(columns)
        expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
        sorted_values = np.take_along_axis(values, expected, axis=1)
        np.testing.assert_array_equal(ops.convert_to_numpy(largest), sorted_values)
        finite = np.isfinite(sorted_values)
        np.testing.assert_array_equal(columns[finite], expected[finite])
        assert (columns < width).all()


def test_searches_of_a_large_vocabulary_equal_those_by_plain_top_k(monkeypatch):
    # 1,100 words: not a whole number of blocks.
    step = chain_step(random_chain(seed=0, vocabulary_size=1100))
    inputs = chain_inputs(2)
    options = {"max_length": 6}

    def both():
        return (
            greedy_search(step, *inputs, **options),
            beam_search(step, *inputs, num_beams=3, n_best=3, **options),
        )

    found = both()
    monkeypatch.setattr(candidates, "top_of_large", lambda x, k: ops.top_k(x, k))
    for result, expected in zip(found, both(), strict=True):
        assert_same(expected, result)
