"""Disaggregated prefill with servers of their own, without Dynamo.

    RUVLLM=target/debug/ruvllm python3 -m unittest discover -s scale-out/dynamo/tests

`RUVLLM` is a program with the feature `grpc`.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import grpc

HERE = Path(__file__).resolve()
ROOT = HERE.parents[3]
sys.path.insert(0, str(HERE.parents[1]))
sys.path.insert(0, str(ROOT / "crates" / "server" / "proto"))

import transfer  # noqa: E402

PROGRAM = os.environ.get("RUVLLM")
PROTOS, SERVICES = grpc.protos_and_services("ruvllm/v1/inference.proto")
TINY = ROOT / "crates" / "models" / "tests" / "data" / "tiny" / "llama" / "model-F16.gguf"
BLOCK = 32


class Server:
    """A `ruvllm serve` on free ports."""

    def __init__(self, *flags, transfers=True):
        flags = ["--port", "0", "--grpc-port", "0", "--threads", "1", "--kv-budget", "64MiB", "--json", *flags]
        flags += ["--grpc-transfers"] if transfers else []
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{PROGRAM} serve {' '.join(flags)} ends with {self.process.wait()}")
        self.address = json.loads(line)["grpc"].split("//")[-1]

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


def prompt(seed, length):
    """Token ids, another text for each seed."""
    return [3 + (i * 53 + seed * 31 * (i + 1)) % 400 for i in range(length)]


class Worker:
    """The part of a worker that is tested, and the calls of the rest of it."""

    def __init__(self, server, role, **arguments):
        parser = argparse.ArgumentParser()
        transfer.add_arguments(parser)
        args = parser.parse_args(["--role", role])
        args.server, args.model = server, None
        for name, value in arguments.items():
            setattr(args, name, value)
        self.channel = grpc.aio.insecure_channel(server)
        self.transfer = transfer.Transfer(args, PROTOS, SERVICES, self.channel, ())
        self.stub = SERVICES.InferenceStub(self.channel)

    async def start(self):
        description = await SERVICES.WorkerStub(self.channel).DescribeModel(PROTOS.DescribeModelRequest())
        await self.transfer.start(description)
        return self

    async def close(self):
        await self.transfer.close()
        await self.channel.close()

    async def answer(self, request):
        message = PROTOS.GenerateRequest(max_tokens=request["stop_conditions"]["max_tokens"], ignore_eos=True)
        message.tokens.ids.extend(request["token_ids"])
        message.logprobs, message.temperature, message.seed = 3, 0.8, 11
        async for event in self.stub.Generate(message):
            if event.WhichOneof("event") == "piece":
                yield {"token_ids": list(event.piece.tokens), "index": 0, "log_probs": list(event.piece.logprobs)}
            else:
                yield {"token_ids": [], "index": 0, "finish_reason": "length", "cached": event.finish.usage.cached_tokens}

    async def generate(self, tokens, prefill_result=None):
        """All chunks of an answer, as Dynamo's front end asks for it."""
        request = {"token_ids": tokens, "stop_conditions": {"max_tokens": 8}}
        if prefill_result is not None:
            request["prefill_result"] = prefill_result
        request = await self.transfer.prepare(request)
        assert "prefill_result" not in request
        return [chunk async for chunk in self.transfer.outcome(request, self.answer(request))]

    async def handover(self, tokens):
        """What the front end passes from a prefill worker to a decode worker."""
        [chunk] = await self.generate(tokens)
        assert len(chunk["token_ids"]) == 1 and chunk["finish_reason"] == "length"
        return {"disaggregated_params": json.loads(json.dumps(chunk["disaggregated_params"]))}


def output(chunks):
    """Tokens and log-probabilities, to the bit."""
    tokens = [token for chunk in chunks for token in chunk["token_ids"]]
    assert len(tokens) == 8, tokens
    return tokens, [one.SerializeToString() for chunk in chunks for one in chunk.get("log_probs", [])]


def cached(chunks):
    return chunks[-1]["cached"]


class Proxy:
    """Server between two workers that changes what a prefill server sends. Its `change` maps a list of parts to one."""

    def __init__(self, source):
        self.channel = grpc.aio.insecure_channel(source)
        self.stub = SERVICES.WorkerStub(self.channel)
        self.change = lambda parts: parts
        self.delay = 0

    async def ExportPrefix(self, request, context):
        parts = [part async for part in self.stub.ExportPrefix(request)]
        await asyncio.sleep(self.delay)
        for part in self.change(parts):
            yield part

    async def PlanImport(self, request, context):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "a proxy")

    DescribeModel = WatchModel = ImportPrefix = PlanImport

    async def start(self):
        self.server = grpc.aio.server()
        SERVICES.add_WorkerServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        return self

    async def close(self):
        await self.server.stop(None)
        await self.channel.close()


def with_data(change):
    """Changes the bytes of all entries."""
    def changed(parts):
        data = change(bytearray(b"".join(part.data for part in parts[1:])))
        return [parts[0], *(PROTOS.PrefixPart(data=bytes(data[at:at + 100_000])) for at in range(0, len(data), 100_000))]
    return changed


def flipped(at):
    def change(data):
        data[at] ^= 1
        return data
    return with_data(change)


def with_offer(**fields):
    def changed(parts):
        for name, value in fields.items():
            setattr(parts[0].offer, name, value)
        return parts
    return changed


# Changes of what a prefill server sends, and the text of the one warning.
LIES = {
    "a byte of the keys and values": (flipped(1000), "refused block 0: the checksum of the payload is wrong"),
    "the last byte": (flipped(-1), "refused block 2: the checksum of the payload is wrong"),
    "a token": (flipped(120), "refused block 0: it has other tokens than the prompt"),
    "the model in an entry": (flipped(20), "refused block 0: it is of another model"),
    "order of the blocks": (
        with_data(lambda data: data[len(data) // 3:] + data[:len(data) // 3]), "it does not follow the block before it"),
    "the first block twice": (
        with_data(lambda data: data[:len(data) // 3] * 3), "refused block 1: it does not follow the block before it"),
    "a cut entry": (with_data(lambda data: data[:-1]), "2 of 3 blocks arrived"),
    "no entries": (lambda parts: parts[:1], "0 of 3 blocks arrived"),
    "bytes after the entries": (with_data(lambda data: data + b"x"), "the sender goes on after block 3"),
    "no offer": (lambda parts: parts[1:], "expected one offer before the entries"),
    "nothing at all": (lambda parts: [], "expected one offer before the entries"),
    "no blocks": (
        lambda parts: [with_offer(blocks=0)(parts)[0]], "has 0 of the 3 blocks that are missing"),
    "another model": (with_offer(fingerprint=bytes(32)), "the sender has another model"),
    "another KV policy": (with_offer(kv_format="q4"), 'keeps keys and values as "q4", here "f16"'),
    "other block sizes": (with_offer(block_tokens=16), "blocks of 16 tokens, here 32"),
    "a key that is not there": (with_offer(is_tagged=True), "the sender has a prefix key and this engine none"),
    "a later block first": (with_offer(first_block=1), "the blocks begin at block 1 and 0"),
    "more blocks than the prompt has": (with_offer(blocks=4), "the sender goes on after block 3"),
}


@unittest.skipUnless(PROGRAM, "RUVLLM names no program with the feature `grpc`")
class Transfers(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        # One that computes everything itself tells what is right.
        cls.alone, cls.prefill, cls.decode = (Server() for _ in range(3))
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        for server in [cls.alone, cls.prefill, cls.decode]:
            server.end()
        cls.folder.cleanup()

    def server(self, *flags, **settings):
        server = Server(*flags, **settings)
        self.addCleanup(server.end)
        return server

    async def worker(self, server, role, **arguments):
        worker = await Worker(getattr(server, "address", server), role, **arguments).start()
        self.addAsyncCleanup(worker.close)
        return worker

    async def expected(self, tokens):
        return output(await (await self.worker(self.alone, "agg")).generate(tokens))

    async def assert_computed(self, decode, tokens, handover, text, kept=None):
        """The right output, with one warning."""
        failed = decode.transfer.counts["failed"]
        with self.assertLogs("ruvllm", "WARNING") as logs:
            chunks = await decode.generate(tokens, handover)
        [warning] = logs.output
        self.assertIn(text, warning)
        self.assertEqual(decode.transfer.counts["failed"], failed + 1)
        self.assertEqual(output(chunks), await self.expected(tokens))
        if kept is not None:
            self.assertEqual(cached(chunks), kept)

    async def test_a_decode_worker_goes_on_where_a_prefill_worker_ended(self):
        prefill, decode = await self.worker(self.prefill, "prefill"), await self.worker(self.decode, "decode")
        for length in [5 * BLOCK, 200, 700]:
            tokens = prompt(length, length)
            with self.assertNoLogs("ruvllm", "WARNING"):
                chunks = await decode.generate(tokens, await prefill.handover(tokens))
            self.assertEqual(cached(chunks), min(length // BLOCK * BLOCK, length - 1))
            self.assertEqual(output(chunks), await self.expected(tokens))
        self.assertEqual(decode.transfer.counts, {"taken": 3, "cached": 0, "slower": 0, "failed": 0})
        # The same prompt again needs no transfer, and one without a prefill worker has none.
        await decode.generate(tokens, await prefill.handover(tokens))
        await decode.generate(prompt(1, 70))
        self.assertEqual(decode.transfer.counts, {"taken": 3, "cached": 1, "slower": 0, "failed": 0})

    async def test_lies_are_noticed_and_the_prompt_is_computed(self):
        proxy = await Proxy(self.prefill.address).start()
        self.addAsyncCleanup(proxy.close)
        prefill = await self.worker(self.prefill, "prefill", advertise=proxy.address)
        decode = await self.worker(self.decode, "decode")
        for seed, (name, (change, text)) in enumerate(LIES.items()):
            with self.subTest(name):
                tokens, proxy.change = prompt(20 + seed, 100), change
                await self.assert_computed(decode, tokens, await prefill.handover(tokens), text)

    async def test_sources_that_are_gone_or_slow_are_not_waited_for(self):
        decode, tokens = await self.worker(self.decode, "decode"), prompt(50, 100)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            gone = f"127.0.0.1:{closed.getsockname()[1]}"
            prefill = await self.worker(self.prefill, "prefill", advertise=gone)
            await self.assert_computed(decode, tokens, await prefill.handover(tokens), gone, kept=0)
        proxy = await Proxy(self.prefill.address).start()
        self.addAsyncCleanup(proxy.close)
        proxy.delay, tokens = 60, prompt(51, 100)
        prefill = await self.worker(self.prefill, "prefill", advertise=proxy.address)
        await self.assert_computed(decode, tokens, await prefill.handover(tokens), "Deadline Exceeded", kept=0)

    async def test_a_source_that_has_lost_the_blocks_is_told(self):
        prefill, decode = await self.worker(self.prefill, "prefill"), await self.worker(self.decode, "decode")
        tokens = prompt(52, 100)
        place = prefill.transfer.handover(tokens)
        await self.assert_computed(
            decode, tokens, {"disaggregated_params": place}, "has 0 of the 3 blocks that are missing", kept=0)

    async def test_transfers_that_are_slower_are_not_made(self):
        proxy = await Proxy(self.prefill.address).start()
        self.addAsyncCleanup(proxy.close)
        prefill = await self.worker(self.prefill, "prefill", advertise=proxy.address)
        decode = await self.worker(self.server(), "decode")
        proxy.delay = 2
        # No transfer is given up for its time.
        self.addCleanup(setattr, transfer, "LEAST", transfer.LEAST)
        transfer.LEAST = 60
        for seed in range(53, 56):
            tokens = prompt(seed, 40)
            chunks = await decode.generate(tokens, await prefill.handover(tokens))
            self.assertEqual(output(chunks), await self.expected(tokens))
        self.assertEqual(decode.transfer.counts, {"taken": 1, "cached": 0, "slower": 2, "failed": 0})

    async def test_workers_that_do_not_fit_together_are_named(self):
        key = Path(self.folder.name) / "key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        keyed = self.server("--prefix-key", str(key))
        decode, tokens = await self.worker(self.decode, "decode"), prompt(60, 100)
        for server, text in [
            (self.server("--kv", "q8"), 'the sender keeps keys and values as "q8", here "f16"'),
            (keyed, "the sender has a prefix key and this engine none"),
            (self.server("--model", str(TINY)), "has another model: fingerprint"),
        ]:
            with self.subTest(text):
                tokens = prompt(tokens[0] + 61, 100)
                prefill = await self.worker(server, "prefill")
                await self.assert_computed(decode, tokens, await prefill.handover(tokens), text, kept=0)
        # Two servers with the same key understand each other.
        pair = await self.worker(self.server("--prefix-key", str(key)), "decode")
        prefill, tokens = await self.worker(keyed, "prefill"), prompt(64, 100)
        self.assertEqual(cached(await pair.generate(tokens, await prefill.handover(tokens))), 96)

    async def test_places_that_are_none_are_refused(self):
        prefill, decode = await self.worker(self.prefill, "prefill"), await self.worker(self.decode, "decode")
        tokens = prompt(70, 100)
        good = (await prefill.handover(tokens))["disaggregated_params"]["ruvllm"]
        limited = await self.worker(self.decode, "decode", source=["127.0.0.1:1"])
        for worker, place, text in [
            (decode, {}, "names no server"),
            (decode, {"ruvllm": []}, "names no server"),
            (decode, {"ruvllm": {**good, "server": 5}}, "names no server"),
            (decode, {"ruvllm": {**good, "model": 5}}, "names no server"),
            (decode, {"ruvllm": {**good, "fingerprint": "00"}}, "has another model: fingerprint 00"),
            (decode, {"ruvllm": {**good, "prompt": transfer.digest([1])}}, "has computed another prompt"),
            (limited, {"ruvllm": good}, "is none of the servers of --source"),
        ]:
            with self.subTest(text):
                await self.assert_computed(worker, tokens, {"disaggregated_params": place}, text)
        tokens = prompt(71, 100)
        place = {**prefill.transfer.handover(tokens)["ruvllm"], "model": "other"}
        text = 'the model "other" does not exist'
        await self.assert_computed(decode, tokens, {"disaggregated_params": {"ruvllm": place}}, text)

    async def test_a_server_without_transfers_is_refused_at_the_start(self):
        server = self.server(transfers=False)
        with self.assertRaises(SystemExit) as end:
            await self.worker(server, "decode")
        self.assertIn("--grpc-transfers", str(end.exception))
        await self.worker(server, "agg")


if __name__ == "__main__":
    unittest.main()
