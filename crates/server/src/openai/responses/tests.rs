//! Replies of the router to requests of responses.

use serde_json::{Value, json};

use super::reply::{OutputItem, ResponseObject, Status};
use super::stream::EventWriter;
use crate::api_error::ApiError;
use crate::generation::StreamWriter;
use crate::testing::{Reply, app, post};

const ANSWER: &str = "A glacier is a huge, slow-moving mass of ice.";

fn ask(extra: Value) -> Reply {
    let mut body =
        json!({"model": "base", "input": "What is a glacier?", "temperature": 0, "max_output_tokens": 64});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    post("/v1/responses", body)
}

/// Fields that ask for a call of a function.
fn weather() -> Value {
    json!({
        "input": "What is the weather in Paris?",
        "tools": [{
            "type": "function", "name": "get_weather", "description": "Weather of a city", "strict": true,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        }],
        "tool_choice": "required",
        "parallel_tool_calls": false,
    })
}

#[test]
fn a_response_has_all_fields() {
    let reply = ask(json!({"instructions": "Be brief.", "metadata": {"a": "b"}, "store": true}));
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    assert!(reply["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("completed")));
    let item = &reply["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    assert_eq!(item["content"][0]["type"], "output_text");
    assert_eq!(item["content"][0]["annotations"], json!([]));
    assert_eq!((&reply["store"], &reply["metadata"]), (&json!(false), &json!({"a": "b"})));
    assert_eq!((&reply["tool_choice"], &reply["tools"]), (&json!("auto"), &json!([])));
    for name in ["error", "incomplete_details", "previous_response_id"] {
        assert!(reply.as_object().unwrap()[name].is_null(), "{name}");
    }
    let usage = &reply["usage"];
    let number = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(number("total_tokens"), number("input_tokens") + number("output_tokens"));
    assert!(usage["input_tokens_details"]["cached_tokens"].is_u64());
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
}

#[test]
fn a_response_that_is_cut_says_so() {
    let reply = ask(json!({"max_output_tokens": 2})).json();
    assert_eq!((&reply["status"], &reply["max_output_tokens"]), (&json!("incomplete"), &json!(2)));
    assert_eq!(reply["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(reply["output"][0]["status"], "incomplete");
    let events = ask(json!({"max_output_tokens": 2, "stream": true})).events();
    assert_eq!(events.last().unwrap().0, "response.incomplete");
}

/// Data of a stream, checked for what all events have.
fn stream(extra: Value) -> Vec<(String, Value)> {
    let mut extra = extra;
    extra["stream"] = true.into();
    let events = ask(extra).events();
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
    }
    events
}

/// Data of the events of a name.
fn data_of<'e>(events: &'e [(String, Value)], name: &'e str) -> impl Iterator<Item = &'e Value> {
    events.iter().filter(move |(found, _)| found == name).map(|(_, data)| data)
}

#[test]
fn the_events_of_a_text_come_in_order() {
    let events = stream(json!({}));
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let of = |name| data_of(&events, name);
    let text: String = of("response.output_text.delta").map(|data| data["delta"].as_str().unwrap()).collect();
    assert_eq!(text, ANSWER);
    assert_eq!(of("response.output_text.done").next().unwrap()["text"], ANSWER);
    let (begin, end) = (&events[0].1["response"], &events.last().unwrap().1["response"]);
    assert_eq!(
        (&begin["status"], &begin["output"], &begin["id"]),
        (&json!("in_progress"), &json!([]), &end["id"])
    );
    let item = of("response.output_item.done").next().unwrap();
    assert_eq!(end["output"], json!([item["item"]]));
    assert_eq!(of("response.output_item.added").next().unwrap()["item"]["id"], item["item"]["id"]);
}

#[test]
fn functions_are_called_whole_and_as_a_stream() {
    let reply = ask(weather()).json();
    let call = reply["output"].as_array().unwrap().last().unwrap();
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_weather")));
    assert!(call["call_id"].is_string() && call["status"] == "completed");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].is_string());

    let events = stream(weather());
    let of = |name| data_of(&events, name);
    let deltas = of("response.function_call_arguments.delta").map(|data| data["delta"].as_str().unwrap());
    let joined: String = deltas.collect();
    let done = of("response.function_call_arguments.done").next().unwrap();
    assert_eq!((&done["arguments"], &done["name"]), (&json!(joined), &json!("get_weather")));
    assert_eq!(joined, call["arguments"].as_str().unwrap());
    let output = &events.last().unwrap().1["response"]["output"];
    assert_eq!(output.as_array().unwrap().last().unwrap()["arguments"], json!(joined));
}

#[test]
fn log_probabilities_are_those_of_the_text() {
    let include = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let reply = ask(include.clone()).json();
    let part = &reply["output"][0]["content"][0];
    let logprobs = part["logprobs"].as_array().unwrap();
    let text: String = logprobs.iter().map(|logprob| logprob["token"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), &reply["top_logprobs"]), (ANSWER, &json!(2)));
    for logprob in logprobs {
        assert!(logprob["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(logprob["top_logprobs"].as_array().unwrap().len(), 2);
    }
    let events = stream(include.clone());
    let of = |name| data_of(&events, name).flat_map(|data| data["logprobs"].as_array().unwrap());
    assert!(of("response.output_text.delta").eq(logprobs));
    assert!(of("response.output_text.done").eq(logprobs));
    let done = data_of(&events, "response.content_part.done").next().unwrap();
    assert_eq!(done["part"]["logprobs"], part["logprobs"]);

    // Beside a call: nothing of the call's tokens.
    let mut body = weather();
    body.as_object_mut().unwrap().extend(include.as_object().unwrap().clone());
    let reply = ask(body).json();
    for item in reply["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message") {
        let part = &item["content"][0];
        let tokens = part["logprobs"].as_array().unwrap().iter().map(|logprob| &logprob["token"]);
        let text: String = tokens.map(|token| token.as_str().unwrap()).collect();
        assert!(text.starts_with(part["text"].as_str().unwrap()), "{reply}");
    }
    // Without `include` there are none.
    let reply = ask(json!({"top_logprobs": 2, "include": ["reasoning.encrypted_content"]})).json();
    assert_eq!(reply["output"][0]["content"][0]["logprobs"], json!([]));
}

#[test]
fn conversations_of_items_are_taken() {
    let mut body = weather();
    body["tool_choice"] = "none".into();
    body["instructions"] = "Be brief.".into();
    body["input"] = json!([
        {"role": "developer", "content": "Answer in English."},
        {"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Paris?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "I look it up.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Paris\"}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Sun"},
    ]);
    let reply = ask(body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.json()["output"][0]["type"], "message");
}

#[test]
fn outputs_follow_a_schema() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": true});
    let reply = ask(json!({"text": {"format": format}})).json();
    let text = reply["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap()["n"].is_i64(), "{text}");
    assert_eq!(reply["text"]["format"]["name"], "answer");
}

#[test]
fn an_error_in_a_stream_ends_the_open_item_and_fails() {
    let (engine_request, mut out) = (ruvllm::GenerateRequest::new(""), Vec::new());
    let echo = crate::body::parse(b"{}").unwrap();
    let mut object = ResponseObject::new("base", echo, &engine_request);
    object.output.push(OutputItem::message("", Vec::new(), Status::InProgress));
    let model = crate::testing::run(async { app().models.choose(None).await.unwrap().model });
    let mut writer = EventWriter::new(object, model);
    writer.begin(&mut out);
    writer.error(&ApiError::overloaded("the server stops", None), &mut out);
    let events = Reply { status: 200, text: String::from_utf8(out).unwrap() }.events();
    let response = &events.last().unwrap().1["response"];
    assert_eq!(events.last().unwrap().0, "response.failed");
    assert_eq!(response["error"], json!({"code": "server_error", "message": "the server stops"}));
    assert_eq!(response["status"], "failed");
}

#[test]
fn faults_are_named() {
    let item = |item: Value| json!({"input": [item]});
    let faults = [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"input": []}), "input"),
        (json!({"input": 3}), "input"),
        (item(json!({"role": "user"})), "input[0].content"),
        (item(json!({"role": "friend", "content": ""})), "input[0].role"),
        (item(json!({"type": "item_reference", "id": "msg_1"})), "input[0].type"),
        (item(json!({"type": "function_call", "name": "f", "arguments": "{}"})), "input[0].call_id"),
        (item(json!({"role": "user", "content": [{"type": "input_image"}]})), "input[0].content[0].type"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tool_choice": "some"}), "tool_choice"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "text.format"),
        (json!({"top_p": 7}), "top_p"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"include": "all"}), "include"),
    ];
    for (fields, param) in faults {
        let reply = ask(fields);
        assert_eq!(reply.status, 400, "{}", reply.text);
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.text);
    }
}
