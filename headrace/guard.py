"""The start-up guard of the flat layout: each of our top-level packages must be ours.

Our import names are generic words (``schemas``, ``pipelines``), so a stranger's package may stand before one of them
on the import path. The guard finds that out before the first odd ImportError does. It looks and imports none of them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PACKAGES", "check_packages"]

PACKAGES = ("headrace", "infra", "consumers", "pipelines", "gpu_runtime", "schemas")
"""Every top-level package of the distribution, from the top floor down."""

_ROOT = Path(__file__).resolve().parent.parent


def check_packages(names: Sequence[str] = PACKAGES) -> None:
    """Checks that each name imports from the folder that Headrace itself lies in. Takes about a millisecond.

    Raises:
        ConfigError: naming the intruder, where it lies and, if one owns it, its distribution.
    """
    for name in names:
        found = _location(name)
        if found != _ROOT / name:
            raise _config_error(_complaint(name, found))


def _location(name: str) -> Path | None:
    """The folder (or the file, for a plain module) that ``import name`` would take or has taken; None for nowhere."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # something without a spec was put into sys.modules under our name
        return Path(getattr(sys.modules[name], "__file__", None) or f"<{name} in sys.modules>")
    if spec is None:
        return None
    if spec.origin is None:  # a folder without __init__.py
        return next((Path(folder) for folder in spec.submodule_search_locations or ()), None)
    origin = Path(spec.origin).resolve()
    return origin.parent if origin.name == "__init__.py" else origin


def _complaint(name: str, found: Path | None) -> str:
    if found is None:
        return (
            f"the import package {name!r} of Headrace is missing from {_ROOT}: the installation is broken; "
            "install Headrace again in an environment of its own"
        )
    from importlib.metadata import packages_distributions  # a tenth of a second: only where something is wrong

    owners = sorted(set(packages_distributions().get(name, ())) - {"headrace"})
    owner = f", installed by the distribution {', '.join(owners)}," if owners else ""
    return (
        f"the import package {name!r} is taken by {found}{owner} and is not Headrace's own in {_ROOT}: "
        "rename or remove it, start from another folder, or install Headrace in an environment of its own "
        "(container, pipx, venv)"
    )


def _config_error(message: str) -> Exception:
    """Our ConfigError; loaded by path where ``schemas`` itself is the name that was taken."""
    path = _ROOT / "schemas" / "errors.py"
    if _location("schemas") == path.parent:
        from schemas.errors import ConfigError

        return ConfigError(message)
    spec = importlib.util.spec_from_file_location("_headrace_schemas_errors", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}: install Headrace again; and {message}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    error: Exception = module.ConfigError(message)
    return error
