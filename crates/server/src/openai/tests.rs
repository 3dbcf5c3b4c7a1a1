//! Replies of the router to requests of OpenAI's interface.

use ruvllm::{EngineOptions, ModelSource};
use ruvllm_testkit::model_data;
use serde_json::{Value, json};

use crate::app::{App, RequestLimits};
use crate::models::{ModelEntry, ModelSet};
use crate::testing::{post, router_of, send, send_to};

fn ask(extra: Value) -> Value {
    let mut body = json!({
        "model": "base",
        "messages": [{"role": "user", "content": "What is a glacier?"}],
        "temperature": 0,
        "max_tokens": 24,
    });
    let fields = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[test]
fn a_chat_completion_has_all_fields() {
    let reply = post("/v1/chat/completions", ask(json!({})));
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    assert_eq!((reply["object"].as_str(), reply["model"].as_str()), (Some("chat.completion"), Some("base")));
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["content"], "A glacier is a huge, slow-moving mass of ice.");
    assert_eq!(choice["finish_reason"], "stop");
    assert!(choice["logprobs"].is_null());
    let usage = &reply["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
}

#[test]
fn chunks_have_one_id_and_one_time_and_end_with_the_usage() {
    let body = ask(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let chunks = post("/v1/chat/completions", body).chunks();
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(chunk["object"], "chat.completion.chunk");
    }
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64() > Some(0));
    let (last, chunks) = chunks.split_last().unwrap();
    assert_eq!(
        (&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]),
        (&json!({}), &json!("stop"))
    );
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let mut text = String::new();
    for chunk in chunks {
        let choice = chunk["choices"][0].as_object().unwrap();
        assert!(choice.contains_key("finish_reason") && choice["finish_reason"].is_null());
        assert!(chunk.as_object().unwrap().contains_key("usage") && chunk["usage"].is_null());
        text.push_str(choice["delta"]["content"].as_str().unwrap());
    }
    assert_eq!(text, "A glacier is a huge, slow-moving mass of ice.");
}

#[test]
fn tool_calls_are_streamed_with_ids_first() {
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]);
    let body = json!({
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": tools, "tool_choice": "required", "temperature": 0, "max_tokens": 64, "stream": true,
    });
    let chunks = post("/v1/chat/completions", body).chunks();
    let calls: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]).collect();
    let calls: Vec<&&Value> = calls.iter().filter(|call| !call.is_null()).collect();
    let first = calls[0];
    assert!(first["id"].is_string() && first["type"] == "function");
    assert_eq!(first["function"], json!({"name": "get_weather", "arguments": ""}));
    let arguments: String =
        calls[1..].iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    let arguments: Value = serde_json::from_str(&arguments).unwrap();
    assert!(arguments["city"].is_string());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn completions_take_texts_and_ids_and_repeat_them() {
    let body = json!({"prompt": ["Once upon a time", "The sun"], "max_tokens": 4, "temperature": 0, "echo": true,
        "logprobs": 2});
    let reply = post("/v1/completions", body).json();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert!(choices[0]["text"].as_str().unwrap().starts_with("Once upon a time"));
    assert_eq!(choices[1]["index"], 1);
    let logprobs = &choices[0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), tokens.len(), "{list}");
    }
}

#[test]
fn echoed_prompts_have_log_probabilities_without_output() {
    let body = json!({"prompt": "Once upon a time there", "max_tokens": 0, "echo": true, "logprobs": 1});
    let choice = post("/v1/completions", body).json()["choices"][0].take();
    assert_eq!(choice["text"], "Once upon a time there");
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap().clone();
    assert!(logprobs[0].is_null() && logprobs.len() > 2, "{logprobs:?}");
    assert!(logprobs[1..].iter().all(|logprob| logprob.as_f64() < Some(0.0)));
}

#[test]
fn json_schema_constrains_completions_and_chats() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"], "additionalProperties": false});
    // A sampled text may fill all of its tokens with the white space that JSON allows.
    let body = json!({"prompt": "A number:", "temperature": 0, "max_tokens": 32, "json_schema": schema});
    let texts =
        [
            post("/v1/completions", body).json()["choices"][0]["text"].clone(),
            post("/v1/chat/completions", ask(json!({"json_schema": schema}))).json()["choices"][0]["message"]
                ["content"]
                .clone(),
        ];
    for text in texts {
        let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        assert!(value["n"].is_i64(), "{text}");
    }
    let reply = post("/v1/completions", json!({"prompt": "", "json_schema": {"type": "nothing"}}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("json_schema")));
}

#[test]
fn errors_have_openais_form() {
    let reply = post("/v1/chat/completions", ask(json!({"temperature": "hot"})));
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!((&error["param"], &error["type"]), (&json!("temperature"), &json!("invalid_request_error")));
    let reply = post("/v1/chat/completions", ask(json!({"model": "gpt-9"})));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    let reply = send("GET", "/v1/nothing", None);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(send("GET", "/v1/chat/completions", None).status, 405);
}

/// The template of the tiny Qwen 3 writes an empty thought if `enable_thinking` is false.
#[test]
fn variables_reach_the_chat_template() {
    let path = model_data("tiny").join("qwen3/model-F16.gguf");
    let options = EngineOptions::default().with_threads(1);
    let entry = ModelEntry::new("tiny", ModelSource::Path(path), options);
    let router = router_of(App::new(ModelSet::new(vec![entry], None), RequestLimits::default()));
    let ask = |variables: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
            "chat_template_kwargs": variables});
        send_to(router.clone(), "POST", "/v1/chat/completions", Some(body))
    };
    let tokens = |variables: Value| ask(variables).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let without = tokens(Value::Null);
    assert_eq!(tokens(json!({"enable_thinking": true, "unknown": [1, {"a": null}]})), without);
    assert!(tokens(json!({"enable_thinking": false})) > without);
    let many: serde_json::Map<_, _> = (0..33).map(|at| (format!("x{at}"), json!(1))).collect();
    let faults = [
        (json!({"messages": []}), "chat_template_kwargs.messages"),
        (json!({"x": "y".repeat(70_000)}), "chat_template_kwargs"),
        (Value::Object(many), "chat_template_kwargs"),
        (json!([1]), "chat_template_kwargs"),
    ];
    for (variables, param) in faults {
        let reply = ask(variables);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{}", reply.text);
    }
}
