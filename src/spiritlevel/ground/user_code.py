"""A user's functions and classes by 'module:name', and which of them a file may name.

What a person types, or writes in a program, is imported as it is. What a study file or a store says
may have been written by somebody else, so `check_origin` first asks where the code comes from.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
import os
import pathlib
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import machinery
from types import FunctionType, MethodType, ModuleType
from typing import Any

from . import plugins
from .errors import SpiritlevelError, brief, suggestion

OWN = __name__.partition(".")[0]
# entry points that name modules
GROUPS: tuple[plugins.Group, ...] = ("spiritlevel.measures", "spiritlevel.studies")

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_imported_in: dict[str, str] = {}  # top-level modules, and the working folder at that time


class CodeNotAllowed(SpiritlevelError):
    """A study names code that nobody on this machine has vouched for."""


# -- importing -------------------------------------------------------------------------------


def imported(name: str, *, what: str) -> Any:
    """The object that 'module:attribute' names; `what` is its role, for the errors."""
    module_name, attribute = split(name, what=what)
    _forget_other_folders(module_name)
    with working_folder_importable():
        module = _import(name, module_name, what)
    root = _root(module_name)
    if _is_here(sys.modules[root].__spec__) and root not in {OWN, *map(_root, _vouched_for())}:
        _imported_in[root] = os.getcwd()
    try:
        return getattr(module, attribute)
    except AttributeError:
        origin = getattr(module, "__file__", None) or module.__name__
        where = f"It was imported from {origin!r}."
        raise _has_no(name, vars(module), what=what, where=where) from None


def split(name: str, *, what: str) -> tuple[str, str]:
    """The module and the attribute; both must be plain names.

    >>> split("my_package.nets:make", what="model")
    ('my_package.nets', 'make')
    """
    module_name, _, attribute = name.partition(":")
    parts = [*module_name.split("."), attribute]
    if not all(part.isidentifier() for part in parts):
        raise SpiritlevelError(
            f"A {what} of your own must be written 'module:factory', as in "
            f"'my_package.nets:make'. Got {brief(name)}."
        )
    return module_name, attribute


@contextlib.contextmanager
def working_folder_importable() -> Iterator[None]:
    """Import from the working folder, as `python -m` does and an installed command does not."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _forget_other_folders(module_name: str) -> None:
    """Drop a module that was imported here in another working folder: the present one counts."""
    root = _root(module_name)
    if _imported_in.get(root, os.getcwd()) != os.getcwd():
        del _imported_in[root]
        for name in [n for n in sys.modules if n == root or n.startswith(f"{root}.")]:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and not _is_installed(pathlib.Path(file).resolve()):
                del sys.modules[name]
        importlib.invalidate_caches()


def _import(name: str, module_name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only if the module itself, or a package it is in, is what could not be found.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise _cannot_be_found(error.name, name, what) from error
        raise _import_failed(name, module_name, what, error) from error
    except (Exception, SystemExit) as error:  # a script without a main guard may end the process
        raise _import_failed(name, module_name, what, error) from error


def _cannot_be_found(module_name: str, name: str, what: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The module {module_name!r} of the {what} {name!r} cannot be found in {os.getcwd()!r} or "
        "among the installed packages. Run from the folder that contains it, with dots between "
        "folders and without '.py'."
    )


def _has_no(name: str, names: Iterable[str], *, what: str, where: str) -> SpiritlevelError:
    module_name, attribute = split(name, what=what)
    public = [other for other in names if not other.startswith("_")]
    return SpiritlevelError(
        f"The module {module_name!r} of the {what} {name!r} has no {attribute!r}."
        f"{suggestion(attribute, public, most=3)} {where}"
    )


def _import_failed(
    name: str, module_name: str, what: str, error: BaseException
) -> SpiritlevelError:
    return SpiritlevelError(
        f"The module {module_name!r} of the {what} {name!r} cannot be imported: "
        f"{type(error).__name__}: {error}. Does `python -c 'import {module_name}'` work?"
    )


# -- where code comes from -------------------------------------------------------------------


def check_origin(
    name: str, *, what: str, base: type | None, own: str, received: pathlib.Path | None = None
) -> None:
    """Refuse code unless it was written in the working folder, or an entry point names its module.

    Nothing is imported before the place of every file that runs is known. A function must be
    written there too: a module that only passes on `os.system` does not make it the user's.

    Args:
        name: as 'module:attribute'.
        what: its role, for the error.
        base: the class that a class must derive from; None allows functions only.
        own: the package that asks. Its entry points vouch for what it registers, and for no other
            function of it.
        received: the file of a study, or the folder of a store, that may come from somebody else.
            Code that may have come with it is refused.
    """
    module_name, attribute = split(name, what=what)
    _forget_other_folders(module_name)
    area = _area(module_name, own)
    if area is None:
        if not _exists(module_name):
            imported(name, what=what)  # which says best what is missing
        raise _not_allowed(name, what, f"the module {module_name!r} is not in {os.getcwd()!r}")
    for file in _files_that_run(name, module_name, what):
        _check_place(file, name, what, area=area, received=received)
    _check_defined(name, module_name, attribute, what)
    thing = _unwrapped(imported(name, what=what))
    if isinstance(thing, FunctionType):
        file = pathlib.Path(thing.__code__.co_filename).resolve()
    elif not isinstance(thing, type):
        raise _not_allowed(name, what, f"it is {thing!r}, which no Python file defines")
    elif base is None:
        raise _not_allowed(name, what, "it is a class where a function is needed")
    elif not issubclass(thing, base):
        raise _not_allowed(name, what, f"it is a class that does not derive from {base.__name__}")
    else:  # a network's class is harmless wherever it was written
        file = pathlib.Path(getattr(sys.modules[module_name], "__file__", None) or area).resolve()
    _check_place(file, name, what, area=area, received=received)


def _check_place(
    file: pathlib.Path, name: str, what: str, *, area: pathlib.Path, received: pathlib.Path | None
) -> None:
    """Refuse a file outside the area, of another user, or that may have come with the study."""
    here = pathlib.Path.cwd().resolve()
    if not _is_in(file, area) or (area == here and _is_installed(file)):
        raise _not_allowed(name, what, f"it is defined in {str(file)!r}")
    if received is not None and _is_in(file, received.resolve()):
        raise _not_allowed(name, what, f"{str(file)!r} lies in the folder of the study itself")
    if received is not None and _is_in(file, _came_in(received)):
        raise _not_allowed(name, what, f"{str(file)!r} may have come with the study, beside it")
    if area == here and file.exists() and not _is_of_the_user(file, here):
        raise _not_allowed(name, what, f"{str(file)!r} belongs to another user")


def _came_in(received: pathlib.Path) -> pathlib.Path:
    """The folder of the working folder that holds a study: it may have been unpacked as a whole."""
    here, place = pathlib.Path.cwd().resolve(), received.resolve()
    return here / place.relative_to(here).parts[0] if here in place.parents else place


def _is_of_the_user(file: pathlib.Path, here: pathlib.Path) -> bool:
    """Whether its owner is the user, the owner of the working folder, or the system."""
    if os.name == "nt":  # where Python knows no owners
        return True
    return file.stat().st_uid in {os.geteuid(), here.stat().st_uid, 0}


def _files_that_run(name: str, module_name: str, what: str) -> list[pathlib.Path]:
    """The files that importing a module executes: of its packages, then its own. None runs here."""
    if _root(module_name) == "__main__":
        return []
    part, *below = module_name.split(".")
    with working_folder_importable():
        spec = importlib.util.find_spec(part)  # which imports parents: this one has none
    specs = [spec]
    for each in below:
        places = None if spec is None else spec.submodule_search_locations
        part = f"{part}.{each}"
        # By its own name alone: of a.b without files Python would ask for a, which is not imported
        spec = None if places is None else machinery.PathFinder.find_spec(each, places)
        specs.append(spec)
    if spec is None:
        raise _cannot_be_found(part, name, what)
    origins = [each.origin for each in specs if each is not None and each.has_location]
    return [pathlib.Path(origin).resolve() for origin in origins if origin is not None]


def _check_defined(name: str, module_name: str, attribute: str, what: str) -> None:
    """Refuse a module whose text binds no such name: importing a script would run it in vain."""
    files = _files_that_run(name, module_name, what)
    if not files or files[-1].suffix != ".py":
        return
    try:
        tree = ast.parse(files[-1].read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # which importing it says best
    bound = {each.name for each in ast.walk(tree) if isinstance(each, _DEFINITIONS)}
    bound |= {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.alias)]
    bound |= {(each.asname or each.name).partition(".")[0] for each in imports}
    if attribute not in bound and not bound & {"*", "__getattr__", "globals"}:
        where = f"Its file {str(files[-1])!r} was read, and not imported."
        raise _has_no(name, bound, what=what, where=where)


def _area(module_name: str, own: str) -> pathlib.Path | None:
    """The folder whose code may run: the working folder, or the package of an entry point."""
    root = _root(module_name)
    here = pathlib.Path.cwd().resolve()
    if root == "__main__":  # the program that is running
        return here
    with working_folder_importable():
        spec = importlib.util.find_spec(root)  # imports nothing: the name has no dots
    if _is_here(spec):
        return here
    is_named = root != own and module_name in _vouched_for()
    return next(iter(_locations(spec)), None) if is_named else None


def _vouched_for() -> set[str]:
    return {point.module for group in GROUPS for point in plugins.points(group)}


def _root(module_name: str) -> str:
    return module_name.partition(".")[0]


def _is_here(spec: machinery.ModuleSpec | None) -> bool:
    """Whether a top-level module is in the working folder, and no part of Python."""
    here = pathlib.Path.cwd().resolve()
    return any(place.parent == here and not _is_installed(place) for place in _locations(spec))


def _exists(module_name: str) -> bool:
    with working_folder_importable():
        return importlib.util.find_spec(_root(module_name)) is not None


def _locations(spec: machinery.ModuleSpec | None) -> list[pathlib.Path]:
    if spec is None:
        return []
    files = spec.submodule_search_locations
    if files is None:
        files = [spec.origin] if spec.has_location and spec.origin is not None else []
    return [pathlib.Path(file).resolve() for file in files]


def _unwrapped(thing: Any) -> Any:
    """The function itself, below decorators, partial arguments and bound methods."""
    while True:
        if isinstance(thing, functools.partial):
            thing = thing.func
        elif isinstance(thing, MethodType):
            thing = thing.__func__
        elif not isinstance(thing, type) and hasattr(thing, "__wrapped__"):
            thing = inspect.unwrap(thing)
        else:
            return thing


def _is_in(file: pathlib.Path, place: pathlib.Path) -> bool:
    return file == place or place in file.parents


def _is_installed(file: pathlib.Path) -> bool:
    """Whether it belongs to Python or an installed package; the working folder may hold those."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return any(_is_in(file, pathlib.Path(folder).resolve()) for folder in folders)


def _not_allowed(name: str, what: str, why: str) -> CodeNotAllowed:
    return CodeNotAllowed(
        f"The study's {what} {name!r} would run code that is not yours as far as can be seen: "
        f"{why}. Without asking, a study runs functions and classes that are written in the "
        "working folder, and names that an installed package registers. If you trust this study, "
        "give --allow-code, or allow_code=True in Python."
    )
