"""JSON in which nothing is lost or changed in silence."""

import codecs
import math

import pytest

from gc25d.strict_json import parse_json


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": 1, "a": 1}', "a"),
        ('{"t": {"L40S": 1, "H100": 3, "L40S": 2}}', "L40S"),
        ('[1, {"deep": [{"x": null, "y": 0, "x": null}]}]', "x"),
        ('{"a": 1, "\\u0061": 2}', "a"),
        ('{"": 1, "": 2}', ""),
    ],
)
def test_a_key_twice_in_one_object_is_named(text: str, key: str) -> None:
    with pytest.raises(ValueError, match=f"key '{key}' stands twice in one object"):
        parse_json(text.encode())


def test_a_key_in_two_objects_is_no_repetition() -> None:
    text = b'{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}], "A": 4}'
    assert parse_json(text) == {"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}], "A": 4}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_refused_unless_asked_for(number: str) -> None:
    with pytest.raises(ValueError, match=f"{number} is no finite number"):
        parse_json(f'{{"a": [{number}]}}'.encode())
    (found,) = parse_json(f"[{number}]".encode(), finite=False)
    assert not math.isfinite(found)


def test_numbers_keep_their_kind_and_value() -> None:
    found = parse_json(b"[9007199254740993, -7, 1.5e3, 1.0]")
    assert found == [2**53 + 1, -7, 1500.0, 1.0]
    assert [type(number) for number in found] == [int, int, float, float]


def test_a_byte_order_mark_is_passed_over_and_other_encodings_are_refused() -> None:
    assert parse_json(codecs.BOM_UTF8 + '{"a": "ü"}'.encode()) == {"a": "ü"}
    for encoding in ("utf-16", "latin-1"):
        with pytest.raises(ValueError, match="utf-8"):
            parse_json('{"a": "ü"}'.encode(encoding))


def test_text_that_no_file_can_hold_is_refused() -> None:
    assert parse_json(b'["\\ud83d\\ude00"]') == ["\U0001f600"]
    for half in (b'["\\ud83d"]', b'{"\\ude00": 1}'):
        with pytest.raises(ValueError, match="surrogate"):
            parse_json(half)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a": 1', b"[1,]", b"[1] 2", b"\x00", b"[" * 100_000]
)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)
