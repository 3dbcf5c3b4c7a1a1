"""Time to first token and inter-token latency of streams, and processor time of the processes behind them.

    python3 latency.py --url http://127.0.0.1:8000 --model NAME --pids PID,PID

Sends `--requests` completions of `--output` tokens each, `--concurrency` at a time, with prompts that differ in their
first word. Prints one JSON object: medians in milliseconds over the requests, tokens per second over all, and for each
process its processor time per token in milliseconds. Linux, standard library alone.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from urllib.parse import urlsplit

TICK = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid):
    """User and system time of a process."""
    fields = open(f"/proc/{pid}/stat", encoding="utf-8").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def stream(address, args, number):
    """Times of the chunks of one completion that have text, after its start, and its number of tokens."""
    body = json.dumps({
        "model": args.model, "prompt": f"{number} {args.prompt}", "max_tokens": args.output, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection(*address)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: application/json\r\n"
    started = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit(f"{status.decode().strip()}: {(await reader.read()).decode()[:500]}")
    times, tokens = [], 0
    async for line in reader:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if event.get("choices") and event["choices"][0].get("text"):
                times.append(time.perf_counter() - started)
    writer.close()
    return times, tokens


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="is a number. Once upon a time there was a turtle who lived by the sea and")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--output", type=int, default=128, help="tokens of a completion")
    parser.add_argument("--pids", default="", help="processes, separated by commas")
    args = parser.parse_args()
    url = urlsplit(args.url)
    address, gate = (url.hostname, url.port or 80), asyncio.Semaphore(args.concurrency)

    async def one(number):
        async with gate:
            return await stream(address, args, number)

    await one("warm")
    pids = [int(pid) for pid in args.pids.split(",") if pid]
    before = {pid: processor_seconds(pid) for pid in pids}
    started = time.perf_counter()
    runs = await asyncio.gather(*(one(number) for number in range(args.requests)))
    wall = time.perf_counter() - started
    tokens = sum(tokens for _, tokens in runs)
    gaps = [1e3 * (times[-1] - times[0]) / (count - 1) for times, count in runs]
    spent = {pid: 1e3 * (processor_seconds(pid) - before[pid]) for pid in pids}
    print(json.dumps({
        "tokens": tokens, "first_ms": round(1e3 * statistics.median(times[0] for times, _ in runs), 2),
        "token_ms": round(statistics.median(gaps), 3),
        "token_ms_range": [round(min(gaps), 3), round(max(gaps), 3)], "tokens_per_s": round(tokens / wall, 1),
        "processor_ms_per_token": {pid: round(ms / tokens, 3) for pid, ms in spent.items()}}))


asyncio.run(main())
