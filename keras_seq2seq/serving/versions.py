"""The newest version of a model: found, checked, loaded, and followed by the next.

A version that is refused or can not be loaded leaves the last good one serving. The
one that is replaced answers what it was asked before it is unloaded.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from keras_seq2seq.serving.batching import BatchingOptions
from keras_seq2seq.serving.errors import RequestError, invalid
from keras_seq2seq.serving.loaded import LoadedVersion

# Where `export` writes in a run folder.
_EXPORTS = Path("exports") / "saved_model"
_LARGEST = 2**63


@dataclass(frozen=True)
class VersionStatus:
    """What became of a version.

    Args:
        version: Its number.
        state: `LOADING`, `AVAILABLE`, `UNLOADING` or `END`.
        error_code: gRPC's name of the error; `OK` if there is none.
        error_message: What the error says.
    """

    version: int
    state: str
    error_code: str = "OK"
    error_message: str = ""


def model_folder(path: str | Path) -> Path:
    """The folder to serve: what is named, or the exports of a run folder.

    Args:
        path: A version folder, a folder of versions, or a run folder.

    Raises:
        FileNotFoundError: If there is no SavedModel.
    """
    path = Path(path)
    for place in (path, path / _EXPORTS):
        if (place / "saved_model.pb").is_file() or versions_in(place):
            return place.resolve()
    raise FileNotFoundError(
        "`PATH` must be a version folder with saved_model.pb, a folder of numbered "
        f"versions, or a run folder with {_EXPORTS.as_posix()}. Received: {path}, "
        f"which {'has none of them' if path.exists() else 'does not exist'}."
    )


def model_name(folder: Path) -> str:
    """The name that clients use if no other is given.

    Args:
        folder: What `model_folder` returned.
    """
    if (folder / "saved_model.pb").is_file():
        folder = folder.parent
    if folder.parts[-2:] == _EXPORTS.parts:
        folder = folder.parents[1]
    return re.sub("[/:]", "_", folder.name) or "model"


def versions_in(folder: Path) -> dict[int, Path]:
    """The subfolders whose names are numbers.

    Args:
        folder: A folder of versions; may be missing.
    """
    if not folder.is_dir():
        return {}
    found = {}
    for entry in sorted(folder.iterdir()):
        if re.fullmatch("[0-9]+", entry.name) and entry.is_dir():
            number = int(entry.name)
            if number < _LARGEST:
                found[number] = entry
    return found


class ServedModel:
    """A model that clients know by its name.

    Args:
        path: A version folder, a folder of versions, or a run folder.
        name: The name; by default that of the folder.
        batching: How requests are merged; None to run each alone.
        warmup: Whether versions replay their warm-up requests before they serve.
        poll_seconds: How often to look for a new version.
        log: What to tell of versions that come and go.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ValueError: If the newest version may not be loaded or can not, or the name is
            none.
    """

    def __init__(
        self,
        path: str | Path,
        name: str | None = None,
        *,
        batching: BatchingOptions | None = None,
        warmup: bool = True,
        poll_seconds: float = 1.0,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = model_folder(path)
        self.name = model_name(self.folder) if name is None else name
        if not re.fullmatch("[^/:]+", self.name):
            raise ValueError(
                "`name` must have characters, none of them / or :. Received: "
                f"{self.name!r}."
            )
        self._batching = batching
        self._warmup = warmup
        self._log = log
        self._lock = threading.Lock()
        self._statuses: dict[int, VersionStatus] = {}
        self._failed: dict[int, object] = {}
        self._unloading: list[threading.Thread] = []
        number, folder = self._newest()
        self._current = self._load(number, folder)
        self._stopping = threading.Event()
        self._poll_seconds = poll_seconds
        self._poller: threading.Thread | None = None
        if not (self.folder / "saved_model.pb").is_file():
            self._poller = threading.Thread(
                target=self._poll, name="versions", daemon=True
            )
            self._poller.start()

    @property
    def version(self) -> int:
        """The number of the version that serves now."""
        return self._current.version

    @contextmanager
    def lease(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> Iterator[LoadedVersion]:
        """Keeps the version that a request means loaded while a block runs.

        Args:
            name: Name of the model.
            version: Number of the version; None for the newest.
            label: Label of a version; there are none.

        Yields:
            The version.

        Raises:
            RequestError: If it is not served.
        """
        _refuse(label)
        with self._lock:
            current = self._current
            if name != self.name or version not in (None, current.version):
                wanted = (
                    f"Latest({name})"
                    if version is None
                    else f"Specific({name}, {version})"
                )
                raise RequestError(
                    "NOT_FOUND", f"Servable not found for request: {wanted}"
                )
            current.acquire()
        try:
            yield current
        finally:
            current.release()

    def statuses(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[VersionStatus]:
        """What became of the versions, the newest first.

        Args:
            name: Name of the model.
            version: Number of one version; None for all.
            label: Label of a version; there are none.

        Raises:
            RequestError: If nothing is known of it.
        """
        _refuse(label)
        with self._lock:
            known = dict(self._statuses) if name == self.name else {}
        if not known:
            raise RequestError(
                "NOT_FOUND", f"Could not find any versions of model {name}"
            )
        if version is None:
            return [known[number] for number in sorted(known, reverse=True)]
        if version not in known:
            raise RequestError(
                "NOT_FOUND", f"Could not find version {version} of model {name}"
            )
        return [known[version]]

    def close(self) -> None:
        """Looks for no further versions, and unloads all once they have answered."""
        self._stopping.set()
        if self._poller is not None:
            self._poller.join()
        for thread in self._unloading:
            thread.join()
        self._unload(self._current)

    def _newest(self) -> tuple[int, Path]:
        """Number and folder of the largest version that is there."""
        if (self.folder / "saved_model.pb").is_file():
            name = self.folder.name
            return int(name) if re.fullmatch("[0-9]{1,18}", name) else 1, self.folder
        found = versions_in(self.folder)
        if not found:
            raise FileNotFoundError(f"No version is left in {self.folder}.")
        return max(found), found[max(found)]

    def _load(self, number: int, folder: Path) -> LoadedVersion:
        """Loads a version and keeps what became of it."""
        self._set(VersionStatus(number, "LOADING"))
        try:
            loaded = LoadedVersion(folder, number, self._batching, warmup=self._warmup)
        except (ValueError, OSError) as error:
            code = "NOT_FOUND" if isinstance(error, OSError) else "INVALID_ARGUMENT"
            self._set(VersionStatus(number, "END", code, str(error)))
            self._failed[number] = _identity(folder)
            raise
        self._set(VersionStatus(number, "AVAILABLE"))
        return loaded

    def _set(self, status: VersionStatus) -> None:
        with self._lock:
            self._statuses[status.version] = status

    def _poll(self) -> None:
        while not self._stopping.wait(self._poll_seconds):
            try:
                self._follow()
            except (ValueError, OSError) as error:
                self._log(f"Still serving version {self.version}: {error}")

    def _follow(self) -> None:
        """Loads the newest version, unless it serves or has failed as it is."""
        found = versions_in(self.folder)
        # With no version left, the loaded one goes on.
        number = max(found, default=self.version)
        if number == self.version or not (found[number] / "saved_model.pb").is_file():
            return
        if self._failed.get(number) == _identity(found[number]):
            return
        loaded = self._load(number, found[number])
        with self._lock:
            old, self._current = self._current, loaded
        self._log(f"Serving version {number} in place of {old.version}")
        self._unloading = [t for t in self._unloading if t.is_alive()]
        thread = threading.Thread(target=self._unload, args=(old,), name="unload")
        self._unloading.append(thread)
        thread.start()

    def _unload(self, version: LoadedVersion) -> None:
        self._set(VersionStatus(version.version, "UNLOADING"))
        version.close()
        self._set(VersionStatus(version.version, "END"))


def _refuse(label: str | None) -> None:
    """Versions have no labels here."""
    if label:
        raise invalid(f"Unrecognized servable version label: {label}")


def _identity(folder: Path) -> object:
    """What changes while files of a version are written, all at once or one by one."""
    return sorted(
        (str(file), found.st_mtime_ns, found.st_size)
        for file in folder.rglob("*")
        if not file.is_dir() and (found := file.lstat())
    )
