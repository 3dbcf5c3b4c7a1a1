"""Agreement of the workers of one endpoint.

A router sends a request to any worker of an endpoint, and continues it with another one after a
failure. So all of them must have the same weights, block size, KV policy and context length: a
worker publishes them in its model card, and refuses to serve beside others that have published
something else.
"""

import asyncio
import os
import tempfile
import time

# Property in the model card, its name in messages.
PROPERTIES = {
    "ruvllm.model": "weights",
    "ruvllm.block_tokens": "block size",
    "ruvllm.kv_policy": "KV policy",
    "ruvllm.context_length": "context length",
}
# All of them in one, so that agreement is one look at the cards.
IDENTITY = "ruvllm.identity"
# Seconds until a card that is published is seen by all, and a killed worker's is gone.
PATIENCE = 12.0
PAUSE = 0.5
# Seconds between two clocks: entries of a discovery folder end after 10, and are renewed each 3.
MOST_SKEW = 5.0


class Disagreement(Exception):
    """Another worker of the endpoint has other properties."""


def properties(description):
    """Properties for the model card, from the server's description of a model."""
    found = {
        "ruvllm.model": description.fingerprint.hex(),
        "ruvllm.block_tokens": str(description.block_tokens),
        "ruvllm.kv_policy": description.kv_policy,
        "ruvllm.context_length": str(description.context_length),
    }
    return found | {IDENTITY: " ".join(found[name] for name in PROPERTIES)}


async def matching(client, key, value, count):
    """Ids of the workers with this property, `count` of them if there are so many in time."""
    try:
        return await client.wait_for_instances_by_runtime_data(key, value, count, PAUSE)
    except TimeoutError:
        return []


async def check(client, own, address, ids=None):
    """Returns when all workers in `ids` agree with `own`; all of the endpoint unless given.

    Raises `Disagreement` with one line that names the properties that differ.
    """
    ids = ids or client.instance_ids
    end = asyncio.get_running_loop().time() + PATIENCE
    while others := ids():
        present = len(client.instance_ids())
        if set(others) <= set(await matching(client, IDENTITY, own[IDENTITY], present)):
            return
        # A worker that was killed keeps its card for some seconds, and may be the one that differs.
        if asyncio.get_running_loop().time() >= end:
            raise Disagreement(await difference(client, own, address, present))
        await asyncio.sleep(PAUSE)


async def difference(client, own, address, count):
    """One line with the properties that differ."""
    agrees = {key: len(await matching(client, key, own[key], count)) >= count for key in PROPERTIES}
    found = [f"{name} {own[key][:16]}" for key, name in PROPERTIES.items() if not agrees[key]]
    return (f"{address} differs from the workers that serve this endpoint: its {', its '.join(found)};"
            " give all of them the same model and KV settings, or this one another --component")


async def check_lower(client, own, own_id, address):
    """Compares with workers that have begun at the same time: of two, the one with the higher id
    leaves. Call it once the worker is registered or about to be."""
    while own_id not in client.instance_ids():
        await asyncio.sleep(PAUSE)
    await check(client, own, address, lambda: [id for id in client.instance_ids() if id < own_id])


def skew(folder):
    """Seconds that the clock of this machine is ahead of that of a folder's file system."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-") as file:
        return time.time() - os.fstat(file.fileno()).st_mtime


def check_clock(folder):
    """Raises `Disagreement` if the clock would end the entries of other parts, or this one's."""
    os.makedirs(folder, exist_ok=True)
    seconds = skew(folder)
    if abs(seconds) > MOST_SKEW:
        raise Disagreement(
            f"the clock of this machine is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} that of "
            f"{folder}, where workers are gone after 10 s without news: set the clock")
