//! Replies of the router to requests of Anthropic's interface.

use serde_json::{Value, json};

use crate::testing::{Reply, post};

const ANSWER: &str = "A glacier is a huge, slow-moving mass of ice.";

fn ask(extra: Value) -> Reply {
    let mut body = json!({
        "model": "base",
        "max_tokens": 24,
        "temperature": 0,
        "messages": [{"role": "user", "content": "What is a glacier?"}],
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    post("/v1/messages", body)
}

/// Fields that ask for a call of a tool.
fn weather() -> Value {
    json!({
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "max_tokens": 64,
        "tools": [{
            "name": "get_weather",
            "description": "Weather of a city",
            "input_schema": {
                "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            },
        }],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    })
}

#[test]
fn a_message_has_all_fields() {
    let reply = ask(json!({"metadata": {"user_id": "u"}, "thinking": {"type": "disabled"}}));
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    assert!(reply["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(reply["content"], json!([{"type": "text", "text": ANSWER}]));
    assert_eq!((&reply["type"], &reply["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    assert!(reply["usage"]["output_tokens"].as_u64() > Some(0));
}

#[test]
fn usage_divides_the_prompt_into_cached_tokens_and_others() {
    let messages = json!([{"role": "user", "content": "a river ".repeat(100)}]);
    let body = json!({"messages": messages, "max_tokens": 1});
    let (first, second) = (ask(body.clone()).json(), ask(body.clone()).json());
    let count = post("/v1/messages/count_tokens", body).json()["input_tokens"].as_u64().unwrap();
    for reply in [&first, &second] {
        let number = |name: &str| reply["usage"][name].as_u64().unwrap();
        assert_eq!(number("input_tokens") + number("cache_read_input_tokens"), count);
    }
    assert!(second["usage"]["cache_read_input_tokens"].as_u64() > Some(0));
}

#[test]
fn the_matched_stop_sequence_is_named() {
    let reply = ask(json!({"stop_sequences": ["never", "slow-mov"]})).json();
    assert_eq!(
        (&reply["stop_reason"], &reply["stop_sequence"]),
        (&json!("stop_sequence"), &json!("slow-mov"))
    );
    assert_eq!(reply["content"][0]["text"], "A glacier is a huge, ");
    let reply = ask(json!({"max_tokens": 3, "stop_sequences": ["never"]})).json();
    assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
}

#[test]
fn a_stream_has_the_events_of_one_message_in_order() {
    let events = ask(json!({"stream": true})).events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let message = &events[0].1["message"];
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    assert!(message["usage"]["input_tokens"].as_u64() > Some(0));
    let mut text = String::new();
    for (name, data) in &events {
        assert_eq!(data["type"], name.as_str());
        text.push_str(data["delta"]["text"].as_str().unwrap_or_default());
    }
    assert_eq!(text, ANSWER);
    let end = &events[names.len() - 2].1;
    assert_eq!(end["delta"], json!({"stop_reason": "end_turn", "stop_sequence": null}));
    assert!(end["usage"]["output_tokens"].as_u64() > Some(0));
}

#[test]
fn tools_are_called_whole_and_as_a_stream() {
    let reply = ask(weather()).json();
    assert_eq!(reply["stop_reason"], "tool_use");
    let call = reply["content"].as_array().unwrap().last().unwrap();
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("get_weather")));
    assert!(call["id"].is_string() && call["input"]["city"].is_string());

    let mut body = weather();
    body["stream"] = true.into();
    let events = ask(body).events();
    let mut arguments = String::new();
    let mut blocks = Vec::new();
    for (_, data) in &events {
        if data["type"] == "content_block_start" {
            assert_eq!(data["index"], blocks.len());
            blocks.push(data["content_block"].clone());
        }
        arguments.push_str(data["delta"]["partial_json"].as_str().unwrap_or_default());
    }
    assert_eq!(blocks.last().unwrap()["input"], json!({}));
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), call["input"]);
}

#[test]
fn conversations_with_results_of_tools_are_taken() {
    let mut body = weather();
    body["tool_choice"] = json!({"type": "none"});
    body["system"] = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
    body["messages"] = json!([
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Let me see.", "signature": "x"},
            {"type": "text", "text": "I look it up."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sun"}]},
            {"type": "text", "text": "So?"}]},
        {"role": "user", "content": "Tell me."},
    ]);
    let reply = ask(body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.json()["content"][0]["type"], "text");
}

#[test]
fn outputs_follow_a_schema() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"], "additionalProperties": false});
    let reply = ask(json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}})).json();
    let text = reply["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap()["n"].is_i64(), "{text}");
}

#[test]
fn errors_have_anthropics_form() {
    let faults = [
        (json!({"max_tokens": null}), "max_tokens: "),
        (json!({"max_tokens": "x"}), "max_tokens: "),
        (json!({"stop_sequences": [""]}), "stop_sequences: "),
        (json!({"messages": []}), "messages: "),
        (json!({"messages": [{"role": "system", "content": "x"}]}), "messages[0].role: "),
        (json!({"messages": [{"role": "assistant", "content": "I"}]}), "messages: "),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "messages[0].content[0].type: ",
        ),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type: "),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema: "),
        (json!({"tool_choice": {"type": "some"}}), "tool_choice.type: "),
        (json!({"temperature": -1}), "temperature: "),
    ];
    for (fields, beginning) in faults {
        let reply = ask(fields);
        assert_eq!(reply.status, 400, "{}", reply.text);
        let body = reply.json();
        assert_eq!(
            (&body["type"], &body["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(beginning), "{message}");
        assert!(body["request_id"].is_string());
    }
    let reply = ask(json!({"model": "none"}));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (404, &json!("not_found_error")));
}
