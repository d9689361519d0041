"""Oblivious transfers: the chosen message and no other, choices that nobody sees, pads that serve once."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

from colonnade.crypto import kernels, transfers
from colonnade.crypto.transfers import Chooser, Sender, choose, in_turns, offer
from colonnade.errors import CryptoError


@pytest.fixture(scope="module")
def session():
    chooser = Chooser()
    sender = Sender(chooser.point)
    chooser.begin(sender.points)
    return chooser, sender


def pads(session, count, bits, width):
    chooser, sender = session
    theirs, sent = chooser.extend(count, bits, width)
    return theirs, sender.extend(count, bits, width, sent)


def in_words(messages, width):
    return np.bitwise_or.reduce(messages << (np.arange(messages.shape[1], dtype=np.uint64) * np.uint64(width)), axis=1)


@pytest.mark.parametrize(("bits", "width"), [(1, 1), (1, 32), (2, 16), (3, 1), (4, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_the_chooser_gets_the_message_of_its_choice(session, count, bits, width):
    random = np.random.default_rng(count)
    messages = random.integers(0, 2**width, (count, 2**bits), dtype=np.uint64)
    choices = random.integers(0, 2**bits, count, dtype=np.uint64)
    theirs, ours = pads(session, count, bits, width)
    found, _ = in_turns(choose(theirs, choices), offer(ours, in_words(messages, width)))
    assert (found == messages[np.arange(count), choices]).all()


def test_all_pads_but_the_chosen_one_are_random_to_the_chooser(session):
    theirs, ours = pads(session, 20_000, 2, 1)
    groups = (ours.words[:, None] >> np.arange(4, dtype=np.uint64)) & np.uint64(1)
    places = theirs.places.astype(int)
    assert (groups[np.arange(20_000), places] == theirs.pads).all()
    # Where the place differs, pads agree with the known one half of the time: five standard deviations are 0.018.
    for distance in (1, 2, 3):
        other = groups[np.arange(20_000), places ^ distance]
        assert np.mean(other == theirs.pads) == pytest.approx(0.5, abs=0.018)
    # Nor do two pads that the chooser does not know say anything of each other.
    one, two, three = (groups[np.arange(20_000), places ^ distance] for distance in (1, 2, 3))
    for a, b in ((one, two), (one, three), (two, three), (one ^ two, three)):
        assert np.mean(a == b) == pytest.approx(0.5, abs=0.018)


def test_what_the_sender_gets_of_choices_looks_random(session):
    theirs, _ = pads(session, 20_000, 1, 1)
    moved = theirs.moved(np.zeros(20_000, np.uint64))
    assert np.mean(moved) == pytest.approx(0.5, abs=0.018)
    chooser, _ = session
    _, sent = chooser.extend(20_032, 1, 1)
    session[1].extend(20_032, 1, 1, sent)
    ones = np.unpackbits(sent.view(np.uint8)).mean()
    assert ones == pytest.approx(0.5, abs=0.003)


def _u(point):
    return int.from_bytes(point.tobytes(), "little")


def times(number, u):
    """The u-coordinate of a multiple of a point of Curve25519, by the ladder of RFC 7748 without its clamping."""
    p, a24 = 2**255 - 19, 121665
    x2, z2, x3, z3 = 1, 0, u, 1
    for place in reversed(range(number.bit_length())):
        bit = number >> place & 1
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a % p, c * b % p
        x3, z3 = (da + cb) ** 2 % p, u * (da - cb) ** 2 % p
        aa, bb = a * a % p, b * b % p
        x2, z2 = aa * bb % p, (aa - bb) * (aa + a24 * (aa - bb)) % p
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return x2 * pow(z2, -1, p) % p


def test_points_with_a_known_key_look_like_the_others():
    sender = Sender(Chooser().point)
    points = sender.points.reshape(-1, 32)
    assert len({point.tobytes() for point in points}) == 2 * transfers.COLUMNS
    # Both kinds lie in the subgroup of prime order, so that its order plus 1 moves none of them.
    order = 2**252 + 27742317777372353535851937790883648493
    assert all(times(order + 1, _u(point)) == _u(point) for point in points[:8])


def test_words_times_bits_are_shared(session):
    random = np.random.default_rng(0)
    chooser, sender = session
    theirs, sent = chooser.extend_words(500)
    ours = sender.extend_words(500, sent)
    words = random.integers(0, 2**64, 500, dtype=np.uint64)
    bits = random.integers(0, 2, 500).astype(np.uint8)
    correction, share = ours.sealed(words, theirs.moved(bits))
    other = theirs.opened(correction, bits)
    assert (share + other == words * bits).all()
    assert len(np.unique(correction)) == 500


def test_bits_are_transposed_as_the_definition_says():
    columns = np.random.default_rng(0).integers(0, 2**64, (128, 3), dtype=np.uint64)
    rows = np.empty((192, 2), np.uint64)
    kernels.transpose_bits(columns, rows)
    bits = np.unpackbits(columns.view(np.uint8), axis=1, bitorder="little")
    assert (np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little") == bits.T).all()


def test_the_chooser_knows_one_of_two_keys_and_never_both(session):
    """Were both keys alike, the chooser could open the message that it did not choose."""
    chooser, sender = session
    choices = np.random.default_rng(0).integers(0, 2, 200).astype(np.uint8)
    known, sent = chooser.choose_keys(choices)
    both, rows = sender.both_keys(200, sent), np.arange(200)
    assert (both[rows, choices] == known).all()
    assert (both[rows, 1 - choices] != known).all()


def test_every_extension_draws_new_pads(session):
    first, second = (pads(session, 64, 5, 2)[1].words for _ in range(2))
    assert len(np.unique(np.concatenate([first, second]))) == 128


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda act: act.__name__)
@pytest.mark.parametrize("whose", [0, 1], ids=["chooser", "sender"])
def test_sides_cannot_be_copied(session, act, whose):
    with pytest.raises(CryptoError, match=r"holds secrets and cannot be copied. Begin a new session."):
        act(session[whose])


def _extend_in_child(connection, chooser):
    try:
        chooser.extend(10, 1, 1)
    except CryptoError as error:
        connection.send(str(error))
    else:
        connection.send("extended")


def test_a_forked_process_cannot_go_on_with_a_session(session):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_extend_in_child, args=(sender, session[0]))
    child.start()
    assert "serve the process that began them, but a forked process uses them" in receiver.recv()
    child.join()


def test_what_does_not_fit_is_refused(session):
    _, sender = session
    with pytest.raises(CryptoError, match=r"Transfers need the sender's points first"):
        Chooser().extend(1, 1, 1)
    with pytest.raises(CryptoError, match=r"Expected 128 pairs of points, got an array of shape \(2,\)"):
        Chooser().begin(np.zeros(2, np.uint8))
    for shape in [(0, 32), (2, 32), (32,)]:
        with pytest.raises(CryptoError, match=r"Expected one point of 32 bytes, got an array of shape"):
            Sender(np.full(shape, 9, np.uint8))
    with pytest.raises(CryptoError, match=r"Expected 128 columns of 2 words, got an array of shape \(128, 1\)"):
        sender.extend(100, 1, 1, np.zeros((128, 1), np.uint64))
    theirs, ours = pads(session, 10, 2, 1)
    with pytest.raises(CryptoError, match=r"Expected 10 numbers of 2 bits from the chooser, got something else"):
        ours.sealed(np.zeros(10, np.uint64), np.full(10, 4, np.uint64))
    with pytest.raises(CryptoError, match=r"Expected 10 words from the sender, got an array of shape \(9,\)"):
        theirs.opened(np.zeros(9, np.uint64), np.zeros(10, np.uint64))
    turns = offer(ours, np.zeros(10, np.uint64))
    next(turns)
    with pytest.raises(CryptoError, match=r"Expected 10 numbers of 2 bits, got an array of shape \(7,\)"):
        turns.send(np.zeros(7, np.uint64))
