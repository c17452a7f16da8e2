from pathlib import Path

import pytest

from vdisagg.bench.datasets.files import Entry, read
from vdisagg.errors import UsageError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "set.json"
    path.write_text(text)
    return path


def test_a_line_is_an_entry_and_blank_ones_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, '\n{"messages": []}\n\n{"messages": [1]}\n')
    assert read(path) == (
        "conversations",
        [Entry(2, b'{"messages": []}'), Entry(4, b'{"messages": [1]}')],
    )


def test_an_arrays_entries_know_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path, '[\n {"conversations":\n []},\n {"a": 1}, {"a": 1},\n {"a": 1}]')
    form, entries = read(path)
    assert form == "conversations"
    assert [entry.line for entry in entries] == [2, 4, 4, 5]
    assert entries[0].raw == b'{"conversations":\n []}'


def test_a_mark_at_the_beginning_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_bytes(b'\xef\xbb\xbf[{"messages": []}]')
    assert read(path)[0] == "conversations"


@pytest.mark.parametrize(
    ("first", "form"),
    [
        ('{"id": "x", "conversations": []}', "conversations"),
        ('{"messages": []}', "conversations"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}', "trace"),
    ],
)
def test_the_first_entry_says_the_form(tmp_path: Path, first: str, form: str) -> None:
    assert read(written(tmp_path, first))[0] == form


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "set.json: holds no entries; expected are conversations"),
        ("[]", "set.json: holds no entries; expected are"),
        ("[1", "set.json: not a JSON array: Input data was truncated; expected are"),
        ("\nhello", "set.json:2: not a JSON object: JSON is malformed"),
        ("[1]", "set.json:1: not a JSON object: Expected `object`, got `int`; expected are"),
        ('{"prompt": "x", "n": 1}', "set.json:1: of no known form, it has prompt, n; expected"),
        ("{}", "set.json:1: of no known form, it has nothing; expected are"),
    ],
)
def test_what_is_no_data_set_is_refused_with_file_line_and_what_is_expected(
    tmp_path: Path, text: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{tmp_path}/{message}")


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: can't be read: No such file"):
        read(tmp_path / "none.json")
