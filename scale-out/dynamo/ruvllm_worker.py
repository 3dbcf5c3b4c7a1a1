"""Worker of NVIDIA Dynamo in front of a `ruvllm serve`.

    python3 ruvllm_worker.py --server 127.0.0.1:50051 --model-path FOLDER

Needs the packages of `requirements.txt` and a server that is built with the feature `grpc`. FOLDER has `config.json`,
`tokenizer.json` and `tokenizer_config.json` of the model that the server runs: the front end tokenizes. Token ids go to
the server and come back; blocks of keys and values that it stores and evicts, and its load, go to the router.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from contextlib import aclosing, suppress

import grpc

from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot, PushSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown, WorkerUnavailable

import agreement
import connection
import messages
import transfer
from messages import signed

# Seconds that a server has to answer when a worker starts, and between two attempts to follow it.
PATIENCE, PAUSE = 30, 1.0
# Seconds for running requests after a worker was told to end; others go on with another worker.
DRAIN = 60
# Least milliseconds between two loads: a step of a small model.
LOAD_INTERVAL_MS = 10
# Errors of the server as the front end knows them: it tries the last two with another worker.
FAULTS = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument, grpc.StatusCode.NOT_FOUND: InvalidArgument,
    grpc.StatusCode.RESOURCE_EXHAUSTED: WorkerUnavailable, grpc.StatusCode.UNAVAILABLE: EngineShutdown,
}

log = logging.getLogger("ruvllm")


class RuvllmEngine(LLMEngine):
    """Token ids of one model of a server."""

    # Reason that a worker does not serve, for its exit status.
    refusal = None

    def __init__(self, args):
        self.args = args
        self.protos, services = messages.modules()
        credentials = [("authorization", f"Bearer {args.key}")] if args.key else []
        self.metadata = tuple(credentials)
        connect = connection.connector(args.tls_ca)
        self.channel = connect(args.server)
        self.inference = services.InferenceStub(self.channel)
        self.worker = services.WorkerStub(self.channel)
        self.transfer = transfer.Transfer(args, self.protos, services, self.channel, self.metadata, connect)
        self.tasks = []
        # Set while the server that the connection leads to is known to have the model of the card;
        # the number of connections that broke.
        self.agreed, self.broken = asyncio.Event(), 0
        # Requests that run, and the end.
        self.running, self.is_ended = 0, False
        self.publisher = None
        self.snapshots = None
        # Blocks that the router knows of this worker.
        self.known = set()
        self.description = None
        self.id = None

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--server", default="127.0.0.1:50051", help="address of the server's gRPC")
        parser.add_argument("--tls-ca", metavar="FILE", help="connect with TLS; PEM file of the server's certificate or issuer")
        parser.add_argument("--key", default=os.environ.get("RUVLLM_API_KEY"), help="key with the scopes inference, metrics, and prefixes for a role")
        parser.add_argument("--model", help="name of the model at the server; its first one unless given")
        parser.add_argument("--model-path", required=True, help="folder with the tokenizer and the configuration")
        parser.add_argument("--served-model-name", help="name of the model for clients; that of the server unless given")
        parser.add_argument("--fingerprint", help="SHA-256 that the server's model must have, in hexadecimal digits")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="ruvllm")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "file"))
        parser.add_argument("--event-plane", default=os.environ.get("DYN_EVENT_PLANE", "zmq"))
        transfer.add_arguments(parser)
        args = parser.parse_args(argv)
        folder = os.environ.get("DYN_FILE_KV")
        if args.discovery_backend == "file" and folder:
            try:
                agreement.check_clock(folder)
            except agreement.Disagreement as error:
                sys.exit(str(error))
        engine = cls(args)
        await engine.describe()
        config = WorkerConfig(
            namespace=args.namespace, component=args.component, endpoint=args.endpoint,
            model_name=args.model_path, served_model_name=args.served_model_name or engine.description.model,
            endpoint_types="chat,completions", discovery_backend=args.discovery_backend,
            request_plane="tcp", event_plane=args.event_plane,
            disaggregation_mode=DisaggregationMode(args.role))
        return engine, config

    async def described(self):
        """The server's model."""
        request = self.protos.DescribeModelRequest(model=self.args.model)
        return await self.worker.DescribeModel(request, metadata=self.metadata, timeout=PATIENCE, wait_for_ready=True)

    async def describe(self):
        """Asks the server for its model, and compares the fingerprint."""
        try:
            found = await self.described()
        except grpc.aio.AioRpcError as error:
            sys.exit(f"{self.args.server}: {error.details() or error.code().name}")
        expected, actual = self.args.fingerprint, found.fingerprint.hex()
        if expected and expected.lower() != actual:
            sys.exit(f"{self.args.server} has another model: its fingerprint is {actual}, expected {expected}")
        self.description = found

    async def start(self, worker_id):
        self.id = worker_id
        found = self.description
        await self.transfer.start(found)
        registration = LlmRegistration(
            context_length=found.context_length, kv_cache_block_size=found.block_tokens,
            total_kv_blocks=found.total_blocks, max_num_seqs=found.max_running)
        self.run_beside(self.follow())
        name = self.args.served_model_name or found.model
        return EngineConfig(
            model=self.args.model_path, served_model_name=name, llm=registration,
            runtime_data=agreement.properties(found))

    async def on_endpoint_ready(self, endpoint):
        """Compares with the other workers of the endpoint, before the router knows this one."""
        client, own = await endpoint.client(), agreement.properties(self.description)
        try:
            await agreement.check(client, own, self.args.server)
        except agreement.Disagreement as error:
            RuvllmEngine.refusal = str(error)
            raise
        self.run_beside(self.leave_if_late(client, own))

    async def leave_if_late(self, client, own):
        """Ends the worker if another one that began at the same time differs and goes first."""
        try:
            await agreement.check_lower(client, own, self.id, self.args.server)
        except agreement.Disagreement as error:
            self.leave(str(error))

    @staticmethod
    def leave(reason):
        """Ends the worker after the requests that run."""
        RuvllmEngine.refusal = reason
        os.kill(os.getpid(), signal.SIGTERM)

    def run_beside(self, coroutine):
        """Runs a task until the worker ends."""
        self.tasks.append(asyncio.create_task(coroutine))

    async def kv_event_sources(self):
        return [PushSource(on_ready=self.publish_to)] if self.description.has_prefix_cache else []

    def publish_to(self, publisher):
        self.publisher = publisher

    def component_metrics_dp_ranks(self):
        return [0]

    def attach_snapshot_publisher(self, publisher):
        self.snapshots = publisher

    async def follow(self):
        """Passes blocks and load of the server on, as long as the worker lives."""
        while True:
            try:
                # Events before there is a publisher would be lost.
                while self.description.has_prefix_cache and self.publisher is None:
                    await asyncio.sleep(0.01)
                request = self.protos.WatchModelRequest(model=self.args.model, load_interval_ms=LOAD_INTERVAL_MS)
                async for event in self.worker.WatchModel(request, metadata=self.metadata, wait_for_ready=True):
                    if not self.agreed.is_set() and not await self.compare_again():
                        return
                    self.agreed.set()
                    self.pass_on(event)
            except grpc.aio.AioRpcError as error:
                log.warning("%s: %s; following again", self.args.server, error.details())
            self.agreed.clear()
            self.broken += 1
            # A server that is gone has no blocks; the next one tells all of its own.
            self.forget()
            await asyncio.sleep(PAUSE)

    async def compare_again(self):
        """Ends the worker, and returns false, if a server that was started again is another one."""
        if agreement.properties(await self.described()) == agreement.properties(self.description):
            return True
        self.leave(f"{self.args.server} was started again with another model or other KV settings; "
                   "start this worker again")
        return False

    async def check_server(self):
        """Refuses a request while it is not known that the server has the model of the card: the front
        end tries it with another worker. Returns the number of connections that broke so far."""
        if self.broken == 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.agreed.wait(), PATIENCE)
        if not self.agreed.is_set():
            raise EngineShutdown(f"{self.args.server} was lost, and has not been compared again")
        return self.broken

    def pass_on(self, event):
        kind = event.WhichOneof("event")
        if kind == "load":
            self.pass_load(event.load)
        elif self.publisher is None:
            return
        elif kind == "cleared":
            self.forget()
        elif kind == "stored":
            stored, size = event.stored, self.description.block_tokens
            self.known.update(stored.hashes)
            self.publisher.publish_stored(
                token_ids=list(stored.tokens), num_block_tokens=[size] * len(stored.hashes),
                block_hashes=[signed(hash) for hash in stored.hashes],
                parent_hash=signed(stored.parent) if stored.HasField("parent") else None)
        elif kind == "removed":
            self.known.difference_update(event.removed.hashes)
            self.publisher.publish_removed(block_hashes=[signed(hash) for hash in event.removed.hashes])

    def forget(self):
        """Tells the router that all blocks are gone."""
        if self.known and self.publisher is not None:
            self.publisher.publish_removed(block_hashes=[signed(hash) for hash in self.known])
        self.known.clear()

    def pass_load(self, load):
        if self.snapshots is None:
            return
        total = self.description.total_blocks
        # Cached blocks are room for requests: a router that counted them as used would call each
        # worker with a warm cache busy. It adds those of running requests itself.
        used = max(0, load.used_blocks - len(self.known)) if load.running else 0
        self.snapshots.publish(0, ComponentSnapshot(
            kv_used_blocks=used, kv_total_blocks=total,
            gpu_cache_usage=min(1.0, load.used_blocks / total) if total else 0.0, dp_rank=0))

    async def generate(self, request, context):
        request = await self.transfer.prepare(request)
        async with aclosing(self.transfer.outcome(request, self.answer(request, context), EngineShutdown)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def answer(self, request, context):
        message = messages.generate_request(self.protos, self.args.model, request)
        stops = set((request.get("stop_conditions") or {}).get("stop_token_ids") or [])
        broken, is_begun = await self.check_server(), False
        call = self.inference.Generate(message, metadata=self.metadata)
        self.running += 1
        cancelled = asyncio.create_task(self.cancel_with(context, call))
        try:
            async for event in call:
                # The connection that the call began with may be of another server by now.
                if not is_begun and self.broken != broken:
                    raise EngineShutdown(f"{self.args.server} was lost when the request began")
                is_begun = True
                kind = event.WhichOneof("event")
                if kind == "piece" and event.piece.tokens:
                    yield messages.piece(event.piece)
                    if stops.intersection(event.piece.tokens):
                        yield {"token_ids": [], "index": 0, "finish_reason": "stop"}
                        return
                elif kind == "finish":
                    yield messages.finish(event.finish)
        except grpc.aio.AioRpcError as error:
            raise FAULTS.get(error.code(), Unknown)(error.details()) from error
        except asyncio.CancelledError:
            if self.is_ended:
                raise EngineShutdown("the worker has ended") from None
            if not context.is_stopped():
                raise
            yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
        finally:
            self.running -= 1
            call.cancel()
            cancelled.cancel()

    @staticmethod
    async def cancel_with(context, call):
        """Ends the call when the client is gone."""
        await context.async_killed_or_stopped()
        call.cancel()

    async def cleanup(self):
        """Waits for the requests that run: Dynamo calls this before they have ended."""
        end = asyncio.get_running_loop().time() + DRAIN
        while self.running and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        self.is_ended = True
        for task in self.tasks:
            task.cancel()
        await self.transfer.close()
        await self.channel.close()


def main(engine=RuvllmEngine):
    """Runs a worker; the exit status is 1, with one line, if it must not serve."""
    try:
        run(engine)
    except Exception:
        if RuvllmEngine.refusal is None:
            raise
    if RuvllmEngine.refusal is not None:
        sys.exit(RuvllmEngine.refusal)


if __name__ == "__main__":
    main()
