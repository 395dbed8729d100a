#!/usr/bin/env python3
"""scripts/equations.py: closed forms beside a search over what they are the best of."""
import contextlib
import io
import math
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from harness import SOURCE

sys.path.insert(0, str(SOURCE / "scripts"))
import equations as eq  # noqa: E402  (after the path to it)

RATES = eq.Rates("a device", 989e12, 450e9)
LAYER = eq.Layer(65536, 4096, 10240)


def largest(hides):
    """The largest N >= 1 whose transfers hide, which those of all smaller N do."""
    low, high = 1.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if hides(middle) else (low, middle)
    return low


class Limits(unittest.TestCase):
    def hides(self, flop, seconds):
        return lambda N: seconds(N) <= flop(N) / RATES.flop * (1 + 1e-12)

    def test_the_largest_number_of_devices_is_that_of_a_search(self):
        wire = RATES.wire
        cases = ((LAYER.backward_flop, lambda N: eq.data_parallel_s(LAYER, N, wire), eq.most_data_parallel(LAYER, RATES)),
                 (LAYER.forward_flop, lambda N: eq.fsdp_s(LAYER, N, wire, False), eq.most_data_parallel(LAYER, RATES)),
                 (LAYER.backward_flop, lambda N: eq.fsdp_s(LAYER, N, wire, True), eq.most_data_parallel(LAYER, RATES)),
                 (LAYER.forward_flop, lambda N: eq.tensor_parallel_s(LAYER, N, wire), eq.most_tensor_parallel(LAYER, RATES, False)),
                 (LAYER.backward_flop, lambda N: eq.tensor_parallel_s(LAYER, N, wire), eq.most_tensor_parallel(LAYER, RATES, True)))
        for flop, seconds, found in cases:
            self.assertAlmostEqual(largest(self.hides(flop, seconds)) / found, 1, delta=1e-9)

    def test_two_axes(self):
        """Forward on Nf x Nt devices: each gathers its part of the weights from Nf, and sums its share of the rows over Nt."""
        def seconds(Nf, Nt):
            return (eq.ring(Nf, LAYER.weight_bytes / Nt, RATES.wire), 2 * eq.ring(Nt, 2 * LAYER.B / Nf * LAYER.Dm, RATES.wire))

        def best(in_turn):
            def most(Nf):
                whole = sum if in_turn else max
                Nt = largest(lambda Nt: whole(seconds(Nf, Nt)) <= LAYER.forward_flop(Nf * Nt) / RATES.flop * (1 + 1e-12))
                return Nf * Nt if whole(seconds(Nf, Nt)) <= LAYER.forward_flop(Nf * Nt) / RATES.flop * (1 + 1e-9) else 0
            return max(most(1 + 0.05 * i) for i in range(1, 800))

        self.assertAlmostEqual(best(False) / eq.most_both(LAYER, RATES), 1, delta=3e-3)  # a grid of 0.05
        self.assertAlmostEqual(best(True) / eq.most_both_in_turn(LAYER, RATES), 1, delta=1e-4)

    def test_two_axes_of_many_devices(self):
        """The short forms leave out one device of each axis: their error falls as B and F grow."""
        many = eq.Layer(1000 * LAYER.B, LAYER.Dm, 1000 * LAYER.F)
        self.assertAlmostEqual(eq.about_both(many, RATES) / eq.most_both(many, RATES), 1, delta=1e-3)
        self.assertAlmostEqual(eq.about_both(many, RATES, True) / eq.most_both_in_turn(many, RATES), 1, delta=1e-3)
        self.assertAlmostEqual(eq.about_both(LAYER, RATES), 208.4, delta=0.05)
        self.assertAlmostEqual(eq.about_both(LAYER, RATES, True), 52.1, delta=0.05)

    def test_backward_of_a_split_layer(self):
        """tp_calcs a on two devices beside differences of sum(dy * y)."""
        random = np.random.default_rng(1)
        x, W1, W2, W3, dy = (random.standard_normal(shape) for shape in ((3, 4), (4, 6), (4, 6), (6, 4), (3, 4)))
        f = lambda z: z / (1 + np.exp(-z))
        loss = lambda x, W1, W2, W3: np.sum(dy * ((f(x @ W1) * (x @ W2)) @ W3))
        dx = np.zeros_like(x)
        for part in (slice(0, 3), slice(3, 6)):
            w1, w2, w3 = W1[:, part], W2[:, part], W3[part]
            x1, x2 = x @ w1, x @ w2
            slope = (f(x1 + 1e-6) - f(x1 - 1e-6)) / 2e-6
            dz = dy @ w3.T
            dx2, dx1 = dz * f(x1), dz * slope * x2
            dx += dx1 @ w1.T + dx2 @ w2.T
            for number, gradient in ((1, x.T @ dx1), (2, x.T @ dx2), (3, (f(x1) * x2).T @ dy)):
                at = (0, part.start) if number < 3 else (part.start, 0)
                moved = [weight.copy() for weight in (W1, W2, W3)]
                moved[number - 1][at] += 1e-6
                self.assertAlmostEqual((loss(x, *moved) - loss(x, W1, W2, W3)) / 1e-6, gradient[0, 0], delta=1e-4)
        moved = x.copy()
        moved[1, 2] += 1e-6
        self.assertAlmostEqual((loss(moved, W1, W2, W3) - loss(x, W1, W2, W3)) / 1e-6, dx[1, 2], delta=1e-4)

    def test_an_all_reduce_of_whole_tensors(self):
        for N in (2, 6):
            self.assertAlmostEqual(eq.alternate_ring_s(N, 1e9, 1e9) / (2 * eq.ring(N, 1e9, 1e9)), N / 2)


class Accounting(unittest.TestCase):
    def test_buckets(self):
        s, w, o = 8e9, 233e9, 50e-6
        best = min(range(1, 200), key=lambda n: eq.after_backward_s(s, w, o, n))
        self.assertLess(abs(eq.best_buckets(s, w, o) - best), 1)
        self.assertAlmostEqual(eq.after_backward_s(s, w, o, eq.best_buckets(s, w, o)), 2 * math.sqrt(s * o / w))

    def test_checkpoints(self):
        N, r, k = 32, 80, 3651
        self.assertEqual(min(range(1, N + 1), key=lambda n: eq.one_level(N, r, k, n)), max(1, round(eq.best_unit(N, r, k))))
        self.assertEqual(min(eq.one_level(N, r, r, n) for n in range(1, N + 1)), eq.one_level(N, r, r, round(eq.best_unit(N, r, r))), "k = r: the root of N")

        def recursive(count):
            """Peak of halves: the checkpoint in the middle, then either half."""
            return k if count == 1 else r + recursive(count // 2)
        self.assertEqual(eq.halves(N, r, k), recursive(N))

    def test_the_large_model(self):
        self.assertEqual(eq.XXL, sum(C * F for _ in range(126) for C, F in ((16384, 53248), (53248, 16384))))
        for tokens in (0, 2048, 4096, 10827):
            N = eq.least_devices(tokens, 95e9)
            self.assertLess(eq.sharded(tokens, N), 95e9)
            self.assertGreaterEqual(eq.sharded(tokens, N - 1), 95e9)
        self.assertIsNone(eq.least_devices(10828, 95e9))

    def test_two_axes_of_the_large_model(self):
        """Tokens at which a block's products take as long as its transfers."""
        r, X, Y, Mx, My = eq.TPU, 16, 4, 2, 1
        math_s = lambda n, X, Y: 4 * n * eq.C * eq.F / (X * Y * r.flop)
        fsdp_s = lambda Y: 4 * eq.C * eq.F / (Y * r.wire * Mx)
        tp_s = lambda n, X: 4 * n * eq.C / (X * r.wire * My)
        n = eq.tokens_in_turn(r, X, Y, Mx, My)
        self.assertAlmostEqual(math_s(n, X, Y) / (fsdp_s(Y) + tp_s(n, X)), 1)
        n = eq.tokens_at_once(r, X, Mx)
        self.assertAlmostEqual(math_s(n, X, Y) / fsdp_s(Y), 1)
        self.assertLess(tp_s(n, X), math_s(n, X, Y))
        limit = eq.F * My / r.alpha
        shares = [i / 1000 * limit for i in range(1, 1000)]  # of Y
        each = lambda y: r.alpha / Mx / (1 - y / limit) / y
        self.assertAlmostEqual(each(min(shares, key=each)) / eq.per_device_at_best(r, Mx, My, False), 1, delta=1e-5)
        self.assertAlmostEqual(min(shares, key=each), eq.best_y(r, My), delta=limit / 1000)

    def test_the_whole_batch_is_that_of_all_devices(self):
        columns, rows = eq.xxl_table()
        self.assertEqual(columns[-1], "whole batch of 64 devices")
        batches = [row[-1] for row in rows if row[0] == "c" and row[-1]]
        self.assertEqual([round(each) for each in batches], [25302, 20444, 15699])
        self.assertEqual([row[-1] / row[-2] for row in rows if row[-1]], [64] * 5)


class Measured(unittest.TestCase):
    """Stored rows beside their equations."""

    @classmethod
    def setUpClass(cls):
        cls.rates = eq.stored_rates()[0][1]
        cls.tables = eq.measured_tables(cls.rates)

    def column(self, name, title):
        _, columns, rows = self.tables[name]
        return [row[i] for row in rows for i, column in enumerate(columns) if column == title]

    def test_without_a_number_there_is_no_difference(self):
        self.assertTrue(math.isnan(eq.difference(math.nan, 5)))
        self.assertEqual(eq.difference(5.0001, 5), 0)
        self.assertAlmostEqual(eq.difference(6, 5), 20)

    def test_a_difference_is_of_the_two_cells_before_it(self):
        for name, first in (("sent", 3), ("shards", 3), ("shards", 6), ("shards", 10), ("scaling", 6)):
            _, columns, rows = self.tables[name]
            self.assertEqual(columns[first + 2], "difference, %")
            for row in rows:
                self.assertAlmostEqual(row[first + 2], 100 * (row[first + 1] / row[first] - 1), delta=0.006)
        for row in self.tables["saved"][2]:
            for place in (2, 4):
                self.assertAlmostEqual(row[place + 1], 100 * (row[place] / row[1] - 1), delta=0.006)

    def test_shards_keep_what_sharding_expects(self):
        from experiments import sharding
        from experiments.homes import homes
        from results import Results
        for row in Results(homes()["sharding"]).rows:
            keeps = eq.SHARDS[row["parallel.shard"]][1](row.ranks)
            self.assertAlmostEqual(keeps * row["parameters"], sum(sharding.expected(row)), delta=1)

    def test_a_step_whose_transfers_hide(self):
        self.assertEqual(eq.scaled_ms(100, 10, 1), 100)
        self.assertEqual(eq.scaled_ms(100, 10, 1 / 3), 40)

    def test_the_stored_model_keeps_its_blocks(self):
        N, r, k = eq.block_of("memory_2p7b", 2048, "fp32")
        self.assertEqual((N, r), (32, 4 * 2048 * 2560 * 4 / 2**20))
        self.assertEqual(eq.saved(N, r, k, 4), N * k - 8 * r - 4 * k)

    def test_the_answer_says_what_the_tables_say(self):
        answer = re.search(r"\*\*Answer\.\*\*(.*)\*\*Next\.\*\*", eq.page_of(SOURCE).read_text(), re.S)[1]
        answer = " ".join(answer.split())
        self.assertLessEqual(len(answer.split()), 150)
        sent = list(zip(self.column("sent", "devices"), self.column("sent", "difference, %")))
        near = [each for N, each in sent if N == 2] + self.column("shards", "difference, %") + self.column("saved", "difference, %")
        self.assertIn(f"within {math.ceil(10 * max(map(abs, near))) / 10} % of the equations", answer)
        self.assertIn(f"up to {max(each for N, each in sent if N == 4):.0f} % longer", answer)
        longer = self.column("scaling", "difference, %")
        self.assertIn(f"steps take {min(longer):.2g} to {max(longer):.2g} % longer", answer)
        for N, most in zip(self.column("scaling", "devices"), self.column("scaling", "largest N: 1 + B W / (2 C)")):
            self.assertLess(N, most, "no transfer of size large needs to show")

        _, columns, rows = eq.tables()[5]
        exposed = {row[0]: row[columns.index("difference, %")] for row in rows[1:]}
        times = {buckets: 1 + each / 100 for buckets, each in exposed.items()}
        self.assertIn(f"1000 MB {times['s / 1000 MB']:.1f} times", answer)
        for buckets, part in (("s / 1 MB", 1 / 2), ("s / 10 MB", 1 / 3)):
            self.assertAlmostEqual(times[buckets], part, delta=0.05)
        self.assertIn("Buckets of 1 and 10 MB expose a third to a half of their equation", answer)

    def test_the_picture_has_every_difference(self):
        groups = eq.differences()
        self.assertEqual(sum(map(len, groups.values())), 4 + 3 * 8 + 2 * 4)  # but for those of --plan, of checkpoints
        with tempfile.TemporaryDirectory() as folder:
            eq.draw(groups, "Measured above its equation, %", 0, Path(folder, "differences.png"))
            self.assertGreater(Path(folder, "differences.png").stat().st_size, 1000)

    def test_every_difference_stands_on_the_page(self):
        page = eq.page_of(SOURCE).read_text()
        for title, columns, rows in self.tables.values():
            self.assertIn(title, page)
            self.assertGreater(len(rows), 2)
        self.assertIn("no run", page)


class Script(unittest.TestCase):
    def test_prints_tables_and_refuses_other_words(self):
        with mock.patch.object(sys, "argv", ["equations.py"]), contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(eq.main(), 0)
        self.assertIn("fsdp_tp_calcs a", printed.getvalue())
        with mock.patch.object(sys, "argv", ["equations.py", "--write"]), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(eq.main(), 2)

    def test_a_changed_figure_is_found(self):
        page = eq.page_of(SOURCE).read_text()
        self.assertEqual(eq.fault(page), "")
        self.assertIn("219,848,638,464", eq.fault(page.replace("219,848", "219,849")))
        self.assertIn("no generated part", eq.fault(page.replace("<!-- end -->", "")))


if __name__ == "__main__":
    unittest.main()
