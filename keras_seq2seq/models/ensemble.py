"""Several models that decode together, as one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_seq2seq.models.base import Seq2Seq


@keras.saving.register_keras_serializable("keras_seq2seq")
class EnsembleSeq2Seq(Seq2Seq):
    """Models of one vocabulary whose predictions are averaged at each step.

    The members may be of any architecture. Each has its own memory and state, and
    all are fed the same tokens. It keeps the contract of a single model, so that
    decoding, scoring and export work on it unchanged; it is not for training.

    Args:
        models: The members.
        combine: `"probabilities"`, their arithmetic mean, or `"log_probs"`: the
            normalised geometric mean.

    Call arguments:
        inputs: As for every model.

    Returns:
        Log-probabilities as logits, float32, `(B, T, V)`.

    Raises:
        ValueError: If there is no model, the vocabularies differ, or `combine` is
            unknown.

    Reference:
        Sutskever et al., 2014, section 3.6.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        *,
        combine: str = "probabilities",
        **kwargs,
    ):
        models = [
            keras.saving.deserialize_keras_object(model)
            if isinstance(model, dict)
            else model
            for model in models
        ]
        if not models:
            raise ValueError("`models` must hold at least one model. Received none.")
        sizes = [
            (model.source_vocabulary_size, model.target_vocabulary_size)
            for model in models
        ]
        if len(set(sizes)) > 1:
            raise ValueError(
                "The models of an ensemble must share their vocabularies. Received "
                f"source and target vocabulary sizes {', '.join(map(str, sizes))}."
            )
        if combine not in ("probabilities", "log_probs"):
            raise ValueError(
                '`combine` must be "probabilities" or "log_probs". '
                f"Received: combine={combine!r}."
            )
        super().__init__(*sizes[0], **kwargs)
        self.models = models
        self.combine = combine
        limits = [m.max_positions for m in models if m.max_positions is not None]
        self.max_positions = min(limits) if limits else None
        self.built = True

    def encode(self, source_ids, training=None):
        """Returns `memory`: the members' memories and the `mask` `(B, S)`."""
        members = [model.encode(source_ids, training=training) for model in self.models]
        return {"mask": members[0]["mask"], "members": members}

    def decode(self, target_ids, memory, training=None):
        """Returns teacher-forced log-probabilities, `(B, T, V)`."""
        return self._combine(
            [
                model.decode(target_ids, part, training=training)
                for model, part in zip(self.models, memory["members"], strict=True)
            ]
        )

    def initial_state(self, memory, max_length: int):
        """Returns `state`: that of each member."""
        return {
            "members": [
                model.initial_state(part, max_length)
                for model, part in zip(self.models, memory["members"], strict=True)
            ]
        }

    def step(self, token_ids, memory, state):
        """Decodes one more token with every member.

        Args:
            token_ids: int32, `(B * N,)`.
            memory: What `encode` returned, `B` rows.
            state: What `initial_state` or `step` returned, `B * N` rows.

        Returns:
            Log-probabilities, float32, `(B * N, V)`; the new state; and the mean of
            the members' attention, `(B * N, S)`.
        """
        found: list[Any] = [
            model.step(token_ids, part, own)
            for model, part, own in zip(
                self.models, memory["members"], state["members"], strict=True
            )
        ]
        logits, states, attention = zip(*found, strict=True)
        mean = sum(attention[1:], attention[0]) / len(attention)
        return self._combine(list(logits)), {"members": list(states)}, mean

    def repeat_state(self, state, count: int):
        """Repeats the state of each member in its own way."""
        return {
            "members": [
                model.repeat_state(own, count)
                for model, own in zip(self.models, state["members"], strict=True)
            ]
        }

    def select_state(self, state, parents):
        """Chooses surviving hypotheses in each member's own way."""
        return {
            "members": [
                model.select_state(own, parents)
                for model, own in zip(self.models, state["members"], strict=True)
            ]
        }

    def select_memory(self, memory, sources):
        """Chooses sources in each member's own way."""
        members = [
            model.select_memory(part, sources)
            for model, part in zip(self.models, memory["members"], strict=True)
        ]
        return {"mask": members[0]["mask"], "members": members}

    def _combine(self, logits):
        log_probs = ops.stack([ops.log_softmax(of, axis=-1) for of in logits])
        if self.combine == "log_probs":
            return ops.log_softmax(ops.mean(log_probs, axis=0), axis=-1)
        return ops.logsumexp(log_probs, axis=0) - ops.log(float(len(logits)))

    def get_config(self):
        config = super().get_config()
        del config["source_vocabulary_size"], config["target_vocabulary_size"]
        models = [keras.saving.serialize_keras_object(model) for model in self.models]
        return {**config, "models": models, "combine": self.combine}
