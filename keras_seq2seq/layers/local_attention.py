"""Attention restricted to a window around each position, in linear time.

The sequence is cut into blocks as long as the window reaches. A block's queries see
the keys of their own block and of the neighbouring ones, and an exact mask of the
band inside them: `O(T * R)` scores for `T` positions and windows of `R`, where a mask
over all pairs has `O(T^2)`.
"""

from __future__ import annotations

from keras import ops

from keras_seq2seq.layers.attention import attend


def local_attend(
    score,
    query,
    keys,
    values,
    *,
    before: int,
    after: int,
    key_mask=None,
    dropout=None,
):
    """Averages `values` around each position by the softmax of its scores.

    Position `i` attends to `i - before ... i + after`, cut at the ends.

    Args:
        score: Any score of `layers.attention`, a function of query and keys.
        query: `(B, H, T, Q)`.
        keys: What `score.project_memory` returned, `(B, H, T, K)`.
        values: `(B, H, T, D)`.
        before: How many earlier positions may be attended to, an int.
        after: How many later ones, an int.
        key_mask: Bool, broadcastable to `(B, H, 1, T)`, True where a key is real.
        dropout: Optional function applied to the attention weights.

    Returns:
        `context`, `(B, H, T, D)`, and `attention_weights`, `(B, H, T, R)`, of which
        column `before + d` belongs to the key at the distance `d`. `R` is
        `before + 1 + after`, where neither is more than `T`.

    Reference:
        Vaswani et al., 2017, section 4 (restricted self-attention).
    """
    length = ops.shape(query)[2]
    # A window longer than the sequence costs no more than all pairs.
    block = _smaller(max(before, after, 1), length)
    sides = 1 if after == 0 else 2
    before, after = _smaller(before, block), _smaller(after, block)
    band = _band(block, sides, before, after)  # (C, M)
    real = ops.ones((1, 1, 1, length), "bool") if key_mask is None else key_mask
    real = _with_neighbours(ops.swapaxes(real, -1, -2), block, sides)  # (B, H, N, M, 1)
    context, weights = attend(
        score(_blocks(query, block), _with_neighbours(keys, block, sides)),
        _with_neighbours(values, block, sides),
        ops.logical_and(ops.swapaxes(real, -1, -2), band),
        dropout,
    )
    weights = _along_the_band(weights, block - before, before + 1 + after)
    return _joined(context, length), _joined(weights, length)


def _smaller(number: int, length):
    """The minimum; an int where the length is one, so that shapes stay known."""
    if isinstance(length, int):
        return min(number, length)
    return ops.minimum(number, length)


def _blocks(x, block):
    """Cuts `(B, H, T, K)` into `(B, H, N, C, K)` blocks, the last one padded."""
    batch, heads, length, width = ops.shape(x)
    count = -(-length // block)
    x = ops.pad(x, ((0, 0), (0, 0), (0, count * block - length), (0, 0)))
    return ops.reshape(x, (batch, heads, count, block, width))


def _with_neighbours(x, block, sides):
    """Blocks of `(B, H, T, K)`, each with the one before: `(B, H, N, M, K)`.

    With two `sides` also with the one after. Outside the sequence there are zeros.
    """
    x = ops.pad(_blocks(x, block), ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))
    parts = [x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:]]
    return ops.concatenate(parts[: 1 + sides], axis=3)


def _band(block, sides, before, after):
    """Which of a block's own and neighbouring keys each of its queries may see."""
    keys = ops.expand_dims(ops.arange((1 + sides) * block), 0)
    distances = keys - block - ops.expand_dims(ops.arange(block), 1)  # (C, M)
    return ops.logical_and(distances >= -before, distances <= after)


def _along_the_band(weights, start, width):
    """Turns columns from places in the blocks, `(B, H, N, C, M)`, into distances.

    Read with one more column a row, row `i` begins at what was its column `i`.
    """
    batch, heads, count, block, keys = ops.shape(weights)
    x = ops.reshape(weights, (batch, heads, count, block * keys))
    x = ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, block)))
    x = ops.reshape(x, (batch, heads, count, block, keys + 1))
    return x[:, :, :, :, start : start + width]  # (B, H, N, C, R)


def _joined(x, length):
    """Joins blocks, `(B, H, N, C, K)`, to `(B, H, T, K)`."""
    batch, heads, count, block, width = ops.shape(x)
    x = ops.reshape(x, (batch, heads, count * block, width))
    return x[:, :, :length]
