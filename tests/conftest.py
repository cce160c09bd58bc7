"""Fixtures that several test files share; every text here is made up."""

import os
import random
import sys

# Before anything imports them: no log noise, no window system.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "agg")

import numpy as np
import pytest
from hypothesis import settings

from tests.helpers import TINY_PAIRS, write_untrained_run

# The same examples in each run, and no time limit: a change of the code alone can
# turn a test red. `pytest --hypothesis-profile=explore` looks for new examples.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def seed():
    """The same random numbers in each test, whichever tests ran before it."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  (Keras initialisers and users' code read it)
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(7)
    return 7


@pytest.fixture
def tiny_pairs():
    """Made-up pairs of a source and a target sentence."""
    return list(TINY_PAIRS)


@pytest.fixture
def tiny_corpus(tmp_path):
    """The tiny pairs as two parallel text files; returns both paths."""
    paths = tmp_path / "tiny.source", tmp_path / "tiny.target"
    for side, path in enumerate(paths):
        lines = "".join(pair[side] + "\n" for pair in TINY_PAIRS)
        path.write_text(lines, encoding="utf-8", newline="")
    return paths


@pytest.fixture(scope="session")
def tiny_tokenizers():
    """Separate character tokenizers trained on the tiny pairs."""
    from keras_seq2seq.corpora import Pair
    from keras_seq2seq.tokenizers import TokenizerPair

    return TokenizerPair.train(
        [Pair(*pair) for pair in TINY_PAIRS],
        shared=False,
        vocabulary_size=64,
        model_type="char",
    )


@pytest.fixture
def tiny_run(tmp_path, tiny_tokenizers):
    """A complete run folder of an untrained Transformer of width 8."""
    return write_untrained_run(
        tmp_path / "tiny_run",
        tiny_tokenizers,
        name="TransformerSeq2Seq",
        dim=8,
        num_heads=2,
        feedforward_dim=8,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_positions=32,
    )
