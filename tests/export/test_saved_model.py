"""What `export_saved_model` writes, run through the loader that TF Serving uses."""

import hashlib
import json
import re
import shutil
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.corpora import clean_line
from keras_seq2seq.export import saved_model
from keras_seq2seq.export.graph_search import LOWEST_SCORE, GraphSearch
from keras_seq2seq.export.operations import (
    CORE_OPERATIONS,
    SAVER_OPERATIONS,
    TEXT_OPERATIONS,
    Graph,
)
from keras_seq2seq.export.saved_model import export_saved_model
from keras_seq2seq.export.server_files import read_warmup
from keras_seq2seq.export.text_signatures import clean_text
from keras_seq2seq.export.verify import verify
from keras_seq2seq.models import (
    ConvSeq2Seq,
    MinimalRecurrentSeq2Seq,
    RecurrentSeq2Seq,
    TransformerSeq2Seq,
)
from keras_seq2seq.pipelines import Translator

pytestmark = pytest.mark.export

MODELS = {
    "transformer": (
        TransformerSeq2Seq,
        {
            "dim": 8,
            "num_heads": 2,
            "feedforward_dim": 8,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "positions": "learned",
            "max_positions": 16,
        },
    ),
    "convolutional": (
        ConvSeq2Seq,
        {
            "embedding_dim": 8,
            "encoder_channels": [8],
            "decoder_channels": [8, 6],
            "decoder_kernel_size": [3, 1],
            "output_dim": 8,
            "max_positions": 16,
        },
    ),
    "transformer_window": (
        TransformerSeq2Seq,
        {
            "dim": 8,
            "num_heads": 2,
            "feedforward_dim": 8,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "positions": "rotary",
            "window": 3,
        },
    ),
    **{
        f"recurrent_{cell}": (
            RecurrentSeq2Seq,
            {"cell": cell, "units": 8, "embedding_dim": 8},
        )
        for cell in ("lstm", "gru", "simple")
    },
    "minimal": (
        MinimalRecurrentSeq2Seq,
        {"dim": 8, "num_heads": 2, "feedforward_dim": 8, "num_encoder_layers": 1},
    ),
}
TEXTS = ["ca déb", "b", "", "éc abd abc d", "   ", "a"]


def make_translator(name, tokenizers, **decoding):
    """An untrained model of width 8 as a Translator with a short output."""
    keras.utils.set_random_seed(3)
    make, arguments = MODELS[name]
    model = make(
        tokenizers.source.vocabulary_size,
        tokenizers.target.vocabulary_size,
        **arguments,
    )
    ids = np.full((1, 3), 4, "int32")
    model({"source_ids": ids, "target_ids": ids})
    # Larger weights, so that outputs differ between sources.
    model.set_weights([3.0 * weight for weight in model.get_weights()])
    translator = Translator(model, tokenizers)
    options = {"num_beams": 2, "max_length": 9, "max_length_offset": 3, **decoding}
    translator.decoding = DecodingConfig(**options)
    return translator


class Served:
    """A version folder loaded once by the Session loader."""

    def __init__(self, translator, folder):
        self.translator = translator
        self.folder = folder
        self.session = tf.compat.v1.Session(graph=tf.Graph())
        with self.session.graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self.session, ["serve"], str(folder))
        self.signatures = loaded.signature_def

    def run(self, signature, **inputs):
        """Answers one request."""
        definition = self.signatures[signature]
        feeds = {definition.inputs[key].name: value for key, value in inputs.items()}
        fetches = {key: value.name for key, value in definition.outputs.items()}
        return self.session.run(fetches, feeds)


@pytest.fixture(scope="module")
def serve(tiny_tokenizers, tmp_path_factory):
    """Exports and loads the model of a name, once each."""
    running = {}

    def start(name):
        if name not in running:
            translator = make_translator(name, tiny_tokenizers)
            path = tmp_path_factory.mktemp(name) / "model"
            running[name] = Served(translator, export_saved_model(translator, path))
        return running[name]

    yield start
    for served in running.values():
        served.session.close()


@pytest.fixture(params=sorted(MODELS))
def served(request, serve):
    """Each kind of model."""
    return serve(request.param)


@pytest.fixture
def transformer(serve):
    """The Transformer alone, for what is the same for every model."""
    return serve("transformer")


@pytest.fixture
def quick_writer(transformer, monkeypatch):
    """Copies a finished graph in place of tracing one, which takes seconds."""

    def copy(search, translator, folder, jit):
        shutil.copytree(transformer.folder, folder)
        shutil.rmtree(folder / "tokenizer")
        shutil.rmtree(folder / "assets.extra")

    monkeypatch.setattr(saved_model, "_write_graph", copy)
    return transformer.translator


def test_text_signature_answers_as_the_translator(served):
    translator = served.translator
    expected = [best for (best,) in translator.translate(TEXTS)]
    found = served.run("serving_default", source=TEXTS)
    assert [text.decode("utf-8") for text in found["text"]] == [
        best.text for best in expected
    ]
    np.testing.assert_allclose(
        found["score"], [best.score for best in expected], atol=1e-4
    )
    assert len({best.text for best in expected}) > 2


def test_python_loader_keeps_two_tokenizers_apart(transformer):
    tokenizers = transformer.translator.tokenizers
    assert tokenizers.source.model_bytes != tokenizers.target.model_bytes
    loaded = tf.saved_model.load(str(transformer.folder))
    found = loaded.signatures["serving_default"](source=tf.constant(TEXTS))
    expected = transformer.run("serving_default", source=TEXTS)
    assert list(found["text"].numpy()) == list(expected["text"])
    np.testing.assert_allclose(found["score"], expected["score"], atol=1e-5)


def test_ids_signature_answers_the_same_whatever_pads_and_fills_the_batch(served):
    translator = served.translator
    rows = [[*translator.tokenizers.source.encode(text), 3] for text in TEXTS]
    width = max(map(len, rows)) + 2
    # As TF Serving merges: first elements as padding, copies of the first row.
    merged = [row + [row[0]] * (width - len(row)) for row in [*rows, rows[0], rows[0]]]
    lengths = [len(row) for row in [*rows, rows[0], rows[0]]]
    found = served.run("decode_ids", ids=merged, lengths=lengths)
    assert found["output_ids"].shape == (8, 9)
    for row, (best,) in enumerate(translator.translate([*TEXTS, TEXTS[0], TEXTS[0]])):
        length = found["output_lengths"][row]
        assert tuple(found["output_ids"][row, :length]) == best.ids
        assert not found["output_ids"][row, length:].any()
        assert found["score"][row] == pytest.approx(best.score, abs=1e-4)


def test_graph_holds_no_operation_that_a_cpu_server_lacks(served):
    graph = Graph(served.folder)
    odd = re.compile("Cudnn|PyFunc|Xla|Random")
    assert not [name for name in graph.operations() if odd.search(name)]
    assert graph.xla_compiled() == []
    allowed = CORE_OPERATIONS | TEXT_OPERATIONS | SAVER_OPERATIONS
    assert graph.operations() <= allowed, graph.operations() - allowed
    assert not [
        name
        for name in graph.signature_operations("decode_ids")
        if "Sentencepiece" in name or "TFText" in name
    ]
    assert [
        name
        for name in graph.signature_operations("serving_default")
        if "Sentencepiece" in name
    ]


def test_signatures_have_the_documented_names_types_and_widths(transformer):
    text = (transformer.folder / "manifest.json").read_text(encoding="utf-8")
    found = {
        name: {
            key: f"{tensor['dtype']} {tensor['shape']}"
            for side in ("inputs", "outputs")
            for key, tensor in signature[side].items()
        }
        for name, signature in json.loads(text)["signatures"].items()
    }
    source, score = {"source": "string [-1]"}, {"score": "float32 [-1]"}
    ids = {"ids": "int32 [-1, -1]", "lengths": "int32 [-1]"}
    assert found == {
        "serving_default": {**source, **score, "text": "string [-1]"},
        "translate": {**source, **score, "text": "string [-1]"},
        "translate_beam": {
            **source,
            "texts": "string [-1, 2]",
            "scores": "float32 [-1, 2]",
        },
        "translate_sample": {
            **source,
            "seed": "int32 [-1]",
            "temperature": "float32 [-1]",
            "top_k": "int32 [-1]",
            "top_p": "float32 [-1]",
            "text": "string [-1]",
            **score,
        },
        "decode_ids": {
            **ids,
            "output_ids": "int32 [-1, 9]",
            "output_lengths": "int32 [-1]",
            **score,
        },
        "decode_ids_beam": {
            **ids,
            "output_ids": "int32 [-1, 2, 9]",
            "output_lengths": "int32 [-1, 2]",
            "scores": "float32 [-1, 2]",
        },
        "score": {
            **source,
            "target": "string [-1]",
            "log_prob": "float32 [-1]",
            "num_tokens": "int32 [-1]",
        },
        "attention": {
            **source,
            "text": "string [-1]",
            "source_tokens": "string [-1, 9]",
            "target_tokens": "string [-1, 9]",
            "weights": "float32 [-1, 9, 9]",
        },
    }


def test_beams_are_those_of_the_translator_without_equal_texts(served):
    translator = served.translator
    found = served.run("translate_beam", source=TEXTS)
    for row, hypotheses in enumerate(translator.translate(TEXTS, n_best=2)):
        kept = found["scores"][row] > LOWEST_SCORE
        texts = [text.decode("utf-8") for text in found["texts"][row][kept]]
        assert texts == [hypothesis.text for hypothesis in hypotheses]
        assert not any(found["texts"][row][~kept])
        np.testing.assert_allclose(
            found["scores"][row][kept], [h.score for h in hypotheses], atol=1e-4
        )


def test_beams_of_ids_are_those_of_the_translator(transformer):
    translator = transformer.translator
    ids = [[*translator.tokenizers.source.encode(TEXTS[0]), 3]]
    found = transformer.run("decode_ids_beam", ids=ids, lengths=[len(ids[0])])
    (expected,) = translator.translate(TEXTS[:1], n_best=2)
    for place, hypothesis in enumerate(expected):
        length = found["output_lengths"][0, place]
        assert tuple(found["output_ids"][0, place, :length]) == hypothesis.ids


def test_samples_are_drawn_by_each_row_s_own_settings(served):
    translator = served.translator
    settings = [(5, 1.0, 0, 1.0), (-7, 0.7, 3, 1.0), (2**31 - 1, 1.5, 0, 0.8)]
    sources = ["ca déb", "b", "éc abd abc d"]
    names = ("seed", "temperature", "top_k", "top_p")
    columns = dict(zip(names, zip(*settings, strict=True), strict=True))
    found = served.run("translate_sample", source=sources, **columns)
    for row, (text, (seed, temperature, top_k, top_p)) in enumerate(
        zip(sources, settings, strict=True)
    ):
        ((expected,),) = translator.translate(
            [text], seed=[seed], temperature=temperature, top_k=top_k, top_p=top_p
        )
        assert found["text"][row].decode("utf-8") == expected.text
        assert found["score"][row] == pytest.approx(expected.score, abs=1e-4)


def test_settings_of_a_sample_that_make_no_sense_change_no_other_row(transformer):
    odd = transformer.run(
        "translate_sample",
        source=["ca déb", "ca déb"],
        seed=[1, 1],
        temperature=[np.nan, 0.0],
        top_k=[-3, 0],
        top_p=[7.0, 1.0],
    )
    assert np.all(np.isfinite(odd["score"]))
    # No temperature takes the likeliest token, as a greedy search.
    greedy = transformer.translator("ca déb", num_beams=1)
    assert odd["text"][1].decode("utf-8") == greedy


def test_scores_of_given_targets_are_those_of_the_translator(served):
    translator = served.translator
    targets = ["déb", "", "a" * 40, "b c", " ", "ca"]
    found = served.run("score", source=TEXTS, target=targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the target that is cut
        expected = translator.score(TEXTS, targets)
    np.testing.assert_allclose(
        found["log_prob"], [score.log_prob for score in expected], rtol=1e-4
    )
    assert list(found["num_tokens"]) == [score.num_tokens for score in expected]


def test_attention_is_that_of_the_translator(served):
    translator = served.translator
    found = served.run("attention", source=TEXTS)
    for row, (best,) in enumerate(translator.translate(TEXTS, return_attention=True)):
        assert found["text"][row].decode("utf-8") == best.text
        if best.attention is None:
            assert not found["weights"][row].any()
            continue
        length, width = best.attention.shape
        shown = min(width, 9)
        np.testing.assert_allclose(
            found["weights"][row, :length, :shown], best.attention[:, :shown], atol=1e-4
        )
        tokens = [token.decode("utf-8") for token in found["source_tokens"][row]]
        assert tokens[:shown] == list(best.source_tokens)[:shown]
        assert not any(tokens[width:])
        tokens = [token.decode("utf-8") for token in found["target_tokens"][row]]
        assert tokens[:length] == list(best.tokens)


def test_a_model_without_attention_has_no_such_signature(tiny_tokenizers, tmp_path):
    keras.utils.set_random_seed(3)
    sizes = [
        getattr(tiny_tokenizers, side).vocabulary_size for side in ("source", "target")
    ]
    model = RecurrentSeq2Seq.from_preset(
        "sutskever2014", *sizes, units=8, embedding_dim=8
    )
    translator = Translator(model, tiny_tokenizers)
    translator.decoding = DecodingConfig(num_beams=1, max_length=5)
    folder = export_saved_model(translator, tmp_path)
    assert "attention" not in Graph(folder).signatures
    assert verify(folder, run=translator, sentences=["ca déb", "b", ""]).ok


def test_warmup_has_requests_for_every_signature_that_are_answered(transformer):
    requests = read_warmup(
        transformer.folder / "assets.extra" / "tf_serving_warmup_requests"
    )
    names = {name for name, _ in requests}
    assert names == set(transformer.signatures) - {"__saved_model_init_op"}
    for name, inputs in requests:
        for value in transformer.run(name, **inputs).values():
            assert len(value) == 1
    manifest = json.loads((transformer.folder / "manifest.json").read_text("utf-8"))
    assert manifest["warmup_requests"] == len(requests)


def test_configuration_for_a_server_matches_the_folder(transformer):
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    path = transformer.folder.parent
    config = text_format.Parse(
        (path / "models.config").read_text(encoding="utf-8"),
        model_server_config_pb2.ModelServerConfig(),
    )
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == (path.name, f"/models/{path.name}")
    command = (path / "serve.sh").read_text(encoding="utf-8")
    assert f'-v "$PWD:/models/{path.name}:ro"' in command
    assert f"/models/{path.name}/batching.config" in command
    batching = (path / "batching.config").read_text(encoding="utf-8")
    sizes = re.findall(r"allowed_batch_sizes: ([0-9]+)", batching)
    assert f"max_batch_size {{ value: {sizes[-1]} }}" in batching
    assert "pad_variable_length_inputs: true" in batching


def test_configuration_that_a_user_changed_stays(quick_writer, tmp_path):
    export_saved_model(quick_writer, tmp_path)
    (tmp_path / "batching.config").write_text("mine", encoding="utf-8")
    export_saved_model(quick_writer, tmp_path)
    assert (tmp_path / "batching.config").read_text(encoding="utf-8") == "mine"


def test_a_graph_that_fails_a_check_is_not_published(
    quick_writer, tmp_path, monkeypatch
):
    good = export_saved_model(quick_writer, tmp_path)
    before = {file: file.read_bytes() for file in good.rglob("*") if file.is_file()}
    forbidden = saved_model.static_checks.__globals__
    monkeypatch.setitem(forbidden, "CORE_OPERATIONS", CORE_OPERATIONS - {"MatMul"})
    with pytest.raises(ValueError, match="MatMul is not allowed.*"):
        export_saved_model(quick_writer, tmp_path)
    with pytest.raises(ValueError, match="Nothing was published"):
        export_saved_model(quick_writer, tmp_path, version=1, overwrite=True)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["1"]
    assert before == {f: f.read_bytes() for f in good.rglob("*") if f.is_file()}


def test_compiled_by_xla_where_it_is_asked_for(tiny_tokenizers, tmp_path):
    translator = make_translator("transformer", tiny_tokenizers, num_beams=1)
    folder = export_saved_model(translator, tmp_path, jit=True)
    assert Graph(folder).xla_compiled()
    served = Served(translator, folder)
    found = served.run("translate", source=TEXTS)
    served.session.close()
    assert [t.decode("utf-8") for t in found["text"]] == translator(TEXTS)


def test_two_exports_have_the_same_signatures(tiny_tokenizers, tmp_path):
    translator = make_translator("recurrent_simple", tiny_tokenizers)
    folders = [export_saved_model(translator, tmp_path) for _ in range(2)]
    one, two = (json.loads((f / "manifest.json").read_text("utf-8")) for f in folders)
    assert one["signatures"] == two["signatures"]
    assert one["operations"] == two["operations"]


def test_weights_are_stored_once_for_all_signatures(transformer):
    stored = tf.train.list_variables(str(transformer.folder / "variables/variables"))
    sizes = [int(np.prod(shape)) for name, shape in stored if "_CHECKPOINT" not in name]
    counted = transformer.translator.model.count_params()
    assert counted <= sum(sizes) <= counted + 8


def test_batches_of_one_two_and_seventeen_are_answered_in_order(transformer):
    translator = transformer.translator
    alone = {text: translator(text).encode("utf-8") for text in TEXTS}
    for size in (1, 2, 17):
        texts = [TEXTS[row % len(TEXTS)] for row in range(size)]
        found = transformer.run("serving_default", source=texts)
        assert list(found["text"]) == [alone[text] for text in texts]


def test_blank_sources_get_blank_texts_and_score_zero(transformer):
    blanks = ["", "  \t ", "\ufeff", "\r\n"]
    found = transformer.run("serving_default", source=blanks)
    assert list(found["text"]) == [b""] * 4
    assert list(found["score"]) == [0.0] * 4
    ids = transformer.run("decode_ids", ids=[[4, 5], [3, 3]], lengths=[0, 1])
    assert not ids["output_ids"].any()
    assert list(ids["output_lengths"]) == [0, 0]
    empty = transformer.run("decode_ids", ids=np.zeros((2, 0)), lengths=[0, 0])
    assert list(empty["output_lengths"]) == [0, 0]


def test_ids_outside_the_vocabulary_count_as_unknown(transformer):
    lengths = [3, 3]
    odd = transformer.run("decode_ids", ids=[[4, 9999, 3], [-1, 5, 3]], lengths=lengths)
    unknown = transformer.run("decode_ids", ids=[[4, 1, 3], [1, 5, 3]], lengths=lengths)
    np.testing.assert_array_equal(odd["output_ids"], unknown["output_ids"])


def test_bytes_that_are_no_text_get_an_answer_of_valid_text(transformer):
    sources = [b"\xff\xfe", b"a\xf0\x9f\x98", b"\x00\x07\x1b", 'é😀\n"'.encode()]
    found = transformer.run("serving_default", source=sources)
    assert all(isinstance(text.decode("utf-8"), str) for text in found["text"])
    assert np.all(np.isfinite(found["score"]))
    # The third holds nothing but controls, which are removed.
    assert found["text"][2] == b""


def test_source_longer_than_the_positions_is_cut_as_in_python(transformer):
    translator = transformer.translator
    text = "abcd déc " * 5
    with pytest.warns(UserWarning, match="16 tokens"):
        expected = translator(text)
    found = transformer.run("serving_default", source=[text])
    assert found["text"][0].decode("utf-8") == expected
    ids = [*translator.tokenizers.source.encode(text), 3]
    cut = transformer.run("decode_ids", ids=[ids], lengths=[len(ids)])
    by_hand = transformer.run("decode_ids", ids=[[*ids[:15], 3]], lengths=[16])
    np.testing.assert_array_equal(cut["output_ids"], by_hand["output_ids"])


def test_manifest_holds_sums_versions_and_fingerprints_but_no_local_path(transformer):
    translator, folder = transformer.translator, transformer.folder
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    files = {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file() and file.name != "manifest.json"
    }
    assert manifest["files"] == {name: sha.hexdigest() for name, sha in files.items()}
    assert {"saved_model.pb", "tokenizer/tokenizer.json"} <= set(files)
    assert manifest["versions"]["keras"] == keras.__version__
    assert manifest["tokenizer"] == {
        "source": translator.tokenizers.source.fingerprint,
        "target": translator.tokenizers.target.fingerprint,
    }
    local = [str(folder.parent), str(Path(saved_model.__file__).parent)]
    for file in folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [place for place in local if place.encode() in content], file


def test_versions_count_up_and_an_existing_one_is_kept(quick_writer, tmp_path):
    translator = quick_writer
    assert export_saved_model(translator, tmp_path) == tmp_path / "1"
    assert export_saved_model(translator, tmp_path, version=7) == tmp_path / "7"
    before = (tmp_path / "7" / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match=r"Version 7 exists.*the next is 8"):
        export_saved_model(translator, tmp_path, version=7)
    assert (tmp_path / "7" / "manifest.json").read_bytes() == before
    export_saved_model(translator, tmp_path, version=7, num_beams=1, overwrite=True)
    after = json.loads((tmp_path / "7" / "manifest.json").read_text(encoding="utf-8"))
    assert after["decoding"]["num_beams"] == 1
    assert json.loads(before)["signatures"] == after["signatures"]
    folders = sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir())
    assert folders == ["1", "7"]


def test_failed_export_leaves_nothing_behind(quick_writer, tmp_path, monkeypatch):
    translator = quick_writer

    def fail(*arguments, **facts):
        raise OSError("disk full")

    monkeypatch.setattr(saved_model, "write_manifest", fail)
    with pytest.raises(OSError, match="disk full"):
        export_saved_model(translator, tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, r"`num_beams`.*at least 1.*num_beams=0"),
        ({"max_length": 0}, r"`max_length`.*at least 1.*max_length=0"),
        ({"version": -2}, r"`version`.*at least 0.*Received: -2"),
        ({"length_penalty": -1.0}, r"`length_penalty`.*length_penalty=-1.0"),
    ],
)
def test_option_out_of_range_is_named(transformer, tmp_path, options, message):
    translator = transformer.translator
    with pytest.raises(ValueError, match=message):
        export_saved_model(translator, tmp_path, **options)


def test_other_backend_is_named_with_what_to_do(transformer, tmp_path, monkeypatch):
    translator = transformer.translator
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(
        ValueError, match=r"KERAS_BACKEND=jax.*KERAS_BACKEND=tensorflow"
    ):
        export_saved_model(translator, tmp_path)


def test_output_limit_follows_the_source_as_the_run_says(tiny_tokenizers):
    translator = make_translator(
        "recurrent_gru", tiny_tokenizers, max_length=12, max_length_ratio=2.0
    )
    # 2 * length + 3, at most 12; the last holds for every longer source.
    for max_length, expected in ((None, [3, 5, 7, 9, 11, 12, 12, 12]), (5, [5])):
        search = GraphSearch(
            translator.model, translator.decoding, max_length=max_length
        )
        # Longer tables only repeat the last.
        table = search.tables["length_limits"]
        assert table[: len(expected)] == expected
        assert set(table[len(expected) :]) <= {expected[-1]}


@pytest.mark.parametrize(
    "table",
    [
        {"num_beams": 1, "no_repeat_ngram_size": 1, "repetition_penalty": 1.5},
        {
            "num_beams": 3,
            "coverage_penalty": 0.2,
            "length_reward": 0.3,
            "length_penalty_base": 0.0,
            "min_length_ratio": 0.7,
            "no_repeat_ngram_size": 2,
            "allow_unknown": False,
        },
        {"num_beams": 4, "num_groups": 2, "diversity_penalty": 0.5, "stop": "count"},
    ],
)
def test_every_setting_of_the_run_is_in_the_graph(tiny_tokenizers, tmp_path, table):
    translator = make_translator("recurrent_gru", tiny_tokenizers, **table)
    folder = export_saved_model(translator, tmp_path / "model")
    served = Served(translator, folder)
    found = served.run("serving_default", source=TEXTS)
    served.session.close()
    expected = [hypotheses[0] for hypotheses in translator.translate(TEXTS)]
    assert [t.decode() for t in found["text"]] == [h.text for h in expected]
    np.testing.assert_allclose(found["score"], [h.score for h in expected], atol=1e-4)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert (
        manifest["decoding"].items()
        >= {
            name: value
            for name, value in table.items()
            if name not in ("min_length_ratio", "allow_unknown")
        }.items()
    )
    assert verify(folder).ok


def test_the_export_of_a_run_that_draws_searches(tiny_tokenizers, tmp_path):
    translator = make_translator("recurrent_gru", tiny_tokenizers, temperature=0.5)
    served = Served(translator, export_saved_model(translator, tmp_path / "model"))
    found = served.run("translate", source=TEXTS)
    served.session.close()
    assert [t.decode("utf-8") for t in found["text"]] == translator(
        TEXTS, temperature=0.0
    )


def test_mixed_precision_model_gives_float32_scores(tiny_tokenizers, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        translator = make_translator("transformer", tiny_tokenizers, num_beams=1)
    finally:
        keras.config.set_dtype_policy("float32")
    served = Served(translator, export_saved_model(translator, tmp_path))
    found = served.run("serving_default", source=TEXTS)
    assert found["score"].dtype == np.float32
    assert np.all(np.isfinite(found["score"]))


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_text_is_cleaned_in_the_graph_as_in_python(text):
    found = clean_text(tf.constant([text.encode("utf-8")])).numpy()[0].decode("utf-8")
    assert found == clean_line(text)


def test_every_character_below_u_3000_is_cleaned_as_in_python():
    texts = [f"a{chr(code)}b" for code in range(0x3000)] + ["a\r\n", "a\r", "a\n\r\n"]
    found = clean_text(tf.constant([text.encode("utf-8") for text in texts])).numpy()
    assert [value.decode("utf-8") for value in found] == [
        clean_line(text) for text in texts
    ]
