//! Latency against load, as the tables of `docs/scheduling.md`.
//!
//! `cargo run --release -p ruvllm-scheduler --example load --features simulator [REQUESTS]`

use std::time::{Duration, Instant};

use ruvllm_scheduler::simulator::{
    Arrivals, Latencies, Machine, Report, Setup, TenantTraffic, Violation, simulate,
};
use ruvllm_scheduler::{Config, TenantId};

const LARGE: TenantId = TenantId(1);
const SMALL: TenantId = TenantId(2);
/// Requests of the large tenant for each one of the small tenant.
const RATIO: f64 = 10.0;
const LOADS: [u32; 11] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110];

/// A bursty tenant and a small one, together `rate` requests per second.
fn setup(rate: f64, requests: usize) -> Setup {
    let (on, off) = (Duration::from_secs(20), Duration::from_secs(20));
    let large = TenantTraffic {
        arrivals: Arrivals::Bursts { on, off },
        ..TenantTraffic::chat(LARGE, rate * RATIO / (RATIO + 1.0))
    };
    let small = TenantTraffic::chat(SMALL, rate / (RATIO + 1.0));
    let machine = Machine::default();
    Setup { machine, traffic: vec![large, small], requests, cache_tokens: 65_536, seed: 1 }
}

fn config(fair_shares: bool, prefix_ordering: bool) -> Config {
    let mut config = Config::default();
    (config.max_waiting, config.max_waiting_per_tenant) = (usize::MAX, usize::MAX);
    (config.fair_shares, config.prefix_ordering) = (fair_shares, prefix_ordering);
    config
}

fn percentiles(latencies: &Latencies, digits: usize) -> String {
    let part = |share| format!("{:.digits$}", latencies.percentile(share).as_secs_f64());
    format!("{} / {} / {}", part(0.5), part(0.95), part(0.99))
}

fn row(load: u32, report: &Report) -> String {
    let first = |tenant: TenantId| percentiles(&report.tenants[&tenant].time_to_first_token, 2);
    let inter_token = percentiles(&report.total().inter_token, 3);
    format!(
        "| {load} % | {} | {} | {inter_token} | {:.2} | {:.0} % |",
        first(SMALL),
        first(LARGE),
        report.throughput(),
        100.0 * report.hit_rate(),
    )
}

fn main() -> Result<(), Violation> {
    let requests = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let began = Instant::now();
    // All requests are there at once: the throughput is the capacity.
    let capacity = simulate(&config(false, false), &setup(1e4, requests.min(5000)))?.throughput();
    println!("Capacity: {capacity:.2} requests/s. {requests} requests per line.");
    for (fair, prefix) in [(true, true), (true, false), (false, true), (false, false)] {
        let on = |is_on| if is_on { "on" } else { "off" };
        println!("\nFair shares {}, order by prefixes {}:\n", on(fair), on(prefix));
        println!(
            "| load | TTFT of the small tenant, s | TTFT of the large tenant, s | inter-token latency, s \
             | requests/s | prefix hits |"
        );
        println!("|---:|---:|---:|---:|---:|---:|");
        for load in LOADS {
            let rate = capacity * f64::from(load) / 100.0;
            println!("{}", row(load, &simulate(&config(fair, prefix), &setup(rate, requests))?));
        }
    }
    eprintln!("{} requests in {:.1} s", 44 * requests, began.elapsed().as_secs_f64());
    Ok(())
}
