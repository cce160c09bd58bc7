"""Building blocks of the models, written once in `keras.ops` for every backend."""

from keras_seq2seq.layers.attention import (
    AdditiveScore,
    Attention,
    BilinearScore,
    DotScore,
    LocationScore,
    attend,
    make_score,
)
from keras_seq2seq.layers.bridge import Bridge
from keras_seq2seq.layers.convolution import (
    ConvDecoderBlock,
    ConvEncoderBlock,
    WeightNormConv,
    scale_gradient,
)
from keras_seq2seq.layers.embeddings import TokenEmbedding
from keras_seq2seq.layers.local_attention import local_attend
from keras_seq2seq.layers.local_window import LocalWindow
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
from keras_seq2seq.layers.multi_head_attention import CrossAttention, SelfAttention
from keras_seq2seq.layers.positions import PositionEncoding, rotate, sinusoids
from keras_seq2seq.layers.recurrent import (
    GRUCell,
    LSTMCell,
    RecurrentLayer,
    SimpleCell,
    scan_time,
)
from keras_seq2seq.layers.recurrent_decoder import Readout, RecurrentDecoder
from keras_seq2seq.layers.transformer import (
    LayerNormalization,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

__all__ = [
    "AdditiveScore",
    "Attention",
    "BilinearScore",
    "Bridge",
    "ConvDecoderBlock",
    "ConvEncoderBlock",
    "CrossAttention",
    "DotScore",
    "GRUCell",
    "LSTMCell",
    "LayerNormalization",
    "LocalWindow",
    "LocationScore",
    "MinGRU",
    "MinLSTM",
    "MinimalDecoderBlock",
    "MinimalEncoderBlock",
    "PositionEncoding",
    "Readout",
    "RecurrentDecoder",
    "RecurrentLayer",
    "SelfAttention",
    "SimpleCell",
    "TokenEmbedding",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "WeightNormConv",
    "attend",
    "causal_mask",
    "linear_scan",
    "local_attend",
    "log_space_scan",
    "make_score",
    "masked_softmax",
    "padding_mask",
    "rotate",
    "scale_gradient",
    "scan_time",
    "sequential_scan",
    "sinusoids",
]
