"""Pictures of what a trained model does."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# Fonts with the letters that Matplotlib's own font lacks, used where installed.
_FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Sans Thai", "Arial")


def plot_alignment(
    attention: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    path: str | Path,
    *,
    title: str | None = None,
) -> Path:
    """Draw attention weights as a PNG: a row for each target token, read downwards.

    Dark cells are large weights, so that the alignment of two languages with the same
    word order is a dark diagonal from the upper left to the lower right.

    Args:
        attention: Weights, `(T, S)`, each between 0 and 1.
        source_tokens: `S` tokens, along the upper edge.
        target_tokens: `T` tokens, along the left edge.
        path: The file to write, replaced if it exists; its folder is made if needed.
        title: What stands above the picture.

    Returns:
        The path.

    Raises:
        ValueError: If the shape of `attention` is not the number of tokens, there are
            no tokens, a weight is not finite, or the path has no `.png` at its end.
    """
    weights = np.asarray(attention, dtype="float32")
    shape = (len(target_tokens), len(source_tokens))
    path = Path(path)
    if weights.shape != shape or 0 in shape:
        raise ValueError(
            "`attention` must have a row for each target token and a column for each "
            f"source token. Received: shape {weights.shape} with {shape[0]} target "
            f"tokens and {shape[1]} source tokens."
        )
    if not np.all(np.isfinite(weights)):
        raise ValueError("`attention` must be finite. Received: NaN or infinity.")
    if path.suffix.lower() != ".png":
        raise ValueError(f"`path` must end in .png. Received: {path}.")
    figure = _draw(weights, source_tokens, target_tokens, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with warnings.catch_warnings():
            # Without a font for a script its letters are boxes, the picture is right.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure.savefig(partial, format="png", dpi=150, bbox_inches="tight")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _draw(weights, source_tokens, target_tokens, title):
    """Return a Matplotlib figure, made without pyplot's global state."""
    from matplotlib import font_manager
    from matplotlib.figure import Figure

    installed = {font.name for font in font_manager.fontManager.ttflist}
    families = [name for name in _FONTS if name in installed]
    num_rows, num_columns = weights.shape
    # A quarter of an inch for each token keeps 9-point labels apart.
    figure = Figure(figsize=(1.5 + 0.25 * num_columns, 1.0 + 0.25 * num_rows))
    axes = figure.add_subplot()
    image = axes.imshow(weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="equal")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(range(num_columns), labels=list(source_tokens), rotation=90)
    axes.set_yticks(range(num_rows), labels=list(target_tokens))
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a token may be a dollar sign
        label.set(fontsize=9, fontfamily=families)
    axes.set_xticks(np.arange(0.5, num_columns - 1), minor=True)
    axes.set_yticks(np.arange(0.5, num_rows - 1), minor=True)
    axes.grid(which="minor", color="0.85", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    figure.colorbar(image, ax=axes, shrink=0.6, label="attention weight")
    if title:
        axes.set_title(title, parse_math=False, fontfamily=families)
    return figure
