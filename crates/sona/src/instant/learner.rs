//! The instant learner: from a lesson to changed parameters.

use std::sync::Arc;

use ruvllm_kernels::Kernels;

use super::head::OutputHead;
use super::observation::{Observation, Observations};
use super::optimizer::{Moments, Step};
use super::parameters::Shape;
use super::pass::{Gradient, Pass, Position, Score};
use super::settings::Settings;
use super::table::RowTable;
use crate::error::{Error, Result};
use crate::random::Random;
use crate::rating::Rating;

/// Maximum number of halvings (backtracking line search) before an update is rejected.
const HALVINGS: u32 = 6;

/// Feedback on a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lesson {
    /// The text is the right answer: its likelihood goes up.
    Corrected,
    /// The text was generated and rated: its likelihood goes up for a rating above 0 and down for
    /// one below, by the distance from a running baseline of the tenant's ratings.
    Rated(Rating),
}

/// Result of a lesson.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All updates were applied.
    Applied,
    /// Some updates were rejected: no step within the trust region improved the objective.
    Partly {
        /// Their number.
        rejected: usize,
    },
    /// No update was applied, for the same reason.
    Rejected,
    /// There was nothing to learn: a rating of 0, no positions, or every token at its clip.
    Nothing,
}

/// Measurements of a lesson.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Result.
    pub outcome: Outcome,
    /// Updates applied.
    pub applied: usize,
    /// Positions of the lesson.
    pub positions: usize,
    /// Mean log-probability of the text's tokens before the lesson, in nats.
    pub log_probability_before: f64,
    /// The same after it.
    pub log_probability_after: f64,
    /// The same under the base model.
    pub base_log_probability: f64,
    /// Mean divergence from the base model at these positions after the lesson, in nats.
    pub divergence: f64,
}

/// Parameters with all that learning needs, of one tenant and model.
#[derive(Clone)]
pub struct InstantLearner {
    pub(super) head: Arc<dyn OutputHead>,
    pub(super) shape: Shape,
    pub(super) settings: Settings,
    pub(super) parameters: Vec<f32>,
    pub(super) moments: Moments,
    /// Running mean of ratings.
    pub(super) baseline: f32,
    /// Steps applied since the beginning.
    pub(super) updates: u64,
    /// Ordinary positions, replaced in turn.
    pub(super) anchors: Observations,
    /// Ordinary positions seen.
    pub(super) anchors_seen: u64,
    pub(super) scratch: Scratch,
}

/// Buffers of an update.
#[derive(Clone)]
pub(super) struct Scratch {
    pub(super) pass: Pass,
    pub(super) table: RowTable,
    /// Positions of the update.
    pub(super) taught: Vec<Position>,
    /// An ordinary position.
    anchor: Position,
    pub(super) gradient: Gradient,
    /// Parameters before the update, in their places but for columns of `D`, of which only the
    /// touched ones are there.
    before: Vec<f32>,
}

/// Positions that an update teaches.
struct Taught {
    range: std::ops::Range<usize>,
    /// Weight of the log-probability: above 0 raises it.
    weight: f32,
    /// Nats by which a rating may move a token.
    clip: Option<f64>,
}

/// Means over the positions of an update.
#[derive(Default, Clone, Copy)]
struct Mean {
    log_probability: f64,
    base_log_probability: f64,
    divergence: f64,
}

impl std::fmt::Debug for InstantLearner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstantLearner")
            .field("shape", &self.shape)
            .field("updates", &self.updates)
            .finish_non_exhaustive()
    }
}

impl InstantLearner {
    /// A learner without effect yet: `A` and `C` uniform in `±1/sqrt(model_dim)`, `B` and `D` zero.
    /// Observations have `candidates` candidates.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn new(head: Arc<dyn OutputHead>, settings: Settings, candidates: usize) -> Result<Self> {
        settings.check()?;
        let shape = Shape {
            model_dim: head.model_dim(),
            vocab_size: head.vocab_size(),
            hidden_rank: settings.hidden_rank,
            logits_rank: settings.logits_rank,
        };
        shape.check()?;
        let mut parameters = vec![0.0; shape.len()];
        let bound = 1.0 / (shape.model_dim as f32).sqrt();
        let mut random = Random::new(settings.seed);
        for range in [shape.hidden_a(), shape.logits_a()] {
            parameters[range].fill_with(|| bound * (2.0 * random.uniform() as f32 - 1.0));
        }
        let scratch = Scratch {
            pass: Pass::new(shape, &*head),
            table: RowTable::new(&*head),
            taught: Vec::new(),
            anchor: Position::default(),
            gradient: Gradient::new(&shape),
            before: Vec::new(),
        };
        Ok(Self {
            anchors: Observations::new(shape.model_dim, candidates)?,
            moments: Moments::new(shape.len()),
            head,
            shape,
            settings,
            parameters,
            baseline: 0.0,
            updates: 0,
            anchors_seen: 0,
            scratch,
        })
    }

    /// Sizes and places of the parameters.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Settings of the learner.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Ordinary positions that are kept.
    pub fn ordinary_positions(&self) -> usize {
        self.anchors.len()
    }

    /// All parameters, in the places of [`shape`](Self::shape).
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Steps applied since the beginning; an update is one or several.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Running mean of the ratings.
    pub fn baseline(&self) -> f32 {
        self.baseline
    }

    /// Bounds of the Frobenius norms of both updates: `|A| |B|` and `|C| |D|`.
    pub fn norms(&self) -> [f32; 2] {
        let Self { head, shape, parameters, .. } = self;
        let norm = |range: std::ops::Range<usize>| norm(&head.kernels(), &parameters[range]);
        [norm(shape.hidden_a()) * norm(shape.hidden_b()), norm(shape.logits_a()) * norm(shape.logits_b())]
    }

    /// Keeps a position of ordinary traffic, at which later updates hold the model to its base. The
    /// first [`kept_anchors`](Settings::kept_anchors) are kept, then the oldest is replaced.
    ///
    /// # Errors
    /// [`Error::Dimension`].
    pub fn observe_ordinary(&mut self, observation: Observation<'_>) -> Result<()> {
        let kept = self.settings.kept_anchors;
        if kept == 0 {
            return Ok(());
        }
        if self.anchors.len() < kept {
            self.anchors.push_position(observation)?;
        } else {
            self.anchors.replace((self.anchors_seen % kept as u64) as usize, observation)?;
        }
        self.anchors_seen += 1;
        Ok(())
    }

    /// Scores of all positions under the current parameters.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::Token`].
    pub fn scores(&mut self, observations: &Observations) -> Result<Vec<Score>> {
        self.check(observations)?;
        let Self { head, parameters, scratch: Scratch { pass, table, anchor, .. }, .. } = self;
        let mut scores = Vec::with_capacity(observations.len());
        for (index, at) in observations.iter().enumerate() {
            if index % self.settings.positions == 0 {
                table.clear();
            }
            anchor.prepare(&**head, table, at);
            pass.forward((&**head, table), parameters, at, anchor);
            scores.push(*anchor.score());
        }
        Ok(scores)
    }

    /// Learns from a text: one update for each [`positions`](Settings::positions) positions. A
    /// shorter one takes several steps at its positions, as many as fit in the work of a full one
    /// ([`steps`](Settings::steps) at most).
    ///
    /// Every applied update raises the log-probability of the text at its own positions, or lowers
    /// it for a rating below 0; where none within the trust region does, the parameters stay.
    ///
    /// # Errors
    /// [`Error::Dimension`] and [`Error::Token`] for observations of another model. Nothing is
    /// learned then.
    pub fn learn(&mut self, observations: &Observations, lesson: Lesson) -> Result<Update> {
        self.check(observations)?;
        let weight = self.weight(lesson);
        let is_rated = matches!(lesson, Lesson::Rated(_));
        let (mut before, mut after) = (Mean::default(), Mean::default());
        let (mut applied, mut rejected) = (0, 0);
        let mut start = 0;
        while start < observations.len() {
            let end = observations.len().min(start + self.settings.positions);
            let step = self.update(observations, start..end, weight, is_rated);
            match step.is_applied {
                Some(true) => applied += 1,
                Some(false) => rejected += 1,
                None => (),
            }
            let share = (end - start) as f64 / observations.len() as f64;
            for (sum, mean) in [(&mut before, step.before), (&mut after, step.after)] {
                sum.log_probability += share * mean.log_probability;
                sum.base_log_probability += share * mean.base_log_probability;
                sum.divergence += share * mean.divergence;
            }
            start = end;
        }
        let outcome = match (applied, rejected) {
            (0, 0) => Outcome::Nothing,
            (0, _) => Outcome::Rejected,
            (_, 0) => Outcome::Applied,
            _ => Outcome::Partly { rejected },
        };
        Ok(Update {
            outcome,
            applied,
            positions: observations.len(),
            log_probability_before: before.log_probability,
            log_probability_after: after.log_probability,
            base_log_probability: before.base_log_probability,
            divergence: after.divergence,
        })
    }

    pub(super) fn check(&self, observations: &Observations) -> Result<()> {
        if observations.model_dim() != self.shape.model_dim {
            return Err(Error::Dimension {
                what: "a hidden state",
                expected: self.shape.model_dim,
                got: observations.model_dim(),
            });
        }
        match observations.largest_token() {
            Some(token) if token as usize >= self.shape.vocab_size => {
                Err(Error::Token { token, vocab_size: self.shape.vocab_size })
            }
            _ => Ok(()),
        }
    }

    /// Weight of the log-probability in the objective: above 0 raises it. Ratings move the baseline
    /// after they are weighed.
    fn weight(&mut self, lesson: Lesson) -> f32 {
        let Lesson::Rated(rating) = lesson else { return 1.0 };
        let rating = rating.value();
        let advantage = rating - self.baseline;
        self.baseline += self.settings.baseline_weight * advantage;
        // The sign is the rating's: a bad answer is never taught because worse ones were seen.
        let least = self.settings.least_advantage * rating.abs();
        match rating.partial_cmp(&0.0) {
            Some(std::cmp::Ordering::Greater) => advantage.max(least).min(1.0),
            Some(std::cmp::Ordering::Less) => advantage.min(-least).max(-1.0),
            _ => 0.0,
        }
    }

    /// One update: steps at the same positions, as many as take the work of a full one.
    fn update(
        &mut self,
        observations: &Observations,
        range: std::ops::Range<usize>,
        weight: f32,
        is_rated: bool,
    ) -> Applied {
        self.prepare(observations, &range);
        let lesson = Taught { range, weight, clip: is_rated.then_some(self.settings.rating_clip) };
        let steps = (self.settings.positions / lesson.range.len().max(1)).clamp(1, self.settings.steps);
        let before = self.forward(observations, &lesson);
        let mut done = Applied { is_applied: None, before, after: before };
        for _ in 0..steps {
            let step = self.step(observations, &lesson, (&done, steps));
            // The first step decides; further ones only go on.
            done.is_applied = done.is_applied.or(step.is_applied);
            done.after = step.after;
            if step.is_applied != Some(true) {
                break;
            }
        }
        done
    }

    /// One step of an update, of `steps`, behind a forward pass; `so_far` is what they did until
    /// now. A step that is applied ends with a forward pass.
    fn step(
        &mut self,
        observations: &Observations,
        lesson: &Taught,
        (so_far, steps): (&Applied, usize),
    ) -> Applied {
        let before = so_far.after;
        if !self.backward(observations, lesson) {
            return Applied { is_applied: None, before, after: before };
        }
        self.backward_anchors(self.settings.anchors.div_ceil(steps));
        self.save();
        let norm = self.scratch.gradient.norm(&self.scratch.table.kernels(), &self.shape);
        let scale =
            if norm > self.settings.largest_gradient { self.settings.largest_gradient / norm } else { 1.0 };
        let decay = 1.0 / (1.0 + self.updates as f32 / self.settings.decay_updates).sqrt();
        let factor = if lesson.clip.is_some() { self.settings.rating_rate * decay } else { decay };
        let mut step = Step {
            rate: self.settings.rate * factor,
            column_rate: self.settings.column_rate * factor,
            gradient_scale: scale,
        };
        let rejected = Applied { is_applied: Some(false), before, after: before };
        if !norm.is_finite() {
            return rejected;
        }
        let farthest = so_far.before.divergence + self.settings.largest_step;
        self.moments.step(&self.shape, &step, &self.scratch.gradient, &mut self.parameters);
        for attempt in 0..=HALVINGS {
            let Self { shape, settings, parameters, scratch, .. } = self;
            let touched = scratch.gradient.touched().iter().copied();
            limit_norms((shape, settings), &scratch.table.kernels(), parameters, touched);
            let after = self.forward(observations, lesson);
            // In the direction of the lesson, within the trust region.
            let gain = (after.log_probability - before.log_probability) * f64::from(lesson.weight.signum());
            if gain > 0.0 && after.divergence <= farthest {
                self.updates += 1;
                return Applied { is_applied: Some(true), before, after };
            }
            self.undo();
            if attempt < HALVINGS {
                // Without the momentum of earlier lessons, which may go elsewhere, and shorter.
                (step.rate, step.column_rate) = (step.rate / 2.0, step.column_rate / 2.0);
                self.moments.descend(&self.shape, &step, &self.scratch.gradient, &mut self.parameters);
            }
        }
        rejected
    }

    /// Prepares the positions of an update, which its passes share.
    pub(super) fn prepare(&mut self, observations: &Observations, range: &std::ops::Range<usize>) {
        let Self { head, scratch: Scratch { table, taught, .. }, .. } = self;
        table.clear();
        taught.resize_with(taught.len().max(range.len()), Position::default);
        for (at, position) in range.clone().filter_map(|index| observations.get(index)).zip(taught) {
            position.prepare(&**head, table, at);
        }
    }

    /// Computes the positions of the lesson under the current parameters; their means.
    fn forward(&mut self, observations: &Observations, lesson: &Taught) -> Mean {
        let count = lesson.range.len();
        let Self { head, parameters, scratch: Scratch { pass, table, taught, .. }, .. } = self;
        let mut mean = Mean::default();
        let positions = lesson.range.clone().filter_map(|index| observations.get(index));
        for (at, position) in positions.zip(taught) {
            pass.forward((&**head, table), parameters, at, position);
            mean.add(position.score(), count);
        }
        mean
    }

    /// Fills the gradient with that of the lesson, behind a forward pass; false if no position has
    /// one.
    fn backward(&mut self, observations: &Observations, lesson: &Taught) -> bool {
        let Self { shape, parameters, scratch: Scratch { pass, table, gradient, taught, .. }, .. } = self;
        let Taught { range, weight, clip } = lesson;
        gradient.clear(shape);
        let mut is_taught = false;
        let count = range.len() as f32;
        for (at, position) in range.clone().filter_map(|index| observations.get(index)).zip(&*taught) {
            let score = position.score();
            // Beyond its clip, a token has no gradient.
            let moved = score.log_probability - score.base_log_probability;
            let is_clipped = clip.is_some_and(|clip| moved * f64::from(weight.signum()) >= clip);
            if *weight != 0.0 && !is_clipped {
                is_taught = true;
                pass.backward(table, parameters, (at, position), (weight / count, 0.0), gradient);
            }
        }
        is_taught
    }

    /// Adds the gradient of the divergence from the base model at `count` ordinary positions.
    fn backward_anchors(&mut self, count: usize) {
        let count = count.min(self.anchors.len());
        if count == 0 || self.settings.anchor_weight == 0.0 {
            return;
        }
        let weight = self.settings.anchor_weight / count as f32;
        // In turn: every kept position is used about as often as the others.
        let first = (self.updates as usize).wrapping_mul(count);
        let Self {
            head, parameters, anchors, scratch: Scratch { pass, table, gradient, anchor, .. }, ..
        } = self;
        for index in 0..count {
            if let Some(at) = anchors.get((first + index) % anchors.len()) {
                anchor.prepare(&**head, table, at);
                pass.forward((&**head, table), parameters, at, anchor);
                pass.backward(table, parameters, (at, anchor), (0.0, weight), gradient);
            }
        }
    }

    /// Copies what the update will change.
    fn save(&mut self) {
        let Self { shape, parameters, scratch: Scratch { gradient, before, .. }, .. } = self;
        before.clear();
        before.extend_from_slice(&parameters[..shape.logits_b().start]);
        before.extend(gradient.touched_places(shape).map(|place| parameters[place]));
    }

    /// Puts back what [`save`](Self::save) copied.
    fn undo(&mut self) {
        let Self { shape, parameters, scratch: Scratch { gradient, before, .. }, .. } = self;
        let (dense, columns) = before.split_at(shape.logits_b().start);
        parameters[..dense.len()].copy_from_slice(dense);
        for (place, value) in gradient.touched_places(shape).zip(columns) {
            parameters[place] = *value;
        }
    }
}

/// Scales `B`, and the column of `D` of each of these tokens, down where its norm times that of the
/// factor before it is beyond the limit.
pub(super) fn limit_norms(
    (shape, settings): (&Shape, &Settings),
    kernels: &Kernels,
    parameters: &mut [f32],
    tokens: impl Iterator<Item = u32>,
) {
    let largest = settings.largest_norm;
    let norm = |values: &[f32]| norm(kernels, values);
    let hidden = norm(&parameters[shape.hidden_a()]) * norm(&parameters[shape.hidden_b()]);
    if hidden > largest {
        parameters[shape.hidden_b()].iter_mut().for_each(|value| *value *= largest / hidden);
    }
    let before = norm(&parameters[shape.logits_a()]);
    for token in tokens {
        let square: f32 = shape.column(token).map(|place| parameters[place] * parameters[place]).sum();
        let logits = before * square.sqrt();
        if logits > largest {
            shape.column(token).for_each(|place| parameters[place] *= largest / logits);
        }
    }
}

fn norm(kernels: &Kernels, values: &[f32]) -> f32 {
    kernels.dot(values, values).sqrt()
}

/// Outcome of a step or an update: `None` without a gradient.
struct Applied {
    is_applied: Option<bool>,
    before: Mean,
    after: Mean,
}

impl Mean {
    fn add(&mut self, score: &Score, count: usize) {
        self.log_probability += score.log_probability / count as f64;
        self.base_log_probability += score.base_log_probability / count as f64;
        self.divergence += score.divergence / count as f64;
    }
}
