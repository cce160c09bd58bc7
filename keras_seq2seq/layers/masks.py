"""Masks and the one masked softmax that every attention of the package uses.

Masks are boolean and True means "real token" or "may attend".
"""

from __future__ import annotations

from keras import ops

#: The float32 score of what gets no weight, mask or not. Finite, so that no inf - inf
#: or 0 * inf can make a NaN; far below any other score.
FLOOR = -1e30


def padding_mask(ids, pad_id: int = 0):
    """Returns the mask of the real tokens of a batch.

    Args:
        ids: Token ids, `(B, S)`.
        pad_id: The id of padding.

    Returns:
        Bool, `(B, S)`, True where `ids` is not `pad_id`.
    """
    return ops.not_equal(ids, pad_id)


def causal_mask(length):
    """Returns the mask that lets a position see itself and what came before.

    For `length=3` it is, rows being queries and columns keys::

        1 0 0
        1 1 0
        1 1 1

    Args:
        length: Number of positions `T`, an int or a scalar tensor.

    Returns:
        Bool, `(T, T)`.
    """
    positions = ops.arange(length)
    return ops.expand_dims(positions, 0) <= ops.expand_dims(positions, 1)


def masked_softmax(scores, mask=None):
    """Softmax over the last axis, restricted to the positions of `mask`.

    Computed in float32 whatever the compute dtype. A row with no real position
    gives zeros and a zero gradient, never a NaN; so does a row of nothing but `FLOOR`
    where there is a mask.

    Args:
        scores: Attention scores, `(..., S)`.
        mask: Bool, broadcastable to `scores`; None masks nothing.

    Returns:
        Attention weights, float32, with the shape of `scores`.
    """
    scores = ops.cast(scores, "float32")
    if mask is None:
        return _softmax(scores)
    scores = ops.where(mask, scores, FLOOR)
    # Beside any other score a floor's exponential is exactly zero; in a row of nothing
    # else it is not. A NaN passes the test.
    nothing = ops.max(scores, axis=-1, keepdims=True) <= FLOOR / 10
    return ops.where(nothing, 0.0, _softmax(scores))


def _softmax(scores):
    if scores.shape[-1] == 1:  # Keras warns where the result is always 1
        return ops.exp(scores - scores)
    return ops.softmax(scores, axis=-1)
