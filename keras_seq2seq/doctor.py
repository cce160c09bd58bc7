"""What is installed, and whether it fits together."""

import importlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version

from keras_seq2seq import __version__

REQUIRED = (
    "keras",
    "tensorflow",
    "tensorflow-text",
    "keras-hub",
    "numpy",
    "sentencepiece",
    "sacrebleu",
    "matplotlib",
    "pydantic",
    "typer",
    "rich",
    "Babel",
)
# Optional packages with what they are for.
OPTIONAL = {
    "jax": "the JAX backend",
    "tensorflow-serving-api": "clients of TF Serving",
    "ai-edge-litert": "LiteRT files",
    "ctranslate2": "CTranslate2 files",
    "gradio": "the web page",
    "apache-beam": "batch translation",
}


def diagnose() -> tuple[list[tuple[str, str]], list[str]]:
    """Look at versions, backend, devices and optional parts.

    Returns:
        Rows of name and value, and sentences about what is wrong and what to do.
    """
    rows = [("keras-seq2seq", __version__), ("python", platform.python_version())]
    problems = []
    for name in REQUIRED:
        found = installed_version(name)
        rows.append((name, found or "not installed"))
        # On JAX everything but exporting works without TensorFlow.
        if found is None and name not in ("tensorflow", "tensorflow-text", "keras-hub"):
            problems.append(f"{name} is not installed: pip install keras-seq2seq")
    problems += text_mismatch(
        installed_version("tensorflow"), installed_version("tensorflow-text")
    )
    backend_rows, backend_problems = _backend()
    rows += backend_rows
    for name, purpose in OPTIONAL.items():
        rows.append((name, installed_version(name) or f"not installed (for {purpose})"))
    return rows, problems + backend_problems


def text_mismatch(tensorflow: str | None, text: str | None) -> list[str]:
    """Compare the versions of TensorFlow and TensorFlow Text.

    TensorFlow Text is built against one minor version of TensorFlow; another one ends
    in an undefined symbol at import.

    Args:
        tensorflow: Version of TensorFlow, None if not installed.
        text: Version of TensorFlow Text, None if not installed.

    Returns:
        One sentence if they do not fit together, else none.
    """
    if tensorflow is None or text is None:
        return []
    minor = tensorflow.split(".")[:2]
    if text.split(".")[:2] == minor:
        return []
    wanted = ".".join(minor)
    return [
        f"tensorflow {tensorflow} and tensorflow-text {text} do not fit together: "
        f"pip install 'tensorflow-text=={wanted}.*'"
    ]


def _backend() -> tuple[list[tuple[str, str]], list[str]]:
    """Rows and problems of Keras, its backend and its devices."""
    try:
        import keras

        backend = keras.backend.backend()
        devices = keras.distribution.list_devices()
    except Exception as error:  # whatever a broken installation raises
        return [("backend", "does not import")], [f"Keras does not import: {error}"]
    rows = [("backend", backend), ("devices", ", ".join(devices))]
    problems = []
    if os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true"):
        problems.append(
            "TF_USE_LEGACY_KERAS is set: tf.keras is Keras 2 then, which cannot load "
            "these models. Unset it."
        )
    if backend == "tensorflow" and installed_version("tensorflow-text") is not None:
        try:
            importlib.import_module("tensorflow_text")
        except Exception as error:
            problems.append(f"tensorflow-text does not import: {error}")
    return rows, problems


def installed_version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed.

    Args:
        name: The package.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None
