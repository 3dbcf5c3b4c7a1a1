"""Requests and answers of Dynamo in the messages of a server's gRPC."""

import json
import sys
from pathlib import Path

import grpc

from dynamo.llm.exceptions import InvalidArgument

PROTO = Path(__file__).resolve().parents[2] / "crates" / "server" / "proto"
FINISH = {1: "stop", 2: "length", 3: "stop", 4: "cancelled"}
SAMPLING = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}
# Fields of a request that are refused, by their place, unless they have one of the values behind.
REFUSED = {
    "": {"multi_modal_data": [], "encoder_result": [], "prefill_result": [], "logits_processors": []},
    "sampling_options": {
        "n": [1], "best_of": [1], "use_beam_search": [False], "length_penalty": [1],
        "include_stop_str_in_output": [False],
    },
    "stop_conditions": {"min_tokens": [0], "max_thinking_tokens": []},
    "output_options": {"prompt_logprobs": []},
    "guided_decoding": {"regex": [], "choice": [], "structural_tag": [], "whitespace_pattern": []},
}
MOST_LOGPROBS = 20


def modules():
    """Messages and stubs of the server's `.proto` file."""
    sys.path.insert(0, str(PROTO))
    return grpc.protos_and_services("ruvllm/v1/inference.proto")


def refuse(request, allowed=()):
    """Raises an error for a field that the server would not follow, unless its name is allowed."""
    sampling = request.get("sampling_options") or {}
    places = {
        "": request, "sampling_options": sampling,
        "stop_conditions": request.get("stop_conditions") or {},
        "output_options": request.get("output_options") or {},
        "guided_decoding": sampling.get("guided_decoding") or {},
    }
    for place, fields in REFUSED.items():
        for name, values in fields.items():
            value = places[place].get(name)
            # Empty lists and texts are fields that are not set.
            if name not in allowed and value not in (None, "", [], {}, *values):
                raise InvalidArgument(f"{name}: workers of ruvllm do not support it; leave it out")


def generate_request(protos, model, request, allowed=()):
    """The server's form of a request; `allowed` are fields that the caller has dealt with."""
    refuse(request, allowed)
    message = protos.GenerateRequest(model=model)
    message.tokens.ids.extend(request["token_ids"])
    sampling, stop = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    for name, field in SAMPLING.items():
        value = sampling.get(name)
        # -1 is no limit in other engines, 0 is none here.
        if value is not None and not (name == "top_k" and value < 0):
            setattr(message, field, value)
    if stop.get("max_tokens") is not None:
        message.max_tokens = stop["max_tokens"]
    if stop.get("ignore_eos"):
        message.ignore_eos = True
    logprobs = (request.get("output_options") or {}).get("logprobs")
    if logprobs is not None:
        if logprobs > MOST_LOGPROBS:
            raise InvalidArgument(f"logprobs: {logprobs} is above {MOST_LOGPROBS}")
        message.logprobs = logprobs
    guided = sampling.get("guided_decoding") or {}
    if guided.get("json") is not None:
        schema = guided["json"]
        message.json_schema = schema if isinstance(schema, str) else json.dumps(schema)
    elif guided.get("grammar") is not None:
        message.grammar = guided["grammar"]
    return message


def piece(found):
    """A chunk of an answer."""
    chunk = {"token_ids": list(found.tokens), "index": 0}
    if found.logprobs:
        chunk["log_probs"] = [position.token.logprob for position in found.logprobs]
        chunk["top_logprobs"] = [
            [{"rank": rank, "token_id": top.token, "token": None, "logprob": top.logprob}
             for rank, top in enumerate(position.top or [position.token], 1)]
            for position in found.logprobs
        ]
    return chunk


def finish(found):
    """The last chunk of an answer."""
    usage = found.usage
    return {
        "token_ids": [], "index": 0, "finish_reason": FINISH.get(found.reason, "error"),
        "completion_usage": {
            "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens,
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }


def signed(hash):
    """A hash in the form of the bindings, which take signed numbers."""
    return hash - (1 << 64) if hash >= 1 << 63 else hash
