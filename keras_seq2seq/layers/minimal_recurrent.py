"""minGRU and minLSTM: recurrent layers whose gates see the input alone.

Every step is `h_t = a_t * h_{t-1} + b_t` with `a` and `b` known beforehand, so a whole
sequence is one scan of about log2(T) rounds in place of a loop of T steps. The same
weights run one step at a time for decoding. States are float32 under every policy.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.buffers import slices
from keras_seq2seq.gathers import take_rows
from keras_seq2seq.layers.recurrent import scan_time

# Stands for log 0: finite, so that no inf - inf can make a NaN.
_LOG_ZERO = -1e30


def positive(x):
    """Returns `g(x)`: `x + 0.5` where `x >= 0`, `sigmoid(x)` elsewhere.

    It is continuous, increasing and above 0, which log space needs; `g(0)` is 0.5.

    Reference:
        Feng et al., 2024, appendix B (`g`).
    """
    return ops.where(x >= 0, ops.relu(x) + 0.5, ops.sigmoid(x))


def log_positive(x):
    """Returns `log g(x)` without leaving log space.

    Reference:
        Feng et al., 2024, appendix B (`log_g`).
    """
    # The relu keeps the gradient of the branch not taken finite.
    return ops.where(x >= 0, ops.log(ops.relu(x) + 0.5), -ops.softplus(-x))


def _after_linear(first, second):
    """The pair `(a, b)` of two stretches in a row, `first` being the earlier."""
    return second[0] * first[0], second[0] * first[1] + second[1]


def _after_log(first, second):
    """The same of `(log a, log b)`."""
    return first[0] + second[0], ops.logaddexp(second[0] + first[1], second[1])


def _scan_pairs(combine, pair, neutral):
    """Combines each position's pair with all earlier ones, by doubling.

    After round `r` a position knows the `2^r` steps that end with it (Hillis &
    Steele, 1986). `neutral` is the pair that changes nothing.
    """
    # keras.ops.associative_scan cannot take a length that TensorFlow learns only when
    # the graph runs. Rounds in a loop keep XLA from fusing, and computing, them anew.
    length = ops.shape(pair[0])[1]
    places = ops.arange(length)
    positions = ops.reshape(places, (1, -1, 1))

    def shift(x, distance, fill):
        if slices():  # LiteRT cannot roll
            earlier = take_rows(x, ops.maximum(places - distance, 0), axis=1)
        else:
            earlier = ops.roll(x, distance, axis=1)
        return ops.where(positions < distance, fill, earlier)

    def round_of(distance, *pair):
        earlier = [
            shift(x, distance, fill) for x, fill in zip(pair, neutral, strict=True)
        ]
        return (2 * distance, *combine(earlier, pair))

    one = ops.convert_to_tensor(1, dtype="int32")
    loop = ops.while_loop(
        lambda distance, *_: distance < length, round_of, (one, *pair)
    )
    return loop[1:]


def _scan_gradients(a, h, initial, upstream):
    """What both scans' gradients are made of.

    With `u_t` the gradient at `h_t` from outside, that of all later steps included
    is `g_t = u_t + a_{t+1} g_{t+1}`: the same recurrence, run backwards.

    Returns:
        `g`; the state before each step; and the gradient of `initial`.
    """
    following = ops.concatenate([a[:, 1:], ops.zeros_like(a[:, :1])], axis=1)
    _, g = _scan_pairs(
        _after_linear, (ops.flip(following, 1), ops.flip(upstream, 1)), (1.0, 0.0)
    )
    g = ops.flip(g, 1)
    before = ops.concatenate([ops.expand_dims(initial, 1), h[:, :-1]], axis=1)
    return g, before, ops.sum((a * g)[:, :1], axis=1)


@ops.custom_gradient
def linear_scan(a, b, initial):
    """Runs `h_t = a_t * h_{t-1} + b_t` over a whole sequence at once.

    Args:
        a: `(B, T, H)`, between 0 and 1.
        b: `(B, T, H)`, of any sign.
        initial: The state before the first step, `(B, H)`.

    Returns:
        All states, `(B, T, H)`.

    Reference:
        Feng et al., 2024 (parallel scan; Blelloch, 1990).
    """
    decay, partial = _scan_pairs(_after_linear, (a, b), (1.0, 0.0))
    h = decay * ops.expand_dims(initial, 1) + partial

    def gradient(*upstreams, upstream=None):
        upstream = upstreams[0] if upstream is None else upstream
        g, before, initial_gradient = _scan_gradients(a, h, initial, upstream)
        return g * before, g, initial_gradient

    return h, gradient


@ops.custom_gradient
def log_space_scan(log_a, log_b, initial):
    """Runs `h_t = a_t * h_{t-1} + b_t` from the logarithms of `a` and `b`.

    The published form subtracts the running sum of `log a`, which reaches -1000, and
    loses four digits in float32. Here the logarithms of stretches are combined pair
    by pair, which is the same function and loses none. The initial state joins
    outside log space, so that it may be 0.

    Args:
        log_a: `(B, T, H)`, at most 0.
        log_b: `(B, T, H)`; -1e30 stands for `b = 0`.
        initial: The state before the first step itself, no logarithm, `(B, H)`.

    Returns:
        All states, not their logarithms, `(B, T, H)`.

    Reference:
        Feng et al., 2024, appendix B; Heinsen, 2023.
    """
    log_decay, log_partial = _scan_pairs(_after_log, (log_a, log_b), (0.0, _LOG_ZERO))
    h = ops.exp(log_decay) * ops.expand_dims(initial, 1) + ops.exp(log_partial)

    def gradient(*upstreams, upstream=None):
        upstream = upstreams[0] if upstream is None else upstream
        a = ops.exp(log_a)
        g, before, initial_gradient = _scan_gradients(a, h, initial, upstream)
        return g * before * a, g * ops.exp(log_b), initial_gradient

    return h, gradient


def sequential_scan(a, b, initial):
    """Runs `h_t = a_t * h_{t-1} + b_t` step by step: what the scans must equal.

    Args:
        a: `(B, T, H)`.
        b: `(B, T, H)`.
        initial: The state before the first step, `(B, H)`.

    Returns:
        All states, `(B, T, H)`.
    """

    def step(inputs, states):
        h = inputs[0] * states[0] + inputs[1]
        return h, [h]

    return scan_time(step, (a, b), [initial])[0]


class _MinimalLayer(keras.layers.Layer):
    """What minGRU and minLSTM share; `num_gates` and the coefficients differ."""

    num_gates = 2

    def __init__(
        self,
        units: int,
        *,
        candidate: str = "positive",
        initial_value: float = 0.5,
        reverse: bool = False,
        **kwargs,
    ):
        # Keras would round a float32 state to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        if units < 1:
            raise ValueError(f"`units` must be positive. Received: units={units}.")
        if candidate not in ("positive", "identity"):
            raise ValueError(
                '`candidate` must be "positive" or "identity". '
                f"Received: candidate={candidate!r}."
            )
        if candidate == "positive" and initial_value < 0:
            raise ValueError(
                "`initial_value` must not be negative: states of positive candidates "
                f"never are. Received: initial_value={initial_value}."
            )
        self.units = units
        self.candidate = candidate
        self.initial_value = initial_value
        self.reverse = reverse
        self.input_projection = keras.layers.Dense(
            self.num_gates * units, name="input_projection", dtype=self.dtype_policy
        )

    def build(self, x_shape, x_mask_shape=None, initial_state_shape=None):
        self.input_projection.build(x_shape)

    def _project(self, x):
        projected = ops.cast(self.input_projection(x), "float32")
        return ops.split(projected, self.num_gates, axis=-1)

    def _candidate(self, x):
        return positive(x) if self.candidate == "positive" else x

    def coefficients(self, x):
        """Returns `a` and `b`, float32, `(..., units)` each, for `x` `(..., E)`."""
        raise NotImplementedError

    def log_coefficients(self, x):
        """Returns `log a` and `log b`, computed without leaving log space."""
        raise NotImplementedError

    def initial_state(self, rows):
        """Returns the state before the first step, float32, `(rows, units)`."""
        return ops.full((rows, self.units), self.initial_value, dtype="float32")

    def step(self, x, state):
        """Advances one step, by the recurrence itself.

        Args:
            x: `(R, E)`.
            state: The state before, float32, `(R, units)`.

        Returns:
            The new state, float32, `(R, units)`: it is also the output.
        """
        a, b = self.coefficients(x)
        return a * state + b

    def call(self, x, x_mask=None, initial_state=None):
        scan, pair, neutral = (
            (log_space_scan, self.log_coefficients(x), (0.0, _LOG_ZERO))
            if self.candidate == "positive"
            else (linear_scan, self.coefficients(x), (1.0, 0.0))
        )
        if x_mask is not None:  # a = 1 and b = 0 hand the state on
            x_mask = ops.expand_dims(x_mask, -1)
            pair = [
                ops.where(x_mask, value, fill)
                for value, fill in zip(pair, neutral, strict=True)
            ]
        if self.reverse:
            pair = [ops.flip(value, axis=1) for value in pair]
        if initial_state is None:
            initial_state = self.initial_state(ops.shape(x)[0])
        initial_state = ops.cast(initial_state, "float32")
        outputs = scan(*pair, initial_state)
        # Of an empty sequence the final state is the initial one.
        final = ops.concatenate(
            [ops.expand_dims(initial_state, 1), outputs[:, -1:]], axis=1
        )[:, -1]
        if self.reverse:
            outputs = ops.flip(outputs, axis=1)
        return ops.cast(outputs, self.compute_dtype), final

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "candidate": self.candidate,
            "initial_value": self.initial_value,
            "reverse": self.reverse,
        }


@keras.saving.register_keras_serializable("keras_seq2seq")
class MinGRU(_MinimalLayer):
    """Minimal gated recurrent unit; gates in the order update, candidate.

    `h_t = (1 - z_t) * h_{t-1} + z_t * g(x_t W_h)` with `z_t = sigmoid(x_t W_z)`.
    Padding is inert: the state passes it unchanged, in either direction.

    Args:
        units: Width of the state.
        candidate: `"positive"`: `g` is `positive`, scanned in log space (the paper);
            `"identity"`: no `g`, scanned in linear space (the paper's "vanilla").
        initial_value: Value of the state before the first step: 0.5, that is `g(0)`,
            as in the paper's parallel form, or 0 as in its sequential one.
        reverse: Whether to run from the last step to the first. Outputs stay in the
            order of `x`.

    Call arguments:
        x: `(B, T, E)`.
        x_mask: Bool, `(B, T)`, True where `x` is real; None where all is.
        initial_state: The state to go on from, `(B, units)`: what a call or `step`
            returned, not negative. None takes `initial_value`.

    Returns:
        The outputs, `(B, T, units)`, and the final state, float32, `(B, units)`.

    Raises:
        ValueError: If `units` is not positive, `candidate` is unknown, or
            `initial_value` is negative for positive candidates.

    Reference:
        Feng et al., 2024; in log space: appendix B.
    """

    def coefficients(self, x):
        """Returns `1 - z` and `z * g`, float32, `(..., units)`, for `x` `(..., E)`."""
        update, candidate = self._project(x)
        return ops.sigmoid(-update), ops.sigmoid(update) * self._candidate(candidate)

    def log_coefficients(self, x):
        """Returns the logarithms of `coefficients`; `candidate` must be positive."""
        update, candidate = self._project(x)
        # log(sigmoid(x)) would be -inf from about -100 on.
        return -ops.softplus(update), -ops.softplus(-update) + log_positive(candidate)


@keras.saving.register_keras_serializable("keras_seq2seq")
class MinLSTM(_MinimalLayer):
    """Minimal long short-term memory; gates in the order forget, input, candidate.

    `h_t = f' * h_{t-1} + i' * g(x_t W_h)`, where the gates `f = sigmoid(x_t W_f)` and
    `i = sigmoid(x_t W_i)` are divided by their sum, so that `f' + i' = 1`: the scale
    of the state does not depend on the length. There is no output gate and no other
    state. Padding is inert: the state passes it unchanged, in either direction.

    Args:
        units: Width of the state.
        candidate: `"positive"` or `"identity"`, see `MinGRU`.
        initial_value: Value of the state before the first step, see `MinGRU`.
        reverse: Whether to run from the last step to the first.

    Call arguments:
        x: `(B, T, E)`.
        x_mask: Bool, `(B, T)`, True where `x` is real; None where all is.
        initial_state: The state to go on from, `(B, units)`, or None.

    Returns:
        The outputs, `(B, T, units)`, and the final state, float32, `(B, units)`.

    Raises:
        ValueError: As for `MinGRU`.

    Reference:
        Feng et al., 2024; in log space: appendix B.
    """

    num_gates = 3

    def _gates(self, x):
        forget, into, candidate = self._project(x)
        # log i - log f, so that f' = f / (f + i) = sigmoid(-difference).
        return ops.softplus(-forget) - ops.softplus(-into), candidate

    def coefficients(self, x):
        """Returns `f'` and `i' * g`, float32, `(..., units)`, for `x` `(..., E)`."""
        difference, candidate = self._gates(x)
        return (
            ops.sigmoid(-difference),
            ops.sigmoid(difference) * self._candidate(candidate),
        )

    def log_coefficients(self, x):
        """Returns the logarithms of `coefficients`; `candidate` must be positive."""
        difference, candidate = self._gates(x)
        return (
            -ops.softplus(difference),
            -ops.softplus(-difference) + log_positive(candidate),
        )


def make_minimal(cell: str, units: int, **kwargs: Any):
    """Returns the layer named `"mingru"` or `"minlstm"`.

    Args:
        cell: The name.
        units: Width of the state.
        **kwargs: Further arguments of the layer.

    Raises:
        ValueError: If the name is unknown.
    """
    cells = {"mingru": MinGRU, "minlstm": MinLSTM}
    if cell not in cells:
        raise ValueError(
            f"`cell` must be one of {', '.join(map(repr, cells))}. "
            f"Received: cell={cell!r}."
        )
    return cells[cell](units, **kwargs)
