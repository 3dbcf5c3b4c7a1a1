//! Self-test: every kernel on random shapes against float64, on the current device.
//!
//! Errors are relative to the operation's documented bound: at most 1 passes. Bit properties (equal
//! from run to run, independent of the batch) give 0 or infinity. Outputs are filled with NaN
//! before each launch.

mod attention;
mod experts;
mod kv;
mod latent;
mod low_rank;
mod products;
mod rows;
mod states;
mod streams;

use std::fmt;

use crate::dispatch::Dispatch;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::reference::Random;
use crate::repack::Format;

const EPSILON: f64 = f32::EPSILON as f64;

/// Worst case of one property over all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Operation and property.
    pub name: String,
    /// Error relative to the documented bound.
    pub worst: f64,
    /// Shape of the worst case.
    pub shape: String,
    /// Number of shapes.
    pub rounds: usize,
}

impl Check {
    /// True when the bound holds.
    pub fn passed(&self) -> bool {
        self.worst <= 1.0
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed() { "ok" } else { "FAILED" };
        let Self { name, worst, shape, rounds } = self;
        write!(f, "{verdict:6} {name:32} {worst:9.2e} of the bound, {rounds} shapes, worst at {shape}")
    }
}

/// Kernels that are checked together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Products of matrices and rows of matrices.
    Products,
    /// Operations on rows.
    Rows,
    /// Attention, and writes of keys and values.
    Attention,
    /// Latent attention.
    Latent,
    /// Mixtures of experts.
    Experts,
    /// Low-rank updates.
    LowRank,
    /// Layers with a state.
    States,
    /// Several residual streams.
    Streams,
}

impl Part {
    /// All parts, in the order of [`run`].
    pub const ALL: [Self; 8] = [
        Self::Products,
        Self::Rows,
        Self::Attention,
        Self::Latent,
        Self::Experts,
        Self::LowRank,
        Self::States,
        Self::Streams,
    ];

    /// Percentage of [`shapes`] that are of this part.
    const fn percentage(self) -> usize {
        match self {
            Self::Products | Self::Rows | Self::Attention | Self::Experts => 15,
            Self::Latent | Self::LowRank | Self::States | Self::Streams => 10,
        }
    }

    /// Checks every operation of the part at least once.
    fn check(self, gpu: &Gpu, random: &mut Random, report: &mut Report) -> Result<()> {
        match self {
            Self::Products => products::check(gpu, random, report),
            Self::Rows => rows::check(gpu, random, report),
            Self::Attention => attention::check(gpu, random, report),
            Self::Latent => latent::check(gpu, random, report),
            Self::Experts => experts::check(gpu, random, report),
            Self::LowRank => low_rank::check(gpu, random, report),
            Self::States => states::check(gpu, random, report),
            Self::Streams => streams::check(gpu, random, report),
        }
    }
}

/// Results on many small shapes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ShapeChecks {
    /// Worst case of each property.
    pub checks: Vec<Check>,
    /// Number of shapes.
    pub shapes: usize,
}

/// Results by name, in the order of their first appearance.
#[derive(Debug, Default)]
struct Report {
    checks: Vec<Check>,
    /// Operations with a shape of their own.
    shapes: usize,
}

impl Report {
    /// Counts a shape.
    fn begin_shape(&mut self) {
        self.shapes += 1;
    }

    fn add(&mut self, name: String, shape: &str, error: f64) {
        let error = if error.is_nan() { f64::INFINITY } else { error };
        let Some(check) = self.checks.iter_mut().find(|c| c.name == name) else {
            self.checks.push(Check { name, worst: error, shape: shape.to_owned(), rounds: 1 });
            return;
        };
        check.rounds += 1;
        if error > check.worst {
            (check.worst, check.shape) = (error, shape.to_owned());
        }
    }

    /// 0 or infinity.
    fn add_equal(&mut self, name: String, shape: &str, equal: bool) {
        self.add(name, shape, if equal { 0.0 } else { f64::INFINITY });
    }
}

/// Runs all checks `rounds` times on shapes and values generated from `seed`.
///
/// # Errors
/// Errors of the device; a wrong result is a [`Check`] that did not pass.
pub fn run(gpu: &Gpu, seed: u64, rounds: usize) -> Result<Vec<Check>> {
    let mut report = Report::default();
    for round in 0..rounds as u64 {
        let mut random = Random::new(mixed(seed, round));
        for part in Part::ALL {
            part.check(gpu, &mut random, &mut report)?;
        }
    }
    Ok(report.checks)
}

/// Runs the checks of one part as [`run`] does.
///
/// # Errors
/// As [`run`].
pub fn part(gpu: &Gpu, part: Part, seed: u64, rounds: usize) -> Result<Vec<Check>> {
    let mut report = Report::default();
    for round in 0..rounds as u64 {
        part.check(gpu, &mut Random::new(mixed(seed, round)), &mut report)?;
    }
    Ok(report.checks)
}

/// Runs the checks of [`run`] on `count` small shapes or a few more, generated from `seed`: a share
/// for each part, whole rounds of it. `only`: the share of one part.
///
/// Small shapes have the same tails, offsets and formats as large ones, and cost little on software
/// adapters.
///
/// # Errors
/// Errors of the device; a wrong result is a [`Check`] that did not pass.
pub fn shapes(gpu: &Gpu, seed: u64, count: usize, only: Option<Part>) -> Result<ShapeChecks> {
    let mut all = ShapeChecks::default();
    for part in Part::ALL.into_iter().filter(|part| only.is_none_or(|only| only == *part)) {
        let (share, mut report) = ((count * part.percentage()).div_ceil(100), Report::default());
        for round in 0.. {
            if report.shapes >= share {
                break;
            }
            part.check(gpu, &mut Random::small(mixed(seed, round)), &mut report)?;
        }
        all.shapes += report.shapes;
        all.checks.extend(report.checks);
    }
    Ok(all)
}

/// Seed of a round.
fn mixed(seed: u64, round: u64) -> u64 {
    seed.wrapping_mul(1_000_003).wrapping_add(round)
}

/// Runs the checks of one product with the given shape, for a batch of 2 to 8.
///
/// # Errors
/// Errors of the device and of [`Matrix::product`](crate::Matrix::product).
pub fn product(gpu: &Gpu, format: Format, rows: u32, cols: u32, batch: u32) -> Result<Vec<Check>> {
    let mut report = Report::default();
    let shape = products::Shape { format, rows, cols, batch };
    products::product(gpu, &mut Random::new(rows.into()), &mut report, shape)?;
    Ok(report.checks)
}

/// Random quant blocks for `values` values (whole blocks) of magnitude about 0.05.
pub fn random_weights(format: Format, values: usize, seed: u64) -> Vec<u8> {
    Random::new(seed).weights(format, values)
}

/// Allocates a buffer for `n` values of 4 bytes, filled with NaN.
fn poisoned(gpu: &Gpu, n: usize) -> Result<Buffer> {
    gpu.upload(&vec![f32::NAN; n])
}

fn output(gpu: &Gpu, dispatches: &[&Dispatch], buffer: &Buffer) -> Result<Vec<f32>> {
    gpu.run(dispatches)?;
    gpu.download(buffer)
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Largest `|found - exact| / bound`; bounds of 0 admit no error.
fn worst(found: &[f32], exact: &[f64], bound: impl Fn(usize) -> f64) -> f64 {
    let share = |i: usize| {
        let error = (f64::from(found[i]) - exact[i]).abs();
        if error == 0.0 { 0.0 } else { error / bound(i) }
    };
    (0..exact.len()).map(share).fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
}
