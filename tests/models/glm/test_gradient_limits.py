"""What a party of a regression with an arbiter may have opened: each way to labels that was found, and its refusal."""

import base64
import json
import multiprocessing
import threading

import numpy as np
import pytest

from colonnade import audit
from colonnade.attacks.labels.lattice import LatticeLabels
from colonnade.attacks.labels.regression import GroupSums, Residue
from colonnade.crypto.additive import SUM_BITS, Widths, column_scales
from colonnade.errors import PlanError, PrivacyError, StorageError
from colonnade.models.glm import arbiter as glm_arbiter
from colonnade.models.glm.estimator import LinearRegression, LogisticRegression
from colonnade.models.glm.openings import MOST_HASHES, Openings, RowSketch
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.storage import SharedLog
from colonnade.tables.table import Table
from colonnade.testing import attempt_on

JUDGED = Roles(label="bank", features=("shop",), arbiter="judge")
LAX = {"rows_per_column": 10, "fewest_rows": 1}


def bank(labels, seed=0, ids=None):
    x = np.random.default_rng(seed).standard_normal(len(labels))
    ids = np.arange(len(labels)) if ids is None else ids
    return Table.of({"id": ids, "x": x, "y": labels}, labels="y", owner="bank")


def shop(columns, ids=None):
    n_rows = len(next(iter(columns.values())))
    return Table.of({"id": np.arange(n_rows) if ids is None else ids} | columns, owner="shop")


def numbers(n_rows, n_columns, seed=1):
    random = np.random.default_rng(seed)
    return {f"c{i}": random.standard_normal(n_rows) for i in range(n_columns)}


def coin(n_rows, seed=2):
    return np.random.default_rng(seed).integers(0, 2, n_rows)


def villages(n_rows=3000, alone=12):
    """A few towns, and villages of one person each."""
    random = np.random.default_rng(3)
    towns = np.array([f"town {i}" for i in random.integers(0, 3, n_rows)], object)
    people = random.choice(n_rows, alone, replace=False)
    towns[people] = [f"village {i}" for i in range(alone)]
    return towns, people


def trained(tables, model, **options):
    return simulate(model.fit, tables, roles=JUDGED, seed=1, **options)


def guessed(run, attack):
    attempt = attempt_on(run, attack, "shop")
    return attempt.attack.guess(attempt.view(run))


def findings(run, attack):
    return [finding for finding in audit(run, [attack], nulls=20).attacks if finding.attacker == "shop"]


class TestRareLevels:
    """A level of one person has that person's label as its gradient."""

    @pytest.fixture(scope="class")
    @classmethod
    def told(cls):
        labels, (towns, people) = coin(3000), villages()
        labels[people] = np.arange(len(people)) % 2
        tables = {"bank": bank(labels), "shop": shop({"town": towns, **numbers(3000, 1)})}
        return tables, labels, people

    @pytest.mark.slow
    def test_all_single_labels_are_read_where_the_limits_are_off_and_the_audit_says_so(self, told):
        tables, labels, people = told
        run = trained(tables, LogisticRegression(max_iter=1, **LAX))
        guess = guessed(run, GroupSums())
        assert sorted(guess.rows) == sorted(people)
        assert ((guess.scores > 0) == labels[guess.rows]).all()
        (finding,) = findings(run, GroupSums())
        assert finding.verdict == "leaks"

    def test_rare_levels_are_merged_so_that_no_gradient_is_of_few_rows(self, told):
        tables, _, people = told
        run = trained(tables, LogisticRegression(max_iter=1))
        share = run.results["shop"]
        matrix = share.design_.matrix(tables["shop"])
        assert not any("village" in name for name in share.coefficients)
        assert all(np.count_nonzero(column) >= 20 for column in np.asarray(matrix).T)
        # Rows without a level's column are a group too: towns add up to all but these.
        without = 3000 - int(np.asarray(matrix)[:, 1:].sum())
        assert without >= 20
        assert set(guessed(run, GroupSums()).rows) - set(people)

    def test_a_level_with_few_rows_in_some_batch_is_merged(self):
        towns = np.array(["a", "b", "c"], object)[np.random.default_rng(0).choice(3, 2000, p=[0.48, 0.48, 0.04])]
        tables = {"bank": bank(coin(2000)), "shop": shop({"town": towns})}
        names = [
            list(trained(tables, LogisticRegression(max_iter=1, batch_size=size)).results["shop"].coefficients)
            for size in (None, 250)
        ]
        assert names[0] == ["town=a", "town=b", "town=c"]
        assert "town=c" not in names[1]

    def test_numbers_and_flags_of_few_rows_are_refused_by_name(self):
        flag, holes = np.zeros(1000), np.random.default_rng(0).standard_normal(1000)
        flag[:5], holes[10:13] = 1.0, np.nan
        tables = {"bank": bank(coin(1000)), "shop": shop({"rich": flag, "income": holes})}
        words = r"at least 20 rows of each batch \(fewest_rows\) .* but 'rich', 'income missing' do not"
        with pytest.raises(PrivacyError, match=words):
            trained(tables, LogisticRegression(max_iter=1))
        trained(tables, LogisticRegression(max_iter=1, fewest_rows=1))

    def test_without_an_arbiter_no_gradient_is_opened_and_nothing_is_merged(self, told):
        tables, _, _ = told
        roles = Roles(label="bank", features=("shop",))
        run = simulate(LinearRegression(max_iter=1, tol=0).fit, tables, roles=roles)
        assert any("village" in name for name in run.results["shop"].coefficients)


class TestKnapsack:
    """Sums of integers over binary labels."""

    @pytest.mark.slow
    @pytest.mark.parametrize(("n_rows", "n_columns"), [(61, 6), (101, 10)])
    def test_reduction_reads_every_label_where_ten_rows_per_column_are_enough(self, n_rows, n_columns):
        labels = coin(n_rows)
        tables = {"bank": bank(labels), "shop": shop(numbers(n_rows, n_columns))}
        with pytest.raises(
            PrivacyError, match=rf"columns, so a batch needs more than .* but the smallest has {n_rows}"
        ):
            trained(tables, LogisticRegression(max_iter=1))
        run = trained(tables, LogisticRegression(max_iter=1, gradient_bits=None, **LAX))
        guess = guessed(run, LatticeLabels(seconds=300.0))
        assert sorted(guess.rows) == list(range(n_rows))
        np.testing.assert_array_equal(guess.scores, labels[guess.rows])

    @pytest.mark.slow
    # Null runs are as hard as the run itself: with 24 bits of 61 rows each of the twenty takes a quarter of a minute or
    # far more, with 26 bits, the default, a tenth of a second.
    @pytest.mark.parametrize(("bits", "n_rows"), [(None, 61), (26, 61), (24, 41)])
    def test_the_audit_names_the_leak(self, bits, n_rows):
        tables = {"bank": bank(coin(n_rows)), "shop": shop(numbers(n_rows, 6))}
        run = trained(tables, LogisticRegression(max_iter=1, gradient_bits=bits, rows_per_column=0, fewest_rows=1))
        (finding,) = findings(run, LatticeLabels(seconds=300.0))
        assert finding.verdict == "leaks"

    def test_rounded_sums_of_few_rows_still_give_every_label_away(self):
        labels = coin(31)
        tables = {"bank": bank(labels), "shop": shop(numbers(31, 6))}
        run = trained(tables, LogisticRegression(max_iter=1, rows_per_column=0, fewest_rows=1))
        assert run.results["shop"].gradient_bits == 26
        guess = guessed(run, LatticeLabels())
        np.testing.assert_array_equal(guess.scores, labels[guess.rows])

    def test_where_sums_cannot_determine_the_labels_the_guess_is_that_of_least_squares(self):
        tables = {"bank": bank(coin(300)), "shop": shop(numbers(300, 2))}
        run = trained(tables, LogisticRegression(max_iter=1))
        np.testing.assert_array_equal(guessed(run, LatticeLabels()).scores, guessed(run, Residue()).scores)


class TestSparseDesigns:
    def test_residue_reads_a_sparse_design(self):
        towns = np.array([f"town {i}" for i in np.random.default_rng(0).integers(0, 15, 3000)], object)
        tables = {"bank": bank(coin(3000)), "shop": shop({"town": towns, **numbers(3000, 1)})}
        run = trained(tables, LogisticRegression(max_iter=1))
        assert run.results["shop"].design_.is_sparse
        assert len(guessed(run, Residue()).rows) == 3000


class TestGreed:
    """A party that multiplies by the identity instead of its columns."""

    def test_a_message_of_more_sums_than_columns_is_refused_by_the_arbiter_by_name(self, monkeypatch):
        n_rows = 300
        tables = {"bank": bank(coin(n_rows)), "shop": shop(numbers(n_rows, 2))}
        honest = glm_arbiter.EncryptedFeatureSide._gradient

        def greedy(side, step, batch, output, residuals):
            prepared = side.key.prepare(np.eye(n_rows, dtype=np.int64), side.block)
            side.opened(step, side.key.product(prepared, residuals), n_rows, np.zeros(n_rows, np.uint64))
            return honest(side, step, batch, output, residuals)

        monkeypatch.setattr(glm_arbiter.EncryptedFeatureSide, "_gradient", greedy)
        with pytest.raises(
            PrivacyError, match=r"shop may have 2 sums opened in step 0, as bank said, but asks for 300"
        ):
            trained(tables, LogisticRegression(max_iter=1))

    def test_a_party_that_says_it_has_as_many_columns_as_rows_is_refused_by_the_label_party(self, monkeypatch):
        n_rows, honest = 300, glm_arbiter.EncryptedFeatureSide.begin
        tables = {"bank": bank(coin(n_rows)), "shop": shop(numbers(n_rows, 2))}

        def boastful(side):
            side.n_columns = n_rows
            honest(side)

        monkeypatch.setattr(glm_arbiter.EncryptedFeatureSide, "begin", boastful)
        with pytest.raises(PrivacyError, match=r"shop has 300 columns, so a batch needs more than 19200 rows"):
            trained(tables, LogisticRegression(max_iter=1))


class TestRuns:
    """Columns that several runs open on the same rows."""

    def runs(self, folder, n_runs, *, n_rows=300, columns=None, rows=None):
        labels = coin(n_rows)
        for i in range(n_runs):
            kept = np.arange(n_rows) if rows is None else rows(i)
            own = {name: held[kept] for name, held in (columns or (lambda i: numbers(n_rows, 1, seed=i)))(i).items()}
            tables = {"bank": bank(labels[kept], ids=kept), "shop": shop(own, ids=kept)}
            model, directory = LogisticRegression(max_iter=1), folder / f"run {i}"
            for name in JUDGED.parties:
                for ending in ("", ".key"):
                    log = folder / f"openings-of-{name}{ending}"
                    if log.exists():
                        (directory / name).mkdir(parents=True, exist_ok=True)
                        (directory / name / log.name).write_bytes(log.read_bytes())
            trained(tables, model, directory=directory)
            for log in directory.glob("*/openings-of-*"):
                (folder / log.name).write_bytes(log.read_bytes())

    def test_new_columns_on_the_same_rows_are_counted_over_runs_and_refused(self, tmp_path):
        with pytest.raises(PrivacyError, match=r"shop has 1 columns and had about 4\.0 others opened on these rows"):
            self.runs(tmp_path, 5)
        lines = [json.loads(line) for line in (tmp_path / "openings-of-bank").read_text().splitlines()]
        assert [line["columns"] for line in lines if line["peer"] == "shop"] == [1] * 4

    def test_thirteen_runs_of_25_new_columns_give_all_labels_away_and_the_log_stops_the_second(self, tmp_path):
        labels, columns, sums = coin(300), [], []
        for i in range(13):
            tables = {"bank": bank(labels), "shop": shop(numbers(300, 25, seed=i))}
            model = LogisticRegression(max_iter=1, gradient_bits=None, **LAX)
            share = trained(tables, model).results["shop"]
            columns.append(share.design_.matrix(tables["shop"]))
            sums.append(share.gradients_[0])
        residuals = np.linalg.lstsq(np.hstack(columns).T, np.concatenate(sums), rcond=None)[0]
        np.testing.assert_array_equal((-residuals > 0).astype(int), labels)
        # With the default limit no run of 25 columns on 300 rows begins, nor do 25 runs of one column each.
        with pytest.raises(PrivacyError, match=r"shop has 25 columns, so a batch needs more than 1600 rows"):
            self.runs(tmp_path / "wide", 1, columns=lambda i: numbers(300, 25, seed=i))
        with pytest.raises(PrivacyError, match=r"and had about 4\.0 others opened on these rows by earlier runs"):
            self.runs(tmp_path / "narrow", 25)
        for who in ("bank", "judge"):
            lines = [json.loads(line) for line in (tmp_path / "narrow" / f"openings-of-{who}").read_text().splitlines()]
            assert 64 * sum(line["columns"] for line in lines if line["peer"] == "shop") < 300

    def test_the_arbiter_counts_over_runs_even_where_the_label_party_has_lost_its_log(self, tmp_path, monkeypatch):
        honest = Openings.kept_by
        monkeypatch.setattr(
            Openings, "kept_by", lambda party: Openings(None) if party.name == "bank" else honest(party)
        )
        with pytest.raises(PrivacyError, match=r"shop has 1 columns and had about 4\.0 others opened on these rows"):
            self.runs(tmp_path, 5)

    def test_of_three_classes_each_column_counts_twice_at_label_party_and_arbiter(self, tmp_path):
        tables = {"bank": bank(np.arange(600) % 3), "shop": shop(numbers(600, 2))}
        trained(tables, LogisticRegression(max_iter=1), directory=tmp_path)
        for who, counted in (("bank", {"shop": 4}), ("judge", {"bank": 4, "shop": 4})):
            lines = map(json.loads, (tmp_path / who / f"openings-of-{who}").read_text().splitlines())
            assert {line["peer"]: line["columns"] for line in lines} == counted
        tables = {"bank": bank(np.arange(250) % 3), "shop": shop(numbers(250, 2))}
        with pytest.raises(PrivacyError, match=r"shop has 4 columns, so a batch needs more than 256 rows"):
            trained(tables, LogisticRegression(max_iter=1))

    def test_the_same_columns_are_counted_once(self, tmp_path):
        self.runs(tmp_path, 6, columns=lambda i: numbers(300, 1))
        assert len((tmp_path / "openings-of-bank").read_text().splitlines()) == 1

    def test_leaving_a_row_out_does_not_make_the_rows_new(self, tmp_path):
        with pytest.raises(PrivacyError, match=r"others opened on these rows by earlier runs"):
            self.runs(tmp_path, 6, rows=lambda i: np.delete(np.arange(300), i))

    def test_the_log_names_no_id_and_the_key_is_readable_by_its_owner_alone(self, tmp_path):
        self.runs(tmp_path, 1, rows=lambda i: np.arange(300))
        (log,) = (json.loads(line) for line in (tmp_path / "openings-of-bank").read_text().splitlines())
        assert set(log) == {"peer", "token", "columns", "batch_rows", "n_rows", "rows"}
        hashes = np.frombuffer(base64.b64decode(log["rows"]), "<u8")
        assert len(hashes) == 300
        assert hashes.min() > 300
        (key,) = tmp_path.glob("run 0/bank/*.key")
        assert key.stat().st_mode & 0o777 == 0o600


def sketch(ids, batch_rows=None):
    table = Table.of({"id": ids, "a": np.zeros(len(ids))})
    return RowSketch.of(table, [np.arange(batch_rows or len(ids))], bytes(32))


@pytest.mark.parametrize("n_rows", [100, 20 * MOST_HASHES])
def test_sketches_estimate_how_many_rows_two_runs_share(n_rows):
    ids = np.arange(2 * n_rows)
    for share in (0.0, 0.5, 1.0):
        start = int((1 - share) * n_rows)
        exact = 0 if n_rows <= MOST_HASHES else 0.1
        assert sketch(ids[:n_rows]).share_in(sketch(ids[start : start + n_rows])) == pytest.approx(
            share, abs=exact + 1e-9
        )


def test_two_hundred_rows_do_not_pay_for_columns_that_were_opened_on_others():
    openings = Openings(None)
    for start in range(5):
        openings.admit("shop", bytes([start]) * 32, 3, sketch(np.arange(200) + 200 * start), 64)
    with pytest.raises(PrivacyError, match=r"had about 3\.0 others"):
        openings.admit("shop", bytes(32 * [9]), 1, sketch(np.arange(200)), 64)


def admit_one(path, number):
    """Count one column of its own, from another process."""
    Openings(path).admit("shop", bytes([number]) * 32, 1, sketch(np.arange(300)), 64)


def test_runs_at_the_same_time_cannot_open_more_than_the_log_allows_together(tmp_path):
    log = tmp_path / "openings-of-bank"
    context = multiprocessing.get_context("fork")
    runs = [context.Process(target=admit_one, args=(log, number)) for number in range(8)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(run.exitcode for run in runs) == [0] * 4 + [1] * 4
    assert len(log.read_text().splitlines()) == 4
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_check_waits_until_another_run_has_written(tmp_path):
    log = tmp_path / "openings-of-bank"
    with SharedLog(log, "columns").locked():
        waiting = threading.Thread(target=admit_one, args=(log, 1))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert log.read_text() == ""
    waiting.join()
    assert len(log.read_text().splitlines()) == 1


def test_a_damaged_log_is_refused(tmp_path):
    (tmp_path / "log").write_text('{"peer": "shop"}\n')
    with pytest.raises(StorageError, match=r"is damaged\. Restore it; do not delete it"):
        Openings(tmp_path / "log")


class TestRounding:
    """The arbiter opens the highest bits of a gradient."""

    def test_a_rounded_gradient_is_off_by_half_a_unit_at_most_and_not_less_on_the_whole(self):
        n_rows, bits = 700, 24
        tables = {"bank": bank(coin(n_rows)), "shop": shop(numbers(n_rows, 10))}
        exact, rounded = (
            trained(tables, LogisticRegression(max_iter=1, gradient_bits=each)).results["shop"] for each in (None, bits)
        )
        scales = column_scales(np.abs(exact.design_.matrix(tables["shop"])).max(axis=0), Widths.of(n_rows).column_bits)
        fraction = Widths.of(n_rows).residual_bits - 1 - 5
        off = np.ldexp(rounded.gradients_[0] - exact.gradients_[0], scales + fraction)
        assert np.abs(off).max() <= 2 ** (SUM_BITS - bits - 1)
        assert np.abs(off).mean() > 2 ** (SUM_BITS - bits - 1) / 8

    def test_a_run_of_the_same_inputs_rounds_the_same_and_one_of_others_uses_other_masks(self):
        n_rows = 400
        one, other = coin(n_rows), coin(n_rows, seed=3)
        held = shop(numbers(n_rows, 2))
        runs = [
            trained({"bank": bank(labels), "shop": held}, LogisticRegression(max_iter=2, tol=0))
            for labels in (one, one, other)
        ]
        gradients = [run.results["shop"].gradients_ for run in runs]
        np.testing.assert_array_equal(gradients[0], gradients[1])
        np.testing.assert_array_equal(runs[0].results["bank"].gradients_, runs[1].results["bank"].gradients_)
        # A rounded sum is a multiple of the unit less the mask.
        low = [self.masks_below(run.results["shop"], held) for run in runs]
        np.testing.assert_array_equal(low[0], low[1])
        assert (low[0] != low[2]).all()

    def masks_below(self, share, table):
        """The bits of a party's masks below the arbiter's unit, in the first step."""
        widths = Widths.of(len(table))
        scales = column_scales(np.abs(share.design_.matrix(table)).max(axis=0), widths.column_bits)
        sums = np.ldexp(share.gradients_[0], scales + widths.residual_bits - 6).astype(np.int64)
        return -sums % 2 ** (SUM_BITS - share.gradient_bits)

    def test_epochs_of_one_run_narrow_the_sums_of_labels_where_the_party_knows_the_scores(self, monkeypatch):
        sides, scores, honest = [], [], glm_arbiter.EncryptedFeatureSide._own_scores

        def kept(side, batch):
            found = honest(side, batch)
            sides.append(side)
            scores.append(np.ldexp(found.view(np.int64).astype(np.float64), -glm_arbiter.SCORE_BITS))
            return found

        monkeypatch.setattr(glm_arbiter.EncryptedFeatureSide, "_own_scores", kept)
        labels, epochs = coin(150), 12
        tables = {"bank": bank(labels).select([]), "shop": shop(numbers(150, 2))}
        run = trained(tables, LogisticRegression(max_iter=epochs, tol=0, fit_intercept=False))
        (columns,), fraction = (
            sides[0].columns.of_batch(0, lambda part: part.integers.astype(np.float64)),
            sides[0].fraction,
        )
        unit = 2.0 ** (SUM_BITS - run.results["shop"].gradient_bits)
        means = np.rint(np.ldexp(LogisticRegression.family.table(np.array(scores)), fraction))
        told = means @ columns - np.ldexp(run.results["shop"].gradients_, sides[0].scales + fraction)
        low, high = (told - unit / 2).max(axis=0), (told + unit / 2).min(axis=0)
        exact = np.ldexp(labels @ columns, fraction)
        assert (low <= exact).all()
        assert (exact <= high).all()
        assert (high - low).mean() < 4 * unit / epochs

    @pytest.mark.slow
    def test_rounded_gradients_keep_the_fit_and_lose_the_low_bits(self):
        n_rows = 2000
        tables = {"bank": bank(coin(n_rows)), "shop": shop(numbers(n_rows, 2))}
        exact, rounded = (
            trained(tables, LogisticRegression(max_iter=30, gradient_bits=bits)).results["shop"] for bits in (None, 26)
        )
        assert not (exact.gradients_[0] == rounded.gradients_[0]).any()
        # A row whose score falls on the other side of a boundary of the table moves coefficients as well.
        np.testing.assert_allclose(rounded.coef_, exact.coef_, atol=5e-4)
        with pytest.raises(PlanError, match="gradient_bits should be None or a whole number, from 20 to 53, but is 8"):
            trained(tables, LogisticRegression(gradient_bits=8))
