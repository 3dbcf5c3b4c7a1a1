"""Prefix hits and time to first token through a front end.

    python3 measure.py --url http://127.0.0.1:8000 --model NAME --tokenizer FOLDER
    python3 measure.py --program ruvllm --router kv --workers 3 --kv-budget 64MiB

Sends prompts that share prefixes by a Zipf distribution, and prints one JSON object: share of prompt tokens that were
cached, median and 95th percentile of the time to first token in milliseconds, failed requests. With --program it starts
front end, servers and workers first, each with one thread.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

import openai
from tokenizers import Tokenizer

import cluster as parts
import workload


async def send(client, args, prompt, found):
    """Sends one request and adds its figures."""
    started, first, usage = time.monotonic(), None, None
    try:
        stream = await client.completions.create(
            model=args.model, prompt=prompt, max_tokens=args.output, temperature=0, stream=True,
            stream_options={"include_usage": True})
        async for chunk in stream:
            if first is None and chunk.choices and chunk.choices[0].text:
                first = time.monotonic() - started
            usage = chunk.usage or usage
    except openai.OpenAIError as error:
        found["failed"] += 1
        found["errors"].add(str(error)[:200])
        return
    details = usage.prompt_tokens_details if usage else None
    found["prompt"] += usage.prompt_tokens if usage else 0
    found["cached"] += (details.cached_tokens or 0) if details else 0
    if first is not None:
        found["first"].append(first * 1e3)


async def measure(args, url, tokenizer):
    """Sends all requests; the figures."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120, max_retries=0)
    found = {"failed": 0, "prompt": 0, "cached": 0, "first": [], "errors": set()}
    gate = asyncio.Semaphore(args.concurrency)

    async def one(prompt):
        async with gate:
            await send(client, args, prompt, found)

    began = time.monotonic()
    await asyncio.gather(*(one(prompt) for prompt in workload.prompts(args, tokenizer, workload.corpus(args.text))))
    first = sorted(found["first"])
    at = lambda share: round(first[min(len(first) - 1, int(share * len(first)))], 1) if first else None
    return {
        "requests": args.requests, "failed": found["failed"], "prompt_tokens": found["prompt"],
        "cached_share": round(found["cached"] / max(1, found["prompt"]), 4),
        "ttft_ms_p50": at(0.5), "ttft_ms_p95": at(0.95), "seconds": round(time.monotonic() - began, 1),
        "errors": sorted(found["errors"]),
    }


def begin(args, cluster):
    """Starts all parts."""
    router = ["--router-mode", args.router, "--migration-limit", "3", *args.front_end]
    cluster.front_end(*router)
    servers = [
        cluster.server(f"s{index}", ("--kv-budget", args.kv_budget, "--pressure", args.pressure))
        for index in range(args.workers)]
    for server in servers:
        cluster.worker(server)
    cluster.wait_for_model()
    return servers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="of a front end that runs, without /v1")
    parser.add_argument("--model", default=parts.NAME)
    parser.add_argument("--tokenizer", help="folder with the model's tokenizer.json, for --url")
    parser.add_argument("--text", nargs="*", help="files that prompts are made of; the pages of docs unless given")
    parser.add_argument("--concurrency", type=int, default=3)
    parser.add_argument("--output", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--program", help="ruvllm with the feature grpc: starts front end, servers and workers")
    parser.add_argument("--file", default=parts.MODELS / "base-q8_0.gguf", help="GGUF file of the servers' model")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kv-budget", default="64MiB", help="of each server")
    parser.add_argument("--pressure", default="lower-precision", help="of each server")
    parser.add_argument("--router", default="kv", help="router mode of the front end")
    parser.add_argument("--front-end", nargs=argparse.REMAINDER, default=[], help="further flags of the front end; last")
    workload.add_arguments(parser)
    args = parser.parse_args()
    if not args.program:
        if not (args.url and args.tokenizer):
            parser.error("--url and --tokenizer, or --program")
        tokenizer = Tokenizer.from_file(str(Path(args.tokenizer) / "tokenizer.json"))
        print(json.dumps(asyncio.run(measure(args, args.url.rstrip("/"), tokenizer))))
        return
    with tempfile.TemporaryDirectory() as folder, parts.Cluster(args.program, Path(folder) / "parts", args.file) as cluster:
        begin(args, cluster)
        tokenizer = Tokenizer.from_file(str(cluster.tokenizer / "tokenizer.json"))
        found = asyncio.run(measure(args, cluster.url, tokenizer))
        setting = {name: getattr(args, name) for name in (
            "router", "workers", "kv_budget", "prefixes", "concurrency", "seed", "front_end")}
        print(json.dumps(setting | found))


if __name__ == "__main__":
    main()
