import sys
from pkgutil import iter_modules

import colonnade

LEFT_BY_THE_LANGUAGE = {"annotations", "TYPE_CHECKING"}


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert list(colonnade.__all__) == sorted(set(colonnade.__all__))


def test_every_exported_name_resolves() -> None:
    assert [name for name in colonnade.__all__ if not hasattr(colonnade, name)] == []


def test_no_exported_name_can_be_hidden_by_a_submodule() -> None:
    modules = {module.name for module in iter_modules(colonnade.__path__)}
    assert modules & set(colonnade.__all__) == {"attacks", "defences", "models"}


def test_there_are_no_public_names_but_the_exported_ones() -> None:
    # vars() as well as dir(): a module's own __dir__ may hide a name that can still be reached.
    visible = {name for name in {*vars(colonnade), *dir(colonnade)} if not name.startswith("_")}
    submodules = {name for name in visible if getattr(colonnade, name) is sys.modules.get(f"colonnade.{name}")}
    families = {"attacks", "defences", "models"}
    assert visible - submodules - LEFT_BY_THE_LANGUAGE == set(colonnade.__all__) - families - {"__version__"}


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    assert not hasattr(colonnade, "no_such_name")
