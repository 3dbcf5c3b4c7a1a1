//! Fleets of 1 to 1,000 engines behind a router, as the tables of `docs/scale-out.md`.
//!
//! `cargo run --release -p ruvllm-scheduler --example fleet --features simulator -- TABLE
//! [KEY=VALUE..]`
//!
//! TABLE is `scale`, `load`, `delay`, `skew`, `routers` or `run`; the keys are the fields of
//! `Settings`. `run` prints one line for each router policy, and the bound of the hits; with
//! `trace=FILE` its requests are lines of FILE: number of the prefix, tokens of the prompt.

use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use ruvllm_scheduler::simulator::fleet::{Fleet, FleetReport, Loop, Policy, hit_bound, simulate_fleet};
use ruvllm_scheduler::simulator::{Arrival, Lengths, Machine, Prefixes, Setup, TenantTraffic, trace};
use ruvllm_scheduler::{Config, Request, RequestId, TenantId};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const USAGE: &str = "usage: fleet scale|load|delay|skew|routers|run [KEY=VALUE..]";

/// Settings of a run; times in the unit of their name.
#[derive(Debug, Clone)]
struct Settings {
    workers: usize,
    routers: usize,
    /// Requests per worker, of which the first half fill the caches.
    requests: usize,
    /// Requests per second and worker.
    rate: f64,
    /// Unfinished requests of all workers at a time; 0: Poisson arrivals.
    concurrency: usize,
    /// Requests of all workers that are not measured.
    warm_up: Option<usize>,
    /// Prefixes of all workers.
    prefixes: usize,
    exponent: f64,
    prefix_tokens: usize,
    /// Median of the tokens behind the prefix, and standard deviation of the logarithm.
    own_tokens: f64,
    own_sigma: f64,
    output: f64,
    output_sigma: f64,
    /// Tokens of KV cache of each worker.
    cache_tokens: usize,
    step_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    delay_ms: f64,
    /// Time of a selection: a constant and a part per worker.
    selection_us: f64,
    selection_worker_ns: f64,
    event_us: f64,
    credit: f64,
    scale: f64,
    seed: u64,
    trace: String,
}

impl Default for Settings {
    /// Step times of a model with a billion weights on two threads, times of a router of Dynamo
    /// 1.6.1: measured, see `docs/scale-out.md`.
    fn default() -> Self {
        Self {
            workers: 10,
            routers: 1,
            requests: 160,
            rate: 0.2,
            concurrency: 0,
            warm_up: None,
            prefixes: 0,
            exponent: 1.0,
            prefix_tokens: 1024,
            own_tokens: 64.0,
            own_sigma: 0.6,
            output: 32.0,
            output_sigma: 0.6,
            cache_tokens: 32_768,
            step_ms: 31.0,
            prefill_ms: 3.32,
            decode_ms: 5.3,
            delay_ms: 1.0,
            selection_us: 50.0,
            selection_worker_ns: 100.0,
            event_us: 0.5,
            credit: 1.0,
            scale: 1.0,
            seed: 1,
            trace: String::new(),
        }
    }
}

impl Settings {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        fn put<T: FromStr>(field: &mut T, key: &str, value: &str) -> Result<()> {
            *field = value.parse().map_err(|_| format!("{key}={value}: not a number"))?;
            Ok(())
        }
        match key {
            "workers" => put(&mut self.workers, key, value),
            "routers" => put(&mut self.routers, key, value),
            "requests" => put(&mut self.requests, key, value),
            "rate" => put(&mut self.rate, key, value),
            "concurrency" => put(&mut self.concurrency, key, value),
            "warm_up" => put(self.warm_up.insert(0), key, value),
            "prefixes" => put(&mut self.prefixes, key, value),
            "exponent" => put(&mut self.exponent, key, value),
            "prefix_tokens" => put(&mut self.prefix_tokens, key, value),
            "own_tokens" => put(&mut self.own_tokens, key, value),
            "own_sigma" => put(&mut self.own_sigma, key, value),
            "output" => put(&mut self.output, key, value),
            "output_sigma" => put(&mut self.output_sigma, key, value),
            "cache_tokens" => put(&mut self.cache_tokens, key, value),
            "step_ms" => put(&mut self.step_ms, key, value),
            "prefill_ms" => put(&mut self.prefill_ms, key, value),
            "decode_ms" => put(&mut self.decode_ms, key, value),
            "delay_ms" => put(&mut self.delay_ms, key, value),
            "selection_us" => put(&mut self.selection_us, key, value),
            "selection_worker_ns" => put(&mut self.selection_worker_ns, key, value),
            "event_us" => put(&mut self.event_us, key, value),
            "credit" => put(&mut self.credit, key, value),
            "scale" => put(&mut self.scale, key, value),
            "seed" => put(&mut self.seed, key, value),
            "trace" => put(&mut self.trace, key, value),
            _ => Err(format!("unknown key `{key}`; {USAGE}").into()),
        }
    }

    fn traffic(&self) -> TenantTraffic {
        let most = |median: f64| (median * 8.0).ceil() as usize;
        TenantTraffic {
            prompt: Lengths { median: self.own_tokens, sigma: self.own_sigma, most: most(self.own_tokens) },
            output: Lengths { median: self.output, sigma: self.output_sigma, most: most(self.output) },
            prefixes: Prefixes {
                count: if self.prefixes == 0 { PREFIXES * self.workers } else { self.prefixes },
                exponent: self.exponent,
                tokens: self.prefix_tokens,
            },
            ..TenantTraffic::chat(TenantId(1), self.rate * self.workers as f64)
        }
    }

    fn arrivals(&self) -> Result<Vec<Arrival>> {
        if self.trace.is_empty() {
            return Ok(trace(&[self.traffic()], self.requests * self.workers, self.seed));
        }
        let text =
            std::fs::read_to_string(&self.trace).map_err(|error| format!("{}: {error}", self.trace))?;
        text.lines().enumerate().map(|(index, line)| self.arrival(index, line)).collect()
    }

    /// The request of a line of a trace.
    fn arrival(&self, index: usize, line: &str) -> Result<Arrival> {
        let mut numbers = line.split_whitespace().map(str::parse);
        let (Some(Ok(prefix)), Some(Ok(tokens)), None) = (numbers.next(), numbers.next(), numbers.next())
        else {
            return Err(format!("{}, line {}: not two numbers", self.trace, index + 1).into());
        };
        let request = Request {
            id: RequestId(index as u64),
            tenant: TenantId(1),
            priority: 0,
            deadline: None,
            prompt_tokens: tokens as usize,
            max_new_tokens: self.output as usize,
            prefix: Some(prefix),
        };
        let (prefix_tokens, output) = (self.prefix_tokens.min(tokens as usize), self.output as usize);
        Ok(Arrival { at: Duration::ZERO, request, prefix_tokens, output, cancel_at: None })
    }

    fn fleet(&self, policy: Policy, requests: usize) -> Fleet {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let machine = Machine {
            step: ms(self.step_ms),
            prefill: ms(self.prefill_ms),
            decode: ms(self.decode_ms),
            ..Machine::default()
        };
        let selection = match policy {
            Policy::RoundRobin => 0.0,
            Policy::KvAware { .. } => {
                self.selection_us / 1e3 + self.selection_worker_ns * self.workers as f64 / 1e6
            }
        };
        let (cache_tokens, seed) = (self.cache_tokens, self.seed);
        Fleet {
            setup: Setup { machine, traffic: vec![self.traffic()], requests, cache_tokens, seed },
            workers: self.workers,
            policy,
            routers: self.routers,
            selection: ms(selection),
            event_delay: ms(self.delay_ms),
            event: ms(self.event_us / 1e3),
            arrivals: match self.concurrency {
                0 => Loop::Open,
                concurrency => Loop::Closed { concurrency },
            },
            warm_up: self.warm_up.unwrap_or(requests / 2),
        }
    }

    fn run(&self, policy: Policy) -> Result<FleetReport> {
        let arrivals = self.arrivals()?;
        Ok(simulate_fleet(&config(), &self.fleet(policy, arrivals.len()), &arrivals)?)
    }

    fn kv_aware(&self) -> Policy {
        Policy::KvAware { overlap_credit: self.credit, prefill_load_scale: self.scale }
    }

    /// Largest share of hits of any router.
    fn bound(&self) -> Result<f64> {
        let arrivals = self.arrivals()?;
        let warm_up = self.warm_up.unwrap_or(arrivals.len() / 2);
        Ok(hit_bound(&arrivals, self.cache_tokens * self.workers, config().block_tokens, warm_up))
    }
}

/// Prefixes per worker, where their number grows with the workers.
const PREFIXES: usize = 40;

fn config() -> Config {
    let mut config = Config::default();
    (config.max_waiting, config.max_waiting_per_tenant) = (usize::MAX, usize::MAX);
    config
}

const COLUMNS: &str =
    "prefix hits | TTFT p50, ms | p95, ms | requests/s | busy | busiest over mean | blocks/s";

fn cells(report: &FleetReport) -> String {
    let ms = |share| {
        let ms = report.time_to_first_token.percentile(share).as_secs_f64() * 1e3;
        if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
    };
    format!(
        "{:.1} % | {} | {} | {:.1} | {:.0} % | {:.2} | {:.0}",
        report.hit_rate() * 100.0,
        ms(0.5),
        ms(0.95),
        report.throughput(),
        report.utilization() * 100.0,
        report.imbalance(),
        report.event_rate(),
    )
}

fn head(keys: &str) {
    let columns = keys.split(" | ").chain(COLUMNS.split(" | "));
    println!("| {keys} | {COLUMNS} |\n|{}", columns.map(|_| "---:|").collect::<String>());
}

/// Hits and latencies over the number of workers.
fn scale(settings: &Settings) -> Result<()> {
    head("prefixes | router | workers | bound");
    let runs: [(&str, usize, &[usize]); 2] =
        [("40 per worker", 0, &[10, 30, 100, 300, 1000]), ("400", 400, &[10, 30, 100, 300])];
    for (name, fixed, counts) in runs {
        for &workers in counts {
            let settings = Settings { workers, prefixes: fixed, ..settings.clone() };
            let bound = settings.bound()? * 100.0;
            for (router, policy) in [("round robin", Policy::RoundRobin), ("KV-aware", settings.kv_aware())] {
                let report = settings.run(policy)?;
                println!("| {name} | {router} | {workers} | {bound:.1} % | {} |", cells(&report));
            }
        }
    }
    Ok(())
}

/// Latencies of 100 workers over the load.
fn load(settings: &Settings) -> Result<()> {
    head("router | requests/s and worker");
    for (router, policy) in [("round robin", Policy::RoundRobin), ("KV-aware", settings.kv_aware())] {
        for rate in [0.1, 0.2, 0.25, 0.3, 0.35, 0.4] {
            let report = Settings { workers: 100, rate, ..settings.clone() }.run(policy)?;
            println!("| {router} | {rate} | {} |", cells(&report));
        }
    }
    Ok(())
}

/// Hits over the age of the routers' view.
fn delay(settings: &Settings) -> Result<()> {
    head("workers | event delay, ms");
    for workers in [10, 100] {
        for delay_ms in [0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0] {
            let settings = Settings { workers, delay_ms, ..settings.clone() };
            let report = settings.run(settings.kv_aware())?;
            println!("| {workers} | {delay_ms} | {} |", cells(&report));
        }
    }
    Ok(())
}

/// Load of the workers over the exponent of the Zipf distribution.
fn skew(settings: &Settings) -> Result<()> {
    head("exponent | credit | workers | bound");
    for exponent in [0.6, 1.0, 1.4] {
        for credit in [1.0, 2.0] {
            for workers in [10, 100] {
                let settings = Settings { workers, exponent, credit, ..settings.clone() };
                let bound = settings.bound()? * 100.0;
                let report = settings.run(settings.kv_aware())?;
                println!("| {exponent} | {credit} | {workers} | {bound:.1} % | {} |", cells(&report));
            }
        }
    }
    Ok(())
}

/// Several routers, each with its own requests alone.
fn routers(settings: &Settings) -> Result<()> {
    head("workers | routers");
    for workers in [10, 100] {
        for routers in [1, 2, 4, 8] {
            let settings = Settings { workers, routers, ..settings.clone() };
            let report = settings.run(settings.kv_aware())?;
            println!("| {workers} | {routers} | {} |", cells(&report));
        }
    }
    Ok(())
}

/// One run of each policy, and the bound.
fn run(settings: &Settings) -> Result<()> {
    head("router");
    let at_once = Settings {
        delay_ms: 0.0,
        selection_us: 0.0,
        selection_worker_ns: 0.0,
        event_us: 0.0,
        ..settings.clone()
    };
    println!("| round robin | {} |", cells(&settings.run(Policy::RoundRobin)?));
    println!("| KV-aware | {} |", cells(&settings.run(settings.kv_aware())?));
    println!("| KV-aware, at once | {} |", cells(&at_once.run(settings.kv_aware())?));
    println!("| bound of the hits | {:.1} % |", settings.bound()? * 100.0);
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let table = arguments.next().ok_or(USAGE)?;
    let mut settings = Settings::default();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or(USAGE)?;
        settings.set(key, value)?;
    }
    match table.as_str() {
        "scale" => scale(&settings),
        "load" => load(&settings),
        "delay" => delay(&settings),
        "skew" => skew(&settings),
        "routers" => routers(&settings),
        "run" => run(&settings),
        _ => Err(USAGE.into()),
    }
}
