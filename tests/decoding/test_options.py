import pytest

from keras_seq2seq.decoding import SearchOptions, generate
from keras_seq2seq.decoding.options import split_options
from tests.decoding.oracles import HistoryModel


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2.5}, "`num_beams`.*at least 1.*num_beams=2.5"),
        ({"num_beams": True}, "num_beams=True"),
        ({"top_k": -1}, "`top_k`.*at least 0.*top_k=-1"),
        ({"top_p": 1.1}, "`top_p` must lie between 0 and 1.*top_p=1.1"),
        ({"top_p": float("nan")}, "top_p=nan"),
        ({"temperature": -1}, "`temperature`.*at least 0.*temperature=-1"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": 1.0, "num_beams": 3}, "num_beams=3, temperature=1.0"),
        ({"repetition_penalty": 0}, "`repetition_penalty`.*repetition_penalty=0"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size=-2"),
        ({"length_penalty_base": -1}, "length_penalty_base=-1"),
        ({"coverage_penalty": -0.1}, "coverage_penalty=-0.1"),
        ({"length_reward": float("nan")}, "length_reward=nan"),
        ({"stop": "soon"}, '"exact" or "count".*stop=\'soon\''),
        ({"num_beams": 5, "num_groups": 2}, "num_groups=2, num_beams=5"),
        ({"num_beams": 4, "num_groups": 2, "alternatives": True}, "num_groups=2"),
        ({"n_best": 3, "num_beams": 2}, "n_best=3, num_beams=2"),
    ],
)
def test_values_out_of_range_are_refused_by_name_value_and_range(options, message):
    with pytest.raises(ValueError, match=message):
        SearchOptions(max_length=8, **options)


def test_unknown_options_are_refused_with_the_nearest_name():
    with pytest.raises(TypeError, match=r"`num_beam` of a search. .*`num_beams`\?"):
        split_options({"max_length": 3, "num_beam": 2})
    with pytest.raises(TypeError, match="`max_length` must be given"):
        split_options({"num_beams": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": [1, 2]}, r"`seeds` must have 1 axes.*shape \(2,\) for 1 rows"),
        ({"prefix_ids": [4]}, "`prefix_ids` must have 2 axes"),
        (
            {"num_beams": 2, "required_phrases": [[[[4, 5, 4]], [[5, 0, 0]]]]},
            "required must fit.*index 0: 4 tokens of phrases where 3",
        ),
        ({"required_phrases": [[[[4]]]]}, "needs a beam search.*num_beams=1"),
        ({"temperature": 1.0}, "`seeds` must hold one whole number"),
        (
            {"num_beams": 2, "num_groups": 2, "required_phrases": [[[[4]]]]},
            "`required_phrases` cannot go with groups",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        generate(HistoryModel(), [[4, 5, 6]], max_length=4, **options)
