"""Bounds of prefix hits for a workload and a memory, without any server.

    python3 ideal.py --workers 3 --blocks 256 --prefixes 24

Simulates the requests of `measure.py` one after another over caches that evict the least recently used blocks, from
the end of a prefix. Prints the share of prompt tokens that are cached for: round robin; a router that knows all
caches; prefixes that each belong to one worker; and the best that any router can do: one cache of the memory of all
that knows the future.
"""

import argparse
import json
from collections import OrderedDict

import workload

BLOCK_TOKENS = 32
# Shares of the memory at which a server begins and ends to evict prefixes (ADR-0028).
HIGH, LOW = 0.85, 0.70


class Cache:
    """Blocks of prefixes by last use, the least recent one first."""

    def __init__(self, blocks, high, low):
        self.limit, self.low = int(blocks * high), int(blocks * low)
        self.held, self.used = OrderedDict(), 0

    def has(self, prefix):
        return self.held.get(prefix, 0)

    def use(self, prefix, blocks, own, number):
        """Computes a request; the number of its blocks that were there."""
        found = self.has(prefix)
        self.put(prefix, blocks)
        # Blocks that no other request has are leaves of their own.
        self.put(("own", number), own)
        self.held.move_to_end(prefix)
        if self.used > self.limit:
            self.evict(self.low)
        return found

    def put(self, key, blocks):
        self.used += blocks - self.held.get(key, 0)
        self.held[key] = blocks
        self.held.move_to_end(key)

    def evict(self, until):
        while self.used > until and len(self.held) > 1:
            key, blocks = next(iter(self.held.items()))
            taken = min(blocks, self.used - until)
            self.used -= taken
            if taken == blocks:
                del self.held[key]
            else:
                self.held[key] = blocks - taken


def simulate(args, choose):
    """Share of tokens that are cached if `choose` selects the cache of each request."""
    caches = [Cache(args.blocks, args.high, args.low) for _ in range(args.workers)]
    blocks, own = args.prefix_tokens // BLOCK_TOKENS, -(-workload.OWN_TOKENS // BLOCK_TOKENS)
    hits, requests = 0, workload.order(args)
    for number, prefix in enumerate(requests):
        hits += caches[choose(caches, number, prefix)].use(prefix, blocks, own, number)
    return hits * BLOCK_TOKENS / (len(requests) * (args.prefix_tokens + workload.OWN_TOKENS))


def round_robin(caches, number, _):
    return number % len(caches)


def informed(caches, _, prefix):
    """Most blocks of the prefix, then the least memory in use."""
    return max(range(len(caches)), key=lambda index: (caches[index].has(prefix), -caches[index].used, -index))


def partition(args):
    """A worker for each prefix, so that all have the same share of the requests."""
    shares, owner = [0.0] * args.workers, []
    for rank in range(args.prefixes):
        least = shares.index(min(shares))
        owner.append(least)
        shares[least] += 1 / (rank + 1) ** args.exponent
    return lambda _caches, _number, prefix: owner[prefix]


def clairvoyant(args):
    """The bound: whole prefixes in one memory, of which the one that is needed last is evicted (Belady)."""
    blocks = args.prefix_tokens // BLOCK_TOKENS
    room, requests = args.blocks * args.workers // blocks, workload.order(args)
    held, hits = set(), 0
    for number, prefix in enumerate(requests):
        hits += prefix in held
        held.add(prefix)
        if len(held) > room:
            later = requests[number + 1 :]
            held.remove(max(held, key=lambda one: later.index(one) if one in later else len(later)))
    return hits * blocks * BLOCK_TOKENS / (len(requests) * (args.prefix_tokens + workload.OWN_TOKENS))


def bounds(args):
    """All shares."""
    return {
        "round_robin": round(simulate(args, round_robin), 3), "informed": round(simulate(args, informed), 3),
        "partition": round(simulate(args, partition(args)), 3), "bound": round(clairvoyant(args), 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=256, help="of each worker's memory")
    parser.add_argument("--high", type=float, default=HIGH, help="share of the memory at which eviction begins")
    parser.add_argument("--low", type=float, default=LOW, help="share at which it ends")
    workload.add_arguments(parser)
    args = parser.parse_args()
    setting = {name: getattr(args, name) for name in ("workers", "blocks", "prefixes", "exponent", "requests", "seed")}
    print(json.dumps(setting | bounds(args)))


if __name__ == "__main__":
    main()
