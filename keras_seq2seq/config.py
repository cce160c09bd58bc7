"""One run as one TOML file: reading, overriding, checking and writing it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from keras_seq2seq.config_mistakes import (
    check_arguments,
    complete_error,
    describe,
    suggestion,
)
from keras_seq2seq.series_config import SeriesRunConfig
from keras_seq2seq.tables import Table
from keras_seq2seq.toml_files import apply_override, read_toml, write_toml

ModelType = Literal["unigram", "bpe", "char", "word"]


class DataFiles(Table):
    """Files of one part of the data: two parallel texts, or one file of pairs.

    Attributes:
        source, target: Parallel text files, one text a line.
        path: File of pairs: TSV or JSON lines.
        format: `"auto"` (by file name), `"text"`, `"tsv"` or `"jsonl"`.
        columns: Source and target column: numbers from 0, or names.
        quoting: Whether quotes in a TSV file enclose fields.
        encoding: Character encoding of the files.
    """

    source: str | None = None
    target: str | None = None
    path: str | None = None
    format: Literal["auto", "text", "tsv", "jsonl"] = "auto"
    columns: tuple[int, int] | tuple[str, str] | None = None
    quoting: bool = False
    encoding: str = "utf-8"

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.source is None) != (self.target is None) or (
            (self.path is None) == (self.source is None)
        ):
            raise ValueError(
                "expected either `source` and `target` (parallel text) or `path` "
                f"(TSV or JSON lines). Received: source={self.source!r}, "
                f"target={self.target!r}, path={self.path!r}"
            )
        return self


class DataConfig(Table):
    """`[data]`: the files of each part and which pairs of them are used.

    Paths are relative to the current directory.

    Attributes:
        train: Files that the tokenizer and the model learn from.
        valid: Files for validation after an epoch.
        test: Files for `evaluate`.
        cleaning: Arguments of `corpora.Cleaning`, applied to `train` only.
        max_source_length, max_target_length: Most tokens of a side, END included.
        too_long: Whether longer pairs of `train` are left out or cut.
    """

    train: DataFiles
    valid: DataFiles | None = None
    test: DataFiles | None = None
    cleaning: dict[str, Any] = {}
    max_source_length: PositiveInt = 128
    max_target_length: PositiveInt = 128
    too_long: Literal["drop", "cut"] = "drop"

    @field_validator("cleaning")
    @classmethod
    def _cleaning_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        from keras_seq2seq.corpora import Cleaning

        check_arguments("[data.cleaning]", Cleaning, value, given=())
        return value


class TokenizerConfig(Table):
    """`[tokenizer]`: arguments of `TokenizerPair.train`.

    Attributes:
        shared: One vocabulary for both sides, or one each.
        vocabulary_size: Pieces of each vocabulary.
        source_vocabulary_size, target_vocabulary_size: Instead, for one side.
        model_type: SentencePiece model: `unigram`, `bpe`, `char` or `word`.
        source_model_type, target_model_type: Instead, for one side.
        normalization: Unicode normal form, stored in the tokenizer.
        lowercase: Whether text is lower-cased by the tokenizer.
        byte_fallback: Whether unseen characters are written as bytes.
        character_coverage: Share of the characters that get a piece.
    """

    shared: bool = False
    vocabulary_size: PositiveInt = 8000
    source_vocabulary_size: PositiveInt | None = None
    target_vocabulary_size: PositiveInt | None = None
    model_type: ModelType = "unigram"
    source_model_type: ModelType | None = None
    target_model_type: ModelType | None = None
    normalization: Literal["nfc", "nfkc", "identity"] = "nfc"
    lowercase: bool = False
    byte_fallback: bool = False
    character_coverage: float = Field(default=1.0, gt=0.0, le=1.0)

    @model_validator(mode="after")
    def _shared_has_no_sides(self) -> Self:
        sides = [
            key
            for key in (
                "source_vocabulary_size",
                "target_vocabulary_size",
                "source_model_type",
                "target_model_type",
            )
            if getattr(self, key) is not None
        ]
        if self.shared and sides:
            raise ValueError(
                "a shared tokenizer has one size and one type. Received: shared=true "
                f"and {', '.join(sides)}; set vocabulary_size and model_type only"
            )
        return self


class ScheduledSamplingConfig(Table):
    """`[training.scheduled_sampling]`: the model's own predictions as inputs.

    Attributes:
        decay: How the chance of a gold input falls: `linear`, `exponential` or
            `inverse_sigmoid`; or it is `always` gold, or `never` (free running).
        k: Start of `linear` (default 1), base of `exponential`, speed of
            `inverse_sigmoid`.
        c: What `linear` takes away at each update.
        minimum: Where `linear` stops.
        form, choice, peel, temperature, top_k, first_pass_gradient: See
            `training_modes.ScheduledSampling`.
    """

    decay: Literal["linear", "exponential", "inverse_sigmoid", "never", "always"]
    k: PositiveFloat | None = None
    c: PositiveFloat | None = None
    minimum: float = Field(default=0.0, ge=0.0, lt=1.0)
    form: Literal["steps", "two_pass"] = "steps"
    choice: Literal["argmax", "sample", "softmax", "gumbel", "sparsemax", "top_k"] = (
        "argmax"
    )
    peel: Literal["coins", "prefix"] = "coins"
    temperature: PositiveFloat = 1.0
    top_k: PositiveInt = 5
    first_pass_gradient: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        from keras_seq2seq.schedules import make_gold_rate
        from keras_seq2seq.training_modes import check_options

        make_gold_rate(self.decay, self.k, self.c, self.minimum)
        check_options(**self.sampling_arguments)
        return self

    @property
    def sampling_arguments(self) -> dict[str, Any]:
        """Arguments of `ScheduledSampling` beside the model and the gold rate."""
        return self.model_dump(exclude={"decay", "k", "c", "minimum"})


class TrainingConfig(Table):
    """`[training]`: batches, optimizer, schedule, validation and what is kept.

    Attributes:
        epochs: Passes over the data, or of `steps_per_epoch` updates.
        batch_tokens: Positions of a batch, the longer side of it, padding included.
        max_batch_size: Most pairs in a batch.
        num_buckets: Distinct batch shapes.
        steps_per_epoch: Updates that make an epoch; default a whole pass.
        seed: Seed of weights, dropout and order.
        optimizer: Name of the Keras optimizer.
        learning_rate: Rate, or its peak; default 0.001. Not used by `noam`.
        beta_1, beta_2, epsilon, momentum, weight_decay: Arguments of the optimizer;
            default those of Keras.
        clip_norm: Largest norm of all gradients together.
        schedule: `constant`, `noam`, `inverse_square_root`, `cosine` (half a cosine
            down to `min_learning_rate` at the last update) or `plateau`.
        warmup_steps: Updates until the peak of `noam`, `inverse_square_root` and
            `cosine`.
        noam_factor: Multiplier of `noam`.
        plateau_factor, plateau_patience: What `plateau` multiplies the rate by, after
            how many validations without improvement.
        min_learning_rate: Where `plateau` and `cosine` end.
        label_smoothing, smoothing, loss_reduction: See `TokenCrossEntropy`.
        precision: Keras dtype policy of the training.
        jit_compile: Whether XLA compiles the update; `"auto"`: where the model gains.
        early_stopping_patience: Validations without improvement that end the run.
        monitor: Validation value that decides the best model: `loss`, `bleu`,
            `exact_match` or `wer`.
        validate_every: Epochs between validations.
        validation_beams: Beams of the validation decoding; 1: greedy.
        max_validation_sentences: Sentences decoded at a validation; default all.
        tensorboard: Whether TensorBoard logs are written.
        average_checkpoints: Last epochs whose weights are averaged at the end;
            the average is kept if it validates better. 0: off.
        scheduled_sampling: Settings of scheduled sampling; without them the model
            is trained by teacher forcing.
    """

    epochs: PositiveInt = 10
    batch_tokens: PositiveInt = 4096
    max_batch_size: PositiveInt | None = None
    num_buckets: PositiveInt = 6
    steps_per_epoch: PositiveInt | None = None
    seed: NonNegativeInt = 0
    optimizer: Literal[
        "adam", "adamw", "nadam", "adamax", "rmsprop", "sgd", "adagrad", "adadelta"
    ] = "adam"
    learning_rate: PositiveFloat | None = None
    beta_1: float | None = Field(default=None, ge=0.0, lt=1.0)
    beta_2: float | None = Field(default=None, ge=0.0, lt=1.0)
    epsilon: PositiveFloat | None = None
    momentum: float | None = Field(default=None, ge=0.0, lt=1.0)
    weight_decay: NonNegativeFloat | None = None
    clip_norm: PositiveFloat | None = None
    schedule: Literal[
        "constant", "noam", "inverse_square_root", "cosine", "plateau"
    ] = "constant"
    warmup_steps: PositiveInt = 4000
    noam_factor: PositiveFloat = 1.0
    plateau_factor: float = Field(default=0.5, gt=0.0, lt=1.0)
    plateau_patience: PositiveInt = 2
    min_learning_rate: NonNegativeFloat = 0.0
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    smoothing: Literal["vocabulary", "others"] = "vocabulary"
    loss_reduction: Literal["token", "sequence"] = "token"
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    jit_compile: bool | Literal["auto"] = "auto"
    early_stopping_patience: PositiveInt | None = None
    monitor: Literal["loss", "bleu", "exact_match", "wer"] = "loss"
    validate_every: PositiveInt = 1
    validation_beams: PositiveInt = 1
    max_validation_sentences: PositiveInt | None = None
    tensorboard: bool = False
    average_checkpoints: NonNegativeInt = 0
    scheduled_sampling: ScheduledSamplingConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schedule == "noam" and self.learning_rate is not None:
            raise ValueError(
                'schedule = "noam" sets the rate from the width of the model; use '
                "`noam_factor` to scale it. Received: "
                f"learning_rate={self.learning_rate}"
            )
        peak = 0.001 if self.learning_rate is None else self.learning_rate
        falls = self.schedule in ("cosine", "plateau")
        if falls and self.min_learning_rate > peak:
            raise ValueError(
                f'schedule = "{self.schedule}" falls from learning_rate, so '
                "min_learning_rate must not be above it. Received: "
                f"min_learning_rate={self.min_learning_rate}, learning_rate={peak}"
            )
        return self


class DecodingConfig(Table):
    """`[decoding]`: how the trained model writes, unless asked otherwise.

    The limit of a target is `max_length`, or less:
    `max_length_ratio * source length + max_length_offset` tokens. What is not said
    here is of the same name in `decoding.SearchOptions`.

    Attributes:
        max_length: Longest output in tokens, END included.
        max_length_ratio, max_length_offset: Limit per source token, and added to it.
        min_length: Shortest output in tokens.
        min_length_ratio: Shortest output per source token.
        length_reward_ratio: Tokens of an output per source token that
            `length_reward` is given for.
        allow_unknown: Whether UNK may be written.
        batch_tokens: Source positions of a batch.
    """

    num_beams: PositiveInt = 5
    length_penalty: NonNegativeFloat = 0.6
    length_penalty_base: NonNegativeFloat = 5.0
    coverage_penalty: NonNegativeFloat = 0.0
    length_reward: NonNegativeFloat = 0.0
    length_reward_ratio: NonNegativeFloat = 1.0
    stop: Literal["exact", "count"] = "exact"
    num_groups: PositiveInt = 1
    diversity_penalty: NonNegativeFloat = 0.0
    temperature: NonNegativeFloat = 0.0
    top_k: NonNegativeInt = 0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    repetition_penalty: PositiveFloat = 1.0
    no_repeat_ngram_size: NonNegativeInt = 0
    allow_unknown: bool = True
    max_length: PositiveInt = 256
    max_length_ratio: NonNegativeFloat = 2.0
    max_length_offset: NonNegativeInt = 20
    min_length: NonNegativeInt = 0
    min_length_ratio: NonNegativeFloat = 0.0
    batch_tokens: PositiveInt = 4096

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.num_beams % self.num_groups:
            raise complete_error(
                f"[decoding] num_groups must divide num_beams. Received: num_groups = "
                f"{self.num_groups}, num_beams = {self.num_beams}."
            )
        return self

    def length_limit(self, source_length: int) -> int:
        """Returns the most tokens of an output, END included; at least 1.

        Args:
            source_length: Tokens of its source, END included.
        """
        tied = self.max_length_ratio * source_length + self.max_length_offset
        return max(1, min(self.max_length, int(tied)))

    def least_length(self, source_length: int) -> int:
        """Returns the fewest tokens of an output before END.

        Args:
            source_length: Tokens of its source, END included.
        """
        return max(self.min_length, int(self.min_length_ratio * source_length))


class EvaluationConfig(Table):
    """`[evaluation]`: how outputs are compared with references.

    Attributes:
        bleu_tokenize: sacreBLEU's tokenizer, of `evaluation.BLEU_TOKENIZERS`;
            `"none"` for text that has been tokenised already. Default: by the
            language, else `"13a"`.
        lowercase: Whether case is ignored.
        metrics: What `evaluate` reports, of `evaluation.METRICS`.
    """

    bleu_tokenize: (
        Literal["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"] | None
    ) = None
    lowercase: bool = False
    metrics: tuple[Literal["bleu", "chrf", "exact_match", "wer", "per"], ...] = (
        "bleu",
        "chrf",
        "exact_match",
        "wer",
    )


class RunConfig(Table):
    """A whole run: what is read, what is built, how it is trained and used.

    Attributes:
        data: Files and length limits.
        tokenizer: How text becomes ids.
        model: `name`, a key of `models.MODELS`, and its constructor's arguments;
            the vocabulary sizes come from the tokenizers.
        training: How the model is trained.
        decoding: How it writes.
        evaluation: How its outputs are scored.
    """

    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: dict[str, Any]
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @field_validator("model")
    @classmethod
    def _model_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        from keras_seq2seq.models import MODELS

        name = value.get("name")
        if not isinstance(name, str) or name not in MODELS:
            raise complete_error(
                f'"name" in [model] must be one of {", ".join(MODELS)}. '
                f"Received: {name!r}.{suggestion(str(name), MODELS)}"
            )
        if "preset" in value:
            # The run keeps the arguments themselves; those of the file win.
            try:
                preset = MODELS[name].preset_arguments(value["preset"])
            except ValueError as error:
                raise complete_error(f"[model]: {error}") from error
            value = {**preset, **value}
            del value["preset"]
        arguments = {key: item for key, item in value.items() if key != "name"}
        given = ("source_vocabulary_size", "target_vocabulary_size")
        check_arguments("[model]", MODELS[name], arguments, given=given)
        return value

    @model_validator(mode="after")
    def _shared_embeddings_need_shared_ids(self) -> Self:
        if self.model.get("share_embeddings") and not self.tokenizer.shared:
            raise complete_error(
                "share_embeddings in [model] needs shared = true in [tokenizer]: "
                "separate tokenizers give the same id to different pieces."
            )
        return self

    @property
    def model_arguments(self) -> dict[str, Any]:
        """Arguments of `[model]` without its name."""
        return {key: value for key, value in self.model.items() if key != "name"}


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Any:
    """Reads a run's TOML file, applies overrides and checks everything.

    Args:
        path: The file.
        overrides: Texts `table.key=value`; the value is TOML, or else a string.

    Returns:
        The checked configuration, with every default filled in; a `SeriesRunConfig`
        if the file has a table `[series]`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file isn't TOML, or with all mistakes in it at once.
    """
    path = Path(path)
    if not path.is_file():
        tables = ", ".join(f"[{name}]" for name in RunConfig.model_fields)
        raise FileNotFoundError(
            f"No recipe at {path}. Expected a TOML file with the tables {tables}."
        )
    values = read_toml(path)
    for override in overrides:
        apply_override(values, override)
    schema: type[BaseModel] = SeriesRunConfig if "series" in values else RunConfig
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        mistakes = "\n".join(f"- {line}" for line in describe(error, schema))
        raise ValueError(f"Mistakes in {path}:\n{mistakes}") from error


def config_to_toml(config: BaseModel) -> str:
    """Writes a configuration as TOML that `load_config` reads back equal.

    Args:
        config: The configuration.

    Returns:
        The text, every default written out; values of None are left out.
    """
    return write_toml(config.model_dump(mode="json"))
