"""Workers that a cluster must bear.

    LIES=tokens.json python3 false_worker.py --server ...     tells of blocks that its server does not have
    BLOCK_TOKENS=64 python3 false_worker.py --server ...      has another block size
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ruvllm_worker  # noqa: E402


class FalseEngine(ruvllm_worker.RuvllmEngine):
    """A worker that lies about blocks, and takes none of them back; or about their size."""

    async def described(self):
        found = await super().described()
        found.block_tokens = int(os.environ.get("BLOCK_TOKENS", found.block_tokens))
        return found

    def publish_to(self, publisher):
        super().publish_to(publisher)
        if "LIES" not in os.environ:
            return
        size = self.description.block_tokens
        for index, tokens in enumerate(json.loads(Path(os.environ["LIES"]).read_text())):
            count = len(tokens) // size
            publisher.publish_stored(
                token_ids=tokens[: count * size], num_block_tokens=[size] * count,
                block_hashes=[(index + 1) * 1_000_003 + block for block in range(count)])

    def pass_on(self, event):
        # No news of blocks that were evicted.
        if event.WhichOneof("event") not in ("removed", "cleared"):
            super().pass_on(event)


if __name__ == "__main__":
    ruvllm_worker.main(FalseEngine)
