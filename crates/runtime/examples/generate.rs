//! Continues a prompt: `cargo run --release --example generate -- MODEL.gguf "Once upon a time"`.
use std::io::Write;

use ruvllm::{Engine, GenerateRequest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: generate MODEL.gguf PROMPT".into());
    };
    let engine = Engine::open(model)?;
    let mut stream = engine.submit(GenerateRequest::new(prompt).with_max_tokens(128))?;
    for chunk in &mut stream {
        print!("{}", chunk?);
        std::io::stdout().flush()?;
    }
    if let Some(completion) = stream.completion() {
        eprintln!("\n[{}, {} tokens]", completion.finish_reason, completion.tokens.len());
    }
    Ok(())
}
