"""The models, all to the one contract of `keras_seq2seq.models.base`."""

from keras_seq2seq.models.base import Seq2Seq
from keras_seq2seq.models.convolutional import ConvSeq2Seq
from keras_seq2seq.models.ensemble import EnsembleSeq2Seq
from keras_seq2seq.models.minimal_recurrent import MinimalRecurrentSeq2Seq
from keras_seq2seq.models.recurrent import RecurrentSeq2Seq
from keras_seq2seq.models.regression import RegressionSeq2Seq
from keras_seq2seq.models.sequence import ManyToMany, ManyToOne, OneToMany
from keras_seq2seq.models.transformer import TransformerSeq2Seq

MODELS = {
    "ConvSeq2Seq": ConvSeq2Seq,
    "MinimalRecurrentSeq2Seq": MinimalRecurrentSeq2Seq,
    "RecurrentSeq2Seq": RecurrentSeq2Seq,
    "TransformerSeq2Seq": TransformerSeq2Seq,
}

#: Models over vectors: the same four calls, with vectors in place of tokens.
REGRESSION_MODELS = {"RegressionSeq2Seq": RegressionSeq2Seq}

__all__ = [
    "MODELS",
    "REGRESSION_MODELS",
    "ConvSeq2Seq",
    "EnsembleSeq2Seq",
    "ManyToMany",
    "ManyToOne",
    "MinimalRecurrentSeq2Seq",
    "OneToMany",
    "RecurrentSeq2Seq",
    "RegressionSeq2Seq",
    "Seq2Seq",
    "TransformerSeq2Seq",
]
