"""Run folders as things that answer: `load` makes a `Translator` or a `Forecaster`.

The only place that knows both text and models; `evaluation`, `export` and the command
line work through it.
"""

from pathlib import Path
from typing import Any

from keras_seq2seq import models  # noqa: F401  (registers the classes to load)
from keras_seq2seq.config import load_config
from keras_seq2seq.forecaster import Forecaster
from keras_seq2seq.outputs import Hypothesis
from keras_seq2seq.series import Scaling
from keras_seq2seq.series_config import SeriesRunConfig
from keras_seq2seq.tokenizers import TokenizerPair
from keras_seq2seq.translator import Translator
from keras_seq2seq.untrusted import load_model

__all__ = ["Forecaster", "Hypothesis", "Translator", "load"]


def load(run_folder: str | Path) -> Any:
    """Load a run folder that `train` wrote.

    Nothing in the folder is executed, and only classes of this package are made; see
    `untrusted`.

    Args:
        run_folder: The folder; it may have been moved.

    Returns:
        A `Translator`, or for a run with `[series]` a `Forecaster`.

    Raises:
        FileNotFoundError: If the folder or one of its parts is missing.
        ValueError: If a part is damaged, or model and tokenizers do not belong
            together.
    """
    folder = Path(run_folder)
    _check_parts(folder, "", "run.toml")
    config = load_config(folder / "run.toml")
    is_series = isinstance(config, SeriesRunConfig)
    _check_parts(folder, "scaling.json" if is_series else "tokenizer", "model.keras")
    model = load_model(folder / "model.keras", with_optimizer=False)
    try:
        if is_series:
            return Forecaster(model, Scaling.load(folder / "scaling.json"), config)
        return Translator(model, TokenizerPair.load(folder / "tokenizer"), config)
    except ValueError as error:
        raise ValueError(f"In {folder}: {error}") from None


def _check_parts(folder: Path, *parts: str) -> None:
    for part in parts:
        if not (folder / part).exists():
            raise FileNotFoundError(
                "`run_folder` must be a folder that `train` wrote, with run.toml, "
                "model.keras and tokenizer/ or scaling.json. Received: "
                f"{folder}, where {folder / part} does not exist."
            )
