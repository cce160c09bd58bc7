"""The search as LiteRT runs it, against the search in Python."""

import sys

import keras
import numpy as np
import pytest

from keras_seq2seq.decoding import generate
from keras_seq2seq.export.litert import convert_search
from keras_seq2seq.export.litert_runtime import LiteRTDecoder
from keras_seq2seq.models import (
    ConvSeq2Seq,
    TransformerSeq2Seq,
)

pytestmark = pytest.mark.export

VOCABULARY, LIMIT = 12, 7
OPTIONS = {"start_id": 2, "end_id": 3, "pad_id": 0, "banned_ids": (0, 1, 2)}
SOURCES = np.array(
    [[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0], [4, 11, 6, 3, 0]], "int32"
)
LENGTHS = np.array([5, 3, 2, 4], "int32")


def transformer(**options):
    sizes = {
        "dim": 8,
        "num_heads": 2,
        "feedforward_dim": 16,
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
    }
    return TransformerSeq2Seq(VOCABULARY, VOCABULARY, **sizes, **options)


def convolutional():
    sizes = {"embedding_dim": 8, "output_dim": 8, "max_positions": 16}
    channels = {"encoder_channels": [8, 8], "decoder_channels": [8, 8]}
    return ConvSeq2Seq(VOCABULARY, VOCABULARY, **sizes, **channels)


MODELS = {
    "transformer": transformer,
    "transformer-window": lambda: transformer(window=3, tie_output=False),
    "transformer-rotary-pre": lambda: transformer(positions="rotary", norm="pre"),
    "transformer-learned": lambda: transformer(positions="learned", max_positions=16),
    "convolutional": convolutional,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    keras.utils.set_random_seed(2)
    made = MODELS[request.param]()
    generator = np.random.default_rng(0)
    for weight in made.trainable_weights:
        if len(weight.shape) == 2:  # so that answers differ
            weight.assign(generator.normal(0, 0.6, weight.shape))
    return made


@pytest.fixture(scope="module")
def litert():
    return pytest.importorskip("ai_edge_litert.interpreter")


def run(litert, content, ids, lengths, resolver="BUILTIN"):
    interpreter = litert.Interpreter(
        model_content=content,
        experimental_op_resolver_type=litert.OpResolverType[resolver],
    )
    decode = interpreter.get_signature_runner("decode_ids")
    # Up and down in both sizes on one interpreter.
    for rows, width in ((1, 2), (4, 5), (2, 5), (4, 5)):
        found = decode(
            ids=ids[:rows, :width], lengths=np.minimum(lengths, width)[:rows]
        )
    return found


def check(found, expected):
    np.testing.assert_array_equal(found["output_ids"], expected.ids[:, 0])
    np.testing.assert_array_equal(found["output_lengths"], expected.lengths[:, 0])
    np.testing.assert_allclose(found["score"], expected.scores[:, 0], atol=1e-4)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_file_answers_as_python_does(litert, model, num_beams):
    options = {**OPTIONS, "num_beams": num_beams, "max_length": LIMIT, "min_length": 2}
    expected = generate(model, SOURCES, **options)
    assert len({tuple(ids) for ids in expected.ids[:, 0]}) > 1
    content = convert_search(model, **options)
    for resolver in ("BUILTIN", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"):
        # What lies beyond the lengths does not count.
        filled = np.where(SOURCES == 0, SOURCES[:, :1], SOURCES)
        check(run(litert, content, filled, LENGTHS, resolver), expected)


def test_limits_follow_the_source(litert):
    keras.utils.set_random_seed(0)
    model = transformer()
    options = {**OPTIONS, "max_length": LIMIT, "min_length": LIMIT - 1}
    expected = generate(model, SOURCES, length_limits=LENGTHS + 1, **options)
    content = convert_search(model, length_limits=lambda n: n + 1, **options)
    check(run(litert, content, SOURCES, LENGTHS), expected)
    np.testing.assert_array_equal(expected.lengths[:, 0], LENGTHS + 1)


@pytest.mark.parametrize("quantization", ["float16", "dynamic"])
def test_quantised_files_are_smaller_and_close(litert, quantization):
    keras.utils.set_random_seed(0)
    wide = TransformerSeq2Seq(
        *(200, 200),
        dim=64,
        num_heads=2,
        feedforward_dim=128,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    options = {**OPTIONS, "max_length": LIMIT}
    full = convert_search(wide, **options)
    small = convert_search(wide, quantization=quantization, **options)
    assert len(small) < (0.62 if quantization == "float16" else 0.45) * len(full)
    found = run(litert, small, SOURCES, LENGTHS)
    expected = run(litert, full, SOURCES, LENGTHS)
    # Untrained, so that a rounding can choose another token.
    same = (found["output_ids"] == expected["output_ids"]).all(axis=1)
    assert same.sum() >= 2
    np.testing.assert_allclose(found["score"][same], expected["score"][same], atol=0.1)


def test_what_cannot_be_converted_is_named():
    with pytest.raises(ValueError, match="Received: quantization='int8'"):
        convert_search(transformer(), quantization="int8", max_length=3, **OPTIONS)
    with pytest.raises(ValueError, match=r"cannot draw them yet.*temperature=0\.5"):
        convert_search(transformer(), max_length=3, temperature=0.5, **OPTIONS)


def test_a_decoder_gives_the_parts_of_a_batch_in_order(litert):
    keras.utils.set_random_seed(5)
    model = transformer()
    options = {**OPTIONS, "max_length": LIMIT, "min_length": 3}
    expected = generate(model, SOURCES, **options)
    content = convert_search(model, **options)
    for workers, rows in ((1, 8), (2, 1), (3, 2)):
        decoder = LiteRTDecoder(content, num_workers=workers, rows=rows)
        check(decoder(SOURCES, LENGTHS), expected)
    assert decoder(SOURCES[:0], LENGTHS[:0])["output_ids"].shape == (0, LIMIT)


def test_a_decoder_names_what_is_wrong(litert, tmp_path):
    content = convert_search(transformer(), max_length=3, **OPTIONS)
    file = tmp_path / "model.tflite"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="num_workers=0"):
        LiteRTDecoder(file, num_workers=0)
    with pytest.raises(ValueError, match=r"shapes \(4, 5\) and \(3,\)"):
        LiteRTDecoder(file)(SOURCES, LENGTHS[:3])


def test_a_file_of_something_else_is_refused(litert):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((1,), tf.float32)])
    def double(x):
        return 2 * x

    concrete = double.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], double)
    with pytest.raises(ValueError, match="must have the signature 'decode_ids'"):
        LiteRTDecoder(converter.convert())


def test_missing_litert_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(ImportError, match=r"keras-seq2seq\[litert\]"):
        LiteRTDecoder(b"")
