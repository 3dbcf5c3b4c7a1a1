"""Checks of one client against a running server; outcomes go to stdout as JSON lines.

Environment: CLIENTS_URL (without /v1), CLIENTS_KEY, CLIENTS_LIMITED_KEY (a tenant with a low rate
limit), CLIENTS_MODEL, CLIENTS_EMBEDDING_MODEL, CLIENTS_RUNNING and CLIENTS_GENERATED (metrics: the
gauge of running requests, the counter of generated tokens), CLIENTS_END_TOKENS (ids that end a
text, forbidden where a long text is needed).
"""

import json
import os
import signal
import sys
import time
import traceback
import urllib.request
from importlib.metadata import version

URL = os.environ["CLIENTS_URL"].rstrip("/")
KEY = os.environ["CLIENTS_KEY"]
LIMITED_KEY = os.environ.get("CLIENTS_LIMITED_KEY", "")
MODEL = os.environ["CLIENTS_MODEL"]
EMBEDDING_MODEL = os.environ.get("CLIENTS_EMBEDDING_MODEL", MODEL)
RUNNING = os.environ.get("CLIENTS_RUNNING", "")
GENERATED = os.environ.get("CLIENTS_GENERATED", "")
END_TOKENS = [int(token) for token in os.environ.get("CLIENTS_END_TOKENS", "0,2").split(",")]

# Greedy, so that a text can be compared with another of the same question.
QUESTION = [{"role": "user", "content": "What is a glacier?"}]
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 60}
# A text that does not end by itself before it is aborted.
ENDLESS = {
    "model": MODEL,
    "max_tokens": 3500,
    "logit_bias": {str(token): -100 for token in END_TOKENS},
    "messages": [{"role": "user", "content": "Tell a long story."}],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Paris", "Rome"]},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Oslo, in celsius?"}]
WEATHER_ARGUMENTS = {"city": {"Oslo", "Paris", "Rome"}, "unit": {"celsius", "fahrenheit"}}

SECONDS_PER_CHECK = 60

_checks = []


def check(feature):
    """Registers a function as the check of a feature; it raises where the server fails."""

    def register(function):
        _checks.append((feature, function))
        return function

    return register


def run(client, package):
    """Runs the registered checks, or those whose features the command line names."""
    only = set(sys.argv[1:])
    signal.signal(signal.SIGALRM, _too_long)
    for feature, function in _checks:
        if only and feature not in only:
            continue
        signal.alarm(SECONDS_PER_CHECK)
        reason = None
        try:
            function()
        except Exception as error:  # every failure of a client library is an outcome
            reason = _reason(error)
        finally:
            signal.alarm(0)
        outcome = {"client": client, "version": _version(package), "feature": feature}
        outcome |= {"outcome": "ok"} if reason is None else {"outcome": "failed", "reason": reason}
        print(json.dumps(outcome), flush=True)


def _version(package):
    return package[1] if isinstance(package, tuple) else version(package)


def _too_long(_signal, _frame):
    raise TimeoutError(f"no result within {SECONDS_PER_CHECK} s")


def _reason(error):
    """Error text with the innermost line of the check that raised it."""
    lines = [
        f"{os.path.basename(frame.filename)}:{frame.lineno}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.dirname(frame.filename) == os.path.dirname(os.path.abspath(__file__))
        and frame.name != "expect"
    ]
    where = f" at {lines[-1]}" if lines else ""
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    return f"{type(error).__name__}: {error}{cause}"[:700] + where


def expect(condition, found):
    """Fails the check unless the condition holds; `found` is shown."""
    if not condition:
        raise AssertionError(f"found {found!r}"[:500])


def expect_raises(kind, call):
    """The error of class `kind` that the call must raise."""
    try:
        found = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, found {found!r}"[:500])


def raw(path, body=None, key=KEY):
    """JSON reply of the server to a plain HTTP request."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=30) as reply:
        return json.load(reply)


def token_ids(text):
    """Ids of a text, from the server."""
    return raw("/tokenize", {"model": MODEL, "content": text, "add_special": False})["tokens"]


def metric(name):
    """Sum of a metric of /metrics over its labels."""
    request = urllib.request.Request(URL + "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith((name + " ", name + "{"))]
    return sum(float(value) for value in values)


def running():
    """Requests that the server computes now."""
    return metric(RUNNING)


def wait_for_running(accept):
    """Polls the gauge of running requests until `accept` takes its value."""
    end = time.monotonic() + 20
    while not accept(found := running()):
        if time.monotonic() > end:
            raise AssertionError(f"{RUNNING} is still {found} after 20 s")
        time.sleep(0.02)


def check_abort(open_stream):
    """`open_stream` returns an iterator over a long stream and a function that closes it.

    The text would end by itself at last, so fewer tokens must have been generated than it has.
    """
    wait_for_running(lambda count: count == 0)
    before = metric(GENERATED)
    chunks, close = open_stream()
    for _ in range(3):
        next(chunks)
    wait_for_running(lambda count: count >= 1)
    close()
    wait_for_running(lambda count: count == 0)
    generated = metric(GENERATED) - before
    expect(0 < generated < ENDLESS["max_tokens"], f"{generated} tokens")


def check_retries(error_class, call):
    """`call(retries)` sends a small request as the limited tenant, with so many retries."""
    error = None
    for _ in range(40):
        try:
            call(0)
        except error_class as limited:
            error = limited
            break
    expect(error is not None, "40 requests and no 429")
    expect(float(error.response.headers["retry-after"]) <= 60, dict(error.response.headers))
    call(6)
    return error


def check_weather(arguments):
    """Arguments of a call of the weather tool that fulfil its schema."""
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    expect(set(arguments) == set(WEATHER_ARGUMENTS), arguments)
    for name, values in WEATHER_ARGUMENTS.items():
        expect(arguments[name] in values, arguments)
