"""Building blocks of the models, written once in `keras.ops` for every backend."""

from keras_seq2seq.layers.attention import (
    AdditiveScore,
    Attention,
    BilinearScore,
    DotScore,
    attend,
)
from keras_seq2seq.layers.local_attention import local_attend
from keras_seq2seq.layers.masks import causal_mask, masked_softmax, padding_mask
from keras_seq2seq.layers.multi_head_attention import CrossAttention, SelfAttention
from keras_seq2seq.layers.positions import PositionEncoding, rotate, sinusoids
from keras_seq2seq.layers.recurrent import (
    GRUCell,
    LSTMCell,
    RecurrentLayer,
    SimpleCell,
    scan_time,
)
from keras_seq2seq.layers.transformer import (
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

__all__ = [
    "AdditiveScore",
    "Attention",
    "BilinearScore",
    "CrossAttention",
    "DotScore",
    "GRUCell",
    "LSTMCell",
    "PositionEncoding",
    "RecurrentLayer",
    "SelfAttention",
    "SimpleCell",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "attend",
    "causal_mask",
    "local_attend",
    "masked_softmax",
    "padding_mask",
    "rotate",
    "scan_time",
    "sinusoids",
]
