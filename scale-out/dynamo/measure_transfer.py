"""Time to the first token with blocks of a prefill server, and with the prompt computed by the decode server.

    python3 measure_transfer.py --prefill 127.0.0.1:50051 --decode 127.0.0.1:50052 --tokens 256,1024,4000

Needs `grpcio`, `grpcio-tools` and two servers with `--grpc-transfers` and the same model. Each line is one length: a
prompt that nobody knows is computed by the decode server; one that the prefill server knows is passed on, as a decode
worker does it, and its rest computed. Both have a token of output. Medians of the repetitions.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path

import grpc

import transfer

PROTO = Path(__file__).resolve().parents[2] / "crates" / "server" / "proto"


async def first_token(stub, protos, tokens):
    """Milliseconds until the first token, and prompt tokens from the cache."""
    request = protos.GenerateRequest(max_tokens=1, temperature=0, ignore_eos=True)
    request.tokens.ids.extend(tokens)
    started, cached = time.monotonic(), 0
    async for event in stub.Generate(request):
        if event.WhichOneof("event") == "finish":
            cached = event.finish.usage.cached_tokens
    return (time.monotonic() - started) * 1e3, cached


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    parser.add_argument("--tokens", default="256,1024,4000")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=1000, help="ids to draw prompts from")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.path.insert(0, str(PROTO))
    protos, services = grpc.protos_and_services("ruvllm/v1/inference.proto")
    draw = random.Random(args.seed)
    args.server, args.model, args.role, args.advertise, args.source = args.decode, None, "decode", None, None
    async with grpc.aio.insecure_channel(args.prefill) as there, grpc.aio.insecure_channel(args.decode) as here:
        prefill, decode = services.InferenceStub(there), services.InferenceStub(here)
        description = await services.WorkerStub(here).DescribeModel(protos.DescribeModelRequest())
        way = transfer.Transfer(args, protos, services, here, ())
        for length in map(int, args.tokens.split(",")):
            computed, passed, rest, bytes_passed = [], [], [], 0
            for _ in range(args.repetitions):
                known, unknown = ([draw.randrange(3, args.vocabulary) for _ in range(length)] for _ in range(2))
                computed.append((await first_token(decode, protos, unknown))[0])
                await first_token(prefill, protos, known)
                place, started = {"server": args.prefill, "model": None}, time.monotonic()
                found = await way.pass_on(place, known, 0, 60)
                passed.append((time.monotonic() - started) * 1e3)
                time_of_rest, cached = await first_token(decode, protos, known)
                assert cached >= min(found.cached_tokens, length - 1), (cached, found.cached_tokens)
                rest.append(time_of_rest)
                bytes_passed = found.bytes
            print(json.dumps({
                "tokens": length, "kv": description.kv_policy, "bytes": bytes_passed,
                "compute_ms": round(statistics.median(computed), 1), "transfer_ms": round(statistics.median(passed), 1),
                "rest_ms": round(statistics.median(rest), 1),
            }))
        await way.close()


if __name__ == "__main__":
    asyncio.run(main())
