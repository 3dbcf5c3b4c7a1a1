//! Costs of quality scores, memory searches and cached tool calls; with a text file, also the
//! scores of its documents (separated by two blank lines) beside shuffled and looped versions.
//!
//! `cargo run --release -p ruvllm-sona --example agent_costs [FILE]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_sona::HashedWords;
use ruvllm_sona::memory::{
    AgentMemory, CacheLimits, InMemory, Limits, MemoryStore as _, Query, Settings, ToolCache, ToolPolicy,
};
use ruvllm_sona::model::Embed;
use ruvllm_sona::quality::{Coherence, Diversity, History, Repetition, Sample, Scorer, Uniqueness};
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

/// Next number of a linear congruential generator, below `bound`.
fn random(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % bound
}

fn sentence(state: &mut u64, words: usize) -> String {
    let words: Vec<String> = (0..words).map(|_| format!("word{}", random(state, 3_000))).collect();
    words.join(" ") + ". "
}

/// Prints the median time of a call.
fn measure(name: &str, mut call: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 15 || begin.elapsed().as_millis() < 500 {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("{name:<44} {:>10.1} us", times[times.len() / 2]);
    Ok(())
}

fn costs(embed: &Arc<dyn Embed>) -> Result<(), Failure> {
    let mut state = 1;
    // 1,500 words are about 2,000 tokens.
    let answer: String = (0..100).map(|_| sentence(&mut state, 15)).collect();
    let mut history = History::new(1_000)?;
    for _ in 0..1_000 {
        history.push(&sentence(&mut state, 60));
    }
    let sample = Sample { history: Some(&history), ..Sample::new(&answer) };
    for scorer in scorers(embed) {
        measure(&format!("{} of 1,500 words", scorer.name()), || {
            black_box(scorer.score(&sample)?);
            Ok(())
        })?;
    }
    let limits = Limits { dimension: 384, tenant_bytes: 64 << 20, ..Limits::default() };
    let mut memory = AgentMemory::new(InMemory::new(limits), Some(Arc::clone(embed)), Settings::default())?;
    for i in 0..10_000 {
        memory.record("t", &format!("s{}", i % 100), &sentence(&mut state, 15), 0.5, i)?;
    }
    let usage = memory.store().usage("t")?;
    println!("10,000 entries of 384 values: {} bytes each", usage.bytes / usage.entries);
    measure("search by embedding and words in 10,000", || {
        let query = Query { limit: 10, ..Query::default() };
        black_box(memory.recall("t", &sentence(&mut state, 8), query, 10_000)?);
        Ok(())
    })?;
    measure("consolidation of 10,000 episodes", || {
        black_box(memory.consolidate("t", 10_000)?);
        Ok(())
    })?;
    let mut cache = ToolCache::new(Some(Arc::clone(embed)), CacheLimits::default());
    cache.declare("find", ToolPolicy { is_pure: true, ttl_ms: u64::MAX, min_cosine: Some(0.9) })?;
    for _ in 0..1_000 {
        let arguments = json!({"query": sentence(&mut state, 8).replace(char::is_numeric, "x"), "limit": 5});
        cache.insert("t", "find", &arguments, json!("result"), 0)?;
    }
    let known = json!({"query": "a cheap flight to the south", "limit": 5});
    cache.insert("t", "find", &known, json!("result"), 0)?;
    for (name, arguments) in [("exact hit", known), ("miss", json!({"query": "other things", "limit": 5}))] {
        measure(&format!("tool cache of {} entries: {name}", cache.stats("t").entries), || {
            black_box(cache.lookup("t", "find", &arguments, 0)?);
            Ok(())
        })?;
    }
    Ok(())
}

fn scorers(embed: &Arc<dyn Embed>) -> Vec<Box<dyn Scorer>> {
    vec![
        Box::new(Coherence::new(Arc::clone(embed), 64)),
        Box::new(Diversity),
        Box::new(Repetition),
        Box::new(Uniqueness),
    ]
}

/// Prints how often a document scores above its shuffled and its looped version.
fn orders(embed: &Arc<dyn Embed>, text: &str) -> Result<(), Failure> {
    let mut state = 2;
    for scorer in &scorers(embed)[..3] {
        let mut above = [(0, 0); 2];
        let mut values = Vec::new();
        for document in text.split("\n\n\n").map(str::trim).filter(|d| d.len() > 1_500) {
            let start: String = document.chars().take(4_000).collect();
            let sentences: Vec<&str> = start.split_inclusive(['.', '\n']).collect();
            let mut shuffled = sentences.clone();
            for i in (1..shuffled.len()).rev() {
                shuffled.swap(i, random(&mut state, i + 1));
            }
            let half = sentences.len() / 2;
            let looped = [&sentences[..half], &sentences[half.saturating_sub(2)..half].repeat(10)].concat();
            let score = |text: &str| scorer.score(&Sample::new(text)).map(|score| score.value);
            let Some(value) = score(&start)? else { continue };
            values.push(value);
            for (count, version) in above.iter_mut().zip([shuffled, looped]) {
                if let Some(other) = score(&version.concat())? {
                    *count = (count.0 + usize::from(value > other), count.1 + 1);
                }
            }
        }
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values.get((values.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
        println!(
            "{:<12} {} documents: 5 % {:.3}, median {:.3}; above shuffled {:?}, above looped {:?}",
            scorer.name(),
            values.len(),
            at(0.05),
            at(0.5),
            above[0],
            above[1]
        );
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let embed: Arc<dyn Embed> = Arc::new(HashedWords { dimension: 384 });
    match std::env::args().nth(1) {
        Some(path) => orders(&embed, &std::fs::read_to_string(path)?),
        None => costs(&embed),
    }
}
