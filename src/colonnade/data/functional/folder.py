"""A folder of simulated curves: written once, with a manifest by which files of two generations cannot be mixed.

manifest.json                        the setting, and a digest of every file
replicate_<hh>.safetensors           format "arrays": one file per replicate, for any number of workers
truth_active_idx.RData               format "rdata": as R's scripts write and read them
yfdobj_<l>_<k>_<hh>.RData            likewise, for worker l of k
predictorLst_<l>_<k>_<hh>.RData      likewise
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from colonnade._version import __version__
from colonnade.curves import Curves, basis_of
from colonnade.data.functional.generator import FunctionalData, FunctionalSetting, owned_features
from colonnade.data.functional.rdata import curve_list, read_rdata, write_rdata
from colonnade.errors import DataError, PlanError, StorageError
from colonnade.storage import explained, read_tree, write_atomically, write_tree

Format: TypeAlias = Literal["arrays", "rdata"]

MANIFEST = "manifest.json"
WORKERS = (2, 4, 6, 8, 10)


@dataclass(frozen=True)
class FunctionalFolder:
    """A folder of simulated curves with its manifest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     setting = FunctionalSetting(n=30, p=3, active=(1,))
    ...     made = FunctionalFolder.generate(folder, setting, replicates=1, workers=(2,))
    ...     FunctionalFolder.open(folder).load(replicate=1, workers=2).y
    Curves(30 curves on [0, 100], 20 b-splines)
    """

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def generate(
        cls,
        path: Path | str,
        setting: FunctionalSetting,
        *,
        replicates: int = 10,
        workers: Sequence[int] = WORKERS,
        format: Format = "arrays",
    ) -> FunctionalFolder:
        """Draw curves and write them.

        Args:
            path: The folder; it must be new, or hold no curves yet.
            setting: What is drawn.
            replicates: How often.
            workers: For which numbers of workers; every number gets the same records.
            format: "arrays", or "rdata" for R (extra `r`).

        Raises:
            PlanError: The folder holds a generation already.
        """
        path = Path(path)
        if replicates < 1 or not workers or not all(1 <= k <= setting.p for k in workers):
            raise PlanError(
                f"A generation needs a replicate or more, and from 1 to {setting.p} workers, which is the number of "
                f"inputs, but got {replicates} replicates and workers {tuple(workers)}. Correct them."
            )
        stale = sorted(each.name for each in path.glob("*") if _is_data(each.name)) if path.is_dir() else []
        if stale:
            raise PlanError(
                f"{path} should hold no curves yet, but has {len(stale)} files of another generation, such as "
                f"{stale[0]}. Delete them, or choose another folder: generations must not be mixed."
            )
        folder = cls(path, {})
        files: dict[str, str] = {}
        for number, data in enumerate(setting.draw(replicates), start=1):
            written = folder._write_rdata(number, data, workers) if format == "rdata" else folder._write(number, data)
            files |= {each.name: _digest(each) for each in written}
        if format == "rdata":
            truth = path / "truth_active_idx.RData"
            write_rdata(truth, active_idx=np.array(setting.active, np.int32))
            files[truth.name] = _digest(truth)
        manifest = {
            "setting": setting.describe(),
            "replicates": replicates,
            "workers": list(workers),
            "format": format,
            "version": __version__,
            "files": files,
        }
        write_atomically(path / MANIFEST, json.dumps(manifest, indent=1).encode())
        return cls(path, manifest)

    @classmethod
    def open(cls, path: Path | str) -> FunctionalFolder:
        """A folder that `generate` wrote.

        Raises:
            StorageError: There is no manifest, or it cannot be read.
        """
        path = Path(path)
        with explained(f"read {path / MANIFEST}"):
            text = (path / MANIFEST).read_text()
        try:
            manifest = json.loads(text)
            FunctionalSetting.of(manifest["setting"])
            return cls(path, {**manifest, "replicates": int(manifest["replicates"])})
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{path / MANIFEST} should describe simulated curves, but cannot be read ({type(error).__name__}). "
                "Generate them again."
            ) from error

    @cached_property
    def setting(self) -> FunctionalSetting:
        """What was drawn."""
        return FunctionalSetting.of(self.manifest["setting"])

    @property
    def replicates(self) -> int:
        """How many replicates there are."""
        return int(self.manifest["replicates"])

    @property
    def workers(self) -> tuple[int, ...]:
        """For which numbers of workers."""
        return tuple(self.manifest["workers"])

    def load(self, *, replicate: int, workers: int) -> FunctionalData:
        """The records of a replicate, put together from the files of all workers, which are checked.

        Raises:
            DataError: A file is of another generation, or the files do not fit together.
        """
        if replicate not in range(1, self.replicates + 1) or workers not in self.workers:
            raise PlanError(
                f"{self.path} has replicates 1 to {self.replicates} for {self.workers} workers, but replicate "
                f"{replicate} for {workers} was asked for. Name one that exists."
            )
        if self.manifest["format"] == "rdata":
            return self._read_rdata(replicate, workers)
        tree = read_tree(self._checked(f"replicate_{replicate}.safetensors"))
        basis = basis_of(json.loads(tree["basis"]))
        x = tuple(Curves(each, basis) for each in tree["x"])
        signal = Curves(tree["signal"], basis)
        return FunctionalData(x, Curves(tree["y"], basis), self.setting.active, tree["operators"], signal)

    def _write(self, replicate: int, data: FunctionalData) -> Iterator[Path]:
        path = self.path / f"replicate_{replicate}.safetensors"
        assert data.signal is not None
        tree = {
            "basis": json.dumps(data.y.basis.describe()),
            "x": np.stack([each.coefficients for each in data.x]),
            "y": data.y.coefficients,
            "signal": data.signal.coefficients,
            "operators": data.operators,
        }
        write_tree(path, tree)
        yield path

    def _write_rdata(self, replicate: int, data: FunctionalData, workers: Sequence[int]) -> Iterator[Path]:
        for k in workers:
            for worker in range(1, k + 1):
                owned = set(owned_features(worker, k, len(data.x)))
                inputs = [curves if j in owned else None for j, curves in enumerate(data.x, start=1)]
                response, predictors = _names(worker, k, replicate)
                write_rdata(self.path / response, yfdobj=data.y)
                write_rdata(self.path / predictors, predictorLst=inputs)
                yield self.path / response
                yield self.path / predictors

    def _read_rdata(self, replicate: int, workers: int) -> FunctionalData:
        p = self.setting.p
        found: dict[int, Curves] = {}
        response: Curves | None = None
        for worker in range(1, workers + 1):
            names = _names(worker, workers, replicate)
            path = self._checked(names[1])
            inputs = curve_list(read_rdata(path, "predictorLst"), path)
            _check_inputs(inputs, worker, workers, p, path.name)
            found |= {j: curves for j, curves in enumerate(inputs, start=1) if curves is not None}
            path = self._checked(names[0])
            curves = read_rdata(path, "yfdobj")
            if response is not None and not np.array_equal(curves.coefficients, response.coefficients):
                raise DataError(
                    f"All workers of a replicate should have the same response, but {path.name} differs from worker "
                    "1's. Generate the files again."
                )
            response = curves
        assert response is not None
        return FunctionalData(tuple(found[j] for j in range(1, p + 1)), response, self.setting.active)

    def _checked(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise StorageError(f"{path} should be there, as the manifest says, but is missing. Generate it again.")
        if _digest(path) != self.manifest["files"].get(name):
            raise DataError(
                f"{name} should be of the generation that {MANIFEST} describes, but is another file. "
                "Delete all files of the folder and generate them again: generations must not be mixed."
            )
        return path


def _check_inputs(inputs: list[Curves | None], worker: int, workers: int, p: int, name: str) -> None:
    """What must hold of every list of inputs: one entry each, curves where they are owned and nothing elsewhere."""
    if len(inputs) != p:
        raise DataError(f"{name} should have {p} entries, one per input, but has {len(inputs)}. Generate it again.")
    owned = set(owned_features(worker, workers, p))
    wrong = [j for j, curves in enumerate(inputs, start=1) if (curves is not None) != (j in owned)]
    if wrong:
        raise DataError(
            f"{name} should have curves for the inputs that worker {worker} of {workers} owns and NULL elsewhere, but "
            f"{len(wrong)} entries differ, the first being {wrong[0]}. Each input has one owner. Generate it again."
        )


def _names(worker: int, workers: int, replicate: int) -> tuple[str, str]:
    ending = f"{worker}_{workers}_{replicate}.RData"
    return f"yfdobj_{ending}", f"predictorLst_{ending}"


def _is_data(name: str) -> bool:
    return name == MANIFEST or name.startswith(("yfdobj_", "predictorLst_", "replicate_", "truth_active_idx"))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
