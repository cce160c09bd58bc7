"""The tokenizer as part of a TensorFlow graph, for SavedModels that take text.

It holds the same serialised SentencePiece model as the Python tokenizer and gives the
same ids and the same text.
"""

import keras
import tensorflow as tf
import tensorflow_text

from keras_seq2seq.tokenizers import END_ID, PAD_ID, UNK_ID, UNKNOWN_START, Tokenizer

# What `str.isspace` calls white space: ASCII's and U+0085, and Unicode's separators.
_BLANK = r"[\t-\r\x1c-\x20\x{85}\p{Z}]*"


class GraphTokenizer(keras.layers.Layer):
    """Text to ids and back by graph operations only.

    Track it in the `ExportArchive` (`archive.track`) or hold it in a tracked layer, so
    that the SentencePiece model goes into the SavedModel. Its operations are
    tensorflow-text's; the process that loads the SavedModel must have them registered.
    Make it after `keras.utils.set_random_seed`: TensorFlow drops the resources of
    earlier operations there. A SavedModel makes its own.

    Args:
        tokenizer: The Python tokenizer to follow.
        max_length: The most ids of a text, END included; a longer text is cut.

    Raises:
        ValueError: If `max_length` is less than 2, a token and END.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        super().__init__(name="graph_tokenizer", trainable=False)
        if max_length < 2:
            raise ValueError(
                "`max_length` must be at least 2, a token and END. "
                f"Received: {max_length}."
            )
        self.max_length = max_length
        # Two tokenizers under one name would share one model after loading.
        self.sentencepiece = tensorflow_text.SentencepieceTokenizer(
            tokenizer.model_bytes,
            out_type=tf.int32,
            name=f"sentencepiece_{tokenizer.fingerprint[:16]}",
        )
        self._vocabulary_size = tokenizer.vocabulary_size
        self.hidden_ids = tokenizer.hidden_ids
        self._encode_graph = tf.function(
            self._encode,
            autograph=False,
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        self._decode_graph = tf.function(
            self._decode,
            autograph=False,
            input_signature=[
                tf.TensorSpec([None, None], tf.int32),
                tf.TensorSpec([None], tf.int32),
            ],
        )
        self.built = True

    def encode(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Turn texts into padded ids.

        Invalid UTF-8 reads as U+FFFD. A text without ids, such as a blank one, is a
        row of PAD with length 0, whose answer is the empty text.

        Args:
            text: Strings, `(B,)`.

        Returns:
            Ids with END behind the last, `(B, S)` int32, where S is the longest row
            (at least 1 and at most `max_length`), and lengths, `(B,)` int32.
        """
        return self._encode_graph(text)

    def _encode(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        text = tf.strings.unicode_transcode(
            text, "UTF-8", "UTF-8", errors="replace", replace_control_characters=False
        )
        text = tf.strings.regex_replace(text, r"\x00", "")
        blank = tf.strings.regex_full_match(text, _BLANK)
        text = tf.where(blank, "", text)
        rows = self.sentencepiece.tokenize(text)[:, : self.max_length - 1]
        num_ids = tf.cast(rows.row_lengths(), tf.int32)  # (B,)
        lengths = tf.where(num_ids > 0, num_ids + 1, 0)
        width = tf.maximum(tf.reduce_max(lengths), 1)
        shape = tf.stack([tf.shape(text)[0], width])
        ids = rows.to_tensor(default_value=PAD_ID, shape=[None, None])
        ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=PAD_ID)
        position = tf.expand_dims(tf.range(tf.shape(ids)[1]), 0)
        is_end = tf.equal(position, tf.expand_dims(lengths - 1, 1))  # (B, S)
        ids = tf.where(is_end, END_ID, ids)
        return tf.reshape(ids[:, :width], shape), lengths

    def decode(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Turn ids into texts, as `Tokenizer.decode` does.

        END ends a text; PAD, START and symbols are left out. Ids outside the
        vocabulary read as unknown.

        Args:
            ids: Ids, `(B, T)` int32.
            lengths: Number of ids of each row that count, `(B,)` int32.

        Returns:
            Texts in valid UTF-8, `(B,)`.
        """
        return self._decode_graph(tf.cast(ids, tf.int32), tf.cast(lengths, tf.int32))

    def tokens(self, ids: tf.Tensor) -> tf.Tensor:
        """Name each id, as `Tokenizer.pieces` does.

        Args:
            ids: Ids, `(B, T)` int32, each of the vocabulary.

        Returns:
            Pieces, `(B, T)`, in which U+2581 stands for a space; empty for PAD.
        """
        return tf.where(ids == PAD_ID, "", self.sentencepiece.id_to_string(ids))

    def _decode(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        ended = tf.cumsum(tf.cast(tf.equal(ids, END_ID), tf.int32), axis=1)
        shown = tf.sequence_mask(lengths, tf.shape(ids)[1]) & tf.equal(ended, 0)
        for hidden in sorted(self.hidden_ids):
            shown &= tf.not_equal(ids, hidden)
        known = tf.greater_equal(ids, 0) & tf.less(ids, self._vocabulary_size)
        rows = tf.ragged.boolean_mask(tf.where(known, ids, UNK_ID), shown)
        unknown = tf.fill([tf.shape(ids)[0], 1], UNK_ID)
        text = self.sentencepiece.detokenize(tf.concat([unknown, rows], axis=1))
        text = tf.strings.regex_replace(text, UNKNOWN_START.pattern, "")
        return tf.strings.unicode_transcode(
            text, "UTF-8", "UTF-8", errors="replace", replace_control_characters=False
        )
