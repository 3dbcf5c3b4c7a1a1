"""Workers of one endpoint agree, or one of them does not serve."""

import asyncio
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import agreement  # noqa: E402


def described(**other):
    base = dict(fingerprint=b"\x01" * 32, block_tokens=32, kv_policy="f16", context_length=4096)
    return SimpleNamespace(**base | other)


class Cards:
    """Instances and model cards as a client of Dynamo shows them."""

    def __init__(self, cards):
        self.cards = cards

    def instance_ids(self):
        return list(self.cards)

    async def wait_for_instances_by_runtime_data(self, key, value, count, _seconds):
        found = sorted(id for id, card in self.cards.items() if card.get(key) == value)
        if len(found) < count:
            raise TimeoutError(f"{len(found)} of {count}")
        return found


def check(client, own, *ids):
    with mock.patch.multiple(agreement, PATIENCE=0.05, PAUSE=0.01):
        asyncio.run(agreement.check(client, agreement.properties(own), "server:1", *ids))


class Agreement(unittest.TestCase):
    def test_the_first_worker_and_equal_ones_serve(self):
        check(Cards({}), described())
        check(Cards({1: agreement.properties(described()), 2: agreement.properties(described())}), described())

    def test_a_difference_is_one_line_that_names_it(self):
        client = Cards({1: agreement.properties(described()), 2: agreement.properties(described())})
        for other, name in [
            (dict(fingerprint=b"\x02" * 32), "weights 0202"), (dict(block_tokens=64), "block size 64"),
            (dict(kv_policy="q8"), "KV policy q8"), (dict(context_length=2048), "context length 2048"),
        ]:
            with self.assertRaises(agreement.Disagreement) as raised:
                check(client, described(**other))
            text = str(raised.exception)
            self.assertIn(f"its {name}", text)
            self.assertEqual(text.count("its "), 1, text)
            self.assertNotIn("\n", text)

    def test_one_of_several_that_differs_is_enough(self):
        client = Cards({1: agreement.properties(described()), 2: agreement.properties(described(kv_policy="q8"))})
        with self.assertRaises(agreement.Disagreement):
            check(client, described())

    def test_a_worker_of_other_software_differs(self):
        with self.assertRaises(agreement.Disagreement):
            check(Cards({1: {}}), described())

    def test_a_killed_worker_is_waited_for(self):
        client = Cards({1: agreement.properties(described(kv_policy="q8"))})

        async def run():
            asyncio.get_running_loop().call_later(0.1, client.cards.clear)
            await agreement.check(client, agreement.properties(described()), "server:1")

        with mock.patch.multiple(agreement, PATIENCE=5.0, PAUSE=0.01):
            asyncio.run(run())

    def test_of_two_that_begin_together_the_higher_id_leaves(self):
        one, two = agreement.properties(described()), agreement.properties(described(kv_policy="q8"))
        client = Cards({1: one, 2: two})

        def late(own, id):
            asyncio.run(agreement.check_lower(client, own, id, "server:1"))

        with mock.patch.multiple(agreement, PATIENCE=0.05, PAUSE=0.01):
            late(one, 1)
            with self.assertRaises(agreement.Disagreement):
                late(two, 2)

    def test_a_clock_that_is_off_is_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            agreement.check_clock(folder)
            now = time.time()
            for seconds, words in ((60, "60 s ahead of"), (-7, "7 s behind")):
                with mock.patch("agreement.time.time", lambda: now + seconds):
                    with self.assertRaisesRegex(agreement.Disagreement, words):
                        agreement.check_clock(folder)


if __name__ == "__main__":
    unittest.main()
