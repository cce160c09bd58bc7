"""Recipes: reading, overriding, refusing mistakes, writing."""

import re
from typing import get_args

import pytest

from keras_seq2seq.config import EvaluationConfig, config_to_toml, load_config
from keras_seq2seq.evaluation import BLEU_TOKENIZERS, METRICS

RECIPE = """
[data]
max_source_length = 50
[data.train]
source = "train.en"
target = "train.de"
[data.valid]
path = "valid.tsv"
columns = [1, 0]
[data.cleaning]
max_length_ratio = 3.0
[tokenizer]
vocabulary_size = 100
[model]
name = "TransformerSeq2Seq"
dim = 8
num_heads = 2
[training]
epochs = 3
schedule = "noam"
warmup_steps = 10
epsilon = 1e-9
jit_compile = false
[decoding]
num_beams = 2
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def mistakes(recipe, *overrides, text=None):
    if text is not None:
        recipe.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        load_config(recipe, overrides)
    return str(error.value)


def test_values_of_the_file_and_defaults_are_read(recipe):
    config = load_config(recipe)
    assert config.data.train.source == "train.en"
    assert config.data.valid.columns == (1, 0)
    assert config.data.test is None
    assert config.data.cleaning == {"max_length_ratio": 3.0}
    assert config.training.epochs == 3
    assert config.training.epsilon == 1e-9
    assert config.training.jit_compile is False
    assert config.training.batch_tokens == 4096
    assert config.model_arguments == {"dim": 8, "num_heads": 2}


def test_overrides_take_toml_values_and_plain_words(recipe):
    config = load_config(
        recipe,
        [
            "training.epochs=7",
            "training.precision=mixed_bfloat16",
            'tokenizer.model_type = "bpe"',
            "data.test.path=held out.tsv",
            "model.dropout=0.25",
            "training.jit_compile=auto",
        ],
    )
    assert config.training.epochs == 7
    assert config.training.precision == "mixed_bfloat16"
    assert config.tokenizer.model_type == "bpe"
    assert config.data.test.path == "held out.tsv"
    assert config.model["dropout"] == 0.25
    assert config.training.jit_compile == "auto"


@pytest.mark.parametrize("override", ["epochs=3", "training.epochs", "a..b=1", "=1"])
def test_an_override_of_another_form_is_refused(recipe, override):
    message = mistakes(recipe, override)
    assert "table.key=value" in message
    assert repr(override) in message


def test_an_override_below_a_value_is_refused(recipe):
    assert "'epochs' as a table" in mistakes(recipe, "training.epochs.x=1")


def test_a_misspelt_key_names_the_nearest_and_the_valid_ones(recipe):
    message = mistakes(recipe, "training.epoch=3")
    assert 'Unknown key "epoch" in [training]. Did you mean "epochs"?' in message
    assert "warmup_steps" in message.split("Valid keys:")[1]


def test_a_misspelt_key_of_nested_files_is_found(recipe):
    message = mistakes(recipe, "data.valid.colums=[0, 1]")
    assert 'Unknown key "colums" in [data.valid]. Did you mean "columns"?' in message


def test_a_misspelt_table_is_found(recipe):
    message = mistakes(recipe, "traning.epochs=3")
    assert 'Unknown key "traning" in the file. Did you mean "training"?' in message


def test_model_arguments_are_checked_against_the_constructor(recipe):
    message = mistakes(recipe, "model.droput=0.3", "model.source_vocabulary_size=9")
    assert 'Unknown key "droput" in [model]. Did you mean "dropout"?' in message
    assert '"source_vocabulary_size" in [model] is set by the tokenizers' in message
    valid = re.search(r"Valid keys: (.*)\.", message).group(1).split(", ")
    assert "num_heads" in valid
    assert "source_vocabulary_size" not in valid


def test_model_arguments_must_be_of_their_type(recipe):
    message = mistakes(recipe, "model.dim=eight", "model.num_heads=2.5")
    assert "\"dim\" in [model] should be a valid integer. Received: 'eight'." in message
    assert '"num_heads" in [model] should be a valid integer. Received: 2.5.' in message
    message = mistakes(recipe, "model.tie_output=no", "data.cleaning.max_words=many")
    assert (
        "\"tie_output\" in [model] should be a valid boolean. Received: 'no'."
        in message
    )
    assert '"max_words" in [data.cleaning] should be a valid integer.' in message
    assert load_config(recipe, ["model.dropout=0"]).model["dropout"] == 0


def test_mistakes_within_a_list_are_named_by_its_key(recipe):
    message = mistakes(recipe, 'evaluation.metrics=["bleu", 3]')
    assert '"metrics" in [evaluation]: input should be' in message
    assert "Received: 3." in message


def test_an_unknown_model_lists_the_models(recipe):
    message = mistakes(recipe, "model.name=TransformerSeq2seq")
    assert "RecurrentSeq2Seq, TransformerSeq2Seq" in message
    assert 'Did you mean "TransformerSeq2Seq"?' in message


def test_cleaning_arguments_are_checked(recipe):
    message = mistakes(recipe, "data.cleaning.max_length_rato=2")
    assert 'Unknown key "max_length_rato" in [data.cleaning]' in message
    assert 'Did you mean "max_length_ratio"?' in message


def test_all_mistakes_are_reported_at_once(recipe):
    message = mistakes(
        recipe,
        "training.epochs=0",
        "training.optimizer=adm",
        "decoding.beams=4",
        "model.layers=2",
        "data.train.path=x.tsv",
    )
    assert str(recipe) in message
    assert '"epochs" in [training]' in message
    assert "Received: 0" in message
    assert "Received: 'adm'" in message
    assert '"beams" in [decoding]' in message
    assert '"layers" in [model]' in message
    assert "[data.train]: expected either" in message
    assert "source='train.en'" in message
    assert len(message.splitlines()) == 6


def test_missing_parts_are_named(recipe):
    message = mistakes(recipe, text="[data]\nmax_source_length = 3\n")
    assert '[data] needs a value for "train".' in message
    assert 'the file needs a value for "model".' in message


def test_half_of_a_parallel_text_is_refused(recipe):
    message = mistakes(recipe, "data.test.source=a.en")
    assert "[data.test]: expected either `source` and `target`" in message


def test_a_learning_rate_beside_noam_is_refused(recipe):
    message = mistakes(recipe, "training.learning_rate=0.1")
    assert "noam_factor" in message
    assert "learning_rate=0.1" in message


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_a_rate_that_would_end_above_its_start_is_refused(recipe, schedule):
    message = mistakes(
        recipe, f"training.schedule={schedule}", "training.min_learning_rate=0.1"
    )
    assert "min_learning_rate=0.1, learning_rate=0.001" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ('evaluation.metrics=["bleu", "ter"]', "'per'. Received: 'ter'"),
        ("evaluation.bleu_tokenize=moses", "'ko-mecab'. Received: 'moses'"),
    ],
)
def test_an_unknown_metric_or_tokenizer_is_found_before_training(
    recipe, override, expected
):
    message = mistakes(recipe, override)
    key = override.split("=")[0].split(".")[1]
    assert f'"{key}" in [evaluation]: input should be' in message
    assert expected in message
    assert len(message.splitlines()) == 2


def test_metrics_and_tokenizers_are_those_of_the_evaluation():
    fields = EvaluationConfig.model_fields
    metrics = get_args(get_args(fields["metrics"].annotation)[0])
    assert metrics == METRICS
    tokenizers = get_args(get_args(fields["bleu_tokenize"].annotation)[0])
    assert tokenizers == BLEU_TOKENIZERS


def test_a_model_whose_name_is_no_word_is_refused(recipe):
    assert "Received: ['a']" in mistakes(recipe, 'model.name=["a"]')


def test_a_shared_tokenizer_has_no_sides(recipe):
    message = mistakes(
        recipe, "tokenizer.shared=true", "tokenizer.source_vocabulary_size=9"
    )
    assert "[tokenizer]: a shared tokenizer" in message
    assert "source_vocabulary_size" in message


def test_shared_embeddings_need_a_shared_tokenizer(recipe):
    message = mistakes(recipe, "model.share_embeddings=true")
    assert "needs shared = true in [tokenizer]" in message
    overrides = ["model.share_embeddings=true", "tokenizer.shared=true"]
    assert load_config(recipe, overrides).model["share_embeddings"] is True


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.toml.*\[training\]"):
        load_config(tmp_path / "none.toml")


def test_a_file_that_is_not_toml_is_refused_with_its_line(recipe):
    assert "line 2" in mistakes(recipe, text="[data]\nmax length = 3\n")


def test_a_byte_order_mark_is_accepted(recipe):
    recipe.write_bytes(b"\xef\xbb\xbf" + recipe.read_bytes())
    assert load_config(recipe).training.epochs == 3


def test_written_toml_is_read_back_equal(recipe, tmp_path):
    config = load_config(
        recipe,
        [
            r'data.test.path="a \"b\" \\ é\u007f.tsv"',
            'data.test.columns=["from", "to"]',
            "evaluation.bleu_tokenize=none",
            "data.train.source=C:\\new\\train.en",
        ],
    )
    copy = tmp_path / "copy.toml"
    copy.write_text(config_to_toml(config), encoding="utf-8")
    assert load_config(copy) == config
    assert config.data.test.path == 'a "b" \\ é\x7f.tsv'
    assert config.data.train.source == "C:\\new\\train.en"


SAMPLING = "training.scheduled_sampling"


def test_scheduled_sampling_is_off_unless_its_table_is_there(recipe):
    assert load_config(recipe).training.scheduled_sampling is None
    overrides = [f"{SAMPLING}.decay=linear", f"{SAMPLING}.c=0.001"]
    config = load_config(recipe, overrides)
    assert config.training.scheduled_sampling.c == 0.001
    assert config.training.scheduled_sampling.form == "steps"
    recipe.write_text(config_to_toml(config), encoding="utf-8")
    assert load_config(recipe) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["form=steps"], '[training.scheduled_sampling] needs a value for "decay"'),
        (
            ["decay=linear", "slope=1"],
            'Unknown key "slope" in [training.scheduled_sampling]',
        ),
        (["decay=exponential"], '[training.scheduled_sampling]: decay "exponential"'),
        (["decay=exponential", "k=2.0"], "k=2.0"),
        (["decay=never", "k=2.0"], "k=2.0"),
        (["decay=never", "choice=gumbel"], 'only form "two_pass" can feed'),
        (["decay=never", "first_pass_gradient=true"], 'choice="argmax"'),
    ],
)
def test_settings_of_scheduled_sampling_must_fit_each_other(recipe, overrides, message):
    found = mistakes(recipe, *(f"{SAMPLING}.{override}" for override in overrides))
    assert message in found
    assert ".." not in found
