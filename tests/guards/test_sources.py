"""House rules that a linter does not know, checked on the sources themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.guard import PACKAGES
from tests.guards.sources import ROOT, modules, tracked_files

# House style says about 300 and a screen; these leave slack, so that only what has grown out of hand fails.
MODULE_LINES = 420
FUNCTION_LINES = 90

# Spelled in pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile(r"(?<![\w.$}>~-])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me"]) + r")/")
REGISTRY_HOSTS = re.compile(
    "|".join(["pypi" + r"\.org", "python" + r"hosted\.org", "repo1?" + r"\.maven\.", "registry" + r"\.npmjs\."])
)
UNFINISHED = re.compile(
    r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "raise NotImplemented" + "Error"]) + r")\b"
)


def text_of(path: Path) -> str:
    """The file's text; "" for a binary one."""
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode(errors="replace")


def found_in(paths: list[Path], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in paths
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_tracked_file_holds_a_machine_path() -> None:
    assert found_in(tracked_files(), MACHINE_PATHS) == []


def test_no_tracked_file_names_a_package_registry() -> None:
    assert found_in(tracked_files(), REGISTRY_HOSTS) == []


def test_nothing_is_left_unfinished() -> None:
    assert found_in(tracked_files(), UNFINISHED) == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert MACHINE_PATHS.search("cd /" + "work/main")
    assert MACHINE_PATHS.search('"/' + 'home/ann/x"')
    assert not MACHINE_PATHS.search("$PWD/" + "work/x and models/" + "home/y")
    assert REGISTRY_HOSTS.search("https://" + "pypi" + ".org/simple")
    assert UNFINISHED.search("# TO" + "DO: later")


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line)] == []
    assert len(pins) > 30
    assert [line for line in pins if re.match(r"(torch|nvidia|cuda|onnxruntime-gpu|headrace)\b", line)] == []


def test_modules_stay_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in modules(*PACKAGES, "benchmarks")}
    assert [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > MODULE_LINES] == []


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body; a docstring is contract, not code, and does not count."""
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        if len(function.body) == 1:
            return 0
        first = function.body[1]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{function.lineno}: {function.name} has {lines_of(function)} lines"
        for path in modules(*PACKAGES, "benchmarks")
        for function in functions(ast.parse(path.read_text()))
        if lines_of(function) > FUNCTION_LINES
    ]
    assert long == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in modules(*PACKAGES, "benchmarks")
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def logger_names(path: Path) -> Iterator[tuple[int, str | None]]:
    """Line and literal name of each ``getLogger`` call; None where the name is computed."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            if name == "getLogger":
                given = node.args[0] if node.args else None
                literal = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None
                yield node.lineno, literal


LOG_SETUP = ROOT / "infra" / "telemetry" / "logs.py"  # configures the root logger and whichever it is told to
# Loggers that are not ours but that we quieten or configure.
FOREIGN_LOGGERS = re.compile(r"(aiokafka|opentelemetry|asyncio|uvicorn)(\.|$)")


def test_loggers_are_named_headrace() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: getLogger({name!r})"
        for path in modules()
        if path != LOG_SETUP
        for line, name in logger_names(path)
        if name is None or not (re.match(r"headrace(\.|$)", name) or FOREIGN_LOGGERS.match(name))
    ]
    assert wrong == [], "name the logger 'headrace.<what>': __name__ is a generic word here"
