"""The commands `colonnade certs ...`: certificates, by which parties know each other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import say, warn

certs = typer.Typer(no_args_is_help=True, help="Certificates, by which parties know each other.")

Folder = Annotated[Path, typer.Option("--certs", help="The folder of certificates.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The party, as plans name it.")]
Days = Annotated[int, typer.Option(help="How long the certificate holds.")]
Authority = Annotated[Path, typer.Option("--authority", help="The folder of the authority.")]
PassphraseFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file whose first line is the passphrase of the authority's key.")
]


@certs.command("init")
def init_certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder for the authority.")] = Path("authority"),
    *,
    federation: Annotated[str, typer.Option(help="What the parties call themselves together.")] = "colonnade",
    passphrase_file: PassphraseFile = None,
    ask: Annotated[bool, typer.Option("--passphrase", help="Ask for a passphrase that encrypts ca.key.")] = False,
) -> None:
    """Make the authority of a federation, which vouches for its parties' names."""
    from colonnade.wire.certs.authority import init
    from colonnade.wire.certs.credentials import show

    passphrase = _read_passphrase(passphrase_file)
    if passphrase is None and ask:
        passphrase = _ask_passphrase(confirmed=True)
    path = init(folder, federation=federation, passphrase=passphrase)
    say(f"Written to {path}, which every party needs, and {path.with_suffix('.key')}, which is for its keeper alone.")
    say(f"Fingerprint of the authority: {show(path).words}")


@certs.command("issue")
def issue_cert(
    name: Name,
    *,
    authority: Authority = Path("authority"),
    out: Annotated[Path, typer.Option(help="A folder to hand over to the party.")] = Path("certs"),
    days: Days = 397,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make a party's key and certificate, or renew its certificate."""
    from colonnade.wire.certs.authority import issue

    path = issue(authority, name, out=out, days=days, passphrase=_passphrase(authority, passphrase_file))
    _say_issued(path)
    say(f"{name} needs ca.pem, {path.name} and {path.stem}.key from {path.parent}; the key is for {name} alone.")


@certs.command("request")
def request_cert(name: Name, *, folder: Folder = Path("certs")) -> None:
    """Make a party's own key, which never leaves it, and a request that the authority may sign."""
    from colonnade.wire.certs.authority import request
    from colonnade.wire.certs.credentials import words_of

    path = request(folder, name)
    say(f"Written to {path}, which the authority needs, and {path.with_suffix('.key')}, which is for {name} alone.")
    say(f"Fingerprint of the request, to be compared by telephone: {words_of(path.read_bytes())}")


@certs.command("sign")
def sign_cert(
    name: Name,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `certs request` wrote.")],
    *,
    authority: Authority = Path("authority"),
    out: Annotated[Path | None, typer.Option(help="A folder to hand over; the request's if none is named.")] = None,
    days: Days = 397,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign a party's request, once its fingerprint was compared by telephone."""
    from colonnade.wire.certs.authority import sign

    path = sign(authority, name, request, out=out, days=days, passphrase=_passphrase(authority, passphrase_file))
    _say_issued(path)
    say(f"{name} needs {path.name} and ca.pem from {path.parent}.")


@certs.command("show")
def show_cert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate, or a request for one.")],
    *,
    words: Annotated[str | None, typer.Option(help="A fingerprint as somebody read it out, to compare with.")] = None,
) -> None:
    """Show whom a certificate names, until when, and its fingerprint in words for the telephone."""
    from colonnade.errors import AuthError
    from colonnade.storage import explained
    from colonnade.wire.certs.credentials import show, words_of
    from colonnade.wire.certs.words import from_words

    with explained(f"read {file}"):
        pem = file.read_bytes()
    if b"REQUEST" not in pem:
        identity = show(file)
        say(
            f"{identity.owner} of {identity.federation}, from {identity.not_before:%Y-%m-%d} to "
            f"{identity.not_after:%Y-%m-%d}."
        )
        if identity.not_after < datetime.now(UTC):
            warn("This certificate has expired. Have it issued or signed again.")
    say(f"Fingerprint: {words_of(pem)}")
    if words is not None:
        if from_words(words) != from_words(words_of(pem)):
            raise AuthError(
                f"Expected the fingerprint that was read out, but {file} has another one. "
                "Somebody may have exchanged it on the way; have it sent again."
            )
        say("They are the same.")


@certs.command("revoke")
def revoke_cert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate that is good no more.")],
    *,
    folder: Folder = Path("certs"),
) -> None:
    """Refuse a certificate, and every other one of its key, from now on; each party does so in its own folder."""
    from colonnade.wire.certs.credentials import revoke, show

    identity = show(file)
    path = revoke(folder, identity.fingerprint, identity.key, f"{identity.owner} of {identity.federation}")
    say(f"Written to {path}: {identity.owner} is refused under the certificate whose words are '{identity.words}'.")


@certs.command("key")
def make_storage_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("storage.key"),
) -> None:
    """Make a key under which recordings of runs are encrypted on disk; a plan names it as key_file."""
    from colonnade.wire.recording.storage_key import make_key

    say(f"Written to {make_key(file)}. Keep it where the recordings are not, and keep a copy.")


def _passphrase(authority: Path, file: Path | None) -> bytes | None:
    """The passphrase of an authority's key: from a file, or asked for if the key has one."""
    from colonnade.wire.certs.authority import has_passphrase
    from colonnade.wire.certs.credentials import read_file

    if file is None and has_passphrase(read_file(authority / "ca.key")):
        return _ask_passphrase()
    return _read_passphrase(file)


def _ask_passphrase(*, confirmed: bool = False) -> bytes:
    asked = "Passphrase of the authority's key"
    return str(typer.prompt(asked, hide_input=True, confirmation_prompt=confirmed, err=True)).encode()


def _read_passphrase(file: Path | None) -> bytes | None:
    from colonnade.wire.certs.credentials import read_file

    return None if file is None else read_file(file, secret=True).partition(b"\n")[0].rstrip(b"\r")


def _say_issued(path: Path) -> None:
    from colonnade.wire.certs.credentials import show

    identity = show(path)
    say(f"Written to {path}: {identity.owner} of {identity.federation}, until {identity.not_after:%Y-%m-%d}.")
    say(f"Fingerprint: {identity.words}")
