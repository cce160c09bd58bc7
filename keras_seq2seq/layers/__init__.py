"""Building blocks of the models, written once in `keras.ops` for every backend."""

from keras_seq2seq.layers.attention import (
    AdditiveScore,
    BilinearScore,
    DotScore,
    attend,
)
from keras_seq2seq.layers.masks import causal_mask, masked_softmax, padding_mask
from keras_seq2seq.layers.minimal_blocks import (
    MinimalDecoderBlock,
    MinimalEncoderBlock,
)
from keras_seq2seq.layers.minimal_recurrent import (
    MinGRU,
    MinLSTM,
    linear_scan,
    log_space_scan,
    sequential_scan,
)
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
    "MinGRU",
    "MinLSTM",
    "MinimalDecoderBlock",
    "MinimalEncoderBlock",
    "PositionEncoding",
    "RecurrentLayer",
    "SelfAttention",
    "SimpleCell",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "attend",
    "causal_mask",
    "linear_scan",
    "log_space_scan",
    "masked_softmax",
    "padding_mask",
    "scan_time",
    "sequential_scan",
    "sinusoids",
]
