import numpy as np
import pytest
from keras import ops

from keras_seq2seq.layers import PositionEncoding, sinusoids


def table(length, dim):
    return ops.convert_to_numpy(sinusoids(np.arange(length), dim))


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
    vectors, shift = table(30, 8), 5
    rotation = np.zeros((8, 8))
    for pair in range(4):
        angle = shift / 10000 ** (2 * pair / 8)
        cos, sin = np.cos(angle), np.sin(angle)
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [
            [cos, sin],
            [-sin, cos],
        ]
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(8), atol=1e-12)
    np.testing.assert_allclose(
        vectors[:-shift] @ rotation.T, vectors[shift:], atol=1e-4
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
