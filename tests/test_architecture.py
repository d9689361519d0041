import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

from colonnade import errors

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
}
EXEMPT = {"colonnade.__init__", "colonnade.__main__"}

# A line may import itself and the lines below; what "|" parts may not import each other.
LAYERS = """
    cli cli_functional cli_network console
    experiment
    audit testing
    catalogue
    attacks | defences
    models
    align
    run session
    party hooks checkpoint
    wire
    crypto | privacy | data
    alignment curves generators table secret storage errors _version
"""
PLACES = {
    name: (depth, part)
    for depth, line in enumerate(LAYERS.split("\n"))
    for part, names in enumerate(line.split("|"))
    for name in names.split()
}
NEVER = {"attacks": {"audit", "run", "session", "data"}}

UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib.externals.cloudpickle"}
UNPICKLING_CALLS = {"joblib.load", "pandas.read_pickle"}
HEAVY = ("dp_accounting", "gmpy2", "grpc", "matplotlib", "numba", "pandas", "polars", "ray", "sklearn", "torch")


def imports(module: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every import in a module, wherever it stands, as (the local name, what it means)."""
    package = module.rpartition(".")[0]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                for alias in names:
                    yield (alias.asname or alias.name), alias.name
            case ast.ImportFrom(origin, names, level):
                start = resolve_name("." * level + (origin or ""), package)
                for alias in names:
                    yield (alias.asname or alias.name), f"{start}.{alias.name}"
            case ast.Call(ast.Name("__import__" | "import_module"), [ast.Constant(str(name)), *_]) | ast.Call(
                ast.Attribute(attr="import_module"), [ast.Constant(str(name)), *_]
            ):
                yield "", resolve_name(name, package)


def wrong_arrows(module: str, tree: ast.AST) -> list[str]:
    """What a module imports from Colonnade and may not."""
    layer = module.split(".")[1]
    targets = [f"{target}.".split(".")[1] for _, target in imports(module, tree) if target.split(".")[0] == "colonnade"]
    return [f"{module} imports {target or 'the package itself'}" for target in targets if not may_import(layer, target)]


def may_import(layer: str, target: str) -> bool:
    if not {layer, target} <= PLACES.keys() or target in NEVER.get(layer, ()):
        return False
    (own_depth, own_part), (depth, part) = PLACES[layer], PLACES[target]
    return depth > own_depth or (depth, part) == (own_depth, own_part)


def unpickling(module: str, tree: ast.AST) -> list[str]:
    """Where a module unpickles, or might."""
    bindings = list(imports(module, tree))
    meaning = dict(bindings)
    found = [
        f"{module} imports {target}"
        for _, target in bindings
        if any(f"{target}.".startswith(f"{name}.") for name in UNPICKLERS) or target in UNPICKLING_CALLS
    ]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        root, dot, rest = ast.unparse(call.func).partition(".")
        name = meaning.get(root, root) + dot + rest
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if (
            name in UNPICKLING_CALLS
            or (name == "torch.load" and given.get("weights_only") != "True")
            or given.get("allow_pickle", "False") != "False"
            or (name == "numpy.load" and (len(call.args) > 2 or None in given))
        ):
            found.append(f"{module} calls {ast.unparse(call)}")
    return found


def drawn(docstring: str) -> dict[str, tuple[str, int]]:
    """The errors in a drawn tree: each one's parent and the exit code it has or inherits."""
    tree: dict[str, tuple[str, int]] = {}
    above = [(-1, "Exception", 1)]
    for line in docstring.splitlines():
        if match := re.match(r"[ │├└─]*[├└]── (?=([A-Z]\w+))|\s+(?=([A-Z]\w+)$)", line):
            name, column = match[1] or match[2], match.end()
            while above[-1][0] >= column:
                above.pop()
            _, parent, inherited = above[-1]
            code = re.search(r"exit (\d+)$", line)
            above.append((column, name, int(code[1]) if code else inherited))
            tree[name] = (parent, above[-1][2])
    return tree


def test_imports_go_down_only() -> None:
    assert {"colonnade.errors", "colonnade.__init__"} <= set(MODULES)
    assert [arrow for name, tree in MODULES.items() if name not in EXEMPT for arrow in wrong_arrows(name, tree)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("colonnade.run", "import colonnade.cli"),
        ("colonnade.run", "import colonnade.cli as shell"),
        ("colonnade.wire.codec", "from colonnade.party import Party"),
        ("colonnade.wire.codec", "from colonnade import party"),
        ("colonnade.wire.codec", "from ..party import Party"),
        ("colonnade.wire.__init__", "from .. import party"),
        ("colonnade.models.split", "def fit():\n    from colonnade.attacks.base import Attack"),
        ("colonnade.models.split", "if TYPE_CHECKING:\n    from colonnade.audit import score"),
        ("colonnade.models.split", "importlib.import_module('colonnade.audit.score')"),
        ("colonnade.models.split", "import_module('colonnade.audit')"),
        ("colonnade.attacks.base", "from colonnade.defences.noise import GradientNoise"),
        ("colonnade.defences.noise", "from colonnade.attacks.base import Attack"),
        ("colonnade.privacy.ledger", "from colonnade.data import partition"),
        ("colonnade.attacks.base", "from colonnade.run import simulate"),
        ("colonnade.attacks.base", "from colonnade.data.datasets import load"),
        ("colonnade.attacks.base", "import colonnade.audit"),
        ("colonnade.cli", "import colonnade"),
        ("colonnade.cli", "from colonnade import Table"),
        ("colonnade.cli", "from colonnade.unplaced import name"),
        ("colonnade.unplaced", "from colonnade.errors import DataError"),
    ],
)
def test_a_wrong_arrow_is_found(module: str, source: str) -> None:
    assert len(wrong_arrows(module, ast.parse(source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("colonnade.cli", "from colonnade.experiment.plan import read"),
        ("colonnade.cli", "from colonnade._version import __version__"),
        ("colonnade.attacks.direct", "from colonnade.attacks.base import Attack"),
        ("colonnade.attacks.direct", "from .base import Attack"),
        ("colonnade.party", "from colonnade.hooks import Defence"),
        ("colonnade.hooks", "from colonnade.party import Party"),
        ("colonnade.table", "from colonnade.errors import DataError"),
        ("colonnade.testing", "from colonnade.audit.score import score"),
        ("colonnade.errors", "import colonnades.cli, numpy"),
    ],
)
def test_a_right_arrow_is_let_through(module: str, source: str) -> None:
    assert wrong_arrows(module, ast.parse(source)) == []


def test_nothing_unpickles() -> None:
    assert [place for name, tree in MODULES.items() for place in unpickling(name, tree)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import cloudpickle as c",
        "from dill import loads",
        "import shelve",
        "from marshal import loads",
        "importlib.import_module('pickle')\nimportlib.import_module('json')",
        "from joblib.externals import cloudpickle",
        "import joblib\njoblib.load(path)",
        "from joblib import load",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.load(path, weights_only=False)",
        "from torch import load\nload(path, weights_only=safe)",
        "import torch\ntorch.load(path, **options)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, None, True)",
        "import numpy as np\nnp.load(path, **options)",
        "import pandas as pd\npd.read_pickle(path)",
    ],
)
def test_something_that_unpickles_is_found(source: str) -> None:
    assert len(unpickling("colonnade.models.base", ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import joblib\njoblib.Parallel(2)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import json\njson.load(file)",
        "from safetensors.numpy import load\nload(data)",
    ],
)
def test_something_that_loads_without_pickle_is_let_through(source: str) -> None:
    assert unpickling("colonnade.models.base", ast.parse(source)) == []


def test_noise_for_a_promise_is_had_from_mechanisms_alone() -> None:
    """Everything that draws noise without charging a ledger, and the modules that may use it."""
    bare = {
        "colonnade.privacy.discrete_gaussian.draw": {"colonnade.privacy.mechanisms"},
        "colonnade.privacy.discrete_kernel.fill": {"colonnade.privacy.discrete_gaussian"},
        "colonnade.privacy.mechanisms._noisy": set(),
        "colonnade.privacy.mechanisms._standard_noise": {"colonnade.defences.noise"},
        "colonnade.defences.noise.blur": set(),
    }
    found = {module: {target for _, target in imports(module, tree)} for module, tree in MODULES.items()}
    assert {name: {module for module in found if name in found[module]} for name in bare} == bare


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = f"import sys, colonnade; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_error_is_drawn_under_its_parent_with_its_exit_code() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    assert drawn(errors.__doc__ or "") == {each.__name__: (each.__base__.__name__, each.exit_code) for each in classes}


def test_an_error_that_is_drawn_without_a_code_has_its_parents() -> None:
    tree = """Prose.

    Root
    ├── Left         words            exit 2
    │   └── Inner    more words
    └── Right        Words            exit 3

    More prose.
    """
    expected = {"Root": ("Exception", 1), "Left": ("Root", 2), "Inner": ("Left", 2), "Right": ("Root", 3)}
    assert drawn(tree) == expected


def test_every_module_says_what_it_is() -> None:
    assert [name for name, tree in MODULES.items() if not ast.get_docstring(tree)] == []
