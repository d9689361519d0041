import gc
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is, and how busy, is nothing a test should fail by.
settings.register_profile("colonnade", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("colonnade")

# Files are synced as ever, but where they lie in memory nobody waits for a disk: a process that is killed loses nothing
# that it has written to either.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Tests run beside each other: threads of one would wait busily for cores that another has, and the number of threads
# changes the last bits of a sum. Libraries read this when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

# Nothing of the thousands of tests that are collected is garbage; to look for it takes a third of that time.
gc.disable()

CHROMIUM = shutil.which("chromium")

FIRST_SCREEN = """
<script>
addEventListener("load", () => {
  const end = name => document.querySelector(name).getBoundingClientRect().bottom;
  const seen = { height: document.documentElement.scrollHeight, unfocusable: 0, pale: [] };
  for (const name of ["matrix", "quality", "next"]) seen[name] = end(`.first > .${name}`);
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  for (const line of document.querySelectorAll("summary")) {
    line.focus();
    seen.unfocusable += document.activeElement !== line;
  }
  const boxes = [...document.querySelectorAll(".scroll")];
  seen.boxed = boxes.every(box => box.getBoundingClientRect().right <= innerWidth + 1);
  seen.scrolls = boxes.some(box => box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX === "auto");
  const rgb = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = colour => {
    const [r, g, b] = colour.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = rgb(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  seen.texts = 0;
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const style = getComputedStyle(element), svg = element instanceof SVGElement;
    const [text, back] = [light(rgb(svg ? style.fill : style.color).slice(0, 3)), light(behind(element))];
    const ratio = (Math.max(text, back) + .05) / (Math.min(text, back) + .05);
    seen.texts += 1;
    if (ratio < 4.5) seen.pale.push(`${ratio.toFixed(2)} ${texts.currentNode.data.trim().slice(0, 30)}`);
  }
  parent.postMessage(JSON.stringify(seen), "*");
});
</script>
"""


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def torch_is_imported() -> None:
    """Parties that are threads of one process would otherwise import it at the same time, and find half of it."""
    if find_spec("torch"):
        import torch  # noqa: F401


@pytest.fixture
def browser(tmp_path: Path):
    """Runs chromium on a file; returns the document as it is once loaded."""

    def look(path: Path, *flags: str) -> str:
        assert CHROMIUM is not None
        quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
        command = [CHROMIUM, *quiet.split(), "--disable-component-update", "--disable-sync"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", *flags, path.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    return look


@pytest.fixture
def measured(tmp_path: Path, browser):
    """What a script says of a page inside a window of some size; the page itself would refuse to run the script."""

    def measure(page: str, width: int, height: int, *flags: str, script: str) -> dict[str, Any]:
        page = re.sub(r"<meta http-equiv=[^>]*>", "", page).replace("</body>", script + "</body>")
        (tmp_path / "page.html").write_text(page)
        frame = tmp_path / "frame.html"
        frame.write_text(
            f'<iframe src="page.html" width="{width}" height="{height}" style="border: 0"></iframe>'
            "<script>onmessage = event => { document.title = event.data; }</script>"
        )
        title = re.search(r"<title>(.*)</title>", browser(frame, "--dump-dom", *flags))
        assert title is not None
        return dict(json.loads(unescape(title[1])))

    return measure


@pytest.fixture
def first_screen() -> str:
    """A script that measures where the parts of a report's first screen end, what can be read and what has focus."""
    return FIRST_SCREEN


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data sets that $COLONNADE_DATA names, or else slices of them."""
    folder = os.environ.get("COLONNADE_DATA") or str(Path(__file__).parent / "data" / "slices")
    monkeypatch.setenv("COLONNADE_DATA", folder)
    return Path(folder)


@pytest.fixture
def no_trace_stays() -> Iterator[None]:
    """Fail a test after which a file that `spu` writes to /tmp stays there."""
    before = _traces()
    yield
    left = _traces() - before
    # Those of other tests that run meanwhile go when these are done.
    end = time.monotonic() + 60
    while any(path.exists() for path in left):
        assert time.monotonic() < end, f"these stay: {left}"
        time.sleep(0.05)


def _traces() -> set[Path]:
    """The traces of side processes of this source tree, whose program they name."""
    from colonnade.align.rr22 import PROGRAM

    found = set()
    for path in Path("/tmp").glob("psi_*.trace"):
        with suppress(OSError):
            if str(PROGRAM).encode() in path.read_bytes():
                found.add(path)
    return found
