//! Time to the first token with and without a known beginning:
//! `cargo run --release -p ruvllm --example prefix_cache -- MODEL.gguf`.
//!
//! Prompts are ids in a fixed order, since only their number matters. Each line: tokens in common with an earlier prompt,
//! tokens in all, milliseconds to the first token of the first such prompt and of later ones (median of five).
use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, Engine, EngineOptions, Error, GenerateRequest, ModelSource, Prompt, SamplingParams,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: prefix_cache MODEL.gguf")?;
    let engine = Engine::load(&ModelSource::Path(model.into()), &EngineOptions::default(), &mut |_| ())?;
    for (seed, common, own) in [(1, 50, 20), (2, 200, 20), (3, 1000, 1)] {
        let prompt = |request: u32| -> Vec<u32> {
            let vocab_size = engine.config().vocab_size as u32;
            let id = |i: u32, salt: u32| (i * 7919 + salt * 104_729 + 11) % (vocab_size / 2);
            (0..common).map(|i| id(i, seed)).chain((0..own).map(|i| id(i, 1000 + request))).collect()
        };
        let first = time_to_first_token(&engine, prompt(0))?;
        let mut later = (1..=5)
            .map(|request| time_to_first_token(&engine, prompt(request)))
            .collect::<Result<Vec<_>, _>>()?;
        later.sort_by(f64::total_cmp);
        println!(
            "{common} of {} tokens known: {first:.1} ms at first, then {:.1} ms, {:.1} times faster",
            common + own,
            later[2],
            first / later[2]
        );
    }
    println!("{:#?}", engine.prefix_statistics());
    Ok(())
}

fn time_to_first_token(engine: &Engine, tokens: Vec<u32>) -> Result<f64, Error> {
    let request = GenerateRequest {
        max_tokens: Some(1),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..GenerateRequest::new(Prompt::Tokens(tokens))
    };
    let completion = engine.generate(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))?;
    Ok(completion.timings.ttft_ms.unwrap_or_default())
}
