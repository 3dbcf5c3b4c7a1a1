//! TTFT with and without a prefix hit: `cargo run --release -p ruvllm --example prefix_cache --
//! MODEL.gguf`.
//!
//! Prompts are arbitrary ids, since only their number matters. Each line: tokens shared with an
//! earlier prompt, total tokens, TTFT in milliseconds of the first such prompt and of the next one
//! (medians of five).
use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, Engine, EngineOptions, Error, GenerateRequest, ModelSource, Prompt, SamplingParams,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: prefix_cache MODEL.gguf")?;
    let engine = Engine::load(&ModelSource::Path(model.into()), &EngineOptions::default(), &mut |_| ())?;
    for (case, (common, own)) in (0..).zip([(50, 20), (200, 8), (200, 20), (1000, 1)]) {
        let vocab_size = engine.config().vocab_size as u32;
        let id = |i: u32, salt: u32| (i * 7919 + salt * 104_729 + 11) % (vocab_size / 2);
        let [mut first, mut next] = [Vec::new(), Vec::new()];
        for repeat in 0..5 {
            let seed = 100 * case + 10 * repeat;
            let known = || (0..common).map(|i| id(i, seed));
            for (times, request) in [(&mut first, 1), (&mut next, 2)] {
                let prompt = known().chain((0..own).map(|i| id(i, seed + request))).collect();
                times.push(time_to_first_token(&engine, prompt)?);
            }
        }
        let [first, next] = [median(first), median(next)];
        println!(
            "{common} of {} tokens known: {first:.1} ms at first, then {next:.1} ms, {:.1} times faster",
            common + own,
            first / next
        );
    }
    println!("{:#?}", engine.prefix_statistics());
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn time_to_first_token(engine: &Engine, tokens: Vec<u32>) -> Result<f64, Error> {
    let request = GenerateRequest::new(Prompt::Tokens(tokens))
        .with_max_tokens(1)
        .with_sampling(SamplingParams::greedy())
        .with_ignore_eos(true);
    let completion =
        engine.generate_with(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))?;
    Ok(completion.timings.ttft_ms.unwrap_or_default())
}
