//! A conversation on standard input, each line a message:
//! `cargo run --release -p ruvllm --example chat -- MODEL.gguf`.
//!
//! A [`Conversation`](ruvllm::Conversation) keeps the sequence between messages, so that each
//! answer computes only new tokens.
use std::io::{BufRead, Write};
use std::ops::ControlFlow;

use ruvllm::{CancelToken, Engine, GenerateRequest, Message, Prompt};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: chat MODEL.gguf")?;
    let engine = Engine::open(model)?;
    let mut conversation = engine.conversation();
    let mut messages = vec![Message::system("Answer in one sentence.")];
    for line in std::io::stdin().lock().lines() {
        messages.push(Message::user(line?));
        let request = GenerateRequest::new(Prompt::chat(messages.clone())).with_max_tokens(256);
        let answer = conversation.generate_with(&request, &CancelToken::new(), &mut |text| {
            print!("{text}");
            // A closed standard output ends the answer.
            match std::io::stdout().flush() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        println!();
        eprintln!(
            "[{} tokens, {} of {} prompt tokens cached]",
            answer.tokens.len(),
            answer.cached_tokens,
            answer.prompt_tokens
        );
        messages.push(Message::assistant(answer.text));
    }
    Ok(())
}
