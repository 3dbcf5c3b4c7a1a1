//! A simulated engine under a load that shifts, for comparisons of settings.
//!
//! Load: each phase has a number of users; each submits a request, waits for its answer, and
//! submits the next one at once.
//!
//! Cost of a step, in milliseconds, of a CPU server and a model of about one billion weights (the
//! step, prefill and decode terms are those of `ruvllm-scheduler`'s simulator):
//! ```text
//! 12 + 0.5 prefill + 0.8 rows                       one forward pass
//!    + 0.5 rows k + k (1.2 + 0.08 rows)             k drafted tokens: verified, and drafted
//!    + context (1.6 hot + 1.1 warm + 0.9 cold) / 1000   attention over all rows' cached tokens
//! ```
//! times lognormal noise of 3 %. The cache holds 32, 17 and 9 KiB per hot, warm and cold token.
//! Precision that was lost stays lost. When the cache is full, the newest sequence is
//! preempted and its tokens are computed again.
//!
//! Quality of an answer: `0.9 - sensitivity (cold share + 0.15 warm share)`, with noise of 0.03
//! where it is reported, for three answers in ten. Drafted tokens are accepted one after another,
//! each with the phase's probability.
//!
//! The score is that of the tuner's objective without noise: emitted tokens, less where inter-token
//! latency or quality miss their targets, per second.

use std::time::Duration;

use super::change::Change;
use super::settings::{StepSettings, TunerSettings};
use super::step::{StepEnd, StepStart};
use super::trial::quality_factor;
use super::tuner::Tuner;
use crate::error::Result;
use crate::random::Random;

/// KiB of KV cache per token in the hot, warm and cold tier.
const KIB: [f64; 3] = [32.0, 17.0, 9.0];
/// Microseconds of attention per cached token.
const ATTENTION_US: [f64; 3] = [1.6, 1.1, 0.9];
/// Quality of answers from a cache in full precision.
const QUALITY: f64 = 0.9;
/// Share of answers whose quality is reported.
const REPORTED: f64 = 0.3;

/// Load for some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// Its length in simulated seconds.
    pub seconds: f64,
    /// Users, each with one request at a time.
    pub users: usize,
    /// Mean tokens of a prompt; lengths vary by half of it.
    pub prompt_tokens: usize,
    /// Mean tokens of an answer; lengths vary by half of it.
    pub answer_tokens: usize,
    /// Probability that a drafted token is accepted.
    pub acceptance: f64,
    /// Loss of quality if all tokens are cold.
    pub sensitivity: f64,
}

/// A load that shifts between code for two users, a crowd, long documents, and precise retrieval.
pub fn shifting_load(seconds: f64) -> Vec<Phase> {
    let phase = |users, prompt_tokens, answer_tokens, acceptance, sensitivity| Phase {
        seconds,
        users,
        prompt_tokens,
        answer_tokens,
        acceptance,
        sensitivity,
    };
    vec![
        phase(2, 600, 300, 0.85, 0.1),
        phase(64, 400, 150, 0.3, 0.1),
        phase(24, 4000, 200, 0.4, 0.1),
        phase(6, 3000, 200, 0.7, 0.6),
    ]
}

/// Result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Value per second of each phase.
    pub phases: Vec<f64>,
    /// Value per second of the whole run.
    pub score: f64,
    /// Decisions of the tuner.
    pub changes: Vec<Change>,
    /// Settings at the end of each phase.
    pub settings: Vec<StepSettings>,
    /// Sequences that were preempted.
    pub preempted: usize,
    /// Steps.
    pub steps: u64,
}

#[derive(Debug, Clone)]
struct Sequence {
    /// Tokens in the cache.
    cached: usize,
    /// Tokens to prefill.
    pending: usize,
    /// Tokens to emit.
    rest: usize,
    /// Tokens that are computed again after a preemption.
    again: usize,
    /// Oldest tokens that are cold, and those that are warm or cold.
    quantized: [usize; 2],
}

impl Sequence {
    /// Moves tokens to lower tiers as the settings ask for.
    fn settle(&mut self, settings: &StepSettings) {
        let warm = self.cached.saturating_sub(settings.hot_tokens);
        let cold = warm.saturating_sub(settings.warm_tokens);
        self.quantized = [self.quantized[0].max(cold), self.quantized[1].max(warm)];
    }

    /// Tokens in the hot, warm and cold tier.
    fn tiers(&self) -> [usize; 3] {
        let [cold, warm] = self.quantized;
        [self.cached - warm, warm - cold, cold]
    }
}

/// Tokens of a new sequence of `cached` in the hot, warm and cold tier.
fn tiers(cached: usize, settings: &StepSettings) -> [usize; 3] {
    let hot = cached.min(settings.hot_tokens);
    let warm = (cached - hot).min(settings.warm_tokens);
    [hot, warm, cached - hot - warm]
}

fn weighted(tokens: [usize; 3], weights: [f64; 3]) -> f64 {
    tokens.iter().zip(weights).map(|(&tokens, weight)| tokens as f64 * weight).sum()
}

struct Engine<'s> {
    settings: &'s TunerSettings,
    capacity_kib: f64,
    random: Random,
    running: Vec<Sequence>,
    waiting: Vec<Sequence>,
    preempted: usize,
}

impl Engine<'_> {
    fn length(&mut self, mean: usize) -> usize {
        ((0.5 + self.random.uniform()) * mean as f64).max(1.0) as usize
    }

    fn request(&mut self, phase: &Phase) -> Sequence {
        let (pending, rest) = (self.length(phase.prompt_tokens), self.length(phase.answer_tokens));
        Sequence { cached: 0, pending, rest, again: 0, quantized: [0; 2] }
    }

    fn used(&self) -> f64 {
        self.running.iter().map(|sequence| weighted(sequence.tiers(), KIB)).sum()
    }

    /// Starts waiting requests, first come first served, while batch and cache have room.
    fn admit(&mut self, step: &StepSettings) {
        let mut used: f64 =
            self.running.iter().map(|s| weighted(tiers(s.cached + s.pending, step), KIB)).sum();
        while self.running.len() < step.max_batch && !self.waiting.is_empty() {
            used += weighted(tiers(self.waiting[0].pending, step), KIB);
            if used > self.capacity_kib && !self.running.is_empty() {
                break;
            }
            self.running.push(self.waiting.remove(0));
        }
    }

    /// Preempts the newest sequences while the cache is full.
    fn preempt(&mut self) {
        while self.running.len() > 1 && self.used() > self.capacity_kib {
            let Some(mut last) = self.running.pop() else { break };
            last.again = last.cached;
            (last.pending, last.cached, last.quantized) = (last.pending + last.cached, 0, [0; 2]);
            self.waiting.insert(0, last);
            self.preempted += 1;
        }
    }

    /// Runs a step; its measurements and its true value.
    fn step(&mut self, phase: &Phase, step: &StepSettings) -> (StepEnd, f64) {
        self.running.iter_mut().for_each(|sequence| sequence.settle(step));
        self.preempt();
        let mut end =
            StepEnd { kv_pressure: (self.used() / self.capacity_kib).min(1.0), ..StepEnd::default() };
        let (mut budget, mut computed, mut context, mut value) = (step.prefill_chunk, 0, 0.0, 0.0);
        let draft = step.draft_tokens;
        for sequence in &mut self.running {
            let tokens = sequence.tiers();
            end.tier_tokens.iter_mut().zip(tokens).for_each(|(sum, tokens)| *sum += tokens);
            if sequence.pending > 0 {
                let chunk = sequence.pending.min(budget);
                let again = chunk.min(sequence.again);
                (sequence.pending, sequence.cached) = (sequence.pending - chunk, sequence.cached + chunk);
                (sequence.again, budget) = (sequence.again - again, budget - chunk);
                computed += chunk;
                end.prefill_tokens += chunk - again;
                continue;
            }
            context += weighted(tokens, ATTENTION_US);
            let mut accepted = 0;
            while accepted < draft && self.random.uniform() < phase.acceptance {
                accepted += 1;
            }
            let emitted = (accepted + 1).min(sequence.rest);
            (sequence.rest, sequence.cached) = (sequence.rest - emitted, sequence.cached + emitted);
            (end.decode_rows, end.emitted_tokens) = (end.decode_rows + 1, end.emitted_tokens + emitted);
            (end.drafted_tokens, end.accepted_tokens) =
                (end.drafted_tokens + draft, end.accepted_tokens + accepted);
            value += emitted as f64 * quality_factor(quality(tokens, phase), self.settings);
        }
        let (rows, k) = (end.decode_rows as f64, draft as f64);
        let mut ms = 12.0 + 0.5 * computed as f64 + 0.8 * rows + context / 1000.0;
        if rows > 0.0 {
            ms += 0.5 * rows * k + k * (1.2 + 0.08 * rows);
        }
        ms *= (0.03 * self.random.normal()).exp();
        end.duration = Duration::from_secs_f64(ms / 1000.0);
        let target = self.settings.token_latency.as_secs_f64();
        let on_time = end.token_latency().map_or(1.0, |latency| (target / latency).min(1.0));
        end.quality = self.finish(phase);
        (end, value * on_time)
    }

    /// Replaces finished sequences by their users' next requests; the reported quality.
    fn finish(&mut self, phase: &Phase) -> Option<f64> {
        let is_done = |s: &Sequence| s.pending == 0 && s.rest == 0;
        let (done, running) = std::mem::take(&mut self.running).into_iter().partition::<Vec<_>, _>(is_done);
        self.running = running;
        let mut reported = Vec::new();
        for sequence in done {
            if self.random.uniform() < REPORTED {
                let noise = 0.03 * self.random.normal();
                let truth = quality(sequence.tiers(), phase);
                reported.push((truth + noise).clamp(0.0, 1.0));
            }
        }
        // Users beyond those of a new phase leave when their request has ended.
        while self.running.len() + self.waiting.len() < phase.users {
            let request = self.request(phase);
            self.waiting.push(request);
        }
        (!reported.is_empty()).then(|| reported.iter().sum::<f64>() / reported.len() as f64)
    }
}

fn quality(tokens: [usize; 3], phase: &Phase) -> f64 {
    let total = tokens.iter().sum::<usize>().max(1) as f64;
    QUALITY - phase.sensitivity * (tokens[2] as f64 + 0.15 * tokens[1] as f64) / total
}

/// Runs a load over a cache of `capacity_kib`, with a tuner that begins at `start`, or with `start`
/// throughout.
///
/// # Errors
/// Errors of [`Tuner::new`].
pub fn simulate(
    load: &[Phase],
    capacity_kib: f64,
    settings: &TunerSettings,
    start: StepSettings,
    is_tuned: bool,
    seed: u64,
) -> Result<Report> {
    let mut tuner = Tuner::new(settings.clone(), start)?;
    let random = Random::new(seed);
    let mut engine =
        Engine { settings, capacity_kib, random, running: Vec::new(), waiting: Vec::new(), preempted: 0 };
    let mut report = Report {
        phases: Vec::new(),
        score: 0.0,
        changes: Vec::new(),
        settings: Vec::new(),
        preempted: 0,
        steps: 0,
    };
    let (mut total, mut seconds) = (0.0, 0.0);
    for phase in load {
        let (mut now, mut value) = (0.0, 0.0);
        engine.finish(phase);
        while now < phase.seconds {
            let running = StepStart { running: engine.running.len(), waiting: engine.waiting.len() };
            let step = if is_tuned { tuner.before(&running) } else { start };
            engine.admit(&step);
            let (end, earned) = engine.step(phase, &step);
            (now, value) = (now + end.duration.as_secs_f64(), value + earned);
            report.steps += 1;
            if is_tuned {
                report.changes.extend(tuner.after(&end)?);
            }
        }
        report.phases.push(value / now);
        report.settings.push(if is_tuned { tuner.current() } else { start });
        (total, seconds) = (total + value, seconds + now);
    }
    (report.score, report.preempted) = (total / seconds, engine.preempted);
    Ok(report)
}
