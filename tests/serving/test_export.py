"""A run that was exported by this package, served to several clients at once."""

import threading

import numpy as np
import pytest

from keras_seq2seq.export.saved_model import export_saved_model
from keras_seq2seq.pipelines import load
from keras_seq2seq.serving import Client
from keras_seq2seq.serving.batching_config import read_batching_config
from keras_seq2seq.serving.server import Addresses, Server
from tests.helpers import write_untrained_run

pytestmark = pytest.mark.export

TEXTS = ["ca déb", "b", "", "éc abd abc d", "   ", "a", "dé\tab"]


@pytest.fixture(scope="module")
def run(tiny_tokenizers, tmp_path_factory):
    """A run folder with its export."""
    run = write_untrained_run(
        tmp_path_factory.mktemp("runs") / "letters",
        tiny_tokenizers,
        name="TransformerSeq2Seq",
        dim=8,
        num_heads=2,
        feedforward_dim=8,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_positions=32,
    )
    export_saved_model(run, run / "exports" / "saved_model", num_beams=2, max_length=6)
    return run


@pytest.fixture(scope="module")
def server(run):
    config = run / "exports" / "saved_model" / "batching.config"
    options = read_batching_config(config)
    assert len(options.allowed_batch_sizes) > 1
    addresses = Addresses(port=0, grpc_port=0)
    with Server(run, addresses=addresses, batching=options) as server:
        yield server


@pytest.fixture(params=["rest", "grpc"])
def client(request, server):
    address = server.address if request.param == "rest" else server.grpc_address
    return Client(address, model="letters")


def test_answers_are_those_of_the_run(run, client):
    expected = load(run).translate(TEXTS, num_beams=2, max_length=6)
    assert client.translate(TEXTS) == [best.text for best, *_ in expected]
    found = client.predict({"source": TEXTS})
    np.testing.assert_allclose(
        found["score"], [best.score for best, *_ in expected], atol=1e-4
    )


def test_ids_of_different_lengths_are_merged(run, server):
    tokenizer = load(run).tokenizers.source
    client = Client(server.address, model="letters")
    rows = [[*tokenizer.encode(text), 3] for text in TEXTS]

    def ask(row):
        inputs = {"ids": [row], "lengths": [len(row)]}
        return client.predict(inputs, signature_name="decode_ids")["output_ids"]

    alone = [ask(row) for row in rows]
    found = [None] * len(rows)

    def work(number):
        found[number] = ask(rows[number])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(rows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_requests_of_eight_threads_are_not_mixed_up(client):
    alone = {text: client.translate([text])[0] for text in TEXTS}
    wrong = []

    def work(number):
        for count in range(6):
            texts = [TEXTS[(number + count) % len(TEXTS)], TEXTS[count % len(TEXTS)]]
            if client.translate(texts) != [alone[text] for text in texts]:
                wrong.append(texts)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_every_signature_answers_alike_over_both_protocols(server):
    rest = Client(server.address, model="letters")
    grpc = Client(server.grpc_address, model="letters")
    signatures = rest.metadata()["signatures"]
    assert signatures == grpc.metadata()["signatures"]
    assert {"serving_default", "decode_ids"} <= set(signatures)
    values = {"string": "ca", "int32": 2, "float": 0.5}
    for name, signature in signatures.items():
        inputs = {
            key: [[5, 3]] if len(tensor["shape"]) == 2 else [values[tensor["dtype"]]]
            for key, tensor in signature["inputs"].items()
        }
        one = rest.predict(inputs, signature_name=name)
        other = grpc.predict(inputs, signature_name=name)
        assert set(one) == set(other) == set(signature["outputs"])
        for key, value in one.items():
            if signature["outputs"][key]["dtype"] == "float":
                np.testing.assert_allclose(value, other[key], rtol=1e-5, atol=1e-6)
            else:
                assert value == other[key], (name, key)
