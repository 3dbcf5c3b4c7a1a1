//! TTFT of a tenant alone and beside one that sends ten times as many requests.
//!
//! ```text
//! cargo run --release -p ruvllm --example fair-shares -- MODEL [SECONDS] [ROUNDS] [LATENCY_MS] \
//!     [PROMPT_TOKENS] [NEW_TOKENS]
//! ```
//! Requests arrive at random times (Poisson). The small tenant keeps the engine busy for a quarter
//! of the time, so that both together send more than it can serve. Rounds alternate: alone, beside.

use std::env::args;
use std::error::Error;
use std::time::{Duration, Instant};

use ruvllm::{
    Engine, EngineOptions, GenerateRequest, Prompt, RequestHandle, SamplingParams, SchedulerConfig, Tenant,
};
use ruvllm_testkit::Random;

/// Lengths of a request, in tokens.
#[derive(Clone, Copy)]
struct Lengths {
    prompt: usize,
    new: usize,
}

const USAGE: &str = "usage: fair-shares MODEL [SECONDS] [ROUNDS] [LATENCY_MS] [PROMPT_TOKENS] [NEW_TOKENS]";

/// Share of the time that the small tenant alone keeps the engine busy.
const LOAD: f64 = 0.25;

/// Requests of the large tenant for each one of the small tenant.
const FACTOR: f64 = 10.0;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = args().skip(1);
    let model = arguments.next().ok_or(USAGE)?;
    let seconds: f64 = arguments.next().map_or(Ok(30.0), |text| text.parse())?;
    let rounds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let mut scheduling = SchedulerConfig::default();
    if let Some(milliseconds) = arguments.next() {
        scheduling.token_latency = Duration::from_millis(milliseconds.parse()?);
    }
    let prompt = arguments.next().map_or(Ok(400), |text| text.parse())?;
    let new = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let lengths = Lengths { prompt, new };
    let options = EngineOptions::default().with_scheduling(scheduling);
    let engine = Engine::open_with(model.as_str(), &options)?;
    let pool = engine.kv_store().pool();
    let (small, large) = (pool.tenant("small")?, pool.tenant("large")?);

    let mut random = Random::new(1);
    let started = Instant::now();
    for _ in 0..4 {
        engine.generate(request(&mut random, &engine, &small, lengths))?;
    }
    let alone_time = started.elapsed().as_secs_f64() / 4.0;
    let rate = LOAD / alone_time;
    println!("one request takes {alone_time:.2} s; small tenant: {rate:.2} requests/s");

    let mut ttft = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for (times, factor) in ttft.iter_mut().zip([0.0, FACTOR]) {
            times.extend(run(&engine, [(&small, rate), (&large, rate * factor)], lengths, seconds, round)?);
        }
    }
    println!("| small tenant | requests | TTFT p50, ms | p95, ms |\n|---|---:|---:|---:|");
    for (name, times) in ["alone", "beside the large tenant"].iter().zip(&mut ttft) {
        times.sort_by(f64::total_cmp);
        let quantile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        println!("| {name} | {} | {:.0} | {:.0} |", times.len(), quantile(0.5), quantile(0.95));
    }
    Ok(())
}

/// A prompt that no other shares.
fn request(random: &mut Random, engine: &Engine, tenant: &Tenant, lengths: Lengths) -> GenerateRequest {
    let ids = engine.config().vocab_size / 2;
    let prompt = (0..lengths.prompt).map(|_| (16 + random.below(ids - 16)) as u32).collect();
    GenerateRequest::new(Prompt::Tokens(prompt))
        .with_max_tokens(lengths.new)
        .with_sampling(SamplingParams::greedy())
        .with_ignore_eos(true)
        .with_tenant(tenant.clone())
}

/// Sends requests of both tenants for so many seconds; TTFT of the first tenant in milliseconds.
fn run(
    engine: &Engine,
    tenants: [(&Tenant, f64); 2],
    lengths: Lengths,
    seconds: f64,
    seed: u64,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut random = Random::new(seed);
    // Times and tenants of all arrivals, in order.
    let mut arrivals: Vec<(f64, usize)> = Vec::new();
    for (index, &(_, rate)) in tenants.iter().enumerate().filter(|(_, (_, rate))| *rate > 0.0) {
        let mut time = 0.0;
        loop {
            time -= (1.0 - random.below(1 << 20) as f64 / f64::from(1 << 20)).ln() / rate;
            if time > seconds {
                break;
            }
            arrivals.push((time, index));
        }
    }
    arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let started = Instant::now();
    let mut handles: [Vec<RequestHandle>; 2] = [Vec::new(), Vec::new()];
    for (time, index) in arrivals {
        std::thread::sleep(Duration::from_secs_f64(time).saturating_sub(started.elapsed()));
        let request = request(&mut random, engine, tenants[index].0, lengths);
        handles[index].push(engine.submit(request)?);
    }
    let [first, second] = handles;
    let mut times = Vec::new();
    for handle in first {
        times.extend(handle.wait()?.timings.ttft_ms);
    }
    // Dropped handles cancel what still waits.
    drop(second);
    Ok(times)
}
