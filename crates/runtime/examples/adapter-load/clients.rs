//! Clients that send requests one after another, and a thread that replaces adapters.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ruvllm::crates::adapters::Registry;
use ruvllm::{
    Completion, Engine, FactorFormat, GenerateRequest, Precision, Prompt, SamplingParams, Tenant, Tier,
};
use ruvllm_testkit::Random;

use crate::args::Args;
use crate::files::Files;
use crate::{Failure, name};

/// One output of so many is kept for the comparison.
const SAMPLED: u64 = 50;

/// Requests that were served.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Served {
    pub(crate) unnamed: u64,
    pub(crate) hot: u64,
    pub(crate) warm: u64,
    pub(crate) cold: u64,
    pub(crate) i8: u64,
}

impl Served {
    fn count(&mut self, completion: &Completion) {
        let Some(adapter) = completion.adapters.first() else {
            self.unnamed += 1;
            return;
        };
        match adapter.found {
            Some(Tier::Hot) => self.hot += 1,
            Some(Tier::Warm) => self.warm += 1,
            _ => self.cold += 1,
        }
        self.i8 += u64::from(adapter.format == FactorFormat::I8);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.unnamed += other.unnamed;
        self.hot += other.hot;
        self.warm += other.warm;
        self.cold += other.cold;
        self.i8 += other.i8;
    }

    pub(crate) fn named(&self) -> u64 {
        self.hot + self.warm + self.cold
    }
}

/// An output and what it was computed from.
struct Sample {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    version: u64,
    format: FactorFormat,
}

/// State of all rounds.
pub(crate) struct Clients<'a> {
    engine: &'a Engine,
    files: &'a Files,
    args: &'a Args,
    /// Cumulated weights of the names.
    weights: Vec<f64>,
    /// File of each version.
    versions: Mutex<HashMap<u64, usize>>,
    samples: Mutex<Vec<Sample>>,
    requests: AtomicU64,
    replaced: AtomicU64,
}

impl<'a> Clients<'a> {
    pub(crate) fn new(engine: &'a Engine, files: &'a Files, args: &'a Args) -> Self {
        let mut sum = 0.0;
        let weights = (1..=args.adapters).map(|rank| {
            sum += (rank as f64).powf(-args.exponent);
            sum
        });
        let registered = engine.adapter_registry().list(&Tenant::root()).into_iter();
        let file = |path: &std::path::Path| (0..files.len()).find(|&file| files.path(file) == path);
        let versions =
            registered.filter_map(|adapter| Some((adapter.version.number(), file(adapter.version.path())?)));
        Self {
            engine,
            files,
            args,
            weights: weights.collect(),
            versions: Mutex::new(versions.collect()),
            samples: Mutex::default(),
            requests: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
        }
    }

    fn registry(&self) -> &'a Registry {
        self.engine.adapter_registry()
    }

    /// Adapters that were replaced.
    pub(crate) fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Keeps so many requests in flight for a time; seconds until the last was served, and what
    /// was.
    pub(crate) fn run(&self, time: Duration, is_named: bool) -> Result<(f64, Served), Failure> {
        let (started, has_ended) = (Instant::now(), AtomicBool::new(false));
        let served = std::thread::scope(|scope| {
            let send = || self.client(started + time, is_named);
            let clients: Vec<_> = (0..self.args.in_flight).map(|_| scope.spawn(send)).collect();
            let replaces = is_named && self.args.replace_per_second > 0.0;
            let replacer = replaces.then(|| scope.spawn(|| self.replace(&has_ended)));
            let mut all = Ok(Served::default());
            for client in clients {
                let served = client.join().unwrap_or_else(|_| Err("a client panicked".into()));
                all = all.and_then(|mut all: Served| {
                    all.add(served?);
                    Ok(all)
                });
            }
            has_ended.store(true, Ordering::Relaxed);
            let replaced = replacer.map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into())));
            replaced.transpose().and(all)
        })?;
        Ok((started.elapsed().as_secs_f64(), served))
    }

    fn client(&self, until: Instant, is_named: bool) -> Result<Served, Failure> {
        let mut served = Served::default();
        while Instant::now() < until {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            let mut random = Random::new(number);
            let prompt = self.prompt(&mut random);
            let mut request = self.request(&prompt);
            if is_named {
                request = request.with_named_adapter(name(self.draw(&mut random)), 1.0);
            }
            let completion = self.engine.generate(request)?;
            served.count(&completion);
            if let Some(adapter) = completion.adapters.first()
                && number.is_multiple_of(SAMPLED)
            {
                let (version, format) = (adapter.version, adapter.format);
                let sample = Sample { prompt, tokens: completion.tokens, version, format };
                lock(&self.samples).push(sample);
            }
        }
        Ok(served)
    }

    fn prompt(&self, random: &mut Random) -> Vec<u32> {
        let ids = self.engine.config().vocab_size / 2;
        (0..self.args.prompt).map(|_| (16 + random.below(ids - 16)) as u32).collect()
    }

    fn request(&self, prompt: &[u32]) -> GenerateRequest {
        GenerateRequest::new(Prompt::Tokens(prompt.to_vec()))
            .with_max_tokens(self.args.new)
            .with_sampling(SamplingParams::greedy())
            .with_ignore_eos(true)
    }

    /// Index of a name by the Zipf law.
    fn draw(&self, random: &mut Random) -> usize {
        let sum = self.weights.last().copied().unwrap_or(1.0);
        let at = random.below(1 << 30) as f64 / f64::from(1 << 30) * sum;
        self.weights.partition_point(|&weight| weight <= at).min(self.weights.len() - 1)
    }

    /// Replaces random adapters by other files.
    fn replace(&self, has_ended: &AtomicBool) -> Result<(), Failure> {
        let pause = Duration::from_secs_f64(1.0 / self.args.replace_per_second);
        let mut next = Instant::now();
        while !has_ended.load(Ordering::Relaxed) {
            next += pause;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let count = self.replaced.fetch_add(1, Ordering::Relaxed);
            let mut random = Random::new(!count);
            let (index, file) = (random.below(self.args.adapters), random.below(self.files.len()));
            let path = self.files.path(file);
            let root = Tenant::root();
            let version = self.registry().replace(&root, &name(index), path, self.args.precision)?;
            lock(&self.versions).insert(version.number(), file);
        }
        Ok(())
    }

    /// Computes the samples again, alone; returns their number.
    pub(crate) fn check(&self) -> Result<usize, Failure> {
        let (samples, versions) = (lock(&self.samples), lock(&self.versions));
        for Sample { prompt, tokens, version, format } in samples.iter() {
            let file = versions.get(version).ok_or("an unknown version served")?;
            let precision = if *format == FactorFormat::F16 { Precision::F16 } else { Precision::I8 };
            let alone = format!("alone-{file}-{format:?}");
            if self.registry().resolve(&Tenant::root(), &alone).is_err() {
                let path = self.files.path(*file);
                self.registry().register(&Tenant::root(), &alone, path, precision)?;
            }
            let again = self.engine.generate(self.request(prompt).with_named_adapter(alone, 1.0))?;
            if again.tokens != *tokens {
                return Err(format!("version {version} gave another output alone").into());
            }
        }
        Ok(samples.len())
    }
}

/// Locks; a client that panicked ends the run anyway.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
