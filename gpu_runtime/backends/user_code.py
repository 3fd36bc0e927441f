"""User code loaded by path under a private module name, so that it shadows nothing of ours and nothing of others'.

What holds:

- The file becomes ``_headrace_model_<label>_<n>``, a module of its own for each load; two loads share no state.
- ``from . import helper`` finds a sibling file, at any time, private to this load. It is the sure way.
- ``import helper`` finds a sibling while the load lasts (module level and ``Model.__init__``, unpickling included).
  The folder is last on ``sys.path``, so an installed or a Headrace module of that name comes first. When the load
  ends, such siblings leave ``sys.modules`` and the next model gets its own; the code keeps its references.
- Not supported: a first ``import helper`` inside ``infer``, and pickling objects of sibling classes after the load.
- Loads go one at a time in a process, and write no byte code into the model's folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from schemas.errors import DeviceError, ModelLoadError

__all__ = ["UserModule", "failing_line", "load_user_module"]

# Imports are one table for the whole process. Reentrant: a model may load another one.
_IMPORTS = threading.RLock()
_NUMBERS = itertools.count()


class UserModule:
    """A loaded file and the siblings that it imported relatively; they are forgotten on `close`."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def close(self) -> None:
        prefix = f"{self.module.__name__}."
        for name in list(sys.modules):
            if name == self.module.__name__ or name.startswith(prefix):
                del sys.modules[name]


@contextmanager
def load_user_module(path: Path, *, label: str) -> Iterator[UserModule]:
    """Imports ``path``; inside the block its siblings can be imported absolutely. May block on another load.

    Raises:
        ModelLoadError: naming file, line and cause.
        DeviceError: the file raised it.
    """
    folder = path.parent.resolve()
    with _IMPORTS, _siblings_importable(folder):
        yield _import(path.resolve(), folder, label)


def _import(path: Path, folder: Path, label: str) -> UserModule:
    word = re.sub(r"\W", "_", label)
    name = f"_headrace_model_{word}_{next(_NUMBERS)}"
    # A search location makes it a package, and so gives it relative imports.
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"{path} is not a Python file; name one that ends in .py in default_filename")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    user_module = UserModule(module)
    try:
        spec.loader.exec_module(module)
    except DeviceError:
        user_module.close()
        raise
    except (Exception, SystemExit) as error:
        user_module.close()
        raise ModelLoadError(f"{failing_line(error, folder) or path}: {type(error).__name__}: {error}") from error
    return user_module


@contextmanager
def _siblings_importable(folder: Path) -> Iterator[None]:
    known = dict(sys.modules)
    write_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = write_bytecode
        # User code may have put other things on the path; only our own entry, the last of its kind, goes.
        for index in range(len(sys.path) - 1, -1, -1):
            if sys.path[index] == str(folder):
                del sys.path[index]
                break
        for name, module in list(sys.modules.items()):
            if known.get(name) is not module and not name.startswith("_headrace_model_") and _lies_in(module, folder):
                del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    spec = getattr(module, "__spec__", None)
    places = [getattr(spec, "origin", None), *(getattr(spec, "submodule_search_locations", None) or ())]
    return any(isinstance(place, str) and Path(place).is_relative_to(folder) for place in places)


def failing_line(error: BaseException, folder: Path) -> str | None:
    """``file:line`` of the deepest frame in ``folder`` that an exception passed through; None when there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    inside = folder.resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(inside):
            return f"{frame.filename}:{frame.lineno}"
    return None
