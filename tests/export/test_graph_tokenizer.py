"""The graph tokenizer gives what the Python tokenizer gives, in every mode."""

import subprocess
import sys
from typing import Any

import keras
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seq2seq.export.graph_tokenizer import GraphTokenizer
from keras_seq2seq.tokenizers import END_ID, PAD_ID, START_ID, UNK_ID, Tokenizer

LINES = [
    "the cat sat on the mat",
    "Le café fermé à Noël, où est-il ?",
    "Ti\u1ebfng Vi\u1ec7t và 中文文本 日本語",
]
MAX_LENGTH = 400

# Byte fallback spells any text; without it the unknown runs are compared as well.
SETTINGS: dict[str, dict[str, Any]] = {
    "unigram": {"vocabulary_size": 40},
    "bpe": {"model_type": "bpe", "vocabulary_size": 60, "lowercase": True},
    "char": {"model_type": "char", "normalization": "identity"},
    "word": {"model_type": "word", "normalization": "nfkc"},
    "bytes": {"byte_fallback": True, "vocabulary_size": 296},
    "bytes_identity": {
        "byte_fallback": True,
        "vocabulary_size": 296,
        "normalization": "identity",
    },
    "symbols": {
        "model_type": "char",
        "normalization": "nfkc",
        "lowercase": True,
        "symbols": ["<user>"],
    },
}
TOKENIZERS = {
    name: Tokenizer.train(LINES, **options) for name, options in SETTINGS.items()
}


@pytest.fixture
def graphs():
    """The graph tokenizers, made after the seed is set: that drops TensorFlow's own."""
    return {
        name: GraphTokenizer(tokenizer, MAX_LENGTH)
        for name, tokenizer in TOKENIZERS.items()
    }


@pytest.fixture(params=SETTINGS)
def both(request):
    tokenizer = TOKENIZERS[request.param]
    return tokenizer, GraphTokenizer(tokenizer, MAX_LENGTH)


def rows(ids, lengths):
    return [
        row[:length].tolist()
        for row, length in zip(ids.numpy(), lengths.numpy(), strict=True)
    ]


def python_rows(tokenizer, texts, max_length=MAX_LENGTH):
    encoded = tokenizer.encode(texts)
    return [ids and [*ids[: max_length - 1], END_ID] for ids in encoded]


def check_equal(tokenizer, graph, texts):
    ids, lengths = graph.encode(tf.constant([text.encode("utf-8") for text in texts]))
    assert ids.dtype == lengths.dtype == tf.int32
    expected = python_rows(tokenizer, texts)
    assert rows(ids, lengths) == expected
    width = max(1, *map(len, expected))
    assert ids.shape == (len(texts), width)
    for row, length in zip(ids.numpy(), lengths.numpy(), strict=True):
        assert not row[length:].any()
    decoded = [text.decode("utf-8") for text in graph.decode(ids, lengths).numpy()]
    assert decoded == tokenizer.decode(expected)


ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ODD_TEXT = st.text(
    "\ufeff\u2581\u2047\0\t\n\r\x0b\x85\u2028\u00a0\u3000\u200b\u200c\u200d\ufffd"
    "e\u0301\u0323A\u030a\u1100\u1161\u11a8\uff76\uff9e\u0130\U0001f600 the<s>/",
    max_size=12,
)


def test_ids_and_text_equal_python_over_random_unicode(both):
    @settings(max_examples=80, deadline=None)
    @given(st.lists(ANY_TEXT | ODD_TEXT, min_size=1, max_size=6))
    def check(texts):
        check_equal(both[0], both[1], texts)

    check()


def test_decoding_equals_python_over_random_ids(both):
    # Any ids, as an untrained model gives them: the text is valid UTF-8 even where
    # they end inside a character (B93).
    tokenizer, graph = both
    some_ids = st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=6)

    @settings(max_examples=80, deadline=None)
    @given(st.lists(some_ids, min_size=1, max_size=4))
    def check(table):
        padded = [[*row, *[9] * (6 - len(row))] for row in table]
        lengths = [len(row) for row in table]
        decoded = graph.decode(tf.constant(padded), tf.constant(lengths)).numpy()
        assert [text.decode("utf-8") for text in decoded] == tokenizer.decode(table)

    check()


def test_unequal_lengths_pad_on_the_right_and_blank_rows_are_empty(graphs):
    # B08, B92
    ids, lengths = graphs["word"].encode(tf.constant(["the cat", "", "mat", " \t"]))
    the, cat, mat = TOKENIZERS["word"].encode("the cat mat")
    assert lengths.numpy().tolist() == [3, 0, 2, 0]
    assert ids.numpy().tolist() == [
        [the, cat, END_ID],
        [PAD_ID, PAD_ID, PAD_ID],
        [mat, END_ID, PAD_ID],
        [PAD_ID, PAD_ID, PAD_ID],
    ]
    decoded = graphs["word"].decode(ids, lengths).numpy().tolist()
    assert decoded == [b"the cat", b"", b"mat", b""]


def test_empty_batches_and_all_blank_batches_keep_their_rank(graphs):
    for name, graph in graphs.items():
        ids, lengths = graph.encode(tf.constant([], tf.string))
        assert (ids.shape, lengths.shape) == ((0, 1), (0,)), name
        assert graph.decode(ids, lengths).shape == (0,)
        ids, lengths = graph.encode(tf.constant([""]))
        assert ids.numpy().tolist() == [[PAD_ID]]
        assert graph.decode(ids, lengths).numpy().tolist() == [b""]
        empty = tf.zeros((2, 0), tf.int32)
        assert graph.decode(empty, tf.zeros(2, tf.int32)).numpy().tolist() == [b""] * 2


@pytest.mark.parametrize("max_length", [2, 4, 7, 8, 9])
def test_long_text_is_cut_and_keeps_end(max_length):
    # B26; "the cat" has 7 ids, END included 8... cut, just fitting, and shorter.
    tokenizer = TOKENIZERS["char"]
    assert len(tokenizer.encode("the cat")) == 8
    graph = GraphTokenizer(tokenizer, max_length)
    ids, lengths = graph.encode(tf.constant(["the cat", "a"]))
    assert rows(ids, lengths) == python_rows(tokenizer, ["the cat", "a"], max_length)
    assert ids.shape == (2, max_length)
    assert ids[0, -1] == END_ID


def test_typed_special_tokens_never_become_control_ids(graphs):
    # B24
    texts = ["</s> <s> <pad> <unk>", "<user>hi</s>", "[PAD][END]", "▁</s>"]
    for graph in graphs.values():
        ids, lengths = graph.encode(tf.constant(texts))
        hidden = {PAD_ID, START_ID, END_ID} | graph.hidden_ids
        for row in rows(ids, lengths):
            assert not hidden & set(row[:-1])


def test_invalid_bytes_read_as_replacement_characters(graphs):
    # B93
    broken = [b"\xff\xfecat", b"\xe2\x82", b"the\xed\xa0\x80", b"\xf0\x9f\x98 mat"]
    for name, graph in graphs.items():
        texts = [text.decode("utf-8", "replace") for text in broken]
        ids, lengths = graph.encode(tf.constant(broken))
        assert rows(ids, lengths) == python_rows(TOKENIZERS[name], texts), name


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "the cat " * 20_000, "\u0302" * 50_000]
)
def test_very_long_text_is_answered(graphs, text):
    for name, graph in graphs.items():
        ids, lengths = graph.encode(tf.constant([text]))
        assert rows(ids, lengths) == python_rows(TOKENIZERS[name], [text]), name


def test_ids_outside_the_vocabulary_read_as_unknown(graphs):
    graph, tokenizer = graphs["char"], TOKENIZERS["char"]
    (a,) = tokenizer.encode("ta")[-1:]
    size = tokenizer.vocabulary_size
    text = graph.decode(tf.constant([[a, size, -1, a]]), tf.constant([4])).numpy()[0]
    assert text.decode("utf-8") == tokenizer.decode([a, UNK_ID, UNK_ID, a])


def test_too_small_a_length_is_refused():
    with pytest.raises(ValueError, match="`max_length` must be .* Received: 1"):
        GraphTokenizer(TOKENIZERS["char"], 1)


LOADER = """
import sys
import tensorflow as tf
import tensorflow_text
v1 = tf.compat.v1
with v1.Session(graph=tf.Graph()) as session:
    graph = v1.saved_model.load(session, ["serve"], sys.argv[1])
    signature = graph.signature_def["serving_default"]
    texts = [b"the cat", b"", b"\\xffCaf\\xc3\\xa9\\0\\n", b"mat"]
    outputs = {name: output.name for name, output in signature.outputs.items()}
    answer = session.run(outputs, {signature.inputs["text"].name: texts})
    print(answer["ids"].tolist(), answer["lengths"].tolist(), answer["back"].tolist())
"""


@pytest.mark.export
def test_exported_graph_answers_in_the_session_loader(tmp_path):
    # B90
    tokenizer = TOKENIZERS["symbols"]
    graph = GraphTokenizer(tokenizer, 6)

    def serve(text):
        ids, lengths = graph.encode(text)
        return {"ids": ids, "lengths": lengths, "back": graph.decode(ids, lengths)}

    archive = keras.export.ExportArchive()
    archive.track(graph)
    archive.add_endpoint(
        "serving_default",
        serve,
        input_signature=[tf.TensorSpec([None], tf.string, name="text")],
    )
    archive.write_out(str(tmp_path / "model"), verbose=False)
    (tmp_path / "model").rename(tmp_path / "moved")
    answer = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path / "moved")],
        capture_output=True,
        check=True,
        text=True,
        encoding="utf-8",
    )
    texts = ["the cat", "", "\ufffdCaf\u00e9", "mat"]
    expected = python_rows(tokenizer, texts, 6)
    back = [text.encode("utf-8") for text in tokenizer.decode(expected)]
    padded = [ids + [PAD_ID] * (6 - len(ids)) for ids in expected]
    assert answer.stdout == f"{padded} {[len(ids) for ids in expected]} {back}\n"
