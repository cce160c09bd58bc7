import numpy as np
import pytest

from keras_seq2seq.decoding import generate, stream
from tests.decoding.oracles import HistoryModel

SOURCES = np.array([[4, 5, 6], [7, 8, 0], [9, 0, 0]], "int32")
SEARCHES = {
    "greedy": {"length_limits": np.array([8, 5, 2])},
    "rules": {
        "no_repeat_ngram_size": 1,
        "prefix_ids": np.array([[4], [0], [5]]),
        "min_lengths": np.array([3, 0, 0]),
    },
    "samples": {"temperature": 1.3, "top_p": 0.9, "seeds": np.array([3, 1, 4])},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_streamed_tokens_are_those_of_generate(name):
    model, options = HistoryModel(seed=2), {"max_length": 8, **SEARCHES[name]}
    steps = list(stream(model, SOURCES, **options))
    expected = generate(model, SOURCES, return_token_scores=True, **options)
    ids = np.stack([step.token_ids for step in steps], axis=1)
    assert len(steps) == expected.lengths.max()
    np.testing.assert_array_equal(ids, expected.ids[:, 0, : len(steps)])
    log_probs = np.stack([step.log_probs for step in steps], axis=1)
    np.testing.assert_allclose(
        log_probs, expected.token_log_probs[:, 0, : len(steps)], atol=1e-4
    )
    done = np.stack([step.done for step in steps], axis=1)
    places = np.arange(1, len(steps) + 1)
    np.testing.assert_array_equal(done, places >= expected.lengths)


def test_tokens_come_before_the_next_step_is_made():
    steps = stream(HistoryModel(seed=2), SOURCES[:1], max_length=8)
    first = next(steps)
    assert first.token_ids.shape == (1,)
    steps.close()


def test_several_samples_of_a_source_stream_side_by_side():
    model = HistoryModel(seed=2)
    options = {"max_length": 6, "temperature": 1.0, "n_best": 3}
    steps = list(stream(model, SOURCES[:1], seeds=np.array([5]), **options))
    rows = np.stack([step.token_ids for step in steps], axis=1)
    expected = generate(model, SOURCES[:1], seeds=np.array([5]), **options)
    assert sorted(map(tuple, rows.tolist())) == sorted(
        map(tuple, expected.ids[0, :, : len(steps)].tolist())
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "`num_beams` must be 1 to stream.*num_beams=2"),
        ({"required_phrases": [[[[4]]]]}, "needs a beam search"),
    ],
)
def test_what_cannot_be_streamed_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        next(stream(HistoryModel(), SOURCES[:1], max_length=8, **options))
