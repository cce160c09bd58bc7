"""Writes a trained Transformer as a folder that CTranslate2 runs.

CTranslate2 is an engine in C++ for Transformers, without TensorFlow or Keras. The
folder holds the weights, the vocabularies and the tokenizers, so that the pieces of a
text go in and the pieces of its translation come out:

    import ctranslate2, sentencepiece

    translator = ctranslate2.Translator("exported")
    source = sentencepiece.SentencePieceProcessor(
        model_file="exported/tokenizer/source.model"  # or shared.model
    )
    pieces = source.encode("3 mars 2024", out_type=str)
    found = translator.translate_batch([pieces], beam_size=4, disable_unk=True)
    print(found[0].hypotheses[0])

CTranslate2 itself appends END to sources and feeds START first; it cuts sources at 1024
tokens unless it is given `max_input_length=0`. With `disable_unk` UNK is never written,
as by a run with `allow_unknown = false`. Scores are those of a search of ours with
`length_penalty_base = 0` and `stop = "count"`, but that CTranslate2 divides the
probability of what is banned among the rest: UNK, and at first END, unless it is given
`min_decoding_length=0`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_seq2seq.export.folders import check_new_folder, written_whole
from keras_seq2seq.export.manifest import as_translator, write_manifest
from keras_seq2seq.pipelines import Translator
from keras_seq2seq.requests import make_request
from keras_seq2seq.tokenizers import END_ID, START_ID, UNK_ID, Tokenizer

# CTranslate2 computes other sinusoids than ours, so the table is written.
_SINUSOID_ROWS = 2048
_EPSILON = 1e-6
#: How CTranslate2 ranks and stops, as settings of ours. It knows no other penalties.
SEARCH: dict[str, Any] = {
    "length_penalty_base": 0.0,
    "stop": "count",
    "coverage_penalty": 0.0,
    "length_reward": 0.0,
    "num_groups": 1,
    "diversity_penalty": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_length_ratio": 0.0,
}


def export_ctranslate2(
    run_or_translator: str | Path | Translator,
    path: str | Path,
    *,
    quantization: str | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the folder of a Transformer, its vocabularies and its tokenizers.

    The folder appears complete or not at all: it is written under another name beside
    it, and then renamed.

    Args:
        run_or_translator: A run folder, or what `load` made of one.
        path: The folder to write.
        quantization: How weights are stored: `"int8"`, `"int16"`, `"float16"` or
            another type that CTranslate2 knows; None for float32.
        num_beams: Width of the beam of `translate --runtime ctranslate2`, and of what
            `verify` compares; by default the run's.
        length_penalty: Exponent of the length penalty there; by default the run's.
        overwrite: Whether what stands at `path` is replaced.

    Returns:
        The folder.

    Raises:
        ValueError: If the model is none that CTranslate2 can run, `quantization` is
            unknown, or the folder exists.
        ImportError: If CTranslate2 is not installed.
    """
    path = Path(path)
    kinds = _ctranslate2().specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization is not None and quantization not in kinds:
        raise ValueError(
            f"`quantization` must be None or one of {', '.join(map(repr, kinds))}. "
            f"Received: quantization={quantization!r}."
        )
    check_new_folder(path, overwrite)
    translator = as_translator(run_or_translator)
    request = make_request(
        translator.decoding,
        {
            "num_beams": num_beams,
            "length_penalty": length_penalty,
            "temperature": 0.0,
            **SEARCH,
        },
    )
    tokenizers = translator.tokenizers
    spec = transformer_spec(
        translator.model, _pieces(tokenizers.source), _pieces(tokenizers.target)
    )
    spec.validate()
    spec.optimize(quantization=quantization)

    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as folder:
        folder.mkdir()
        spec.save(str(folder))
        tokenizers.save(folder / "tokenizer")
        write_manifest(
            folder,
            "ctranslate2",
            translator,
            decoding=request.constants,
            facts={
                "settings": request.settings.model_dump(),
                "quantization": quantization,
            },
            max_positions=translator.model.max_positions or _SINUSOID_ROWS,
            more_versions=("ctranslate2",),
        )
    return path


def transformer_spec(
    model: Any, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> Any:
    """Returns a `TransformerSeq2Seq` as CTranslate2 describes models.

    Args:
        model: The model.
        source_tokens: Name of each source id; START, END and UNK have the ids of
            `tokenizers.py` on both sides.
        target_tokens: Name of each target id.

    Returns:
        `ctranslate2.specs.TransformerSpec`, with START and END set.

    Raises:
        ValueError: If CTranslate2 has no such model; the message says what it lacks.
        ImportError: If CTranslate2 is not installed.
    """
    specs = _ctranslate2().specs
    arguments = _checked_arguments(model)
    num_layers = arguments["num_encoder_layers"], arguments["num_decoder_layers"]
    spec = specs.TransformerSpec.from_config(
        num_layers,
        arguments["num_heads"],
        pre_norm=arguments["norm"] == "pre",
        # Attention over the source as the model's: the last layer's, all its heads.
        alignment_heads=arguments["num_heads"],
    )
    _set_stack(spec.encoder, model.encoder_blocks, model.encoder_norm)
    _set_stack(spec.decoder, model.decoder_blocks, model.decoder_norm)
    spec.encoder.embeddings[0].weight = _array(model.source_embedding.embeddings)
    spec.decoder.embeddings.weight = _array(model.target_embedding.embeddings)
    for stack, positions in (
        (spec.encoder, model.source_positions),
        (spec.decoder, model.target_positions),
    ):
        stack.scale_embeddings = True  # by the square root of their width
        stack.position_encodings.encodings = _position_table(positions, model.dim)
    if model.output_projection is None:
        spec.decoder.projection.weight = spec.decoder.embeddings.weight
    else:
        _set_dense(spec.decoder.projection, model.output_projection)

    spec.register_source_vocabulary(list(source_tokens))
    spec.register_target_vocabulary(list(target_tokens))
    spec.config.unk_token = target_tokens[UNK_ID]
    spec.config.bos_token = target_tokens[START_ID]
    spec.config.eos_token = target_tokens[END_ID]
    spec.config.decoder_start_token = target_tokens[START_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = _EPSILON
    return spec


def _ctranslate2() -> Any:
    try:
        import ctranslate2
        import ctranslate2.specs  # loaded late, where it is first asked for
    except ImportError as error:
        raise ImportError(
            "An export to CTranslate2 needs the package `ctranslate2`, which is not "
            "installed: pip install 'keras-seq2seq[ctranslate2]'."
        ) from error
    return ctranslate2


def _checked_arguments(model: Any) -> dict[str, Any]:
    """The model's arguments, if CTranslate2 can run it."""
    # By name: a subclass, or an ensemble, may compute something else.
    if type(model).__name__ != "TransformerSeq2Seq":
        raise ValueError(
            "`model` must be a TransformerSeq2Seq: CTranslate2 runs Transformers only. "
            f"Received: {type(model).__name__}. Export it as a SavedModel."
        )
    arguments = model.get_config()
    runnable: dict[str, tuple] = {
        "attention_score": ("scaled_dot",),
        "window": (None,),
        "positions": ("sinusoidal", "learned", "none"),
        "combine_positions": ("sum",),
    }
    for name, values in runnable.items():
        if arguments[name] not in values:
            raise ValueError(
                f"CTranslate2 runs a TransformerSeq2Seq with `{name}` "
                f"{' or '.join(map(repr, values))} only. Received: "
                f"{name}={arguments[name]!r}. Export it as a SavedModel."
            )
    return arguments


def _set_stack(spec: Any, blocks: list[Any], final_norm: Any) -> None:
    """Fills in the layers of the encoder or the decoder."""
    for layer, block in zip(spec.layer, blocks, strict=True):
        own = block.self_attention
        _set_attention(
            layer.self_attention,
            (own.input_projection, own.output_projection),
            block.self_attention_norm,
        )
        if hasattr(block, "cross_attention"):
            cross = block.cross_attention
            _set_attention(
                layer.attention,
                (
                    cross.query_projection,
                    cross.memory_projection,
                    cross.output_projection,
                ),
                block.cross_attention_norm,
            )
        _set_dense(layer.ffn.linear_0, block.inner)
        _set_dense(layer.ffn.linear_1, block.outer)
        _set_norm(layer.ffn.layer_norm, block.feedforward_norm)
    if final_norm is not None:
        _set_norm(spec.layer_norm, final_norm)


def _set_attention(spec: Any, projections: tuple[Any, ...], norm: Any) -> None:
    for linear, dense in zip(spec.linear, projections, strict=True):
        _set_dense(linear, dense)
    _set_norm(spec.layer_norm, norm)


def _set_dense(spec: Any, dense: Any) -> None:
    spec.weight = _array(ops.transpose(dense.kernel))  # (out, in)
    if dense.use_bias:
        spec.bias = _array(dense.bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.gamma)
    spec.beta = _array(norm.beta)


def _array(weight: Any) -> np.ndarray:
    """A copy, since quantisation scales arrays in place."""
    return np.array(ops.convert_to_numpy(weight), dtype="float32", order="C")


def _position_table(positions: Any, dim: int) -> np.ndarray:
    """What is added to the token vectors, one row a position."""
    if positions is None:
        return np.zeros((_SINUSOID_ROWS, dim), dtype="float32")
    if positions.kind == "learned":
        return _array(positions.table)
    nothing = ops.zeros((1, _SINUSOID_ROWS, dim), dtype="float32")
    return _array(positions(nothing)[0])


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.pieces(range(tokenizer.vocabulary_size))
