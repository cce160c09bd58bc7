"""A model that copies its source makes every answer known beforehand."""

import os
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from keras import ops
from sacrebleu.metrics import CHRF

from keras_seq2seq import batches as batching
from keras_seq2seq.batches import (
    inference_batches,
    pad_rows,
    round_up,
    side_by_side,
)
from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.console import import_backend
from keras_seq2seq.corpora import Pair
from keras_seq2seq.outputs import by_agreement, with_unknown_replaced
from keras_seq2seq.pipelines import Hypothesis, Translator, load
from keras_seq2seq.requests import row_seeds
from keras_seq2seq.scoring import Score, perplexity, score_targets
from keras_seq2seq.tokenizers import END_ID, TokenizerPair

ALPHABET = ["abcdeé", "edcba é", "b", "dé ca"]


class CopyModel:
    """Puts `strength` logits on the source's token at the same position."""

    def __init__(self, size, strength=9.0, max_positions=None):
        self.source_vocabulary_size = self.target_vocabulary_size = size
        self.strength = strength
        self.max_positions = max_positions
        self.widths = []

    def __call__(self, inputs, training=None):
        length = ops.shape(inputs["target_ids"])[1]
        return self._logits(inputs["source_ids"][:, :length])

    def _logits(self, ids):
        return self.strength * ops.one_hot(ids, self.target_vocabulary_size)

    def encode(self, source_ids, training=False):
        self.widths.append(source_ids.shape)
        return {"ids": source_ids, "mask": ops.not_equal(source_ids, 0)}

    def initial_state(self, memory, max_length):
        return {"position": ops.zeros_like(memory["ids"][:, 0])}

    def step(self, token_ids, memory, state):
        ids, position = memory["ids"], state["position"]
        num_beams = ops.shape(position)[0] // ops.shape(ids)[0]
        # Padding after the last token, however wide the batch is.
        ids = ops.pad(ops.repeat(ids, num_beams, axis=0), ((0, 0), (0, 1)))
        last = ops.shape(ids)[1] - 1
        index = ops.expand_dims(ops.minimum(position, last), 1)
        current = ops.squeeze(ops.take_along_axis(ids, index, axis=1), 1)
        attention = ops.one_hot(ops.squeeze(index, 1), last)
        return self._logits(current), {"position": position + 1}, attention

    def repeat_state(self, state, count):
        return {"position": ops.repeat(state["position"], count)}

    def select_state(self, state, parents):
        return {"position": ops.take(state["position"], parents, axis=0)}

    def select_memory(self, memory, sources):
        return {name: ops.take(x, sources, axis=0) for name, x in memory.items()}


@pytest.fixture(scope="module")
def tokenizers():
    return TokenizerPair.train(
        [Pair(text, text) for text in ALPHABET],
        shared=True,
        vocabulary_size=16,
        model_type="char",
    )


# One for all tests: its compiled searches are kept with it.
@pytest.fixture(scope="module")
def translator(tokenizers):
    return Translator(CopyModel(tokenizers.source.vocabulary_size), tokenizers)


def test_text_in_text_out_and_lists_for_lists(translator):
    assert translator("abc") == "abc"
    assert translator(["abc", "dé ca"]) == ["abc", "dé ca"]
    assert translator([]) == []


def test_order_is_kept_and_blank_texts_stay_blank_without_asking_the_model(translator):
    texts = ["b", "", "abcde", "   ", "\ufeff\u2028", "cab", "\t"]
    assert translator(texts, num_beams=2) == ["b", "", "abcde", "", "", "cab", ""]
    translator.model.widths.clear()
    found = translator.translate(["", " "])
    assert translator.model.widths == []
    assert found == [[Hypothesis("", 0.0, 0.0)], [Hypothesis("", 0.0, 0.0)]]


def test_text_passes_the_rules_of_training(translator):
    assert translator("a\x00b\r\n") == "ab"
    assert translator("a\u2028b") == "a b"
    assert translator("e\u0301a") == "éa"


def test_no_answer_depends_on_the_other_texts_or_the_batch_size(translator):
    texts = ["b", "abcde", "dé ca " * 5 + "b", "cab", "a" * 40, "é"]
    alone = [translator.translate([text], num_beams=3)[0] for text in texts]
    for batch_tokens in (1, 64, 4096):
        together = translator.translate(texts, num_beams=3, batch_tokens=batch_tokens)
        for one, other in zip(alone, together, strict=True):
            assert one[0].text == other[0].text
            assert one[0].ids == other[0].ids
            assert one[0].score == pytest.approx(other[0].score, abs=1e-5)


def test_hypothesis_tells_tokens_scores_and_attention(translator):
    found = translator.translate(["ab"], num_beams=1, return_attention=True)[0][0]
    assert found.tokens[-1] == found.source_tokens[-1] == "</s>"
    assert "".join(found.tokens[:-1]).strip("\u2581") == "ab"
    assert found.ids[-1] == END_ID
    np.testing.assert_array_equal(found.attention, np.eye(len(found.tokens)))
    assert found.finished and not found.truncated_source
    # Each token has the log-softmax of 9 against zeros, of all but the banned ids.
    score = translator.score(["ab"], ["ab"])[0]
    size = translator.model.target_vocabulary_size
    total = len(found.tokens) * (9.0 - np.log(np.exp(9.0) + size - 1))
    assert score.num_tokens == len(found.tokens)
    assert score.log_prob == pytest.approx(total, abs=1e-5)
    assert found.log_prob == pytest.approx(score.log_prob, abs=1e-2)


def test_n_best_texts_differ_and_are_sorted(translator):
    found = translator.translate(["ab", "b"], n_best=4)
    for hypotheses in found:
        assert len(hypotheses) == 4
        assert len({hypothesis.text for hypothesis in hypotheses}) == 4
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
    assert [hypotheses[0].text for hypotheses in found] == ["ab", "b"]


def test_limit_follows_the_source_unless_it_is_given(tokenizers):
    decoding = {"max_length_ratio": 0.5, "max_length_offset": 1, "num_beams": 1}
    translator = Translator(CopyModel(tokenizers.source.vocabulary_size), tokenizers)
    translator.decoding = DecodingConfig(**decoding)
    cut = translator.translate(["abcde"])[0][0]
    length = len(tokenizers.source.encode("abcde")) + 1
    assert len(cut.ids) == length // 2 + 1
    assert not cut.finished
    whole = translator.translate(["abcde"], max_length=length)[0][0]
    assert (whole.text, whole.finished) == ("abcde", True)
    assert len(translator.translate(["abcde"], max_length=2)[0][0].ids) == 2


def test_min_length_keeps_outputs_from_ending_early(translator):
    found = translator.translate(["b"], num_beams=1, min_length=6)[0][0]
    assert len(found.ids) >= 6
    assert END_ID not in found.ids[:5]


def test_sources_longer_than_the_positions_are_cut_with_a_warning(tokenizers):
    model = CopyModel(tokenizers.source.vocabulary_size, max_positions=8)
    translator = Translator(model, tokenizers)
    with pytest.warns(UserWarning, match="1 of 2 sources.*more than the 8 tokens"):
        found = translator.translate(["abcde" * 20, "b"], num_beams=1, max_length=200)
    assert found[0][0].truncated_source and not found[1][0].truncated_source
    assert found[0][0].source_tokens[-1] == "</s>"
    assert len(found[0][0].source_tokens) == 8
    assert len(found[0][0].ids) <= 8
    assert found[1][0].text == "b"
    with pytest.warns(UserWarning, match="1 of 1 targets"):
        assert translator.score(["b"], ["abcde" * 20])[0].num_tokens == 8


def test_stream_is_read_chunk_by_chunk(translator):
    read = []

    def lines():
        for text in ["a", "", "b", "c", "d"]:
            read.append(text)
            yield text

    stream = translator.translate_lines(lines(), chunk_size=2, num_beams=1)
    assert next(stream)[0].text == "a"
    assert len(read) == 2
    assert [found[0].text for found in stream] == ["", "b", "c", "d"]
    with pytest.raises(ValueError, match="`chunk_size`.*chunk_size=0"):
        next(translator.translate_lines([], chunk_size=0))


def test_progress_adds_up_to_the_number_of_texts(translator):
    counts = []
    translator.translate(["a", "", "b" * 30], num_beams=1, progress=counts.append)
    assert sum(counts) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "`num_beams` must be a whole number of at least 1.*=0"),
        ({"num_beams": 1.5}, "`num_beams` must be a whole number.*=1.5"),
        ({"num_beams": True}, "`num_beams` must be a whole number.*=True"),
        ({"n_best": 0}, "`n_best` must be a whole number of at least 1.*=0"),
        ({"n_best": 3, "num_beams": 2}, "`n_best`.*n_best=3, num_beams=2"),
        ({"max_length": 0}, "`max_length` must be a whole number of at least 1.*=0"),
        ({"min_length": -1}, "`min_length` must be a whole number of at least 0.*=-1"),
        ({"max_length": 2, "min_length": 3}, "max_length=2, min_length=3"),
        ({"length_penalty": -0.1}, "`length_penalty` must be a finite.*=-0.1"),
        ({"length_penalty": float("nan")}, "`length_penalty` must be a finite.*=nan"),
        ({"batch_tokens": 0}, "`batch_tokens` must be a whole number.*=0"),
        ({"temperature": -1}, "`temperature` must be a finite number.*=-1"),
        ({"top_p": 2, "temperature": 1}, "`top_p` must lie between.*top_p=2"),
        ({"temperature": 1.0, "num_beams": 2}, "`num_beams` must be 1 where tokens"),
        ({"mbr_samples": 0}, "`mbr_samples` must be a whole.*at least 1.*samples=0"),
        ({"mbr_samples": -2}, "`mbr_samples` must be a whole number.*samples=-2"),
        ({"mbr_samples": 1.5, "top_p": 0.9}, "`mbr_samples` must be.*samples=1.5"),
        ({"temperature": "1"}, "`temperature` must be a finite number.*='1'"),
        ({"diversity_penalty": -1}, "`diversity_penalty` must be a finite.*=-1"),
        ({"seed": 1.5}, "`seed` must be one whole number.*seed=1.5"),
        ({"seed": "7", "temperature": 1}, "`seed` must be one whole.*seed='7'"),
        ({"seed": [True], "temperature": 1}, r"`seed` must.*seed=\[True\]"),
        ({"mbr_samples": 8}, "`mbr_samples` needs a `temperature`.*temperature=0"),
        ({"seed": [1, 2], "temperature": 1}, "one for each text.*2 for 1 texts"),
        ({"required": []}, "`required` must hold one entry for each text.*0 for 1"),
        ({"required": [["x"]]}, "target tokenizer can write.*'x', which has an unk"),
        ({"banned": [[""]]}, "target tokenizer can write.*'', which has no piece"),
        ({"min_length_ratio": -1}, "`min_length_ratio` must be a finite.*=-1"),
    ],
)
def test_options_out_of_range_are_refused_by_name_and_value(
    translator, options, message
):
    with pytest.raises(ValueError, match=message):
        translator("a", **options)


def test_one_string_or_other_types_in_place_of_texts_are_refused(translator):
    with pytest.raises(TypeError, match="`texts` must be a list of strings.*'abc'"):
        translator.translate("abc")
    with pytest.raises(TypeError, match="at index 1: None"):
        translator(["a", None])
    with pytest.raises(TypeError, match="at index 0: b'a'"):
        translator.score([b"a"], ["a"])


def test_perplexity_is_from_totals_over_all_tokens(translator):
    pairs = [("ab", "ab"), ("abcde", "edcba"), ("b", "")]
    scores = translator.score(*map(list, zip(*pairs, strict=True)))
    total = sum(score.log_prob for score in scores)
    tokens = sum(score.num_tokens for score in scores)
    assert translator.perplexity(pairs) == pytest.approx(np.exp(-total / tokens))
    # Batches of one pair each give the same.
    assert translator.perplexity(pairs, batch_tokens=1) == pytest.approx(
        translator.perplexity(pairs), rel=1e-5
    )
    assert perplexity([Score(-1e9, 1)]) == float("inf")
    with pytest.raises(ValueError, match="at least one pair"):
        translator.perplexity([])
    with pytest.raises(ValueError, match="1 sources, 2 targets"):
        translator.score(["a"], ["a", "b"])


def test_vocabulary_sizes_that_differ_are_refused_with_both(tokenizers):
    found = tokenizers.source.vocabulary_size
    with pytest.raises(ValueError, match=f"{found} pieces but the model expects 99"):
        Translator(CopyModel(99), tokenizers)


def test_loaded_run_answers_and_scores_like_its_own_model_also_when_moved(
    tiny_run, tmp_path
):
    first = load(tiny_run).translate(["déca", "", "b"], num_beams=2, n_best=2)
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(tiny_run, moved)
    shutil.rmtree(tiny_run)
    assert load(moved).translate(["déca", "", "b"], num_beams=2, n_best=2) == first


def test_scores_of_a_real_model_are_those_of_teacher_forcing(tiny_run):
    translator = load(tiny_run)
    texts = ["déca", "b c"]
    found = translator.translate(texts, num_beams=3, n_best=2, max_length=6)
    sources = [
        [*translator.tokenizers.source.encode(text), END_ID]
        for text, hypotheses in zip(texts, found, strict=True)
        for _ in hypotheses
    ]
    flat = [hypothesis for hypotheses in found for hypothesis in hypotheses]
    scores = score_targets(
        translator.model,
        sources,
        [hypothesis.ids for hypothesis in flat],
        batch_tokens=64,
    )
    for hypothesis, score in zip(flat, scores, strict=True):
        assert hypothesis.log_prob == pytest.approx(score.log_prob, abs=1e-4)
        penalty = ((5 + len(hypothesis.ids)) / 6) ** translator.decoding.length_penalty
        assert hypothesis.score == pytest.approx(score.log_prob / penalty, abs=1e-4)


def test_missing_and_damaged_parts_of_a_run_are_named(tiny_run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.*does not exist"):
        load(tmp_path / "nowhere")
    model = tiny_run / "model.keras"
    model.write_bytes(model.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"model\.keras cannot be loaded"):
        load(tiny_run)
    model.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.keras does not exist"):
        load(tiny_run)


def test_tokenizer_of_another_run_is_refused(tiny_run, tokenizers):
    shutil.rmtree(tiny_run / "tokenizer")
    tokenizers.save(tiny_run / "tokenizer")
    size = tokenizers.source.vocabulary_size
    with pytest.raises(ValueError, match=f"tiny_run: The source.*has {size} pieces"):
        load(tiny_run)


def test_inference_batches_have_every_row_once_in_few_shapes():
    lengths = [int(n) for n in np.random.default_rng(3).integers(1, 90, 500)]
    batches = list(inference_batches(lengths, batch_tokens=512, max_width=90))
    assert sorted(row for batch in batches for row in batch.rows) == list(range(500))
    for rows, height, width in batches:
        assert len(rows) <= height and height * width <= 512
        assert max(lengths[row] for row in rows) <= width <= 90
    assert len({(height, width) for _, height, width in batches}) <= 20
    assert max(lengths) == lengths[batches[0].rows[0]]


def test_exact_batches_are_no_larger_than_their_rows():
    lengths = [int(n) for n in np.random.default_rng(3).integers(1, 90, 500)]
    rounded = inference_batches(lengths, batch_tokens=512, max_width=90)
    exact = inference_batches(lengths, batch_tokens=512, max_width=90, exact=True)
    for few, own in zip(rounded, exact, strict=True):
        assert few.rows == own.rows
        assert own.height == len(own.rows)
        assert own.width == max(lengths[row] for row in own.rows)


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [(1, "", 2), (4, "", 2), (4, "1", 4), (4, "2", 2), (32, "4", 8), (32, "1", 8)],
)
def test_as_many_batches_at_once_as_cores_are_free(
    cores, threads, expected, monkeypatch
):
    monkeypatch.setattr(batching, "num_cores", lambda: cores)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", threads)
    running, most, lock = set(), [0], threading.Lock()

    def work(item):
        with lock:
            running.add(item)
            most[0] = max(most[0], len(running))
        time.sleep(0.02)
        with lock:
            running.discard(item)

    list(side_by_side(work, range(24)))
    assert most[0] == expected


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 1), (8, 1), (64, 8)])
def test_an_operation_has_few_threads_where_files_are_decoded(
    cores, expected, monkeypatch
):
    monkeypatch.setattr(batching, "num_cores", lambda: cores)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "")  # so that it is undone
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
    import_backend(file=True)
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == str(expected)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    import_backend(file=True)
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "3"


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own():
    alone, together = inference_batches(
        [100] + [10] * 31, batch_tokens=4096, max_width=None
    )
    assert (alone.rows, alone.width) == ([0], 128)
    assert (len(together.rows), together.width) == (31, 12)
    batches = list(inference_batches([3, 100], batch_tokens=10))
    assert [batch.rows for batch in batches] == [[1], [0]]
    assert batches[0].width >= 100


def test_lengths_are_rounded_up_to_few_values():
    assert [round_up(n) for n in (1, 8, 9, 13, 17, 25, 33, 49, 97)] == [
        *(8, 8, 12, 16, 24, 32, 48, 64, 128)
    ]
    assert round_up(33, most=40) == 40


def test_rows_are_padded_at_the_right():
    expected = [[4, 5, 0], [6, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(pad_rows([[4, 5], [6]], 3, 3), expected)


@pytest.fixture(scope="module")
def soft(tokenizers):
    """A model that is not sure of what it copies."""
    model = CopyModel(tokenizers.source.vocabulary_size, strength=2.0)
    return Translator(model, tokenizers)


def test_samples_follow_their_seed_and_not_the_batch_or_the_chunk(soft):
    texts = ["abc", "b", "dé ca", "a" * 20]
    options = {"temperature": 1.0, "n_best": 3}

    def drawn(texts=texts, **more):
        found = soft.translate(texts, **options, **more)
        return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found]

    first = drawn(seed=5)
    assert all(len(ids) == 3 for ids in first)
    assert first == drawn(seed=5, batch_tokens=1)
    assert first != drawn(seed=6)
    assert drawn() != drawn()
    streamed = soft.translate_lines(iter(texts), seed=5, chunk_size=3, **options)
    assert first == [[hypothesis.ids for hypothesis in found] for found in streamed]
    assert drawn(texts[1:2], seed=[row_seeds(5, 4)[1]]) == first[1:2]


def test_sampling_settings_alone_mean_a_temperature_of_1(soft):
    options = {"seed": 1, "n_best": 4}
    assert soft.translate(["abc"], top_p=0.9, **options) == soft.translate(
        ["abc"], top_p=0.9, temperature=1.0, **options
    )
    assert soft("abc", top_k=1) == soft("abc", num_beams=1)
    assert soft("abc", temperature=0) == soft("abc")


def test_prefixes_and_phrases_are_held_by_each_text(soft):
    texts = ["abc", "b", "dé ca"]
    found = soft.translate(
        texts,
        num_beams=4,
        n_best=2,
        prefixes=["d", "", "é"],
        required=[["ed"], [["ac", "ca"], "d"], []],
        banned=[["a", "b"], [], ["d"]],
    )
    for hypotheses, prefix in zip(found, ["d", "", "é"], strict=True):
        assert all(h.text.startswith(prefix) for h in hypotheses)
    for h in found[0]:
        assert "ed" in h.text
        assert not {"a", "b"} & set(h.text)
    for h in found[1]:
        assert "d" in h.text
        assert "ac" in h.text or "ca" in h.text
    assert not any("d" in h.text for h in found[2])


def test_constraints_go_line_by_line_beside_a_stream(soft):
    lines = ["abc", "b", "a"]
    constraints = [{"prefix": "d"}, {}, {"required": ["é"]}]
    found = list(
        soft.translate_lines(lines, constraints=constraints, chunk_size=2, num_beams=3)
    )
    assert found[0][0].text.startswith("d")
    assert found[1][0].text == "b"
    assert "é" in found[2][0].text
    with pytest.raises(ValueError, match="constraints for each text.*1 for the last"):
        list(soft.translate_lines(lines, constraints=[{}, {}, {}][:1], chunk_size=2))
    with pytest.raises(ValueError, match=r"nothing but.*Received: \{'prefixes': 'a'\}"):
        list(soft.translate_lines(["a"], constraints=[{"prefixes": "a"}]))


def test_phrases_that_do_not_fit_are_refused_with_the_text(soft):
    with pytest.raises(ValueError, match="source at index 1: 5 tokens.*where 4"):
        soft.translate(["b", "a"], required=[[], ["abcde"]], max_length=5)
    with pytest.raises(ValueError, match="`prefixes` must fit.*index 1: 4 tokens.*3"):
        soft.translate(["b", "a"], prefixes=["", "abc"], max_length=3)
    with pytest.raises(ValueError, match="`prefixes` must fit.*index 0: 4 tokens.*3"):
        list(soft.stream("b", prefix="abc", max_length=3))
    # Of a blank text nothing is asked.
    found = soft.translate(["b", ""], prefixes=["ab", "abc"], max_length=3)
    assert [hypotheses[0].text for hypotheses in found] == ["ab", ""]


def test_alternatives_begin_differently(soft):
    found = soft.translate(["abc"], n_best=4, alternatives=True)[0]
    assert len({h.tokens[:1] for h in found}) == 4


def test_token_scores_and_alignment_belong_to_the_tokens(soft):
    found = soft.translate(
        ["ab"], num_beams=3, return_token_scores=True, return_attention=True
    )[0][0]
    assert len(found.token_scores) == len(found.tokens)
    assert sum(found.token_scores) == pytest.approx(found.log_prob, abs=1e-4)
    assert found.alignment == tuple(range(len(found.tokens)))


def test_unknown_tokens_are_replaced_by_the_words_they_attended_to():
    hypothesis = Hypothesis(
        text="x",
        score=0.0,
        log_prob=0.0,
        ids=(7, 1, 8, END_ID),
        tokens=("▁see", "<unk>", "▁now", "</s>"),
        source_tokens=("▁ja", "▁Q", "ux", "</s>"),
        attention=np.array(
            [[1.0, 0, 0, 0], [0, 0.2, 0.8, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
        ),
    )
    assert with_unknown_replaced(hypothesis).text == "see Qux now"
    known = replace(hypothesis, ids=(7, 9, 8, END_ID))
    assert with_unknown_replaced(known) is known
    with pytest.raises(ValueError, match="needs a model that has attention"):
        with_unknown_replaced(replace(hypothesis, attention=None))


def test_the_sample_that_agrees_most_is_chosen():
    samples = [
        Hypothesis(text, score, score)
        for text, score in (
            ("the cat sat", -3.0),
            ("dogs", -1.0),
            ("the cat sat down", -4.0),
            ("the cat", -5.0),
            ("the cat sat", -3.0),
        )
    ]
    found = by_agreement(samples)
    metric = CHRF()

    def mean(text):
        return sum(metric.sentence_score(text, [s.text]).score for s in samples) / 5

    expected = sorted({sample.text for sample in samples}, key=lambda t: -mean(t))
    assert [hypothesis.text for hypothesis in found] == expected
    assert expected[-1] == "dogs"
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(mean(hypothesis.text))


def test_mbr_draws_and_returns_different_texts(soft):
    found = soft.translate(["abc"], temperature=1.0, mbr_samples=20, n_best=3, seed=1)
    texts = [h.text for h in found[0]]
    assert len(set(texts)) == 3
    assert all(0 <= h.score <= 100 for h in found[0])
    assert found == soft.translate(
        ["abc"], temperature=1.0, mbr_samples=20, n_best=3, seed=1
    )


def test_settings_of_the_run_reach_the_search(tokenizers):
    model = CopyModel(tokenizers.source.vocabulary_size, strength=2.0)
    config = DecodingConfig(no_repeat_ngram_size=1, num_beams=2)
    translator = Translator(model, tokenizers)
    options = {"num_beams": 1, "min_length": 4}
    assert translator("aaa", **options) == "aaa"
    translator.decoding = config
    assert translator("aaa", **options).count("a") == 1
    assert translator("aaa", no_repeat_ngram_size=0, **options) == "aaa"
    with pytest.raises(TypeError, match="`no_repeat` of decoding"):
        translator("aaa", no_repeat=3)


@pytest.mark.parametrize(
    "options",
    [
        {"min_length": 4},
        {"temperature": 1.0, "seed": 3},
        {"prefix": "dé", "banned": ["b", "a"]},
    ],
)
def test_streamed_pieces_are_the_translation(soft, options):
    for text in ("abc", "dé ca b", "b"):
        pieces = list(soft.stream(text, **options))
        assert all(pieces)
        asked = dict(options)
        if "prefix" in asked:
            asked |= {"prefixes": [asked.pop("prefix")], "banned": [asked["banned"]]}
        if "temperature" not in asked:
            asked["num_beams"] = 1
        assert "".join(pieces) == soft([text], **asked)[0]
    assert list(soft.stream(" ")) == []
    with pytest.raises(TypeError, match="at index 0: 5"):
        next(soft.stream(5))
    with pytest.raises(ValueError, match="`num_beams` must be 1 to stream"):
        next(soft.stream("a", num_beams=3))


def test_sentences_are_decoded_alone_and_put_together_again(translator, soft):
    lines = ["abc. De cab.", "", "b", "é? A! Bca"]
    found = list(translator.translate_lines(lines, by_sentence=True, num_beams=1))
    parts = [["abc.", "De cab."], [""], ["b"], ["é?", "A!", "Bca"]]
    for (together,), sentences in zip(found, parts, strict=True):
        alone = [translator.translate([s], num_beams=1)[0][0] for s in sentences]
        assert together.text == " ".join(part.text for part in alone)
        total = sum(part.log_prob for part in alone)
        assert together.log_prob == pytest.approx(total, abs=1e-4)
        assert together.ids.count(END_ID) <= 1
    options = {"by_sentence": True, "temperature": 1.0, "seed": 4}
    drawn = [h[0].ids for h in soft.translate_lines(lines, chunk_size=1, **options)]
    assert drawn == [h[0].ids for h in soft.translate_lines(lines, **options)]
    with pytest.raises(ValueError, match="one output for each text.*n_best=2"):
        list(soft.translate_lines(["a"], by_sentence=True, n_best=2))
    with pytest.raises(ValueError, match="Received: n_best=1, prefixes"):
        list(
            soft.translate_lines(["a"], by_sentence=True, constraints=[{"prefix": "a"}])
        )


def test_work_is_done_ahead_and_handed_over_in_order():
    begun, both = [], threading.Barrier(2, timeout=30)

    def work(item):
        begun.append(item)
        if item < 2:
            both.wait()  # only two at once get through
        return item * item

    results = side_by_side(work, iter(range(5)))
    assert next(results) == (0, 0)
    assert sorted(begun)[:2] == [0, 1]
    assert 4 not in begun
    assert list(results) == [(1, 1), (2, 4), (3, 9), (4, 16)]


def test_work_ahead_passes_errors_on_and_ends():
    def work(item):
        if item == 1:
            raise ValueError("no such item: 1")
        return item

    results = side_by_side(work, range(4))
    assert next(results) == (0, 0)
    with pytest.raises(ValueError, match="no such item: 1"):
        list(results)
