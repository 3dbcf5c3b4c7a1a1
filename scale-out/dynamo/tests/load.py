"""Requests through the front end, with the texts that a server alone gives."""

import asyncio
import time

import openai

OUTPUT = 16


def client(url, retries=0):
    """A client of the front end or of a server; it does not retry unless told so."""
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120, max_retries=retries)


async def complete(sender, prompt, tokens=OUTPUT, **options):
    """A completion, greedy unless told otherwise."""
    options = {"temperature": 0} | options
    return await sender.completions.create(model="base", prompt=prompt, max_tokens=tokens, **options)


async def expected(url, prompts, tokens=OUTPUT):
    """Texts of a server without a front end."""
    sender = client(url)
    return {prompt: (await complete(sender, prompt, tokens)).choices[0].text for prompt in prompts}


class Load:
    """Keeps `width` requests running until the block ends; counts failures and wrong texts."""

    def __init__(self, url, texts, width=3, tokens=OUTPUT):
        self.sender, self.texts, self.width, self.tokens = client(url), texts, width, tokens
        self.done, self.failed, self.wrong = 0, [], []
        self.is_ending = False

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(self.send(index)) for index in range(self.width)]
        return self

    async def __aexit__(self, *_):
        self.is_ending = True
        await asyncio.gather(*self.tasks)

    async def send(self, index):
        prompts = list(self.texts)
        while not self.is_ending:
            prompt = prompts[index % len(prompts)]
            index += self.width + 1
            try:
                text = (await complete(self.sender, prompt, self.tokens)).choices[0].text
                self.done += 1
                if text != self.texts[prompt]:
                    self.wrong.append((prompt[-40:], self.texts[prompt], text))
            except openai.OpenAIError as error:
                self.failed.append(str(error)[:300])
                await asyncio.sleep(0.2)

    async def until(self, count, seconds=60):
        """Waits for `count` further answers."""
        target, end = self.done + count, time.monotonic() + seconds
        while self.done < target:
            assert time.monotonic() < end, f"{self.done} answers of {target} after {seconds} s; {self.failed[-1:]}"
            await asyncio.sleep(0.05)

    def verdict(self):
        """Fails unless each request was answered with the right text."""
        assert not self.failed, f"{len(self.failed)} of {self.done + len(self.failed)} failed: {self.failed[0]}"
        assert not self.wrong, f"{len(self.wrong)} of {self.done} have another text: {self.wrong[0]}"
        return f"{self.done} requests, 0 failed"
