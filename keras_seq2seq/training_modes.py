"""Training on the model's own predictions: scheduled sampling and free running.

A wrapper around a model that `trainer` compiles and fits in its place. Teacher forcing
needs none: it is what a model does by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seq2seq.buffers import write_at
from keras_seq2seq.layers import TokenEmbedding, masked_softmax, padding_mask
from keras_seq2seq.layers.masks import FLOOR

__all__ = ["ScheduledSampling", "check_options", "inner_model", "sparsemax"]

TOKENS = ("argmax", "sample")
MIXTURES = ("softmax", "gumbel", "sparsemax", "top_k")


@keras.saving.register_keras_serializable("keras_seq2seq")
class ScheduledSampling(keras.Model):
    """Trains a model on inputs that are partly its own predictions.

    In training, each input of the decoder is the gold token with the probability that
    `gold_rate` has at this update, else the model's own prediction for that position.
    The labels stay gold. START and padding are never replaced. Outside training this is
    the wrapped model, so that validation is teacher-forced. With a gold rate of 0 the
    decoder runs freely.

    The inputs are found first and the model is trained on them second:

    - `form="steps"` decodes the target token by token, each prediction made from the
      inputs chosen before it (Bengio et al., 2015). It serves every model, in as many
      steps as the target has tokens.
    - `form="two_pass"` makes all predictions in one pass over the gold target
      (Mihaylova & Martins, 2019). It serves models that decode a whole target at once.

    No gradient passes through a chosen token, so training on inputs found beforehand
    is training through the loop that chose them. Predictions are made without the
    decoder's dropout, which acts in the pass that is trained; hence a gold rate of 1 is
    teacher forcing exactly, with the same dropout. PAD and START are not predicted.

    Args:
        model: A model of the contract of `models.Seq2Seq`. Save this one: the wrapper
            is of no use outside training.
        gold_rate: Function of the number of updates done, such as
            `schedules.InverseSigmoidGoldRate`.
        form: `"steps"` or `"two_pass"`.
        choice: What a prediction is: the likeliest token (`"argmax"`) or one drawn
            (`"sample"`); for two passes also a mixture of token vectors, weighted by
            `"softmax"`, `"gumbel"` (softmax of logits with Gumbel noise), `"sparsemax"`
            or `"top_k"` (softmax among the `top_k` likeliest).
        peel: Which inputs are gold: each by a coin of its own (`"coins"`), or the first
            ones of each target, as many as the gold rate says (`"prefix"`).
        temperature: What logits are divided by, except for `"argmax"`.
        top_k: Tokens of a `"top_k"` mixture.
        first_pass_gradient: Whether the gradient of a mixture reaches the first pass.
        banned_ids: Tokens that are never predicted.
        seed: Seed of the coins and draws.

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}`, int32, 0 is padding.

    Returns:
        Logits, float32, `(B, T, V)`.

    Raises:
        ValueError: If an argument is outside the values above, or the model cannot be
            fed mixtures.

    Example:
        ```
        training = ScheduledSampling(model, InverseSigmoidGoldRate(k=2000))
        training.compile(optimizer, TokenCrossEntropy())
        training.fit(dataset, shuffle=False)
        model.save("model.keras")
        ```

    Reference:
        Bengio et al., 2015; Mihaylova & Martins, 2019; Martins & Astudillo, 2016
        (sparsemax); Jang et al., 2017 (Gumbel-softmax).
    """

    def __init__(
        self,
        model: keras.Model,
        gold_rate: Any,
        *,
        form: str = "steps",
        choice: str = "argmax",
        peel: str = "coins",
        temperature: float = 1.0,
        top_k: int = 5,
        first_pass_gradient: bool = False,
        banned_ids: Sequence[int] = (0, 2),
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**{"dtype": model.dtype_policy, **kwargs})
        check_options(
            form=form,
            choice=choice,
            peel=peel,
            temperature=temperature,
            top_k=top_k,
            first_pass_gradient=first_pass_gradient,
        )
        embedding = getattr(model, "target_embedding", None)
        if choice in MIXTURES and not isinstance(embedding, TokenEmbedding):
            raise ValueError(
                f'choice "{choice}" needs a model that can be fed mixtures: one whose '
                "`target_embedding` is a TokenEmbedding. Received: "
                f"{type(model).__name__}. Use one of {', '.join(TOKENS)}."
            )
        self.model = model
        self.gold_rate = gold_rate
        self.form = form
        self.choice = choice
        self.peel = peel
        self.temperature = temperature
        self.top_k = top_k
        self.first_pass_gradient = first_pass_gradient
        self.banned_ids = tuple(banned_ids)
        self.seed = seed
        self.random = keras.random.SeedGenerator(seed)
        # It counts by itself: on JAX an update sees neither the optimizer's count nor
        # what a callback sets within an epoch.
        self.updates = self.add_weight(
            name="updates", shape=(), dtype="int", initializer="zeros", trainable=False
        )
        self.built = True

    def build(self, input_shape=None):
        self.built = True

    def call(self, inputs, training=None):
        if not training:
            return self.model(inputs, training=False)
        memory = self.model.encode(inputs["source_ids"], training=True)
        gold_rate = self.gold_rate(self.updates)
        self.updates.assign_add(1)
        fed = self.decoder_inputs(inputs["target_ids"], memory, gold_rate)
        return self.model.decode(fed, memory, training=True)

    def compute_output_shape(self, input_shape):
        return self.model.compute_output_shape(input_shape)

    def decoder_inputs(self, target_ids, memory, gold_rate):
        """Returns what the decoder is fed in place of `target_ids`.

        Args:
            target_ids: Gold inputs, `(B, T)`, START first, 0 is padding.
            memory: What the model's `encode` returned.
            gold_rate: Probability of gold, a scalar.

        Returns:
            Ids, int32, `(B, T)`; for mixtures distributions, float32, `(B, T, V)`.
        """
        target_ids = ops.cast(target_ids, "int32")
        kept = self._kept(target_ids, gold_rate)
        draws = self._uniform(target_ids) if self.choice == "sample" else None
        if self.form == "steps":
            return self._by_steps(target_ids, memory, kept, draws)
        logits = self.model.decode(target_ids, memory, training=False)
        if not self.first_pass_gradient:
            logits = ops.stop_gradient(logits)
        gold = target_ids
        if self.choice in MIXTURES:
            predicted = self._mixtures(logits)
            gold = ops.one_hot(target_ids, logits.shape[-1], dtype="float32")
            kept = ops.expand_dims(kept, -1)  # (B, T, 1)
        else:
            predicted = self._tokens(logits, draws)
        # The output at one position predicts the input of the next.
        predicted = ops.concatenate([gold[:, :1], predicted[:, :-1]], axis=1)
        return ops.where(kept, gold, predicted)

    def _uniform(self, target_ids):
        return keras.random.uniform(ops.shape(target_ids), seed=self.random)

    def _kept(self, target_ids, gold_rate):
        """Where the input stays gold, bool, `(B, T)`."""
        real = padding_mask(target_ids)
        positions = ops.expand_dims(ops.arange(ops.shape(target_ids)[1]), 0)  # (1, T)
        if self.peel == "prefix":
            lengths = ops.sum(ops.cast(real, "float32"), axis=1, keepdims=True)
            gold = ops.cast(positions, "float32") < gold_rate * lengths
        else:
            gold = self._uniform(target_ids) < gold_rate
        fixed = ops.logical_or(positions == 0, ops.logical_not(real))
        return ops.logical_or(gold, fixed)

    def _by_steps(self, target_ids, memory, kept, draws):
        """Ids fed when each prediction follows from the inputs before it."""
        # Nothing here is differentiated; said at every border of the loop, no backend
        # keeps anything for it.
        memory = keras.tree.map_structure(ops.stop_gradient, memory)
        length = ops.shape(target_ids)[1]

        def advance(position, carry):
            fed, predicted, state = carry
            gold = ops.take(target_ids, position, axis=1)  # (B,)
            token_ids = ops.where(ops.take(kept, position, axis=1), gold, predicted)
            fed = write_at(fed, position, ops.expand_dims(token_ids, 1), axis=1)
            logits, state, _ = self.model.step(token_ids, memory, state)
            state = keras.tree.map_structure(ops.stop_gradient, state)
            draw = None if draws is None else ops.take(draws, position, axis=1)
            return fed, self._tokens(ops.stop_gradient(logits), draw), state

        state = self.model.initial_state(memory, length)
        carry = (target_ids, target_ids[:, 0], state)
        return ops.fori_loop(0, length, advance, carry)[0]

    def _allowed(self, logits):
        vocabulary = np.arange(logits.shape[-1])
        return ops.convert_to_tensor(~np.isin(vocabulary, self.banned_ids))  # (V,)

    def _tokens(self, logits, draws=None):
        """Ids chosen from logits, `(..., V)`; `draws` are uniform numbers, `(...)`."""
        logits, allowed = ops.cast(logits, "float32"), self._allowed(logits)
        if draws is None:
            logits = ops.where(allowed, logits, FLOOR)
            return ops.cast(ops.argmax(logits, axis=-1), "int32")
        # The first token whose cumulative probability is above the number drawn.
        probs = masked_softmax(logits / self.temperature, allowed)
        cumulative = ops.cumsum(probs, axis=-1)
        reached = cumulative <= ops.expand_dims(draws, -1) * cumulative[..., -1:]
        chosen = ops.sum(ops.cast(reached, "int32"), axis=-1)
        return ops.minimum(chosen, logits.shape[-1] - 1)  # against rounding

    def _mixtures(self, logits):
        """Distributions over the vocabulary made of logits, `(B, T, V)`."""
        logits, allowed = ops.cast(logits, "float32"), self._allowed(logits)
        choice = self.choice
        if choice == "gumbel":
            uniform = keras.random.uniform(
                ops.shape(logits), minval=1e-20, seed=self.random
            )
            logits = logits - ops.log(-ops.log(uniform))
        logits = logits / self.temperature
        floored = ops.where(allowed, logits, FLOOR)
        if choice == "sparsemax":
            return sparsemax(floored)
        if choice == "top_k":
            count = min(self.top_k, logits.shape[-1])
            least = ops.top_k(floored, count)[0][..., -1:]
            allowed = ops.logical_and(allowed, floored >= least)
        return masked_softmax(logits, allowed)

    def get_config(self):
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "gold_rate": keras.saving.serialize_keras_object(self.gold_rate),
            "form": self.form,
            "choice": self.choice,
            "peel": self.peel,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "first_pass_gradient": self.first_pass_gradient,
            "banned_ids": list(self.banned_ids),
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        objects = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("model", "gold_rate")
        }
        return cls(**{**config, **objects})


def sparsemax(scores):
    """The distribution nearest to the scores: `max(scores - t, 0)`, whose sum is 1.

    Written out, as `keras.ops.sparsemax` of Keras 3.15 sums to more than 1.

    Args:
        scores: Any numbers, `(..., V)`.

    Returns:
        Probabilities, most of them 0 where scores differ much, `(..., V)`.

    Reference:
        Martins & Astudillo, 2016, algorithm 1.
    """
    # The same for scores that are all shifted, and exact for small ones.
    highest = ops.max(scores, axis=-1, keepdims=True)
    scores = scores - ops.stop_gradient(highest)
    ordered = ops.flip(ops.sort(scores, axis=-1), axis=-1)
    ranks = ops.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    inside = 1 + ranks * ordered > ops.cumsum(ordered, axis=-1)
    total = ops.sum(ops.where(inside, ordered, 0.0), axis=-1, keepdims=True)
    size = ops.sum(ops.cast(inside, scores.dtype), axis=-1, keepdims=True)
    return ops.maximum(scores - (total - 1) / size, 0.0)


def check_options(
    *,
    form: str,
    choice: str,
    peel: str,
    temperature: float,
    top_k: int,
    first_pass_gradient: bool,
) -> None:
    """Checks arguments of `ScheduledSampling`.

    Args:
        form: See there, as for the others.
        choice: See there.
        peel: See there.
        temperature: See there.
        top_k: See there.
        first_pass_gradient: See there.

    Raises:
        ValueError: If one is out of range, or two contradict each other.
    """
    for name, value, valid in (
        ("form", form, ("steps", "two_pass")),
        ("choice", choice, (*TOKENS, *MIXTURES)),
        ("peel", peel, ("coins", "prefix")),
    ):
        if value not in valid:
            raise ValueError(
                f"`{name}` must be one of {', '.join(map(repr, valid))}. "
                f"Received: {name}={value!r}."
            )
    for name, number in (("temperature", temperature), ("top_k", top_k)):
        if number <= 0:
            raise ValueError(f"`{name}` must be positive. Received: {name}={number}.")
    if choice in MIXTURES and form != "two_pass":
        raise ValueError(
            f'choice "{choice}" is a mixture, which only form "two_pass" can feed. '
            f'Received: form="{form}".'
        )
    if first_pass_gradient and choice not in MIXTURES:
        raise ValueError(
            "`first_pass_gradient` needs a mixture: no gradient passes through a "
            f'chosen token. Received: choice="{choice}".'
        )


def inner_model(model: keras.Model) -> keras.Model:
    """The model that is trained, without what surrounds it in training.

    Args:
        model: A model, or `ScheduledSampling` of one.
    """
    return model.model if isinstance(model, ScheduledSampling) else model
