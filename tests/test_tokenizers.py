"""Tokenizers: what text becomes, what survives, and what can't be trained."""

import io
import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seq2seq.tokenizers import (
    END_ID,
    PAD_ID,
    START_ID,
    UNK_ID,
    Tokenizer,
    TokenizerPair,
)

LINES = [
    "the cat sat on the mat",
    "a dog ate the cold pie",
    'Hello, world! "It\'s" (ok)',
    "where was the cat on Monday?",
]
PAIRS = [("a b c", "x y"), ("b c a", "y x"), ("c a b", "x x y")]
TYPES = ("unigram", "bpe", "char", "word")
pytestmark = pytest.mark.filterwarnings("ignore:The texts allow:UserWarning")


def train(lines=LINES, **options):
    options.setdefault("vocabulary_size", 8000)
    return Tokenizer.train(lines, **options)


# Built once: with byte fallback any text is known, so that round trips can be exact.
ANY = {
    form: train(normalization=form, byte_fallback=True, vocabulary_size=294)
    for form in ("nfc", "nfkc", "identity")
}


@pytest.mark.parametrize("model_type", TYPES)
def test_special_ids_are_fixed_and_text_comes_back(model_type):
    tokenizer = train(model_type=model_type)
    ids = tokenizer.encode(LINES[0])
    assert (PAD_ID, UNK_ID, START_ID, END_ID) == (0, 1, 2, 3)
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert min(ids) > 3
    assert tokenizer.decode(ids) == LINES[0]
    assert tokenizer.encode(LINES) == [tokenizer.encode(line) for line in LINES]
    assert tokenizer.decode(tokenizer.encode(LINES)) == LINES
    assert tokenizer.decode(np.array(ids, np.int32)) == LINES[0]


def test_word_and_char_models_cut_as_their_names_say():
    words = train(["K AE T", "D AO G", "K AE D"], model_type="word")
    assert words.pieces(words.encode("D AE T")) == ["▁D", "▁AE", "▁T"]
    characters = train(["abc"], model_type="char")
    assert characters.pieces(characters.encode("cab")) == ["▁", "c", "a", "b"]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_vocabulary_larger_than_the_corpus_allows_becomes_the_largest(model_type):
    # B22
    with pytest.warns(UserWarning, match=r"allow (\d+) .*vocabulary_size=8000"):
        tokenizer = train(model_type=model_type)
    assert 4 < tokenizer.vocabulary_size < 200
    assert max(max(ids) for ids in tokenizer.encode(LINES)) < tokenizer.vocabulary_size
    assert tokenizer.pieces([tokenizer.vocabulary_size - 1])
    with pytest.raises(ValueError, match=f"Received: {tokenizer.vocabulary_size}"):
        tokenizer.pieces([tokenizer.vocabulary_size])


@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char"])
def test_vocabulary_smaller_than_the_alphabet_names_the_minimum(model_type):
    # B23; 400 characters, the space piece and ids 0 to 3 make 405.
    han = "".join(map(chr, range(0x4E00, 0x4E00 + 400)))
    lines = [han[start : start + 20] for start in range(0, 400, 20)]
    options = {"model_type": model_type, "normalization": "identity"}
    with pytest.raises(ValueError, match="at least 405 .* Received: 50"):
        train(lines, vocabulary_size=50, **options)
    with pytest.raises(ValueError, match="at least 405 .* Received: 404"):
        train(lines, vocabulary_size=404, **options)
    assert train(lines, vocabulary_size=405, **options).vocabulary_size == 405


def test_coverage_and_byte_fallback_make_room_for_a_large_alphabet():
    # B23
    rare = [chr(0x4E00 + index) for index in range(20)]
    lines = ["aaa bbb ccc ddd"] * 200 + rare
    tokenizer = train(
        lines, vocabulary_size=290, character_coverage=0.98, byte_fallback=True
    )
    assert tokenizer.vocabulary_size <= 290
    assert tokenizer.decode(tokenizer.encode("aa " + rare[0])) == "aa " + rare[0]


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("model_type", TYPES)
def test_typed_special_tokens_never_become_control_ids(model_type, byte_fallback):
    # B24
    text = "hi [PAD] </s> [END] <s> <pad> <unk> <user> <0x41> there"
    tokenizer = train(
        [*LINES, text, text],
        model_type=model_type,
        byte_fallback=byte_fallback and model_type != "word",
        symbols=["<user>", "[END]"],
    )
    for spelling in (text, text.replace(" ", ""), "<s></s><pad><user>", "▁<s>"):
        ids = tokenizer.encode(spelling)
        assert not {PAD_ID, START_ID, END_ID, 4, 5} & set(ids), spelling


@given(st.text() | st.text("</s>up adk⁇▁[]\0\n"))
def test_no_text_yields_a_control_id(text):
    for tokenizer in ANY.values():
        assert min(tokenizer.encode(text), default=9) > END_ID


@pytest.mark.parametrize("model_type", TYPES)
def test_decode_leaves_specials_out_and_stops_at_end(model_type):
    # B25, B33
    tokenizer = train(["a b", "b a"], model_type=model_type)
    a_b = tokenizer.encode("a b")
    ids = [START_ID, *a_b, END_ID, PAD_ID, PAD_ID]
    assert tokenizer.decode(ids) == "a b"
    assert tokenizer.decode([*ids, *a_b]) == "a b"
    shown = tokenizer.decode(ids, keep_specials=True)
    assert shown == "<s> a b </s> <pad> <pad>"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([END_ID, *a_b]) == ""


@pytest.mark.parametrize("received", [-1, 10**6])
def test_decode_names_an_id_outside_the_vocabulary(received):
    tokenizer = ANY["nfc"]
    with pytest.raises(ValueError, match=f"between 0 and .* Received: {received}"):
        tokenizer.decode([4, received])


def test_nfkc_and_nfc_follow_unicode_and_identity_changes_nothing():
    # B27; U+FE30 is two dots.
    text = "Wait\u2026 \ufb01ne \u00bd \u338f \ufe30"
    assert ANY["nfkc"].normalize(text) == "Wait... fine 1\u20442 kg .."
    for form in ("nfc", "identity"):
        assert ANY[form].normalize(text) == text
        assert ANY[form].decode(ANY[form].encode(text)) == text


def test_white_space_is_collapsed_or_kept_as_the_normal_form_says():
    # B28
    text = "  two  spaces\tand tab\nnew line "
    collapsed = "two spaces and tab new line"
    assert ANY["nfc"].decode(ANY["nfc"].encode(text)) == collapsed
    assert ANY["identity"].decode(ANY["identity"].encode(text)) == text
    no_break = "10\u00a0km\u202f?"
    assert ANY["nfc"].decode(ANY["nfc"].encode(no_break)) == no_break
    assert ANY["nfkc"].decode(ANY["nfkc"].encode(no_break)) == "10 km ?"


@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char"])
@pytest.mark.parametrize(
    "text",
    [
        'Hello, world! "It\'s" (ok)',  # B29
        "中文文本",  # B30
        "ภาษาไทย",
        "日本語ABC",
        "バス",  # B31
        "हिन्दी",
        "café",
        "\u0d9a\u0dca\u200d\u0dba",  # B16
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f468\u200d\U0001f469",
        "\u200f(\u05e9\u05dc\u05d5\u05dd)",  # B17
        "probable \u06db\u00bb",
        "¿qué?",  # B33
    ],
)
def test_text_of_the_training_comes_back_unchanged(model_type, text):
    tokenizer = train([text, *LINES], model_type=model_type)
    ids = tokenizer.encode(text)
    assert UNK_ID not in ids
    assert tokenizer.decode(ids) == text


def test_lower_casing_knows_unicode_and_keeps_accents():
    # B31
    tokenizer = train(["école žena"], lowercase=True, model_type="char")
    assert tokenizer.normalize("ÉCOLE E\u0301COLE Žena バス") == "école école žena バス"
    assert tokenizer.encode("ÉCOLE Z\u030cENA") == tokenizer.encode("école žena")
    assert train(["École"]).normalize("École") == "École"


def test_one_emoji_leaves_the_rest_of_the_word_known():
    # B32
    tokenizer = train(["hello there"])
    ids = tokenizer.encode("hello\U0001f600")
    assert ids[:-1] == tokenizer.encode("hello")
    assert ids[-1] == UNK_ID
    assert tokenizer.decode(ids) == "hello\u2047"
    assert ANY["nfc"].decode(ANY["nfc"].encode("hello\U0001f600")) == "hello\U0001f600"


def test_unknown_words_stand_apart_in_decoded_text():
    tokenizer = train(["a b"], model_type="word")
    assert tokenizer.decode(tokenizer.encode("a zzz b")) == "a ⁇ b"
    assert tokenizer.decode(tokenizer.encode("zzz b")) == "⁇ b"


def test_nul_surrogates_and_bad_bytes_do_no_harm(tmp_path):
    # B34, B35: the model of a corpus with NUL loads in a fresh process.
    tokenizer = train(["a\0b", "\0"] * 10, model_type="char")
    assert tokenizer.encode("a\0b") == tokenizer.encode("ab")
    assert tokenizer.decode(tokenizer.encode("ab\ud800")) == "ab⁇"
    assert all(tokenizer.pieces(range(tokenizer.vocabulary_size)))
    path = tmp_path / "nul.model"
    path.write_bytes(tokenizer.model_bytes)
    program = (
        "import sys, sentencepiece\n"
        "p = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])\n"
        "print(p.encode('ab'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        check=True,
        text=True,
        encoding="utf-8",
    )
    assert json.loads(answer.stdout) == tokenizer.encode("ab")


def test_controls_and_byte_order_marks_are_no_pieces():
    # B17, B04
    lines = ["x\u0083y", "\ufeffhello there", "hello\ufeff you"]
    tokenizer = train(lines, model_type="char")
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    assert len(set(pieces)) == len(pieces)
    assert not any(unicodedata.category(c) == "Cc" for p in pieces for c in p)
    assert tokenizer.encode("\ufeffhello") == tokenizer.encode("hello")
    assert tokenizer.encode("x\u0083y") == tokenizer.encode("xy")


def test_symbols_are_ids_and_text_between_them_encodes_as_alone():
    # B36
    tokenizer = train(symbols=["<user>", "Mary Ann", "a,b"])
    assert tokenizer.symbols == {"<user>": 4, "Mary Ann": 5, "a,b": 6}
    one, two = tokenizer.encode(["the cat", "Mary Ann"])
    assert not {4, 5, 6} & {*one, *two}
    ids = [4, *one, 5, *one]
    assert tokenizer.decode(ids) == "the cat the cat"
    shown = tokenizer.decode(ids, keep_specials=True)
    assert shown == "<user> the cat Mary Ann the cat"


@pytest.mark.parametrize("symbols", [[""], ["<s>"], ["<a>", "<a>"], ["a\tb"]])
def test_bad_symbols_are_refused_by_name(symbols):
    with pytest.raises(ValueError, match="`symbols` must be .* Received: "):
        train(symbols=symbols)


@pytest.mark.parametrize(
    "text", ["\u011b", "Vi\u1ec7t \u1ec6", "한글 값", "ά ᾧ", "ǭ Å"]
)
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("form", ["nfc", "nfkc"])
def test_composed_and_decomposed_text_have_equal_ids(text, lowercase, form):
    # B15
    tokenizer = train([text], normalization=form, lowercase=lowercase)
    ids = tokenizer.encode(text)
    assert UNK_ID not in ids
    assert tokenizer.encode(unicodedata.normalize("NFD", text)) == ids
    expected = text.lower() if lowercase else text
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", expected)


def test_marks_in_any_order_compose():
    # B15; e with dot below and circumflex, in each way to spell it.
    for spelling in ("e\u0323\u0302", "e\u0302\u0323", "\u1eb9\u0302", "\u00ea\u0323"):
        assert ANY["nfc"].normalize(spelling) == "\u1ec7"
    assert ANY["nfkc"].normalize("\uff76\uff9e \uff21\u030a") == "\u30ac \u00c5"


# No marks that Unicode reorders: the rules compose what stands side by side.
LETTERS = st.text(
    st.characters(
        blacklist_categories=("Mn", "Cs", "Cc", "Cn", "Co"),
        blacklist_characters="\u2028\u2029\ufeff\u2581\uff9e\uff9f",
    ).filter(lambda character: not unicodedata.combining(character)),
    max_size=8,
)


@settings(max_examples=200)
@given(LETTERS)
def test_normal_forms_equal_those_of_unicode(text):
    for form, expected in (
        ("nfc", unicodedata.normalize("NFC", text)),
        ("nfkc", unicodedata.normalize("NFKC", text)),
    ):
        collapsed = " ".join(part for part in expected.split(" ") if part)
        composed = unicodedata.normalize("NFC", text)
        for typed in (composed, unicodedata.normalize("NFD", text)):
            assert ANY[form].normalize(typed) == collapsed


@settings(max_examples=200)
@given(
    st.text(st.characters(blacklist_characters="\0\u2581", blacklist_categories=["Cs"]))
)
def test_identity_round_trips_any_text(text):
    # Only white space alone has no ids.
    tokenizer = ANY["identity"]
    expected = text if text.strip() else ""
    assert tokenizer.decode(tokenizer.encode(text)) == expected


@given(st.text())
def test_decoding_and_encoding_again_changes_nothing(text):
    for tokenizer in ANY.values():
        decoded = tokenizer.decode(tokenizer.encode(text))
        expected = decoded if decoded.strip() else ""
        assert tokenizer.decode(tokenizer.encode(decoded)) == expected


@pytest.mark.parametrize("blank", ["", " ", "   ", "\t\n", "\u00a0", "\u2028", "\0"])
@pytest.mark.parametrize("form", ANY)
def test_blank_text_has_no_ids(blank, form):
    assert ANY[form].encode(blank) == []


def test_equal_texts_and_settings_give_equal_bytes():
    lines = [f"{a} {b} ride {c}" for a in "xyz" for b in "uvw" for c in "rst"]
    options = {"vocabulary_size": 20, "max_lines": 10}
    first = train(lines, seed=1, **options)
    assert train(iter(lines), seed=1, **options).fingerprint == first.fingerprint
    assert train(lines, seed=2, **options).fingerprint != first.fingerprint
    assert len(first.fingerprint) == 64
    assert b"rules" not in first.model_bytes  # the trainer's file of rules
    assert Tokenizer.from_bytes(first.model_bytes).encode("x") == first.encode("x")


def test_long_lines_are_cut_by_a_stated_limit_and_not_lost():
    # B13
    lines = ["ab cd"] * 20 + ["xyz " * 25_000]
    with pytest.warns(UserWarning, match="1 lines longer than 4096 characters"):
        tokenizer = train(lines)
    assert UNK_ID not in tokenizer.encode("xyz")
    with pytest.warns(UserWarning, match="2 lines longer than 10 characters"):
        only_long = train(["one two three"] * 2, max_line_length=10)
    assert UNK_ID not in only_long.encode("three")


def test_characters_that_the_trainer_reserves_do_not_cost_their_lines():
    lines = ["only\there", "and \u2047 that", "or \u2585 those"]
    for form in ("nfc", "identity"):
        tokenizer = train(lines, model_type="char", normalization=form)
        assert UNK_ID not in tokenizer.encode("only here and that or those")


@pytest.mark.parametrize("lines", [[], ["", "  "], ["\ufeff", "\0"]])
def test_training_on_nothing_says_so(lines):
    for model_type in TYPES:
        with pytest.raises(ValueError, match="at least one line with text"):
            train(lines, model_type=model_type)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model_type": "wordpiece"},
            "unigram, bpe, char, word. Received: 'wordpiece'",
        ),
        ({"normalization": "nfd"}, "nfc, nfkc, identity. Received: 'nfd'"),
        ({"character_coverage": 0.5}, "between 0.98 and 1. Received: 0.5"),
        ({"max_lines": 0}, "`max_lines` must be at least 1. Received: 0"),
        ({"vocabulary_size": 0}, "`vocabulary_size` must be at least 1. Received: 0"),
        ({"model_type": "word", "byte_fallback": True}, "model_type='word'"),
    ],
)
def test_bad_arguments_are_named_with_what_was_received(options, message):
    with pytest.raises(ValueError, match=message):
        train(**options)


def test_encode_refuses_bytes_and_other_types():
    with pytest.raises(TypeError, match="Received: bytes"):
        ANY["nfc"].encode(b"abc")
    with pytest.raises(TypeError, match="Received: NoneType"):
        ANY["nfc"].encode(["a", None])


def test_models_with_other_ids_or_no_models_are_refused():
    with pytest.raises(ValueError, match="3 bytes"):
        Tokenizer.from_bytes(b"abc")
    other = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=other,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with pytest.raises(ValueError, match="Received: pad=-1, unk=0, bos=1, eos=2"):
        Tokenizer.from_bytes(other.getvalue())


def test_pair_is_shared_or_separate():
    shared = TokenizerPair.train(PAIRS, shared=True, model_type="char")
    assert shared.shared
    assert shared.source is shared.target
    assert UNK_ID not in shared.source.encode("abcxy")
    separate = TokenizerPair.train(
        iter(PAIRS), model_type="char", target_model_type="word"
    )
    assert not separate.shared
    assert separate.source.encode("x") == [4, UNK_ID]
    assert separate.target.vocabulary_size == 6
    assert separate.target.pieces(separate.target.encode("y x")) == ["▁y", "▁x"]
    with pytest.raises(ValueError, match="shared=True, source_vocabulary_size=9"):
        TokenizerPair.train(PAIRS, shared=True, source_vocabulary_size=9)
    with pytest.raises(ValueError, match="at least 7 .* Received: 6"):
        TokenizerPair.train(PAIRS, model_type="char", target_vocabulary_size=6)


@pytest.mark.parametrize("shared", [True, False])
def test_saved_pair_loads_from_a_moved_folder(tmp_path, shared):
    # B69
    pair = TokenizerPair.train(
        PAIRS, shared=shared, model_type="char", symbols=["<user>"], lowercase=True
    )
    pair.save(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    loaded = TokenizerPair.load(tmp_path / "b")
    names = {path.name for path in (tmp_path / "b").iterdir()}
    models = {"shared.model"} if shared else {"source.model", "target.model"}
    assert names == {"tokenizer.json", *models}
    assert loaded.shared == shared
    for side in ("source", "target"):
        before, after = getattr(pair, side), getattr(loaded, side)
        assert after.encode("a B\u00e9 c x") == before.encode("a B\u00e9 c x")
        assert after.settings == before.settings
        assert after.settings["lowercase"] is True
        assert after.symbols == {"<user>": 4}


def test_pair_of_other_files_is_refused_with_both_values(tmp_path):
    # B71: the same size with two rows swapped is found as well.
    pair = TokenizerPair.train(PAIRS, model_type="char")
    pair.save(tmp_path)
    swapped = Tokenizer.train(["x y y"] * 3, model_type="char")
    assert swapped.vocabulary_size == pair.target.vocabulary_size
    (tmp_path / "target.model").write_bytes(swapped.model_bytes)
    message = f"{pair.target.fingerprint} .* found {swapped.fingerprint}"
    with pytest.raises(ValueError, match=message):
        TokenizerPair.load(tmp_path)
    (tmp_path / "target.model").unlink()
    with pytest.raises(FileNotFoundError, match="target.model"):
        TokenizerPair.load(tmp_path)
    pair.save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    description["source"]["vocabulary_size"] = 99
    text = json.dumps(description)
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="has 8 pieces but tokenizer.json says 99"):
        TokenizerPair.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer.json must be a file that"):
        TokenizerPair.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="No tokenizer file"):
        TokenizerPair.load(Path(tmp_path) / "nowhere")
