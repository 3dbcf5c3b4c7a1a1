//! Calls of all methods, compared with the HTTP API.

use ruvllm_witness::{Content, Event, Filter, LogReader, Outcome};
use serde_json::json;

use crate::proto::generate_request::{Constraint, Prompt};
use crate::proto::{
    Chat, ChatMessage, DetokenizeRequest, EmbedRequest, FinishReason, GenerateRequest, TokenIds,
    TokenizeRequest, tokenize_request,
};
use crate::support::{TestServer, prompt};

fn chat(text: &str) -> Chat {
    let message = ChatMessage { role: "user".into(), content: text.into(), ..ChatMessage::default() };
    Chat { messages: vec![message], ..Chat::default() }
}

#[test]
fn texts_are_those_of_http_for_the_same_seed() {
    let server = TestServer::start("");
    let text = "Once upon a time there was a glacier. ".repeat(16);
    let reply = server.post(
        "/v1/completions",
        &json!({"prompt": text, "max_tokens": 24, "seed": 7, "n": 2, "temperature": 0.9,
                "stop": ["zzzz"], "logprobs": 2, "logit_bias": {"5": -100}}),
    );
    let request = GenerateRequest {
        seed: Some(7),
        n: Some(2),
        temperature: Some(0.9),
        stop: vec!["zzzz".into()],
        logprobs: Some(2),
        logit_bias: [(5, -100.0)].into(),
        ..prompt(&text, 24)
    };
    let outputs = server.output(request).unwrap();
    for (output, choice) in outputs.iter().zip(reply["choices"].as_array().unwrap()) {
        assert_eq!(output.text, choice["text"]);
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(output.logprobs.len(), logprobs.len());
        for (mine, theirs) in output.logprobs.iter().zip(logprobs) {
            // JSON rounds the last bit.
            assert!((mine.token.unwrap().logprob - theirs.as_f64().unwrap()).abs() < 1e-12);
            assert_eq!(mine.top.len(), 2);
        }
        let finish = output.finish();
        assert_eq!((finish.reason(), finish.model.as_str()), (FinishReason::Length, "base"));
        let usage = finish.usage.unwrap();
        assert_eq!(usage.output_tokens as usize, output.tokens.len());
        assert_eq!(u64::from(usage.prompt_tokens), reply["usage"]["prompt_tokens"].as_u64().unwrap());
        assert!(usage.cached_tokens > 0, "the prompt was computed before");
        assert!(finish.timings.unwrap().ttft_ms.unwrap() > 0.0);
    }
    assert_eq!(outputs.len(), 2);
    assert_ne!(outputs[0].text, outputs[1].text);
}

#[test]
fn token_ids_go_in_and_come_out() {
    let server = TestServer::start("");
    let mut client = server.client();
    let input = Some(tokenize_request::Input::Text("Once upon a time".into()));
    let tokenize = TokenizeRequest { input, add_special: true, ..TokenizeRequest::default() };
    let ids = server.run(client.tokenize(tokenize)).unwrap().into_inner().tokens;
    let theirs = server.post("/tokenize", &json!({"content": "Once upon a time", "add_special": true}));
    assert_eq!(json!(ids), theirs["tokens"]);
    let of_text = GenerateRequest { temperature: Some(0.0), ..prompt("Once upon a time", 16) };
    let prompt = Some(Prompt::Tokens(TokenIds { ids: ids.clone() }));
    let of_ids = GenerateRequest { prompt, ..of_text.clone() };
    let (of_text, of_ids) = (server.output(of_text).unwrap(), server.output(of_ids).unwrap());
    assert_eq!((of_text[0].tokens.len(), of_ids[0].tokens.len()), (16, 16));
    assert_eq!(of_text[0].tokens, of_ids[0].tokens);
    // Generated tokens continue as a prompt.
    let (first, rest) = of_ids[0].tokens.split_at(6);
    let prompt = Some(Prompt::Tokens(TokenIds { ids: [&ids, first].concat() }));
    let continued = GenerateRequest {
        prompt,
        max_tokens: Some(10),
        temperature: Some(0.0),
        ..GenerateRequest::default()
    };
    assert_eq!(server.output(continued).unwrap()[0].tokens, rest);
    let detokenize = DetokenizeRequest { tokens: of_ids[0].tokens.clone(), model: None };
    let text = server.run(client.detokenize(detokenize)).unwrap().into_inner().text;
    assert_eq!(text.trim_start(), of_ids[0].text.trim_start());
}

#[test]
fn conversations_schemas_and_tools_are_those_of_http() {
    let server = TestServer::start("");
    let question = "What is a glacier?";
    let messages = json!([{"role": "user", "content": question}]);
    let greedy = |chat: Chat, max_tokens| GenerateRequest {
        prompt: Some(Prompt::Chat(chat)),
        temperature: Some(0.0),
        max_tokens: Some(max_tokens),
        ..GenerateRequest::default()
    };
    let mine = server.output(greedy(chat(question), 16)).unwrap();
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 16});
    let theirs = server.post("/v1/chat/completions", &body);
    assert_eq!(mine[0].text, theirs["choices"][0]["message"]["content"]);

    let schema = json!({"type": "object", "properties": {"n": {"enum": [1, 2, 3]}},
        "required": ["n"], "additionalProperties": false});
    let constraint = Some(Constraint::JsonSchema(schema.to_string()));
    let mine = server.output(GenerateRequest { constraint, ..greedy(chat(question), 40) }).unwrap();
    let value: serde_json::Value = serde_json::from_str(&mine[0].text).unwrap();
    assert!(value["n"].is_i64(), "{value}");

    let parameters = schema;
    let tools = json!([{"type": "function", "function": {"name": "count", "parameters": parameters}}]);
    let with_tools = Chat {
        tools: Some(tools.to_string()),
        tool_choice: Some("count".into()),
        parallel_tool_calls: Some(false),
        ..chat(question)
    };
    let mine = server.output(greedy(with_tools, 60)).unwrap();
    assert_eq!(mine[0].finish().reason(), FinishReason::ToolCalls);
    let arguments: serde_json::Value = serde_json::from_str(&mine[0].call).unwrap();
    assert!(arguments["n"].is_i64(), "{arguments}");
}

#[test]
fn embeddings_are_those_of_http() {
    let server = TestServer::start("");
    let mut client = server.client();
    let texts = vec!["The moon".to_owned(), "The sun".to_owned()];
    let reply = server.post("/v1/embeddings", &json!({"input": texts, "dimensions": 8}));
    let request = EmbedRequest { texts, dimensions: Some(8), ..EmbedRequest::default() };
    let mine = server.run(client.embed(request)).unwrap().into_inner();
    assert_eq!((mine.embeddings.len(), mine.model.as_str()), (2, "base"));
    assert_eq!(u64::from(mine.prompt_tokens), reply["usage"]["prompt_tokens"].as_u64().unwrap());
    for (mine, theirs) in mine.embeddings.iter().zip(reply["data"].as_array().unwrap()) {
        let theirs = theirs["embedding"].as_array().unwrap();
        let theirs: Vec<f32> = theirs.iter().map(|value| value.as_f64().unwrap() as f32).collect();
        assert_eq!(mine.values, theirs);
    }
}

#[test]
fn calls_are_counted_recorded_and_have_an_id() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(&format!("[witness]\nfolder = '{}'", folder.path().display()));
    let mut request = tonic::Request::new(GenerateRequest { seed: Some(3), ..prompt("The sun", 4) });
    request.metadata_mut().insert("x-request-id", "trace-17".parse().unwrap());
    let mut client = server.client();
    let (metadata, mut events, _) = server.run(client.generate(request)).unwrap().into_parts();
    assert_eq!(metadata.get("x-request-id").unwrap(), "trace-17");
    while server.run(events.message()).unwrap().is_some() {}
    let embed = EmbedRequest { texts: vec!["The moon".into()], ..EmbedRequest::default() };
    server.run(client.embed(embed)).unwrap();
    let counted = r#"ruvllm_requests_total{endpoint="grpc_generate",model="base",outcome="success"}"#;
    crate::support::eventually("the call is not counted", || server.metric(counted) == 1.0);
    let tokens = r#"ruvllm_output_tokens_total{endpoint="grpc_generate",model="base"}"#;
    assert_eq!(server.metric(tokens), 4.0);
    drop((client, events));
    drop(server);
    let lines = LogReader::open(folder.path(), Filter::default()).unwrap();
    let entries = lines.filter_map(|line| match line.unwrap().event {
        Event::Request(entry) => Some(entry),
        _ => None,
    });
    let entries: Vec<_> = entries.collect();
    assert_eq!(entries.len(), 2);
    let entry = &entries[0];
    assert_eq!(
        (entry.request_id.as_str(), entry.endpoint.as_str()),
        ("trace-17", "/ruvllm.v1.Inference/Generate")
    );
    assert_eq!(entry.outcome, Outcome::Finished(vec!["length".to_owned()]));
    // The hash of a text is that of the same text over HTTP.
    assert_eq!(entry.prompt, Some(Content::hashed("The sun")));
    assert_eq!((entry.output_tokens, &entry.parameters["seed"]), (4, &json!(3)));
    assert!(!entry.parameters.contains_key("prompt") && !entry.parameters.contains_key("temperature"));
    assert_eq!(entries[1].endpoint, "/ruvllm.v1.Inference/Embed");
}
