"""One forecasting run as one TOML file: its tables and what they must hold."""

from typing import Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from keras_seq2seq.config_mistakes import (
    check_arguments,
    complete_error,
    suggestion,
)
from keras_seq2seq.tables import Table


class SeriesConfig(Table):
    """`[series]`: the file, its columns, its parts and the windows.

    Attributes:
        path: CSV file whose first line names the columns.
        targets: Columns that are forecast; their past is read, too.
        inputs: Further columns that are only read.
        time: Column of dates (ISO 8601) or whole numbers; else rows are counted.
        source_length: Rows that are read.
        target_length: Rows that are forecast.
        splits: Rows of the training, validation and test part, in this order, or
            fractions of all rows.
        stride: Rows between two training windows.
        rows_per_step: Rows that one vector of the model holds.
        separate: Whether each target is a series of its own to one model for all.
        center: What is taken from each window of a column and added to its forecast:
            nothing, its last value or its mean.
        calendar: What of a date is an input, known ahead: `hour`, `weekday`, `year`.
        periods: Periods that are inputs, known ahead, in units of `time`, which are
            rows where that is not given.
        harmonics: Sine waves for each of them.
        season: Rows of the season that the naive row of `evaluate` repeats.
    """

    path: str
    targets: tuple[str, ...] = Field(min_length=1)
    inputs: tuple[str, ...] = ()
    time: str | None = None
    source_length: PositiveInt
    target_length: PositiveInt
    splits: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] = (
        0.7,
        0.1,
        0.2,
    )
    stride: PositiveInt = 1
    rows_per_step: PositiveInt = 1
    separate: bool = False
    center: Literal["none", "last", "mean"] = "none"
    calendar: tuple[Literal["hour", "weekday", "year"], ...] = ()
    periods: tuple[PositiveInt, ...] = ()
    harmonics: PositiveInt = 1
    season: PositiveInt | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [*self.targets, *self.inputs]
        if len(set(names)) < len(names):
            raise ValueError(f"a column is named twice in {', '.join(names)}")
        if max(self.splits) > 1 and any(size % 1 for size in self.splits):
            raise ValueError(
                "splits must be rows, or fractions that are at most 1 in sum. "
                f"Received: {list(self.splits)}"
            )
        if max(self.splits) <= 1 and sum(self.splits) > 1 + 1e-9:
            raise ValueError(
                "splits must be at most 1 in sum if they are fractions. "
                f"Received: {list(self.splits)}"
            )
        for name in ("source_length", "target_length"):
            if getattr(self, name) % self.rows_per_step:
                raise ValueError(
                    f"rows_per_step must divide {name}. Received: rows_per_step="
                    f"{self.rows_per_step}, {name}={getattr(self, name)}"
                )
        if self.separate and self.inputs:
            raise ValueError(
                "separate = true makes a series of each target and has no place for "
                f"inputs. Received: inputs={list(self.inputs)}"
            )
        if self.calendar and self.time is None:
            raise ValueError("calendar needs the name of a column of dates as `time`")
        if self.season is not None and self.season > self.source_length:
            raise ValueError(
                "season must not be above source_length. Received: "
                f"season={self.season}, source_length={self.source_length}"
            )
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read, targets first."""
        return (*self.targets, *self.inputs)


class SeriesTrainingConfig(Table):
    """`[training]` of a forecasting run.

    Attributes:
        epochs: Passes over the training windows.
        batch_size: Windows of a batch.
        seed: Seed of weights, dropout and order.
        optimizer: Name of the Keras optimizer.
        learning_rate: Its rate.
        weight_decay: Of `adamw`.
        clip_norm: Largest norm of all gradients together.
        schedule: `constant`; `cosine`: fall along half a cosine until the last
            epoch; or `plateau`: lower the rate when nothing improves.
        plateau_factor, plateau_patience: What `plateau` multiplies the rate by, after
            how many epochs without improvement.
        min_learning_rate: Where `plateau` and `cosine` end.
        early_stopping_patience: Epochs without improvement that end the run.
        monitor: What decides the best model: `loss`, the forecasts' MSE.
        jit_compile: Whether XLA compiles the update; `"auto"`: where the model gains.
    """

    epochs: PositiveInt = 20
    batch_size: PositiveInt = 64
    seed: NonNegativeInt = 0
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    learning_rate: PositiveFloat = 0.001
    weight_decay: NonNegativeFloat | None = None
    clip_norm: PositiveFloat | None = 1.0
    schedule: Literal["constant", "cosine", "plateau"] = "constant"
    plateau_factor: float = Field(default=0.5, gt=0.0, lt=1.0)
    plateau_patience: PositiveInt = 2
    min_learning_rate: NonNegativeFloat = 0.0
    early_stopping_patience: PositiveInt | None = None
    monitor: Literal["loss"] = "loss"
    jit_compile: bool | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.weight_decay is not None and self.optimizer != "adamw":
            raise ValueError(
                'weight_decay needs optimizer = "adamw". Received: '
                f"optimizer={self.optimizer!r}"
            )
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                "min_learning_rate must not be above learning_rate. Received: "
                f"min_learning_rate={self.min_learning_rate}, "
                f"learning_rate={self.learning_rate}"
            )
        return self


class SeriesRunConfig(Table):
    """A forecasting run: a file is one if it has a table `[series]`.

    Attributes:
        series: The file and the windows.
        model: `name`, a key of `models.REGRESSION_MODELS`, and its constructor's
            arguments; the widths come from `[series]`.
        training: How the model is trained.
    """

    series: SeriesConfig
    model: dict[str, Any]
    training: SeriesTrainingConfig = SeriesTrainingConfig()

    @field_validator("model")
    @classmethod
    def _model_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        from keras_seq2seq.models import REGRESSION_MODELS

        name = value.get("name")
        if name not in REGRESSION_MODELS:
            raise complete_error(
                f'"name" in [model] must be one of {", ".join(REGRESSION_MODELS)}, as '
                f"the file has a table [series]. Received: {name!r}."
                f"{suggestion(str(name), REGRESSION_MODELS)}"
            )
        arguments = {key: item for key, item in value.items() if key != "name"}
        given = ("source_dim", "target_dim", "future_dim")
        if set(given) & set(arguments):
            raise complete_error(
                f"{', '.join(given)} in [model] are set by [series]; remove them."
            )
        check_arguments("[model]", REGRESSION_MODELS[name], arguments, given=given)
        return value

    @model_validator(mode="after")
    def _lags_fit_the_source(self) -> Self:
        series = self.series
        vectors = series.source_length // series.rows_per_step
        for name in ("residual_lag", "linear_lags"):
            lag = self.model.get(name, 0)
            if isinstance(lag, int) and lag > vectors:
                raise complete_error(
                    f"{name} in [model] counts vectors and must not be above those "
                    f"of a source, source_length / rows_per_step. Received: {name}="
                    f"{lag}, source_length={series.source_length}, "
                    f"rows_per_step={series.rows_per_step}."
                )
        return self

    @model_validator(mode="after")
    def _validation_has_rows(self) -> Self:
        training = self.training
        wanted = [
            name
            for name, is_set in (
                ("early_stopping_patience", training.early_stopping_patience),
                ('schedule = "plateau"', training.schedule == "plateau"),
            )
            if is_set
        ]
        if wanted and not self.series.splits[1]:
            raise complete_error(
                f"{', '.join(wanted)} in [training] needs a validation part: give it "
                "rows in splits of [series]."
            )
        return self

    @property
    def model_arguments(self) -> dict[str, Any]:
        """Arguments of `[model]` without its name."""
        return {key: value for key, value in self.model.items() if key != "name"}
