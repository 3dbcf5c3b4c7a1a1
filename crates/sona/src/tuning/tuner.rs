//! Tuner of the step loop: triggers, trials, rollback.

use super::change::{Cause, Change, Outcome};
use super::moves::Move;
use super::settings::{StepSettings, TunerSettings};
use super::statistics::{LogHistogram, MovingAverage};
use super::step::{StepEnd, StepStart};
use super::trial::{Trial, Verdict, Window};
use crate::error::Result;

/// Weight of one step in averages.
const RATE: f64 = 0.05;
/// Weight of one step in averages that tell one load from another.
const LOAD_RATE: f64 = 0.02;
/// Weight of one step in the pressure that triggers a release of memory.
const PRESSURE_RATE: f64 = 0.5;
/// Weight of one answer in the quality.
const QUALITY_RATE: f64 = 0.1;
/// Ratio of a load to that of the last reset beyond which it counts as another.
const SHIFT: f64 = 1.6;
/// Failures after which the rest of a move does not grow.
const MAX_FAILURES: u32 = 6;

/// Rest of a move after failures.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    until: u64,
    failures: u32,
}

/// Load that decides which settings are good.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    demand: MovingAverage,
    acceptance: MovingAverage,
    context: MovingAverage,
}

/// Probability that a drafted token is accepted after those before it, from the accepted share of
/// drafts of a length.
fn acceptance(share: f64, length: usize) -> f64 {
    // The share, (p + p^2 + ... + p^length) / length, rises with p: bisection.
    let share_at = |p: f64| {
        let terms = (0..length.min(64)).scan(1.0, |power, _| {
            *power *= p;
            Some(*power)
        });
        terms.sum::<f64>() / length.max(1) as f64
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..10 {
        let middle = 0.5 * (low + high);
        if share_at(middle) < share { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Moving averages from which the price of a prefill token follows.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    seconds: MovingAverage,
    prefill: MovingAverage,
    emitted: MovingAverage,
    product: MovingAverage,
    square: MovingAverage,
}

impl Costs {
    fn add(&mut self, step: &StepEnd) {
        let (seconds, prefill) = (step.duration.as_secs_f64(), step.prefill_tokens as f64);
        self.seconds.add(seconds, LOAD_RATE);
        self.prefill.add(prefill, LOAD_RATE);
        self.emitted.add(step.emitted_tokens as f64, LOAD_RATE);
        self.product.add(seconds * prefill, LOAD_RATE);
        self.square.add(prefill * prefill, LOAD_RATE);
    }

    /// Seconds of a prefill token over those of an emitted one, from the slope of durations over
    /// prefill tokens: with this value, steps with and without prefill earn the same per second,
    /// and a trial does not take their mixture for a gain. `default` where the slope is not known.
    fn prefill_value(&self, default: f64) -> f64 {
        let mean = |average: &MovingAverage| average.mean().unwrap_or(0.0);
        let [seconds, prefill, emitted] = [&self.seconds, &self.prefill, &self.emitted].map(mean);
        let variance = mean(&self.square) - prefill * prefill;
        if variance < 1.0 || emitted <= 0.0 {
            return default;
        }
        let slope = (mean(&self.product) - seconds * prefill) / variance;
        let per_emitted = (seconds - slope * prefill) / emitted;
        let value = slope / per_emitted;
        if slope > 0.0 && per_emitted > 0.0 { value.min(1.0) } else { default }
    }
}

/// Moves settings of a step loop by measurements.
///
/// Three triggers: KV pressure above its limit releases memory at once; quality below its target
/// makes more tokens hot; else moves are tried for throughput, one at a time. Every change is
/// compared with what was before and taken back if the objective - valuable tokens per second - got
/// worse.
#[derive(Debug, Clone)]
pub struct Tuner {
    settings: TunerSettings,
    current: StepSettings,
    trial: Option<Trial>,
    window: Window,
    windows: u64,
    steps: u64,
    /// Window from which trials may begin.
    ready: u64,
    /// Step from which pressure may trigger again.
    released: u64,
    rests: [Rest; Move::ALL.len()],
    /// Move to try first.
    next: usize,
    pressure: MovingAverage,
    quality: MovingAverage,
    running: MovingAverage,
    waiting: MovingAverage,
    prefill: MovingAverage,
    costs: Costs,
    load: Load,
    reference: Option<[f64; 3]>,
    latency: LogHistogram,
}

impl Tuner {
    /// Makes a tuner that begins with the settings `start`.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) names a setting out of range.
    pub fn new(settings: TunerSettings, start: StepSettings) -> Result<Self> {
        settings.check(&start)?;
        Ok(Self {
            settings,
            current: start,
            trial: None,
            window: Window::default(),
            windows: 0,
            steps: 0,
            ready: 1,
            released: 0,
            rests: Default::default(),
            next: 0,
            pressure: MovingAverage::default(),
            quality: MovingAverage::default(),
            running: MovingAverage::default(),
            waiting: MovingAverage::default(),
            prefill: MovingAverage::default(),
            costs: Costs::default(),
            load: Load::default(),
            reference: None,
            latency: LogHistogram::new(1e-5, 10_000),
        })
    }

    /// Settings in force, outside the alternating blocks of a trial.
    pub fn current(&self) -> StepSettings {
        self.current
    }

    /// Inter-token latency, in seconds, that a `share` of the latest steps does not exceed.
    pub fn latency_percentile(&self, share: f64) -> Option<f64> {
        self.latency.percentile(share)
    }

    /// Settings of the step that begins.
    pub fn before(&mut self, start: &StepStart) -> StepSettings {
        self.running.add(start.running as f64, RATE);
        self.waiting.add(start.waiting as f64, RATE);
        self.load.demand.add((start.running + start.waiting) as f64, LOAD_RATE);
        self.trial.as_ref().map_or(self.current, Trial::settings)
    }

    /// Learns from a step; decisions that it led to, none for most steps.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) for a measurement out of range. The step is ignored.
    pub fn after(&mut self, step: &StepEnd) -> Result<Vec<Change>> {
        step.check()?;
        self.steps += 1;
        self.measure(step);
        let mut changes = Vec::new();
        if self.release_memory(&mut changes) {
            return Ok(changes);
        }
        if let Some(trial) = &mut self.trial {
            if let Some(verdict) = trial.add(step, &self.settings) {
                self.conclude(verdict, &mut changes);
            }
            return Ok(changes);
        }
        let prefill_value = self.costs.prefill_value(self.settings.prefill_value);
        if self.window.add(step, prefill_value, &self.settings) {
            let window = std::mem::take(&mut self.window);
            self.windows += 1;
            self.note_shift(&mut changes);
            if self.windows >= self.ready {
                self.begin_trial(window, &mut changes);
            }
        }
        Ok(changes)
    }

    fn measure(&mut self, step: &StepEnd) {
        self.pressure.add(step.kv_pressure, PRESSURE_RATE);
        self.prefill.add(step.prefill_tokens as f64, RATE);
        self.costs.add(step);
        if let Some(latency) = step.token_latency() {
            self.latency.add(latency);
        }
        if step.drafted_tokens > 0 {
            let share = step.accepted_tokens as f64 / step.drafted_tokens as f64;
            let length = step.drafted_tokens.div_ceil(step.decode_rows.max(1));
            self.load.acceptance.add(acceptance(share, length), LOAD_RATE);
        }
        let sequences = self.running.mean().unwrap_or(0.0).max(1.0);
        let tokens: usize = step.tier_tokens.iter().sum();
        self.load.context.add(tokens as f64 / sequences, LOAD_RATE);
        if let Some(quality) = step.quality {
            self.quality.add(quality, QUALITY_RATE);
        }
    }

    fn change(&self, cause: Cause, change: Option<Move>, outcome: Outcome) -> Change {
        Change { step: self.steps, cause, change, outcome, settings: self.current }
    }

    /// Releases memory under pressure: fewer hot tokens, then fewer warm ones, then a smaller
    /// batch.
    fn release_memory(&mut self, changes: &mut Vec<Change>) -> bool {
        let pressure = self.pressure.mean().unwrap_or(0.0);
        if pressure <= self.settings.pressure_high || self.steps < self.released {
            return false;
        }
        // Quality that is already short is not spent: the batch gives way first.
        let is_short = self.quality.mean().is_some_and(|q| q < self.settings.quality_target);
        let order = if is_short {
            [Move::SmallerBatch, Move::FewerHot, Move::FewerWarm]
        } else {
            [Move::FewerHot, Move::FewerWarm, Move::SmallerBatch]
        };
        let bounds = self.settings.bounds;
        let is_rested = |step: &Move| self.rests[step.index()].until <= self.windows;
        let possible = |step: Move| step.apply(self.current, &bounds).map(|to| (step, to));
        let release = order.into_iter().filter(is_rested).find_map(possible);
        let Some((step, to)) = release.or_else(|| order.into_iter().find_map(possible)) else {
            return false;
        };
        if let Some(trial) = self.trial.take()
            && !matches!(trial.cause, Cause::Pressure { .. })
        {
            self.current = trial.old;
            changes.push(self.change(trial.cause, Some(trial.change), Outcome::Interrupted));
        }
        let to = step.apply(self.current, &bounds).unwrap_or(to);
        let cause = Cause::Pressure { pressure };
        let window = std::mem::take(&mut self.window);
        let pair = (self.current, to);
        let base = (window, self.costs.prefill_value(self.settings.prefill_value));
        self.trial = Some(Trial::new(cause, step, pair, base, &self.settings));
        self.current = to;
        self.released = self.steps + (self.settings.window / 2) as u64;
        // Memory that was short is not spent again at once.
        for spender in [Move::MoreHot, Move::MoreWarm, Move::LargerBatch] {
            let rest = &mut self.rests[spender.index()];
            rest.until = rest.until.max(self.windows + 4 * u64::from(self.settings.cool_down));
        }
        changes.push(self.change(cause, Some(step), Outcome::Applied));
        true
    }

    fn conclude(&mut self, verdict: Verdict, changes: &mut Vec<Change>) {
        let Some(trial) = self.trial.take() else { return };
        let gain = verdict.gain.exp_m1();
        let cool_down = u64::from(self.settings.cool_down);
        let rest = &mut self.rests[trial.change.index()];
        let outcome = if verdict.is_kept {
            self.current = trial.new;
            rest.failures = 0;
            self.next = trial.change.index();
            self.ready = self.windows + cool_down;
            Outcome::Kept { gain }
        } else {
            self.current = trial.old;
            // The clearer the loss, the longer the rest.
            let failures = if verdict.gain < -2.0 * self.settings.min_gain { 2 } else { 1 };
            rest.failures = (rest.failures + failures).min(MAX_FAILURES);
            rest.until = self.windows + ((4 * cool_down) << rest.failures);
            self.next = (trial.change.index() + 1) % Move::ALL.len();
            self.ready = self.windows + 1;
            Outcome::RolledBack { gain }
        };
        self.window = Window::default();
        if !trial.change.is_immediate() {
            // Answers from now on tell the quality of the settings now in force.
            self.quality = MovingAverage::default();
        }
        changes.push(self.change(trial.cause, Some(trial.change), outcome));
    }

    /// Ends the rest of all moves if the load is another than at the last reset.
    fn note_shift(&mut self, changes: &mut Vec<Change>) {
        let Load { demand, acceptance, context } = &self.load;
        let load = [demand, acceptance, context].map(|average| average.mean().unwrap_or(0.0).max(0.05));
        let reference = *self.reference.get_or_insert(load);
        let is_other = load.iter().zip(reference).any(|(now, then)| {
            let ratio = now / then;
            !(1.0 / SHIFT..=SHIFT).contains(&ratio)
        });
        if is_other {
            self.reference = Some(load);
            self.rests = Default::default();
            changes.push(self.change(Cause::Shift, None, Outcome::Noted));
        }
    }

    fn begin_trial(&mut self, window: Window, changes: &mut Vec<Change>) {
        let quality = self.quality.mean().filter(|_| self.quality.count() >= 3);
        let short = quality.filter(|&quality| quality < self.settings.quality_target);
        let cause = short.map_or(Cause::Throughput, |quality| Cause::Quality { quality });
        let candidates: Vec<Move> = match short {
            Some(_) => vec![Move::MoreHot, Move::MoreWarm],
            None => (0..Move::ALL.len()).map(|i| Move::ALL[(self.next + i) % Move::ALL.len()]).collect(),
        };
        let bounds = self.settings.bounds;
        let candidates = candidates.into_iter().filter(|&step| {
            self.rests[step.index()].until <= self.windows
                && (short.is_some() || self.may_gain(step, quality))
        });
        let trial = candidates.into_iter().find_map(|step| Some((step, step.apply(self.current, &bounds)?)));
        let Some((step, to)) = trial else { return };
        let base = (window, self.costs.prefill_value(self.settings.prefill_value));
        self.trial = Some(Trial::new(cause, step, (self.current, to), base, &self.settings));
        let outcome = if step.is_immediate() {
            Outcome::Tried
        } else {
            self.current = to;
            Outcome::Applied
        };
        changes.push(self.change(cause, Some(step), outcome));
    }

    /// True if a move may raise the throughput of the present load.
    fn may_gain(&self, step: Move, quality: Option<f64>) -> bool {
        let mean = |average: &MovingAverage| average.mean().unwrap_or(0.0);
        let has_room = mean(&self.pressure) < self.settings.pressure_low;
        let is_full = mean(&self.running) > 0.9 * self.current.max_batch as f64;
        let spare = self.settings.quality_target + self.settings.quality_margin;
        let target = self.settings.token_latency.as_secs_f64();
        match step {
            Move::LargerBatch => has_room && is_full && mean(&self.waiting) > 0.5,
            Move::SmallerBatch => {
                is_full && self.latency.percentile(0.5).is_some_and(|latency| latency > target)
            }
            Move::FewerHot | Move::FewerWarm => quality.is_some_and(|quality| quality > spare),
            Move::LongerChunk | Move::ShorterChunk => mean(&self.prefill) > 1.0,
            Move::LongerDraft | Move::ShorterDraft => true,
            // More tokens of higher precision cost time; they are for quality alone.
            Move::MoreHot | Move::MoreWarm => false,
        }
    }
}
