//! Thinking in the replies of all interfaces: a model whose prompt opens it.

use serde_json::{Value, json};

use crate::testing::{Reply, send_to, thinking_router};

/// A question whose answer is `yes` or `no`, behind at most three tokens of thinking.
fn ask(path: &str, extra: Value) -> Reply {
    let schema = json!({"enum": ["yes", "no"]});
    let mut body = json!({
        "model": "base",
        "messages": [{"role": "user", "content": "What is a glacier?"}],
        "temperature": 0,
        "max_tokens": 32,
        "thinking_budget": 3,
        "json_schema": schema,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    send_to(thinking_router(), "POST", path, Some(body))
}

fn chat(extra: Value) -> Reply {
    ask("/v1/chat/completions", extra)
}

fn is_answer(text: &str) -> bool {
    ["\"yes\"", "\"no\""].contains(&text)
}

#[test]
fn chat_completions_have_thinking_beside_the_content() {
    let reply = chat(json!({})).json();
    let choice = &reply["choices"][0];
    let thought = choice["message"]["reasoning_content"].as_str().unwrap();
    assert!(!thought.is_empty() && !thought.contains("think>"), "{thought}");
    assert_eq!(choice["message"]["reasoning"], thought);
    assert!(is_answer(choice["message"]["content"].as_str().unwrap()), "{choice}");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);

    let body = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true});
    let chunks = chat(body).chunks();
    let (mut reasoning, mut content, mut logprobs) = (String::new(), String::new(), 0);
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let delta = &choice["delta"];
        assert_eq!(delta.get("reasoning"), delta.get("reasoning_content"));
        assert!(delta["reasoning"].is_null() || content.is_empty(), "thinking comes first");
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        content.push_str(delta["content"].as_str().unwrap_or_default());
        logprobs += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
    }
    assert_eq!((reasoning.as_str(), json!(content)), (thought, choice["message"]["content"].clone()));
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 3);
    assert_eq!(usage["completion_tokens"], logprobs);
}

#[test]
fn budgets_and_efforts_have_the_names_of_other_servers() {
    let ask = |extra: Value| {
        let mut body =
            json!({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 8});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        send_to(thinking_router(), "POST", "/v1/chat/completions", Some(body)).json()
    };
    for off in [
        json!({"thinking_budget": 0}),
        json!({"thinking_token_budget": 0}),
        json!({"thinking_budget_tokens": 0}),
        json!({"reasoning_effort": "none"}),
    ] {
        let reply = ask(off);
        let message = &reply["choices"][0]["message"];
        assert!(message.get("reasoning_content").is_none() && message["content"] != "", "{reply}");
        assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    }
    let low = ask(json!({"reasoning_effort": "low"}));
    assert!(low["choices"][0]["message"]["reasoning_content"].is_string(), "{low}");
}

#[test]
fn earlier_thinking_reaches_the_template_under_both_names() {
    let tokens = |answer: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}, answer, {"role": "user", "content": "So?"}]);
        let reply = chat(json!({"messages": messages})).json();
        reply["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = tokens(json!({"role": "assistant", "content": "Hello."}));
    let named = tokens(json!({"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."}));
    assert!(named > plain);
    for fields in [
        json!({"reasoning": "A greeting."}),
        json!({"reasoning": "A greeting.", "reasoning_content": "A greeting."}),
    ] {
        let mut answer = json!({"role": "assistant", "content": "Hello."});
        answer.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(tokens(answer), named);
    }
}

fn message(extra: Value) -> Reply {
    let mut fields = json!({"thinking": {"type": "enabled", "budget_tokens": 3}});
    fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    ask("/v1/messages", fields)
}

#[test]
fn messages_have_a_block_of_thinking_before_the_text() {
    let reply = message(json!({})).json();
    let blocks = reply["content"].as_array().unwrap();
    assert_eq!(
        (&blocks[0]["type"], &blocks[1]["type"], blocks.len()),
        (&json!("thinking"), &json!("text"), 2)
    );
    let thought = blocks[0]["thinking"].as_str().unwrap();
    assert!(!thought.is_empty() && is_answer(blocks[1]["text"].as_str().unwrap()), "{reply}");

    let (mut text, mut thinking, mut starts) = (String::new(), String::new(), Vec::new());
    for (name, data) in message(json!({"stream": true})).events() {
        if name == "content_block_start" {
            starts.push(data["content_block"]["type"].clone());
        }
        text.push_str(data["delta"]["text"].as_str().unwrap_or_default());
        thinking.push_str(data["delta"]["thinking"].as_str().unwrap_or_default());
    }
    assert_eq!(starts, [json!("thinking"), json!("text")]);
    assert_eq!((json!(thinking), json!(text)), (blocks[0]["thinking"].clone(), blocks[1]["text"].clone()));

    let off = message(json!({"thinking": {"type": "disabled"}})).json();
    assert_eq!((off["content"].as_array().unwrap().len(), &off["content"][0]["type"]), (1, &json!("text")));
    let wrong = message(json!({"thinking": {"type": "deep"}}));
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["error"]["message"].as_str().unwrap().starts_with("thinking.type: "));
    // Blocks of earlier answers reach the template.
    let tokens = |block: Value| {
        let content = json!([block, {"type": "text", "text": "Hello."}]);
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "So?"}]);
        let usage = message(json!({"messages": messages})).json()["usage"].take();
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    let sent = tokens(json!({"type": "thinking", "thinking": "A greeting.", "signature": ""}));
    assert!(sent > tokens(json!({"type": "redacted_thinking", "data": "x"})));
}

#[test]
fn responses_count_thinking_and_leave_it_out() {
    let body = json!({"input": "What is a glacier?", "temperature": 0, "max_output_tokens": 24});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let reply = send_to(thinking_router(), "POST", "/v1/responses", Some(body));
        let response = match stream {
            true => reply.events().pop().unwrap().1["response"].take(),
            false => reply.json(),
        };
        assert!(
            response["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0),
            "{response}"
        );
        assert!(!response["output"].to_string().contains("think>"), "{response}");
    }
}
