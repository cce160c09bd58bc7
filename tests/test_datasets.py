"""Encoded corpora and batches, checked against literal values."""

import json
from typing import Any

import keras
import numpy as np
import pytest

from keras_seq2seq.datasets import (
    EncodedCorpus,
    PairDataset,
    bucket_pairs,
    encode_corpus,
)
from keras_seq2seq.tokenizers import Tokenizer, TokenizerPair

# Words as pieces, so that ids can be told by hand: most frequent first, then by name.
SOURCES = Tokenizer.train(["a a a a b b b c c d"], model_type="word")
TARGETS = Tokenizer.train(["x x x y y z"], model_type="word")
A, B, C, D = SOURCES.encode("a b c d")
X, Y, Z = TARGETS.encode("x y z")
TOKENIZERS = TokenizerPair(SOURCES, TARGETS)
PAIRS = [
    ("a", "x"),
    ("a b", "x y"),
    ("b c d a", "z"),
    ("a b c d a b", "x y z x"),
    ("c", "y y y"),
]


@pytest.fixture
def corpus(tmp_path):
    return encode_corpus(PAIRS, TOKENIZERS, tmp_path / "encoded")


def batches(dataset):
    """The batches of one epoch as nested lists."""
    return [
        (
            inputs["source_ids"].tolist(),
            inputs["target_ids"].tolist(),
            labels.tolist(),
            weights.tolist(),
        )
        for inputs, labels, weights in (dataset[i] for i in range(len(dataset)))
    ]


def pairs_of(dataset):
    """Every real pair of an epoch, in order, as the rows show it."""
    found = []
    for sources, targets, labels, weights in batches(dataset):
        for source, target, label, weight in zip(
            sources, targets, labels, weights, strict=True
        ):
            length = int(sum(weight))
            if not length:
                assert not any(source) and not any(target) and not any(label)
                continue
            assert weight == [1.0] * length + [0.0] * (len(weight) - length)
            assert target[:length] == [2, *label[: length - 1]]
            assert not any(target[length:]) and not any(label[length:])
            found.append((tuple(filter(None, source)), tuple(filter(None, label))))
    return found


def test_ids_of_this_file_are_what_the_comments_say():
    assert (A, B, C, D, X, Y, Z) == (4, 5, 6, 7, 4, 5, 6)


def test_every_source_and_target_ends_with_end(corpus):
    rows = [(source.tolist(), target.tolist()) for source, target in corpus]
    assert rows == [
        ([A, 3], [X, 3]),
        ([A, B, 3], [X, Y, 3]),
        ([B, C, D, A, 3], [Z, 3]),
        ([A, B, C, D, A, B, 3], [X, Y, Z, X, 3]),
        ([C, 3], [Y, Y, Y, 3]),
    ]
    assert corpus[0][0].dtype == corpus[-1][1].dtype == np.int32
    assert corpus[-1][1].tolist() == [Y, Y, Y, 3]
    assert (len(corpus), corpus.num_source_tokens, corpus.num_target_tokens) == (
        5,
        19,
        16,
    )
    assert corpus.lengths("source").tolist() == [2, 3, 5, 7, 2]
    assert corpus.lengths("target").tolist() == [2, 3, 2, 5, 4]
    with pytest.raises(IndexError, match="below 5.*Received: 5"):
        corpus[5]


def test_long_pairs_are_dropped_or_cut_with_counts_that_add_up(tmp_path):
    # B18, B26, B57
    limits: dict[str, Any] = {"max_source_length": 5, "max_target_length": 3}
    pairs = [*PAIRS, ("", "x"), ("a", " \t"), ("a b c d a", "x")]
    dropped = encode_corpus(pairs, TOKENIZERS, tmp_path / "drop", **limits)
    assert dropped.counts == {
        "read": 8,
        "kept": 3,
        "dropped_empty": 2,
        "dropped_too_long": 3,
        "cut_source": 0,
        "cut_target": 0,
    }
    cut = encode_corpus(pairs, TOKENIZERS, tmp_path / "cut", too_long="cut", **limits)
    assert cut.counts == {
        "read": 8,
        "kept": 6,
        "dropped_empty": 2,
        "dropped_too_long": 0,
        "cut_source": 2,
        "cut_target": 2,
    }
    source, target = cut[3]
    assert (source.tolist(), target.tolist()) == ([A, B, C, D, 3], [X, Y, 3])


def test_a_corpus_of_nothing_says_what_became_of_it(tmp_path):
    with pytest.raises(ValueError, match="Received: 0 pairs"):
        encode_corpus([], TOKENIZERS, tmp_path / "a")
    pairs = [("", "x"), ("a b c", "x"), ("a b c", "y")]
    with pytest.raises(ValueError, match="3 pairs, .* 1 had .* 2 were too long"):
        encode_corpus(pairs, TOKENIZERS, tmp_path / "a", max_source_length=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"too_long": "split"}, '"drop" or "cut". Received: \'split\''),
        ({"max_source_length": 1}, "`max_source_length` must be .* Received: 1"),
        ({"max_target_length": 0}, "`max_target_length` must be .* Received: 0"),
    ],
)
def test_bad_encoding_arguments_are_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        encode_corpus(PAIRS, TOKENIZERS, tmp_path / "a", **options)


def test_a_matching_encoding_is_reused_and_another_is_replaced(tmp_path, corpus):
    folder = corpus.folder
    stamp = (folder / "corpus.json").stat().st_mtime_ns
    again = encode_corpus(list(PAIRS), TOKENIZERS, folder)
    assert (folder / "corpus.json").stat().st_mtime_ns == stamp
    assert again.fingerprint == corpus.fingerprint
    changed = encode_corpus([*PAIRS[:-1], ("c", "z")], TOKENIZERS, folder)
    assert changed.fingerprint != corpus.fingerprint
    other_words = TokenizerPair(
        SOURCES, Tokenizer.train(["z z y x"], model_type="word")
    )
    swapped = encode_corpus([*PAIRS[:-1], ("c", "z")], other_words, folder)
    assert swapped.fingerprint != changed.fingerprint
    limited = encode_corpus(PAIRS, TOKENIZERS, folder, max_source_length=6)
    assert len(limited) == 4
    from_iterator = encode_corpus(iter(PAIRS), TOKENIZERS, folder)
    assert from_iterator.fingerprint == corpus.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["encoded"]


def test_an_interrupted_encoding_leaves_the_earlier_one(tmp_path, corpus):
    def failing():
        yield PAIRS[0]
        raise ValueError("line 2 of train.de")

    with pytest.raises(ValueError, match="line 2"):
        encode_corpus(failing(), TOKENIZERS, corpus.folder)
    assert len(EncodedCorpus.open(corpus.folder)) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["encoded"]


def test_a_corpus_opens_where_it_was_moved_and_damage_is_found(tmp_path, corpus):
    moved = corpus.folder.rename(tmp_path / "moved")
    opened = EncodedCorpus.open(moved)
    assert opened[1][0].tolist() == [A, B, 3]
    assert opened.fingerprint == corpus.fingerprint
    description = json.loads((moved / "corpus.json").read_text(encoding="utf-8"))
    description["kept"] = 6
    (moved / "corpus.json").write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(ValueError, match="speaks of 6 pairs .* hold 5 and 19"):
        EncodedCorpus.open(moved)
    with pytest.raises(FileNotFoundError, match="corpus.json is missing"):
        EncodedCorpus.open(tmp_path / "nowhere")


def test_files_are_as_small_as_the_vocabulary_allows(corpus):
    assert np.load(corpus.folder / "source_ids.npy", mmap_mode="r").dtype == np.uint16


def test_progress_counts_the_pairs_read(tmp_path):
    seen: list[int] = []
    encode_corpus(PAIRS * 500, TOKENIZERS, tmp_path / "a", progress=seen.append)
    assert seen == [1000, 2000, 2500]


def test_one_pair_is_shifted_by_one_position(tmp_path):
    # B51
    corpus = encode_corpus([("a b", "x y")], TOKENIZERS, tmp_path / "one")
    (batch,) = batches(PairDataset(corpus, length_multiple=1))
    assert batch == ([[A, B, 3]], [[2, X, Y]], [[X, Y, 3]], [[1.0, 1.0, 1.0]])


def test_a_whole_tiny_epoch_is_as_computed_by_hand(corpus):
    # Longer sides 2, 3, 5, 7, 4 round up to 4, 4, 8, 8, 4: two buckets of multiples of
    # 4, (4, 4) and (8, 8). The longest comes first, then the shortest, then the rest.
    dataset = PairDataset(
        corpus, batch_tokens=8, num_buckets=2, length_multiple=4, shuffle=False
    )
    assert dataset.shapes == [(2, 4, 4), (1, 8, 8)]
    ones = [1.0, 1.0, 1.0, 1.0]
    assert batches(dataset) == [
        (
            [[B, C, D, A, 3, 0, 0, 0]],
            [[2, Z, 0, 0, 0, 0, 0, 0]],
            [[Z, 3, 0, 0, 0, 0, 0, 0]],
            [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]],
        ),
        (
            [[A, 3, 0, 0], [A, B, 3, 0]],
            [[2, X, 0, 0], [2, X, Y, 0]],
            [[X, 3, 0, 0], [X, Y, 3, 0]],
            [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]],
        ),
        (
            [[C, 3, 0, 0], [0, 0, 0, 0]],
            [[2, Y, Y, Y], [0, 0, 0, 0]],
            [[Y, Y, Y, 3], [0, 0, 0, 0]],
            [ones, [0.0, 0.0, 0.0, 0.0]],
        ),
        (
            [[A, B, C, D, A, B, 3, 0]],
            [[2, X, Y, Z, X, 0, 0, 0]],
            [[X, Y, Z, X, 3, 0, 0, 0]],
            [[*ones, 1.0, 0.0, 0.0, 0.0]],
        ),
    ]
    inputs, labels, weights = dataset[0]
    assert list(inputs) == ["source_ids", "target_ids"]
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype("int32")}
    assert weights.dtype == np.float32
    with pytest.raises(IndexError, match="below 4"):
        dataset[4]


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    random = np.random.default_rng(7)
    pairs = [
        (
            " ".join(random.choice(list("abcd"), random.integers(1, 40))),
            " ".join(random.choice(list("xyz"), random.integers(1, 30))),
        )
        for _ in range(150)
    ]
    return encode_corpus(pairs, TOKENIZERS, tmp_path_factory.mktemp("v") / "varied")


@pytest.mark.parametrize("num_buckets", [1, 3, 6, 50])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_pass_has_each_pair_once_in_few_shapes(varied, num_buckets, shuffle):
    # B61, B57
    dataset = PairDataset(
        varied, batch_tokens=160, num_buckets=num_buckets, shuffle=shuffle
    )
    expected = sorted(
        (tuple(source.tolist()), tuple(target.tolist())) for source, target in varied
    )
    for _ in range(2):
        assert sorted(pairs_of(dataset)) == expected
        shapes = [
            (*s.shape, t.shape[1])
            for s, t in ((np.array(b[0]), np.array(b[1])) for b in batches(dataset))
        ]
        assert set(shapes) == set(dataset.shapes)
        assert len(dataset.shapes) <= num_buckets
        assert shapes[0] == max(dataset.shapes, key=lambda shape: shape[1:])
        if num_buckets > 1:
            assert shapes[1] == min(dataset.shapes, key=lambda shape: shape[1:])
        for size, source_length, target_length in dataset.shapes:
            assert size == max(1, min(150, 160 // max(source_length, target_length)))
            assert source_length % 4 == target_length % 4 == 0
        dataset.on_epoch_end()
    assert dataset.num_target_tokens == varied.num_target_tokens


def test_max_batch_size_bounds_every_batch(varied):
    dataset = PairDataset(varied, batch_tokens=4096, max_batch_size=7)
    assert max(size for size, _, _ in dataset.shapes) == 7


def test_an_overlong_pair_gets_a_batch_of_its_own(varied):
    dataset = PairDataset(varied, batch_tokens=3)
    assert {size for size, _, _ in dataset.shapes} == {1}
    assert len(pairs_of(dataset)) == 150


def test_order_is_a_function_of_seed_and_epoch(varied):
    # B60, B55
    options: dict[str, Any] = {"batch_tokens": 100, "num_buckets": 3}
    running = PairDataset(varied, seed=5, **options)
    first = pairs_of(running)
    running.on_epoch_end()
    second = pairs_of(running)
    assert running.epoch == 1
    assert first != second
    assert pairs_of(PairDataset(varied, seed=5, epoch=1, **options)) == second
    assert pairs_of(PairDataset(varied, seed=5, **options)) == first
    assert pairs_of(PairDataset(varied, seed=6, **options)) != first
    running.epoch = 0
    assert pairs_of(running) == first
    fixed = PairDataset(varied, shuffle=False, **options)
    order = pairs_of(fixed)
    fixed.on_epoch_end()
    assert pairs_of(fixed) == order


def test_steps_per_epoch_cuts_the_row_of_passes(varied):
    # One bucket: nothing has to be moved, so the epochs are the passes end to end.
    options: dict[str, Any] = {"batch_tokens": 400, "num_buckets": 1, "seed": 3}
    whole = PairDataset(varied, **options)
    assert len(whole) == 15
    passes = batches(whole)
    whole.on_epoch_end()
    passes += batches(whole)
    pieces = PairDataset(varied, steps_per_epoch=6, **options)
    row = []
    for _ in range(5):
        assert len(pieces) == 6
        row += batches(pieces)
        pieces.on_epoch_end()
    assert row == passes
    assert (
        batches(PairDataset(varied, steps_per_epoch=6, epoch=4, **options)) == row[24:]
    )


def test_an_epoch_longer_than_a_pass_goes_on_with_the_next(varied):
    dataset = PairDataset(varied, num_buckets=1, batch_tokens=400, steps_per_epoch=40)
    assert len(batches(dataset)) == 40
    counts: dict = {}
    for pair in pairs_of(dataset):
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) >= 140
    assert min(counts.values()) >= 2


@pytest.mark.parametrize("steps", [2, 3, 5, 17])
def test_pieces_of_a_pass_begin_with_the_longest_and_shortest_bucket(varied, steps):
    dataset = PairDataset(
        varied, batch_tokens=100, num_buckets=4, steps_per_epoch=steps
    )
    for _ in range(30):
        found = [np.shape(batch[0]) for batch in batches(dataset)]
        assert len(found) == steps
        assert found[0] == dataset.shapes[-1][:2]
        assert found[1] == dataset.shapes[0][:2]
        dataset.on_epoch_end()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_tokens": 0}, "`batch_tokens` must be at least 1. Received: 0"),
        ({"max_batch_size": 0}, "`max_batch_size` must be at least 1"),
        ({"num_buckets": 0}, "`num_buckets` must be at least 1"),
        ({"length_multiple": 0}, "`length_multiple` must be at least 1"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be at least 1"),
        ({"steps_per_epoch": 1}, "`steps_per_epoch` must be at least 2"),
        ({"epoch": -1}, "`epoch` must not be negative. Received: -1"),
    ],
)
def test_bad_batching_arguments_are_named(varied, options, message):
    with pytest.raises(ValueError, match=message):
        PairDataset(varied, **options)


def test_an_empty_corpus_is_refused():
    # B62
    with pytest.raises(ValueError, match="at least one pair"):
        PairDataset([])  # type: ignore[arg-type]


def test_bounds_pad_least_among_all_choices():
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, (40, 2))
    keys = sorted(set(lengths.max(axis=1).tolist()))

    def padded(bounds):
        total, previous, shape = 0, 0, np.zeros(2, int)
        for bound in bounds:
            longer = lengths.max(axis=1)
            rows = lengths[(longer > previous) & (longer <= bound)]
            shape = np.maximum(shape, rows.max(axis=0))
            total += len(rows) * shape.sum()
            previous = bound
        return total

    choices = [(a, b, keys[-1]) for a in keys[:-1] for b in keys[:-1] if a < b]
    least = min(map(padded, choices))
    buckets, shapes = bucket_pairs(lengths, 3, 1)
    total = sum(
        len(rows) * sum(shape) for rows, shape in zip(buckets, shapes, strict=True)
    )
    assert total == least
    assert sorted(np.concatenate(buckets)) == list(range(40))
    for rows, shape in zip(buckets, shapes, strict=True):
        assert (lengths[rows] <= shape).all()


class Counting(keras.Model):
    """Counts tokens and traces; its loss is the number of tokens it has seen."""

    def __init__(self):
        super().__init__()
        self.total = self.add_weight(
            shape=(), initializer="zeros", name="total", trainable=False
        )
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.traces = []

    def call(self, inputs):
        self.traces.append(inputs["target_ids"].shape)
        ids = keras.ops.cast(inputs["target_ids"], "float32")
        return keras.ops.expand_dims(ids * self.scale, -1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
        self.total.assign_add(keras.ops.sum(sample_weight))
        return keras.ops.mean(y_pred) * 0.0


def test_fit_runs_every_batch_of_every_epoch_with_one_trace(varied):
    # B61, B62: 3 full epochs, lengths that no epoch's first batches rule out.
    model = Counting()
    model.compile("sgd", jit_compile=False)
    dataset = PairDataset(varied, batch_tokens=100, num_buckets=5)
    model.fit(dataset, epochs=3, verbose=0, shuffle=False)
    assert dataset.epoch == 4  # Keras ends one epoch before its first
    assert float(model.total) == 3 * varied.num_target_tokens
    # Keras traces once for dimensions that vary, and calls once to build.
    assert len(model.traces) <= len(dataset.shapes)


def test_fit_runs_with_pieces_of_passes(varied):
    model = Counting()
    model.compile("sgd", jit_compile=False)
    dataset = PairDataset(varied, batch_tokens=100, num_buckets=5, steps_per_epoch=3)
    history = model.fit(dataset, epochs=12, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 12
    assert float(model.total) > 0


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("built", [True, False])
def test_fit_goes_on_with_the_order_where_an_earlier_fit_ended(varied, steps, built):
    # B55: epochs 0 to 3 at once, or 0 and 1 and then, with a new dataset, 2 and 3.
    seen: list[list] = []

    class Recording(Counting):
        def compute_loss(self, x=None, y=None, *args, **kwargs):
            seen.append(np.array(y).tolist())
            return super().compute_loss(x, y, *args, **kwargs)

    def fit(first, last):
        dataset = PairDataset(
            varied, batch_tokens=800, num_buckets=2, steps_per_epoch=steps, epoch=first
        )
        model = Recording()
        model.compile("sgd", run_eagerly=True)
        if built:
            model(dataset[0][0])
        model.fit(dataset, initial_epoch=first, epochs=last, verbose=0, shuffle=False)

    fit(0, 4)
    whole, seen = seen, []
    fit(0, 2)
    fit(2, 4)
    assert seen == whole


def test_seven_pairs_in_batches_of_four_make_two_steps_an_epoch(tmp_path):
    # B62
    pairs = [("a", word) for word in ("x", "y", "z", "x", "y", "z", "x")]
    corpus = encode_corpus(pairs, TOKENIZERS, tmp_path / "seven")
    dataset = PairDataset(corpus, max_batch_size=4)
    assert len(dataset) == 2
    model = Counting()
    model.compile("sgd", jit_compile=False)
    model.fit(dataset, epochs=3, verbose=0, shuffle=False)
    assert float(model.total) == 3 * 14
