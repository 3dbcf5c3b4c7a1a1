"""Checks with `curl`: the bytes of replies, which client libraries hide."""

import json
import subprocess
import tempfile

import checks
from checks import ASK_WEATHER, ENDLESS, GREEDY, KEY, MODEL, QUESTION, URL, WEATHER, check, expect


def command(path, body=None, *options, key=KEY):
    """Command line of a request; the body goes to standard input, so that no shell is needed."""
    words = ["curl", "--silent", "--show-error", "--no-buffer", "--max-time", "50", URL + path, *options]
    if key is not None:
        words += ["-H", f"Authorization: Bearer {key}"]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    return words


def curl(path, body=None, *options, key=KEY):
    """Output of curl."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    done = subprocess.run(command(path, body, *options, key=key), input=data, capture_output=True)
    expect(done.returncode == 0, done.stderr)
    return done.stdout.decode()


def status(path, body=None, *options, key=KEY):
    """Status and JSON body of a reply."""
    text = curl(path, body, "--write-out", "\n%{http_code}", *options, key=key)
    reply, code = text.rsplit("\n", 1)
    return int(code), json.loads(reply)


CHAT = "/v1/chat/completions"


@check("models")
def models():
    code, reply = status("/v1/models")
    expect(code == 200 and reply["object"] == "list", reply)
    model = next(model for model in reply["data"] if model["id"] == MODEL)
    expect(model["object"] == "model" and isinstance(model["created"], int) and model["owned_by"], model)


@check("chat")
def chat():
    code, reply = status(CHAT, GREEDY | {"messages": QUESTION})
    expect(code == 200 and reply["choices"][0]["message"]["content"], reply)
    expect("logprobs" in reply["choices"][0] and "finish_reason" in reply["choices"][0], reply)


@check("usage")
def usage():
    found = status(CHAT, GREEDY | {"messages": QUESTION})[1]["usage"]
    expect(isinstance(found["prompt_tokens_details"]["cached_tokens"], int), found)


@check("streaming")
def streaming():
    lines = curl(CHAT, GREEDY | {"messages": QUESTION, "stream": True}).split("\n")
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    expect(all(line.startswith(("data: ", ":")) or not line for line in lines), lines)
    expect(events[-1] == "[DONE]", events[-1])
    for event in map(json.loads, events[:-1]):
        expect("delta" in event["choices"][0] and "finish_reason" in event["choices"][0], event)


@check("tools-streaming")
def tools_streaming():
    body = GREEDY | {"messages": ASK_WEATHER, "tools": [WEATHER], "tool_choice": "required", "stream": True}
    events = [line.removeprefix("data: ") for line in curl(CHAT, body).split("\n") if line.startswith("data: ")]
    deltas = [call for event in events[:-1] for choice in json.loads(event)["choices"]
              for call in choice["delta"].get("tool_calls", [])]
    expect(deltas[0]["id"] and deltas[0]["type"] == "function" and deltas[0]["function"]["name"], deltas[0])
    expect(all(delta.get("id", "absent") is not None for delta in deltas), "an id that is null")


@check("embeddings-base64")
def embeddings_base64():
    body = {"model": checks.EMBEDDING_MODEL, "input": "a river", "encoding_format": "base64"}
    code, reply = status("/v1/embeddings", body)
    expect(code == 200 and isinstance(reply["data"][0]["embedding"], str), reply)


@check("abort")
def abort():
    body = json.dumps(ENDLESS | {"stream": True}).encode()
    child = subprocess.Popen(command(CHAT, ENDLESS), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)

    def open_stream():
        child.stdin.write(body)
        child.stdin.close()
        return iter(child.stdout), close

    def close():
        child.kill()
        child.wait()
        child.stdout.close()

    checks.check_abort(open_stream)


@check("retries")
def retries():
    body = json.dumps({"model": MODEL, "messages": QUESTION, "max_tokens": 1})
    for _ in range(40):
        code, _reply = status(CHAT, json.loads(body), key=checks.LIMITED_KEY)
        if code == 429:
            break
    expect(code == 429, code)
    # `--retry` waits as long as the header says, and truncates its output, which must be a file.
    with tempfile.NamedTemporaryFile() as file:
        code = curl(CHAT, json.loads(body), "--write-out", "%{http_code}", "--output", file.name,
                    "--retry", "6", "--retry-max-time", "50", key=checks.LIMITED_KEY)
    expect(code.endswith("200"), code)


@check("unknown-field")
def unknown_field():
    code, reply = status(CHAT, GREEDY | {"messages": QUESTION, "no_such_field": None})
    expect(code == 200, reply)


@check("error-key")
def error_key():
    for code, reply in (status(CHAT, GREEDY, key="wrong"), status("/v1/models", key=None)):
        expect(code == 401 and set(reply["error"]) == {"message", "type", "param", "code"}, reply)


@check("error-model")
def error_model():
    code, reply = status(CHAT, GREEDY | {"messages": QUESTION, "model": "no-such-model"})
    expect(code == 404 and reply["error"]["code"] == "model_not_found", reply)


@check("error-param")
def error_param():
    for field, value in (("temperature", "hot"), ("messages", "text"), ("stop", 5), ("stream", "yes")):
        code, reply = status(CHAT, GREEDY | {"messages": QUESTION, field: value})
        expect(code == 400 and reply["error"]["param"] == field, (field, reply))
    for body in (b"{", b"[]", b"\xff\xfe", b'{"messages": [' * 3000):
        code, reply = status(CHAT, body)
        expect(code == 400 and reply["error"]["type"] == "invalid_request_error", (body[:20], reply))
    code, reply = status("/v1/no-such-path", {})
    expect(code == 404 and reply["error"]["message"], reply)
    code, reply = status(CHAT, None, "--request", "DELETE")
    expect(code == 405 and reply["error"]["message"], reply)


@check("headers")
def headers():
    text = curl(CHAT, GREEDY | {"messages": QUESTION}, "--dump-header", "-", "--output", "/dev/null",
                "-H", "x-request-id: mine")
    expect("x-request-id: mine" in text.lower(), text)
    with tempfile.NamedTemporaryFile() as file:
        limited = curl(CHAT, GREEDY | {"messages": QUESTION}, "--dump-header", "-", "--output", file.name,
                       "--retry", "6", key=checks.LIMITED_KEY).lower()
    expect("x-ratelimit-limit-requests:" in limited and "x-ratelimit-remaining-requests:" in limited, limited)


if __name__ == "__main__":
    first = subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout.split()
    checks.run("curl", ("curl", first[1]))
