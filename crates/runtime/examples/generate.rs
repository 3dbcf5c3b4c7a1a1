//! Continues a prompt: `cargo run --release --example generate -- MODEL.gguf "Once upon a time"`.
use std::io::Write;
use std::ops::ControlFlow;

use ruvllm::{CancelToken, Engine, EngineOptions, GenerateRequest, ModelSource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: generate MODEL.gguf PROMPT".into());
    };
    let source = ModelSource::Path(model.into());
    let engine = Engine::load(&source, &EngineOptions::default(), &mut |_| ())?;

    let mut request = GenerateRequest::new(prompt.as_str());
    request.max_tokens = Some(128);
    request.sampling.temperature = 0.7;

    let completion = engine.generate(&request, &CancelToken::new(), &mut |text| {
        print!("{text}");
        // A reader that went away ends the generation.
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    eprintln!("\n[{}, {} tokens]", completion.finish_reason, completion.tokens.len());
    Ok(())
}
