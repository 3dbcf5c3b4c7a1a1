"""Checks of the folder `deploy`: schemas, agreement with the program, planted faults, servers that run.

    python3 main.py --program ruvllm [--dynamo PYTHON --model FOLDER]

`cargo xtask deployment` runs it with the packages of requirements.txt. The program has the feature `grpc`.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import agreement
import damages
import live
import schemas

ROOT = Path(__file__).resolve().parents[2]


def static(facts):
    return schemas.check(facts.root) + agreement.check(facts)


def found_in(name, path, old, new, words, facts, check):
    """`None`, or the reason why a planted fault counts as not found."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(ROOT / "deploy", root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
        for shared in ("crates", "scale-out", "models"):
            (root / shared).symlink_to(ROOT / shared)
        text = (root / path).read_text()
        if old not in text:
            return f"{name}: {path} has no {old!r}"
        (root / path).write_text(text.replace(old, new))
        before, facts.root = facts.root, root
        try:
            faults = check(facts)
        finally:
            facts.root = before
    if any(words in fault for fault in faults):
        return None
    return f"{name}: not found; faults: {faults or 'none'}"


def report(title, faults, count, unit="faults"):
    for fault in faults:
        print(f"  {fault}")
    print(f"{title}: {count}, {len(faults)} {unit}", flush=True)
    return len(faults)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="ruvllm, built with the feature grpc")
    parser.add_argument("--dynamo", help="Python with the packages of scale-out/dynamo: runs the compose file's processes")
    parser.add_argument("--model", help="with --dynamo: folder with tokenizer, configuration and weights")
    parser.add_argument("--failures", nargs="?", const="", metavar="TEXT",
                        help="with --dynamo: kills, stops and starves each part; only rows with TEXT")
    args = parser.parse_args()
    if args.failures is not None:
        import failures
        sys.exit(failures.main(agreement.Facts(ROOT, str(Path(args.program).resolve())), args.dynamo, args.model, args.failures))
    facts = agreement.Facts(ROOT, str(Path(args.program).resolve()))
    failed = report("manifests", static(facts), "schemas and agreement")
    missed = [miss for damage in damages.STATIC if (miss := found_in(*damage, facts, static))]
    failed += report("planted faults", missed, f"{len(damages.STATIC)} planted", "missed")
    if live.missing():
        sys.exit(f"no server was run: {live.missing()}")
    failed += report("servers", live.check(facts), "compose and Kubernetes")
    missed = [miss for damage in damages.LIVE if (miss := found_in(*damage, facts, live.check))]
    failed += report("planted faults of servers", missed, f"{len(damages.LIVE)} planted", "missed")
    if args.dynamo:
        import stack
        failed += report("stack", list(stack.check(facts, args.dynamo, args.model)), "front end and three workers")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
