"""Checks of the Python package `openai`: chat, tools, schemas, errors. Replies are validated
strictly: a field of another type than the package states is a failure."""

import json
from typing import Literal

import httpx2
import openai
from openai import OpenAI
from pydantic import BaseModel, Field

import checks
from checks import (
    ASK_WEATHER, ENDLESS, GREEDY, KEY, MODEL, QUESTION, URL, WEATHER,
    check, check_weather, expect, expect_raises,
)


def make(key=KEY, retries=0, strict=True, **settings):
    """A client of the server."""
    base = {"api_key": key, "base_url": URL + "/v1", "max_retries": retries}
    return OpenAI(**base, _strict_response_validation=strict, **settings)


client = make()
chat = client.chat.completions


class Mountain(BaseModel):
    kind: Literal["hill", "peak", "volcano"]
    metres: int = Field(ge=0, le=9000)
    snow: bool


SCHEMA_QUESTION = [{"role": "user", "content": "Describe a mountain as JSON."}]


def answer(**settings):
    """Greedy reply to the question."""
    return chat.create(**(GREEDY | {"messages": QUESTION} | settings))


def text(reply):
    return reply.choices[0].message.content


def collect(stream):
    """Chunks of a stream, after the checks that hold for each of them."""
    chunks = list(stream)
    expect(chunks, "no chunk")
    expect(len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1, chunks[-1])
    expect(chunks[0].object == "chat.completion.chunk", chunks[0])
    first = next(chunk for chunk in chunks if chunk.choices).choices[0]
    expect(first.delta.role == "assistant", first)
    for index in {choice.index for chunk in chunks for choice in chunk.choices}:
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.index == index]
        expect(all(reason is None for reason in reasons[:-1]) and reasons[-1], reasons)
    return chunks


def joined(chunks, index=0):
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index
    )


@check("models")
def models():
    found = [model for model in client.models.list() if model.id == MODEL]
    expect(len(found) == 1 and found[0].object == "model", found)
    expect(client.models.retrieve(MODEL).id == MODEL, found)


@check("chat")
def simple_chat():
    reply = answer()
    expect(reply.id.startswith("chatcmpl-") and reply.object == "chat.completion", reply)
    expect(reply.created > 1_700_000_000 and reply.model == MODEL, reply)
    choice = reply.choices[0]
    expect(choice.finish_reason == "stop" and choice.message.role == "assistant", choice)
    expect(len(text(reply)) > 10, choice)
    expect(text(answer()) == text(reply), "another greedy text")


@check("usage")
def usage():
    question = [{"role": "user", "content": "Repeat: " + "a river runs to the sea. " * 40}]
    first, second = (answer(messages=question, max_tokens=4).usage for _ in range(2))
    expect(first.prompt_tokens + first.completion_tokens == first.total_tokens, first)
    expect(first.prompt_tokens_details.cached_tokens is not None, first)
    expect(second.prompt_tokens_details.cached_tokens >= second.prompt_tokens // 2, second)


@check("content-parts")
def content_parts():
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " a glacier?"}]
    expect(text(answer(messages=[{"role": "user", "content": parts}])), "no text")
    one = [{"type": "text", "text": QUESTION[0]["content"]}]
    expect(text(answer(messages=[{"role": "user", "content": one}])) == text(answer()), "another text")


@check("developer-role")
def developer_role():
    told = lambda role: answer(messages=[{"role": role, "content": "You are a poet."}, *QUESTION])
    expect(text(told("developer")) == text(told("system")), text(told("developer")))


@check("streaming")
def streaming():
    chunks = collect(answer(stream=True))
    expect(joined(chunks) == text(answer()), joined(chunks))
    expect(all(chunk.usage is None for chunk in chunks), "usage without being asked for")
    body = GREEDY | {"messages": QUESTION, "stream": True}
    headers = {"Authorization": f"Bearer {KEY}"}
    reply = httpx2.post(URL + "/v1/chat/completions", json=body, headers=headers, timeout=30)
    expect(reply.headers["content-type"].startswith("text/event-stream"), reply.headers)
    events = [event for event in reply.text.split("\n\n") if event]
    expect(events[-1] == "data: [DONE]", events[-1])
    for event in events[:-1]:
        expect("finish_reason" in json.loads(event.removeprefix("data: "))["choices"][0], event)


@check("stream-usage")
def stream_usage():
    chunks = collect(answer(stream=True, stream_options={"include_usage": True}))
    last = chunks[-1]
    expect(last.choices == [] and last.usage.completion_tokens > 0, last)
    expect(last.usage.prompt_tokens_details.cached_tokens is not None, last)
    expect(all(chunk.usage is None and chunk.choices for chunk in chunks[:-1]), chunks[0])
    whole = answer().usage
    expect((last.usage.prompt_tokens, last.usage.completion_tokens)
           == (whole.prompt_tokens, whole.completion_tokens), last.usage)


@check("n")
def several_choices():
    story = [{"role": "user", "content": "Tell a story."}]
    sampled = {"n": 3, "temperature": 1.5, "seed": 7, "max_tokens": 12, "messages": story}
    reply = answer(**sampled)
    expect([choice.index for choice in reply.choices] == [0, 1, 2], reply)
    expect(len({choice.message.content for choice in reply.choices}) > 1, reply)
    chunks = collect(answer(**sampled, stream=True))
    for choice in reply.choices:
        expect(joined(chunks, choice.index) == choice.message.content, joined(chunks, choice.index))


@check("seed")
def seed():
    sampled = lambda number: text(answer(temperature=1.5, seed=number, max_tokens=24))
    first = sampled(3)
    # Others in the batch must not change the text.
    answer(n=4, temperature=1.0, max_tokens=4)
    expect(sampled(3) == first, first)
    expect(len({sampled(number) for number in range(4, 9)}) > 1, first)


@check("stop")
def stop():
    whole = text(answer())
    for begin in (3, 7, 11):
        word = whole[begin:begin + 6]
        reply = answer(stop=[word, "never said"])
        expect(text(reply) == whole[:whole.index(word)], (word, text(reply)))
        expect(reply.choices[0].finish_reason == "stop", reply)
        expect(joined(collect(answer(stop=word, stream=True))) == text(reply), word)


@check("logit-bias")
def logit_bias():
    token = checks.token_ids(" river")[0]
    reply = answer(logit_bias={str(token): 100}, max_tokens=3)
    expect(text(reply).strip() == "river river river", text(reply))


@check("logprobs")
def logprobs():
    reply = answer(logprobs=True, top_logprobs=3)
    tokens = reply.choices[0].logprobs.content
    expect("".join(token.token for token in tokens) == text(reply), tokens)
    for token in tokens:
        expect(len(token.top_logprobs) == 3 and token.logprob <= 0, token)
        expect(token.top_logprobs[0].logprob == token.logprob, token)
        expect(bytes(token.bytes).decode(errors="replace") == token.token, token)
    chunks = collect(answer(logprobs=True, top_logprobs=3, stream=True))
    streamed = [token for chunk in chunks for choice in chunk.choices if choice.logprobs
                for token in choice.logprobs.content]
    expect([token.logprob for token in streamed] == [token.logprob for token in tokens], streamed[:2])


@check("max-completion-tokens")
def max_completion_tokens():
    reply = chat.create(model=MODEL, messages=QUESTION, max_completion_tokens=5, temperature=0)
    expect(reply.choices[0].finish_reason == "length", reply)
    expect(reply.usage.completion_tokens == 5, reply.usage)


def weather(**settings):
    """Reply to a question that the weather tool answers."""
    return chat.create(**(GREEDY | {"messages": ASK_WEATHER, "tools": [WEATHER]} | settings))


FORCED = {"type": "function", "function": {"name": "get_weather"}}


@check("tools")
def tools():
    reply = weather(tool_choice="required")
    choice = reply.choices[0]
    expect(choice.finish_reason == "tool_calls", choice)
    call = choice.message.tool_calls[0]
    expect(call.id and call.type == "function" and call.function.name == "get_weather", call)
    check_weather(call.function.arguments)
    expect(weather().choices[0].finish_reason in ("stop", "tool_calls"), "tool_choice auto")


@check("tool-choice")
def tool_choice():
    other = WEATHER | {"function": WEATHER["function"] | {"name": "get_forecast"}}
    reply = weather(tools=[other, WEATHER], tool_choice=FORCED)
    expect(reply.choices[0].message.tool_calls[0].function.name == "get_weather", reply)
    none = weather(tool_choice="none").choices[0]
    expect(not none.message.tool_calls and none.finish_reason in ("stop", "length"), none)
    error = expect_raises(openai.BadRequestError, lambda: weather(
        tool_choice={"type": "function", "function": {"name": "absent"}}))
    expect(error.param and error.param.startswith("tool_choice"), error.body)


@check("tools-streaming")
def tools_streaming():
    chunks = collect(weather(tool_choice=FORCED, stream=True))
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    first = deltas[0]
    expect(first.index == 0 and first.id and first.type == "function", first)
    expect(first.function.name == "get_weather", first)
    for delta in deltas[1:]:
        expect(delta.index > 0 or (delta.id is None and delta.function.name is None), delta)
    check_weather("".join(delta.function.arguments or "" for delta in deltas if delta.index == 0))
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    expect(reasons in (["tool_calls"], ["stop"]), reasons)
    with chat.stream(**GREEDY, messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required") as stream:
        final = stream.get_final_completion()
    check_weather(final.choices[0].message.tool_calls[0].function.arguments)


@check("parallel-tool-calls")
def parallel_tool_calls():
    both = [{"role": "user", "content": "What is the weather in Oslo and in Paris, in celsius?"}]
    one = weather(messages=both, tool_choice="required", parallel_tool_calls=False)
    expect(len(one.choices[0].message.tool_calls) == 1, one)
    many = weather(messages=both, tool_choice="required", parallel_tool_calls=True, max_tokens=300)
    calls = many.choices[0].message.tool_calls
    expect(len(calls) >= 1 and len({call.id for call in calls}) == len(calls), calls)


@check("tool-results")
def tool_results():
    call = weather(tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": '{"celsius": 7}'}
    reply = weather(messages=[*ASK_WEATHER, call, result])
    expect(text(reply) or reply.choices[0].message.tool_calls, reply)


@check("json-mode")
def json_mode():
    reply = answer(messages=[{"role": "user", "content": "Name and age of Ada, 36, as JSON."}],
                   response_format={"type": "json_object"}, max_tokens=300)
    if reply.choices[0].finish_reason == "stop":
        expect(isinstance(json.loads(text(reply)), dict), text(reply))
    else:
        expect(text(reply).lstrip().startswith("{"), text(reply))


@check("json-schema")
def json_schema():
    reply = chat.parse(**GREEDY, messages=SCHEMA_QUESTION, response_format=Mountain)
    expect(isinstance(reply.choices[0].message.parsed, Mountain), reply)
    tool = openai.pydantic_function_tool(Mountain, name="save_mountain")
    called = chat.parse(**GREEDY, messages=SCHEMA_QUESTION, tools=[tool], tool_choice="required")
    expect(isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Mountain), called)


@check("json-schema-streaming")
def json_schema_streaming():
    with chat.stream(**GREEDY, messages=SCHEMA_QUESTION, response_format=Mountain) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    expect({"chunk", "content.delta", "content.done"} <= kinds, kinds)
    expect(isinstance(final.choices[0].message.parsed, Mountain), final)


@check("abort")
def abort():
    def open_stream():
        stream = chat.create(**ENDLESS, stream=True)
        return iter(stream), stream.close

    checks.check_abort(open_stream)


@check("retries")
def retries():
    def call(count):
        limited = make(key=checks.LIMITED_KEY, retries=count).chat.completions
        return limited.create(model=MODEL, messages=QUESTION, max_tokens=1)

    error = checks.check_retries(openai.RateLimitError, call)
    expect(error.code == "rate_limit_exceeded", error.body)


@check("timeout")
def timeout():
    expect_raises(openai.APITimeoutError, lambda: make(timeout=0.3).chat.completions.create(**ENDLESS))
    checks.wait_for_running(lambda count: count == 0)


@check("unknown-field")
def unknown_field():
    reply = answer(extra_body={"no_such_field": {"a": [1]}}, user="someone", store=False, metadata={"a": "b"})
    expect(text(reply) == text(answer()), reply)


@check("error-key")
def error_key():
    error = expect_raises(openai.AuthenticationError, lambda: make(key="wrong").models.list())
    expect(error.status_code == 401 and error.code == "invalid_api_key", error.body)


@check("error-model")
def error_model():
    error = expect_raises(openai.NotFoundError, lambda: answer(model="no-such-model"))
    expect(error.code == "model_not_found" and error.type, error.body)
    expect_raises(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))


@check("error-param")
def error_param():
    for field, value in {"temperature": "hot", "max_tokens": -1, "n": 1.5, "top_p": 7}.items():
        error = expect_raises(openai.BadRequestError, lambda: answer(**{field: value}))
        expect(error.param == field and error.type == "invalid_request_error", (field, error.body))
    error = expect_raises(openai.BadRequestError, lambda: answer(messages=[{"role": "user", "content": 5}]))
    expect(error.param and error.param.startswith("messages"), error.body)


@check("headers")
def headers():
    reply = chat.with_raw_response.create(**GREEDY, messages=QUESTION, extra_headers={"x-request-id": "mine"})
    expect(reply.headers.get("x-request-id") == "mine", dict(reply.headers))
    made = chat.with_raw_response.create(**GREEDY, messages=QUESTION)
    expect(made.parse()._request_id, dict(made.headers))
    limited = make(key=checks.LIMITED_KEY, retries=6).chat.completions
    names = limited.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=1).headers
    for kind in ("limit", "remaining", "reset"):
        expect(names.get(f"x-ratelimit-{kind}-requests"), dict(names))
