"""Checks of front end, router, workers and servers that run: one line for each.

    python3 live.py --program ruvllm --folder FOLDER [--only PART]

`cargo xtask dynamo` runs it. Requests are greedy, so that each text is compared with that of a
server alone. Clients do not retry: a request that the front end cannot save counts as failed.
"""

import argparse
import asyncio
import json
import sys
import time
import traceback
from pathlib import Path

import openai

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cluster as parts  # noqa: E402
import load  # noqa: E402

CHECKS = []
BUDGET = ("--kv-budget", "64MiB")


def check(text):
    """Registers a check under its line."""
    return lambda function: CHECKS.append((text, function)) or function


class Skipped(Exception):
    """A tool of the check is absent."""


class State:
    """The cluster, and what checks share."""

    def __init__(self, args):
        self.cluster = parts.Cluster(args.program, args.folder)
        self.words = parts.MODELS.parent.joinpath("docs", "kv-cache.md").read_text().split()
        self.workers = []

    def prompt(self, number, words=60):
        """A prompt that begins as no other one."""
        start = number * 97 % (len(self.words) - words)
        return f"Page {number}. " + " ".join(self.words[start : start + words])

    async def begin(self):
        self.cluster.front_end("--router-mode", "kv", "--migration-limit", "3")
        servers = [self.cluster.server(name, BUDGET) for name in ("one", "two", "three")]
        self.workers = [self.cluster.worker(server) for server in servers]
        self.cluster.wait_for_model()
        self.lone = self.cluster.server("lone", BUDGET)
        prompts = [self.prompt(number) for number in range(12)]
        self.texts = await load.expected(self.lone.url, prompts)
        self.long = [self.prompt(100 + number, 250) for number in range(4)]
        self.long_texts = await load.expected(self.lone.url, self.long)
        self.client = load.client(self.cluster.url)

    def loaded(self):
        return load.Load(self.cluster.url, self.texts)


def running(server):
    """Requests that a server computes."""
    text = parts.text_at(f"{server.url}/metrics")
    lines = [line for line in text.splitlines() if line.startswith("ruvllm_requests_running")]
    return sum(float(line.split()[-1]) for line in lines)


def gauge(worker, name):
    """A gauge of a worker."""
    lines = [line for line in worker.metrics().splitlines() if line.startswith(f"{name}{{")]
    assert lines, f"{name}: no such gauge"
    return float(lines[0].split()[-1])


def generated(server):
    """Output tokens of a server."""
    lines = parts.text_at(f"{server.url}/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("ruvllm_output_tokens_total"))


async def until(true, what, seconds=15):
    """Waits until `true()` without blocking requests that run; the seconds that it took."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        if await asyncio.to_thread(true):
            return time.monotonic() - began
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


@check("texts equal those of a server alone")
async def texts(state):
    for prompt, text in state.texts.items():
        found = (await load.complete(state.client, prompt)).choices[0].text
        assert found == text, f"{found!r} instead of {text!r}"
    chat = dict(model="base", messages=[{"role": "user", "content": "What is a glacier?"}], max_tokens=24, temperature=0)
    both = [await sender.chat.completions.create(**chat) for sender in (state.client, load.client(state.lone.url))]
    contents = [reply.choices[0].message.content for reply in both]
    assert contents[0] == contents[1], contents
    return f"{len(state.texts)} completions, 1 conversation"


@check("a stream comes token by token, and its text is the same")
async def stream(state):
    prompt, text = next(iter(state.texts.items()))
    chunks = [chunk.choices[0].text async for chunk in await load.complete(state.client, prompt, stream=True) if chunk.choices]
    assert "".join(chunks) == text, chunks
    assert len([chunk for chunk in chunks if chunk]) > load.OUTPUT // 2, chunks
    return f"{len(chunks)} chunks"


@check("log-probabilities are those of a server alone")
async def logprobs(state):
    prompt = next(iter(state.texts))
    both = [await load.complete(sender, prompt, 4, logprobs=2) for sender in (state.client, load.client(state.lone.url))]
    found, wanted = (reply.choices[0].logprobs.token_logprobs for reply in both)
    assert len(found) == len(wanted) == 4 and all(abs(a - b) < 1e-4 for a, b in zip(found, wanted)), (found, wanted)
    tops = both[0].choices[0].logprobs.top_logprobs
    assert all(len(top) >= 2 for top in tops), tops


@check("a client that goes away frees its place")
async def cancel(state):
    replies = await load.complete(state.client, state.prompt(50), 2000, stream=True, extra_body={"ignore_eos": True})
    async for _ in replies:
        break
    servers = [worker.server for worker in state.workers]
    assert sum(map(running, servers)) == 1
    await replies.close()
    seconds = await until(lambda: sum(map(running, servers)) == 0, "0 running requests")
    return f"after {seconds:.1f} s"


@check("fields that a worker does not follow are refused by name")
async def refused(state):
    prompt = state.prompt(51)
    bodies = [
        ("min_tokens", dict(extra_body={"min_tokens": 3})), ("best_of", dict(best_of=2)),
        ("regex", dict(extra_body={"guided_regex": "a+"})), ("n", dict(n=2, temperature=1)),
    ]
    for name, fields in bodies:
        try:
            await load.complete(state.client, prompt, **fields)
            raise AssertionError(f"{name} was accepted")
        except openai.BadRequestError as error:
            assert name in str(error), error
    try:
        await load.complete(state.client, " ".join(state.words[:3000]))
        raise AssertionError("a prompt beyond the context was accepted")
    except openai.BadRequestError as error:
        assert "4096" in str(error) or "context" in str(error), error
    return f"{', '.join(name for name, _ in bodies)}; prompts beyond the context"


@check("a prompt goes to the worker that has its beginning")
async def hits(state):
    before = {worker.server.name: generated(worker.server) for worker in state.workers}
    places = []
    for prompt in state.long:
        counts = {worker.server.name: generated(worker.server) for worker in state.workers}
        for _ in range(2):
            reply = await load.complete(state.client, prompt)
            assert reply.choices[0].text == state.long_texts[prompt]
            # Events of blocks take a moment.
            await asyncio.sleep(0.3)
        cached, whole = reply.usage.prompt_tokens_details.cached_tokens, reply.usage.prompt_tokens
        assert cached > 0.9 * whole, f"{cached} of {whole} tokens cached"
        places += [w.server.name for w in state.workers if generated(w.server) > counts[w.server.name]]
    assert len(places) == len(state.long), places
    assert len({name for name, count in before.items()
                for w in state.workers if w.server.name == name and generated(w.server) > count}) > 1, places
    return f"{len(places)} prompts twice, on {len(set(places))} workers"


@check("the load of a worker follows its steps")
async def follows(state):
    # The prefixes alone are no load.
    used = lambda: [gauge(worker, "dynamo_component_gpu_cache_usage_percent") for worker in state.workers]
    before, seen = await asyncio.to_thread(used), set()
    replies = await load.complete(state.client, state.prompt(52), 300, stream=True, extra_body={"ignore_eos": True})
    async for _ in replies:
        seen.add(tuple(await asyncio.to_thread(used)))
    assert len(seen) >= 5, f"{len(seen)} values in 300 tokens, {before} before"
    return f"{len(seen)} values in 300 tokens"


@check("kill -9 of a worker under load loses no request")
async def kill_worker(state):
    async with state.loaded() as running_load:
        await running_load.until(6)
        victim = state.workers.pop(0)
        victim.kill()
        await running_load.until(30)
    state.spare = victim.server
    return running_load.verdict()


@check("a worker that is added takes load within seconds")
async def added(state):
    async with state.loaded() as running_load:
        await running_load.until(3)
        before = generated(state.spare)
        worker = await asyncio.to_thread(state.cluster.worker, state.spare)
        seconds = await until(lambda: generated(state.spare) > before, "tokens of the new worker", 30)
        state.workers.append(worker)
        await running_load.until(6)
    return f"{seconds:.1f} s after its registration; {running_load.verdict()}"


@check("kill -9 of a server under load loses no request, and its successor is used")
async def kill_server(state):
    worker = state.workers[0]
    async with state.loaded() as running_load:
        await running_load.until(6)
        worker.server.kill()
        await running_load.until(20)
        old = worker.server
        ports = (old.port, old.grpc)
        new = await asyncio.to_thread(state.cluster.server, f"{old.name}-again", BUDGET, None, ports)
        worker.server = new
        seconds = await until(lambda: generated(new) > 0, "tokens of the new server", 30)
        await running_load.until(6)
    return f"{running_load.verdict()}; used {seconds:.1f} s after its start"


@check("a rolling restart of workers and servers fails no request")
async def rolling(state):
    async with state.loaded() as running_load:
        await running_load.until(3)
        for index, worker in enumerate(list(state.workers)):
            status = await asyncio.to_thread(worker.end)
            assert status == 0, f"status {status}: {worker.output()[-300:]}"
            await asyncio.to_thread(worker.server.end)
            server = await asyncio.to_thread(state.cluster.server, f"{worker.server.name}-{index}", BUDGET)
            state.workers[index] = await asyncio.to_thread(state.cluster.worker, server)
        await running_load.until(6)
    return running_load.verdict()


@check("a worker that lies about its blocks changes no text")
async def lies(state):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(state.cluster.tokenizer / "tokenizer.json"))
    path = state.cluster.folder / "lies.json"
    path.write_text(json.dumps([tokenizer.encode(prompt).ids for prompt in [*state.long, *state.texts]]))
    server = state.cluster.server("liar", BUDGET)
    liar = state.cluster.worker(server, script=Path(__file__).with_name("false_worker.py"), environment={"LIES": str(path)})
    await asyncio.sleep(2)
    async with load.Load(state.cluster.url, state.long_texts | state.texts) as running_load:
        await running_load.until(24, 120)
    count = generated(server)
    assert count > 0, "the lies were not believed"
    await asyncio.to_thread(liar.end)
    server.kill()
    return f"{running_load.verdict()}, {count:.0f} tokens by the liar"


def skewed(skew):
    """Options of a worker whose clock is off; times of files stay those of the system."""
    libraries = [path for root in ("/usr/lib", "/usr/local/lib") for path in Path(root).rglob("libfaketime.so.1")]
    if not libraries:
        raise Skipped("libfaketime is not installed")
    # Not by the program `faketime`, whose child outlives it.
    return dict(environment={
        "LD_PRELOAD": str(libraries[0]), "FAKETIME": skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"})


@check("workers whose clocks are 3 s off serve the same texts")
async def clocks(state):
    server, found = state.cluster.server("clock", BUDGET), []
    for skew, first in (("+3s", 200), ("-3s", 300)):
        # Prompts that no worker has, so that each takes its share.
        texts = await load.expected(state.lone.url, [state.prompt(first + number) for number in range(12)])
        worker, count = state.cluster.worker(server, **skewed(skew)), generated(server)
        # Longer than a lease, so that an entry that seemed old would be gone.
        await asyncio.sleep(12)
        async with load.Load(state.cluster.url, texts, width=6) as running_load:
            await running_load.until(12)
        assert generated(server) > count, f"no request with {skew}"
        found.append(f"{skew}: {running_load.verdict()}")
        await asyncio.to_thread(worker.end)
    server.kill()
    return "; ".join(found)


@check("a worker whose clock is 60 s off does not serve")
async def wrong_clocks(state):
    before = state.cluster.instances()
    for skew, words in (("+60s", "60 s ahead of"), ("-60s", "60 s behind")):
        worker = state.cluster.worker(state.workers[0].server, wait=False, **skewed(skew))
        status = await asyncio.to_thread(worker.wait)
        output = worker.output()
        assert status == 1 and words in output and "Traceback" not in output, (status, output[-600:])
    assert state.cluster.instances() == before


async def is_refused(state, name, words, options=(), model=None, **worker_options):
    """Starts a worker that must end with one line that has all of the words."""
    server, before = state.cluster.server(name, (*BUDGET, *options), model), state.cluster.instances()
    worker = state.cluster.worker(server, wait=False, **worker_options)
    status = await asyncio.to_thread(worker.wait)
    lines = [line for line in worker.output().splitlines() if f"127.0.0.1:{server.grpc}" in line]
    assert status == 1 and len(lines) == 1, f"status {status}: {worker.output()[-600:]}"
    assert all(word in lines[0] for word in words), lines
    assert "Traceback" not in worker.output()
    server.kill()
    assert state.cluster.instances() <= before
    prompt, text = next(iter(state.texts.items()))
    assert (await load.complete(state.client, prompt)).choices[0].text == text
    return lines[0].split(": ")[-1].split(";")[0]


@check("a worker with another model does not serve")
async def other_model(state):
    return await is_refused(state, "draft", ["weights"], model=parts.MODELS / "draft-q8_0.gguf")


@check("a worker with another KV policy does not serve")
async def other_policy(state):
    return await is_refused(state, "policy", ["KV policy"], ("--kv", "q8"))


@check("a worker with another block size does not serve")
async def other_block(state):
    # A worker that says so, since the usual policies have the same size.
    script = Path(__file__).with_name("false_worker.py")
    return await is_refused(state, "blocks", ["block size 64"], script=script, environment={"BLOCK_TOKENS": "64"})


@check("a worker with another context length does not serve")
async def other_context(state):
    return await is_refused(state, "context", ["context length"], ("--context", "1024"))


@check("a fingerprint that is not the model's is refused")
async def fingerprint(state):
    worker = state.cluster.worker(state.workers[0].server, wait=False, options=["--fingerprint", "00" * 32])
    status = await asyncio.to_thread(worker.wait)
    assert status == 1 and "expected 0000" in worker.output() and "Traceback" not in worker.output(), worker.output()


@check("a server that comes back with another model loses its worker")
async def swapped(state):
    worker = state.workers.pop()
    worker.server.kill()
    ports = (worker.server.port, worker.server.grpc)
    server = state.cluster.server("swapped", BUDGET, parts.MODELS / "draft-q8_0.gguf", ports)
    async with state.loaded() as running_load:
        status = await asyncio.to_thread(worker.wait, 30)
        await running_load.until(6)
    assert status == 1 and "started again with another model" in worker.output(), worker.output()[-600:]
    server.kill()
    return running_load.verdict()


def imported(server):
    """Prefixes that a server has taken from another one."""
    lines = parts.text_at(f"{server.url}/metrics").splitlines()
    return sum(
        float(line.split()[-1]) for line in lines
        if line.startswith("ruvllm_prefix_imports_total") and 'outcome="imported"' in line)


@check("prompts computed by a prefill worker are continued by a decode worker, and by it alone if need be")
async def roles(state):
    with parts.Cluster(state.cluster.program, state.cluster.folder.with_name("live-roles")) as cluster:
        cluster.front_end("--migration-limit", "3")
        prefill, decode = (cluster.server(name, (*BUDGET, "--grpc-transfers")) for name in ("prefill", "decode"))
        first = cluster.worker(prefill, options=["--role", "prefill", "--component", "prefill"])
        cluster.worker(decode, options=["--role", "decode"])
        cluster.wait_for_model()
        client, texts = load.client(cluster.url), list(state.long_texts.items())
        for number, (prompt, text) in enumerate(texts):
            if number == 2:
                moved = imported(decode)
                assert moved >= number, f"{moved} of {number} prompts were moved: {first.output()[-600:]}"
                prefill.kill()
            found = (await load.complete(client, prompt)).choices[0].text
            assert found == text, f"{found!r} instead of {text!r}"
    return f"{moved:.0f} prompts moved, {len(texts) - 2} without the prefill server"


async def run(args):
    state = State(args)
    failed = 0
    with state.cluster:
        await state.begin()
        for text, function in CHECKS:
            if args.only and args.only not in text:
                continue
            began = time.monotonic()
            try:
                detail = await function(state) or ""
                verdict = "ok     "
            except Skipped as reason:
                verdict, detail = "skipped", str(reason)
            except Exception as error:
                failed += 1
                verdict, detail = "FAILED ", f"{type(error).__name__}: {error}"
                if args.verbose:
                    traceback.print_exc()
            seconds = time.monotonic() - began
            print(f"{verdict} {seconds:5.1f} s  {text}{f' ({detail})' if detail else ''}", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="ruvllm with the feature grpc")
    parser.add_argument("--folder", required=True, help="for logs and discovery; emptied")
    parser.add_argument("--only", help="checks with this text in their line")
    parser.add_argument("--verbose", action="store_true")
    failed = asyncio.run(run(parser.parse_args()))
    if failed:
        sys.exit(f"{failed} checks failed")


if __name__ == "__main__":
    main()
