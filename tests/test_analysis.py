"""Pictures are looked at as pixels."""

import numpy as np
import pytest

from keras_seq2seq.analysis import plot_alignment


def darkness(path):
    """Grey levels of a picture, 0 white and 1 black."""
    from matplotlib.image import imread

    return 1.0 - imread(path)[..., :3].mean(axis=-1)


def test_picture_is_dark_where_the_weights_are(tmp_path):
    weights = np.zeros((4, 12))
    weights[3, :] = 1.0  # the last target token looks at everything
    path = plot_alignment(
        weights, list("abcdefghijkl"), list("wxyz"), tmp_path / "a.png"
    )
    columns = darkness(path)[:, : darkness(path).shape[1] // 2]
    black = np.flatnonzero((columns > 0.95).mean(axis=1) > 0.5)
    # Rows run downwards: the dark band is in the lower half of the cells, in one piece.
    assert black.min() > darkness(path).shape[0] / 2
    assert np.all(np.diff(np.flatnonzero((columns > 0.95).mean(axis=1) > 0.6)) == 1)


def test_large_pictures_and_tokens_of_any_script_are_drawn(tmp_path):
    tokens = ["$x", "$y$", "\u2581", "日", "ไทย", "😀", "</s>", "\\frac"] * 4
    weights = np.eye(32)[:30, :30]
    path = plot_alignment(weights, tokens[:30], tokens[:30], tmp_path / "b" / "c.png")
    height, width = darkness(path).shape
    # At least 30 pixels for each of 30 tokens, so that labels stay apart.
    assert min(height, width) > 900
    assert [file.name for file in path.parent.iterdir()] == ["c.png"]


def test_wrong_input_is_refused_by_name_and_value(tmp_path):
    path = tmp_path / "a.png"
    with pytest.raises(ValueError, match=r"shape \(2, 3\) with 3 target tokens and 2"):
        plot_alignment(np.zeros((2, 3)), ["a", "b"], ["x", "y", "z"], path)
    with pytest.raises(ValueError, match="finite"):
        plot_alignment(np.full((1, 1), np.nan), ["a"], ["x"], path)
    with pytest.raises(ValueError, match=r"end in \.png.*a\.pdf"):
        plot_alignment(np.zeros((1, 1)), ["a"], ["x"], tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())
