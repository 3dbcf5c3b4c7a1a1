"""Checks of LlamaIndex's package `llama-index-llms-openai-like`."""

from typing import Literal

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

import checks
from checks import KEY, MODEL, URL, check, check_weather, expect, expect_raises

QUESTION = [ChatMessage(role="user", content="What is a glacier?")]


def make(**settings):
    """A client of the server."""
    base = {
        "model": MODEL, "api_base": URL + "/v1", "api_key": KEY, "temperature": 0, "max_tokens": 60,
        "is_chat_model": True, "is_function_calling_model": True, "context_window": 4096, "max_retries": 0,
    }
    return OpenAILike(**(base | settings))


model = make()


def get_weather(city: Literal["Oslo", "Paris", "Rome"], unit: Literal["celsius", "fahrenheit"]) -> str:
    """Current weather of a city."""
    return "7"


TOOL = FunctionTool.from_defaults(get_weather)


class River(BaseModel):
    kind: Literal["river", "brook"]
    long: bool


@check("chat")
def chat():
    expect(len(model.chat(QUESTION).message.content) > 10, "text")


@check("streaming")
def streaming():
    last = list(model.stream_chat(QUESTION))[-1]
    expect(last.message.content == model.chat(QUESTION).message.content, last)


@check("tools")
def tools():
    reply = model.chat_with_tools([TOOL], user_msg=checks.ASK_WEATHER[0]["content"], tool_required=True)
    call = model.get_tool_calls_from_response(reply)[0]
    expect(call.tool_name == "get_weather" and call.tool_id, call)
    check_weather(call.tool_kwargs)


@check("tools-streaming")
def tools_streaming():
    stream = model.stream_chat_with_tools(
        [TOOL], user_msg=checks.ASK_WEATHER[0]["content"], tool_required=True
    )
    last = list(stream)[-1]
    check_weather(model.get_tool_calls_from_response(last)[0].tool_kwargs)


@check("json-schema")
def json_schema():
    for structured in (model, make(should_use_structured_outputs=True)):
        found = structured.as_structured_llm(River).chat(QUESTION).raw
        expect(isinstance(found, River), found)


@check("completions")
def completions():
    plain = make(is_chat_model=False, max_tokens=8)
    expect(plain.complete("Once upon a time").text, "text")


@check("completions-streaming")
def completions_streaming():
    plain = make(is_chat_model=False, max_tokens=8)
    last = list(plain.stream_complete("Once upon a time"))[-1]
    expect(last.text == plain.complete("Once upon a time").text, last)


@check("logprobs")
def logprobs():
    found = make(additional_kwargs={"logprobs": True, "top_logprobs": 2}).chat(QUESTION).raw
    expect(found.choices[0].logprobs.content[0].top_logprobs, found)


@check("error-key")
def error_key():
    expect_raises(openai.AuthenticationError, lambda: make(api_key="wrong").chat(QUESTION))


@check("error-model")
def error_model():
    expect_raises(openai.NotFoundError, lambda: make(model="no-such-model").chat(QUESTION))


if __name__ == "__main__":
    checks.run("LlamaIndex", "llama-index-llms-openai-like")
