//! The runner of a suite: Criterion for the statistics, plus one line per bench with rates and
//! fractions of the limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use ruvllm_kernels::{Kernels, ThreadPool};

use crate::{Arithmetic, Limits};

/// Bytes moved and operations computed by one run of a bench body.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes that must come from memory (or from cache, where everything fits), each counted once.
    pub bytes: u64,
    /// Arithmetic operations, two per multiply-add.
    pub flops: u64,
}

/// One bench executable.
pub struct Suite {
    /// Kernels to measure: the best of this CPU, or those of `RUVLLM_ISA`.
    pub kernels: Kernels,
    /// Thread pool: `RUVLLM_BENCH_THREADS` threads, or all cores.
    pub pool: Arc<ThreadPool>,
    criterion: Criterion,
    /// `None` in a test run.
    limits: Option<Limits>,
}

impl Suite {
    /// Reads the command line of `cargo bench` or `cargo test`, and measures the machine's limits
    /// unless it is a test.
    ///
    /// # Panics
    /// If the environment requests an unavailable instruction set or number of threads.
    #[must_use]
    pub fn new() -> Self {
        let kernels = Kernels::detect().expect("RUVLLM_ISA names an instruction set of this machine");
        let threads = match std::env::var("RUVLLM_BENCH_THREADS") {
            Ok(text) => text.parse().expect("RUVLLM_BENCH_THREADS is a number"),
            Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let pool = Arc::new(ThreadPool::new(threads).expect("threads can be started"));
        // As Criterion itself tells a measurement from a test run.
        let has = |flag: &str| std::env::args().any(|arg| arg == flag);
        let is_bench = has("--bench") && !has("--test");
        let limits = is_bench.then(|| Limits::measure(&pool));
        if let Some(limits) = &limits {
            let isa = kernels.isa().name();
            println!("{isa} kernels, {threads} threads; limits here: {}", limits.sentence());
        }
        let criterion = Criterion::default()
            .sample_size(20)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(2))
            .configure_from_args();
        Self { kernels, pool, criterion, limits }
    }

    /// True in a test run, in which shapes should be small.
    #[must_use]
    pub fn is_test(&self) -> bool {
        self.limits.is_none()
    }

    /// Measures `body` as `group/id` and prints its rates beside the limits, those of f32
    /// arithmetic.
    pub fn measure(&mut self, group: &str, id: &str, work: Work, body: impl FnMut()) {
        self.measure_as(Arithmetic::F32, group, id, work, body);
    }

    /// As [`measure`](Self::measure), with the kind of arithmetic of the body.
    pub fn measure_as(
        &mut self,
        arithmetic: Arithmetic,
        group: &str,
        id: &str,
        work: Work,
        mut body: impl FnMut(),
    ) {
        let mut seconds = Vec::new();
        let mut benches = self.criterion.benchmark_group(group);
        benches.throughput(Throughput::Bytes(work.bytes));
        benches.bench_function(id, |bencher| {
            bencher.iter_custom(|runs| {
                let start = Instant::now();
                for _ in 0..runs {
                    body();
                }
                let time = start.elapsed();
                seconds.push(time.as_secs_f64() / runs as f64);
                time
            });
        });
        benches.finish();
        if let (Some(limits), Some(seconds)) = (&self.limits, median(&mut seconds)) {
            println!("{group}/{id}: {}\n", rates(work, arithmetic, seconds, limits));
        }
    }

    /// Prints Criterion's closing summary.
    pub fn finish(self) {
        self.criterion.final_summary();
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

fn median(samples: &mut [f64]) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}

/// Both rates with their fractions; a limit that was not measured gives no fraction.
fn rates(work: Work, arithmetic: Arithmetic, seconds: f64, limits: &Limits) -> String {
    let percent = |rate: f64, limit: f64| format!(" ({:.0} % of the limit)", 100.0 * rate / limit);
    let mut parts = Vec::new();
    if work.bytes > 0 {
        let rate = work.bytes as f64 / seconds / 1e9;
        parts.push(format!("{rate:.2} GB/s{}", percent(rate, limits.read_gb_s)));
    }
    if work.flops > 0 {
        let unit = match arithmetic {
            Arithmetic::F32 => "GFLOP/s",
            Arithmetic::Int8 => "GOP/s",
        };
        let rate = work.flops as f64 / seconds / 1e9;
        let part = limits.best(arithmetic).map_or_else(String::new, |peak| percent(rate, peak.gop_s));
        parts.push(format!("{rate:.2} {unit}{part}"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peak;

    #[test]
    fn rates_are_fractions_of_the_limits() {
        let work = Work { bytes: 1_000_000_000, flops: 4_000_000_000 };
        let int8 = vec![Peak { name: "int8", gop_s: 64.0 }];
        let limits = Limits { threads: 1, read_gb_s: 8.0, fma: vec![], int8 };
        let of = |arithmetic| rates(work, arithmetic, 0.25, &limits);
        assert_eq!(of(Arithmetic::F32), "4.00 GB/s (50 % of the limit), 16.00 GFLOP/s");
        assert!(of(Arithmetic::Int8).ends_with("16.00 GOP/s (25 % of the limit)"));
    }

    #[test]
    fn without_samples_there_is_no_median() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
    }
}
