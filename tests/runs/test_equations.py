#!/usr/bin/env python3
"""scripts/equations.py: closed forms beside a search over what they are the best of."""
import contextlib
import io
import math
import sys
import unittest
from unittest import mock

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
        per_device = min(r.alpha / Mx / (1 - y / limit) / y for y in shares)
        self.assertAlmostEqual(per_device / eq.per_device_at_best(r, Mx, My, False), 1, delta=1e-5)


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
