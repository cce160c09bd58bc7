"""Writing one token after the other: the likeliest, or one that is drawn."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_seq2seq.decoding.candidates import RowRules, next_tokens, vocabulary_of
from keras_seq2seq.decoding.hypotheses import write_step
from keras_seq2seq.decoding.loop import run_loop
from keras_seq2seq.decoding.options import SearchInputs, SearchOptions, split_options
from keras_seq2seq.decoding.sampling import draw, uniform_noise
from keras_seq2seq.decoding.scoring import length_penalty
from keras_seq2seq.decoding.search import (
    IMPOSSIBLE,
    POSSIBLE_ABOVE,
    SearchResult,
    Step,
    as_tensors,
    attention_width,
    check_attention,
    forced_at,
    gather_rows,
    repeat_rows,
    row_limits,
)
from keras_seq2seq.gathers import take_by_row, take_rows

__all__ = ["greedy_search", "sample"]


def greedy_search(step: Step, memory: Any, state: Any, **options: Any) -> SearchResult:
    """Writes the likeliest token at every step, until END or the row's limit.

    A row that has ended writes PAD and keeps its score; the loop ends when all
    rows have. A row whose logits turn NaN, or that no token is allowed in, stops
    there, unfinished; before its first token it counts as not found.

    Args:
        step: `step(token_ids, memory, state)` returning the next token's logits
            `(B, V)`, the new state, and attention weights `(B, S)` or None.
        memory: What the step reads and never changes; batch on axis 0.
        state: What the step changes; batch on axis 0.
        **options: Fields of `SearchOptions` and `SearchInputs`; `max_length` must be
            given.

    Returns:
        `SearchResult` with N = 1.

    Raises:
        TypeError: If there is no such option.
        ValueError: If the options contradict each other, or attention is asked for
            where there is none.
    """
    constants, inputs = split_options(options)
    return write_rows(step, memory, state, constants, inputs)


def sample(step: Step, memory: Any, state: Any, **options: Any) -> SearchResult:
    """Draws every token, `n_best` samples of each source.

    What is drawn depends on the source's seed and the number of the sample, not on
    the batch. Samples are independent, so that two may be equal; the likeliest under
    the model comes first.

    Args:
        step: As for `greedy_search`, of B*N rows, the N samples of a source adjacent.
        memory: What the step reads, B rows; never repeated.
        state: What the step changes, B rows; repeated here to B*N.
        **options: Fields of `SearchOptions`, with `temperature` above 0, and of
            `SearchInputs`, with `seeds` or `noise`.

    Returns:
        `SearchResult` with N = `n_best`; log-probabilities are the model's own,
        before temperature, top-k and top-p.

    Raises:
        TypeError: If there is no such option.
        ValueError: If the options contradict each other, there is nothing to draw by,
            or attention is asked for where there is none.
    """
    constants, inputs = split_options(options)
    if not constants.samples:
        raise ValueError(
            "`temperature` must be above 0 to sample. Received: "
            f"temperature={constants.temperature}."
        )
    return write_rows(step, memory, state, constants, inputs)


def write_rows(
    step: Step,
    memory: Any,
    state: Any,
    options: SearchOptions,
    inputs: SearchInputs,
    select_memory: Callable[[Any, Any], Any] = gather_rows,
) -> SearchResult:
    """Writes the rows of a greedy search, or of `n_best` samples of each source."""

    def writer(inputs: SearchInputs, memory: Any, batch: Any) -> Rows:
        return Rows(options, inputs, memory, batch)

    inputs = with_noise(inputs, options)
    carry = run_loop(writer, step, memory, state, options, inputs, select_memory)
    return _result(carry, options.n_best, options)


class Rows:
    """The loop's body: R rows, each writing one token after the other.

    Args:
        options: Constants of the search.
        inputs: A row for each source, as `with_noise` returned them.
        memory: What the step reads, B rows.
        batch: Number of sources B.
    """

    def __init__(
        self, options: SearchOptions, inputs: SearchInputs, memory: Any, batch: Any
    ) -> None:
        if inputs.required_phrases is not None:
            raise ValueError(
                "`required_phrases` needs a beam search. Received: "
                f"num_beams={options.num_beams}, temperature={options.temperature}."
            )
        self.options = options
        self.memory = memory
        self.rows = batch * options.n_best
        noise = inputs.noise
        if noise is not None:
            noise = ops.reshape(noise, (self.rows, options.max_length))
        inputs = SearchInputs(
            *repeat_rows(tuple(inputs._replace(noise=None)), options.n_best)
        )
        self.limits = row_limits(inputs.length_limits, options.max_length, self.rows)
        self.choose = _chooser(options, inputs, noise)

    def initial_carry(self, state: Any) -> dict:
        """Loop variables before the first step."""
        options = self.options
        shape = (self.rows, options.max_length)
        carry = {
            "position": ops.zeros((), dtype="int32"),
            "token_ids": ops.full((self.rows,), options.start_id, dtype="int32"),
            "state": repeat_rows(state, options.n_best),
            "done": ops.zeros((self.rows,), dtype="bool"),
            "finished": ops.zeros((self.rows,), dtype="bool"),
            "lengths": ops.zeros((self.rows,), dtype="int32"),
            "log_probs": ops.zeros((self.rows,), dtype="float32"),
            "ids": ops.full(shape, options.pad_id, dtype="int32"),
        }
        if options.return_token_scores:
            carry["token_log_probs"] = ops.zeros(shape, dtype="float32")
        if options.return_attention:
            width = attention_width(self.memory)
            carry["attention"] = ops.zeros((*shape, width), dtype="float32")
        return carry

    def advance(self, carry: dict, logits: Any, state: Any, attention: Any) -> dict:
        """The loop variables after one step."""
        options, position = self.options, carry["position"]
        token_ids, log_probs = self.choose(logits, carry["ids"], position)
        active = ops.logical_and(
            ops.logical_not(carry["done"]), log_probs > POSSIBLE_ABOVE
        )
        token_ids = ops.where(active, token_ids, options.pad_id)  # (R,)
        log_probs = ops.where(active, log_probs, 0.0)
        ended = ops.logical_and(active, token_ids == options.end_id)
        stopped = ops.logical_or(ops.logical_not(active), position + 1 >= self.limits)
        new = {
            "position": position + 1,
            "token_ids": token_ids,
            "state": state,
            "done": ops.logical_or(stopped, ended),
            "finished": ops.logical_or(carry["finished"], ended),
            "lengths": carry["lengths"] + ops.cast(active, "int32"),
            "log_probs": carry["log_probs"] + log_probs,
            "ids": write_step(carry["ids"], position, token_ids),
        }
        if options.return_token_scores:
            scores = carry["token_log_probs"]
            new["token_log_probs"] = write_step(scores, position, log_probs)
        if options.return_attention:
            weights = check_attention(attention)
            weights = ops.where(ops.expand_dims(active, axis=1), weights, 0.0)
            new["attention"] = write_step(carry["attention"], position, weights)
        return new


def with_noise(inputs: SearchInputs, options: SearchOptions) -> SearchInputs:
    """The inputs as tensors, with the numbers that samples are drawn by.

    Args:
        inputs: A row for each source, with `seeds` or `noise` where tokens are drawn.
        options: Constants of the search.

    Returns:
        The inputs with `noise` `(B, N, L)` in place of the seeds; neither where
        nothing is drawn.

    Raises:
        ValueError: If there is nothing to draw by, or too little of it.
    """
    inputs = as_tensors(inputs)
    if not options.samples:
        return inputs._replace(noise=None, seeds=None)
    noise = inputs.noise
    if noise is None:
        if inputs.seeds is None:
            raise ValueError(
                "`seeds` must hold one whole number for each source where tokens "
                f"are drawn. Received: temperature={options.temperature}, "
                "seeds=None."
            )
        noise = uniform_noise(inputs.seeds, options.n_best, options.max_length)
    _check_noise(noise, options)
    return inputs._replace(noise=noise[:, :, : options.max_length], seeds=None)


def _check_noise(noise: Any, options: SearchOptions) -> None:
    shape = tuple(noise.shape[1:])
    if len(shape) != 2 or shape[0] != options.n_best or shape[1] < options.max_length:
        raise ValueError(
            "`noise` must hold for each of `n_best` samples a number for each token, "
            f"(B, N, L). Received: shape {shape} for each source, "
            f"n_best={options.n_best}, and up to {options.max_length} tokens."
        )


def _chooser(
    options: SearchOptions, inputs: SearchInputs, noise: Any
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """How a step gets from logits to the token of each row and its log-probability."""
    phrases = inputs.banned_phrases
    looks_back = options.uses_history or phrases is not None

    def rules_at(history: Any, position: Any) -> RowRules:
        return RowRules(
            position=position,
            min_lengths=inputs.min_lengths,
            history=history if looks_back else None,
            banned_phrases=phrases,
            forced_ids=forced_at(inputs.prefix_ids, position, options.pad_id),
            temperatures=inputs.temperatures,
            top_ks=inputs.top_ks,
            top_ps=inputs.top_ps,
        )

    def likeliest(logits: Any, history: Any, position: Any) -> tuple[Any, Any]:
        rules = rules_at(history, position)
        found = next_tokens(logits, count=1, options=options, rules=rules)
        ranking, best = ops.top_k(found.ranking, 1)  # (R, 1)
        best = ops.cast(best, "int32")
        token_ids = take_by_row(found.token_ids, best)
        log_probs = take_by_row(found.log_probs, best)
        log_probs = ops.where(ranking > POSSIBLE_ABOVE, log_probs, IMPOSSIBLE)
        return ops.squeeze(token_ids, axis=1), ops.squeeze(log_probs, axis=1)

    def drawn(logits: Any, history: Any, position: Any) -> tuple[Any, Any]:
        rules = rules_at(history, position)
        return draw(
            vocabulary_of(logits, options, rules),
            take_rows(noise, position, axis=1),
            options=options,
            rules=rules,
        )

    return drawn if options.samples else likeliest


def _result(carry: dict, copies: int, options: SearchOptions) -> SearchResult:
    """The rows by source, the best first."""
    penalty = length_penalty(
        carry["lengths"], options.length_penalty, base=options.length_penalty_base
    )
    written = carry["lengths"] > 0
    found = {
        "ids": carry["ids"],
        "lengths": carry["lengths"],
        "scores": ops.where(written, carry["log_probs"] / penalty, IMPOSSIBLE),
        "log_probs": ops.where(written, carry["log_probs"], IMPOSSIBLE),
        "finished": carry["finished"],
        "attention": carry.get("attention"),
        "token_log_probs": carry.get("token_log_probs"),
    }
    found = {
        name: None if x is None else ops.reshape(x, (-1, copies, *ops.shape(x)[1:]))
        for name, x in found.items()
    }
    if copies > 1:
        _, order = ops.top_k(found["scores"], copies)
        order = ops.cast(order, "int32")
        found = {
            name: None if x is None else take_by_row(x, order)
            for name, x in found.items()
        }
    return SearchResult(**found)
