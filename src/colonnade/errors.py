"""Every error Colonnade raises.

    ColonnadeError
    ├── PlanError            the plan is wrong; nothing has run                   exit 2
    │   └── MissingExtra     an optional dependency is not installed
    ├── DataError            a table is not what the protocol needs               exit 3
    ├── WireError            something went wrong between two parties             exit 4
    │   ├── PeerUnreachable  a peer did not come, or did not come back
    │   ├── PeerRestarted    a peer was started again; the run goes back to a checkpoint
    │   ├── PeerLeft         a peer ended before it sent what was awaited
    │   ├── PeerFailed       a peer raised; its own words are in the message
    │   ├── AuthError        certificate, name or plan not accepted               exit 7
    │   └── ProtocolError    a peer sent what the protocol does not allow         exit 8
    │       ├── WrongMessage a message of another kind than the one awaited
    │       ├── BadFrame     bytes that are not a well-formed frame
    │       ├── Deadlock     every party waits for another
    │       └── VersionMismatch  two parties run different versions
    ├── CryptoError          keys, ciphertexts or number ranges do not fit        exit 5
    │   ├── KeyMismatch      a key or ciphertext of another scheme, version or run
    │   └── Overflow         a number is too large to be encrypted
    ├── PrivacyError         a privacy promise would be broken                    exit 6
    │   ├── PeerChanged      a peer took up a run again and said something else than before
    │   ├── BudgetSpent      an event would exceed the agreed privacy budget
    │   ├── LeakBudgetSpent  a message would tell more of its sender's columns than their owner allows
    │   ├── GuardAlarm       gradients that arrive look like those of an attack
    │   └── UndeclaredAccess an attack read what it had not declared
    ├── StorageError         disk full, read-only, or a file that cannot be read  exit 9
    └── EngineError          a cluster cannot be reached, or was lost             exit 10

A message says what was expected, what came (party, column, step), and what to do. It never holds a
secret value. The command line exits with the ``exit_code`` of the error that ended it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar


class ColonnadeError(Exception):
    """The root of every error Colonnade raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a worker's error come to the process that asked, whatever an error is made from."""
        return _made_again, (type(self), self.args, vars(self))


def _made_again(kind: type[ColonnadeError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> ColonnadeError:
    error = kind.__new__(kind, *arguments)
    vars(error).update(attributes)
    return error


class PlanError(ColonnadeError):
    """The plan is wrong; nothing has run."""

    exit_code = 2


class MissingExtra(PlanError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, purpose: str, *, how: str | None = None) -> None:
        command = how or f"pip install 'colonnade[{extra}]'"
        super().__init__(f"{purpose} needs the extra '{extra}', which is not installed. Run: {command}")


def imported(module: str, extra: str, purpose: str) -> Any:
    """A module that an extra installs, or an error that says how to install the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(extra, purpose) from error


class DataError(ColonnadeError):
    """A table is not what the protocol needs."""

    exit_code = 3


class WireError(ColonnadeError):
    """Something went wrong between two parties."""

    exit_code = 4


class PeerUnreachable(WireError):
    """A peer did not come, or did not come back, within the agreed time."""


class PeerRestarted(WireError):
    """A peer was started again; the run goes back to the last checkpoint."""


class PeerLeft(WireError):
    """A peer ended before it sent what was awaited."""


class PeerFailed(WireError):
    """A peer raised an error; its own words are in the message."""


class AuthError(WireError):
    """A certificate, name or plan was not accepted."""

    exit_code = 7


class ProtocolError(WireError):
    """A peer sent what the protocol does not allow."""

    exit_code = 8


class WrongMessage(ProtocolError):
    """A message of another kind than the one awaited."""


class BadFrame(ProtocolError):
    """Bytes that are not a well-formed frame."""


class Deadlock(ProtocolError):
    """Every party waits for another."""


class VersionMismatch(ProtocolError):
    """Two parties run different versions."""


class CryptoError(ColonnadeError):
    """Keys, ciphertexts or number ranges do not fit together."""

    exit_code = 5


class KeyMismatch(CryptoError):
    """A key or a ciphertext belongs to another scheme, version or run."""


class Overflow(CryptoError):
    """A number is too large to be encrypted; nothing was sent."""


class PrivacyError(ColonnadeError):
    """A privacy promise would be broken."""

    exit_code = 6


class PeerChanged(PrivacyError):
    """A peer took up a run again and said something else than before.

    Attributes:
        peer: The peer.
    """

    def __init__(self, message: str, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


class BudgetSpent(PrivacyError):
    """An event would exceed the agreed privacy budget."""


class LeakBudgetSpent(PrivacyError):
    """A message would tell more of its sender's columns than their owner allows."""


class GuardAlarm(PrivacyError):
    """Gradients that arrive look like those of an attack on the receiver's columns."""


class UndeclaredAccess(PrivacyError):
    """An attack read something it had not declared."""


class StorageError(ColonnadeError):
    """The disk is full or read-only, or a file cannot be read."""

    exit_code = 9


class EngineError(ColonnadeError):
    """A cluster that runs trials cannot be reached, or was lost."""

    exit_code = 10
