"""Checks of the Python package `openai`: embeddings, completions, responses."""

import base64
import json
import math
import struct

import openai

import checks
from checks import ASK_WEATHER, EMBEDDING_MODEL, GREEDY, MODEL, WEATHER, check, check_weather, expect, expect_raises
from openai_chat import Mountain, client, make

PROMPT = "Once upon a time"
WEATHER_FUNCTION = {"type": "function", **WEATHER["function"], "strict": True}

# The package's types leave no room for a null `finish_reason` before the end of a stream, nor for
# the null of the first token of an echoed prompt, both of which OpenAI's service sends.
lenient = make(strict=False)


def complete(**settings):
    return lenient.completions.create(**(GREEDY | {"prompt": PROMPT, "max_tokens": 12} | settings))


def embed(texts, **settings):
    return client.embeddings.create(model=EMBEDDING_MODEL, input=texts, **settings)


def norm(values):
    return math.sqrt(sum(value * value for value in values))


@check("embeddings")
def embeddings():
    reply = embed(["a river", "a lake", "a river"], encoding_format="float")
    expect([item.index for item in reply.data] == [0, 1, 2], reply.data[0].object)
    vectors = [item.embedding for item in reply.data]
    expect(all(isinstance(value, float) for value in vectors[0]), vectors[0][:3])
    expect(abs(norm(vectors[0]) - 1) < 1e-3 and vectors[0] != vectors[1], norm(vectors[0]))
    expect(max(abs(a - b) for a, b in zip(vectors[0], vectors[2])) < 1e-5, "another vector of the same text")
    expect(reply.usage.prompt_tokens == reply.usage.total_tokens > 0, reply.usage)
    expect(len(embed("a river", encoding_format="float").data) == 1, "one text")
    ids = [[3, 4, 5], [6, 7]]
    expect(len(embed(ids, encoding_format="float").data) == 2, "token ids")
    error = expect_raises(openai.BadRequestError, lambda: embed([]))
    expect(error.param == "input", error.body)


@check("embeddings-base64")
def embeddings_base64():
    plain = embed("a river", encoding_format="float").data[0].embedding
    # The package validates before it decodes, so base64 does not fit its type.
    reply = lenient.embeddings.create(model=EMBEDDING_MODEL, input="a river", encoding_format="base64")
    encoded = reply.data[0].embedding
    found = struct.unpack(f"<{len(plain)}f", base64.b64decode(encoded))
    expect(max(abs(a - b) for a, b in zip(plain, found)) < 1e-6, found[:3])
    # The package asks for base64 by itself and decodes it, after it has checked the types.
    decoded = lenient.embeddings.create(model=EMBEDDING_MODEL, input="a river").data[0].embedding
    expect(max(abs(a - b) for a, b in zip(plain, decoded, strict=True)) < 1e-6, decoded[:3])
    half = embed("a river", encoding_format="float", dimensions=len(plain) // 2).data[0].embedding
    expect(len(half) == len(plain) // 2 and abs(norm(half) - 1) < 1e-3, len(half))


@check("completions")
def completions():
    reply = complete()
    expect(reply.object == "text_completion" and reply.id.startswith("cmpl-"), reply)
    expect(reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 12, reply)
    text = reply.choices[0].text
    stopped = complete(stop=text[5:9]).choices[0]
    expect(stopped.text == text[:text.index(text[5:9])] and stopped.finish_reason == "stop", stopped)
    expect(complete(suffix=None, echo=True).choices[0].text == PROMPT + text, "echo")


@check("completions-streaming")
def completions_streaming():
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    expect(len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1, chunks[0])
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12, chunks[-1])
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    expect(reasons[-1] == "length" and not any(reasons[:-1]), reasons)
    joined = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    expect(joined == complete().choices[0].text, joined)


@check("completions-echo")
def completions_echo():
    reply = complete(echo=True, logprobs=2, max_tokens=1)
    choice, found = reply.choices[0], reply.choices[0].logprobs
    prompt, generated = reply.usage.prompt_tokens, reply.usage.completion_tokens
    for values in (found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset):
        expect(len(values) == prompt + generated, (len(values), prompt, generated))
    expect("".join(found.tokens) == choice.text, found.tokens)
    expect(found.token_logprobs[0] is None and found.top_logprobs[0] is None, found.token_logprobs)
    expect(all(value < 0 for value in found.token_logprobs[1:]), found.token_logprobs)
    offsets = [len("".join(found.tokens[:at])) for at in range(len(found.tokens))]
    expect(found.text_offset == offsets, found.text_offset)
    last = found.top_logprobs[-1]
    expect(max(last.values()) == found.token_logprobs[-1], last)
    scored = complete(echo=True, logprobs=1, max_tokens=0)
    expect(scored.choices[0].text == PROMPT, scored)


@check("completions-prompts")
def completions_prompts():
    prompts = [PROMPT, "The sea is"]
    alone = [complete(prompt=prompt).choices[0].text for prompt in prompts]
    reply = complete(prompt=prompts)
    expect([choice.text for choice in reply.choices] == alone, reply)
    expect([choice.index for choice in reply.choices] == [0, 1], reply)
    ids = [checks.token_ids(prompt) for prompt in prompts]
    expect([choice.text for choice in complete(prompt=ids).choices] == alone, ids)
    expect(complete(prompt=ids[0]).choices[0].text == alone[0], ids[0])
    several = complete(prompt=prompts, n=2, temperature=1.0, seed=5)
    expect([choice.index for choice in several.choices] == [0, 1, 2, 3], several)
    error = expect_raises(openai.BadRequestError, lambda: complete(prompt=[[1 << 30]]))
    expect(error.param and error.param.startswith("prompt"), error.body)


RESPONSE = {"model": MODEL, "temperature": 0, "max_output_tokens": 60}


@check("responses")
def responses():
    reply = client.responses.create(**RESPONSE, input="What is a glacier?")
    expect(reply.status == "completed" and reply.object == "response", reply)
    expect(len(reply.output_text) > 10 and reply.output[0].role == "assistant", reply)
    usage = reply.usage
    expect(usage.total_tokens == usage.input_tokens + usage.output_tokens > 0, usage)
    told = client.responses.create(**RESPONSE, instructions="You are a poet.", input=[
        {"role": "user", "content": [{"type": "input_text", "text": "What is a glacier?"}]}])
    expect(told.output_text, told)
    short = client.responses.create(**(RESPONSE | {"max_output_tokens": 16}), input="Tell a long story.")
    expect(short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens", short)


@check("responses-streaming")
def responses_streaming():
    events = list(client.responses.create(**RESPONSE, input="What is a glacier?", stream=True))
    kinds = [event.type for event in events]
    expect(kinds[:2] == ["response.created", "response.in_progress"], kinds)
    expect(kinds[-1] == "response.completed", kinds)
    for kind in ("output_item.added", "content_part.added", "output_text.done", "content_part.done",
                 "output_item.done"):
        expect(kinds.count("response." + kind) == 1, kinds)
    expect([event.sequence_number for event in events] == list(range(len(events))), kinds)
    joined = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    expect(joined == events[-1].response.output_text, joined)
    with client.responses.stream(**RESPONSE, input="What is a glacier?") as stream:
        stream.until_done()
        expect(stream.get_final_response().output_text == joined, joined)


@check("responses-tools")
def responses_tools():
    question = {"input": ASK_WEATHER, "tools": [WEATHER_FUNCTION], "tool_choice": "required"}
    reply = client.responses.create(**RESPONSE, **question)
    call = next(item for item in reply.output if item.type == "function_call")
    expect(call.name == "get_weather" and call.call_id and call.status == "completed", call)
    check_weather(call.arguments)
    events = list(client.responses.create(**RESPONSE, **question, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    expect(done and "".join(deltas) == done[0].arguments, deltas)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"celsius": 7}'}
    history = [*ASK_WEATHER, call.model_dump(exclude_none=True), result]
    after = client.responses.create(**RESPONSE, input=history, tools=[WEATHER_FUNCTION])
    expect(after.output, after)


@check("responses-schema")
def responses_schema():
    reply = client.responses.parse(**RESPONSE, input="Describe a mountain as JSON.", text_format=Mountain)
    expect(isinstance(reply.output_parsed, Mountain), reply)
    schema = {"type": "json_schema", "name": "pair", "strict": True, "schema": {
        "type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"],
        "additionalProperties": False}}
    plain = client.responses.create(**RESPONSE, input="A digit as JSON.", text={"format": schema})
    expect(set(json.loads(plain.output_text)) == {"a"}, plain.output_text)
