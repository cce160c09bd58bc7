"""JSON in and out, against what TF Serving's own tests and documentation show."""

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_seq2seq.serving.errors import RequestError
from keras_seq2seq.serving.json_replies import decimal, write_reply
from keras_seq2seq.serving.json_values import read_request
from keras_seq2seq.serving.signatures import NUMPY_TYPES, Tensor

TEXT = {"source": Tensor("string", (-1,))}
IDS = {"ids": Tensor("int32", (-1, -1)), "lengths": Tensor("int32", (-1,))}


def tensor(dtype):
    return {"x": Tensor(dtype, None)}


def read(body, inputs):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(raw, lambda name: inputs)


def refused(body, inputs):
    """The message of a body that can not be read."""
    with pytest.raises(RequestError) as caught:
        read(body, inputs)
    return caught.value.message


def test_rows_of_one_input_are_bare_values():
    found = read({"instances": ["a", {"b64": "YsO8"}]}, TEXT)
    assert found.by_row
    assert found.signature_name == ""
    assert found.inputs["source"].tolist() == [b"a", "bü".encode()]


def test_rows_of_several_inputs_are_objects():
    rows = [{"ids": [5, 3], "lengths": 2}, {"lengths": 1, "ids": [3, 0]}]
    found = read({"signature_name": "decode_ids", "instances": rows}, IDS)
    assert found.signature_name == "decode_ids"
    assert found.inputs["ids"].tolist() == [[5, 3], [3, 0]]
    assert found.inputs["ids"].dtype == np.int32
    assert found.inputs["lengths"].tolist() == [2, 1]


def test_columns_are_whole_tensors_of_any_rank():
    found = read({"inputs": {"ids": [[5, 3]], "lengths": [2], "more": 1}}, IDS)
    assert not found.by_row
    assert found.inputs["ids"].shape == (1, 2)
    assert read({"inputs": ["a", "b"]}, TEXT).inputs["source"].shape == (2,)
    assert read({"inputs": {"source": ["a"]}}, TEXT).inputs["source"].shape == (1,)
    assert read({"inputs": {"b64": "YQ=="}}, TEXT).inputs["source"].tolist() == b"a"
    assert read({"inputs": 2}, tensor("float")).inputs["x"].shape == ()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"{", "JSON Parse error: "),
        (b"[" * 100_000, "JSON Parse error: "),
        (b"[1]", "Is not object"),
        ({"instances": [], "inputs": []}, "only one of 'inputs' or 'instances'"),
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"instances": "a"}, "Expecting 'instances' to be an list/array"),
        ({"instances": []}, "No values in 'instances' array"),
        ({"signature_name": 3, "inputs": 1}, "key must be a string value"),
    ],
)
def test_bodies_of_another_form_are_refused(body, message):
    assert message in refused(body, TEXT)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([[5, 3]], "instances is a plain list, but expecting list of objects"),
        ([{"ids": [5]}], "keys must be equal to: ids,lengths"),
        ([{"ids": [5], "lengths": 1, "a": 1}], "does not have named input: a"),
        (
            [{"ids": [5], "lengths": 1}, {"ids": [5, 3], "lengths": 2}],
            "Failed to process element: 1 key: ids of 'instances' list. Error: "
            "INVALID_ARGUMENT: Expecting tensor size: 1 but got: 2",
        ),
        (
            [{"ids": [[5, 3]], "lengths": 1}, {"ids": [[5], [3]], "lengths": 2}],
            "Expecting shape [1,2] but got: [2,1]",
        ),
        ([{"ids": [5], "lengths": 1}, 5], "Expecting object but got value/list at"),
        ([{"ids": [5, [3]], "lengths": 1}], "unexpected level: 1 expected < 1"),
        ([{"ids": [[5], 3], "lengths": 1}], "3 found at incorrect level: 2"),
        ([{"ids": [[5], [3, 1]], "lengths": 1}], "unexpected size: 2 at level: 1"),
    ],
)
def test_rows_that_are_no_box_are_refused(instances, message):
    assert message in refused({"instances": instances}, IDS)


def test_objects_among_bare_values_are_refused():
    message = refused({"instances": ["a", {"source": "b"}]}, TEXT)
    assert message == "Expecting value/list but got object at item 1 of input list"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[5]], "inputs is a plain value/list, but expecting an object"),
        ({"ids": [[5]]}, "Missing named input: lengths in 'inputs' object."),
        ({"ids": [[5], [5, 3]], "lengths": [1]}, "unexpected size: 2 at level: 1"),
    ],
)
def test_columns_that_do_not_fit_are_refused(inputs, message):
    assert message in refused({"inputs": inputs}, IDS)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float", 3, 3.0),
        ("float", float("inf"), np.inf),
        ("double", 0.1, 0.1),
        ("int32", -(2**31), -(2**31)),
        ("int8", 300, 44),
        ("int64", 2**62, 2**62),
        ("uint8", 7, 7),
        ("uint32", 2**32 - 1, 2**32 - 1),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("bool", True, True),
        ("string", "\x00é", "\x00é".encode()),
    ],
)
def test_values_become_the_type_of_the_input(dtype, value, expected):
    found = read({"inputs": [value]}, tensor(dtype)).inputs["x"]
    assert found.tolist() == [expected]


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int32", 1.0, "JSON Value: 1.0 Type: Number is not of expected type: int32"),
        ("int32", 2**31, "is not of expected type: int32"),
        ("int32", True, "Type: True is not of expected type: int32"),
        ("uint32", -1, "is not of expected type: uint32"),
        ("float", "1", "Type: String is not of expected type: float"),
        ("float", False, "Type: False is not of expected type: float"),
        ("float", 2**24, "16777216 to float without loss of precision"),
        ("float", 1e39, "1e+39 to float without loss of precision"),
        ("double", 10**400, "to double without loss of precision"),
        ("string", 1, "Type: Number is not of expected type: string"),
        ("string", None, "Type: Null is not of expected type: string"),
        ("string", {"b64": 1}, "not formatted correctly for base64 data"),
        ("string", {"b64": "Y*"}, "Unable to base64 decode"),
        ("string", "\ud800", "The surrogate pair in string is invalid"),
        ("bool", 1, "Type: Number is not of expected type: bool"),
        ("int32", {"b64": "YQ=="}, "Type: Object is not of expected type: int32"),
        ("half", 1.0, "Conversion of JSON Value: 1.0 to type: half"),
    ],
)
def test_values_of_another_type_are_refused(dtype, value, message):
    assert message in refused({"inputs": [value]}, tensor(dtype))


def test_bytes_that_are_no_utf8_are_kept():
    found = read(b'{"inputs": ["a\xff\xc3"]}', TEXT)
    assert found.inputs["source"].tolist() == [b"a\xff\xc3"]
    assert read(b'\xef\xbb\xbf{"inputs": ["a"]}', TEXT).inputs["source"].size == 1


def test_base64_may_lack_padding_and_hold_spaces():
    assert read({"inputs": [{"b64": "Y Q"}]}, TEXT).inputs["source"].tolist() == [b"a"]


def test_lists_of_many_levels_are_refused():
    for depth in (17, 300, 900):
        nested = b"[" * depth + b"]" * depth
        message = refused(b'{"inputs": ' + nested + b"}", TEXT)
        assert message == "A tensor may have 16 axes. Received: more."
        assert "Is not object" in refused(nested, TEXT)


def test_long_values_are_cut_in_messages():
    message = refused({"inputs": ["7" * 5000]}, tensor("int32"))
    assert len(message) < 500


def test_single_outputs_come_without_their_name():
    outputs = {"total": np.array([3, 4], "int32")}
    assert write_reply(outputs, by_row=True) == b'{"predictions": [3,\n4]}'
    assert write_reply(outputs, by_row=False) == b'{"outputs": [3, 4]}'


def test_several_outputs_are_objects():
    outputs = {
        "text": np.array([b'a"\n', "é".encode()], object),
        "score": np.array([[0.5, 2.0], [-1e9, 1 / 3]], "float32"),
        "ok": np.array([True, False]),
    }
    assert json.loads(write_reply(outputs, by_row=True))["predictions"] == [
        {"text": 'a"\n', "score": [0.5, 2.0], "ok": True},
        {"text": "é", "score": [-1e9, 0.333333343], "ok": False},
    ]
    assert json.loads(write_reply(outputs, by_row=False))["outputs"] == {
        "text": ['a"\n', "é"],
        "score": [[0.5, 2.0], [-1e9, 0.333333343]],
        "ok": [True, False],
    }


def test_outputs_named_bytes_are_base64():
    raw = b"\xff\x00"
    outputs = {"image_bytes": np.array([raw], object)}
    (row,) = json.loads(write_reply(outputs, by_row=True))["predictions"]
    assert row == {"b64": base64.b64encode(raw).decode()}


def test_text_that_is_no_utf8_is_repaired():
    outputs = {"text": np.array([b"a\xff"], object)}
    assert json.loads(write_reply(outputs, by_row=False)) == {"outputs": ["a\ufffd"]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.2), "0.2"),
        (np.float32(3), "3.0"),
        (np.float32(9e6), "9e+06"),
        (np.float32(0.669074059), "0.669074059"),
        (np.float64(0.1), "0.1"),
        (np.float64(1 / 3), "0.33333333333333331"),
        (np.float32(-1e9), "-1e+09"),
        (np.float32("nan"), "NaN"),
        (np.float32("inf"), "Infinity"),
        (np.float64("-inf"), "-Infinity"),
    ],
)
def test_numbers_are_written_as_the_reference_writes_them(value, expected):
    assert decimal(value) == expected


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "Cannot convert empty tensor map to JSON"),
        ({"a": np.float32(1)}, "Tensor name: a has no shape information"),
        ({"a": np.zeros((0, 2))}, "Tensor name: a has invalid batch size: 0"),
        (
            {"a": np.zeros(2), "b": np.zeros(3)},
            "Tensor name: b has inconsistent batch size: 3 expecting: 2",
        ),
        ({"a": np.zeros(1, "float16")}, "Failed to write JSON value for tensor type"),
    ],
)
def test_outputs_that_are_no_rows_are_refused(outputs, message):
    with pytest.raises(RequestError, match=message):
        write_reply(outputs, by_row=True)


def test_columns_need_no_rows():
    outputs = {"a": np.float32(1), "b": np.zeros((3, 0), "int32")}
    found = json.loads(write_reply(outputs, by_row=False))
    assert found == {"outputs": {"a": 1.0, "b": [[], [], []]}}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.fixed_dictionaries({"b64": st.text()}),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ids", "lengths", "x", ""]), inner)
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(["instances", "inputs"]),
    VALUES,
    st.sampled_from(sorted(NUMPY_TYPES)),
)
def test_any_body_gives_tensors_or_an_error(key, value, dtype):
    body = json.dumps({key: value}).encode()
    for inputs in ({"x": Tensor(dtype, None)}, IDS):
        try:
            found = read_request(body, lambda name, inputs=inputs: inputs)
        except RequestError as error:
            assert error.message
        else:
            assert found.inputs.keys() == inputs.keys()


@given(st.binary(max_size=40))
def test_any_bytes_give_tensors_or_an_error(body):
    with pytest.raises(RequestError):
        read(body, TEXT)
