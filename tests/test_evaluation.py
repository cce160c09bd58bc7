"""Scores by hand, and the inputs that other tools choke on."""

import json
from types import SimpleNamespace

import pytest
from sacrebleu.metrics import BLEU, CHRF

from keras_seq2seq.evaluation import (
    bleu_tokenizer,
    evaluate,
    evaluate_texts,
    exact_match,
    result_lines,
    token_error_rate,
    word_error_rate,
    write_results,
)
from keras_seq2seq.scoring import Score

HYPOTHESES = ["the cat sat on the mat", "a dog ran in the long street"]
REFERENCES = ["the cat sat on a mat", "a dog ran along the long street"]


def test_scores_are_those_of_sacrebleu_with_its_signature():
    result = evaluate_texts(HYPOTHESES, REFERENCES)
    bleu = BLEU(tokenize="13a")
    assert result["bleu"] == bleu.corpus_score(HYPOTHESES, [REFERENCES]).score
    assert result["bleu_signature"] == bleu.get_signature().format()
    assert "tok:13a" in result["bleu_signature"]
    assert result["chrf"] == CHRF().corpus_score(HYPOTHESES, [REFERENCES]).score
    assert result["exact_match"] == 0.0
    assert result["wer"] == 100.0
    assert result["sentences"] == 2


def test_shares_by_hand():
    hypotheses, references = ["k a t", "d O", "b i"], ["k a t", "d O g", "z i t"]
    assert exact_match(hypotheses, references) == pytest.approx(100 / 3)
    assert word_error_rate(hypotheses, references) == pytest.approx(200 / 3)
    # One deletion, then a substitution and a deletion, over 9 phones.
    assert token_error_rate(hypotheses, references) == pytest.approx(100 * 3 / 9)


def test_token_error_rate_counts_insertions_and_may_pass_one_hundred():
    assert token_error_rate(["a b c d"], ["a"]) == 300.0
    assert token_error_rate([""], ["a b"]) == 100.0
    assert token_error_rate(["a"], [""]) == 100.0
    assert token_error_rate([""], [""]) == 0.0


def test_one_string_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match="`hypotheses` must be a list.*'a b'"):
        evaluate_texts("a b", ["a b"])
    with pytest.raises(TypeError, match="`references` must be a list.*'a b'"):
        evaluate_texts(["a b"], "a b")


def test_equivalent_forms_of_references_give_the_same_numbers():
    flat = evaluate_texts(HYPOTHESES, REFERENCES)
    nested = evaluate_texts(HYPOTHESES, [[text] for text in REFERENCES])
    assert flat == nested


def test_numbers_of_references_may_differ_between_sentences():
    references = [["x", HYPOTHESES[0]], REFERENCES[1]]
    result = evaluate_texts(HYPOTHESES, references)
    assert result["exact_match"] == 50.0
    streams = [["x", REFERENCES[1]], [HYPOTHESES[0], None]]
    assert result["bleu"] == BLEU().corpus_score(HYPOTHESES, streams).score


def test_count_mismatch_names_both_counts():
    with pytest.raises(ValueError, match="3 hypotheses, 2 references"):
        evaluate_texts(["a", "b", "c"], ["a", "b"])
    with pytest.raises(ValueError, match="`hypotheses` is empty"):
        evaluate_texts([], [])
    with pytest.raises(ValueError, match="index 1: an empty list"):
        evaluate_texts(["a", "b"], ["a", []])


@pytest.mark.parametrize(
    ("hypotheses", "references", "exact", "empty"),
    [
        (["", "b"], ["a", "b"], 50.0, (1, 0)),
        (["a", "b"], ["", "b"], 50.0, (0, 1)),
        (["", ""], ["", ""], 100.0, (2, 2)),
    ],
)
def test_empty_lines_count_and_never_stop_the_scoring(
    hypotheses, references, exact, empty
):
    result = evaluate_texts(hypotheses, references)
    assert result["exact_match"] == exact
    assert (result["empty_hypotheses"], result["empty_references"]) == empty
    assert 0.0 <= result["bleu"] <= 100.0


@pytest.mark.parametrize(
    ("text", "tokenizer"),
    [
        ("我们明天去海边看日出。", "zh"),
        ("พรุ่งนี้เราจะไปทะเล", "char"),
        ("we go to the sea tomorrow", "13a"),
        ("мы завтра поедем к морю", "13a"),
    ],
)
def test_script_of_the_references_chooses_a_tokenizer_where_equal_text_scores_100(
    text, tokenizer
):
    result = evaluate_texts([text], [text])
    assert result["bleu"] == pytest.approx(100.0)
    assert f"tok:{tokenizer}|" in result["bleu_signature"]


@pytest.mark.parametrize(
    ("language", "text"), [("ja", "あした海へ行きます。"), ("ko", "내일 바다로.")]
)
def test_missing_tokenizer_of_a_language_is_explained(monkeypatch, language, text):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = evaluate_texts([text], [text])
    assert result["bleu"] == pytest.approx(100.0)
    assert "tok:char" in result["bleu_signature"]
    assert f"pip install 'sacrebleu[{language}]'" in result["notes"][0]
    with pytest.raises(ValueError, match=f"{language}-mecab.*not installed"):
        bleu_tokenizer(f"{language}-mecab", None, [[text]])


def test_texts_too_short_for_bleu_are_noted():
    result = evaluate_texts(["good day"], ["good day"])
    assert (result["bleu"], result["exact_match"]) == (0.0, 100.0)
    assert "four tokens" in result["notes"][0]
    assert not evaluate_texts(["a b c d"], ["a b c d"])["notes"]


def test_texts_may_come_from_an_iterator():
    found = evaluate_texts(iter(HYPOTHESES), (text for text in REFERENCES))
    assert found == evaluate_texts(HYPOTHESES, REFERENCES)


def test_wrong_tokenizer_for_the_script_is_noted():
    text = "我们明天去海边看日出。"
    result = evaluate_texts([text], [text], tokenize="13a")
    assert result["bleu"] == 0.0
    assert "use tokenize='zh'" in result["notes"][0]
    assert result["chrf"] == 100.0


def test_unknown_tokenizer_or_metric_names_the_valid_ones():
    with pytest.raises(ValueError, match="13a, intl.*'moses'"):
        evaluate_texts(["a"], ["a"], tokenize="moses")
    with pytest.raises(ValueError, match="bleu, chrf.*'rouge'"):
        evaluate_texts(["a"], ["a"], metrics=["bleu", "rouge"])


def test_tokenized_text_is_noted():
    notes = evaluate_texts(["hello , world ."], ["hello, world."])["notes"]
    assert notes == [
        "1 of 1 hypotheses end in ' .' and look tokenized: BLEU of tokenized text "
        "cannot be compared with BLEU of plain text."
    ]


@pytest.mark.parametrize("text", ["\u2581a\u2581b", "a ##b", "a@@ b", "a <unk> b"])
def test_model_tokens_left_in_text_are_noted(text):
    assert "detokenize" in evaluate_texts([text], ["a b"])["notes"][0]


def test_kinds_of_spaces_and_normal_forms_make_no_difference():
    results = [
        evaluate_texts([f"une voiture{space}? oui, déjà"], ["une voiture ? oui, déjà"])
        for space in (" ", "\u00a0", "\u202f", "  ")
    ]
    assert all(result == results[0] for result in results)
    assert results[0]["exact_match"] == 100.0
    assert exact_match(["e\u0301te\u0301"], ["été"]) == 100.0


def test_lowercase_holds_for_every_metric_and_is_in_the_signature():
    upper = [text.upper() for text in HYPOTHESES]
    result = evaluate_texts(upper, HYPOTHESES, lowercase=True)
    assert result["bleu"] == pytest.approx(100.0)
    assert result["exact_match"] == 100.0
    assert "case:lc" in result["bleu_signature"]
    assert evaluate_texts(upper, HYPOTHESES)["exact_match"] == 0.0


def test_same_answer_to_everything_is_noted():
    references = [f"answer number {i}" for i in range(10)]
    notes = evaluate_texts(["yes"] * 9 + ["no"], references)["notes"]
    assert any("9 of 10 hypotheses are the same text, 'yes'" in note for note in notes)
    assert not evaluate_texts(["a b c d"] * 10, ["a b c d"] * 10)["notes"]


class EchoTranslator:
    """Answers with the source; each token of a target costs half a nat."""

    def translate(self, texts, **options):
        assert options == {"num_beams": 3}
        return [[SimpleNamespace(text=t, finished=t != "cut")] for t in texts]

    def score(self, sources, targets):
        return [Score(-0.5 * (len(t) + 1), len(t) + 1) for t in targets]


def test_evaluate_decodes_scores_and_takes_perplexity_from_token_totals():
    pairs = [("same", "same"), ("cut", "other")]
    result = evaluate(EchoTranslator(), pairs, metrics=("exact_match",), num_beams=3)
    assert result["exact_match"] == 50.0
    assert result["target_tokens"] == 11
    assert result["perplexity"] == pytest.approx(2.718281828**0.5)
    assert result["unfinished"] == 1
    assert "1 of 2 outputs were cut" in result["notes"][-1]


def test_evaluate_refuses_no_pairs_and_a_wrong_tokenizer_before_decoding():
    with pytest.raises(ValueError, match="at least one pair"):
        evaluate(EchoTranslator(), [])
    with pytest.raises(ValueError, match="'moses'"):
        evaluate(None, [("a", "a")], tokenize="moses")


def test_table_shows_each_number_beside_its_signature(tmp_path):
    result = evaluate(EchoTranslator(), [("same", "same")] * 2, num_beams=3)
    lines = result_lines(result)
    bleu = next(line for line in lines if line.startswith("BLEU"))
    assert bleu.split() == ["BLEU", f"{result['bleu']:.2f}", result["bleu_signature"]]
    assert any(line.split()[:4] == ["exact", "match", "100.00", "%"] for line in lines)
    assert any("perplexity" in line and "1.649" in line for line in lines)
    write_results(tmp_path / "results.json", result)
    saved = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert saved == result
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
