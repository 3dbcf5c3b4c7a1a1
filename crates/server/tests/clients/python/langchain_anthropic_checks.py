"""Checks of LangChain's package `langchain-anthropic`."""

from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

import checks
from checks import KEY, MODEL, URL, check, check_weather, expect

QUESTION = [HumanMessage("What is a glacier?")]
ASK_WEATHER = [HumanMessage(checks.ASK_WEATHER[0]["content"])]

model = ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL, temperature=0, max_tokens=60, max_retries=0)


@tool
def get_weather(city: Literal["Oslo", "Paris", "Rome"], unit: Literal["celsius", "fahrenheit"]) -> str:
    """Current weather of a city."""
    return "7"


@check("messages")
def messages():
    reply = model.invoke(QUESTION)
    expect(len(reply.text) > 10 and reply.response_metadata["stop_reason"] == "end_turn", reply)


@check("usage")
def usage():
    found = model.invoke(QUESTION).usage_metadata
    expect(found["total_tokens"] == found["input_tokens"] + found["output_tokens"] > 0, found)


@check("messages-streaming")
def messages_streaming():
    chunks = list(model.stream(QUESTION))
    expect("".join(chunk.text for chunk in chunks) == model.invoke(QUESTION).text, chunks[-1])
    whole = sum(chunks[1:], chunks[0])
    expect(whole.usage_metadata["output_tokens"] > 0, whole)


@check("messages-system")
def messages_system():
    expect(model.invoke([SystemMessage("You are a poet."), *QUESTION]).text, "text")


@check("messages-tools")
def messages_tools():
    reply = model.bind_tools([get_weather], tool_choice="get_weather").invoke(ASK_WEATHER)
    check_weather(reply.tool_calls[0]["args"])


@check("messages-tools-streaming")
def messages_tools_streaming():
    chunks = list(model.bind_tools([get_weather], tool_choice="any").stream(ASK_WEATHER))
    whole = sum(chunks[1:], chunks[0])
    check_weather(whole.tool_calls[0]["args"])


@check("tool-results")
def tool_results():
    call = model.bind_tools([get_weather], tool_choice="any").invoke(ASK_WEATHER)
    result = ToolMessage("7 degrees", tool_call_id=call.tool_calls[0]["id"])
    reply = model.bind_tools([get_weather]).invoke([*ASK_WEATHER, call, result])
    expect(reply.content or reply.tool_calls, reply)


@check("messages-stop")
def messages_stop():
    whole = model.invoke(QUESTION).text
    expect(model.invoke(QUESTION, stop=[whole[5:11]]).text == whole[:whole.index(whole[5:11])], whole)


@check("messages-count")
def messages_count():
    expect(model.get_num_tokens_from_messages(QUESTION) > 0, "tokens")


@check("abort")
def abort():
    endless = ChatAnthropic(
        base_url=URL, api_key=KEY, model=MODEL, max_tokens=checks.ENDLESS["max_tokens"],
        model_kwargs={"extra_body": {"logit_bias": checks.ENDLESS["logit_bias"]}},
    )

    def open_stream():
        stream = endless.stream("Tell a long story.")
        return stream, stream.close

    checks.check_abort(open_stream)


if __name__ == "__main__":
    checks.run("LangChain (Anthropic)", "langchain-anthropic")
