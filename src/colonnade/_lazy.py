"""Public names that are imported when first asked for, so that `import colonnade` stays light."""

from collections.abc import Callable

import lazy_loader


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, as its stub lists them.

    A name whose module needs an extra that is not installed raises `MissingExtra`.
    """
    lazily, listed, names = lazy_loader.attach_stub(package, file)

    def explained(name: str) -> object:
        try:
            return lazily(name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from colonnade.errors import MissingExtra

            raise MissingExtra("torch", f"{package}.{name}") from error

    return explained, listed, names
