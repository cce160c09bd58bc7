import numpy as np
import pytest
from keras import ops

from keras_seq2seq.decoding import beam_search, generate
from tests.decoding.oracles import (
    END,
    START,
    HistoryModel,
    assert_same,
    chain_inputs,
    hypotheses,
    random_chain,
    row_of,
)
from tests.helpers import chain_step

SOURCES = np.random.default_rng(1).integers(4, 20, size=(3, 3)).astype("int32")


def search(model, sources=SOURCES, **options):
    memory = model.encode(sources)
    return beam_search(
        model.step,
        memory,
        model.initial_state(memory, 6),
        repeat_state=model.repeat_state,
        select_state=model.select_state,
        **{"max_length": 6, **options},
    )


def test_groups_without_a_penalty_are_equal_searches():
    model = HistoryModel(vocabulary_size=9)
    alone = search(model, num_beams=2, n_best=2)
    grouped = search(model, num_beams=6, num_groups=3, n_best=6)
    for row in range(3):
        assert sorted(hypotheses(grouped, row)) == sorted(3 * hypotheses(alone, row))


def test_the_first_group_is_a_search_of_its_own_and_others_differ():
    model = HistoryModel(vocabulary_size=9, seed=6)
    alone = search(model, num_beams=2)
    grouped = search(model, num_beams=6, num_groups=3, n_best=3, diversity_penalty=50.0)
    counts = []
    for row in range(3):
        found = hypotheses(grouped, row)
        assert hypotheses(alone, row)[0] in found
        # No two groups write the same at any place, as long as there is a choice.
        assert len({tokens[0] for tokens in found}) == len(found)
        # A group that has no end is left out where others have one.
        assert {tokens[-1] for tokens in found} == {END}
        counts.append(len(found))
    assert counts == [3, 3, 2]


def test_groups_equal_a_plain_loop_over_them():
    chain = random_chain(6, vocabulary_size=8)
    table = np.log(chain)
    penalty, limit = 1.0, 4
    words = [1, 4, 5, 6, 7]
    groups = [{"alive": [([], 0.0)], "ended": []} for _ in range(3)]
    for position in range(limit):
        taken = []
        for group in groups:
            options = []
            for tokens, total in group["alive"]:
                row = table[tokens[-1] if tokens else START]
                for token in [END, *words]:
                    loss = penalty * taken.count(token)
                    value = total + row[token]
                    options.append((value - loss, [*tokens, token], value))
            options.sort(key=lambda option: -option[0])
            options = options[:4]
            for _, tokens, value in options[:2]:
                if tokens[-1] == END:
                    score = value / ((5 + position + 1) / 6) ** 0.6
                    group["ended"].append((score, tokens))
                    taken.append(END)
            group["alive"] = [
                (tokens, value) for _, tokens, value in options if tokens[-1] != END
            ][:2]
            taken += [tokens[-1] for tokens, _ in group["alive"]]
    expected = []
    for group in groups:
        expected += sorted(group["ended"], reverse=True)[:1]
    expected = [tokens for _, tokens in sorted(expected, reverse=True)]
    result = beam_search(
        chain_step(chain),
        *chain_inputs(),
        num_beams=6,
        num_groups=3,
        diversity_penalty=penalty,
        n_best=3,
        max_length=limit,
    )
    assert len(expected) == 3
    assert hypotheses(result, 0) == expected


@pytest.mark.parametrize("options", [{"num_groups": 2}, {"alternatives": True}])
def test_rows_do_not_depend_on_their_batch_and_graphs_agree(options):
    model = HistoryModel(vocabulary_size=9, seed=3)
    options = {
        "num_beams": 4,
        "n_best": 4,
        "max_length": 6,
        "diversity_penalty": 0.7,
        "return_attention": True,
        "return_token_scores": True,
        **options,
    }
    together = search(model, **options)
    for row in range(3):
        assert_same(
            row_of(together, row), search(model, SOURCES[row : row + 1], **options)
        )
    for jit_compile in (False, True):
        compiled = generate(model, SOURCES, jit_compile=jit_compile, **options)
        assert_same(together, compiled, tolerance=1e-4)


@pytest.mark.parametrize("prefix", [[], [5], [5, 7]])
def test_alternatives_take_the_likeliest_tokens_and_go_on_greedily(prefix):
    chain = random_chain(6, vocabulary_size=8)
    table = np.log(chain)
    last = prefix[-1] if prefix else START
    allowed = [1, END, 4, 5, 6, 7]
    firsts = sorted(allowed, key=lambda token: -table[last, token])[:3]
    expected = []
    for first in firsts:
        tokens = [*prefix, first]
        while tokens[-1] != END and len(tokens) < 6:
            tokens.append(max(allowed, key=lambda t, at=tokens[-1]: table[at, t]))
        expected.append(tokens)
    result = beam_search(
        chain_step(chain),
        *chain_inputs(),
        num_beams=3,
        n_best=3,
        alternatives=True,
        max_length=6,
        prefix_ids=np.array([prefix]) if prefix else None,
    )
    assert sorted(hypotheses(result, 0)) == sorted(expected)
    scores = ops.convert_to_numpy(result.scores)[0]
    assert (np.diff(scores) <= 0).all()


def test_more_alternatives_than_words_leave_slots_empty():
    chain = random_chain(6, vocabulary_size=6)
    result = beam_search(
        chain_step(chain),
        *chain_inputs(),
        num_beams=9,
        n_best=9,
        alternatives=True,
        max_length=3,
    )
    firsts = [tokens[0] for tokens in hypotheses(result, 0)]
    assert sorted(firsts) == [1, END, 4, 5]
