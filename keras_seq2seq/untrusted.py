"""Files that may come from strangers, looked at as data before anything is made.

A run folder is passed around, so nothing in it is believed. What a file may hold is
listed here; a list of what it must not hold would always miss something.
"""

import io
import json
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEBIBYTE = 1 << 20

# Texts of a run have some KiB, and tokenizers a few MiB.
TEXT_LIMIT = 4 * MEBIBYTE
TOKENIZER_LIMIT = 64 * MEBIBYTE

MODEL_FILES = ("config.json", "metadata.json", "model.weights.h5")

# Classes of Keras that a training saves, by module and name. Those of this package may
# all be made.
KERAS_CLASSES = (
    ("keras", "DTypePolicy"),
    ("keras.losses", "MeanSquaredError"),
    ("keras.optimizers", "Adadelta"),
    ("keras.optimizers", "Adagrad"),
    ("keras.optimizers", "Adam"),
    ("keras.optimizers", "AdamW"),
    ("keras.optimizers", "Adamax"),
    ("keras.optimizers", "LossScaleOptimizer"),
    ("keras.optimizers", "Nadam"),
    ("keras.optimizers", "RMSprop"),
    ("keras.optimizers", "SGD"),
    ("keras.optimizers.schedules", "CosineDecay"),
)

_PACKAGE = "keras_seq2seq"
_TAKE_ANOTHER = "Take the file from where the model was trained."


def read_limited(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    """Reads a file that must not be large.

    Args:
        path: The file.
        limit: The most bytes that it may have.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is larger.
    """
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(
            f"{path} must have at most {limit:,} bytes. Received: "
            f"{path.stat().st_size:,} bytes. Look at what it holds before you use it."
        )
    return content


def read_json(path: Path) -> Any:
    """Reads a JSON file that must not be large.

    Args:
        path: The file, UTF-8.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is too large, or not JSON.
    """
    return _parsed(read_limited(path), str(path))


def _parsed(content: bytes, name: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    # The last is for brackets nested deeper than Python calls may be.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON. It cannot be read: {error}.") from error


def file_inside(folder: Path, name: Any, named_by: str) -> Path:
    """Returns the path of a file that another file names.

    Args:
        folder: Where it must lie, not in a folder below.
        name: Its name, as received.
        named_by: Where the name was found, for the message.

    Raises:
        ValueError: If the name leads elsewhere.
    """
    # Separators of both kinds, and a drive's colon: a folder may change systems.
    if (
        not isinstance(name, str)
        or name in ("", ".", "..")
        or set(name) & set("/\\:\0")
    ):
        raise ValueError(
            f"{named_by} must name files of its own folder, without a path. Received: "
            f"{name!r}."
        )
    return folder / name


def load_model(path: Path, *, with_optimizer: bool) -> Any:
    """Loads a `.keras` file; only what `check_model_file` lets pass is made.

    Args:
        path: The file.
        with_optimizer: Whether optimizer, loss and metrics are made, too.

    Returns:
        The Keras model.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds what no training saves, or is damaged, or if this
            process has switched Keras' safe mode off.
    """
    # Here, since reading tokenizers and settings needs no Keras.
    import keras
    from keras.src.saving.serialization_lib import in_safe_mode

    check_model_file(path, with_optimizer=with_optimizer)
    if in_safe_mode() is False:
        # It would win over `safe_mode=True` below.
        raise ValueError(
            f"{path} is loaded in Keras' safe mode only. Received: a process that has "
            "called keras.config.enable_unsafe_deserialization(). Load it in another."
        )
    try:
        return keras.saving.load_model(path, compile=with_optimizer, safe_mode=True)
    except Exception as error:
        # Keras raises anything from KeyError to OSError here, by kind of damage.
        raise _damaged(path, error) from error


def check_model_file(path: Path, *, with_optimizer: bool) -> None:
    """Refuses a `.keras` file with anything that no training saves.

    Nothing is made of the file: its members are read as what they say they are.

    Args:
        path: The file.
        with_optimizer: Whether optimizer, loss and metrics are looked at, too.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no `.keras` file, has other members or too large
            ones, or names a class or function that is not allowed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no model {path}. Expected a .keras file.")
    if path.suffix != ".keras":  # Keras would read it as another, older format
        raise ValueError(f"A model must be a .keras file. Received: {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive.infolist())
            contents = {name: archive.read(name) for name in MODEL_FILES}
        _check_weights(path, contents["model.weights.h5"])
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError) as error:
        raise _damaged(path, error) from error
    _parsed(contents["metadata.json"], f"metadata.json in {path}")
    config = _parsed(contents["config.json"], f"config.json in {path}")
    if not isinstance(config, dict) or "class_name" not in config:
        raise ValueError(
            f"config.json in {path} must describe a model. Received: "
            f"{_shortened(config)}. {_TAKE_ANOTHER}"
        )
    if not with_optimizer:
        config.pop("compile_config", None)  # Keras drops it, too
    _check_classes(path, config)


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} cannot be loaded; it is damaged, or not a model that this version "
        f"of keras_seq2seq wrote: {error}"
    )


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuses other members, links, and sizes that the file does not have."""
    names = sorted(member.filename for member in members)
    if names != sorted(MODEL_FILES):
        raise ValueError(
            f"{path} must hold {', '.join(MODEL_FILES)}, each once, and nothing else. "
            f"Received: {_shortened(names)}. {_TAKE_ANOTHER}"
        )
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise ValueError(
                f"{path} must hold plain files. Received: {member.filename} of the "
                f"kind {stat.filemode(kind)[0]!r}. {_TAKE_ANOTHER}"
            )
        # Keras never compresses. So no member can grow on being read, and all of them
        # together are no larger than the file, unless some share their bytes.
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(
                f"{path} must hold its files uncompressed, as Keras writes them. "
                f"Received: {member.filename} of {member.file_size:,} bytes in "
                f"{member.compress_size:,}. {_TAKE_ANOTHER}"
            )
        if member.filename.endswith(".json") and member.file_size > TEXT_LIMIT:
            raise ValueError(
                f"{member.filename} in {path} must have at most {TEXT_LIMIT:,} bytes. "
                f"Received: {member.file_size:,} bytes. {_TAKE_ANOTHER}"
            )
    declared, actual = sum(member.file_size for member in members), path.stat().st_size
    if declared > actual:
        raise ValueError(
            f"The members of {path} must not be larger than the file. Received: "
            f"{declared:,} bytes in a file of {actual:,}. {_TAKE_ANOTHER}"
        )


def _check_weights(path: Path, content: bytes) -> None:
    """Refuses weights that are not numbers, or not in this file in full."""
    import h5py

    def is_elsewhere(name: str, link: Any) -> str | None:
        return None if isinstance(link, h5py.HardLink) else name

    def is_not_whole(name: str, item: Any) -> str | None:
        if isinstance(item, h5py.Group):
            return None
        whole = (
            isinstance(item, h5py.Dataset)
            and item.dtype.kind in "biufV"  # V: bfloat16
            and not (item.external or item.is_virtual)
            and item.id.get_storage_size() >= item.nbytes
        )
        return None if whole else name

    with h5py.File(io.BytesIO(content), "r") as file:
        name = file.visititems_links(is_elsewhere) or file.visititems(is_not_whole)
    if name is not None:
        raise ValueError(
            f"model.weights.h5 in {path} must hold all of its numbers itself. "
            f"Received: {_shortened(name)}, which is text, lies elsewhere or is only "
            f"declared. {_TAKE_ANOTHER}"
        )


def _check_classes(path: Path, config: Any) -> None:
    for named in _named_objects(config):
        module, name, registered = (
            named.get(key) for key in ("module", "class_name", "registered_name")
        )
        of_keras = registered is None and (module, name) in KERAS_CLASSES
        if not (of_keras or _is_own(module, name, registered)):
            raise ValueError(
                f"config.json in {path} must name classes of {_PACKAGE} and those of "
                "Keras that a training saves, and nothing else. Received: "
                f"module={_shortened(module)}, class_name={_shortened(name)}, "
                f"registered_name={_shortened(registered)}. {_TAKE_ANOTHER}"
            )


def _named_objects(config: Any) -> Iterator[dict[str, Any]]:
    """The dicts, at any depth, that Keras could take for a class or function."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if value.keys() & {"class_name", "registered_name", "module", "spec_name"}:
                yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _is_own(module: Any, name: Any, registered: Any) -> bool:
    """Whether a class is named that this process registered as one of this package.

    A user's own may be among them. Those of the package may have moved within it.
    """
    import keras

    if registered != f"{_PACKAGE}>{name}":
        return False
    found = keras.saving.get_registered_object(registered)
    if not isinstance(found, type):
        return False
    # Keras writes no module for classes of the script that runs.
    own_module = None if found.__module__ == "__main__" else found.__module__
    moved = all(str(m).split(".")[0] == _PACKAGE for m in (module, own_module))
    return moved or module == own_module


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
