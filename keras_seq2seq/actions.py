"""What the command line and the quick start do with a trained run."""

from pathlib import Path
from typing import Any

from keras_seq2seq.console import say


def evaluate_files(
    translator: Any, files: dict[str, Any], *, tokenize: str | None, **decoding: Any
) -> dict[str, Any]:
    """Evaluate on files, as the run's `[evaluation]` table says.

    Args:
        translator: What `load` returned.
        files: Arguments of `PairCorpus`.
        tokenize: Tokenizer of BLEU in place of the run's.
        **decoding: Options of `Translator.translate`.

    Returns:
        The dict of `evaluation.evaluate`, with the files and the decoding options.
    """
    from keras_seq2seq.corpora import PairCorpus
    from keras_seq2seq.evaluation import evaluate

    settings = translator.config.evaluation
    corpus = PairCorpus(**files)
    pairs = list(corpus)
    if corpus.report.kept < corpus.report.read:
        say("\n".join(corpus.report.lines()))
    if not pairs:
        raise ValueError(f"The test set must have at least one pair. Received: {files}")
    result = evaluate(
        translator,
        pairs,
        tokenize=tokenize or settings.bleu_tokenize,
        lowercase=settings.lowercase,
        metrics=settings.metrics,
        **decoding,
    )
    result["data"] = files
    result["decoding"] = translator.decoding.model_dump() | {
        name: value
        for name, value in decoding.items()
        if value is not None and name != "progress"
    }
    return result


def draw_alignment(
    translator: Any, text: str, path: Path, *, num_beams: int | None = None
) -> str:
    """Translate a text and draw its alignment.

    Args:
        translator: What `load` returned.
        text: Source text.
        path: PNG file to write.
        num_beams: Width of the beam in place of the run's.

    Returns:
        The output text.

    Raises:
        ValueError: If the text is blank or the model has no attention.
    """
    from keras_seq2seq.analysis import plot_alignment

    options = {"num_beams": num_beams, "return_attention": True}
    hypothesis = translator.translate([text], **options)[0][0]
    if not hypothesis.tokens:
        raise ValueError("The text must not be blank, or there is nothing to align.")
    if hypothesis.attention is None or not hypothesis.attention.any():
        raise ValueError(
            "The model must have attention to draw alignments. Received: a "
            f"{type(translator.model).__name__} without."
        )
    plot_alignment(
        hypothesis.attention, hypothesis.source_tokens, hypothesis.tokens, path
    )
    return hypothesis.text
