//! Renders a conversation with any text as template and any text in its messages. No message text
//! becomes a special token, and time is limited.

#![no_main]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use ruvllm_text::TokenId;
use ruvllm_text::chat::{ChatTemplate, Message};
use ruvllm_text::tokenizer::Tokenizer;

/// Vocabulary of words with special tokens that templates and messages can write.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let added = |id: u32, content: &str, normalized: bool| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": normalized, "special": true})
    };
    let definition = serde_json::json!({
        "version": "1.0",
        "added_tokens": [added(1, "<a>", false), added(2, "<|b|>", true), added(3, "[c]", false)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"u": 0, "<a>": 1, "<|b|>": 2, "[c]": 3}, "unk_token": "u"},
    });
    Tokenizer::from_json(definition.to_string().as_bytes()).expect("a tokenizer")
});

/// Number of special tokens.
fn count(ids: &[TokenId]) -> usize {
    ids.iter().filter(|&&id| (1..4).contains(&id)).count()
}

fuzz_target!(|input: (&str, &str, &str)| {
    let (source, content, name) = input;
    let Ok(template) = ChatTemplate::new(source, None, None) else { return };
    let message = serde_json::json!({"role": name, "content": content, "name": name, name: content});
    let message: Message = serde_json::from_value(message).unwrap_or_else(|_| Message::user(content));
    let started = Instant::now();
    let ids = TOKENIZER.encode_chat(&template, &[message.clone(), Message::user(content)], None, true);
    assert!(started.elapsed() < Duration::from_secs(60), "a rendering without end");
    let Ok(ids) = ids else { return };
    // A source that cannot write a special token, not even in parts, writes none.
    if !source.contains(['<', '[', '>', ']', '\\', '%']) {
        assert_eq!(count(&ids), 0, "a marker from a message");
    }
});
