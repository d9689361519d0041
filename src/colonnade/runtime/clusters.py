"""Clusters of one organisation: Ray and Dask, found by their address or started on this machine for a while.

Between organisations there is the wire and nothing else: whoever reaches a cluster can run code on it. Code does not
travel to workers either. Every worker has this package installed, in the same version, and is told names of functions.

A cluster that is started here answers nobody but this process: Ray asks for a token, and Dask for a certificate, which
are drawn for this one cluster. Ray's files lie in a folder of their own, which other users cannot enter.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any

from colonnade._version import code_version
from colonnade.devices import visible_gpus
from colonnade.errors import EngineError, PlanError, imported

CONNECT_SECONDS = 20.0
"""How long a cluster may take to answer."""

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def worker_environment(threads: int) -> dict[str, str]:
    """The variables from which numerical libraries take their number of threads when they are loaded."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def places_here(jobs: int | None, threads: int, gpus: float) -> list[dict[str, str]]:
    """The environment of each worker on this machine, for as many workers as fit beside each other.

    Args:
        jobs: How many workers at most; one for every `threads` cores if None.
        threads: How many threads each worker uses.
        gpus: How many GPUs each worker sees, or its share of one; 0 leaves what it sees as it is.
    """
    if jobs is None:
        from joblib import cpu_count

        jobs = max(1, int(cpu_count()) // threads)
    common = worker_environment(threads)
    if not gpus:
        return [common] * jobs
    found = visible_gpus()
    require_fitting([(threads, len(found))], threads, gpus, "this machine")
    whole, sharing = max(1, int(gpus)), max(1, on_gpus(1, gpus))
    return [
        {**common, "CUDA_VISIBLE_DEVICES": ",".join(found[place // sharing * whole :][:whole])}
        for place in range(min(jobs, on_gpus(len(found), gpus)))
    ]


_ROUNDING = 1e-9
"""What a quotient may lack of a whole number: 1 / (1 / 93) is 92.99999999999999."""


def on_gpus(n_gpus: float, gpus: float) -> int:
    """How many tasks fit on GPUs: a share is of one GPU, and what is left of each is of no use to a further task.

    >>> on_gpus(2, 0.6), on_gpus(2, 0.5), on_gpus(5, 2), on_gpus(1, 1 / 93)
    (2, 4, 2, 93)
    """
    return int(n_gpus) * in_pool(1, gpus) if gpus < 1 else in_pool(n_gpus, gpus)


def in_pool(n_gpus: float, gpus: float) -> int:
    """How many tasks fit where GPUs are a number that tasks draw from, as with Dask, whose worker may have half of one.

    >>> in_pool(0.5, 0.5), in_pool(2, 0.6)
    (1, 3)
    """
    return int(n_gpus / gpus + _ROUNDING)


def n_fitting(
    nodes: Iterable[tuple[float, float]],
    threads: int,
    gpus: float,
    sharing: Callable[[float, float], int] = on_gpus,
) -> int:
    """How many tasks fit at the same time on nodes of these numbers of cores and GPUs.

    >>> n_fitting([(4, 0), (3, 0)], threads=2, gpus=0)
    3
    """
    return sum(int(min(cores // threads, sharing(n_gpus, gpus) if gpus else cores)) for cores, n_gpus in nodes)


def require_fitting(
    nodes: Sequence[tuple[float, float]],
    threads: int,
    gpus: float,
    where: str,
    sharing: Callable[[float, float], int] = on_gpus,
) -> None:
    """Refuse tasks for which no node is large enough: a cluster would let them wait for ever."""
    if n_fitting(nodes, threads, gpus, sharing) == 0:
        sizes = " or ".join(sorted({f"{cores:g} cores and {n_gpus:g} GPUs" for cores, n_gpus in nodes}))
        raise PlanError(
            f"A trial should fit on a node, but it wants {threads} cores and {gpus:g} GPUs, and the nodes of {where} "
            f"have {sizes or 'nothing'}. Lower cores_per_job or gpus_per_job under [engine], or add a larger node."
        )


@contextmanager
def ray_cluster(
    address: str | None = None, *, cores: int | None = None, gpus: int | None = None, threads: int = 1
) -> Iterator[Any]:
    """The module `ray`, connected to a cluster; a connection that this process has already is used and left open.

    Args:
        address: `host:port` of a cluster that this machine is a node of, or "auto"; None starts a cluster here, which
            ends with the block.
        cores: How many cores a cluster that is started here says it has.
        gpus: How many GPUs it says it has; those that Ray finds if None.
        threads: How many threads a worker's numerical libraries will have; a worker that was asked for its version then
            serves for tasks too.

    Raises:
        MissingExtra: Ray is not installed.
        EngineError: The cluster does not answer.
        PlanError: A node has another version of this package, or none.
    """
    # Read when Ray is imported and when its processes start. A trial that asks for no GPU sees what it would see in a
    # process of this machine. A call after the connection was closed reaches no other cluster that runs here.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_ENABLE_AUTO_CONNECT="0")
    ray = imported("ray", "ray", "The engine 'ray'")
    if ray_is_connected():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    in_main = threading.current_thread() is threading.main_thread()
    terminated = signal.getsignal(signal.SIGTERM)
    with ExitStack() as ours:
        try:
            if address is None:
                quiet |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
                quiet["runtime_env"] = {"env_vars": {"PYTHONPATH": _path_here()}}
                quiet["_temp_dir"] = ours.enter_context(_for_us_alone())
                ours.callback(ray.shutdown)
                ray.init("local", num_cpus=cores, num_gpus=gpus, **quiet)
            else:
                _knock(address)
                ours.callback(ray.shutdown)
                ray.init(address, **quiet)
            if in_main:
                # Ray puts a handler of its own in place of ours and leaves it there.
                signal.signal(signal.SIGTERM, terminated)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _unreachable("ray", address, error) from error
        if address is not None:
            _compare_versions("ray", _ray_versions(ray, threads))
        yield ray


def ray_is_connected() -> bool:
    """Whether this process is connected to a Ray cluster already, which `ray_cluster` leaves open."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@contextmanager
def _for_us_alone() -> Iterator[str]:
    """A folder for a Ray cluster that is started here, which nobody else can enter; nobody else is told its token.

    By default Ray writes into a folder that everybody can enter, and one token for all clusters into a file that
    everybody can read.
    """
    # The paths of sockets are short, so the folder of temporary files may lie too deep.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        with _kept_environment():
            os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
            _look_at_token()
            # Ray opens the folder that it is given to everybody, so it is given one inside.
            yield os.path.join(folder, "in")
        _look_at_token()


def _look_at_token() -> None:
    """Let Ray read its token from the environment again, which it remembers otherwise."""
    with suppress(ImportError, AttributeError):
        raylet: Any = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def dask_cluster(
    address: str | None = None, environments: Sequence[Mapping[str, str]] = (), *, threads: int = 1, gpus: float = 0
) -> Iterator[Any]:
    """A `distributed.Client` of a cluster.

    Args:
        address: `tcp://host:port` of a scheduler; None starts a cluster here, which ends with the block.
        environments: The environment of each worker that is started here.
        threads: How many threads each worker that is started here has.
        gpus: How much of the resource GPU each worker that is started here says it has.

    Raises:
        MissingExtra: Dask is not installed.
        EngineError: The scheduler does not answer.
        PlanError: A worker has another version of this package, or none.
    """
    distributed = imported("distributed", "dask", "The engine 'dask'")
    settings = {
        "distributed.scheduler.allowed-failures": 0,
        "distributed.admin.large-graph-warning-threshold": "1 TiB",
        "distributed.nanny.pre-spawn-environ": dict(environments[0]) if environments else {},
    }
    if address is None:
        # Pages that tell what workers do, for everybody on this machine.
        settings |= {f"distributed.{kind}.http.routes": [] for kind in ("scheduler", "worker")}
    with imported("dask", "dask", "The engine 'dask'").config.set(settings):
        if address is None:
            security = distributed.Security.temporary()
            here = _dask_here(distributed, environments, threads, gpus, security)
            with _kept_environment(), here, distributed.Client(here, security=security) as client:
                yield client
            return
        try:
            client = distributed.Client(address, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise _unreachable("dask", address, error) from error
        with _without_log("distributed.client"), client:
            _compare_versions("dask", client.run(_version_here, on_error="return"))
            yield client


def _dask_here(
    distributed: Any, environments: Sequence[Mapping[str, str]], threads: int, gpus: float, security: Any
) -> Any:
    at_home = {"host": "127.0.0.1", "dashboard": False, "security": security}
    workers = {
        place: {
            "cls": distributed.Nanny,
            "options": {
                **at_home,
                "nthreads": threads,
                "memory_limit": 0,
                "silence_logs": logging.CRITICAL,
                "resources": {"GPU": gpus},
                "env": dict(environment),
            },
        }
        for place, environment in enumerate(environments)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {**at_home, "port": 0, "dashboard_address": "127.0.0.1:0"}}
    return distributed.SpecCluster(
        workers=workers, scheduler=scheduler, security=security, silence_logs=logging.CRITICAL
    )


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    """Drop what a library logs of a lost connection: an error of ours says it."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _kept_environment() -> Iterator[None]:
    """Take back what a nanny writes into the environment of this process before it starts a worker."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _path_here() -> str:
    """Workers that are started here import what this process imports."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path)


def _knock(address: str) -> None:
    """Refuse at once an address where nothing listens; Ray itself would try for a minute."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _ray_versions(ray: Any, threads: int) -> dict[str, Any]:
    """What every node says its version is, or the error that it raised; a node that dies meanwhile says nothing."""
    at = imported("ray.util.scheduling_strategies", "ray", "The engine 'ray'").NodeAffinitySchedulingStrategy
    task = ray.remote(_version_here)
    how = {"num_cpus": 0, "max_retries": 0, "runtime_env": {"env_vars": worker_environment(threads)}}
    asked = {
        node["NodeID"]: task.options(scheduling_strategy=at(node["NodeID"], soft=False), **how).remote()
        for node in ray.nodes()
        if node["Alive"]
    }
    said: dict[str, Any] = {}
    for node, answer in asked.items():
        try:
            said[node] = ray.get(answer, timeout=3 * CONNECT_SECONDS)
        except ray.exceptions.RayTaskError as error:
            said[node] = error
        except ray.exceptions.RayError:
            continue
    return said


def _version_here() -> str:
    return code_version()


def _compare_versions(engine: str, said: Mapping[str, Any]) -> None:
    for node, version in said.items():
        if version != code_version():
            found = str(version).strip().splitlines()[-1] if isinstance(version, Exception) else version
            raise PlanError(
                f"Every worker of the {engine} cluster should have colonnade {code_version()}, as this process has, "
                f"but {node} answers: {found}. Install the same version there."
            )


def _unreachable(engine: str, address: str | None, error: Exception) -> EngineError:
    words = str(error).strip().splitlines()
    said = words[0] if words else type(error).__name__
    if address is None:
        return EngineError(
            f"The engine {engine} should start on this machine, but says: {said}. Give it more memory or room under "
            "/tmp, or choose the engine 'local'."
        )
    return EngineError(
        f"The engine {engine} should answer at {address} within {CONNECT_SECONDS:g} seconds, but says: {said}. Start "
        "the cluster or correct the address; finished trials are kept."
    )
