"""Reading what is to be published."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.publish_sources import Draft, in_pieces, json_text, jsonl_file, raw_files
from schemas.errors import ConfigError, DecodeError, TooLargeError

LIMIT = 1000


def test_each_line_is_a_record_and_blank_ones_are_none(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'{"x": 1}\r\n\n  \n{"x": 2}')
    drafts = list(jsonl_file(file, LIMIT))
    assert [(draft.value, draft.source) for draft in drafts] == [(b'{"x": 1}', f"{file}:1"), (b'{"x": 2}', f"{file}:4")]
    assert {draft.content_type for draft in drafts} == {"application/json"}
    assert drafts[-1].consumed == file.stat().st_size


@pytest.mark.parametrize(
    ("line", "expected"),
    [(b"{x}", "is not JSON"), (b"[1]", "must be a JSON object such as .* got list"), (b"\xff", "is not JSON")],
)
def test_a_bad_line_is_refused_with_file_and_number(tmp_path: Path, line: bytes, expected: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'{"x": 1}\n' + line + b"\n")
    drafts = jsonl_file(file, LIMIT)
    assert next(drafts).value == b'{"x": 1}'
    with pytest.raises(DecodeError, match=rf"in\.jsonl:2 {expected}"):
        next(drafts)


def test_a_line_that_fits_in_no_record_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'{"x": "' + b"a" * 5000 + b'"}\n')
    with pytest.raises(TooLargeError, match=r"in\.jsonl:1 has at least 1002 bytes .* a record of 1000"):
        next(jsonl_file(file, LIMIT))


def test_lines_are_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"x": 1}\n')))
    assert [draft.source for draft in jsonl_file(Path("-"), LIMIT)] == ["-:1"]


def test_files_go_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(b"\x00\xff")
    (draft,) = raw_files([file], LIMIT)
    assert draft == Draft(b"\x00\xff", "application/octet-stream", str(file), 1)


def test_a_file_that_is_too_large_or_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(LIMIT + 1))
    with pytest.raises(TooLargeError, match=r"large has at least 1001 bytes"):
        list(raw_files([file], LIMIT))
    with pytest.raises(ConfigError, match=r"nowhere cannot be read: No such file"):
        list(raw_files([tmp_path / "nowhere"], LIMIT))


def test_a_json_text_must_be_an_object() -> None:
    assert next(json_text('{"x": 1}')).value == b'{"x": 1}'
    with pytest.raises(DecodeError, match="--json must be a JSON object"):
        next(json_text("3"))


async def test_records_before_a_bad_one_are_handed_over_before_it_raises() -> None:
    def drafts() -> Iterator[Draft]:
        for number in range(450):
            yield Draft(b"{}", "", str(number), number)
        raise DecodeError("line 451")

    sizes: list[int] = []

    async def read() -> None:
        async for piece in in_pieces(drafts()):
            sizes.extend([len(piece)])

    with pytest.raises(DecodeError, match="line 451"):
        await read()
    assert sum(sizes) == 450
    assert max(sizes) <= 200
