//! Comparison of a change with the settings before it.

use super::change::Cause;
use super::moves::Move;
use super::settings::{StepSettings, TunerSettings};
use super::step::StepEnd;

/// Differences of quality that are taken for noise.
const QUALITY_NOISE: f64 = 0.05;

/// Value and time of some steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Block {
    steps: usize,
    value: f64,
    seconds: f64,
    quality: f64,
    qualities: usize,
    pressure: f64,
}

impl Block {
    /// Adds a step; a prefill token is worth `prefill_value` emitted ones.
    fn add(&mut self, step: &StepEnd, prefill_value: f64, settings: &TunerSettings) {
        let latency = step.token_latency().unwrap_or(0.0);
        let target = settings.token_latency.as_secs_f64();
        let on_time = if latency > target { target / latency } else { 1.0 };
        self.value += step.emitted_tokens as f64 * on_time;
        self.value += step.prefill_tokens as f64 * prefill_value;
        self.seconds += step.duration.as_secs_f64();
        self.pressure += step.kv_pressure;
        if let Some(quality) = step.quality {
            (self.quality, self.qualities) = (self.quality + quality, self.qualities + 1);
        }
        self.steps += 1;
    }

    /// Value per second, without regard to quality; absent for blocks without value.
    fn rate(&self) -> Option<f64> {
        (self.value > 0.0 && self.seconds > 0.0).then(|| self.value / self.seconds)
    }
}

/// Quarters of a window.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    quarters: Vec<Block>,
    current: Block,
}

impl Window {
    /// Adds a step; true once the window is complete.
    pub(super) fn add(&mut self, step: &StepEnd, prefill_value: f64, settings: &TunerSettings) -> bool {
        self.current.add(step, prefill_value, settings);
        if self.current.steps >= quarter(settings) {
            self.quarters.push(std::mem::take(&mut self.current));
        }
        self.quarters.len() >= 4
    }

    /// Mean quality, where at least three steps told one.
    fn quality(&self) -> Option<f64> {
        let count: usize = self.quarters.iter().map(|block| block.qualities).sum();
        let sum: f64 = self.quarters.iter().map(|block| block.quality).sum();
        (count >= 3).then(|| sum / count as f64)
    }

    fn pressure(&self) -> f64 {
        let steps: usize = self.quarters.iter().map(|block| block.steps).sum();
        self.quarters.iter().map(|block| block.pressure).sum::<f64>() / steps.max(1) as f64
    }

    /// Mean logarithm of the rate and its standard error.
    fn rate(&self) -> Option<(f64, f64)> {
        let rates: Vec<f64> = self.quarters.iter().filter_map(|block| Some(block.rate()?.ln())).collect();
        (rates.len() >= 2).then(|| mean_and_error(&rates))
    }
}

/// Steps in a quarter of a window.
fn quarter(settings: &TunerSettings) -> usize {
    (settings.window / 4).max(2)
}

/// Factor on the value of answers of a quality.
pub(super) fn quality_factor(quality: f64, settings: &TunerSettings) -> f64 {
    let shortfall = (settings.quality_target - quality).max(0.0) / settings.quality_target.max(1e-9);
    (1.0 - settings.quality_penalty * shortfall).max(0.01)
}

/// Arrangement of a trial's steps.
#[derive(Debug, Clone)]
enum Design {
    /// Blocks of the old and the new settings in the order ABBA, in which a steady trend cancels.
    Alternating { blocks: Vec<Block> },
    /// A window of the old settings, then one of the new ones after a time to take effect.
    BeforeAfter { before: Window, after: Window },
}

/// A change under comparison.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) cause: Cause,
    pub(super) change: Move,
    pub(super) old: StepSettings,
    pub(super) new: StepSettings,
    design: Design,
    current: Block,
    /// Value of a prefill token, the same for all steps compared.
    prefill_value: f64,
    /// Steps to leave out before the next one counts.
    skip: usize,
}

/// Result of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Verdict {
    /// Logarithm of the objective with the change over that without.
    pub(super) gain: f64,
    pub(super) is_kept: bool,
}

impl Trial {
    pub(super) fn new(
        cause: Cause,
        change: Move,
        (old, new): (StepSettings, StepSettings),
        (before, prefill_value): (Window, f64),
        settings: &TunerSettings,
    ) -> Self {
        let design = if change.is_immediate() {
            Design::Alternating { blocks: Vec::new() }
        } else {
            Design::BeforeAfter { before, after: Window::default() }
        };
        let skip = if change.is_immediate() { 0 } else { settings.window / 2 };
        Self { cause, change, old, new, design, current: Block::default(), prefill_value, skip }
    }

    /// Settings of the next step.
    pub(super) fn settings(&self) -> StepSettings {
        match &self.design {
            Design::Alternating { blocks } if matches!(blocks.len() % 4, 0 | 3) => self.old,
            _ => self.new,
        }
    }

    /// Adds a step; the verdict once it is known.
    pub(super) fn add(&mut self, step: &StepEnd, settings: &TunerSettings) -> Option<Verdict> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        match &mut self.design {
            Design::Alternating { blocks } => {
                self.current.add(step, self.prefill_value, settings);
                if self.current.steps < quarter(settings) {
                    return None;
                }
                blocks.push(std::mem::take(&mut self.current));
                let gains = gains(blocks);
                let (mean, error) = mean_and_error(&gains);
                let is_over = blocks.len() >= 2 * settings.pairs;
                // A loss beyond doubt ends the trial early.
                let is_lost = gains.len() >= 2 && mean + 2.0 * error < -settings.min_gain;
                let is_kept = is_over && mean - error > settings.min_gain;
                (is_over || is_lost).then_some(Verdict { gain: mean, is_kept })
            }
            Design::BeforeAfter { before, after } => {
                let is_over = after.add(step, self.prefill_value, settings);
                is_over.then(|| compare(self.cause, before, after, settings))
            }
        }
    }
}

/// Logarithms of new over old, pair by pair.
fn gains(blocks: &[Block]) -> Vec<f64> {
    let pairs = blocks.chunks_exact(2).enumerate();
    let gains = pairs.filter_map(|(pair, blocks)| {
        let gain = (blocks[1].rate()? / blocks[0].rate()?).ln();
        Some(if pair % 2 == 0 { gain } else { -gain })
    });
    gains.collect()
}

fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / ((n - 1.0).max(1.0) * n.max(1.0))).sqrt())
}

fn compare(cause: Cause, before: &Window, after: &Window, settings: &TunerSettings) -> Verdict {
    let (mut gain, error) = match (before.rate(), after.rate()) {
        (Some((before, e)), Some((after, f))) => (after - before, (e * e + f * f).sqrt()),
        _ => (0.0, 0.0),
    };
    // Quality counts only where both windows tell it.
    if let (Some(before), Some(after)) = (before.quality(), after.quality()) {
        gain += (quality_factor(after, settings) / quality_factor(before, settings)).ln();
    }
    let is_kept = match cause {
        // Memory that was released is kept unless that did not help and has a price.
        Cause::Pressure { .. } => after.pressure() < before.pressure() || gain + error > -settings.min_gain,
        // Quality below its target is worth any price but a further loss of quality.
        Cause::Quality { quality } => after.quality().is_none_or(|after| after > quality - QUALITY_NOISE),
        Cause::Throughput | Cause::Shift => gain - 2.0 * error > settings.min_gain,
    };
    Verdict { gain, is_kept }
}
