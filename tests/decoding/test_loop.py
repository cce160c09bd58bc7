"""Sources that are done leave the loop, and nothing else changes by it."""

import numpy as np
import pytest
from keras import ops

from keras_seq2seq.buffers import filled_by
from keras_seq2seq.decoding import beam_search, generate
from keras_seq2seq.models import EnsembleSeq2Seq
from tests.decoding.oracles import (
    END,
    START,
    HistoryModel,
    assert_same,
    row_of,
    tiny_model,
)

COUNT = 21
LIMITS = np.random.default_rng(5).permutation(COUNT) % 8 + 1
CHOICE = {"start_id": START, "end_id": END, "banned_ids": (0, START)}


def sources(width=3, size=6):
    ids = np.random.default_rng(2).integers(4, size, (COUNT, width))
    ids[::3, -1] = 0
    return ids.astype("int32")


def rows_of_steps(num_beams, fills):
    """How many rows each step of a search computed, eagerly, and the result."""
    model, counts = HistoryModel(), []
    memory = model.encode(ops.convert_to_tensor(sources()))

    def step(token_ids, memory, state):
        counts.append(int(token_ids.shape[0]))
        return model.step(token_ids, memory, state)

    with filled_by(fills):
        found = beam_search(
            step,
            memory,
            model.initial_state(memory, 8),
            max_length=8,
            num_beams=num_beams,
            n_best=num_beams,
            length_limits=LIMITS,
            **CHOICE,
        )
    return counts, found


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_batch_shrinks_as_its_sources_end(num_beams):
    counts, found = rows_of_steps(num_beams, "grow")
    all_counts, expected = rows_of_steps(num_beams, "blend")
    assert_same(found, expected)
    assert set(all_counts) == {COUNT * num_beams}
    assert len(counts) == len(all_counts)
    assert counts == sorted(counts, reverse=True)
    # Sizes are few: all the sources, then numbers of the list.
    assert {n // num_beams for n in counts} <= {COUNT, 16, 12, 8, 6, 4, 3, 2, 1}
    lengths = ops.convert_to_numpy(found.lengths).max(axis=1)
    for position, rows in enumerate(counts):
        # No less than those that go on, and no more than a size above.
        going_on = int((lengths > position).sum())
        assert going_on * num_beams <= rows
    assert counts[-1] < COUNT * num_beams


OPTIONS = {
    "greedy": {},
    "beams": {"num_beams": 3, "n_best": 3, "return_token_scores": True},
    "count": {"num_beams": 3, "n_best": 2, "stop": "count"},
    "attention": {"num_beams": 2, "return_attention": True, "coverage_penalty": 0.3},
    "groups": {
        "num_beams": 4,
        "n_best": 4,
        "num_groups": 2,
        "diversity_penalty": 0.7,
    },
    "alternatives": {"num_beams": 3, "n_best": 3, "alternatives": True},
    "samples": {
        "temperature": 0.8,
        "n_best": 3,
        "seeds": np.arange(COUNT),
        "return_attention": True,
    },
    "history": {
        "num_beams": 2,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.2,
        "banned_phrases": np.tile([[[4, 5]]], (COUNT, 1, 1)),
        "prefix_ids": np.where(np.arange(COUNT)[:, None] % 2, 4, 0),
        "min_lengths": np.minimum(np.arange(COUNT) % 3, LIMITS - 1),
    },
    "required": {
        "num_beams": 3,
        "required_phrases": np.where(LIMITS > 1, 5, 0)[:, None, None, None],
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_gives_each_source_what_it_has_alone(name):
    # Compiled with XLA a batch does not shrink.
    options = {"max_length": 8, "length_limits": LIMITS, **CHOICE, **OPTIONS[name]}
    model = HistoryModel(max_length=128)
    found = generate(model, sources(), **options)
    assert_same(found, generate(model, sources(), jit_compile=True, **options))
    for row in (0, 7, COUNT - 1):
        own = {
            key: value[row : row + 1] if isinstance(value, np.ndarray) else value
            for key, value in options.items()
        }
        alone = generate(model, sources()[row : row + 1], **own)
        assert_same(row_of(found, row), row_of(alone, 0))


def model_named(name):
    sizes = (20, 20)
    if name == "window":
        return tiny_model("transformer", sizes, window=3, tie_output=False)
    if name == "ensemble":
        members = [tiny_model(kind, sizes) for kind in ("transformer", "recurrent")]
        return EnsembleSeq2Seq(members)
    return tiny_model(name, sizes)


@pytest.mark.parametrize(
    "name", ["transformer", "window", "recurrent", "convolutional", "ensemble"]
)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_every_kind_of_model_leaves_the_loop(name, num_beams):
    model = model_named(name)
    options = {
        "max_length": 8,
        "length_limits": LIMITS,
        "num_beams": num_beams,
        "n_best": num_beams,
        "return_attention": True,
        **CHOICE,
    }
    ids = sources(width=5, size=20)
    found = generate(model, ids, **options)
    assert_same(found, generate(model, ids, jit_compile=True, **options))
