"""What a finished run leaves on the disk, put together with what it left at the other parties.

`docs/threat-model.md` lists what stays and why; no other file may. Nothing of what a run was kept secret by is in any
file that stays: neither what lay in `checkpoints/` until the end, nor what crossed in messages that are secret.
"""

import base64
import fnmatch
import os
import re
import shutil
import threading
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from colonnade.align import Align, Limits
from colonnade.align import messages as align_messages
from colonnade.catalogue import MODELS
from colonnade.crypto.shares import reals
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models import LogisticRegression, MomentRegression
from colonnade.models.functional.messages import Layout, Masked
from colonnade.models.functional.moments_masked import MomentBudget, bound_to, from_ring, uniform
from colonnade.models.glm.matrix import whitened
from colonnade.models.glm.messages import PublicKeyBytes
from colonnade.models.glm.shares import COEFFICIENT_BITS
from colonnade.models.trees.messages import SeedNonce
from colonnade.privacy.randomness import Randomness
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.runtime.join import join
from colonnade.runtime.protocol import own_copy
from colonnade.runtime.session import connect
from colonnade.runtime.simulate import simulate
from colonnade.storage import read_tree
from colonnade.testing.ports import free_port
from colonnade.testing.setup import arrays
from colonnade.wire.channel import Channel
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.message import Message, shapes
from colonnade.wire.recording.recording import Transcript

THREE = Roles(label="bank", features=("shop", "telco"))
JUDGED = Roles(label="bank", features=("shop", "telco"), arbiter="judge")
SERVED = Roles(label="bank", features=("shop", "telco"), server="cloud")
PAIR = Roles(label="bank", features=("shop",))
THREAT_MODEL = Path(__file__).parents[1] / "docs" / "threat-model.md"
MANY_BYTES = 16


@dataclass
class Left:
    """What finished runs left: the folder of all parties, and a copy of it as it was before anything was erased."""

    after: Path
    before: Path
    secrets: list[bytes]
    n_secret_messages: int = 0
    results: dict | None = None

    def files(self):
        return [path for path in self.after.rglob("*") if path.is_file()]


@pytest.fixture
def left(tmp_path, monkeypatch):
    """Watches runs: what they erase, and what they send in messages that are secret."""
    found, public = Left(tmp_path / "runs", tmp_path / "before", []), set()
    erase, send = Checkpoints.erase, Channel.send

    def watched_erase(checkpoints):
        if checkpoints.directory is not None and checkpoints.directory.exists():
            party = checkpoints.directory.parent
            shutil.copytree(party, found.before / party.relative_to(found.after), dirs_exist_ok=True)
            for path in checkpoints.directory.rglob("*.safetensors"):
                found.secrets.extend(piece for piece in _telling(read_tree(path)) if piece not in public)
        erase(checkpoints)

    def watched_send(line, message, **options):
        if message.secret:
            told = [*_telling(vars(message))]
            found.n_secret_messages += bool(told)
            found.secrets.extend(told)
        elif isinstance(message, PublicKeyBytes):
            public.add(message.key.tobytes())
        elif isinstance(message, SeedNonce):
            public.update(message.nonces)  # parts of the public seed, which every party is told
        send(line, message, **options)

    monkeypatch.setattr(Checkpoints, "erase", watched_erase)
    monkeypatch.setattr(Channel, "send", watched_send)
    before = os.umask(0)
    yield found
    os.umask(before)


def _telling(tree):
    """All keys and seeds in a tree, and all words, which shares are made of; not what is short or monotonous."""
    words = [array.tobytes() for array in arrays(tree) if array.dtype.kind == "u"]
    for piece in (*words, *_raw(tree)):
        if len(piece) >= MANY_BYTES and len(set(piece)) >= MANY_BYTES // 2:
            yield piece


def _raw(tree):
    if isinstance(tree, bytes):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _raw(value)


def listed():
    """The files that the threat model says stay after a run, as patterns."""
    section = THREAT_MODEL.read_text(encoding="utf-8").split("## What stays on disk")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 3 and row[2].strip() for row in rows), "every file has a reason"
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


def require_nothing_left(left):
    """The assertions that hold for every finished run."""
    patterns = listed()
    for path in left.files():
        inside = path.relative_to(left.after).parts
        names = {"/".join(inside[start:]) for start in range(len(inside))}
        assert any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns), (
            f"{path.relative_to(left.after)} stays, but is not in the list of docs/threat-model.md"
        )
    modes = {str(path): oct(path.stat().st_mode & 0o777) for path in (left.after, *left.after.rglob("*"))}
    assert modes == {path: "0o700" if Path(path).is_dir() else "0o600" for path in modes}
    kept = b"\n".join(path.read_bytes() for path in left.files())
    for piece in left.secrets:
        forms = piece, base64.b64encode(piece).rstrip(b"=")[:-1], piece.hex().encode()
        assert not any(form in kept for form in forms), "a key, a seed or a share stays after the end"


def simulated(left, protocol, tables, roles, *, name="run"):
    """Run a protocol in memory with folders, as a plan would, with the results beside what each party holds."""
    run = simulate(protocol, tables, roles=roles, directory=left.after / name, keep="all", checkpoint_every=2)
    for party, result in run.results.items():
        if hasattr(result, "save"):
            result.save(left.after / name / party / "model.safetensors")
    left.results = dict(run.results)
    return run


def apart(left, protocol, tables, roles):
    """Run a protocol over gRPC, each party with randomness from the system and logs of its own."""
    plan, results, errors = PublicPlan(roles, "protocol"), {}, []
    addresses = {name: f"127.0.0.1:{free_port()}" for name in roles.parties}

    def live(name):
        lines = GrpcTransport(addresses, credentials=None, patience=Patience(start=60, message=60, heartbeat=0.1))
        folder = left.after / name
        party = connect(
            plan,
            name,
            tables.get(name),
            transport=lines,
            directory=folder,
            answers=left.after / "counts" / f"answers-of-{name}",
            keep="all",
        )
        try:
            save = lambda share: share.save(folder / "model.safetensors")  # noqa: E731
            results[name] = join(own_copy(protocol), party, keep=save)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in roles.parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a party did not come to its end"
    assert not errors, errors
    left.results = results


@pytest.fixture(scope="module")
def customers():
    return load("bank-shop-telco", rows=150).split()


@pytest.fixture(scope="module")
def more_customers():
    columns = {"bank": ["age", "income"], "shop": ["orders", "spend"], "telco": ["minutes", "data_gb"]}
    tables = load("bank-shop-telco", rows=600).split()
    return {name: table.select(columns[name]) for name, table in tables.items()}


def curves(roles):
    setting = FunctionalSetting(n=60, p=len(roles.features) * 2, active=(1, 2), basis=BSplines((0.0, 1.0), 5))
    drawn = setting.draw(1)[0].tables(len(roles.features))
    return dict(zip(roles.holders, drawn.values(), strict=True))


# One model of each protocol; the others of its family run the same one.
QUICK = ("functional-boost", "functional-moments", "logistic-regression", "one-shot", "served-classifier")


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in MODELS]
)
def test_a_finished_run_leaves_only_what_the_threat_model_lists_and_nothing_secret(
    model, left, customers, more_customers
):
    make, family = MODELS[model].example, MODELS[model].__module__.split(".")[2]
    tables, roles = customers, SERVED if "server" in MODELS[model].hooks else THREE
    if family == "glm":
        tables, roles = more_customers, JUDGED
    elif family == "functional":
        roles = JUDGED if model == "functional-moments" else THREE
        tables = curves(roles)
    simulated(left, make().fit, tables, roles)
    require_nothing_left(left)


def test_a_regression_on_shares_and_its_predictions_leave_nothing_secret(left, more_customers):
    fitted = simulated(left, LogisticRegression(max_iter=1, tol=0).fit, more_customers, THREE)
    n_opened = left.n_secret_messages
    predict = {name: share.predict for name, share in fitted.results.items()}
    simulated(left, predict, more_customers, THREE, name="prediction")
    assert left.n_secret_messages > n_opened > 0
    assert len(left.secrets) > left.n_secret_messages
    require_nothing_left(left)


def test_moments_on_shares_leave_nothing_secret(left):
    simulated(left, MomentRegression.example().fit, curves(PAIR), PAIR)
    assert left.secrets
    require_nothing_left(left)


@pytest.mark.parametrize("topology", ["star", "ring"])
def test_an_alignment_leaves_nothing_secret(topology, left, customers):
    from colonnade.align import Settings

    protocol = Align(Settings(topology=topology, ids_per_bucket=20), limits=Limits(fewest=1))
    simulated(left, protocol, customers, THREE)
    assert len(left.secrets) > left.n_secret_messages > 0
    require_nothing_left(left)


def added_up(folder, first, second):
    """What two parties compute who put their folders together: the sums of all words that both hold."""
    ours, theirs = ([*_words(folder / name)] for name in (first, second))
    for one, other in product(ours, theirs):
        if one.shape == other.shape:
            yield reals((one + other).ravel(), COEFFICIENT_BITS)


def _words(folder):
    for path in folder.rglob("*.safetensors"):
        yield from (array for array in arrays(read_tree(path)) if array.dtype == np.uint64)
    recorded = Transcript.load(folder / "transcript")
    for kind in {entry.kind for entry in recorded.entries}:
        for each in recorded.messages(Message.kinds[kind]):
            yield from (array for array in arrays(vars(each.message)) if array.dtype == np.uint64)


def in_basis(share, table):
    """A party's coefficients in the basis in which they were shared, which who knows its columns knows, too."""
    matrix = share.design_.matrix(table)
    basis = whitened(matrix, np.ones(matrix.shape[1], np.bool_), 4 * share.alpha / len(table), 64.0)
    return np.linalg.solve(basis.back, share.coef_)


def holds(candidates, wanted):
    """Whether some candidate has these numbers in a row."""
    for found in candidates:
        for start in range(len(found) - len(wanted) + 1):
            if np.allclose(found[start : start + len(wanted)], wanted, rtol=1e-6, atol=1e-9):
                return True
    return False


@pytest.mark.network
def test_two_folders_of_a_regression_on_shares_open_nobody_elses_coefficients(left, more_customers):
    """Until the end bank and shop hold shares of all coefficients. What they sent telco in the end are shares, too."""
    apart(left, LogisticRegression(max_iter=1, tol=0).fit, more_customers, THREE)
    for victim in ("shop", "telco"):
        wanted = in_basis(left.results[victim], more_customers[victim])
        assert holds(added_up(left.before, "bank", "shop"), wanted), "the exploit works before the end"
        assert not holds(added_up(left.after, "bank", "shop"), wanted)
    assert len(left.secrets) > left.n_secret_messages > 0
    require_nothing_left(left)


@pytest.mark.network
def test_a_regression_with_an_arbiter_leaves_nothing_secret_but_its_counts(left, more_customers):
    apart(left, LogisticRegression.example().fit, more_customers, JUDGED)
    counts = {path.name for path in (left.after / "counts").iterdir()}
    assert {"openings-of-bank", "openings-of-bank.key", "openings-of-judge", "answers-of-shop"} <= counts
    assert left.secrets
    require_nothing_left(left)


def unmasked(folder, bits):
    """The curves that the arbiter and the label party compute who put their folders together."""
    keys = [piece for path in (folder / "judge").rglob("*.safetensors") for piece in _raw(read_tree(path))]
    dealt = Transcript.load(folder / "judge" / "transcript")
    for kind in {entry.kind for entry in dealt.entries}:
        keys += [piece for each in dealt.messages(Message.kinds[kind]) for piece in _raw(vars(each.message))]
    known = Transcript.load(folder / "bank" / "transcript")
    layout = next(iter(known.messages(Layout, sent=True))).message
    for recorded in known.messages(Masked, sent=True):
        for key in (key for key in keys if len(key) == 32):
            source = Randomness.from_key(key, source="system")
            for mask in (source, source.child("masks", recorded.message.holder)):
                drawn = uniform(bound_to(mask, layout), recorded.message.values.shape, "mask")
                yield from_ring(recorded.message.values + drawn, bits)


@pytest.mark.network
def test_the_folders_of_arbiter_and_label_party_open_no_curves(left):
    model, tables = MomentRegression.example(), curves(JUDGED)
    apart(left, model.fit, tables, JUDGED)
    bits = MomentBudget(model.clip_x, model.clip_y, model.epsilon, model.delta, inputs=4).bits(rows=60)

    def is_open(folder):
        # No coordinate of a clipped curve is longer; a number modulo 2^64 under another mask is, almost surely.
        return any(np.abs(found).max() <= model.clip_x for found in unmasked(folder, bits))

    assert is_open(left.before), "the exploit works before the end"
    assert not is_open(left.after)
    assert left.n_secret_messages == 3
    require_nothing_left(left)


RECORDED = {
    "glm/key": "a public key",
    "functional/encrypted-outputs": "a public key and ciphertexts",
    "glm/column-token": "a keyed hash; its key stays with its owner for all runs, to count openings",
    "glm/openable-sums": "keyed hashes; likewise",
    "glm/outline": "a keyed hash; its key was erased",
    "glm/opened": "sums behind masks that were never on a disk",
    "glm/masked-scores": "scores behind masks, whose seeds are secret",
    "functional/masked": "a matrix behind a mask, whose seed is secret",
    "functional/terms": "products behind pads, whose seed is secret",
    "functional/correction": "products behind masks and pads, whose seeds are secret, and noise",
    "functional/noisy-shares": "noisy products, and shares of some, of which the other share was never on a disk",
    "functional/offer": "a basis",
    "trees/columns": "kinds of columns, which everybody may know",
    "trees/seed-commitment": "a digest of a part of a public seed",
    "trees/seed-nonce": "a part of a public seed",
    "trees/hint": "hints under secrets that were never on a disk",
    "trees/transfer-point": "a public point",
    "trees/transfer-points": "public points",
    "trees/query-keys": "public keys of queries",
    "trees/sums-query": "gradients under secrets that were never on a disk",
    "trees/sums-answer": "sums under secrets that were never on a disk",
    "trees/sums-key": "a public key",
    "trees/side-choices": "choices under pads that were never on a disk",
    "trees/row-sides": "sides under pads that were never on a disk",
    "align/masked": "points behind a secret",
    "align/doubled": "digests of points behind secrets of all parties",
    "align/common": "likewise",
    "align/order-point": "a point behind a secret",
    "align/order-digest": "a digest of a point behind a secret",
    "align/agreed": "digests of points behind secrets, and the public seed of the schedule",
}


def test_every_message_with_bytes_or_words_is_secret_or_says_why_it_may_be_recorded():
    for model in MODELS:
        _ = MODELS[model]
    ours = {kind: each for kind, each in Message.kinds.items() if each.__module__.startswith("colonnade.models")}
    ours |= {each.kind: each for each in vars(align_messages).values() if hasattr(each, "kind")}
    telling = {
        kind
        for kind, each in ours.items()
        for shape in shapes(each).values()
        if shape.base is bytes or (shape.dtype is not None and shape.dtype.kind == "u")
    }
    secret = {kind for kind, each in ours.items() if each.secret}
    assert telling - secret == set(RECORDED)
    paired = {"glm/paired-words", "glm/score-share", "trees/shared-sums", "trees/hidden-turn", "trees/best-shares"}
    assert secret == {"align/opening", "functional/mask-seed", "glm/mask-seed", "glm/opening"} | paired
