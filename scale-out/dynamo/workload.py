"""Prompts that share prefixes by a Zipf distribution."""

import random
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Tokens of each prompt behind its prefix, which no other prompt has.
OWN_TOKENS = 24


def add_arguments(parser):
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--prefixes", type=int, default=24)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--exponent", type=float, default=1.0, help="of the Zipf distribution")
    parser.add_argument("--seed", type=int, default=0)


def order(args):
    """Number of each request's prefix; 0 is the most frequent one."""
    weights = [1 / (rank + 1) ** args.exponent for rank in range(args.prefixes)]
    return random.Random(args.seed).choices(range(args.prefixes), weights, k=args.requests)


def corpus(files):
    """Text of the files; the project's pages unless given."""
    files = files or sorted(DOCS.glob("*.md"))
    return "\n".join(Path(file).read_text(encoding="utf-8") for file in files)


def prompts(args, tokenizer, text):
    """Prompt of each request: a prefix of `prefix_tokens` tokens of the text, and tokens of its own."""
    spans = tokenizer.encode(text).offsets
    needed = args.prefixes * args.prefix_tokens + args.requests * OWN_TOKENS
    if len(spans) <= needed:
        raise SystemExit(f"the text has {len(spans)} tokens, {needed} are needed; name more files with --text")

    def cut(first, count):
        return text[spans[first][0] : spans[first + count - 1][1]]

    own = args.prefixes * args.prefix_tokens
    for index, prefix in enumerate(order(args)):
        start = cut(prefix * args.prefix_tokens, args.prefix_tokens)
        yield f"{start}\n{cut(own + index * OWN_TOKENS, OWN_TOKENS)}"
