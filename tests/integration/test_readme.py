"""README.md as a newcomer follows it, block after block, and its tables against what they describe."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.settings import settings_table
from schemas import errors
from schemas import record as contract
from schemas.errors import HeadraceError, error_from_code
from schemas.model import ModelConfig
from tests.support.readme import Block, Newcomer, blocks, same

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = list(blocks(README))


@pytest.mark.timeout(180)
def test_a_newcomer_can_follow_the_tour_and_sees_what_it_shows(tmp_path: Path) -> None:
    if not (Path(sys.prefix) / "bin" / "activate").exists():
        pytest.skip("the tour activates a virtual environment, and these tests run in none")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    newcomer = Newcomer(tmp_path)
    try:
        for block in BLOCKS:
            if "output" in block.marks:
                newcomer.check(block)
            else:
                newcomer.follow(block)
    finally:
        newcomer.leave()
    # up has been told to stop by Ctrl-C, and did so in order
    assert {terminal: process.returncode for terminal, process in newcomer.started.items()} == {1: 0, 3: 0}


def test_every_block_of_commands_is_run() -> None:
    assert [block.line for block in BLOCKS if block.language in ("sh", "bash", "console") and not _is_run(block)] == []
    assert sum(_is_run(block) for block in BLOCKS) > 10


def _is_run(block: Block) -> bool:
    return bool({"run", "background", "make"} & set(block.marks))


def test_the_make_targets_exist() -> None:
    (shown,) = (block for block in BLOCKS if "make" in block.marks)
    targets = re.findall(r"^make (\w+)", shown.text, re.MULTILINE)
    assert targets == ["demo", "test"]
    known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    contributing = re.findall(r"`make (\w+)", (ROOT / "CONTRIBUTING.md").read_text())
    assert set(targets) | set(contributing) <= set(known)


def test_what_differs_from_run_to_run_is_left_out_and_nothing_else() -> None:
    assert same('{"id":"' + "a" * 32 + '","partition":1,"offset":7}') == ['{"id":"ID",PLACE}']
    assert same("a  1\nb") == ["a 1", "b"]
    assert same("failed 3 of 12 in 2s", shape=True) == ["failed N of N in N"]
    assert same("no price for 'pear'", shape=True) == ["no price for 'pear'"]


def test_the_settings_are_those_there_are() -> None:
    assert settings_table() in README, "run: python -m headrace.settings, and put the table into README.md"


def test_every_extra_is_told() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name for name in project["optional-dependencies"] if f"| `{name}` |" not in README} == set()


def test_every_header_of_the_contract_is_told() -> None:
    headers = {value for name, value in vars(contract).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in headers - {contract.DEFAULT_NAMESPACE} if f"`{name}`" not in README} == set()


def test_every_field_of_a_model_is_told() -> None:
    assert {name for name in ModelConfig.model_fields if f"`{name}`" not in README} == {"name"}


def test_every_code_of_a_records_error_is_told_and_whether_it_is_tried_again() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (yes|no) \|$", README, re.MULTILINE))
    for code, again in told.items():
        error = error_from_code(code, "")
        assert (error.code, "yes" if error.retriable else "no") == (code, again)
    kinds = (getattr(errors, name) for name in errors.__all__)
    codes = {kind.code for kind in kinds if isinstance(kind, type) and issubclass(kind, HeadraceError)}
    # Codes that no record carries, and one that nothing raises until records can be cancelled.
    assert codes - set(told) == {"internal", "config", "bad_request", "unknown_model", "device", "cancelled"}


def test_links_lead_somewhere() -> None:
    anchors = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in _titles()}
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in anchors
        else:
            assert (ROOT / target).exists(), target


def _titles() -> list[str]:
    return re.findall(r"^#+ (.+)$", README, re.MULTILINE)
