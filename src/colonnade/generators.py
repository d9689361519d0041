"""The random generators that libraries share within a process."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from colonnade.storage import Tree

# NumPy crashes where one thread exchanges its generator while another reads its state.
_LOCK = threading.Lock()


class GlobalGenerators:
    """The random generators that libraries share within a process: NumPy's and PyTorch's.

    They are exchanged between parties that take turns, so this has to be quick: of NumPy's the generator itself is
    taken away and put back, not its state.
    """

    def seed(self, seed: int) -> None:
        """Put fresh generators in place, which start from one number.

        PyTorch is imported for this where it is installed: a protocol that imports it later would draw from a state
        that depends on what ran before.
        """
        with _LOCK:
            set_bit_generator(np.random.MT19937(seed))
        if find_spec("torch") is not None:
            import torch

            torch.manual_seed(seed)

    def capture(self) -> tuple[Any, Any]:
        """The generators in place now, to be put back later; until then others must have been put in place."""
        torch = sys.modules.get("torch")
        with _LOCK:
            return get_bit_generator(), None if torch is None else torch.get_rng_state()

    def put(self, captured: tuple[Any, Any]) -> None:
        """Put captured generators back."""
        of_numpy, of_torch = captured
        with _LOCK:
            set_bit_generator(of_numpy)
        if of_torch is not None:
            sys.modules["torch"].set_rng_state(of_torch)

    def state(self) -> Tree:
        torch = sys.modules.get("torch")
        with _LOCK:
            of_numpy = list(np.random.get_state(legacy=True))
        return {"numpy": of_numpy, "torch": None if torch is None else torch.get_rng_state().numpy()}

    def lose_half_draw(self) -> None:
        """Lose the second of two normal numbers, which NumPy holds back where only one was asked for."""
        with _LOCK:
            set_bit_generator(get_bit_generator())

    def restore(self, tree: Tree) -> None:
        with _LOCK:
            np.random.set_state(tuple(tree["numpy"]))
        if tree["torch"] is not None:
            import torch

            torch.set_rng_state(torch.from_numpy(tree["torch"]))
