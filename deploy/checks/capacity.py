"""Capacity model of one worker, and its error against measured batches.

    python3 capacity.py --program ruvllm [--model FILE]

Measures prefill and decode alone and decode at one larger batch (calibration), predicts output tokens per second of
requests that arrive together, and compares with `ruvllm bench --parallel`. Seconds are those of the CPU of one thread:
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
    parser.add_argument("--batches", default="1,2,4,8,16")
    parser.add_argument("--calibration", type=int, default=8, help="batch of the second point of the decode step")
    args = parser.parse_args()
    depth = args.prompt + args.output // 2
    rate = lambda document: document["results"][0]["tokens_per_cpu_s"]
    prefill = rate(bench(args, "-p", args.prompt, "-n", 0, "-r", 3)[0])
    decode = rate(bench(args, "-p", 0, "-n", args.output, "-d", depth, "-r", 3)[0])
    run = lambda count, times: bench(
        args, "--parallel", count, "-p", args.prompt, "-n", args.output, "-r", times)[1]
    # One repetition: load and warm-up are in both runs.
    cost = lambda count: run(count, 2) - run(count, 1)
    p, n, first = args.prompt / prefill["median"], args.output, 1 / decode["median"]
    calibration = cost(args.calibration)
    # A step of N sequences takes s + c (N - 1) seconds.
    slope = ((calibration - args.calibration * p) / n - first) / (args.calibration - 1)
    spread = lambda found: f"{found['median']:.0f} ({found['min']:.0f} to {found['max']:.0f})"
    print(f"P = {spread(prefill)} tokens/s at {args.prompt} tokens; decode {spread(decode)} tokens/s at depth {depth}: "
          f"s = {first * 1e3:.1f} ms, c = {slope * 1e3:.2f} ms (from {args.calibration} requests)", flush=True)
    print("| requests at once | predicted, tokens/s | measured, tokens/s | error |\n|---:|---:|---:|---:|")
    for count in map(int, args.batches.split(",")):
        seconds = calibration if count == args.calibration else cost(count)
        predicted, measured = count * n / (count * p + n * (first + slope * (count - 1))), count * n / seconds
        error = "calibration" if count == args.calibration else f"{100 * (predicted / measured - 1):+.0f} %"
        print(f"| {count} | {predicted:.1f} | {measured:.1f} | {error} |", flush=True)


if __name__ == "__main__":
    main()
