"""Functions by name: what a worker of a cluster is told in place of code, and which version must be there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from types import FunctionType
from typing import Any

from colonnade._version import code_version
from colonnade.errors import PlanError


def require_version(version: str) -> None:
    """Refuse to answer a process that has another version of this package."""
    if version != code_version():
        raise PlanError(
            f"A worker should have colonnade {version}, as the process that asks has, but it has {code_version()}. "
            "Install the same version on every worker."
        )


@dataclass(frozen=True)
class NamedFunction:
    """A function by the name under which every worker that has the same package finds it, and what is bound to it."""

    module: str
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    def found(self) -> Callable[..., Any]:
        """The function with what is bound to it."""
        arguments = [_found(each) for each in self.arguments]
        return partial(_imported(self.module, self.name), *arguments, **{k: _found(v) for k, v in self.keywords})


def _found(value: Any) -> Any:
    return value.found() if isinstance(value, NamedFunction) else value


def _imported(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def named_function(function: Callable[..., Any]) -> NamedFunction:
    """The name of a function; refused where a worker could not import it, because source does not travel."""
    if isinstance(function, partial):
        inner = named_function(function.func)
        arguments = (*inner.arguments, *map(_inside, function.args))
        keywords = {**dict(inner.keywords), **{k: _inside(v) for k, v in function.keywords.items()}}
        return replace(inner, arguments=arguments, keywords=tuple(keywords.items()))
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found = None
    with suppress(ImportError, AttributeError):
        found = _imported(str(module), name)
    if module == "__main__" or found is not function:
        raise PlanError(
            "A cluster's workers import a function by its name, so it should stand at the top of an installed module, "
            f"but {name or function!r} is in {module or 'no module'}. Move it into a module that every worker has, or "
            "use the engine 'local'."
        )
    return NamedFunction(str(module), name)


def _inside(value: Any) -> Any:
    return named_function(value) if isinstance(value, FunctionType | partial) else value
