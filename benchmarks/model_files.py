"""The model in the form of every system that decode.py measures, and its sources."""

import json
import traceback
from pathlib import Path

import numpy as np
import throughput
from peers import END, RANKING, MissingError, beams_of, token_names


def prepare(folder, settings):
    """Writes model and sources; what fails is kept for the worker to report."""
    if settings["throughput"]:
        count = throughput.write_sentences(folder, settings)
        batches = dict.fromkeys(settings["cells"], [{"sources": count}])
        writers = {"ctranslate2": throughput.write_ctranslate2_folders}
        arguments = folder, settings
    else:
        import keras_seq2seq as ks

        model, sources = _model_and_sources(settings, ks)
        model.save(folder / "model.keras")
        batches = {
            name: _batches(sources, cell["batch"], settings)
            for name, cell in settings["cells"].items()
        }
        writers = {
            "litert": _write_litert,
            "ctranslate2": _write_ctranslate2,
            "marian": _write_marian,
        }
        arguments = folder, model, settings
    cells = {
        name: {**cell, "batches": batches[name]}
        for name, cell in settings["cells"].items()
    }
    (folder / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
    for kind in sorted({name.split("_")[0] for name in settings["runtimes"]}):
        try:
            if kind in writers:
                writers[kind](*arguments)
        except Exception as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            (folder / f"{kind}.missing").write_text(reason, encoding="utf-8")


def _model_and_sources(settings, ks):
    if settings["run"]:
        translator = ks.load(settings["run"])
        lines = Path(settings["text"]).read_text(encoding="utf-8").splitlines()
        encoded = translator.tokenizers.source.encode(lines[: settings["limit"]])
        longest = settings["max_length"] - 1
        return translator.model, [[*ids[:longest], END] for ids in encoded if ids]
    import keras

    from keras_seq2seq.models import TransformerSeq2Seq

    keras.utils.set_random_seed(settings["seed"])
    size = settings["vocabulary"]
    model = TransformerSeq2Seq(size, size, **settings["model"])
    generator = np.random.default_rng(settings["seed"])
    shape = max(settings["batches"]), settings["source_length"] - 1
    ids = generator.integers(4, size, size=shape)
    return model, [[*map(int, row), END] for row in ids]


def _batches(sources, size, settings):
    """Sources of similar length side by side, and the most tokens of their outputs."""
    if not settings["run"]:
        return [{"sources": sources[:size], "limit": settings["length"]}]
    order = sorted(sources, key=len, reverse=True)
    return [
        {
            "sources": order[start : start + size],
            "limit": min(settings["max_length"], 2 * len(order[start]) + 8),
        }
        for start in range(0, len(order), size)
    ]


def _write_litert(folder, model, settings):
    from keras_seq2seq.config import DecodingConfig
    from keras_seq2seq.export.graph_search import GraphSearch
    from keras_seq2seq.export.litert_graphs import convert

    fixed = not settings["run"]
    length = settings["length"] if fixed else settings["max_length"]
    options = {**RANKING, "min_length": length - 1 if fixed else 0}
    for kind, quantization in (("float32", None), ("int8", "dynamic")):
        if f"litert_{kind}" not in settings["runtimes"]:
            continue
        for beams in beams_of(settings):
            decoding = DecodingConfig(num_beams=beams, **options)
            search = GraphSearch(model, decoding, max_length=length, fills="slice")
            if fixed:  # as the peers, which ban nothing
                search.request.constants["banned_ids"] = ()
            content = convert(
                search, quantization=quantization, signatures=("translate",)
            )
            (folder / f"litert_{kind}_{beams}.tflite").write_bytes(content)


def _write_ctranslate2(folder, model, settings):
    from keras_seq2seq.export.ctranslate2 import transformer_spec

    for kind, quantization in (("float32", None), ("int8", "int8")):
        if f"ctranslate2_{kind}" not in settings["runtimes"]:
            continue
        spec = transformer_spec(
            model,
            token_names(model.source_vocabulary_size),
            token_names(model.target_vocabulary_size),
        )
        spec.validate()
        spec.optimize(quantization=quantization)
        path = folder / f"ctranslate2_{kind}"
        path.mkdir()
        spec.save(str(path))


def _write_marian(folder, model, settings):
    """The weights by the names of `MarianMTModel`."""
    arguments = model.get_config()
    held = {
        "norm": "post",
        "tie_output": True,
        "attention_bias": True,
        "positions": "sinusoidal",
        "attention_score": "scaled_dot",
        "window": None,
    }
    for name, value in held.items():
        if arguments[name] != value:
            raise MissingError(f"MarianMTModel has {name}={value!r} only")
    arrays = {
        "model.encoder.embed_tokens.weight": model.source_embedding.embeddings,
        "model.decoder.embed_tokens.weight": model.target_embedding.embeddings,
    }
    zeros = np.zeros((1, settings["max_positions"], model.dim), "float32")
    for side, layer in (
        ("encoder", model.source_positions),
        ("decoder", model.target_positions),
    ):
        arrays[f"model.{side}.embed_positions.weight"] = layer(zeros)[0]
        blocks = getattr(model, f"{side}_blocks")
        for index, block in enumerate(blocks):
            names = f"model.{side}.layers.{index}"
            arrays |= _marian_block(names, block)
    arrays = {name: np.asarray(value) for name, value in arrays.items()}
    np.savez(folder / "marian.npz", **arrays)
    config = {
        "vocab_size": model.source_vocabulary_size,
        "decoder_vocab_size": model.target_vocabulary_size,
        "d_model": arguments["dim"],
        "encoder_layers": arguments["num_encoder_layers"],
        "decoder_layers": arguments["num_decoder_layers"],
        "share_encoder_decoder_embeddings": arguments["share_embeddings"],
        "max_position_embeddings": settings["max_positions"],
        "activation_function": "relu",
        "scale_embedding": True,
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_attention_heads"] = arguments["num_heads"]
        config[f"{side}_ffn_dim"] = arguments["feedforward_dim"]
    (folder / "marian.json").write_text(json.dumps(config), encoding="utf-8")


def _marian_block(names, block):
    arrays = {}

    def dense(name, kernel, bias):
        arrays[f"{names}.{name}.weight"] = np.asarray(kernel).T
        arrays[f"{names}.{name}.bias"] = bias

    def fused(name, layer, parts):
        kernels = np.split(np.asarray(layer.kernel), len(parts), axis=1)
        biases = np.split(np.asarray(layer.bias), len(parts))
        for part, kernel, bias in zip(parts, kernels, biases, strict=True):
            dense(f"{name}.{part}", kernel, bias)

    def norm(name, layer):
        arrays[f"{names}.{name}.weight"] = layer.gamma
        arrays[f"{names}.{name}.bias"] = layer.beta

    own = block.self_attention
    fused("self_attn", own.input_projection, ("q_proj", "k_proj", "v_proj"))
    fused("self_attn", own.output_projection, ("out_proj",))
    norm("self_attn_layer_norm", block.self_attention_norm)
    if hasattr(block, "cross_attention"):
        cross = block.cross_attention
        fused("encoder_attn", cross.query_projection, ("q_proj",))
        fused("encoder_attn", cross.memory_projection, ("k_proj", "v_proj"))
        fused("encoder_attn", cross.output_projection, ("out_proj",))
        norm("encoder_attn_layer_norm", block.cross_attention_norm)
    dense("fc1", block.inner.kernel, block.inner.bias)
    dense("fc2", block.outer.kernel, block.outer.bias)
    norm("final_layer_norm", block.feedforward_norm)
    return arrays
