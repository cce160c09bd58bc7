"""The recurrent systems of the papers, as arguments of `RecurrentSeq2Seq`.

A preset is what makes a system that system: cell, bridge, attention, readout. Sizes,
dropout and vocabulary are the user's; `training/` has a recipe for each.
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # RNN Encoder–Decoder, section 2 and appendix: the summary of the source at every
    # step, inside the reset gate, and at a maxout readout.
    "cho2014": {
        "cell": "gru",
        "reset_after": False,
        "bidirectional": False,
        "bridge": "context",
        "attention": "none",
        "gate_context": True,
        "readout": "maxout",
    },
    # The same as in its released code: the last state itself is the context, which
    # the reset gate does not reach.
    "cho2014_groundhog": {
        "cell": "gru",
        "reset_after": False,
        "bidirectional": False,
        "bridge": "plain_context",
        "attention": "none",
        "gate_context": False,
        "readout": "maxout",
    },
    # Deep LSTMs, the source reversed; only the states pass, layer by layer.
    "sutskever2014": {
        "cell": "lstm",
        "num_encoder_layers": 4,
        "num_decoder_layers": 4,
        "bidirectional": False,
        "bridge": "state",
        "attention": "none",
        "reverse_source": True,
    },
    # RNNsearch as the main text writes it: the readout sees the new state.
    "bahdanau2015": {
        "cell": "gru",
        "reset_after": False,
        "bidirectional": True,
        "bridge": "backward",
        "attention": "additive",
        "decoder": "bahdanau",
        "readout": "maxout",
    },
    # As appendix A.2.2 writes it: the readout sees the previous state.
    "bahdanau2015_appendix": {
        "cell": "gru",
        "reset_after": False,
        "bidirectional": True,
        "bridge": "backward",
        "attention": "additive",
        "decoder": "bahdanau_appendix",
        "readout": "maxout",
    },
    # As the released code runs: the state takes the token and the previous context
    # first, then attends.
    "bahdanau2015_groundhog": {
        "cell": "gru",
        "reset_after": False,
        "bidirectional": True,
        "bridge": "backward",
        "attention": "additive",
        "decoder": "groundhog",
        "readout": "maxout",
    },
    # Global attention with the general score and input feeding, the source reversed as
    # in all but the first row of table 1; two layers a side are half of the paper's.
    "luong2015": {
        "cell": "lstm",
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "bidirectional": False,
        "bridge": "state",
        "attention": "bilinear",
        "decoder": "luong",
        "input_feeding": True,
        "reverse_source": True,
    },
    # Its best single system: local attention around a predicted position.
    "luong2015_local": {
        "cell": "lstm",
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "bidirectional": False,
        "bridge": "state",
        "attention": "bilinear",
        "decoder": "luong",
        "input_feeding": True,
        "reverse_source": True,
        "window": 10,
        "window_center": "predictive",
    },
}
