import keras
import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import PositionEncoding, rotate, sinusoids


def table(length, dim, layout="paper"):
    return ops.convert_to_numpy(sinusoids(np.arange(length), dim, layout))


def rotation(shift, frequencies):
    """The block-diagonal matrix that moves sinusoids by `shift`, in float64."""
    matrix = np.zeros((2 * len(frequencies), 2 * len(frequencies)))
    for pair, frequency in enumerate(frequencies):
        cos, sin = np.cos(shift * frequency), np.sin(shift * frequency)
        block = slice(2 * pair, 2 * pair + 2)
        matrix[block, block] = [[cos, sin], [-sin, cos]]
    return matrix


def test_first_positions_are_those_of_the_paper():
    expected = [[0, 1, 0, 1], [0.841471, 0.540302, 0.00999983, 0.99995]]
    np.testing.assert_allclose(table(2, 4), expected, atol=1e-6)


def test_table_equals_its_formula():
    expected = np.zeros((50, 16))
    for position in range(50):
        for pair in range(8):
            angle = position / 10000 ** (2 * pair / 16)
            expected[position, 2 * pair : 2 * pair + 2] = np.sin(angle), np.cos(angle)
    np.testing.assert_allclose(table(50, 16), expected, atol=1e-5)


def test_an_odd_width_ends_with_zeros():
    vectors = table(4, 5)
    assert vectors.shape == (4, 5)
    np.testing.assert_array_equal(vectors[:, 4], 0)


def test_products_depend_on_the_distance_only_and_norms_are_equal():
    vectors = table(40, 16)
    products = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(products), 8, atol=1e-4)
    for distance in (1, 7):
        np.testing.assert_allclose(
            np.diag(products, distance), products[0, distance], atol=1e-4
        )


def test_moving_by_k_is_one_rotation_for_every_position():
    vectors, frequencies = table(30, 8), 10000.0 ** (-np.arange(4) / 4)
    five = rotation(5, frequencies)
    np.testing.assert_allclose(vectors[:-5] @ five.T, vectors[5:], atol=1e-4)
    np.testing.assert_allclose(five.T @ five, np.eye(8), atol=1e-12)
    np.testing.assert_allclose(
        five @ rotation(3, frequencies), rotation(8, frequencies), atol=1e-12
    )
    np.testing.assert_allclose(rotation(-5, frequencies), five.T, atol=1e-12)
    expected = np.cos(5 * frequencies).sum()
    np.testing.assert_allclose(vectors[7] @ vectors[12], expected, atol=1e-4)


def test_halves_are_the_sines_and_then_the_cosines():
    """Tensor2Tensor: the frequencies reach 1/10000 itself, D/2 - 1 steps after 1."""
    frequencies = 10000.0 ** (-np.arange(4) / 3)
    angles = np.arange(20)[:, None] * frequencies
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    found = table(20, 8, "halves")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # The same rotation, of the pairs (i, i + D/2).
    pairs = found.reshape(20, 2, 4).transpose(0, 2, 1).reshape(20, 8)
    moved = pairs[:-5] @ rotation(5, frequencies).T
    np.testing.assert_allclose(moved, pairs[5:], atol=1e-4)
    np.testing.assert_array_equal(table(4, 5, "halves")[:, 4], 0)
    np.testing.assert_allclose(
        table(3, 2, "halves"),
        np.stack([np.sin(range(3)), np.cos(range(3))], 1),
        atol=1e-6,
    )


def test_layer_adds_the_layout_that_it_was_given():
    layer = PositionEncoding(dim=8, sinusoid_layout="halves")
    vectors = ops.convert_to_numpy(layer(np.zeros((1, 3, 8), "float32")))
    np.testing.assert_allclose(vectors[0], table(3, 8, "halves"), atol=1e-6)
    again = PositionEncoding.from_config(layer.get_config())
    assert again.sinusoid_layout == "halves"
    with pytest.raises(ValueError, match="sinusoid_layout='t2t'"):
        PositionEncoding(dim=8, sinusoid_layout="t2t")


def one_at(vector, position):
    """`vector` rotated as position `position`."""
    return ops.convert_to_numpy(rotate(vector[None], np.array([position])))[0]


def test_rotated_products_depend_on_the_distance_only():
    generator = np.random.default_rng(0)
    query, key = generator.normal(size=(2, 8)).astype("float32")
    products = [
        one_at(query, first) @ one_at(key, second)
        for first, second in ((3, 10), (20, 27), (0, 7))
    ]
    np.testing.assert_allclose(products, products[0], atol=1e-5)
    other = one_at(query, 3) @ one_at(key, 11)
    assert abs(other - products[0]) > 1e-3
    norm = np.linalg.norm(one_at(key, 10))
    assert norm == pytest.approx(np.linalg.norm(key), rel=1e-6)
    np.testing.assert_array_equal(one_at(key, 0), key)


def test_rotation_turns_neighbouring_features_counter_clockwise():
    """RoFormer: (x0, x1) to (x0 cos - x1 sin, x0 sin + x1 cos)."""
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 8)).astype("float32")
    positions = np.arange(5) + 4
    angles = positions[:, None] * 10000.0 ** (-np.arange(4) / 4)
    expected = np.empty_like(x)
    first, second = x[..., ::2], x[..., 1::2]
    expected[..., ::2] = first * np.cos(angles) - second * np.sin(angles)
    expected[..., 1::2] = first * np.sin(angles) + second * np.cos(angles)
    np.testing.assert_allclose(rotate(x, positions), expected, atol=1e-5)


def test_rotation_is_exact_in_bfloat16_beyond_256():
    vector = np.array([1.0, 0.0], "float32")
    turned = rotate(ops.cast(vector[None], "bfloat16"), np.array([301]))
    assert keras.backend.standardize_dtype(turned.dtype) == "bfloat16"
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(turned, "float32"))[0],
        [np.cos(301), np.sin(301)],
        atol=4e-3,
    )


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_start_gives_the_vectors_of_later_positions(kind, combine):
    layer = PositionEncoding(kind, dim=4, combine=combine, max_positions=8)
    embeddings = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    whole = ops.convert_to_numpy(layer(embeddings))
    part = ops.convert_to_numpy(layer(embeddings[:, 3:4], start=3))
    np.testing.assert_allclose(part, whole[:, 3:4], atol=1e-6)
    assert whole.shape == layer.compute_output_shape((2, 5, 4))


def test_concat_keeps_the_token_vectors_and_appends_the_positions():
    layer = PositionEncoding("sinusoidal", dim=2, combine="concat")
    embeddings = np.ones((1, 3, 4), "float32")
    joined = ops.convert_to_numpy(layer(embeddings))
    np.testing.assert_array_equal(joined[..., :4], embeddings)
    np.testing.assert_allclose(joined[0, :, 4:], table(3, 2), atol=1e-6)


def test_a_sequence_beyond_the_learned_table_is_refused_with_both_numbers():
    layer = PositionEncoding("learned", dim=4, max_positions=3)
    with pytest.raises(ValueError, match=r"5 tokens.*max_positions=3"):
        layer(np.zeros((1, 5, 4), "float32"))


def test_positions_are_exact_in_bfloat16_beyond_256():
    layer = PositionEncoding("sinusoidal", dim=4, dtype="mixed_bfloat16")
    embeddings = np.zeros((1, 301, 4), "float32")
    vectors = ops.convert_to_numpy(ops.cast(layer(embeddings), "float32"))
    np.testing.assert_allclose(vectors[0, 300], table(301, 4)[300], atol=4e-3)
    assert np.abs(vectors[0, 300] - vectors[0, 299]).max() > 0.1
