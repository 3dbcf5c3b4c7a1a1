//! Benchmarks of a model: prompt and generated tokens per second of wall time and of CPU time.

pub(crate) mod parallel;

use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::KvPolicy;
use ruvllm_models::{Compute, LogitsRows};
use ruvllm_text::TokenId;

use crate::backend::sequence::BackendSession;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sampler::uniform;
use crate::session::Session;
use crate::setters::setters;

pub use self::parallel::{ParallelOptions, ParallelResult, Percentiles};

/// Tokens of the depth that are computed; later ones are copies.
const COMPUTED_DEPTH: usize = 4096;

/// Kind and size of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BenchTest {
    /// Prefill of this many tokens, in chunks of the batch size.
    Prefill(usize),
    /// Decode of this many tokens, one per pass, without sampling.
    Decode(usize),
    /// Greedy generation of this many tokens after one prompt token. A backend may compute the
    /// argmax on its device ([`BackendSession::greedy`](crate::BackendSession::greedy)).
    Greedy(usize),
}

impl BenchTest {
    /// Tokens computed by one run.
    pub fn tokens(self) -> usize {
        match self {
            Self::Prefill(tokens) | Self::Decode(tokens) | Self::Greedy(tokens) => tokens,
        }
    }
}

/// Names as in llama-bench: `pp512`, `tg64`; and `greedy64`.
impl fmt::Display for BenchTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill(tokens) => write!(f, "pp{tokens}"),
            Self::Decode(tokens) => write!(f, "tg{tokens}"),
            Self::Greedy(tokens) => write!(f, "greedy{tokens}"),
        }
    }
}

/// Tests to run, and their settings.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BenchOptions {
    /// The tests, in the order of the results.
    pub tests: Vec<BenchTest>,
    /// Prompt tokens per forward pass. Default 512.
    pub batch: usize,
    /// Tokens in the KV cache before each run. Beyond the first 4096 they are copies of earlier
    /// blocks in memory of their own: the speed does not depend on the values. Default 0.
    pub depth: usize,
    /// Thread counts, each measured with every test; empty = the engine's.
    pub threads: Vec<usize>,
    /// Measured runs of each test. Default 5.
    pub runs: usize,
    /// Reads the CPU time used by this process. The default returns `None`; results then have no
    /// values per CPU second.
    pub cpu_time: fn() -> Option<Duration>,
}

setters! {
    BenchOptions {
        set with_tests(tests: Vec<BenchTest>);
        set with_batch(batch: usize);
        set with_depth(depth: usize);
        set with_threads(threads: Vec<usize>);
        set with_runs(runs: usize);
        set with_cpu_time(cpu_time: fn() -> Option<Duration>);
    }
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            tests: vec![BenchTest::Prefill(512), BenchTest::Decode(128)],
            batch: 512,
            depth: 0,
            threads: Vec::new(),
            runs: 5,
            cpu_time: || None,
        }
    }
}

/// Median, minimum and maximum of several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Spread {
    /// The middle value; of an even number of runs, the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Spread {
    /// Spread of the values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Self { median, min, max })
    }
}

/// The result of one test with one number of threads.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct BenchResult {
    /// The test that was run.
    pub test: BenchTest,
    /// Number of compute threads.
    pub threads: usize,
    /// Prompt tokens per forward pass.
    pub batch: usize,
    /// Tokens in the KV cache before the run.
    pub depth: usize,
    /// KV-cache policy.
    pub kv: KvPolicy,
    /// Measured runs.
    pub runs: usize,
    /// Tokens per second of wall time.
    pub tokens_per_s: Spread,
    /// Tokens per second of CPU time of the process, times the threads: the rate on an otherwise
    /// idle machine. Absent if the CPU time could not be read.
    pub tokens_per_cpu_s: Option<Spread>,
}

/// One test with one thread count, and its measurements so far.
pub(crate) struct Measurement {
    pub(crate) test: BenchTest,
    compute: usize, // index into the list of thread counts
    per_s: Vec<f64>,
    per_cpu_s: Vec<f64>,
}

impl Engine {
    /// Measures the speed of the model.
    ///
    /// One warm-up step of every test with every thread count is not counted. Then come `runs`
    /// rounds, each with one run of everything, so that a slow phase of the machine affects all
    /// tests alike. The token ids are arbitrary but always the same. `progress` gets the number of
    /// finished runs and their total; `Break` ends the measurement.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero, [`Error::ContextTooLong`] if depth plus test exceed the
    /// model's context length, [`Error::Compute`] if threads cannot be started,
    /// [`Error::Cancelled`] after a `Break`; [`Error::Cache`] and [`Error::Forward`] from the runs.
    pub fn bench(
        &self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<BenchResult>> {
        let longest = check(options)?;
        let capacity = options.depth.saturating_add(longest);
        self.check_context("the benchmark", capacity)?;
        let computes = self.computes(&options.threads)?;
        let tokens = fixed_tokens(capacity, self.config().vocab_size);

        let mut session = Session::new(self, capacity)?;
        session.keep_all();
        let at_once = options.batch.max(self.core().prefill_chunk);
        let computed = options.depth.min(COMPUTED_DEPTH);
        for piece in tokens[..computed].chunks(at_once) {
            session.forward(piece, LogitsRows::None)?;
        }
        session.repeat_until(options.depth)?;
        for piece in tokens[session.len()..options.depth].chunks(at_once) {
            session.forward(piece, LogitsRows::None)?;
        }
        let snapshot = session.snapshot()?;
        let mut measurements: Vec<Measurement> = options
            .tests
            .iter()
            .flat_map(|&test| (0..computes.len()).map(move |compute| (test, compute)))
            .map(|(test, compute)| Measurement::new(test, compute))
            .collect();
        for measurement in &measurements {
            session.set_compute(&computes[measurement.compute]);
            let test = match measurement.test {
                BenchTest::Prefill(tokens) => BenchTest::Prefill(tokens.min(options.batch)),
                BenchTest::Decode(_) => BenchTest::Decode(1),
                BenchTest::Greedy(_) => BenchTest::Greedy(1),
            };
            run(&mut session, test, &tokens[options.depth..], options.batch)?;
            session.return_to(options.depth, snapshot.as_ref())?;
        }
        let total = options.runs * measurements.len();
        let mut done = 0;
        for _ in 0..options.runs {
            for measurement in &mut measurements {
                if progress(done, total).is_break() {
                    return Err(Error::Cancelled);
                }
                let compute = &computes[measurement.compute];
                session.set_compute(compute);
                let before = ((options.cpu_time)(), Instant::now());
                run(&mut session, measurement.test, &tokens[options.depth..], options.batch)?;
                let after = ((options.cpu_time)(), Instant::now());
                session.return_to(options.depth, snapshot.as_ref())?;
                measurement.record(before, after, compute.pool.threads());
                done += 1;
            }
        }
        // The measurement is complete: a `Break` changes nothing.
        let _ = progress(done, total);
        Ok(measurements
            .into_iter()
            .filter_map(|measurement| {
                let threads = computes[measurement.compute].pool.threads();
                measurement.result(options, threads, *self.kv_policy())
            })
            .collect())
    }

    /// Compute settings with a thread pool of each size.
    fn computes(&self, threads: &[usize]) -> Result<Vec<Compute>> {
        let own = [self.threads()];
        let threads = if threads.is_empty() { &own } else { threads };
        let compute = |&threads: &usize| {
            let pool = ThreadPool::new(threads).map_err(Error::Compute)?;
            let Compute { kernels, row_kernels, .. } = &self.core().compute;
            Ok(Compute { row_kernels: row_kernels.clone(), ..Compute::with(*kernels, pool) })
        };
        threads.iter().map(compute).collect()
    }
}

impl Measurement {
    /// An empty measurement. `compute`: index into the list of thread counts.
    pub(crate) fn new(test: BenchTest, compute: usize) -> Self {
        Self { test, compute, per_s: Vec::new(), per_cpu_s: Vec::new() }
    }

    /// Adds a run without CPU time.
    pub(crate) fn record_seconds(&mut self, wall: f64) {
        self.per_s.push(self.test.tokens() as f64 / wall.max(1e-9));
    }

    fn record(
        &mut self,
        before: (Option<Duration>, Instant),
        after: (Option<Duration>, Instant),
        threads: usize,
    ) {
        let tokens = self.test.tokens() as f64;
        self.record_seconds((after.1 - before.1).as_secs_f64());
        let cpu = before.0.zip(after.0).and_then(|(before, after)| after.checked_sub(before));
        // A clock too coarse for the run reads 0: not measured.
        if let Some(cpu) = cpu.filter(|cpu| !cpu.is_zero()) {
            self.per_cpu_s.push(tokens / cpu.as_secs_f64() * threads as f64);
        }
    }

    pub(crate) fn result(self, options: &BenchOptions, threads: usize, kv: KvPolicy) -> Option<BenchResult> {
        let complete = self.per_cpu_s.len() == self.per_s.len();
        Some(BenchResult {
            test: self.test,
            threads,
            batch: options.batch,
            depth: options.depth,
            kv,
            runs: self.per_s.len(),
            tokens_per_s: Spread::of(self.per_s)?,
            tokens_per_cpu_s: if complete { Spread::of(self.per_cpu_s) } else { None },
        })
    }
}

/// Checks the options and returns the tokens of the longest test.
pub(crate) fn check(options: &BenchOptions) -> Result<usize> {
    let zero = |name| Err(Error::InvalidOption { name, value: 0, expected: "at least 1" });
    if options.runs == 0 {
        return zero("runs");
    }
    if options.batch == 0 {
        return zero("batch");
    }
    if options.threads.contains(&0) {
        return zero("threads");
    }
    if options.tests.iter().any(|test| test.tokens() == 0) {
        return zero("tokens of a test");
    }
    match options.tests.iter().map(|test| test.tokens()).max() {
        Some(longest) => Ok(longest),
        None => zero("tests"),
    }
}

/// One run behind the present tokens of the session.
fn run(session: &mut Session<'_>, test: BenchTest, tokens: &[TokenId], batch: usize) -> Result<()> {
    let tokens = &tokens[..test.tokens()];
    match test {
        BenchTest::Prefill(_) => {
            session.prefill(tokens, batch, &mut || ControlFlow::Continue(()))?;
        }
        BenchTest::Decode(_) => {
            for token in tokens {
                session.forward(std::slice::from_ref(token), LogitsRows::Last)?;
            }
        }
        BenchTest::Greedy(n) => session.greedy(&tokens[..1], n, &mut |_| ControlFlow::Continue(()))?,
    }
    Ok(())
}

/// Pseudorandom ids, the same in every run.
pub(crate) fn fixed_tokens(n: usize, vocab_size: usize) -> Vec<TokenId> {
    (0..n as u64).map(|index| (uniform(0, index) * vocab_size as f64) as TokenId).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_median_and_extremes() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn tests_have_their_usual_names() {
        assert_eq!(BenchTest::Prefill(512).to_string(), "pp512");
        assert_eq!(BenchTest::Decode(64).to_string(), "tg64");
        assert_eq!(BenchTest::Greedy(64).to_string(), "greedy64");
    }

    #[test]
    fn zeros_are_refused_by_name() {
        let name = |options: BenchOptions| match check(&options) {
            Err(Error::InvalidOption { name, .. }) => name,
            other => panic!("expected an option error, found {other:?}"),
        };
        assert_eq!(name(BenchOptions { runs: 0, ..Default::default() }), "runs");
        assert_eq!(name(BenchOptions { batch: 0, ..Default::default() }), "batch");
        assert_eq!(name(BenchOptions { threads: vec![2, 0], ..Default::default() }), "threads");
        assert_eq!(name(BenchOptions { tests: vec![], ..Default::default() }), "tests");
        assert_eq!(
            name(BenchOptions { tests: vec![BenchTest::Decode(0)], ..Default::default() }),
            "tokens of a test"
        );
        assert_eq!(check(&BenchOptions::default()).ok(), Some(512));
    }

    #[test]
    fn cpu_time_is_absent_unless_every_run_has_it() {
        let start = Instant::now();
        let end = start + Duration::from_secs(2);
        let seconds = |n| Some(Duration::from_secs(n));
        let mut measurement = Measurement::new(BenchTest::Prefill(8), 0);
        measurement.record((seconds(1), start), (seconds(5), end), 2);
        assert_eq!((measurement.per_s.clone(), measurement.per_cpu_s.clone()), (vec![4.0], vec![4.0]));
        measurement.record((seconds(1), start), (None, end), 2);
        let result = measurement.result(&BenchOptions::default(), 2, KvPolicy::tiered()).expect("two runs");
        assert_eq!(result.tokens_per_cpu_s, None);
        assert_eq!(result.runs, 2);
    }

    #[test]
    fn token_ids_are_in_the_vocabulary_and_repeat() {
        let tokens = fixed_tokens(500, 7);
        assert!(tokens.iter().all(|&token| token < 7));
        assert_eq!(tokens, fixed_tokens(500, 7));
        assert!((0..7).all(|id| tokens.contains(&id)));
    }
}
