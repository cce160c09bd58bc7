"""Run folders that translate together; `models.EnsembleSeq2Seq` is the model."""

from collections.abc import Sequence
from pathlib import Path

from keras_seq2seq.models.ensemble import EnsembleSeq2Seq
from keras_seq2seq.pipelines import Translator, load


def load_ensemble(
    run_folders: Sequence[str | Path], *, combine: str = "probabilities"
) -> Translator:
    """Load several run folders as one translator.

    Args:
        run_folders: Runs with the same tokenizers, made from the same training text
            with the same `[tokenizer]` settings. The first one's `[decoding]` gives
            the defaults.
        combine: What is averaged at each step: `"probabilities"` or `"log_probs"`.

    Returns:
        A `Translator`.

    Raises:
        FileNotFoundError: If a folder or one of its parts is missing.
        ValueError: If a part is damaged, a run is not of text, or the tokenizers
            differ.
    """
    if not run_folders:
        raise ValueError("`run_folders` must name at least one run. Received none.")
    members = [load(folder) for folder in run_folders]
    for folder, member in zip(run_folders, members, strict=True):
        if not isinstance(member, Translator):
            raise ValueError(
                "The runs of an ensemble must be of text. Received: "
                f"{folder}, with [series]."
            )
    first = members[0].tokenizers
    for folder, member in zip(run_folders, members, strict=True):
        for side in ("source", "target"):
            expected = getattr(first, side).fingerprint
            if getattr(member.tokenizers, side).fingerprint != expected:
                raise ValueError(
                    f"The runs of an ensemble must have the same tokenizers. The "
                    f"{side} tokenizer of {folder} is not that of {run_folders[0]}: "
                    "train them on the same text with the same [tokenizer] table."
                )
    model = EnsembleSeq2Seq([member.model for member in members], combine=combine)
    return Translator(model, first, members[0].config)
