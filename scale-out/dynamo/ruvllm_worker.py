"""Worker of NVIDIA Dynamo in front of a `ruvllm serve`.

    python3 ruvllm_worker.py --server 127.0.0.1:50051 --model-path FOLDER

Needs the packages of `requirements.txt` and a server that is built with the feature `grpc`. FOLDER has `config.json`,
`tokenizer.json` and `tokenizer_config.json` of the model that the server runs: the front end tokenizes. Token ids go to
the server and come back; blocks of keys and values that it stores and evicts, and its load, go to the router.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import grpc

from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot, PushSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown, WorkerUnavailable

PROTO = Path(__file__).resolve().parents[2] / "crates" / "server" / "proto"
# Seconds that a server has to answer when a worker starts, and between two attempts to follow it.
PATIENCE, PAUSE = 30, 1.0
# Fields of a request that no worker of text understands.
UNSUPPORTED = ["multi_modal_data", "encoder_result", "prefill_result"]
SAMPLING = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}
# Errors of the server as the front end knows them: it tries the last two with another worker.
FAULTS = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument, grpc.StatusCode.NOT_FOUND: InvalidArgument,
    grpc.StatusCode.RESOURCE_EXHAUSTED: WorkerUnavailable, grpc.StatusCode.UNAVAILABLE: EngineShutdown,
}
FINISH = {1: "stop", 2: "length", 3: "stop", 4: "cancelled"}

log = logging.getLogger("ruvllm")


def messages():
    """Messages and stubs of the server's `.proto` file."""
    sys.path.insert(0, str(PROTO))
    return grpc.protos_and_services("ruvllm/v1/inference.proto")


class RuvllmEngine(LLMEngine):
    """Token ids of one model of a server."""

    def __init__(self, args):
        self.args = args
        self.protos, services = messages()
        credentials = [("authorization", f"Bearer {args.key}")] if args.key else []
        self.metadata = tuple(credentials)
        self.channel = grpc.aio.insecure_channel(args.server, options=[("grpc.max_receive_message_length", -1)])
        self.inference = services.InferenceStub(self.channel)
        self.worker = services.WorkerStub(self.channel)
        self.follower = None
        self.publisher = None
        self.snapshots = None
        # Blocks that the router knows of this worker.
        self.known = set()
        self.description = None

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--server", default="127.0.0.1:50051", help="address of the server's gRPC")
        parser.add_argument("--key", default=os.environ.get("RUVLLM_API_KEY"), help="key with the scopes inference, metrics")
        parser.add_argument("--model", help="name of the model at the server; its first one unless given")
        parser.add_argument("--model-path", required=True, help="folder with the tokenizer and the configuration")
        parser.add_argument("--served-model-name", help="name of the model for clients; that of the server unless given")
        parser.add_argument("--fingerprint", help="SHA-256 that the server's model must have, in hexadecimal digits")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="ruvllm")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "file"))
        parser.add_argument("--event-plane", default=os.environ.get("DYN_EVENT_PLANE", "zmq"))
        args = parser.parse_args(argv)
        engine = cls(args)
        await engine.describe()
        config = WorkerConfig(
            namespace=args.namespace, component=args.component, endpoint=args.endpoint,
            model_name=args.model_path, served_model_name=args.served_model_name or engine.description.model,
            endpoint_types="chat,completions", discovery_backend=args.discovery_backend,
            request_plane="tcp", event_plane=args.event_plane)
        return engine, config

    async def describe(self):
        """Asks the server for its model, and compares the fingerprint."""
        request = self.protos.DescribeModelRequest(model=self.args.model)
        call = self.worker.DescribeModel(request, metadata=self.metadata, timeout=PATIENCE, wait_for_ready=True)
        try:
            found = await call
        except grpc.aio.AioRpcError as error:
            sys.exit(f"{self.args.server}: {error.details() or error.code().name}")
        expected, actual = self.args.fingerprint, found.fingerprint.hex()
        if expected and expected.lower() != actual:
            sys.exit(f"{self.args.server} has another model: its fingerprint is {actual}, expected {expected}")
        self.description = found

    async def start(self, worker_id):
        found = self.description
        registration = LlmRegistration(
            context_length=found.context_length, kv_cache_block_size=found.block_tokens,
            total_kv_blocks=found.total_blocks, max_num_seqs=found.max_running)
        self.follower = asyncio.create_task(self.follow())
        name = self.args.served_model_name or found.model
        return EngineConfig(model=self.args.model_path, served_model_name=name, llm=registration)

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
                request = self.protos.WatchModelRequest(model=self.args.model)
                async for event in self.worker.WatchModel(request, metadata=self.metadata, wait_for_ready=True):
                    self.pass_on(event)
            except grpc.aio.AioRpcError as error:
                log.warning("%s: %s; following again", self.args.server, error.details())
            # A server that is gone has no blocks; the next one tells all of its own.
            self.forget()
            await asyncio.sleep(PAUSE)

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
        self.snapshots.publish(0, ComponentSnapshot(
            kv_used_blocks=load.used_blocks, kv_total_blocks=total,
            gpu_cache_usage=min(1.0, load.used_blocks / total) if total else 0.0, dp_rank=0))

    def message(self, request):
        """The server's form of a request."""
        for name in UNSUPPORTED:
            if request.get(name):
                raise InvalidArgument(f"{name}: this model takes text alone")
        message = self.protos.GenerateRequest(model=self.args.model)
        message.tokens.ids.extend(request["token_ids"])
        sampling, stop = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
        for name, field in SAMPLING.items():
            value = sampling.get(name)
            # -1 is no limit in other engines, 0 is none here.
            if value is not None and not (name == "top_k" and value < 0):
                setattr(message, field, value)
        if (sampling.get("n") or 1) != 1:
            raise InvalidArgument("n: send a request for each choice")
        if stop.get("max_tokens") is not None:
            message.max_tokens = stop["max_tokens"]
        if stop.get("ignore_eos"):
            message.ignore_eos = True
        guided = sampling.get("guided_decoding") or {}
        if guided.get("json") is not None:
            schema = guided["json"]
            message.json_schema = schema if isinstance(schema, str) else json.dumps(schema)
        elif guided.get("grammar") is not None:
            message.grammar = guided["grammar"]
        return message

    async def generate(self, request, context):
        call = self.inference.Generate(self.message(request), metadata=self.metadata)
        cancelled = asyncio.create_task(self.cancel_with(context, call))
        try:
            async for event in call:
                kind = event.WhichOneof("event")
                if kind == "piece" and event.piece.tokens:
                    yield {"token_ids": list(event.piece.tokens), "index": 0}
                elif kind == "finish":
                    usage = event.finish.usage
                    yield {
                        "token_ids": [], "index": 0, "finish_reason": FINISH.get(event.finish.reason, "error"),
                        "completion_usage": {
                            "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens,
                            "total_tokens": usage.prompt_tokens + usage.output_tokens,
                            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                        },
                    }
        except grpc.aio.AioRpcError as error:
            raise FAULTS.get(error.code(), Unknown)(error.details()) from error
        except asyncio.CancelledError:
            call.cancel()
            if not context.is_stopped():
                raise
            yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
        finally:
            cancelled.cancel()

    @staticmethod
    async def cancel_with(context, call):
        """Ends the call when the client is gone."""
        await context.async_killed_or_stopped()
        call.cancel()

    async def cleanup(self):
        if self.follower is not None:
            self.follower.cancel()
        await self.channel.close()


def signed(hash):
    """A hash in the form of the bindings, which take signed numbers."""
    return hash - (1 << 64) if hash >= 1 << 63 else hash


if __name__ == "__main__":
    run(RuvllmEngine)
