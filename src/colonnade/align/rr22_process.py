"""The side process of the engine rr22: a program for an interpreter that has `spu`, and nothing of Colonnade.

It reads a line of JSON from its standard input, computes, writes a byte to the descriptor that it was named, and ends
when its standard input is closed: with the process that started it.

`spu` is loaded without its own `__init__`, which wants jax and an old numpy and is not needed for intersections.
"""

import hmac
import importlib.util
import json
import os
import sys
import threading
import traceback
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

VERSION = "0.9.5"

# Both are started at the same time, on machines that may have much else to do.
MEETING_S = 60.0

# What is written to the descriptor when all went well.
GOOD = b"1"


def main() -> None:
    """Take part in one intersection; in both sides of it, if the task names both."""
    task = json.loads(sys.stdin.readline())
    watch = threading.Thread(target=end_with_parent, daemon=True)
    watch.start()
    link, psi = load()
    sides = task["sides"]
    with ThreadPoolExecutor(len(sides)) as threads:
        # A line that is let go of drops what it has not sent yet, and the other side would wait for that until its
        # patience ends. So this process holds them, and stays, until both are done.
        lines = list(threads.map(lambda side: connected(link, task, side["rank"]), sides))
        list(threads.map(lambda side, line: intersect(psi, task, side, line), sides, lines))
    os.write(task["done"], GOOD)
    watch.join()


def intersect(psi: Any, task: dict[str, Any], side: dict[str, Any], line: Any) -> None:
    """Be one side of an intersection."""
    protocol = psi.PsiProtocolConfig(
        protocol=psi.PsiProtocol.PROTOCOL_RR22, receiver_rank=0, broadcast_result=task["broadcast"]
    )
    config = psi.PsiExecuteConfig(
        protocol_conf=protocol,
        input_params=psi.InputParams(path=side["input"], selected_keys=["id"], keys_unique=True),
        # Colonnade sorts the result in memory; spu would sort it in files.
        output_params=psi.OutputParams(path=side["output"], disable_alignment=True),
    )
    psi.psi_execute(config, line)


def connected(link: Any, task: dict[str, Any], rank: int) -> Any:
    """The line to the other side: within this process if both are here."""
    desc = described(link, task)
    if len(task["sides"]) > 1:
        return link.create_mem(desc, rank)

    seconds = min(MEETING_S, task["timeout_ms"] / 1000)

    def give_up() -> None:
        print(f"Error: the other side was not met within {seconds:.0f} s", flush=True)
        os._exit(1)

    # spu waits for the first message as long as for any other.
    patience = threading.Timer(seconds, give_up)
    patience.start()
    line = link.create_brpc(desc, rank)
    # When it begins to intersect, spu connects once more by a message that looks like the first, and that is lost if it
    # comes before the other side has taken the first. A side that says its word has taken it.
    heard = line.all_gather(task["words"][rank])
    patience.cancel()
    require_words(task["words"], heard)
    return line


def require_words(expected: list[str], heard: list[str | bytes]) -> None:
    """Refuse a process that any certificate of the authority let in, but that does not know this pair's words."""
    said = [word.encode() if isinstance(word, str) else bytes(word) for word in heard]
    known = len(said) == len(expected)
    known = known and all(hmac.compare_digest(a, b.encode()) for a, b in zip(said, expected, strict=True))
    if not known:
        raise ConnectionError("the process at the other end does not know the words of this pair")


def described(link: Any, task: dict[str, Any]) -> Any:
    """Who takes part, where, and how long to wait."""
    desc = link.Desc()
    desc.recv_timeout_ms, desc.http_timeout_ms = task["timeout_ms"], task["timeout_ms"]
    desc.connect_retry_times, desc.connect_retry_interval_ms = 600, 100
    for name, address in task["parties"]:
        desc.add_party(name, address)
    if task["tls"] is not None:
        desc.enable_ssl = True
        for options in (desc.client_ssl_opts, desc.server_ssl_opts):
            options.cert.certificate_path, options.cert.private_key_path = task["tls"]["cert"], task["tls"]["key"]
            options.verify.ca_file_path, options.verify.verify_depth = task["tls"]["ca"], 1
    return desc


def load() -> tuple[Any, Any]:
    """The parts of spu that intersections need."""
    found = importlib.util.find_spec("spu")
    if found is None or found.submodule_search_locations is None:
        raise ImportError("spu is not installed here")
    stub = types.ModuleType("spu")
    stub.__path__ = list(found.submodule_search_locations)
    sys.modules["spu"] = stub
    from spu import libspu, psi

    if libspu._get_version() != VERSION:
        raise ImportError(f"spu {VERSION} is needed, not {libspu._get_version()}")
    return libspu.link, psi


def end_with_parent() -> None:
    """Wait for the end of the standard input, which ends with the process at its other end."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        # A line that is put away in good order may wait for the other side.
        os._exit(1)
