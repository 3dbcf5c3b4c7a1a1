//! Latency against load, as the tables of `docs/scheduling.md`.
//!
//! `cargo run --release -p ruvllm-scheduler --example load --features simulator [REQUESTS]`

use std::time::{Duration, Instant};

use ruvllm_scheduler::simulator::{
    Arrivals, Latencies, Lengths, Machine, Prefixes, Report, Setup, TenantTraffic, Violation, simulate,
};
use ruvllm_scheduler::{Config, TenantId};

const LARGE: TenantId = TenantId(1);
const SMALL: TenantId = TenantId(2);
/// Requests of the large tenant for each one of the small tenant.
const RATIO: f64 = 10.0;
const LOADS: [u32; 8] = [10, 30, 50, 70, 80, 90, 100, 110];

/// Traffic of a bursty tenant and a small one, together `rate` requests per second.
fn chat(rate: f64) -> Vec<TenantTraffic> {
    let (on, off) = (Duration::from_secs(20), Duration::from_secs(20));
    let large = TenantTraffic {
        arrivals: Arrivals::Bursts { on, off },
        ..TenantTraffic::chat(LARGE, rate * RATIO / (RATIO + 1.0))
    };
    vec![large, TenantTraffic::chat(SMALL, rate / (RATIO + 1.0))]
}

/// Short questions about one of 200 documents of 2,048 tokens, in bursts.
fn documents(rate: f64) -> Vec<TenantTraffic> {
    let (on, off) = (Duration::from_secs(5), Duration::from_secs(15));
    vec![TenantTraffic {
        arrivals: Arrivals::Bursts { on, off },
        prompt: Lengths { median: 100.0, sigma: 0.5, most: 512 },
        prefixes: Prefixes { count: 200, exponent: 0.8, tokens: 2048 },
        ..TenantTraffic::chat(LARGE, rate)
    }]
}

fn setup(traffic: Vec<TenantTraffic>, requests: usize) -> Setup {
    Setup { machine: Machine::default(), traffic, requests, cache_tokens: 65_536, seed: 1 }
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

fn first_token(report: &Report, tenant: TenantId) -> String {
    percentiles(&report.tenants[&tenant].time_to_first_token, 2)
}

/// Prints latencies over load of the traffic that `traffic` gives for a rate.
fn table(
    traffic: impl Fn(f64) -> Vec<TenantTraffic>,
    config: &Config,
    capacity: f64,
    requests: usize,
) -> Result<(), Violation> {
    let tenants: Vec<TenantId> = traffic(1.0).iter().map(|tenant| tenant.tenant).collect();
    let name = |tenant: &TenantId| match (tenants.len(), *tenant) {
        (1, _) => "TTFT, s |",
        (_, LARGE) => "TTFT of the large tenant, s |",
        _ => "TTFT of the small tenant, s |",
    };
    let names: String = tenants.iter().map(|tenant| format!(" {}", name(tenant))).collect();
    println!("\n| load |{names} inter-token latency, s | requests/s | prefix hits |");
    println!("|---:|{}---:|---:|---:|", "---:|".repeat(tenants.len()));
    for load in LOADS {
        let report = simulate(config, &setup(traffic(capacity * f64::from(load) / 100.0), requests))?;
        let first: String = tenants.iter().map(|&t| format!(" {} |", first_token(&report, t))).collect();
        println!(
            "| {load} % |{first} {} | {:.2} | {:.0} % |",
            percentiles(&report.total().inter_token, 3),
            report.throughput(),
            100.0 * report.hit_rate(),
        );
    }
    Ok(())
}

/// Prints the latencies of a tenant alone, and beside one that sends ten times as much.
fn fairness(requests: usize) -> Result<(), Violation> {
    let tenant = |id, rate| TenantTraffic {
        prompt: Lengths { median: 1500.0, sigma: 0.8, most: 4096 },
        ..TenantTraffic::chat(id, rate)
    };
    let machine = Machine { decode: Duration::from_micros(200), ..Machine::default() };
    println!("\n| setting | TTFT of the small tenant, s | machine busy |");
    println!("|---|---:|---:|");
    for (name, large, fair) in [
        ("alone", 0.0, true),
        ("beside the large tenant", RATIO, true),
        ("beside the large tenant, without fair shares", RATIO, false),
    ] {
        let mut config = config(fair, true);
        (config.max_running, config.step_tokens) = (32, 256);
        config.token_latency = Duration::from_millis(300);
        let traffic = vec![tenant(LARGE, 0.1 * large), tenant(SMALL, 0.1)];
        let requests = (requests as f64 * (1.0 + large) / (1.0 + RATIO)) as usize;
        let report =
            simulate(&config, &Setup { machine, cache_tokens: 131_072, ..setup(traffic, requests) })?;
        let busy = 100.0 * report.busy.as_secs_f64() / report.duration.as_secs_f64();
        println!("| {name} | {} | {busy:.0} % |", first_token(&report, SMALL));
    }
    Ok(())
}

fn main() -> Result<(), Violation> {
    let requests: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let began = Instant::now();
    // All requests are there at once: the throughput is the capacity.
    let capacity = |traffic: Vec<TenantTraffic>| -> Result<f64, Violation> {
        let report = simulate(&config(false, false), &setup(traffic, requests.min(5000)))?;
        Ok(report.throughput())
    };
    let on = |is_on| if is_on { "on" } else { "off" };
    println!("{requests} requests per line.\n\n## One tenant sends ten times as much");
    fairness(requests)?;
    let rate = capacity(chat(1e4))?;
    println!("\n## Chat, two tenants: {rate:.2} requests/s are 100 %");
    for (fair, prefix) in [(true, true), (true, false), (false, true), (false, false)] {
        println!("\nFair shares {}, order by prefixes {}:", on(fair), on(prefix));
        table(chat, &config(fair, prefix), rate, requests)?;
    }
    let rate = capacity(documents(1e4))?;
    println!("\n## Documents, one tenant: {rate:.2} requests/s are 100 %");
    for prefix in [true, false] {
        println!("\nOrder by prefixes {}:", on(prefix));
        table(documents, &config(true, prefix), rate, requests)?;
    }
    eprintln!("{:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}
