"""Shows on stderr how far a training is, how well it goes and how fast."""

import sys
import time
from typing import Any

import keras

from keras_seq2seq.runs import RunState


def print_line(text: str) -> None:
    """Prints a line to stderr at once."""
    print(text, file=sys.stderr, flush=True)


def print_nothing(text: str) -> None:
    """Takes the place of `print_line` where nothing is to be shown."""


class Progress(keras.callbacks.Callback):
    """Shows on stderr how far the training is, how well and how fast it goes.

    In a terminal a bar moves within the epoch; elsewhere there is one line an epoch.
    Used as a context manager around `fit`, so that the bar ends with it, too, when
    an error ends it.

    Args:
        epochs: Epochs of the run.
        epoch_size: Target tokens of an epoch, or its windows.
        monitor: `training.monitor`, or None without validation.
        state: The run's state.
    """

    async_safe = True

    def __init__(
        self, *, epochs: int, epoch_size: int, monitor: str | None, state: RunState
    ):
        from rich.console import Console

        super().__init__()
        self.epochs = epochs
        self.epoch_size = epoch_size
        self.monitor = monitor
        self.state = state
        self.console = Console(stderr=True, highlight=False)
        self.bar: Any = None
        self.task: Any = None
        self.started = self.shown = time.monotonic()
        self.first_epoch = state.epoch

    def __enter__(self):
        if self.console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            self.bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} {task.fields[note]}"),
                console=self.console,
                transient=True,
            )
            self.bar.start()
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_started = time.monotonic()
        if self.bar is not None:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.task = self.bar.add_task(
                "",
                total=self.params["steps"],
                epoch=f"{epoch + 1}/{self.epochs}",
                note="",
            )

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        if self.bar is None or self.task is None or now - self.shown < 0.2:
            return
        self.shown = now
        done = (batch + 1) / self.params["steps"]
        elapsed = now - self.epoch_started
        note = self.note(logs or {}, done, elapsed)
        self.bar.update(self.task, completed=batch + 1, note=note)

    def on_epoch_end(self, epoch, logs=None):
        done = epoch + 1 - self.first_epoch
        left = (time.monotonic() - self.started) / done * (self.epochs - epoch - 1)
        self.console.print(self.line(epoch, logs or {}, left), soft_wrap=True)

    def note(self, logs: dict[str, float], done: float, elapsed: float) -> str:
        """What is said within an epoch.

        Args:
            logs: Its values so far.
            done: Its share that is done.
            elapsed: Seconds since it began.
        """
        return (
            f"loss {logs['token_loss']:.3f}  ppl {logs['perplexity']:.2f}  "
            f"{done * self.epoch_size / elapsed:,.0f} tokens/s  "
            f"{duration(elapsed / done - elapsed)} left"
        )

    def line(self, epoch: int, logs: dict[str, float], seconds_left: float) -> str:
        """What is said about an epoch.

        Args:
            epoch: Its number, from 0.
            logs: Its values.
            seconds_left: Estimated time to the end of the run.
        """
        names = {
            "loss": "loss",
            "perplexity": "ppl",
            "val_loss": "val loss",
            "val_perplexity": "val ppl",
            "val_bleu": "bleu",
            "val_exact_match": "exact match",
            "val_wer": "wer",
        }
        parts = [f"epoch {epoch + 1}/{self.epochs}"]
        for key, name in names.items():
            if key in logs:
                digits = 3 if key.endswith("loss") else 2
                parts.append(f"{name} {logs[key]:.{digits}f}")
        parts.append(f"{logs.get('tokens_per_second', 0):,.0f} tokens/s")
        parts.append(f"{duration(seconds_left)} left")
        if self.monitor and self.state.best_epoch == epoch + 1:
            parts.append(f"best {self.monitor} so far")
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`.

    Args:
        seconds: How many.
    """
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
