"""Batches that `fit` reads from an encoded corpus; the shift by one happens here.

`PairDataset` makes batches of few distinct shapes, in an order that (seed, epoch)
decides. `encode_corpus` and `EncodedCorpus`, of `encoding.py`, make what it reads.
"""

import keras
import numpy as np

from keras_seq2seq.encoding import EncodedCorpus, encode_corpus
from keras_seq2seq.tokenizers import PAD_ID, START_ID

__all__ = ["EncodedCorpus", "PairDataset", "bucket_pairs", "encode_corpus"]


class PairDataset(keras.utils.PyDataset):
    """Batches of an encoded corpus, of at most `num_buckets` shapes in all.

    A batch is `({"source_ids": (B, S), "target_ids": (B, T)}, label_ids (B, T),
    label_weights (B, T))`. `target_ids` is START and the target without its last id;
    `label_ids` is the target, END included; PAD and weight 0 fill the rest, whole rows
    too where a bucket has no more pairs.

    Pairs of like length share a bucket `k`, whose batches all are `(B_k, S_k, T_k)`;
    the bounds are those that pad least. Each pass has each pair once, in an order that
    depends on (seed, pass) only. An epoch begins with a batch of the longest bucket, so
    that memory runs out at once or never, and one of the shortest: Keras takes the
    dimensions that these two share to be the same in all batches.

    Give `shuffle=False` to `fit`: it would shuffle the batches again, by random numbers
    of its own. Keras ends one epoch before the first that it trains, so `fit` begins
    with the order of `epoch + 1`, always. A run that goes on makes a new dataset with
    `epoch` set to `initial_epoch` and has the order of a run that never stopped.

    Args:
        corpus: The corpus, such as an `EncodedCorpus`.
        batch_tokens: The most ids, PAD included, of a batch on its longer side.
        max_batch_size: The most pairs of a batch; None for no limit of its own.
        num_buckets: The most shapes.
        length_multiple: Padded lengths are multiples of it.
        shuffle: Whether the order changes from pass to pass; otherwise it is fixed.
        seed: Decides the order together with the pass.
        steps_per_epoch: Batches of an epoch, cut from the endless row of passes; None
            for a pass an epoch. A piece without a batch of the longest or shortest
            bucket borrows one of the same pass in place of its last ones.
        epoch: The epoch to start with, to go on where an earlier run ended.

    Raises:
        ValueError: If the corpus is empty or an argument is out of range.
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        *,
        batch_tokens: int = 4096,
        max_batch_size: int | None = None,
        num_buckets: int = 6,
        length_multiple: int = 4,
        shuffle: bool = True,
        seed: int = 0,
        steps_per_epoch: int | None = None,
        epoch: int = 0,
    ) -> None:
        # With one worker Keras lets TensorFlow tune a pipeline, whose end it may notice
        # late, by up to the time that the epoch took.
        super().__init__(workers=2)
        self._check(
            batch_tokens=batch_tokens,
            max_batch_size=max_batch_size,
            num_buckets=num_buckets,
            length_multiple=length_multiple,
            steps_per_epoch=steps_per_epoch,
        )
        if epoch < 0:
            raise ValueError(f"`epoch` must not be negative. Received: {epoch}.")
        if len(corpus) == 0:
            raise ValueError("`corpus` must have at least one pair. Received: none.")
        self.corpus = corpus
        self.shuffle = shuffle
        self.seed = seed
        self.steps_per_epoch = steps_per_epoch
        lengths = np.stack([corpus.lengths("source"), corpus.lengths("target")], axis=1)
        self._buckets, padded = bucket_pairs(lengths, num_buckets, length_multiple)
        largest = min(max_batch_size or len(corpus), len(corpus))
        self.shapes: list[tuple[int, int, int]] = [
            (max(1, min(largest, batch_tokens // max(shape))), *shape)
            for shape in padded
        ]
        self._starts = [  # (bucket, first row) of each batch of a pass
            (bucket, start)
            for bucket, rows in enumerate(self._buckets)
            for start in range(0, len(rows), self.shapes[bucket][0])
        ]
        if len(self.shapes) > 1 and steps_per_epoch == 1:
            raise ValueError(
                "`steps_per_epoch` must be at least 2 where batches have different "
                "shapes. Received: 1."
            )
        self._passes: dict[int, tuple[list[np.ndarray], list[tuple[int, int]]]] = {}
        self.epoch = epoch

    @staticmethod
    def _check(**arguments: int | None) -> None:
        for name, value in arguments.items():
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {value}.")

    @property
    def epoch(self) -> int:
        """Number of the epoch whose batches are given."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._plan = self._epoch_plan(epoch)

    @property
    def num_target_tokens(self) -> int:
        """Number of target ids of a pass, END included."""
        return int(self.corpus.num_target_tokens)

    def __len__(self) -> int:
        return self.steps_per_epoch or len(self._starts)

    def __getitem__(self, index: int) -> tuple[dict, np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(
                f"`index` must be below {len(self)}, the number of batches. "
                f"Received: {index}."
            )
        pass_number, bucket, start = self._plan[index]
        rows = self._pass(pass_number)[0][bucket]
        return self._batch(rows[start : start + self.shapes[bucket][0]], bucket)

    def on_epoch_end(self) -> None:
        """Go on to the order of the next epoch; Keras calls this."""
        self.epoch += 1

    def _batch(
        self, rows: np.ndarray, bucket: int
    ) -> tuple[dict, np.ndarray, np.ndarray]:
        size, source_length, target_length = self.shapes[bucket]
        source_ids = np.full((size, source_length), PAD_ID, np.int32)
        target_ids = np.full((size, target_length), PAD_ID, np.int32)
        label_ids = np.full((size, target_length), PAD_ID, np.int32)
        label_weights = np.zeros((size, target_length), np.float32)
        for row, index in enumerate(rows):
            source, target = self.corpus[int(index)]
            source_ids[row, : len(source)] = source
            target_ids[row, 0] = START_ID
            target_ids[row, 1 : len(target)] = target[:-1]
            label_ids[row, : len(target)] = target
            label_weights[row, : len(target)] = 1
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        return inputs, label_ids, label_weights

    def _pass(self, number: int) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
        """Return the rows of each bucket and the batches, as a pass orders them."""
        if number not in self._passes:
            rows, starts = self._buckets, self._starts
            if self.shuffle:
                random = np.random.default_rng((self.seed, number))
                rows = [random.permutation(bucket) for bucket in rows]
                starts = [starts[i] for i in random.permutation(len(starts))]
            self._passes[number] = (rows, starts)
        return self._passes[number]

    def _epoch_plan(self, epoch: int) -> list[tuple[int, int, int]]:
        """Return (pass, bucket, first row) of each batch of an epoch."""
        per_pass = len(self._starts)
        first = epoch * len(self)
        numbers = range(first // per_pass, (first + len(self) - 1) // per_pass + 1)
        # An epoch needs no other pass: keep those alone.
        self._passes = {n: p for n, p in self._passes.items() if n in numbers}
        plan = [
            (number, *start) for number in numbers for start in self._pass(number)[1]
        ]
        skipped = first - numbers[0] * per_pass
        window = plan[skipped : skipped + len(self)]
        ends = dict.fromkeys((len(self.shapes) - 1, 0))  # longest, shortest; or one
        chosen = []
        for bucket in ends:
            found = next((batch for batch in window if batch[1] == bucket), None)
            if found is None:
                found = next(batch for batch in plan if batch[1] == bucket)
                others = [i for i, batch in enumerate(window) if batch[1] not in ends]
                del window[others[-1] if others else -1]
            else:
                window.remove(found)
            chosen.append(found)
        return chosen + window


def bucket_pairs(
    lengths: np.ndarray, num_buckets: int, length_multiple: int
) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
    """Divide pairs among buckets by their longer side so that padding is least.

    The bounds minimise the number of padded positions of both sides exactly, by dynamic
    programming over the possible bounds.

    Args:
        lengths: Source and target length of each pair, (pairs, 2).
        num_buckets: The most buckets.
        length_multiple: Padded lengths are multiples of it.

    Returns:
        The indices of each bucket's pairs in order, and the (source, target) length of
        each bucket, neither ever less than in the bucket before.
    """
    rounded = -(-lengths // length_multiple) * length_multiple
    keys, bucket_of_pair, pairs_of_key = np.unique(
        rounded.max(axis=1), return_inverse=True, return_counts=True
    )
    longest = np.zeros((len(keys), 2), np.int64)
    np.maximum.at(longest, bucket_of_pair, rounded)
    # Every bucket is as long as those before it at least, so that a batch's memory
    # grows with its number: the padded length of a bucket depends on its end alone.
    longest = np.maximum.accumulate(longest, axis=0)
    width = longest.sum(axis=1)
    pairs_until = np.concatenate([[0], np.cumsum(pairs_of_key)])
    # cost[j]: least padding of the keys before j, with so many buckets as rounds.
    cost = np.full(len(keys) + 1, np.inf)
    cost[0] = 0
    choices = []
    for _ in range(min(num_buckets, len(keys))):
        previous, cost = cost, np.full(len(keys) + 1, np.inf)
        choice = np.zeros(len(keys) + 1, np.int64)
        for end in range(1, len(keys) + 1):
            pairs = pairs_until[end] - pairs_until[:end]
            totals = previous[:end] + pairs * width[end - 1]
            choice[end] = totals.argmin()
            cost[end] = totals[choice[end]]
        choices.append(choice)
    ends = [len(keys)]
    for choice in reversed(choices):
        ends.insert(0, int(choice[ends[0]]))
    bucket_of_key = np.repeat(np.arange(len(choices)), np.diff(ends))
    bucket_of_pair = bucket_of_key[bucket_of_pair]
    buckets = [
        np.flatnonzero(bucket_of_pair == bucket).astype(np.int64)
        for bucket in range(len(choices))
    ]
    shapes = [
        (int(source), int(target)) for source, target in longest[np.array(ends[1:]) - 1]
    ]
    return buckets, shapes
