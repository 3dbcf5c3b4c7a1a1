"""Capacity model of one worker, and its error against measured batches.

    python3 capacity.py --program ruvllm [--model FILE]

Measures prefill alone, one request, and one larger batch (calibration), predicts output tokens per second of requests
that arrive together, and compares with `ruvllm bench --parallel`. Seconds are those of the CPU of one thread:
on an idle machine the time of a worker of one thread, on a busy one still nearly so. Prints a table of
docs/deployment.md.
"""

import argparse
import json
import resource
import subprocess


def bench(args, *words):
    """Document of `ruvllm bench`, and the seconds of CPU time that it took."""
    line = [args.program, "bench", "--json", "--threads", "1", *(["--model", args.model] if args.model else [])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = subprocess.run([*line, *map(str, words)], capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(text), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--model")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--batches", default="1,2,4,8,16", help="1 and the calibration are among them")
    parser.add_argument("--calibration", type=int, default=8, help="batch of the second point of the decode step")
    args = parser.parse_args()
    rate = bench(args, "-p", args.prompt, "-n", 0, "-r", 3)[0]["results"][0]["tokens_per_cpu_s"]
    run = lambda count, times: bench(
        args, "--parallel", count, "-p", args.prompt, "-n", args.output, "-r", times)[1]
    # One repetition: load and warm-up are in both runs.
    cost = {count: run(count, 2) - run(count, 1) for count in map(int, args.batches.split(","))}
    for line in table(args, rate, cost):
        print(line)


def table(args, rate, cost):
    """Lines of the model and of the table; `cost` has the seconds of each number of requests."""
    p, n, large = args.prompt / rate["median"], args.output, args.calibration
    # A step of N sequences takes s + c (N - 1) seconds; both come from 1 and from `large` requests.
    step = lambda count: (cost[count] - count * p) / n
    s, c = step(1), (step(large) - step(1)) / (large - 1)
    yield (f"P = {rate['median']:.0f} ({rate['min']:.0f} to {rate['max']:.0f}) tokens/s at {args.prompt} tokens; "
           f"s = {s * 1e3:.1f} ms, c = {c * 1e3:.1f} ms from 1 and {large} requests")
    yield "| requests at once | predicted, tokens/s | measured, tokens/s | error |\n|---:|---:|---:|---:|"
    for count, seconds in cost.items():
        predicted, measured = count * n / (count * p + n * (s + c * (count - 1))), count * n / seconds
        error = "calibration" if count in (1, large) else f"{100 * (predicted / measured - 1):+.0f} %"
        yield f"| {count} | {predicted:.1f} | {measured:.1f} | {error} |"


if __name__ == "__main__":
    main()
