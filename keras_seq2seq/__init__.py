"""Sequence-to-sequence models in Keras 3, from text files to a deployed model.

Public names are resolved when they are first used, so that importing this package
imports neither Keras nor TensorFlow:

    import keras_seq2seq as ks
    translator = ks.load("saved_models/quickstart")
    translator(["3 mars 2024"])

Dimension letters, the same everywhere: `B` batch, `S` source length, `T` target
length, `D` model width, `H` heads, `K` width per head, `V` vocabulary, `N` beams.
Axis 0 is always the batch, axis 1 the time.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Which module defines each public name.
_PUBLIC = {
    "Cleaning": "corpora",
    "ConvSeq2Seq": "models",
    "CorpusReport": "corpora",
    "EncodedCorpus": "datasets",
    "Forecaster": "forecaster",
    "Hypothesis": "pipelines",
    "MODELS": "models",
    "MinimalRecurrentSeq2Seq": "models",
    "Pair": "corpora",
    "PairCorpus": "corpora",
    "EnsembleSeq2Seq": "models",
    "PairDataset": "datasets",
    "REGRESSION_MODELS": "models",
    "RecurrentSeq2Seq": "models",
    "RegressionSeq2Seq": "models",
    "RunConfig": "config",
    "Tokenizer": "tokenizers",
    "TokenizerPair": "tokenizers",
    "TransformerSeq2Seq": "models",
    "Translator": "pipelines",
    "beam_search": "decoding",
    "evaluate": "evaluation",
    "evaluate_texts": "evaluation",
    "export_ctranslate2": "export.ctranslate2",
    "export_litert": "export.litert",
    "export_saved_model": "export.saved_model",
    "greedy_search": "decoding",
    "load": "pipelines",
    "load_config": "config",
    "load_ensemble": "ensembles",
    "load_runtime": "export.runtimes",
    "plot_alignment": "analysis",
    "train": "trainer",
    "train_forecaster": "forecasting",
    "verify": "export.verify",
}

__all__ = sorted([*_PUBLIC, "__version__"])  # noqa: PLE0605

if TYPE_CHECKING:
    from keras_seq2seq.analysis import plot_alignment as plot_alignment
    from keras_seq2seq.config import RunConfig as RunConfig
    from keras_seq2seq.config import load_config as load_config
    from keras_seq2seq.corpora import Cleaning as Cleaning
    from keras_seq2seq.corpora import CorpusReport as CorpusReport
    from keras_seq2seq.corpora import Pair as Pair
    from keras_seq2seq.corpora import PairCorpus as PairCorpus
    from keras_seq2seq.datasets import EncodedCorpus as EncodedCorpus
    from keras_seq2seq.datasets import PairDataset as PairDataset
    from keras_seq2seq.decoding import beam_search as beam_search
    from keras_seq2seq.decoding import greedy_search as greedy_search
    from keras_seq2seq.ensembles import load_ensemble as load_ensemble
    from keras_seq2seq.evaluation import evaluate as evaluate
    from keras_seq2seq.evaluation import evaluate_texts as evaluate_texts
    from keras_seq2seq.export.ctranslate2 import (
        export_ctranslate2 as export_ctranslate2,
    )
    from keras_seq2seq.export.litert import export_litert as export_litert
    from keras_seq2seq.export.runtimes import load_runtime as load_runtime
    from keras_seq2seq.export.saved_model import (
        export_saved_model as export_saved_model,
    )
    from keras_seq2seq.export.verify import verify as verify
    from keras_seq2seq.forecaster import Forecaster as Forecaster
    from keras_seq2seq.forecasting import train_forecaster as train_forecaster
    from keras_seq2seq.models import MODELS as MODELS
    from keras_seq2seq.models import REGRESSION_MODELS as REGRESSION_MODELS
    from keras_seq2seq.models import ConvSeq2Seq as ConvSeq2Seq
    from keras_seq2seq.models import EnsembleSeq2Seq as EnsembleSeq2Seq
    from keras_seq2seq.models import (
        MinimalRecurrentSeq2Seq as MinimalRecurrentSeq2Seq,
    )
    from keras_seq2seq.models import RecurrentSeq2Seq as RecurrentSeq2Seq
    from keras_seq2seq.models import RegressionSeq2Seq as RegressionSeq2Seq
    from keras_seq2seq.models import TransformerSeq2Seq as TransformerSeq2Seq
    from keras_seq2seq.pipelines import Hypothesis as Hypothesis
    from keras_seq2seq.pipelines import Translator as Translator
    from keras_seq2seq.pipelines import load as load
    from keras_seq2seq.tokenizers import Tokenizer as Tokenizer
    from keras_seq2seq.tokenizers import TokenizerPair as TokenizerPair
    from keras_seq2seq.trainer import train as train


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name, at its first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, also those not imported yet."""
    return __all__


# Keras finds the classes of a saved file by name, once they are defined. Where Keras
# is there already, defining them costs little.
if "keras" in sys.modules:
    for _name in ("models", "losses", "metrics", "schedules", "training_modes"):
        importlib.import_module(f"{__name__}.{_name}")
