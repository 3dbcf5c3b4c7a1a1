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

fn respond(extra: Value) -> Reply {
    let format = json!({"type": "json_schema", "name": "answer", "schema": {"enum": ["yes", "no"]}});
    let mut body = json!({"input": "What is a glacier?", "temperature": 0, "max_output_tokens": 32,
        "thinking_budget": 3, "text": {"format": format}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    send_to(thinking_router(), "POST", "/v1/responses", Some(body))
}

#[test]
fn responses_have_an_item_of_thinking_before_the_message() {
    let response = respond(json!({"reasoning": {"effort": "low", "summary": "auto"}})).json();
    let items = response["output"].as_array().unwrap();
    let kinds: Vec<&Value> = items.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, [&json!("reasoning"), &json!("message")]);
    assert_eq!((&items[0]["status"], &items[0]["summary"]), (&json!("completed"), &json!([])));
    let part = &items[0]["content"][0];
    assert_eq!(part["type"], "reasoning_text");
    let thought = part["text"].as_str().unwrap();
    assert!(!thought.is_empty() && !thought.contains("think>"), "{thought}");
    assert!(is_answer(items[1]["content"][0]["text"].as_str().unwrap()), "{response}");
    assert_eq!(response["reasoning"], json!({"effort": "low", "summary": "auto"}));
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 3);

    // Cut within the thinking: an item of it alone.
    let cut = respond(json!({"thinking_budget": null, "max_output_tokens": 3})).json();
    let items = cut["output"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["type"]), (1, &json!("reasoning")));
    assert_eq!((&items[0]["status"], &cut["status"]), (&json!("incomplete"), &json!("incomplete")));
    // None at all.
    let off = respond(json!({"reasoning": {"effort": "none"}})).json();
    assert_eq!((off["output"].as_array().unwrap().len(), &off["output"][0]["type"]), (1, &json!("message")));
}

#[test]
fn streamed_responses_have_deltas_of_thinking() {
    let whole = respond(json!({})).json();
    let events = respond(json!({"stream": true})).events();
    let thought = whole["output"][0]["content"][0]["text"].clone();
    let of = |name: &'static str| {
        events.iter().filter(move |(found, _)| *found == name).map(|(_, data)| data.clone())
    };
    let deltas: String =
        of("response.reasoning_text.delta").map(|data| data["delta"].as_str().unwrap().to_owned()).collect();
    assert_eq!(json!(deltas), thought);
    let done: Vec<Value> = of("response.reasoning_text.done").map(|mut data| data["text"].take()).collect();
    assert_eq!(done, [thought]);
    let parts: Vec<Value> =
        of("response.content_part.added").map(|mut data| data["part"]["type"].take()).collect();
    assert_eq!(parts, [json!("reasoning_text"), json!("output_text")]);
    let added: Vec<Value> = of("response.output_item.added").map(|mut data| data["item"].take()).collect();
    assert_eq!((&added[0]["type"], &added[0]["content"]), (&json!("reasoning"), &json!([])));
    let last = of("response.completed").next().unwrap();
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
}

#[test]
fn items_of_thinking_reach_the_template() {
    let tokens = |thinking: Value| {
        let input = json!([{"role": "user", "content": "Hi"}, thinking,
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
            {"role": "user", "content": "So?"}]);
        let response = respond(json!({"input": input}));
        assert_eq!(response.status, 200, "{}", response.text);
        response.json()["usage"]["input_tokens"].as_u64().unwrap()
    };
    let hidden = tokens(json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}));
    let text = json!([{"type": "reasoning_text", "text": "A greeting."}]);
    let sent = tokens(json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": text}));
    let in_chat = {
        let messages = json!([{"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."},
            {"role": "user", "content": "So?"}]);
        chat(json!({"messages": messages})).json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(hidden < sent, "{hidden} {sent}");
    assert_eq!(sent, in_chat, "the answer joins its thinking");
}
