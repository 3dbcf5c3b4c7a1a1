//! Medians of device times.

use std::fmt;
use std::time::{Duration, Instant};

use ruvllm_gpu::{Dispatch, Gpu, Result};

/// Samples per figure.
const SAMPLES: usize = 11;

/// Median and range of a figure.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    /// Median.
    pub(crate) median: f64,
    /// Smallest sample.
    pub(crate) low: f64,
    /// Largest sample.
    pub(crate) high: f64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ({:.0} to {:.0})", self.median, self.low, self.high)
    }
}

impl Figure {
    /// The figure of `f` applied to each sample.
    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.low), f(self.high));
        Self { median: f(self.median), low: a.min(b), high: a.max(b) }
    }
}

/// Length of a timed pass: long enough for clocks of a busy GPU.
const PASS_SECONDS: f64 = 3e-3;
/// Warm-up time before a series of figures, until clocks have risen.
const HEAT: Duration = Duration::from_millis(1000);
/// Passes before the first sample.
const WARM_UP: usize = 8;

/// Seconds per dispatch when `dispatches` are repeated in turn.
pub(crate) fn seconds_each(gpu: &Gpu, dispatches: &[&Dispatch], quick: bool) -> Result<Figure> {
    seconds_of(gpu, dispatches, if quick { (1, 3) } else { (WARM_UP, SAMPLES) }, quick)
}

/// Median seconds per dispatch with explicit numbers of warm-up and sample passes.
pub(crate) fn seconds_of(
    gpu: &Gpu,
    dispatches: &[&Dispatch],
    (warm_up, samples): (usize, usize),
    quick: bool,
) -> Result<Figure> {
    gpu.time(dispatches)?;
    let once = gpu.time(dispatches)?;
    let rounds = if quick { 1 } else { (PASS_SECONDS / once).ceil().clamp(1.0, 1000.0) as usize };
    let list = dispatches.repeat(rounds);
    for _ in 0..warm_up {
        gpu.time(&list)?;
    }
    let sample = || gpu.time(&list).map(|seconds| seconds / list.len() as f64);
    let mut times = (0..samples).map(|_| sample()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(Figure { median: times[samples / 2], low: times[0], high: times[samples - 1] })
}

/// Keeps the device busy until its clocks have risen: an idle GPU runs at a fifth of its speed.
pub(crate) fn heat(gpu: &Gpu, dispatches: &[&Dispatch], quick: bool) -> Result<()> {
    let once = gpu.time(dispatches)?;
    let list =
        dispatches.repeat(if quick { 1 } else { (PASS_SECONDS / once).ceil().clamp(1.0, 1000.0) as usize });
    let start = Instant::now();
    while !quick && start.elapsed() < HEAT {
        gpu.time(&list)?;
    }
    Ok(())
}

/// Read bandwidth in GB/s of memory larger than all caches.
pub(crate) fn read_bandwidth(gpu: &Gpu, quick: bool) -> Result<Figure> {
    let wanted: u64 = if quick { 32 << 20 } else { 1 << 30 };
    let bytes = wanted.min(gpu.info().max_binding) >> 14 << 14;
    let buffer = gpu.zeroed(bytes)?;
    // Random data: constant data can read faster.
    let noise: Vec<u64> = (0..1_u64 << 20).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    gpu.fill(&buffer, &noise)?;
    let probe = gpu.read_probe(&buffer)?;
    heat(gpu, &[&probe], quick)?;
    let seconds = seconds_each(gpu, &[&probe], quick)?;
    Ok(seconds.map(|s| bytes as f64 / s / 1e9))
}
