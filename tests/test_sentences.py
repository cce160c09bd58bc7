import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seq2seq.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["One sentence."],
        ["No mark at the end"],
        ["It rains. ", "We stay."],
        ["Really?! ", "Yes… ", "Then go!"],
        ['"Stop." ', '"Why?" ', "(He left.) ", "Nobody knew."],
        ["Dr. Who met Mrs. Smith at 3.15 p.m. on a Sunday. ", "They talked."],
        ["J. S. Bach wrote it. ", "E. T. did not."],
        ["The U.S. Army came in 1944. ", "It left."],
        ["Am 3. März kam er. ", "Am 21. August ging er, z.B. nach Köln."],
        ["See fig. 3 and eq. 2, e.g. there. ", "End."],
        ["C'est M. Dupont. ", "« Oui ! » ", "Il part."],
        ["»Halt!« ", "Er blieb."],
        ["Oui ! ", "« Non », dit-il."],
        ["¿Qué? ", "¡No! ", "La Sra. López vino."],
        ["今日は雨です。", "家にいます。", "本当？", "はい！"],
        ["他说：“好。”", "她走了。"],
        ["यह एक वाक्य है। ", "यह दूसरा है।"],
        ["هل جاء؟ ", "نعم."],
        ["version 2.0 is out. ", "Get it at example.org now."],
        ["wait... what? ", "Nothing."],
        ["one. two. three"],
        ["  Spaces first.  ", "Two behind.\t", "Tab."],
    ],
)
def test_sentences_end_where_a_reader_ends_them(sentences):
    found = split_sentences("".join(sentences))
    assert [sentence + space for sentence, space in found] == sentences
    assert not any(sentence.endswith((" ", "\t")) for sentence, _ in found[:-1])


@given(st.text(alphabet="ab .!?\"')。」1Z", max_size=40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_pieces_joined_are_the_text(text):
    found = split_sentences(text)
    assert "".join(sentence + space for sentence, space in found) == text
    assert found
    assert all(sentence for sentence, _ in found[:-1])
