"""Simulated caches, and the bound that no router exceeds."""

import argparse
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ideal  # noqa: E402
import workload  # noqa: E402


def setting(**other):
    base = dict(workers=3, blocks=256, high=1.0, low=1.0, requests=150, prefixes=24, prefix_tokens=1000, exponent=1.0, seed=0)
    return argparse.Namespace(**base | other)


class Ideal(unittest.TestCase):
    def test_the_bound_is_above_every_router(self):
        for prefixes in (4, 24, 96):
            for blocks in (64, 256, 1024):
                found = ideal.bounds(setting(prefixes=prefixes, blocks=blocks))
                self.assertLessEqual(max(found["round_robin"], found["partition"], found["informed"]), found["bound"] + 0.03)
                self.assertLessEqual(found["round_robin"], found["informed"])

    def test_memory_for_all_leaves_the_first_request_of_each_prefix(self):
        found = ideal.bounds(setting(blocks=10_000))
        seen = len(set(workload.order(setting())))
        self.assertAlmostEqual(found["informed"], (150 - seen) * 31 * 32 / (150 * 1024), places=3)

    def test_a_cache_evicts_the_end_of_the_least_recent_prefix(self):
        cache = ideal.Cache(10, 1.0, 1.0)
        self.assertEqual([cache.use(prefix, 4, 0, number) for number, prefix in enumerate("abab")], [0, 0, 4, 4])
        self.assertEqual(cache.use("c", 4, 0, 4), 0)
        self.assertEqual((cache.has("a"), cache.has("b"), cache.has("c")), (2, 4, 4))

    def test_prefixes_follow_the_distribution(self):
        found = workload.order(setting(requests=20_000))
        self.assertAlmostEqual(found.count(0) / found.count(1), 2.0, delta=0.15)


if __name__ == "__main__":
    unittest.main()
