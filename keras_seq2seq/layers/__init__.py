"""Building blocks of the models, written once in `keras.ops` for every backend."""

from keras_seq2seq.layers.attention import (
    AdditiveScore,
    BilinearScore,
    DotScore,
    attend,
)
from keras_seq2seq.layers.embeddings import TokenEmbedding
from keras_seq2seq.layers.masks import causal_mask, masked_softmax, padding_mask
from keras_seq2seq.layers.positions import PositionEncoding, sinusoids
from keras_seq2seq.layers.recurrent import (
    GRUCell,
    LSTMCell,
    RecurrentLayer,
    SimpleCell,
    scan_time,
)
from keras_seq2seq.layers.transformer import (
    CrossAttention,
    SelfAttention,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

__all__ = [
    "AdditiveScore",
    "BilinearScore",
    "CrossAttention",
    "DotScore",
    "GRUCell",
    "LSTMCell",
    "PositionEncoding",
    "RecurrentLayer",
    "SelfAttention",
    "SimpleCell",
    "TokenEmbedding",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "attend",
    "causal_mask",
    "masked_softmax",
    "padding_mask",
    "scan_time",
    "sinusoids",
]
