"""Disaggregated prefill: a prefill worker computes a prompt, a decode worker takes its blocks over and goes on.

Blocks go from server to server by `ExportPrefix` and `ImportPrefix` of `ruvllm.v1.Worker`; this module passes the
messages on and reads none of them. Whatever keeps a transfer from being of use is logged, and the prompt is computed by
the decode worker's own server. Nothing here needs Dynamo.
"""

import asyncio
import hashlib
import logging
import struct
from contextlib import aclosing

import grpc

import connection

ROLES = ["agg", "prefill", "decode"]
# Seconds of a transfer while the time of computing the prompt is unknown, of shorter calls, and
# least ones of a transfer.
PATIENCE, SHORT, LEAST = 30.0, 5.0, 1.0
# Tokens of the prompt that a decode worker computes at its start, to know the rate of its server.
WARM_UP = 128
# Longest message of a prefill server in bytes.
SOURCE_LIMIT = 4 << 20
# Field of a prefill worker's result, in an object of this name.
FIELD = "ruvllm"

log = logging.getLogger("ruvllm")


class Unusable(Exception):
    """Reason that blocks of a prefill worker are not used."""


def add_arguments(parser):
    parser.add_argument("--role", choices=ROLES, default="agg", help="computes prompts, goes on with them, or both (agg)")
    parser.add_argument("--advertise", metavar="ADDRESS", help="address of the server's gRPC for decode workers [--server]")
    parser.add_argument(
        "--source", metavar="ADDRESS", action="append", help="server that blocks are taken from; repeatable [all]")


class Transfer:
    """Part of a worker in disaggregated prefill."""

    def __init__(self, args, protos, services, channel, metadata, connect=connection.connector()):
        self.args, self.protos, self.services, self.metadata = args, protos, services, metadata
        # Opens channels to prefill servers.
        self.connect = connect
        self.worker = services.WorkerStub(channel)
        self.inference = services.InferenceStub(channel)
        self.fingerprint = None
        self.block_tokens = 0
        # Channels to prefill servers, by address.
        self.sources = {}
        # Prompts by outcome.
        self.counts = {"taken": 0, "cached": 0, "slower": 0, "failed": 0}

    async def start(self, description):
        """Takes the server's description. A decode worker has its server compute a prompt, whose rate is compared with
        that of transfers."""
        self.fingerprint, self.block_tokens = description.fingerprint.hex(), description.block_tokens
        if self.args.role != "agg":
            try:
                await self.plan([0])
            except grpc.aio.AioRpcError as error:
                raise SystemExit(f"{self.args.server}: {told(error)}") from error
        if self.args.role == "decode":
            tokens = [1 + i % 100 for i in range(min(WARM_UP, description.context_length - 1))]
            await self.generate_one(tokens)

    async def generate_one(self, tokens):
        request = self.protos.GenerateRequest(model=self.args.model, max_tokens=1)
        request.tokens.ids.extend(tokens)
        async for _ in self.inference.Generate(request, metadata=self.metadata):
            pass

    async def prepare(self, request):
        """The request for the worker's own server, after the blocks of a prefill worker were taken over."""
        handover = (request.get("prefill_result") or {}).get("disaggregated_params")
        request = {name: value for name, value in request.items() if name != "prefill_result"}
        if self.args.role == "prefill":
            request["stop_conditions"] = {**(request.get("stop_conditions") or {}), "max_tokens": 1}
        elif self.args.role == "decode" and handover is not None:
            await self.take(request["token_ids"], handover)
        return request

    async def outcome(self, request, chunks, lost=()):
        """Chunks of an answer. Those of a prefill worker are one, with the place of the blocks: the router reads the
        first one. After an error of the types `lost` it is one too: the front end would fail the request, and a decode
        worker computes the prompt whose blocks it does not get."""
        if self.args.role != "prefill":
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
            return
        whole = {"token_ids": [], "index": 0}
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    whole = {**whole, **chunk, "token_ids": whole["token_ids"] + chunk["token_ids"]}
        except lost as error:
            log.warning("a prompt is left to a decode worker: %s", error)
            whole["finish_reason"] = "length"
        yield {**whole, "disaggregated_params": self.handover(request["token_ids"])}

    def handover(self, tokens):
        """Place of a prompt's blocks."""
        return {FIELD: {
            "server": self.args.advertise or self.args.server, "model": self.args.model, "prompt": digest(tokens),
            "fingerprint": self.fingerprint}}

    async def take(self, tokens, handover):
        """Takes the blocks of a prompt over, if that is possible and quicker than computing them. Returns the outcome, a
        name in `counts`."""
        try:
            outcome = await self.try_to_take(tokens, handover)
        except Unusable as reason:
            log.warning("blocks of a prefill worker are not used, the prompt is computed here: %s", reason)
            outcome = "failed"
        self.counts[outcome] += 1
        return outcome

    async def try_to_take(self, tokens, handover):
        place = self.checked(tokens, handover)
        address = place["server"]
        try:
            plan = await self.plan(tokens)
        except grpc.aio.AioRpcError as error:
            raise Unusable(f"{self.args.server}: {told(error)}") from error
        if not plan.missing_blocks:
            return "cached"
        if not plan.is_worthwhile:
            log.info(
                "%s: a transfer of %d bytes takes about %.3f s and computing them %.3f s: the prompt is computed here",
                address, plan.bytes, plan.transfer_seconds, plan.prefill_seconds)
            return "slower"
        # A transfer that takes longer than this has lost to computing already.
        patience = max(LEAST, 2 * plan.prefill_seconds) if plan.HasField("prefill_seconds") else PATIENCE
        found = await self.pass_on(place, tokens, plan.known_blocks, patience)
        log.debug("%s: %d blocks, %d bytes in %.3f s", address, found.blocks, found.bytes, found.seconds)
        if found.blocks < plan.missing_blocks:
            raise Unusable(f"{address} has {found.blocks} of the {plan.missing_blocks} blocks that are missing")
        return "taken"

    def checked(self, tokens, handover):
        """The place in a prefill worker's result."""
        place = handover.get(FIELD) if isinstance(handover, dict) else None
        texts = [place.get("server"), place.get("model") or ""] if isinstance(place, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise Unusable("its result names no server: every prefill worker has to be one of ruvllm")
        address, allowed = place["server"], self.args.source
        if allowed and address not in allowed:
            raise Unusable(f"{address} is none of the servers of --source")
        if place.get("fingerprint") != self.fingerprint:
            raise Unusable(f"{address} has another model: fingerprint {place.get('fingerprint')}, here {self.fingerprint}")
        if place.get("prompt") != digest(tokens):
            raise Unusable(f"{address} has computed another prompt")
        return place

    async def plan(self, tokens):
        request = self.protos.PlanImportRequest(model=self.args.model, tokens=tokens)
        return await self.worker.PlanImport(request, metadata=self.metadata, timeout=SHORT)

    def source(self, address):
        if address not in self.sources:
            channel = self.connect(address, SOURCE_LIMIT)
            self.sources[address] = channel, self.services.WorkerStub(channel)
        return self.sources[address][1]

    async def pass_on(self, place, tokens, known_blocks, patience):
        """Passes the messages of an export to an import."""
        protos, address = self.protos, place["server"]
        request = protos.ExportPrefixRequest(model=place.get("model"), tokens=tokens, skip_blocks=known_blocks)
        target = protos.PrefixTarget(model=self.args.model, tokens=tokens)
        # The import is opened first: its server takes the time of the whole transfer.
        imported = self.worker.ImportPrefix(metadata=self.metadata, timeout=patience)
        exported = self.source(address).ExportPrefix(request, metadata=self.metadata, timeout=patience)
        try:
            is_open = await put(imported, protos.ImportPrefixRequest(target=target))
            while is_open:
                try:
                    part = await exported.read()
                except grpc.aio.AioRpcError as error:
                    raise Unusable(f"{address}: {told(error)}") from error
                if part is grpc.aio.EOF:
                    await imported.done_writing()
                    break
                is_open = await put(imported, protos.ImportPrefixRequest(part=part))
            return await imported
        except grpc.aio.AioRpcError as error:
            raise Unusable(f"{address}: {told(error)}") from error
        finally:
            exported.cancel()
            imported.cancel()

    async def close(self):
        await asyncio.gather(*(channel.close() for channel, _ in self.sources.values()))


async def put(call, message):
    """Sends a message; False if the call has ended."""
    try:
        await call.write(message)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True


def told(error):
    """Text of an error."""
    return error.details() or error.code().name


def digest(tokens):
    """SHA-256 of a prompt's tokens, in hexadecimal digits."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()
