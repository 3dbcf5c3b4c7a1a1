//! Tool calling, with one function: `cargo run --release -p ruvllm --example tools -- MODEL.gguf`.
//!
//! The request lists the functions that the model may call; the model answers with a tool call as
//! text, in the form of its chat template (here that of Hermes and Qwen: JSON between `<tool_call>`
//! and `</tool_call>`); the result is returned as a message with the role `tool`.
use ruvllm::serde_json::{Value, json};
use ruvllm::{Engine, GenerateRequest, Message, Prompt, SamplingParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: tools MODEL.gguf")?;
    let engine = Engine::open(model)?;
    let tools = json!([{"type": "function", "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city"}},
            "required": ["city"],
        },
    }}]);
    let mut conversation = engine.conversation();
    let mut messages = vec![Message::user("What is the weather in Paris?")];
    // At most three calls, so that a model that always calls terminates.
    for _ in 0..3 {
        let prompt = Prompt::chat_with_tools(messages.clone(), tools.clone());
        let request =
            GenerateRequest::new(prompt).with_max_tokens(256).with_sampling(SamplingParams::greedy());
        let answer = conversation.generate(request)?.text;
        println!("model: {}", answer.trim());
        let Some(call) = tool_call(&answer) else { return Ok(()) };
        let result = match call["name"].as_str() {
            Some("get_weather") => json!({"city": call["arguments"]["city"], "celsius": 18}),
            _ => json!({"error": "no such function"}),
        };
        println!("tool:  {result}");
        messages.push(Message::assistant(answer));
        messages.push(Message::new("tool", result.to_string()));
    }
    Ok(())
}

/// First tool call in an answer; `None` for plain text and invalid JSON.
fn tool_call(answer: &str) -> Option<Value> {
    let (_, rest) = answer.split_once("<tool_call>")?;
    let (json, _) = rest.split_once("</tool_call>")?;
    ruvllm::serde_json::from_str(json).ok()
}
