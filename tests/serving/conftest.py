"""A small server that the tests of protocols share."""

import shutil

import pytest

from tests.serving.tiny import save_tiny


@pytest.fixture(scope="session")
def tiny_versions(tmp_path_factory):
    """Two versions that mark their texts `v1` and `v2`; to copy from."""
    folder = tmp_path_factory.mktemp("tiny_versions")
    return {number: save_tiny(folder / str(number), f"v{number}") for number in (1, 2)}


@pytest.fixture
def tiny_model(tiny_versions, tmp_path):
    """A folder `tiny` with version 1."""
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_versions[1], folder / "1")
    return folder


@pytest.fixture(scope="session")
def tiny_server(tiny_versions, tmp_path_factory):
    """A server of the small model on free ports, with narrow limits and batching."""
    from keras_seq2seq.serving.batching import BatchingOptions
    from keras_seq2seq.serving.limits import Limits
    from keras_seq2seq.serving.server import Addresses, Server

    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_versions[1], folder / "1")
    with Server(
        folder,
        addresses=Addresses(port=0, grpc_port=0),
        batching=BatchingOptions(max_batch_size=6, batch_timeout_micros=1000),
        limits=Limits(2000, max_rows=8, max_text_characters=20, timeout_seconds=10),
    ) as server:
        yield server
