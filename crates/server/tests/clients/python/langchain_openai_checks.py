"""Checks of LangChain's package `langchain-openai`."""

from typing import Literal

import openai
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

import checks
from checks import EMBEDDING_MODEL, KEY, MODEL, URL, check, check_weather, expect, expect_raises

SERVER = {"base_url": URL + "/v1", "api_key": KEY}
GREEDY = {"model": MODEL, "temperature": 0, "max_retries": 0}
QUESTION = [HumanMessage("What is a glacier?")]
ASK_WEATHER = [HumanMessage(checks.ASK_WEATHER[0]["content"])]

model = ChatOpenAI(**SERVER, **GREEDY, max_tokens=60, stream_usage=True)


@tool
def get_weather(city: Literal["Oslo", "Paris", "Rome"], unit: Literal["celsius", "fahrenheit"]) -> str:
    """Current weather of a city."""
    return "7"


class Lake(BaseModel):
    kind: Literal["lake", "pond"]
    deep: bool


@check("chat")
def chat():
    reply = model.invoke(QUESTION)
    expect(len(reply.content) > 10 and reply.response_metadata["finish_reason"] == "stop", reply)


@check("usage")
def usage():
    found = model.invoke(QUESTION).usage_metadata
    expect(found["total_tokens"] == found["input_tokens"] + found["output_tokens"] > 0, found)
    expect("cache_read" in found["input_token_details"], found)


@check("content-parts")
def content_parts():
    parts = [HumanMessage([{"type": "text", "text": "What is a glacier?"}])]
    expect(model.invoke(parts).content == model.invoke(QUESTION).content, parts)


@check("streaming")
def streaming():
    chunks = list(model.stream(QUESTION))
    whole = sum(chunks[1:], chunks[0])
    expect(whole.content == model.invoke(QUESTION).content, whole)
    expect(whole.response_metadata["finish_reason"] == "stop", whole.response_metadata)


@check("stream-usage")
def stream_usage():
    chunks = list(model.stream(QUESTION))
    found = sum(chunks[1:], chunks[0]).usage_metadata
    expect(found == model.invoke(QUESTION).usage_metadata or found["output_tokens"] > 0, found)


@check("stop")
def stop():
    whole = model.invoke(QUESTION).content
    expect(model.invoke(QUESTION, stop=[whole[5:11]]).content == whole[:whole.index(whole[5:11])], whole)


@check("n")
def several_choices():
    result = ChatOpenAI(**SERVER, model=MODEL, n=2, max_tokens=4).generate([QUESTION])
    expect(len(result.generations[0]) == 2, result)


@check("seed")
def seed():
    sampled = ChatOpenAI(**SERVER, model=MODEL, temperature=1.5, seed=5, max_tokens=20)
    expect(sampled.invoke(QUESTION).content == sampled.invoke(QUESTION).content, "another text")


@check("logprobs")
def logprobs():
    found = model.bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]
    expect(len(found["content"][0]["top_logprobs"]) == 2, found)


@check("tools")
def tools():
    reply = model.bind_tools([get_weather], tool_choice="required").invoke(ASK_WEATHER)
    expect(reply.tool_calls[0]["name"] == "get_weather" and reply.tool_calls[0]["id"], reply)
    check_weather(reply.tool_calls[0]["args"])


@check("tool-choice")
def tool_choice():
    reply = model.bind_tools([get_weather], tool_choice="get_weather").invoke(ASK_WEATHER)
    expect(len(reply.tool_calls) == 1, reply)


@check("tools-streaming")
def tools_streaming():
    chunks = list(model.bind_tools([get_weather], tool_choice="get_weather").stream(ASK_WEATHER))
    whole = sum(chunks[1:], chunks[0])
    expect(len(whole.tool_calls) == 1 and not whole.invalid_tool_calls, whole)
    check_weather(whole.tool_calls[0]["args"])


@check("parallel-tool-calls")
def parallel_tool_calls():
    bound = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    expect(len(bound.invoke(ASK_WEATHER).tool_calls) == 1, "calls")


@check("tool-results")
def tool_results():
    bound = model.bind_tools([get_weather])
    call = model.bind_tools([get_weather], tool_choice="required").invoke(ASK_WEATHER)
    result = ToolMessage("7 degrees", tool_call_id=call.tool_calls[0]["id"])
    reply = bound.invoke([SystemMessage("Be brief."), *ASK_WEATHER, call, result])
    expect(reply.content or reply.tool_calls, reply)


@check("json-mode")
def json_mode():
    found = model.with_structured_output(Lake.model_json_schema() | {"title": "Lake"}, method="json_schema")
    expect(set(found.invoke("Describe a lake as JSON.")) == {"kind", "deep"}, found)
    text = model.bind(response_format={"type": "json_object"}).invoke("A lake as JSON.").content
    expect(text.lstrip().startswith("{"), text)


@check("json-schema")
def json_schema():
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(Lake, method=method).invoke("Describe a lake as JSON.")
        expect(isinstance(found, Lake), (method, found))


@check("json-schema-streaming")
def json_schema_streaming():
    last = list(model.with_structured_output(Lake, method="json_schema").stream("Describe a lake."))[-1]
    expect(isinstance(last, Lake), last)


@check("embeddings")
def embeddings():
    # Without this setting the package counts tokens with a vocabulary of OpenAI's.
    found = OpenAIEmbeddings(**SERVER, model=EMBEDDING_MODEL, check_embedding_ctx_length=False)
    vectors = found.embed_documents(["a river", "a lake"])
    query = found.embed_query("a river")
    expect(len(vectors) == 2 and max(abs(a - b) for a, b in zip(vectors[0], query)) < 1e-5, query[:3])


@check("completions")
def completions():
    found = OpenAI(**SERVER, model=MODEL, temperature=0, max_tokens=8)
    expect(found.invoke("Once upon a time") == found.invoke("Once upon a time") != "", "text")


@check("completions-streaming")
def completions_streaming():
    found = OpenAI(**SERVER, model=MODEL, temperature=0, max_tokens=8)
    expect("".join(found.stream("Once upon a time")) == found.invoke("Once upon a time"), "text")


@check("completions-prompts")
def completions_prompts():
    found = OpenAI(**SERVER, model=MODEL, temperature=0, max_tokens=8)
    expect(len(found.generate(["One", "Two"]).generations) == 2, "generations")


@check("responses")
def responses():
    found = ChatOpenAI(**SERVER, **GREEDY, max_tokens=60, use_responses_api=True)
    expect(found.invoke(QUESTION).text, "text")


@check("responses-streaming")
def responses_streaming():
    found = ChatOpenAI(**SERVER, **GREEDY, max_tokens=60, use_responses_api=True)
    joined = "".join(chunk.text for chunk in found.stream(QUESTION))
    expect(joined == found.invoke(QUESTION).text != "", joined)


@check("responses-tools")
def responses_tools():
    found = ChatOpenAI(**SERVER, **GREEDY, max_tokens=60, use_responses_api=True)
    calls = found.bind_tools([get_weather], tool_choice="required").invoke(ASK_WEATHER).tool_calls
    check_weather(calls[0]["args"])


@check("abort")
def abort():
    settings = {name: checks.ENDLESS[name] for name in ("model", "max_tokens", "logit_bias")}
    endless = ChatOpenAI(**SERVER, **settings)

    def open_stream():
        stream = endless.stream("Tell a long story.")
        return stream, stream.close

    checks.check_abort(open_stream)


@check("retries")
def retries():
    def call(count):
        limited = SERVER | {"api_key": checks.LIMITED_KEY}
        return ChatOpenAI(**limited, model=MODEL, max_tokens=1, max_retries=count).invoke(QUESTION)

    checks.check_retries(openai.RateLimitError, call)


@check("timeout")
def timeout():
    endless = ChatOpenAI(**SERVER, model=MODEL, max_tokens=checks.ENDLESS["max_tokens"], timeout=0.3, max_retries=0,
                         logit_bias=checks.ENDLESS["logit_bias"])
    expect_raises(openai.APITimeoutError, lambda: endless.invoke("Tell a long story."))
    checks.wait_for_running(lambda count: count == 0)


@check("error-key")
def error_key():
    wrong = ChatOpenAI(**(SERVER | {"api_key": "wrong"}), **GREEDY)
    expect_raises(openai.AuthenticationError, lambda: wrong.invoke(QUESTION))


@check("error-model")
def error_model():
    wrong = ChatOpenAI(**SERVER, model="no-such-model", max_retries=0)
    expect_raises(openai.NotFoundError, lambda: wrong.invoke(QUESTION))


if __name__ == "__main__":
    checks.run("LangChain (OpenAI)", "langchain-openai")
