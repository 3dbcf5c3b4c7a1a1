//! Measures embeddings of texts. Each line of standard input, `BATCH TOKENS SECONDS`, is a
//! measurement of that many texts of that many tokens for at least that long; its answer is a JSON
//! object in a line. `cargo xtask embedding-speed` drives it.
//!
//! Usage: `embeddings MODEL THREADS`

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use ruvllm::{Embedder, EmbeddingRequest, EngineOptions, ModelSource};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}; usage: embeddings MODEL THREADS");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(model), Some(threads)) = (words.next(), words.next()) else { return Err("two words".into()) };
    let options = EngineOptions::default().with_threads(threads.parse::<usize>()?);
    let embedder = Embedder::load(&ModelSource::Path(model.into()), &options, &mut |_| ())?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let mut next = || words.next().ok_or("BATCH TOKENS SECONDS");
        let (batch, tokens, seconds): (usize, usize, f64) =
            (next()?.parse()?, next()?.parse()?, next()?.parse()?);
        let request = EmbeddingRequest::new((0..batch).map(|at| text(at, tokens)));
        let counted = embedder.embed(&request)?.embeddings.iter().map(|text| text.tokens).sum::<usize>();
        let (start, cpu_before) = (Instant::now(), cpu_seconds());
        let mut runs = 0;
        while runs < 3 || start.elapsed().as_secs_f64() < seconds {
            embedder.embed(&request)?;
            runs += 1;
        }
        let (wall_s, cpu_s) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);
        println!(r#"{{"tokens":{},"wall_s":{wall_s},"cpu_s":{cpu_s}}}"#, runs * counted);
    }
    Ok(())
}

/// A text of `tokens` tokens of a BERT vocabulary, `[CLS]` and `[SEP]` included; the peers' drivers
/// generate the same.
fn text(at: usize, tokens: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "of", "and", "to", "in", "is", "was", "he", "for", "on", "as", "with", "that", "it", "by",
        "at",
    ];
    let word = |i: usize| WORDS[(at * 7 + i * 5 + i / 16) % WORDS.len()];
    (0..tokens.saturating_sub(2)).map(word).collect::<Vec<_>>().join(" ")
}

/// CPU seconds of all threads of this process, in steps of 0.01.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let times = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
    times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
