"""Checks with `grpcio`: messages come from the server's reflection, so that no code is generated.

Environment besides that of checks.py: CLIENTS_GRPC, host and port of gRPC; without it there are no
outcomes.
"""

import os

import checks
import grpc
from checks import (
    ASK_WEATHER,
    EMBEDDING_MODEL,
    END_TOKENS,
    ENDLESS,
    KEY,
    LIMITED_KEY,
    MODEL,
    QUESTION,
    WEATHER,
    check,
    check_weather,
    expect,
    expect_raises,
    raw,
    token_ids,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

SERVICE = "ruvllm.v1.Inference"


class WithKey(grpc.StreamStreamClientInterceptor):
    """Adds the key to the calls of reflection, whose client takes no metadata."""

    def intercept_stream_stream(self, continuation, details, requests):
        return continuation(details._replace(metadata=metadata()), requests)


def metadata(key=KEY):
    return [("authorization", f"Bearer {key}")]


ADDRESS = os.environ.get("CLIENTS_GRPC", "")
if not ADDRESS:
    raise SystemExit(0)
CHANNEL = grpc.insecure_channel(ADDRESS)
REFLECTION = ProtoReflectionDescriptorDatabase(grpc.intercept_channel(CHANNEL, WithKey()))
POOL = DescriptorPool(REFLECTION)
METHODS = POOL.FindServiceByName(SERVICE).methods_by_name


def method(name):
    """A method of the service with its messages."""
    found = METHODS[name]
    make = CHANNEL.unary_stream if found.server_streaming else CHANNEL.unary_unary
    return make(
        f"/{SERVICE}/{name}",
        request_serializer=GetMessageClass(found.input_type).SerializeToString,
        response_deserializer=GetMessageClass(found.output_type).FromString,
    )


def message(name, fields):
    return GetMessageClass(METHODS[name].input_type)(**fields)


def call(name, fields, key=KEY, **options):
    return method(name)(message(name, fields), metadata=metadata(key), **options)


def generate(fields, **options):
    """Text, token ids and end of each choice."""
    choices = {}
    for event in call("Generate", {"model": MODEL, "temperature": 0, "max_tokens": 60} | fields, **options):
        choice = choices.setdefault(event.choice, {"text": "", "tokens": [], "logprobs": [], "arguments": ""})
        expect("finish" not in choice, event)
        match event.WhichOneof("event"):
            case "piece":
                choice["text"] += event.piece.text
                choice["tokens"] += event.piece.tokens
                choice["logprobs"] += event.piece.logprobs
            case "tool_call":
                choice["arguments"] += event.tool_call.arguments
            case "finish":
                choice["finish"] = event.finish
    expect(all("finish" in choice for choice in choices.values()), choices)
    return [choices[index] for index in sorted(choices)]


def completion(fields):
    """Choices of the same request over HTTP."""
    return raw("/v1/completions", {"model": MODEL, "temperature": 0, "max_tokens": 60} | fields)["choices"]


def details(error, kind):
    """A detail of an error; None without it."""
    found = kind()
    status = rpc_status.from_call(error)
    return next((found for detail in status.details if detail.Unpack(found)), None)


@check("grpc-services")
def services():
    expect(SERVICE in REFLECTION.get_services(), list(REFLECTION.get_services()))
    health = health_pb2_grpc.HealthStub(CHANNEL)
    for service in ["", SERVICE]:
        found = health.Check(health_pb2.HealthCheckRequest(service=service)).status
        expect(found == health_pb2.HealthCheckResponse.SERVING, found)


@check("streaming")
def streaming():
    found = generate({"chat": {"messages": QUESTION}})[0]
    body = {"model": MODEL, "temperature": 0, "max_tokens": 60, "messages": QUESTION}
    expect(found["text"] == raw("/v1/chat/completions", body)["choices"][0]["message"]["content"], found)


@check("usage")
def usage():
    fields = {"text": "Once upon a time there was a glacier. " * 16, "max_tokens": 8}
    first, second = generate(fields)[0], generate(fields)[0]["finish"].usage
    expect(first["finish"].usage.output_tokens == len(first["tokens"]) == 8, first)
    expect(second.cached_tokens > 0 and second.prompt_tokens > second.cached_tokens, second)


@check("completions-streaming")
def completions():
    found = generate({"text": "The sun", "seed": 3, "temperature": 0.8})[0]
    expect(found["text"] == completion({"prompt": "The sun", "seed": 3, "temperature": 0.8})[0]["text"], found)


@check("completions-prompts")
def prompts():
    ids = token_ids("The sun is")
    found = generate({"tokens": {"ids": ids}, "max_tokens": 12})[0]
    expect(found["text"] == completion({"prompt": ids, "max_tokens": 12})[0]["text"], found)
    rest = generate({"tokens": {"ids": ids + found["tokens"][:5]}, "max_tokens": 7})[0]
    expect(rest["tokens"] == found["tokens"][5:], rest)
    encoded = call("Tokenize", {"model": MODEL, "text": "The sun is"}).tokens
    expect(list(encoded) == ids, encoded)
    text = call("Detokenize", {"model": MODEL, "tokens": ids}).text
    expect(text.strip() == "The sun is", text)


@check("n")
def choices():
    fields = {"n": 3, "seed": 5, "temperature": 1}
    found = [choice["text"] for choice in generate({"text": "The sun"} | fields)]
    expect(found == [choice["text"] for choice in completion({"prompt": "The sun"} | fields)], found)


@check("stop")
def stop():
    text = generate({"text": "The sun"})[0]["text"]
    found = generate({"text": "The sun", "stop": [text[5:9]]})[0]
    expect(found["finish"].stop_sequence == text[5:9] and text[5:9] not in found["text"], found)


@check("logit-bias")
def logit_bias():
    first = generate({"text": "The sun", "max_tokens": 1})[0]["tokens"][0]
    found = generate({"text": "The sun", "max_tokens": 1, "logit_bias": {first: -100}})[0]["tokens"]
    expect(found != [first], found)


@check("logprobs")
def logprobs():
    found = generate({"text": "The sun", "max_tokens": 6, "logprobs": 2})[0]
    expect([entry.token.token for entry in found["logprobs"]] == found["tokens"], found)
    # Greedy: each token is the most likely one.
    expect(all(entry.top[0] == entry.token and entry.token.logprob <= 0 for entry in found["logprobs"]), found)


@check("tools-streaming")
def tools():
    chat = {"messages": ASK_WEATHER, "tools": checks.json.dumps([WEATHER]), "tool_choice": "get_weather"}
    found = generate({"chat": chat, "max_tokens": 100})[0]
    check_weather(found["arguments"])
    expect(found["finish"].reason == 3, found)


@check("json-schema-streaming")
def json_schema():
    schema = checks.json.dumps(WEATHER["function"]["parameters"])
    check_weather(generate({"chat": {"messages": ASK_WEATHER}, "json_schema": schema})[0]["text"])


@check("embeddings")
def embeddings():
    found = call("Embed", {"model": EMBEDDING_MODEL, "texts": ["The sun", "The moon"]}).embeddings
    theirs = raw("/v1/embeddings", {"model": EMBEDDING_MODEL, "input": ["The sun", "The moon"]})["data"]
    for mine, other in zip(found, theirs, strict=True):
        pairs = zip(mine.values, other["embedding"], strict=True)
        expect(all(abs(a - b) < 1e-6 for a, b in pairs), mine.values[:4])


@check("abort")
def abort():
    def open_stream():
        bias = {token: -100 for token in END_TOKENS}
        fields = {"text": "Tell a long story.", "max_tokens": ENDLESS["max_tokens"], "logit_bias": bias}
        stream = call("Generate", {"model": MODEL} | fields)
        return stream, stream.cancel

    checks.check_abort(open_stream)


@check("headers")
def headers():
    # The client before may have used the limit up.
    checks.time.sleep(3.5)
    keys = [("authorization", f"Bearer {LIMITED_KEY}"), ("x-request-id", "trace-17")]
    stream = method("Generate")(message("Generate", {"text": "The sun", "max_tokens": 1}), metadata=keys)
    found = dict(stream.initial_metadata())
    list(stream)
    expect(found["x-request-id"] == "trace-17" and "x-ratelimit-remaining-requests" in found, found)


@check("retries")
def retries():
    fields = {"model": MODEL, "text": "The sun", "max_tokens": 1}
    error = None
    for _ in range(40):
        try:
            list(call("Generate", fields, key=LIMITED_KEY))
        except grpc.RpcError as limited:
            error = limited
            break
    expect(error is not None and error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error)
    wait = details(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds()
    expect(0 < wait <= 60, wait)
    checks.time.sleep(wait)
    list(call("Generate", fields, key=LIMITED_KEY))


@check("timeout")
def timeout():
    fields = {"text": "Tell a long story.", "max_tokens": 3500, "ignore_eos": True}
    error = expect_raises(grpc.RpcError, lambda: generate(fields, timeout=0.3))
    expect(error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error)
    checks.wait_for_running(lambda count: count == 0)


@check("error-key")
def wrong_key():
    error = expect_raises(grpc.RpcError, lambda: generate({"text": "The sun"}, key="rk-wrong"))
    expect(error.code() == grpc.StatusCode.UNAUTHENTICATED, error)


@check("error-model")
def unknown_model():
    error = expect_raises(grpc.RpcError, lambda: generate({"model": "none", "text": "The sun"}))
    expect(error.code() == grpc.StatusCode.NOT_FOUND, error)
    reason = details(error, error_details_pb2.ErrorInfo).reason
    expect(reason == "MODEL_NOT_FOUND", reason)


@check("error-param")
def wrong_field():
    error = expect_raises(grpc.RpcError, lambda: generate({"text": "The sun", "top_p": 2}))
    expect(error.code() == grpc.StatusCode.INVALID_ARGUMENT, error)
    field = details(error, error_details_pb2.BadRequest).field_violations[0].field
    expect(field == "top_p", field)


checks.run("grpcio (Python)", "grpcio")
