"""Capacity model of one worker, and its error against measured batches.

    python3 capacity.py --program ruvllm --threads 2 [--model FILE]

Measures prefill and decode alone and decode at one larger batch (calibration), predicts output tokens per second of
requests that arrive together, and compares with `ruvllm bench --parallel`. Prints the tables of docs/deployment.md.
"""

import argparse
import json
import subprocess


def bench(args, *words):
    line = [args.program, "bench", "--json", "--threads", str(args.threads), *(["--model", args.model] if args.model else [])]
    return json.loads(subprocess.run([*line, *words], capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--calibration", type=int, default=16, help="batch of the second point of the decode step")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    depth = args.prompt + args.output // 2
    words = ["-p", str(args.prompt), "-n", str(args.output)]
    alone = bench(args, *words, "-r", str(args.repetitions), "-d", "0")["results"]
    deep = bench(args, "-p", "0", "-n", str(args.output), "-r", str(args.repetitions), "-d", str(depth))["results"]
    rates = {row["test"][:2]: row["tokens_per_s"] for row in alone}
    prefill, decode = rates["pp"]["median"], deep[0]["tokens_per_s"]["median"]
    rows = bench(args, *words, "--parallel", args.batches)["parallel"]
    large = next(row for row in rows if row["parallel"] == args.calibration)
    first = 1 / decode
    # A step of N sequences takes s + c (N - 1) seconds.
    whole = args.calibration * args.output / large["tokens_per_s"]
    slope = ((whole - args.calibration * args.prompt / prefill) / args.output - first) / (args.calibration - 1)
    print(f"prefill {prefill:.0f} ({rates['pp']['min']:.0f} to {rates['pp']['max']:.0f}) tokens/s at {args.prompt} tokens; "
          f"decode {decode:.1f} tokens/s at depth {depth}; step {first * 1e3:.2f} ms + {slope * 1e3:.3f} ms for each further sequence", flush=True)
    print("| requests at once | predicted, tokens/s | measured, tokens/s | error | TTFT p50, ms |\n|---:|---:|---:|---:|---:|")
    for row in rows:
        count = row["parallel"]
        seconds = count * args.prompt / prefill + args.output * (first + slope * (count - 1))
        predicted, measured = count * args.output / seconds, row["tokens_per_s"]
        error = "calibration" if count == args.calibration else f"{100 * (predicted / measured - 1):+.0f} %"
        print(f"| {count} | {predicted:.1f} | {measured:.1f} | {error} | {row['ttft_ms']['p50']:.0f} |")


if __name__ == "__main__":
    main()
