//! Compiles any text as a chat template and renders a conversation, with and without tools.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_text::chat::{ChatTemplate, Message};

fuzz_target!(|source: &str| {
    let token = |text: &str| Some(text.to_owned());
    let Ok(template) = ChatTemplate::new(source, token("<s>"), token("</s>")) else { return };
    let messages = [Message::system("Be brief."), Message::user("{{ 1 }}"), Message::assistant("")];
    let tools = serde_json::json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    for tools in [None, Some(&tools)] {
        let _ = template.render(&messages, tools, true);
    }
});
