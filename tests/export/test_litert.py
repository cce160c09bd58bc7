"""LiteRT files of every family of models, against the search in Python."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.decoding import generate
from keras_seq2seq.export.graph_search import GraphSearch
from keras_seq2seq.export.litert_graphs import convert
from keras_seq2seq.export.litert_runtime import LiteRTDecoder, signatures_of
from keras_seq2seq.export.operations import ODD_LITERT_OPERATIONS, litert_operations
from keras_seq2seq.models import (
    ConvSeq2Seq,
    MinimalRecurrentSeq2Seq,
    RecurrentSeq2Seq,
    TransformerSeq2Seq,
)
from keras_seq2seq.models.presets import PRESETS
from tests.helpers import spread

pytestmark = pytest.mark.export

START, END = 2, 3
VOCABULARY, LIMIT, NUM_BEAMS = 12, 7, 3
# Of an output: the source's length and two more, at most LIMIT.
DECODING = {
    "num_beams": NUM_BEAMS,
    "max_length": LIMIT,
    "max_length_ratio": 1.0,
    "max_length_offset": 2,
    "min_length": 2,
    "allow_unknown": False,
}
OPTIONS = {"max_length": LIMIT, "min_length": 2, "banned_ids": (0, 1, 2)}
SOURCES = np.array(
    [[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0], [4, 11, 6, 3, 0]], "int32"
)
LENGTHS = np.array([5, 3, 2, 4], "int32")
LIMITS = np.array([7, 5, 4, 6], "int32")
# What a server that merges requests puts in place of padding: it does not count.
FILLED = np.where(SOURCES == 0, SOURCES[:, :1], SOURCES)
RESOLVERS = ("BUILTIN", "BUILTIN_WITHOUT_DEFAULT_DELEGATES")
SEARCHES = ("translate", "translate_greedy", "translate_beam")


def recurrent(preset=None, **options):
    sizes = {"units": 8, "embedding_dim": 8, **options}
    if preset is None:
        return RecurrentSeq2Seq(VOCABULARY, VOCABULARY, **sizes)
    return RecurrentSeq2Seq.from_preset(preset, VOCABULARY, VOCABULARY, **sizes)


def minimal(**options):
    sizes = {"dim": 8, "num_heads": 2, "feedforward_dim": 8, "num_encoder_layers": 1}
    return MinimalRecurrentSeq2Seq(
        VOCABULARY, VOCABULARY, **{**sizes, "num_decoder_layers": 1, **options}
    )


def transformer(size=VOCABULARY, **options):
    sizes = {"dim": 8, "num_heads": 2, "feedforward_dim": 16, "num_encoder_layers": 1}
    return TransformerSeq2Seq(
        size, size, **{**sizes, "num_decoder_layers": 1, **options}
    )


def convolutional():
    sizes = {"embedding_dim": 8, "output_dim": 8, "max_positions": 16}
    channels = {"encoder_channels": [8, 8], "decoder_channels": [8, 8]}
    return ConvSeq2Seq(VOCABULARY, VOCABULARY, **sizes, **channels)


MODELS = {
    **{cell: (recurrent, {"cell": cell}) for cell in ("lstm", "gru", "simple")},
    **{preset: (recurrent, {"preset": preset}) for preset in PRESETS},
    # In place of its four layers a side, for the sake of time.
    "sutskever2014": (
        recurrent,
        {"preset": "sutskever2014", "num_encoder_layers": 2, "num_decoder_layers": 2},
    ),
    "mingru": (minimal, {}),
    "minlstm": (minimal, {"cell": "minlstm", "attention": "none"}),
    "transformer": (transformer, {"num_decoder_layers": 2}),
    "transformer-window": (transformer, {"window": 3, "tie_output": False}),
    "transformer-rotary-pre": (transformer, {"positions": "rotary", "norm": "pre"}),
    "transformer-learned": (
        transformer,
        {"positions": "learned", "max_positions": 16},
    ),
    "convolutional": (convolutional, {}),
}
# Converted with all signatures, which takes three times as long.
WHOLE = ("gru", "mingru", "transformer", "convolutional")


class Converted(NamedTuple):
    """A model with its file."""

    model: keras.Model
    content: bytes
    searches: tuple[str, ...]


def search_of(model, **decoding):
    settings = DecodingConfig(**{**DECODING, **decoding})
    return GraphSearch(model, settings, fills="slice")


@pytest.fixture(scope="module")
def litert():
    return pytest.importorskip("ai_edge_litert.interpreter")


@pytest.fixture(scope="module", params=MODELS)
def converted(request, litert):
    keras.utils.set_random_seed(2)
    make, options = MODELS[request.param]
    model = spread(make(**options))
    whole = request.param in WHOLE
    names = None if whole else ("translate", "encode", "step")
    content = convert(search_of(model), signatures=names)
    return Converted(model, content, SEARCHES if whole else SEARCHES[:1])


def interpreter_of(litert, content, resolver="BUILTIN"):
    return litert.Interpreter(
        model_content=content,
        experimental_op_resolver_type=litert.OpResolverType[resolver],
    )


def run(interpreter, name, ids=FILLED, lengths=LENGTHS):
    """Answers of a signature, its tensors resized up and down on the way."""
    search = interpreter.get_signature_runner(name)
    for rows, width in ((1, 2), (4, 5), (2, 3), (4, 5)):
        found = search(
            ids=ids[:rows, :width], lengths=np.minimum(lengths, width)[:rows]
        )
    return found


def expected_of(model, **options):
    return generate(model, SOURCES, length_limits=LIMITS, **{**OPTIONS, **options})


def check(found, expected):
    """The best hypotheses, or all of them."""
    scores, single = ("score", 0) if "score" in found else ("scores", slice(None))
    np.testing.assert_array_equal(found["output_ids"], expected.ids[:, single])
    np.testing.assert_array_equal(found["output_lengths"], expected.lengths[:, single])
    np.testing.assert_allclose(found[scores], expected.scores[:, single], atol=1e-4)


def test_a_file_answers_as_python_does(litert, converted):
    # The first of all hypotheses is the best one.
    beams = expected_of(converted.model, num_beams=NUM_BEAMS, n_best=NUM_BEAMS)
    assert len({tuple(ids) for ids in beams.ids[:, 0]}) > 1
    expected = {"translate": beams, "translate_beam": beams}
    if "translate_greedy" in converted.searches:
        expected["translate_greedy"] = expected_of(converted.model)
    for resolver in RESOLVERS:
        interpreter = interpreter_of(litert, converted.content, resolver)
        for name in converted.searches:
            check(run(interpreter, name), expected[name])


def test_steps_of_an_apps_own_loop_write_what_the_model_does(litert, converted):
    interpreter = interpreter_of(litert, converted.content)
    encode = interpreter.get_signature_runner("encode")
    step = interpreter.get_signature_runner("step")
    encode(ids=FILLED[:1, :2], lengths=LENGTHS[:1])  # resized after that
    tensors = encode(ids=FILLED, lengths=LENGTHS)
    written, found = [np.full(len(SOURCES), START, "int32")], []
    for position in range(LIMIT):
        answer = step(token_ids=written[-1], **tensors)
        found.append(answer.pop("logits"))
        written.append(chosen(found[-1], position))
        tensors |= {key.removeprefix("next_"): value for key, value in answer.items()}
    ids = np.stack(written, axis=1)
    inputs = {"source_ids": SOURCES, "target_ids": ids[:, :-1]}
    logits = keras.ops.convert_to_numpy(converted.model(inputs, training=False))
    np.testing.assert_allclose(np.stack(found, axis=1), logits, atol=1e-4)
    expected = [chosen(logits[:, t], t) for t in range(LIMIT)]
    np.testing.assert_array_equal(ids[:, 1:], np.stack(expected, axis=1))
    if "translate_greedy" in converted.searches:
        whole = interpreter.get_signature_runner("translate_greedy")(
            ids=FILLED, lengths=LENGTHS
        )
        for row, length in enumerate(whole["output_lengths"]):
            np.testing.assert_array_equal(
                ids[row, 1 : length + 1], whole["output_ids"][row, :length]
            )
            assert length == LIMITS[row] or ids[row, length] == END


def chosen(logits, position):
    """The likeliest token that may be written, int32 `(B,)`."""
    kept = np.array(logits)
    kept[
        :, [*OPTIONS["banned_ids"], *[END] * (position < OPTIONS["min_length"])]
    ] = -np.inf
    return kept.argmax(axis=1).astype("int32")


def test_a_file_has_builtin_operations_and_its_signatures_only(converted):
    builtin, custom = litert_operations(converted.content)
    assert custom == []
    assert not builtin & ODD_LITERT_OPERATIONS
    signatures = signatures_of(converted.content)
    assert signatures.keys() == {*converted.searches, "encode", "step"}
    sources = {
        "ids": {"dtype": "int32", "shape": [-1, -1]},
        "lengths": {"dtype": "int32", "shape": [-1]},
    }
    for name in (*converted.searches, "encode"):
        assert signatures[name]["inputs"] == sources
    assert signatures["translate"]["outputs"] == {
        "output_ids": {"dtype": "int32", "shape": [-1, LIMIT]},
        "output_lengths": {"dtype": "int32", "shape": [-1]},
        "score": {"dtype": "float32", "shape": [-1]},
    }
    step = signatures["step"]
    assert step["outputs"]["logits"] == {"dtype": "float32", "shape": [-1, VOCABULARY]}
    # What one step gives, the next one takes.
    states = {key for key in step["inputs"] if key.startswith("state_")}
    assert step["outputs"].keys() == {"logits", *(f"next_{key}" for key in states)}
    memory = step["inputs"].keys() - states - {"token_ids"}
    assert signatures["encode"]["outputs"].keys() == states | memory


def test_a_limit_of_its_own_holds_for_every_source(litert):
    keras.utils.set_random_seed(0)
    model = transformer()
    fixed = GraphSearch(
        model,
        DecodingConfig(**{**DECODING, "num_beams": 1, "min_length": 3}),
        max_length=4,
        fills="slice",
    )
    content = convert(fixed)
    assert sorted(signatures_of(content)) == ["encode", "step", "translate"]
    expected = generate(model, SOURCES, **{**OPTIONS, "max_length": 4, "min_length": 3})
    np.testing.assert_array_equal(expected.lengths, [[4]] * 4)
    check(run(interpreter_of(litert, content), "translate"), expected)


@pytest.fixture(scope="module")
def copying(litert):
    """A Transformer that has learnt to write its source again, with such sources."""
    keras.utils.set_random_seed(0)
    model = transformer(200, dim=64, feedforward_dim=128, norm="pre", dropout=0.0)
    steps, batch, longest = 300, 64, 4
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, longest + 1, steps * batch)
    ids = generator.integers(4, 12, (len(lengths), longest + 1))
    ids[np.arange(longest + 1) >= lengths[:, None]] = 0
    ids[np.arange(len(ids)), lengths] = END
    inputs = np.where(ids > 0, np.roll(ids, 1, axis=1), 0)
    inputs[:, 0] = START
    decay = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(optimizer=keras.optimizers.Adam(decay), loss=loss)
    data = {"source_ids": ids.astype("int32"), "target_ids": inputs.astype("int32")}
    model.fit(data, data["source_ids"], batch_size=batch, shuffle=False, verbose=0)
    search = search_of(model, num_beams=1, min_length=0)
    return search, data["source_ids"][:96], lengths[:96].astype("int32") + 1


@pytest.fixture(scope="module")
def copied(copying):
    """The content of its file, and what that writes."""
    search, ids, lengths = copying
    content = convert(search, signatures=("translate",))
    found = LiteRTDecoder(content, rows=64)(ids, lengths)
    # It has learnt it: what follows is no rounding of chance.
    np.testing.assert_array_equal(found["output_ids"][:, : ids.shape[1]], ids)
    np.testing.assert_array_equal(found["output_lengths"], lengths)
    return content, found


@pytest.mark.parametrize(
    ("quantization", "size", "tolerance"),
    [("float16", 0.62, 1e-3), ("dynamic", 0.45, 0.02)],
)
def test_quantised_files_of_a_trained_model_are_smaller_and_write_the_same(
    copying, copied, quantization, size, tolerance
):
    search, ids, lengths = copying
    content, expected = copied
    small = convert(search, signatures=("translate",), quantization=quantization)
    assert len(small) < size * len(content)
    builtin, custom = litert_operations(small)
    assert not builtin & ODD_LITERT_OPERATIONS and not custom
    found = LiteRTDecoder(small, rows=64)(ids, lengths)
    np.testing.assert_array_equal(found["output_ids"], expected["output_ids"])
    np.testing.assert_allclose(found["score"], expected["score"], atol=tolerance)
    assert (found["score"] != expected["score"]).any()


@pytest.mark.parametrize("quantization", ["int8", "int16x8", "none"])
def test_other_quantizations_are_refused(quantization):
    message = (
        "`quantization` must be one of None, 'float16', 'dynamic'. Received: "
        f"quantization='{quantization}'."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        convert(search_of(transformer()), quantization=quantization)


def test_an_operation_that_litert_lacks_is_named(monkeypatch):
    search = search_of(transformer(), num_beams=1)
    best = search.best

    def drawing(ids, lengths):
        noise = tf.random.stateless_uniform((2,), (1, 2))
        found = best(ids, lengths)
        return {**found, "score": found["score"] + tf.reduce_sum(noise)}

    monkeypatch.setattr(search, "best", drawing)
    with pytest.raises(ValueError, match=r"no builtin operation.*StatelessRandomUni"):
        convert(search, signatures=("translate",))


@pytest.fixture(scope="module")
def small_file(litert):
    """A model, and its file with one signature."""
    keras.utils.set_random_seed(5)
    model = transformer()
    return model, convert(search_of(model), signatures=("translate_beam", "translate"))


def test_a_decoder_gives_the_parts_of_a_batch_in_order(small_file):
    model, content = small_file
    best = expected_of(model, num_beams=NUM_BEAMS)
    all_of_them = expected_of(model, num_beams=NUM_BEAMS, n_best=NUM_BEAMS)
    for workers, rows in ((1, 8), (2, 1), (3, 2)):
        options = {"num_workers": workers, "rows": rows}
        check(LiteRTDecoder(content, **options)(SOURCES, LENGTHS), best)
        decoder = LiteRTDecoder(content, signature="translate_beam", **options)
        check(decoder(SOURCES, LENGTHS), all_of_them)
    assert decoder(SOURCES[:0], LENGTHS[:0])["output_ids"].shape == (
        *(0, NUM_BEAMS, LIMIT),
    )


def test_a_decoder_serves_several_callers_at_once(small_file):
    _, content = small_file
    decoder = LiteRTDecoder(content, num_workers=2, rows=1)
    expected = decoder(SOURCES, LENGTHS)
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(decoder, SOURCES[row:], LENGTHS[row:]) for row in [0, 1, 2] * 4
        ]
    for call, row in zip(calls, [0, 1, 2] * 4, strict=True):
        for name, values in call.result().items():
            np.testing.assert_array_equal(values, expected[name][row:])


def test_a_decoder_names_what_is_wrong(small_file, tmp_path):
    _, content = small_file
    file = tmp_path / "model.tflite"
    file.write_bytes(content)
    for name in ("num_workers", "rows", "num_threads"):
        with pytest.raises(ValueError, match=f"`{name}` must be positive.*{name}=0"):
            LiteRTDecoder(file, **{name: 0})
    with pytest.raises(ValueError, match=r"shapes \(4, 5\) and \(3,\)"):
        LiteRTDecoder(file)(SOURCES, LENGTHS[:3])
    with pytest.raises(ValueError, match="'translate_greedy'. Received one with trans"):
        LiteRTDecoder(file, signature="translate_greedy")


def test_a_file_of_something_else_is_refused(litert):
    @tf.function(input_signature=[tf.TensorSpec((1,), tf.float32)])
    def double(x):
        return 2 * x

    concrete = double.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], double)
    content = converter.convert()
    with pytest.raises(ValueError, match="must have the signature 'translate'"):
        LiteRTDecoder(content)
    with pytest.raises(ValueError, match=r"mark TFL3 in its bytes.*b'F3xx'"):
        litert_operations(b"\0\0\0TF3xxx"[:8])


def test_missing_litert_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    for use in (LiteRTDecoder, signatures_of):
        with pytest.raises(ImportError, match=r"keras-seq2seq\[litert\]"):
            use(b"")
