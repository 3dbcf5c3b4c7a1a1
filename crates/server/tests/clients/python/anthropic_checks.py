"""Checks of the Python package `anthropic`, with strict validation of replies."""

import anthropic
from anthropic import Anthropic

import checks
from checks import ENDLESS, KEY, MODEL, QUESTION, URL, WEATHER, check, check_weather, expect, expect_raises


def make(key=KEY, retries=0, **settings):
    """A client of the server."""
    return Anthropic(
        api_key=key, base_url=URL, max_retries=retries, _strict_response_validation=True, **settings
    )


client = make()
# The package has no argument for the temperature any more.
GREEDY = {"model": MODEL, "max_tokens": 60, "extra_body": {"temperature": 0}}
TOOL = {
    "name": "get_weather",
    "description": WEATHER["function"]["description"],
    "input_schema": WEATHER["function"]["parameters"],
}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}
ASK_WEATHER = checks.ASK_WEATHER


def answer(**settings):
    """Greedy reply to the question."""
    return client.messages.create(**(GREEDY | {"messages": QUESTION} | settings))


def text(reply):
    return "".join(block.text for block in reply.content if block.type == "text")


@check("models")
def models():
    # Not validated: the package wants a date of publication and a stage of life of each model.
    lenient = Anthropic(api_key=KEY, base_url=URL, max_retries=0).models
    found = [model for model in lenient.list() if model.id == MODEL]
    expect(len(found) == 1 and found[0].type == "model", found)
    expect(lenient.retrieve(MODEL).id == MODEL, found)


@check("messages")
def messages():
    reply = answer()
    expect(reply.id.startswith("msg_") and reply.type == "message" and reply.role == "assistant", reply)
    expect(reply.model == MODEL and reply.stop_reason == "end_turn" and reply.stop_sequence is None, reply)
    expect(len(text(reply)) > 10, reply)
    short = answer(max_tokens=3)
    expect(short.stop_reason == "max_tokens" and short.usage.output_tokens == 3, short)


@check("usage")
def usage():
    long = [{"role": "user", "content": "Repeat: " + "a boat sails to the harbour. " * 40}]
    first, second = (answer(messages=long, max_tokens=4).usage for _ in range(2))
    total = lambda found: found.input_tokens + (found.cache_read_input_tokens or 0)
    expect(total(first) == total(second) > 200, (first, second))
    expect(second.cache_read_input_tokens > total(second) // 2, second)


@check("content-parts")
def content_parts():
    parts = [{"type": "text", "text": QUESTION[0]["content"]}]
    expect(text(answer(messages=[{"role": "user", "content": parts}])) == text(answer()), parts)


@check("messages-streaming")
def messages_streaming():
    events = list(answer(stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    expect(kinds[0] == "message_start" and kinds[1] == "content_block_start", kinds)
    expect(kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds)
    expect(set(kinds[2:-3]) == {"content_block_delta"}, kinds)
    start, end = events[0].message, events[-2]
    expect(start.content == [] and start.stop_reason is None and start.usage.input_tokens > 0, start)
    expect(end.delta.stop_reason == "end_turn" and end.usage.output_tokens > 0, end)
    with client.messages.stream(**GREEDY, messages=QUESTION) as stream:
        joined = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(joined == text(answer()) == text(final), joined)
    expect(final.usage.output_tokens == answer().usage.output_tokens, final.usage)


@check("messages-system")
def messages_system():
    plain = answer(system="You are a poet.")
    parts = answer(system=[{"type": "text", "text": "You are a poet.", "cache_control": {"type": "ephemeral"}}])
    expect(text(plain) == text(parts), (text(plain), text(parts)))
    expect(plain.usage.input_tokens + (plain.usage.cache_read_input_tokens or 0)
           > answer().usage.input_tokens, plain.usage)


def weather(**settings):
    return answer(**({"messages": ASK_WEATHER} | FORCED | settings))


@check("messages-tools")
def messages_tools():
    reply = weather()
    expect(reply.stop_reason == "tool_use", reply)
    call = next(block for block in reply.content if block.type == "tool_use")
    expect(call.id and call.name == "get_weather", call)
    check_weather(call.input)
    required = weather(tool_choice={"type": "any"})
    expect(required.stop_reason == "tool_use", required)
    none = weather(tool_choice={"type": "none"})
    expect(none.stop_reason in ("end_turn", "max_tokens"), none)
    one = weather(tool_choice={"type": "any", "disable_parallel_tool_use": True})
    expect(len([block for block in one.content if block.type == "tool_use"]) == 1, one)


@check("messages-tools-streaming")
def messages_tools_streaming():
    with client.messages.stream(**GREEDY, messages=ASK_WEATHER, **FORCED) as stream:
        events = list(stream)
        final = stream.get_final_message()
    started = [event.content_block for event in events
               if event.type == "content_block_start" and event.content_block.type == "tool_use"]
    expect(started and started[0].id and started[0].input == {}, started)
    expect(any(event.type == "input_json" for event in events), {event.type for event in events})
    check_weather(next(block.input for block in final.content if block.type == "tool_use"))
    expect(final.stop_reason == "tool_use", final)


@check("tool-results")
def tool_results():
    reply = weather()
    call = next(block for block in reply.content if block.type == "tool_use")
    parts = [{"type": "text", "text": "7 degrees"}]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": parts}
    history = [*ASK_WEATHER, {"role": "assistant", "content": reply.content},
               {"role": "user", "content": [result]}]
    expect(answer(messages=history, tools=[TOOL]).content, history)


@check("messages-stop")
def messages_stop():
    whole = text(answer())
    word = whole[5:11]
    reply = answer(stop_sequences=["never said", word])
    expect(text(reply) == whole[:whole.index(word)], text(reply))
    expect(reply.stop_reason == "stop_sequence" and reply.stop_sequence == word, reply)


@check("messages-count")
def messages_count():
    count = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    used = answer().usage
    expect(count == used.input_tokens + (used.cache_read_input_tokens or 0), (count, used))
    more = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be brief.", tools=[TOOL])
    expect(more.input_tokens > count, more)


@check("abort")
def abort():
    def open_stream():
        # The package knows no logit bias; the server takes it as an extension where it can.
        body = {"logit_bias": ENDLESS["logit_bias"]}
        stream = client.messages.create(
            model=MODEL, max_tokens=ENDLESS["max_tokens"], messages=ENDLESS["messages"], stream=True, extra_body=body
        )
        return iter(stream), stream.close

    checks.check_abort(open_stream)


@check("retries")
def retries():
    def call(count):
        limited = make(key=checks.LIMITED_KEY, retries=count).messages
        return limited.create(model=MODEL, messages=QUESTION, max_tokens=1)

    error = checks.check_retries(anthropic.RateLimitError, call)
    expect(error.body["error"]["type"] == "rate_limit_error", error.body)


@check("unknown-field")
def unknown_field():
    found = answer(extra_body={"temperature": 0, "no_such_field": 1}, metadata={"user_id": "a"})
    expect(text(found) == text(answer()), found)


@check("error-key")
def error_key():
    error = expect_raises(anthropic.AuthenticationError, lambda: make(key="wrong").messages.create(
        **GREEDY, messages=QUESTION))
    expect(error.body["error"]["type"] == "authentication_error", error.body)


@check("error-model")
def error_model():
    error = expect_raises(anthropic.NotFoundError, lambda: answer(model="no-such-model"))
    expect(error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error", error.body)


@check("error-param")
def error_param():
    for wrong in ({"temperature": "hot"}, {"max_tokens": 0}, {"messages": []}):
        error = expect_raises(anthropic.BadRequestError, lambda: answer(extra_body=wrong))
        found = error.body["error"]
        expect(found["type"] == "invalid_request_error" and next(iter(wrong)) in found["message"], error.body)


@check("headers")
def headers():
    reply = client.messages.with_raw_response.create(**GREEDY, messages=QUESTION)
    expect(reply.headers.get("request-id") or reply.headers.get("x-request-id"), dict(reply.headers))
    expect(answer()._request_id, "request-id, which the package reads")


if __name__ == "__main__":
    checks.run("anthropic (Python)", "anthropic")
