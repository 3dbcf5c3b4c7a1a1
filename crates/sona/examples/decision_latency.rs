//! Time of a routing decision and of learning its reward: 512 values per embedding, 8 arms.
//!
//! `cargo run --release -p ruvllm-sona --example decision_latency`

use std::error::Error;
use std::time::{Duration, Instant};

use ruvllm_sona::evaluation::Latency;
use ruvllm_sona::random::Random;
use ruvllm_sona::routing::{Arm, Prompt, Router, RouterSettings, Strategy};

const DIM: usize = 512;
const REQUESTS: usize = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    for strategy in [Strategy::LinUcb, Strategy::Thompson] {
        let arms = (0..8).map(|i| Arm::model(format!("model-{i}"))).collect();
        let settings = RouterSettings { strategy, ..RouterSettings::new(DIM) };
        let mut router = Router::new(settings, arms)?;
        let mut random = Random::new(1);
        let (mut choices, mut updates) = (Vec::new(), Vec::new());
        for _ in 0..REQUESTS {
            let embedding: Vec<f32> = (0..DIM).map(|_| random.normal() as f32).collect();
            let prompt = Prompt {
                embedding: &embedding,
                tokens: 1 + random.below(4000),
                has_tools: random.below(2) == 0,
                is_constrained: false,
                turns: random.below(8),
            };
            let start = Instant::now();
            let decision = router.choose(&prompt, |_| true, None)?;
            choices.push(start.elapsed());
            let start = Instant::now();
            router.learn(&decision, random.uniform())?;
            updates.push(start.elapsed());
        }
        print(&format!("{strategy:?} choose"), choices);
        print(&format!("{strategy:?} learn"), updates);
    }
    Ok(())
}

fn print(name: &str, durations: Vec<Duration>) {
    if let Some(Latency { p50_us, p95_us, p99_us }) = Latency::of(durations) {
        println!("{name:16} p50 {p50_us:6.1} us, p95 {p95_us:6.1} us, p99 {p99_us:6.1} us");
    }
}
