"""Renders conversations with chat templates as transformers does, as JSON.

Arguments: the folder with the templates (*.jinja), the file with the conversations.
"""

import datetime
import functools
import json
import pathlib
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %} marks what to train on; its content is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.cache
def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.now(datetime.UTC).strftime(format)
    return env


@functools.cache
def compiled(source):
    return environment().from_string(source)


def render(source, chat, add_generation_prompt):
    """The prompt, the message of a template's raise_exception, or another error."""
    variables = {"bos_token": "<s>", "eos_token": "</s>", "documents": None, **chat.get("variables", {})}
    try:
        return {
            "text": compiled(source).render(
                messages=chat["messages"],
                tools=chat.get("tools"),
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        }
    except Exception as error:
        refused = type(error) is jinja2.exceptions.TemplateError
        return {"refused" if refused else "failed": str(error) if refused else repr(error)}


def main(templates, chats):
    chats = json.loads(pathlib.Path(chats).read_text(encoding="utf-8"))
    cases = [(chat, prompt) for chat in chats for prompt in (False, True)]
    rendered = {}
    for path in sorted(pathlib.Path(templates).glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        rendered[path.name] = [render(source, chat, prompt) for chat, prompt in cases]
    json.dump(rendered, sys.stdout)


main(*sys.argv[1:])
