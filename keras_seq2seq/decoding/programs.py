"""Functions of a model compiled by the backend in use, on the weights as they are."""

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import keras

# Programs hold their model weakly too: a value that held its key would keep it alive.
_programs: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_one_at_a_time = threading.Lock()


def compiled_by_shape() -> bool:
    """Whether a program takes seconds for each new shape of its arguments."""
    return keras.backend.backend() != "tensorflow"


def program(
    model: Any,
    key: Any,
    function: Callable,
    *,
    signature: Any = None,
    jit_compile: bool = False,
) -> Callable:
    """Compiles `function(model, *arguments)`, once for each key, kept with the model.

    The program reads the weights when it runs, so it follows training.

    Args:
        model: The model.
        key: What the function depends on beside its arguments.
        function: It may close over what `key` tells, but not over the model.
        signature: Shapes of the arguments as `KerasTensor`, None where a size may
            vary: TensorFlow makes one graph for all; None to compile for each shape,
            as JAX always does.
        jit_compile: On the TensorFlow backend, whether to compile with XLA. JAX
            always does.

    Returns:
        A function of the arguments.

    Raises:
        ValueError: If the backend is neither TensorFlow nor JAX.
    """
    with _one_at_a_time:
        programs = _programs.setdefault(model, {})
        if key not in programs:
            programs[key] = _compiled(model, function, signature, jit_compile)
        return programs[key]


def _compiled(
    model: Any, function: Callable, signature: Any, jit_compile: bool
) -> Callable:
    """The function, to be traced by the backend in use when it is called."""
    reference = weakref.ref(model)
    if keras.backend.backend() == "tensorflow":
        return _by_tensorflow(function, reference, signature, jit_compile)
    if keras.backend.backend() == "jax":
        return _by_jax(function, reference)
    raise ValueError(
        "Decoding is compiled on the TensorFlow and JAX backends. Received: "
        f"KERAS_BACKEND={keras.backend.backend()}."
    )


def _by_tensorflow(
    function: Callable,
    reference: weakref.ref,
    signature: Any,
    jit_compile: bool,
) -> Callable:
    import tensorflow as tf

    if signature is not None:
        signature = keras.tree.map_structure(
            lambda of: tf.TensorSpec(of.shape, of.dtype), signature
        )

    def run(reference: weakref.ref, *arguments: Any) -> Any:
        return function(reference(), *arguments)

    return tf.function(
        # TensorFlow counts how often the code of a function was traced, and warns; a
        # partial is counted by itself.
        functools.partial(run, reference),
        input_signature=signature,
        jit_compile=jit_compile,
        # Loops are `ops.while_loop` already; rewriting the source costs seconds.
        autograph=False,
    )


def _by_jax(function: Callable, reference: weakref.ref) -> Callable:
    import jax

    @jax.jit
    def run(values: list, *arguments: Any) -> Any:
        # The weights are arguments, so that the program does not freeze them.
        model: Any = reference()
        mapping = zip(model.variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)):
            return function(model, *arguments)

    def call(*arguments: Any) -> Any:
        model: Any = reference()
        # While `fit` runs, the latest weights live outside the variables.
        model.jax_state_sync()
        values = [variable.value for variable in model.variables]
        return run(values, *arguments)

    return call
