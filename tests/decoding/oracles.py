"""Models whose best sequences NumPy can list: a Markov chain and one with a memory."""

import itertools

import keras
import numpy as np
from keras import ops

from keras_seq2seq.decoding.search import repeat_rows
from keras_seq2seq.models import ConvSeq2Seq, RecurrentSeq2Seq, TransformerSeq2Seq

PAD, UNK, START, END = 0, 1, 2, 3
BANNED = (PAD, START)

# The likeliest first token leads to the less likely sentence: "a" .3, "b" .36.
GARDEN_PATH = np.zeros((6, 6))
GARDEN_PATH[START, [4, 5]] = 0.6, 0.4
GARDEN_PATH[4, [END, UNK, 5]] = 0.5, 0.3, 0.2
GARDEN_PATH[5, [END, UNK]] = 0.9, 0.1
GARDEN_PATH[UNK, [END, UNK]] = 0.6, 0.4


def random_chain(seed, vocabulary_size=6):
    """Probability of each next token given the last one, `(V, V)`."""
    logits = np.random.default_rng(seed).normal(size=(vocabulary_size,) * 2)
    weights = np.exp(1.5 * logits)
    return weights / weights.sum(axis=1, keepdims=True)


def chain_inputs(batch=1, source_length=2):
    """`memory` and `state` for a step function that needs neither."""
    memory = {"mask": ops.ones((batch, source_length), dtype="bool")}
    return memory, {"unused": ops.zeros((batch, 1))}


def chain_log_probs(transitions):
    """Log-probabilities of the next token given the tokens so far."""
    with np.errstate(divide="ignore"):
        table = np.log(transitions)
    return lambda tokens: table[tokens[-1] if tokens else START]


def tiny_model(name, sizes=(12, 6), **arguments):
    """A model of each kind, of new weights."""
    if name == "transformer":
        return TransformerSeq2Seq(
            *sizes,
            dim=8,
            num_heads=2,
            feedforward_dim=8,
            num_encoder_layers=1,
            num_decoder_layers=2,
            positions="learned",
            max_positions=20,
            **arguments,
        )
    if name == "convolutional":
        return ConvSeq2Seq(
            *sizes,
            embedding_dim=8,
            encoder_channels=[8],
            decoder_channels=[8, 6],
            decoder_kernel_size=[3, 1],
            output_dim=8,
            max_positions=20,
        )
    return RecurrentSeq2Seq(*sizes, units=8, embedding_dim=8, num_decoder_layers=2)


class HistoryModel(keras.Model):
    """A decoder whose logits and attention depend on every token written before.

    The state is a buffer of the tokens fed so far. A search that loses track of
    parents, or mixes up the rows of two sources, gets other numbers.
    """

    max_positions = None

    def __init__(self, vocabulary_size=6, max_length=8, source_length=3, seed=0):
        super().__init__()
        generator = np.random.default_rng(seed)
        self.max_length = max_length
        arrays = {
            "token_weights": generator.normal(size=(vocabulary_size, max_length)),
            "logit_weights": generator.normal(size=(max_length, vocabulary_size)),
            "attention_weights": generator.normal(size=(max_length, source_length)),
            "source_weights": generator.normal(size=(20, vocabulary_size)),
        }
        self.arrays = {
            name: self.add_weight(
                name=name,
                shape=array.shape,
                initializer=keras.initializers.Constant(array.astype("float32")),
            )
            for name, array in arrays.items()
        }
        self.built = True

    def encode(self, source_ids, training=False):
        bias = ops.sum(ops.take(self.arrays["source_weights"], source_ids, 0), axis=1)
        return {"bias": bias, "mask": source_ids != PAD}

    def initial_state(self, memory, max_length):
        batch = ops.shape(memory["mask"])[0]
        return {
            "history": ops.zeros((batch, self.max_length)),
            "position": ops.zeros((batch,), dtype="int32"),
        }

    def step(self, token_ids, memory, state):
        position = state["position"]
        written = ops.one_hot(position, self.max_length)  # (R, L)
        values = ops.take(self.arrays["token_weights"], token_ids, axis=0)
        history = state["history"] + written * values
        logits = 2.0 * ops.cos(ops.matmul(history, self.arrays["logit_weights"]))
        batch, vocabulary_size = ops.shape(memory["bias"])
        rows = ops.shape(token_ids)[0]
        logits = ops.reshape(logits, (batch, rows // batch, vocabulary_size))
        logits = ops.reshape(
            logits + ops.expand_dims(memory["bias"], axis=1), (rows, vocabulary_size)
        )
        attention = ops.softmax(
            ops.matmul(history, self.arrays["attention_weights"]), axis=-1
        )
        return logits, {"history": history, "position": position + 1}, attention

    def repeat_state(self, state, count):
        return repeat_rows(state, count)

    def select_state(self, state, parents):
        return keras.tree.map_structure(lambda x: ops.take(x, parents, axis=0), state)

    def select_memory(self, memory, sources):
        return keras.tree.map_structure(lambda x: ops.take(x, sources, axis=0), memory)

    def reference(self, source_ids):
        """NumPy twin: functions of the tokens so far, for one source."""
        arrays = {
            name: ops.convert_to_numpy(value).astype("float64")
            for name, value in self.arrays.items()
        }
        bias = arrays["source_weights"][np.asarray(source_ids)].sum(axis=0)

        def history(tokens):
            fed = [START, *tokens]
            values = np.zeros(self.max_length)
            for position, token in enumerate(fed):
                values[position] = arrays["token_weights"][token, position]
            return values

        def log_probs(tokens):
            logits = 2 * np.cos(history(tokens) @ arrays["logit_weights"]) + bias
            return logits - np.log(np.exp(logits).sum())

        def attention(tokens):
            scores = np.exp(history(tokens) @ arrays["attention_weights"])
            return scores / scores.sum()

        return log_probs, attention


def exhaustive(
    log_probs_of,
    vocabulary_size,
    limit,
    *,
    alpha=0.0,
    min_length=0,
    score=None,
    keep=lambda tokens: True,
):
    """Every hypothesis with its log-probability and score, best first.

    Finished ones only, unless there is none: then those that the limit cut.

    Args:
        log_probs_of: Log-probabilities of the next token, given the tokens so far.
        vocabulary_size: Number of tokens.
        limit: Most tokens, END included.
        alpha: Exponent of the length penalty of GNMT.
        min_length: Fewest tokens before END.
        score: `score(tokens, log_prob)` in place of that penalty.
        keep: `keep(tokens)`, whether a hypothesis is allowed.
    """
    score = score or (lambda tokens, total: total / ((5 + len(tokens)) / 6) ** alpha)
    words = [i for i in range(vocabulary_size) if i not in (*BANNED, END)]
    finished, cut = [], []
    for length in range(limit + 1):
        for words_before in itertools.product(words, repeat=length):
            prefix = list(words_before)
            if length == limit:
                cut.append(prefix)
            elif length >= min_length:
                finished.append([*prefix, END])

    def scored(sequences):
        rows = []
        for tokens in sequences:
            total = sum(
                log_probs_of(tokens[:position])[token]
                for position, token in enumerate(tokens)
            )
            if np.isfinite(total) and total > -1e8 and keep(tokens):
                rows.append((tokens, total, score(tokens, total)))
        return sorted(rows, key=lambda row: -row[2])

    return scored(finished) or scored(cut)


def hypotheses(result, row):
    """The hypotheses of one source as lists of ids, empty slots left out."""
    ids = ops.convert_to_numpy(result.ids)[row]
    lengths = ops.convert_to_numpy(result.lengths)[row]
    return [
        list(map(int, tokens[:length]))
        for tokens, length in zip(ids, lengths, strict=True)
        if length
    ]


def check_against(expected, result, row=0, tolerance=1e-4):
    """Checks one row of a result against the first of the exhaustive list."""
    found = hypotheses(result, row)
    count = min(len(expected), result.ids.shape[1])
    assert found == [tokens for tokens, _, _ in expected[:count]]
    log_probs = ops.convert_to_numpy(result.log_probs)[row, :count]
    scores = ops.convert_to_numpy(result.scores)[row, :count]
    np.testing.assert_allclose(
        log_probs, [e[1] for e in expected[:count]], atol=tolerance
    )
    np.testing.assert_allclose(scores, [e[2] for e in expected[:count]], atol=tolerance)
    finished = ops.convert_to_numpy(result.finished)[row, :count]
    assert finished.tolist() == [e[0][-1] == END for e in expected[:count]]


def assert_same(result, other, tolerance=1e-5):
    """Checks that two results agree in every part."""
    for name, left, right in zip(result._fields, result, other, strict=True):
        if left is None or right is None:
            assert left is right, name
            continue
        left, right = ops.convert_to_numpy(left), ops.convert_to_numpy(right)
        if left.dtype == "float32":
            np.testing.assert_allclose(
                left, right, atol=tolerance, rtol=tolerance, err_msg=name
            )
        else:
            np.testing.assert_array_equal(left, right, err_msg=name)


def row_of(result, row):
    """One source of a result."""
    return type(result)(*(None if x is None else x[row : row + 1] for x in result))
