import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

from colonnade import errors

SOURCE = Path(__file__).parents[1] / "src"
EXEMPT = {"colonnade.__init__", "colonnade.__main__"}

# A line may import itself and the lines below; what "|" parts may not import each other.
LAYERS = """
    cli
    experiment | deploy
    plans
    auditing testing
    catalogue
    attacks | defences
    models
    align
    runtime
    wire
    crypto | privacy | data
    curves tables roles parameters progress text secret storage devices memory errors _version _lazy
"""
PLACES = {
    name: (depth, part)
    for depth, line in enumerate(LAYERS.split("\n"))
    for part, names in enumerate(line.split("|"))
    for name in names.split()
}
NEVER = {"attacks": {"auditing", "runtime.simulate", "runtime.join", "runtime.session", "data"}}

UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib.externals.cloudpickle"}
UNPICKLING_CALLS = {"joblib.load", "pandas.read_pickle"}

RUN_BY_PARTIES = {"align", "crypto", "defences", "models", "privacy", "runtime", "wire"}
DRAWS = (
    r"(secrets|random|uuid)\..+",
    r"os\.(urandom|getrandom)",
    r"numpy\.random\.(?!Generator$|[gs]et_state$)\w+",
    r"torch\.(rand(n|int|perm)?(_like)?|normal|bernoulli|multinomial|poisson|manual_seed|Generator)",
    r"cryptography\..+\.(generate|random)\w*",
    r"colonnade\.privacy\.randomness\.\w+\.(seeded|system|from_key)",
)
SOURCES = {
    "secrets.token_bytes": {
        "align.identifiers",
        "crypto.curve",
        "crypto.sampling",
        "crypto.transfers",
        "models.glm.openings",
        "models.trees.hinted_sums",
        "privacy.randomness",
        "wire.grpc.rendezvous",
        "wire.recording.storage_key",
    },
    "secrets.token_hex": {"runtime.checkpoint", "runtime.clusters", "runtime.workers", "wire.recording.storage_key"},
    "secrets.randbits": {"crypto.paillier"},
    "secrets.randbelow": {"crypto.paillier"},
    "colonnade.privacy.randomness.Randomness.system": {"runtime.party", "runtime.session"},
    "colonnade.privacy.randomness.Randomness.from_key": {
        "align.state",
        "defences.noise",
        "models.functional.moments_masked",
        "runtime.session",
    },
    # A simulation's seed, and rows that a public seed holds out.
    "colonnade.privacy.randomness.Randomness.seeded": {"runtime.protocol", "models.evaluation"},
    "colonnade.privacy.randomness.PublicRandomness.seeded": {"runtime.party"},
    # Keys of certificates.
    "cryptography.hazmat.primitives.asymmetric.ec.generate_private_key": {"wire.certs.authority"},
    "cryptography.x509.random_serial_number": {"wire.certs.authority"},
    # Estimates, samples of a party's own rows, and waits between calls.
    "numpy.random.default_rng": {
        "defences.guard",
        "models.estimate",
        "models.evaluation",
        "models.networks.oneshot",
        "models.quality",
    },
    "random.uniform": {"wire.grpc.streams"},
    # Generators of libraries, with a seed from party.random.
    "numpy.random.Philox": {"privacy.randomness"},
    "numpy.random.MT19937": {"runtime.checkpoint"},
    "torch.manual_seed": {"defences.confusion", "defences.guard", "runtime.checkpoint"},
    "torch.randn": {"defences.guard"},
    "torch.randn_like": {"defences.received"},
}
HEAVY = ("dp_accounting", "gmpy2", "grpc", "matplotlib", "numba", "pandas", "polars", "ray", "sklearn", "torch")


@cache
def modules() -> Mapping[str, ast.Module]:
    """Every module of the library by its name."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


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


def targets(module: str, tree: ast.AST) -> Iterator[str]:
    """What a module imports from Colonnade, without the first "colonnade."."""
    for _, target in imports(module, tree):
        top, _, rest = target.partition(".")
        if top == "colonnade":
            yield rest


def wrong_arrows(module: str, tree: ast.AST) -> list[str]:
    """What a module imports from Colonnade and may not."""
    own = module.removeprefix("colonnade.")
    return [
        f"{module} imports {target or 'the package itself'}"
        for target in targets(module, tree)
        if not may_import(own, target)
    ]


def may_import(own: str, target: str) -> bool:
    layer, other = own.split(".")[0], target.split(".")[0]
    if not {layer, other} <= PLACES.keys():
        return False
    if any(f"{target}.".startswith(f"{never}.") for never in NEVER.get(layer, ())):
        return False
    (own_depth, own_part), (depth, part) = PLACES[layer], PLACES[other]
    return depth > own_depth or (depth, part) == (own_depth, own_part)


def graph(modules: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Which module imports which, `TYPE_CHECKING` and lazy imports included; a package is its `__init__`."""

    def home(target: str) -> str | None:
        parts = f"colonnade.{target}".split(".")
        for length in (len(parts), len(parts) - 1):
            name = ".".join(parts[:length])
            for each in (name, f"{name}.__init__"):
                if each in modules:
                    return each
        return None

    return {
        module: {found for target in targets(module, tree) if (found := home(target)) not in (None, module)}
        for module, tree in modules.items()
    }


def cycles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, however indirectly (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in arrows[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            position = stack.index(node)
            group = stack[position:]
            del stack[position:]
            if len(group) > 1:
                found.append(sorted(group))

    for node in arrows:
        if node not in index:
            visit(node)
    return sorted(found)


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


def sources(module: str, tree: ast.AST) -> set[str]:
    """What a module draws from, or makes a source of draws from."""
    bindings = list(imports(module, tree))
    meaning = dict(bindings)
    named = {target for _, target in bindings}
    for node in ast.walk(tree):
        root, _, rest = ast.unparse(node).partition(".") if isinstance(node, ast.Attribute) else ("", "", "")
        if root in meaning and re.fullmatch(r"[\w.]+", rest):
            named.add(f"{meaning[root]}.{rest}")
    return {name for name in named if any(re.fullmatch(pattern, name) for pattern in DRAWS)}


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
    assert {"colonnade.errors", "colonnade.__init__"} <= set(modules())
    assert [arrow for name, tree in modules().items() if name not in EXEMPT for arrow in wrong_arrows(name, tree)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("colonnade.runtime.simulate", "import colonnade.cli.main"),
        ("colonnade.runtime.simulate", "import colonnade.cli.main as shell"),
        ("colonnade.wire.codec", "from colonnade.runtime.party import Party"),
        ("colonnade.wire.codec", "from colonnade import party"),
        ("colonnade.wire.codec", "from ..party import Party"),
        ("colonnade.wire.__init__", "from .. import party"),
        ("colonnade.models.networks.split", "def fit():\n    from colonnade.attacks.base import Attack"),
        ("colonnade.models.networks.split", "if TYPE_CHECKING:\n    from colonnade.auditing import score"),
        ("colonnade.models.networks.split", "importlib.import_module('colonnade.auditing.score')"),
        ("colonnade.models.networks.split", "import_module('colonnade.auditing')"),
        ("colonnade.attacks.base", "from colonnade.defences.noise import GradientNoise"),
        ("colonnade.defences.noise", "from colonnade.attacks.base import Attack"),
        ("colonnade.privacy.ledger", "from colonnade.data import partition"),
        ("colonnade.attacks.base", "from colonnade.runtime.simulate import simulate"),
        ("colonnade.attacks.base", "from colonnade.data.datasets import load"),
        ("colonnade.attacks.base", "import colonnade.auditing"),
        ("colonnade.cli.main", "import colonnade"),
        ("colonnade.cli.main", "from colonnade import Table"),
        ("colonnade.cli.main", "from colonnade.unplaced import name"),
        ("colonnade.unplaced", "from colonnade.errors import DataError"),
    ],
)
def test_a_wrong_arrow_is_found(module: str, source: str) -> None:
    assert len(wrong_arrows(module, ast.parse(source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("colonnade.cli.main", "from colonnade.plans.plan import read"),
        ("colonnade.cli.main", "from colonnade._version import __version__"),
        ("colonnade.attacks.labels.gradients", "from colonnade.attacks.base import Attack"),
        ("colonnade.attacks.labels.gradients", "from .base import Attack"),
        ("colonnade.runtime.party", "from colonnade.runtime.hooks import Defence"),
        ("colonnade.runtime.hooks", "from colonnade.runtime.party import Party"),
        ("colonnade.tables.table", "from colonnade.errors import DataError"),
        ("colonnade.testing", "from colonnade.auditing.score import score"),
        ("colonnade.errors", "import colonnades.cli, numpy"),
    ],
)
def test_a_right_arrow_is_let_through(module: str, source: str) -> None:
    assert wrong_arrows(module, ast.parse(source)) == []


def test_no_modules_import_each_other() -> None:
    assert cycles(graph(modules())) == []


def test_a_cycle_is_found_through_lazy_imports_and_types() -> None:
    modules = {
        "colonnade.a": ast.parse("if TYPE_CHECKING:\n    from colonnade.b import B"),
        "colonnade.b": ast.parse("def f():\n    from colonnade.c.d import D"),
        "colonnade.c.__init__": ast.parse("import colonnade.a"),
        "colonnade.c.d": ast.parse("from colonnade import c"),
        "colonnade.e": ast.parse("from colonnade.a import A"),
    }
    assert cycles(graph(modules)) == [["colonnade.a", "colonnade.b", "colonnade.c.__init__", "colonnade.c.d"]]


def test_no_module_is_longer_than_600_lines() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {path.relative_to(SOURCE): length for path, length in lengths.items() if length > 600} == {}


def test_nothing_unpickles() -> None:
    assert [place for name, tree in modules().items() for place in unpickling(name, tree)] == []


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
    found = {module: {target for _, target in imports(module, tree)} for module, tree in modules().items()}
    assert {name: {module for module in found if name in found[module]} for name in bare} == bare


def test_what_parties_run_draws_from_these_sources_alone() -> None:
    """`check_hiding` watches `secrets`; what draws from elsewhere hides nothing, or has a seed from party.random."""
    found: dict[str, set[str]] = {}
    for module, tree in modules().items():
        if module.split(".")[1] in RUN_BY_PARTIES:
            for name in sources(module, tree):
                found.setdefault(name, set()).add(module.removeprefix("colonnade."))
    assert found == SOURCES


@pytest.mark.parametrize(
    "source",
    [
        "import secrets\nkey = secrets.token_bytes(32)",
        "from secrets import token_bytes",
        "from dataclasses import field\nimport secrets\nfield(default_factory=secrets.token_bytes)",
        "import os\nos.urandom(32)",
        "from os import urandom",
        "import random\nrandom.random()",
        "from random import SystemRandom",
        "import numpy as np\nnp.random.default_rng()",
        "from numpy.random import default_rng",
        "def mask():\n    import torch\n    return torch.randn(3)",
        "import uuid\nuuid.uuid4()",
        "from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey\nX25519PrivateKey.generate()",
        "from cryptography.hazmat.primitives.asymmetric import rsa\nrsa.generate_private_key(65537, 2048)",
        "from colonnade.privacy.randomness import Randomness\nRandomness.seeded(plan.seed)",
    ],
)
def test_a_source_of_draws_is_found(source: str) -> None:
    assert len(sources("colonnade.models.base", ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\ndef batch(random: np.random.Generator) -> None:\n    random.permutation(3)",
        "party.random.uniform_bits(3)",
        "from colonnade.privacy.randomness import Randomness\ndef noise(random: Randomness) -> None: ...",
        "from secrets_of_others import token\ntoken.random()",
        "from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey\n"
        "X25519PrivateKey.from_private_bytes(key)",
    ],
)
def test_what_is_given_a_source_is_let_through(source: str) -> None:
    assert sources("colonnade.models.base", ast.parse(source)) == set()


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
    assert [name for name, tree in modules().items() if not ast.get_docstring(tree)] == []


def test_every_public_method_is_documented_where_it_or_what_it_overrides_is_defined() -> None:
    bare = []
    for name in modules():
        if name.split(".")[-1] in {"__main__", "rr22_process"}:
            continue
        module = importlib.import_module(name.removesuffix(".__init__"))
        for each in vars(module).values():
            if not inspect.isclass(each) or each.__module__ != module.__name__ or each.__name__.startswith("_"):
                continue
            for method, found in vars(each).items():
                function = getattr(found, "fget", None) or getattr(found, "__func__", found)
                if method.startswith("_") or not inspect.isfunction(function) or "<lambda>" in function.__qualname__:
                    continue
                above = [getattr(base, method, None) for base in each.__mro__]
                implied = method in {"state", "restore"}  # what `Resumable` asks of whoever takes part in a checkpoint
                if not implied and not any(inspect.getdoc(one) for one in above if one is not None):
                    bare.append(f"{name}.{each.__name__}.{method}")
    assert bare == []


# An interface and what implements it may share a name.
IMPLEMENTED = {"PublicKey", "SecretKey"}


def test_no_two_classes_share_a_name() -> None:
    """Plans and saved shares name classes without their modules."""
    homes: dict[str, list[str]] = {}
    for name, tree in modules().items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in IMPLEMENTED} == {}
