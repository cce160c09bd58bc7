"""What happens around the epochs of a run: validation, selection, saving.

`trainer` puts them in this order, since each reads what the earlier ones wrote in
`logs`: `TokenTotals`, `TextValidation`, `Selection`, TensorBoard, `RunSaver`, and
`Progress` of `progress`.
"""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_seq2seq.batches import inference_batches, pad_rows, round_up
from keras_seq2seq.config import DecodingConfig, EvaluationConfig, TrainingConfig
from keras_seq2seq.corpora import Pair
from keras_seq2seq.decoding import compiled_by_shape, generate
from keras_seq2seq.evaluation import evaluate_texts
from keras_seq2seq.requests import make_request
from keras_seq2seq.runs import RunState, read_rows, write_text
from keras_seq2seq.series_config import SeriesTrainingConfig
from keras_seq2seq.tokenizers import END_ID, TokenizerPair
from keras_seq2seq.training_modes import ScheduledSampling, inner_model

_SMALLER_IS_BETTER = ("loss", "wer")
_AFTER_NAN = (
    "Lower `learning_rate` (or raise `warmup_steps`), set `clip_norm`, or train in "
    "float32. The checkpoint of the epoch before and the best model so far are kept."
)


def save_model(model: keras.Model, path: Path) -> None:
    """Saves a model or, for `.weights.h5`, its weights, whole or not at all.

    Args:
        model: The model.
        path: A `.keras` or `.weights.h5` file.
    """
    temporary = path.with_name(f".tmp.{path.name}")
    if path.name.endswith(".weights.h5"):
        model.save_weights(temporary)
    else:
        model.save(temporary)
    temporary.replace(path)


def weights_path(folder: Path, epoch: int) -> Path:
    """Where a run keeps an epoch's weights for averaging.

    Args:
        folder: The run folder.
        epoch: The epoch, from 1.
    """
    return folder / "checkpoints" / f"epoch_{epoch:04d}.weights.h5"


def inference_copy(model: keras.Model) -> keras.Model:
    """A float32 model with the same weights and no optimizer.

    Args:
        model: The model in training.

    Returns:
        The copy; its weights are its own.
    """
    config = {**model.get_config(), "dtype": "float32"}
    copy = type(model).from_config(config)
    copy.set_weights(model.get_weights())
    return copy


def seed_variables(model: keras.Model) -> list:
    """The states of the random generators of a model's layers."""
    return [
        variable
        for variable in model.variables
        if variable.path.endswith("seed_generator_state")
    ]


def monitored_key(monitor: str) -> str:
    """Name in the logs of the value that `training.monitor` names."""
    return f"val_{monitor}"


def is_better(monitor: str, value: float, best: float | None) -> bool:
    """Tells whether a monitored value improves on the best one so far.

    Args:
        monitor: `training.monitor`.
        value: The value.
        best: The best so far, or None.
    """
    if best is None:
        return True
    if math.isnan(best):
        return not math.isnan(value)
    return value < best if monitor in _SMALLER_IS_BETTER else value > best


class TokenTotals(keras.callbacks.Callback):
    """Makes `loss` in the logs the loss a token, from totals; ends on NaN.

    It comes first, so that nothing is saved of an epoch that ends the run.

    What Keras logs as `loss` is a mean over batches, whatever their token counts.
    """

    # Keras may call the batch hook from a thread, so that no update waits for it.
    async_safe = True

    def __init__(self):
        super().__init__()
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        # Totals stay NaN once one batch was.
        value = (logs or {}).get("token_loss", 0.0)
        if not math.isfinite(value):
            where = f"in epoch {self.epoch + 1}, at update {batch + 1} of it"
            raise ValueError(f"The loss is {value} {where}. {_AFTER_NAN}")

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            totals = rename_totals(logs)
            logs.clear()
            logs.update(totals)
            # The last update of an epoch shows in no batch of it.
            value = totals.get("val_loss", 0.0)
            if not math.isfinite(value):
                where = f"after epoch {epoch + 1}"
                raise ValueError(
                    f"The validation loss is {value} {where}. {_AFTER_NAN}"
                )


def rename_totals(logs: dict[str, float]) -> dict[str, float]:
    """Logs of `fit` or `evaluate` with the loss a token as `loss`.

    Args:
        logs: What Keras made.
    """
    renamed = {}
    for name, value in logs.items():
        prefix = "val_" if name.startswith("val_") else ""
        if name.endswith("token_loss"):
            renamed[f"{prefix}loss"] = float(value)
        elif name != f"{prefix}loss":
            renamed[name] = float(value)
    return renamed


class TextValidation(keras.callbacks.Callback):
    """Decodes the validation sources and adds text metrics to the logs.

    Only after epochs that were validated (`val_loss` in the logs). References are
    compared in the target tokenizer's normal form, which is what a model can write.

    Args:
        pairs: Validation pairs.
        tokenizers: The run's tokenizers.
        metrics: Names for `evaluate_texts`.
        num_beams: 1: greedy.
        decoding: Length limits, length penalty and batch size.
        evaluation: How texts are compared.
        max_source_length: Longest source in tokens; longer ones are cut.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizers: TokenizerPair,
        *,
        metrics: Sequence[str],
        num_beams: int,
        decoding: DecodingConfig,
        evaluation: EvaluationConfig,
        max_source_length: int,
    ):
        super().__init__()
        target = tokenizers.target
        self.target = target
        self.sources = [
            [*ids[: max_source_length - 1], END_ID]
            for ids in tokenizers.source.encode([pair.source for pair in pairs])
        ]
        self.references = [target.normalize(pair.target) for pair in pairs]
        self.metrics = tuple(metrics)
        self.num_beams = num_beams
        self.decoding = decoding
        self.evaluation = evaluation

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None and "val_loss" in logs:
            logs.update(self.scores(inner_model(self.model)))

    def scores(self, model: keras.Model) -> dict[str, float]:
        """Text metrics of a model, their names prefixed with `val_`.

        Args:
            model: The model.
        """
        result = evaluate_texts(
            self.decode(model),
            self.references,
            tokenize=self.evaluation.bleu_tokenize,
            lowercase=self.evaluation.lowercase,
            metrics=self.metrics,
        )
        return {f"val_{name}": float(result[name]) for name in self.metrics}

    def decode(self, model: keras.Model) -> list[str]:
        """The model's texts for the validation sources, in their order.

        Args:
            model: The model.
        """
        texts = [""] * len(self.sources)
        lengths = [len(ids) for ids in self.sources]
        most = model.max_positions
        # Searched even where the run draws its answers: scores shall not jump about.
        settings = {"num_beams": self.num_beams, "temperature": 0.0}
        request = make_request(self.decoding, settings)
        for rows, height, width in inference_batches(
            lengths,
            batch_tokens=self.decoding.batch_tokens,
            max_width=most,
            exact=not compiled_by_shape(),
        ):
            # Rows of filling end at once.
            limits = np.ones((height,), "int32")
            limits[: len(rows)] = [request.limit(lengths[row]) for row in rows]
            filled = [lengths[row] for row in rows] + [0] * (height - len(rows))
            found = generate(
                model,
                pad_rows([self.sources[row] for row in rows], height, width),
                max_length=round_up(int(limits.max()), most=most),
                length_limits=limits,
                **request.constants,
                **request.length_inputs(filled),
            )
            for index, row in enumerate(rows):
                ids = found.ids[index, 0, : found.lengths[index, 0]]
                texts[row] = self.target.decode(ids.tolist())
        return texts


class Selection(keras.callbacks.Callback):
    """Keeps the best model; lowers the rate or ends the run when nothing improves.

    Without validation data each epoch's model replaces the last.

    Args:
        state: The run's state, read and written.
        training: The run's `[training]`.
        path: Where the best model goes, at once.
        validated: Whether there is validation data.
    """

    def __init__(
        self,
        state: RunState,
        training: TrainingConfig | SeriesTrainingConfig,
        path: Path,
        *,
        validated: bool,
    ):
        super().__init__()
        self.state = state
        self.training = training
        self.path = path
        self.validated = validated

    def on_epoch_end(self, epoch, logs=None):
        if not self.validated:
            self._save(epoch)
            return
        logs = logs or {}
        value = logs.get(monitored_key(self.training.monitor))
        if value is None:
            return
        state = self.state
        loss = logs["val_loss"]
        # Early on, text metrics are the same for all bad models.
        if is_better(self.training.monitor, value, state.best_value) or (
            value == state.best_value and is_better("loss", loss, state.best_loss)
        ):
            state.best_value, state.best_loss = float(value), float(loss)
            state.waited = state.plateau_waited = 0
            self._save(epoch)
            return
        state.waited += 1
        state.plateau_waited += 1
        self._lower_rate()
        patience = self.training.early_stopping_patience
        if patience is not None and state.waited >= patience:
            self.model.stop_training = True

    def _save(self, epoch: int) -> None:
        self.state.best_epoch = epoch + 1
        save_model(inference_copy(inner_model(self.model)), self.path)

    def _lower_rate(self) -> None:
        """Multiplies the rate by `plateau_factor` once its patience is used up."""
        training, state = self.training, self.state
        if training.schedule != "plateau":
            return
        if state.plateau_waited >= training.plateau_patience:
            state.plateau_waited = 0
            rate = float(self.model.optimizer.learning_rate) * training.plateau_factor
            # The optimizer keeps its rate, so a checkpoint does, too.
            self.model.optimizer.learning_rate = max(rate, training.min_learning_rate)


class RunSaver(keras.callbacks.Callback):
    """Writes an epoch's row of `metrics.jsonl`, then its checkpoint.

    `state.json` is written last and names the checkpoint: a run killed at any moment
    continues from the last state that is whole.

    Args:
        folder: The run folder, with `checkpoints/`.
        state: The run's state, already updated by `Selection`.
        num_averaged: Number of last epochs whose weights are kept for averaging.
        epoch_size: Target tokens of an epoch, or what else `unit` names.
        unit: What the speed of the training counts.
    """

    def __init__(
        self,
        folder: Path,
        state: RunState,
        *,
        num_averaged: int,
        epoch_size: int,
        unit: str = "tokens",
    ):
        super().__init__()
        self.folder = folder
        self.state = state
        self.num_averaged = num_averaged
        self.epoch_size = epoch_size
        self.unit = unit
        self.started = self.trained = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.monotonic()
        self.trained = 0.0

    def on_test_begin(self, logs=None):
        # Validation follows the last update and does not count as training speed.
        self.trained = self.trained or time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        row = self._row(epoch, logs or {})
        rows = [*read_rows(self.folder, self.state.epoch), row]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(self.folder / "metrics.jsonl", lines)
        checkpoints = self.folder / "checkpoints"
        fitted = self.model
        model = inner_model(fitted)
        if self.num_averaged:
            save_model(model, weights_path(self.folder, epoch + 1))
        self.state.epoch = epoch + 1
        self.state.checkpoint = f"epoch_{epoch + 1:04d}.keras"
        self.state.seeds = [
            np.asarray(keras.ops.convert_to_numpy(variable)).tolist()
            for variable in seed_variables(fitted)
        ]
        if isinstance(fitted, ScheduledSampling):
            self.state.sampling_updates = int(fitted.updates)
        self.state.seconds += row["seconds"]
        save_model(model, checkpoints / self.state.checkpoint)
        self.state.write(self.folder)
        for path in [*checkpoints.glob("epoch_*.keras")]:
            if path.name != self.state.checkpoint:
                path.unlink()
        weights = sorted(checkpoints.glob("epoch_*.weights.h5"))
        for path in weights[: max(0, len(weights) - self.num_averaged)]:
            path.unlink()

    def _row(self, epoch: int, logs: dict[str, float]) -> dict[str, Any]:
        now = time.monotonic()
        training_seconds = (self.trained or now) - self.started
        speed = self.epoch_size / max(training_seconds, 1e-9)
        logs[f"{self.unit}_per_second"] = round(speed, 1)
        return {
            "epoch": epoch + 1,
            "updates": int(self.model.optimizer.iterations),
            **{name: float(value) for name, value in logs.items()},
            "learning_rate": float(self.model.optimizer.learning_rate),
            "seconds": round(now - self.started, 3),
        }
