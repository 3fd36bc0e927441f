"""ARCHITECTURE.md names what there is: every module once, every word of the glossary."""

from __future__ import annotations

import re
from collections import Counter

from headrace.guard import PACKAGES
from tests.guards.sources import ROOT, modules

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
NAMED = Counter(re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/]+\.py)`", TEXT))


def test_every_module_is_named_once() -> None:
    there = {str(path.relative_to(ROOT)) for path in modules() if path.name != "__init__.py"}
    assert there - set(NAMED) == set(), "give each a line in ARCHITECTURE.md"
    assert set(NAMED) - there == set(), "ARCHITECTURE.md names modules that are gone"
    assert [name for name, times in NAMED.items() if times > 1] == []


def test_each_module_has_one_sentence() -> None:
    lines = re.findall(r"^- `[\w/]+\.py`: (.+)$", TEXT, re.MULTILINE)
    assert len(lines) == len(NAMED)
    assert [line for line in lines if not line.endswith(".") or ". " in line] == []


def test_a_records_life_has_ten_steps() -> None:
    life = TEXT.partition("## One record's life")[2].partition("\n## ")[0]
    assert re.findall(r"^(\d+)\. ", life, re.MULTILINE) == [str(step) for step in range(1, 11)]


def test_the_glossary_has_the_words_of_the_code() -> None:
    words = re.findall(
        r"[a-z]+(?: letter)?",
        "record, request, response, model, version, instance, backend, batch, row, stage, route, join, node, "
        "assignment, ledger, deadline, reply, dead letter",
    )
    glossary = TEXT.partition("## Glossary")[2]
    assert [word for word in words if not re.search(rf"^\|[^|]*\b{word}\b[^|]*\|", glossary, re.MULTILINE)] == []


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(path.name[:4] for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
