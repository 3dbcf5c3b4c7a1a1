"""Prefix hits and time to first token through a front end.

    python3 measure.py --url http://127.0.0.1:8000/v1 --model NAME --text FILE

Sends requests whose prompts begin with one of `--prefixes` parts of FILE, of `--prefix-words` words, by a Zipf
distribution, and end with words of their own. Prints one JSON object: share of prompt tokens that were cached, median
and 95th percentile of the time to first token in milliseconds, failed requests. Needs the package `openai`.
"""

import argparse
import asyncio
import json
import random
import time

import openai


def prompts(args):
    """Prompts of all requests, in order."""
    words = open(args.text, encoding="utf-8").read().split()
    draw = random.Random(args.seed)
    starts = [index * args.prefix_words for index in range(args.prefixes)]
    if starts[-1] + args.prefix_words > len(words):
        raise SystemExit(f"{args.text} has {len(words)} words, {args.prefixes} prefixes need more")
    weights = [1 / (rank + 1) ** args.exponent for rank in range(args.prefixes)]
    for start in draw.choices(starts, weights, k=args.requests):
        own = draw.randrange(len(words) - 16)
        yield " ".join(words[start : start + args.prefix_words] + words[own : own + 16])


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


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, help="UTF-8 text that prompts are made of")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--prefixes", type=int, default=24)
    parser.add_argument("--prefix-words", type=int, default=700)
    parser.add_argument("--exponent", type=float, default=1.0, help="of the Zipf distribution")
    parser.add_argument("--concurrency", type=int, default=3)
    parser.add_argument("--output", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    client = openai.AsyncOpenAI(base_url=args.url, api_key="none", timeout=120, max_retries=0)
    found = {"failed": 0, "prompt": 0, "cached": 0, "first": [], "errors": set()}
    gate = asyncio.Semaphore(args.concurrency)

    async def one(prompt):
        async with gate:
            await send(client, args, prompt, found)

    await asyncio.gather(*(one(prompt) for prompt in prompts(args)))
    first = sorted(found["first"])
    at = lambda share: round(first[min(len(first) - 1, int(share * len(first)))], 1) if first else None
    print(json.dumps({
        "requests": args.requests, "failed": found["failed"], "prompt_tokens": found["prompt"],
        "cached_share": round(found["cached"] / max(1, found["prompt"]), 4),
        "ttft_ms_p50": at(0.5), "ttft_ms_p95": at(0.95), "errors": sorted(found["errors"]),
    }))


if __name__ == "__main__":
    asyncio.run(main())
