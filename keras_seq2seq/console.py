"""How the command line talks: streams, progress, and whose fault an error is."""

import dis
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer


def say(text: str) -> None:
    """Print to standard error."""
    typer.echo(text, err=True)


def write(output: Path | None, lines: Iterable[str]) -> None:
    """Write lines to a file, whole or not at all, or to standard output.

    Args:
        output: The file, replaced if it exists; None for standard output.
        lines: The lines, without line ends.
    """
    if output is not None:
        from keras_seq2seq.lines import write_lines

        write_lines(output, lines)
        return
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def progress(
    unit: str, *, total: int | None = None, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Count on standard error while a terminal is there to see it.

    Args:
        unit: What is counted.
        total: How many there are, if known.
        shown: Whether to count at all.

    Yields:
        A function that is told how many more are done.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (MofNCompleteColumn(), unit, TimeElapsedColumn())
    # Redirecting would send the output itself to standard error.
    options: dict[str, Any] = {"redirect_stdout": False, "transient": True}
    with Progress(*columns, console=Console(stderr=True), **options) as progress:
        task = progress.add_task(unit, total=total)
        yield lambda count: progress.advance(task, count)


def is_user_mistake(error: BaseException) -> bool:
    """Tell a mistake that the package found out from a fault of its own.

    Whatever the system says of a file is for the user, as is what a `raise` statement
    of this package says. The same types raised elsewhere, such as by a wrong call,
    are faults.

    Args:
        error: What was raised, with its traceback.
    """
    if isinstance(error, OSError):
        # A closed pipe is left to typer, which ends quietly.
        return error.errno != errno.EPIPE
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    module = str(trace.tb_frame.f_globals.get("__name__"))
    is_raise = code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return is_raise and module.split(".")[0] == "keras_seq2seq"


def message(error: BaseException) -> str:
    """Return what to tell the user of an error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else str(error)
    return str(error)


def show_warning(message: Any, *_: Any, **__: Any) -> None:
    """Print a warning as one line, in place of `warnings.showwarning`."""
    say(f"Warning: {message}")


def import_backend(*, required: bool = True, file: bool = False) -> None:
    """Import Keras without what TensorFlow prints before it heeds any log level.

    Args:
        required: Whether it is an error if Keras or its backend cannot be imported.
        file: Whether a file will be decoded, many texts at once.
    """
    if file:
        from keras_seq2seq.batches import threads_for_files

        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads_for_files()))
    try:
        sys.stderr.flush()
        saved = os.dup(2)
    except (OSError, ValueError):
        saved = None
    try:
        if saved is not None:
            with Path(os.devnull).open("w", encoding="utf-8") as sink:
                os.dup2(sink.fileno(), 2)
        import keras

        if keras.backend.backend() == "jax":
            _keep_programs()
        keras.ops.zeros(1)  # the device is looked for at the first operation
    except ImportError:
        if required:
            raise
    finally:
        if saved is not None:
            os.dup2(saved, 2)
            os.close(saved)


def _keep_programs() -> None:
    """Let JAX find again what earlier processes compiled, unless it was told where."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches) / "keras_seq2seq" / "jax"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def show_version(value: bool) -> None:
    """Print the versions and end the program, if asked for.

    Args:
        value: Whether they were asked for.
    """
    if value:
        from keras_seq2seq import __version__
        from keras_seq2seq.doctor import installed_version

        found = (
            f"{name} {installed_version(name) or 'not installed'}"
            for name in ("keras", "tensorflow")
        )
        typer.echo(f"keras-seq2seq {__version__} ({', '.join(found)})")
        raise typer.Exit


def json_line(value: dict[str, Any]) -> str:
    """One line of JSON, its characters as they are."""
    return json.dumps(value, ensure_ascii=False)
