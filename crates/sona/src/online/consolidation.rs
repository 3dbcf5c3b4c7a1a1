//! Consolidation of a log: training on a sample of all its lessons, beside the learner.

use std::sync::Arc;

use super::ObservedModel;
use super::options::ConsolidationOptions;
use super::sample::{Logged, Observed, Sample, pieces};
use super::state::State;
use crate::continual::{
    Ewc, Fisher, Gate, GateReport, Learner as _, LossPair, Outcome, Replayed, Report, Skip, Verdict,
    consolidate, train,
};
use crate::error::Result;
use crate::instant::pieces::{Aim, Piece, PieceLearner, layout};
use crate::instant::{InstantLearner, Observations};

/// Task of held-out ordinary text in the report of the gate.
pub const ORDINARY_TASK: u64 = u64::MAX;

/// Consolidation of the lessons of an adapter that has been planned. It trains on its own, while
/// the adapter goes on learning, and is handed back to
/// [`OnlineLearner::finish_consolidation`](super::OnlineLearner::finish_consolidation).
pub struct Consolidation {
    pub(super) plan: Plan,
    /// State when it was planned: where training starts, and what is served meanwhile.
    pub(super) state: State,
    /// Held-out ordinary text, and the judgement of its loss beside that of the base model.
    pub(super) held_out: Vec<Arc<Observations>>,
    pub(super) gate: Gate,
    /// Version of the log when it was planned.
    pub(super) version: (u64, u64),
    /// The learner has the other end: it judges and saves nothing while this is there.
    pub(super) in_flight: Arc<()>,
    /// Lessons that no consolidation had considered.
    pub(super) new_lessons: u64,
    pub(super) trained: Option<Trained>,
}

/// Sample and protection: with the state behind them, a function of the log.
pub(super) struct Plan {
    pub(super) options: ConsolidationOptions,
    /// Log position up to which lessons are in the sample.
    pub(super) through: u64,
    sample: Sample,
    /// Latest task.
    task: u64,
    ewc: Ewc,
}

/// Result of training.
pub(super) struct Trained {
    pub(super) report: Report,
    /// Importance and anchor, which are the new parameters; `None` if the gate has not accepted
    /// them.
    pub(super) ewc: Option<Ewc>,
}

impl Plan {
    /// A plan for the lessons up to `through`, behind the ends of former tasks, from the state
    /// there.
    pub(super) fn new(
        (mut lessons, tasks): (Vec<Logged>, &[u64]),
        through: u64,
        state: &State,
        options: ConsolidationOptions,
    ) -> Result<Self> {
        lessons.retain(|lesson| lesson.sequence <= through);
        let ewc = match &state.consolidated {
            Some(ewc) => ewc.with_settings(options.ewc)?,
            None => Ewc::new(layout(state.learner.shape())?, options.ewc)?,
        };
        let sample = Sample::new(lessons, tasks, &state.learner, options.replay)?;
        Ok(Self { options, through, sample, task: tasks.len() as u64, ewc })
    }

    /// Lack of examples: ordinary text alone teaches nothing.
    fn lack(&self, observed: &Observed) -> Option<Skip> {
        let (got, need) = (observed.train.len(), self.options.training.min_examples);
        (got < need).then_some(Skip::FewExamples { got, need })
    }

    /// Ends the task of the latest lessons at the parameters that were trained.
    fn finish_task(&self, learner: &mut PieceLearner, observed: &Observed) -> Result<Ewc> {
        let is_latest = |piece: &&Replayed<Piece>| piece.task == self.task;
        let latest: Vec<_> = observed.train.iter().filter(is_latest).collect();
        // Every new lesson may be held out.
        let pieces = if latest.is_empty() { observed.train.iter().collect() } else { latest };
        let mut tokens: Vec<Piece> = pieces.iter().flat_map(|piece| piece.example.tokens()).collect();
        let step = tokens.len().div_ceil(self.options.fisher_positions).max(1);
        tokens = tokens.into_iter().step_by(step).collect();
        let fisher = Fisher::empirical(learner, &tokens)?;
        let mut ewc = self.ewc.clone();
        ewc.finish_task(learner.parameters(), fisher)?;
        Ok(ewc)
    }

    /// Repeats a consolidation that was accepted, without judging again. The state stays where
    /// lessons were forgotten and too few are left: false.
    pub(super) fn repeat(&self, state: &mut State, model: &dyn ObservedModel) -> Result<bool> {
        let clip = state.learner.settings().rating_clip;
        let Some(observed) = self.sample.observe(model, clip, &mut || true)? else { return Ok(false) };
        if self.lack(&observed).is_some() {
            return Ok(false);
        }
        let examples = with_ordinary(&observed.train, &state.learner)?;
        let mut learner = PieceLearner::new(state.learner.clone())?;
        if !train(&mut learner, &self.ewc, &references(&examples), &self.options.training)? {
            return Ok(false);
        }
        state.adopt(self.finish_task(&mut learner, &observed)?)?;
        Ok(true)
    }
}

impl Consolidation {
    /// Trains on the sample, measures at its held-out part and at held-out ordinary text, and
    /// judges: all of it beside what is served, ordinary text beside the base model too.
    /// `keep_going` is called between texts and between steps, e.g. to wait for CPU time; false
    /// stops, and nothing comes of it. `None` if that was before the training.
    ///
    /// # Errors
    /// Errors of the model.
    pub fn train(
        &mut self,
        model: &dyn ObservedModel,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<&Report>> {
        let Self { plan, state, held_out, gate, .. } = self;
        let served = &state.learner;
        let clip = served.settings().rating_clip;
        let Some(observed) = plan.sample.observe(model, clip, keep_going)? else { return Ok(None) };
        if let Some(skip) = plan.lack(&observed) {
            let outcome = Outcome::Skipped(skip);
            let report = Report { outcome, steps: 0, training_loss: None, penalty: None, change: None };
            return Ok(Some(&self.trained.insert(Trained { report, ewc: None }).report));
        }
        let mut ordinary = Vec::new();
        for text in &*held_out {
            ordinary.extend(pieces(text, 0..text.len(), Aim::Likelihood)?);
        }
        let mut judged = observed.held_out.clone();
        judged.extend(ordinary.iter().map(|piece| Replayed::new(ORDINARY_TASK, 0, piece.clone())));
        let mut as_served = PieceLearner::new(served.clone())?;
        let mut served_loss = |piece: &Piece| as_served.loss(piece);
        let examples = with_ordinary(&observed.train, served)?;
        let mut learner = PieceLearner::new(served.clone())?;
        let mut report = consolidate(
            &mut learner,
            &plan.ewc,
            &references(&examples),
            &references(&judged),
            &mut served_loss,
            &plan.options.training,
            keep_going,
        )?;
        if matches!(report.outcome, Outcome::Accepted(_))
            && let Some(harm) = harm(&mut learner, &ordinary, gate)?
        {
            report.outcome = Outcome::Rejected(harm);
        }
        let ewc = match report.outcome {
            Outcome::Accepted(_) => Some(plan.finish_task(&mut learner, &observed)?),
            _ => None,
        };
        Ok(Some(&self.trained.insert(Trained { report, ewc }).report))
    }
}

impl Trained {
    /// False if it was stopped before it had a result.
    pub(super) fn is_done(&self) -> bool {
        !matches!(self.report.outcome, Outcome::Skipped(Skip::Stopped { .. }))
    }
}

impl std::fmt::Debug for Consolidation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consolidation")
            .field("through", &self.plan.through)
            .field("new_lessons", &self.new_lessons)
            .finish_non_exhaustive()
    }
}

/// Judgement of ordinary text beside the base model, if that shows harm.
fn harm(learner: &mut PieceLearner, ordinary: &[Piece], gate: &Gate) -> Result<Option<GateReport>> {
    let mut pairs = Vec::with_capacity(ordinary.len());
    for piece in ordinary {
        let (before, after) = (learner.base_loss(piece)?, learner.loss(piece)?);
        pairs.push(LossPair { task: ORDINARY_TASK, before, after });
    }
    let report = gate.judge(&pairs)?;
    Ok(report.filter(|report| matches!(report.verdict, Verdict::TaskWorse { .. })))
}

/// Examples of lessons with the kept ordinary positions, whose mean divergence has the weight
/// beside the mean loss of the lessons that it has in the instant loop.
fn with_ordinary(lessons: &[Replayed<Piece>], learner: &InstantLearner) -> Result<Vec<Piece>> {
    let mut examples: Vec<Piece> = lessons.iter().map(|lesson| lesson.example.clone()).collect();
    let weight = learner.settings().anchor_weight;
    let ordinary = Arc::new(learner.ordinary().clone());
    let count = pieces(&ordinary, 0..ordinary.len(), Aim::Likelihood)?.len();
    if count > 0 && weight > 0.0 {
        let weight = weight * lessons.len() as f32 / count as f32;
        examples.extend(pieces(&ordinary, 0..ordinary.len(), Aim::Base { weight })?);
    }
    Ok(examples)
}

fn references<T>(of: &[T]) -> Vec<&T> {
    of.iter().collect()
}
