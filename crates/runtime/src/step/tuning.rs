//! Real-time settings of the step loop: a tuner moves them within the engine's options (ADR-0087).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use ruvllm_scheduler::Config;
use ruvllm_sona::tuning::{Bounds, Change, Outcome, StepEnd, StepSettings, StepStart, Tuner, TunerSettings};

use crate::error::{Error, Result};
use crate::speculation::{MOST_DRAFT, Speculation};

/// Changes that are kept until they are taken.
const CHANGES: usize = 256;

/// Options of the tuner of a step loop ([`EngineOptions::tuning`](crate::EngineOptions::tuning)).
///
/// It moves the largest batch, the largest number of prefill tokens in a step and the longest
/// draft, between the least values here and the engine's options, which it begins with. None of
/// them changes a bit of the output. Tiers of the KV cache do, and stay those of the policy.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TuningOptions {
    /// Least number of sequences at once; the most are those of
    /// [`EngineOptions::scheduling`](crate::EngineOptions::scheduling). Default 4.
    pub min_batch: usize,
    /// Least number of prefill tokens in a step, decodes included; the most are
    /// [`EngineOptions::prefill_chunk`](crate::EngineOptions::prefill_chunk). Default 64.
    pub min_prefill_chunk: usize,
    /// True to limit drafts of requests with [`Speculation::Auto`] too. Default: the policy of
    /// speculative decoding chooses alone.
    pub drafts: bool,
    /// Steps of a window, 8 to 100,000. Default 48.
    pub window: usize,
    /// Relative gain in throughput for which a change is kept, 0 to 1. Default 0.02.
    pub min_gain: f64,
}

impl Default for TuningOptions {
    fn default() -> Self {
        Self { min_batch: 4, min_prefill_chunk: 64, drafts: false, window: 48, min_gain: 0.02 }
    }
}

impl TuningOptions {
    /// Default options, with least values that are not above an engine's own settings.
    pub fn fitting(scheduling: &Config, prefill_chunk: usize) -> Self {
        let Self { min_batch, min_prefill_chunk, .. } = Self::default();
        Self {
            min_batch: min_batch.min(scheduling.max_running).max(1),
            min_prefill_chunk: min_prefill_chunk.min(prefill_chunk),
            ..Self::default()
        }
    }
}

crate::setters::setters! {
    TuningOptions {
        set with_min_batch(min_batch: usize);
        set with_min_prefill_chunk(min_prefill_chunk: usize);
        set with_drafts(drafts: bool);
        set with_window(window: usize);
        set with_min_gain(min_gain: f64);
    }
}

/// Counters of the tuner since the engine was loaded, and its settings now.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TuningStatus {
    /// Settings in force outside the alternating steps of a trial.
    pub settings: StepSettings,
    /// Steps measured.
    pub steps: u64,
    /// Changes that came into force and are compared.
    pub applied: u64,
    /// Changes tried in alternating steps.
    pub tried: u64,
    /// Changes compared and kept.
    pub kept: u64,
    /// Changes compared and taken back.
    pub rolled_back: u64,
    /// Comparisons ended by a release of memory.
    pub interrupted: u64,
    /// Shifts of the load.
    pub shifts: u64,
    /// Changes that nobody took in time, of which the oldest were dropped.
    pub dropped: u64,
}

impl TuningStatus {
    fn new(settings: StepSettings) -> Self {
        Self {
            settings,
            steps: 0,
            applied: 0,
            tried: 0,
            kept: 0,
            rolled_back: 0,
            interrupted: 0,
            shifts: 0,
            dropped: 0,
        }
    }

    fn count(&mut self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Applied => &mut self.applied,
            Outcome::Tried => &mut self.tried,
            Outcome::Kept { .. } => &mut self.kept,
            Outcome::RolledBack { .. } => &mut self.rolled_back,
            Outcome::Interrupted => &mut self.interrupted,
            _ => &mut self.shifts,
        };
        *counter += 1;
    }
}

/// Tuner settings of an engine, and what its tuner has done.
#[derive(Debug)]
pub(crate) struct Tuning {
    settings: TunerSettings,
    start: StepSettings,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    status: TuningStatus,
    /// The latest changes that were not taken.
    changes: VecDeque<Change>,
}

impl Tuning {
    /// The tuning of an engine whose own settings are the other arguments.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] and [`Error::Learning`] for values out of range.
    pub(crate) fn new(
        tuning: &TuningOptions,
        scheduling: &Config,
        chunk: usize,
        speculation: Speculation,
    ) -> Result<Self> {
        let batch = scheduling.max_running.max(1);
        let within = |name, value: usize, most: usize| {
            let expected = "1 to the engine's own setting";
            let is_within = (1..=most).contains(&value);
            if is_within { Ok(()) } else { Err(Error::InvalidOption { name, value, expected }) }
        };
        within("tuning.min_batch", tuning.min_batch, batch)?;
        within("tuning.min_prefill_chunk", tuning.min_prefill_chunk, chunk)?;
        let draft = match speculation {
            Speculation::Off => 0,
            // A fixed number is not limited, and one is chosen by the policy.
            _ => MOST_DRAFT,
        };
        let settings = |max_batch, prefill_chunk, draft_tokens| StepSettings {
            // Fixed: tiers change the output, which must not depend on the load.
            hot_tokens: 0,
            warm_tokens: 0,
            max_batch,
            prefill_chunk,
            draft_tokens,
        };
        let start = settings(batch, chunk, draft);
        let least_draft = if tuning.drafts { 0 } else { draft };
        let low = settings(tuning.min_batch, tuning.min_prefill_chunk, least_draft);
        let settings = TunerSettings {
            window: tuning.window,
            min_gain: tuning.min_gain,
            token_latency: latency_target(scheduling),
            ..TunerSettings::new(Bounds { low, high: start })
        };
        Tuner::new(settings.clone(), start).map_err(|source| Error::Learning { source })?;
        let log = Mutex::new(Log { status: TuningStatus::new(start), changes: VecDeque::new() });
        Ok(Self { settings, start, log })
    }

    pub(crate) fn status(&self) -> TuningStatus {
        self.log.lock().status
    }

    pub(crate) fn take_changes(&self) -> Vec<Change> {
        self.log.lock().changes.drain(..).collect()
    }

    fn record(&self, changes: Vec<Change>, settings: StepSettings) {
        let log = &mut *self.log.lock();
        log.status.steps += 1;
        log.status.settings = settings;
        for change in changes {
            log.status.count(change.outcome);
            if log.changes.len() == CHANGES {
                log.changes.pop_front();
                log.status.dropped += 1;
            }
            log.changes.push_back(change);
        }
    }
}

/// The scheduler's target, within the range of the tuner's.
fn latency_target(config: &Config) -> Duration {
    config.token_latency.clamp(Duration::from_micros(1), Duration::from_secs(1_000_000))
}

/// The tuner of a step loop.
pub(super) struct StepTuner<'c> {
    tuner: Tuner,
    tuning: &'c Tuning,
    /// Tokens for which the KV cache has room without any sequence.
    capacity_tokens: usize,
    /// Tokens that were computed again, up to the last step.
    recomputed: u64,
}

/// Measurements of a step before its requests are settled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sampling {
    pub(super) decode_rows: usize,
    pub(super) emitted_tokens: usize,
    pub(super) drafted_tokens: usize,
    pub(super) accepted_tokens: usize,
}

/// Measurements of a step after that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    pub(super) duration: Duration,
    /// Tokens of prompt chunks.
    pub(super) prefill_tokens: usize,
    /// Tokens that were computed again, since the loop began.
    pub(super) recomputed: u64,
    pub(super) free_tokens: usize,
}

impl<'c> StepTuner<'c> {
    /// Makes the tuner of a loop without sequences, whose cache has room for `capacity_tokens`;
    /// `None` for settings that [`Tuning::new`] would have refused.
    pub(super) fn new(tuning: &'c Tuning, capacity_tokens: usize) -> Option<Self> {
        let tuner = Tuner::new(tuning.settings.clone(), tuning.start).ok()?;
        Some(Self { tuner, tuning, capacity_tokens, recomputed: 0 })
    }

    /// Settings of the step that begins.
    pub(super) fn before(&mut self, waiting: usize, running: usize) -> StepSettings {
        self.tuner.before(&StepStart { running, waiting })
    }

    /// Learns from a step.
    pub(super) fn after(&mut self, sampling: Sampling, settled: Settled) {
        let Settled { duration, prefill_tokens, recomputed, free_tokens } = settled;
        let again = recomputed.saturating_sub(std::mem::replace(&mut self.recomputed, recomputed));
        let used_tokens = self.capacity_tokens.saturating_sub(free_tokens);
        let step = StepEnd {
            duration,
            prefill_tokens: prefill_tokens.saturating_sub(again as usize),
            decode_rows: sampling.decode_rows,
            emitted_tokens: sampling.emitted_tokens,
            drafted_tokens: sampling.drafted_tokens,
            accepted_tokens: sampling.accepted_tokens.min(sampling.drafted_tokens),
            kv_pressure: used_tokens as f64 / self.capacity_tokens.max(1) as f64,
            tier_tokens: [used_tokens, 0, 0],
            // Nothing that moves here changes the quality of an answer.
            quality: None,
        };
        // A step out of range is not learned from; these are within it.
        if let Ok(changes) = self.tuner.after(&step) {
            self.tuning.record(changes, self.tuner.current());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(tuning: &TuningOptions) -> Result<Tuning> {
        Tuning::new(tuning, &Config::default(), 512, Speculation::Auto)
    }

    #[test]
    fn values_out_of_range_are_refused_with_their_name() {
        let refused = |tuning: TuningOptions| match new(&tuning).expect_err("an error") {
            Error::InvalidOption { name, .. } => name.to_owned(),
            Error::Learning { source } => source.to_string(),
            other => panic!("{other}"),
        };
        let default = TuningOptions::default;
        assert_eq!(refused(default().with_min_batch(0)), "tuning.min_batch");
        assert_eq!(refused(default().with_min_batch(65)), "tuning.min_batch");
        assert_eq!(refused(default().with_min_prefill_chunk(513)), "tuning.min_prefill_chunk");
        assert!(refused(default().with_window(1)).contains("window"));
        assert!(refused(default().with_min_gain(f64::NAN)).contains("min_gain"));
        let mut small = Config::default();
        small.max_running = 2;
        let fitting = TuningOptions::fitting(&small, 8);
        assert!(Tuning::new(&fitting, &small, 8, Speculation::Off).is_ok());
    }

    #[test]
    fn changes_are_counted_and_the_oldest_dropped() {
        let tuning = new(&TuningOptions::default()).expect("valid");
        let settings = tuning.status().settings;
        let change = |step| Change {
            step,
            cause: ruvllm_sona::tuning::Cause::Shift,
            change: None,
            outcome: Outcome::Noted,
            settings,
        };
        (0..300).for_each(|step| tuning.record(vec![change(step)], settings));
        let status = tuning.status();
        assert_eq!((status.steps, status.shifts, status.dropped), (300, 300, 44));
        let changes = tuning.take_changes();
        assert_eq!((changes.len(), changes[0].step), (CHANGES, 44));
        assert!(tuning.take_changes().is_empty());
    }
}
