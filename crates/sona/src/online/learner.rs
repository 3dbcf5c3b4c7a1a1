//! Learner of an adapter: lessons, judgements, quarantine, consolidation.

use std::sync::{Arc, Weak};

use sha2::{Digest as _, Sha256};

use super::consolidation::{Consolidation, Plan, Trained};
use super::event::{ConsolidationEvent, LessonEvent, OrdinaryEvent, QuarantineEvent, ReleaseEvent};
use super::sample::EXAMPLE_POSITIONS;
use super::state::State;
use super::text::{observe, observe_all, taught_text};
use super::{ObservedModel, OnlineOptions, OnlineStatus, Standing, Taught, TaughtText};
use crate::continual::{Ewc, GateReport, LossPair, Outcome, Report, Verdict};
use crate::error::Result;
use crate::instant::{InstantLearner, Lesson, Observations, Snapshot, Update};
use crate::store::{ForgetScope, Forgotten, LearningStore, NewSnapshot, SnapshotKind};
use crate::trajectory::{StoredTrajectory, TrajectoryId};

/// Tokens from which on a text can be an outlier.
const OUTLIER_TOKENS: usize = 8;

/// Learner of one adapter of a tenant, with its log and snapshots in a store.
pub struct OnlineLearner {
    pub(super) state: State,
    /// State without lessons.
    pub(super) fresh: Snapshot,
    pub(super) store: LearningStore,
    pub(super) tenant: String,
    pub(super) adapter: String,
    pub(super) options: OnlineOptions,
    pub(super) settings: [u8; 32],
    /// Log position of the current state.
    pub(super) through: u64,
    pub(super) lessons: u64,
    /// Ordinary texts in the log that are in effect.
    pub(super) ordinary: u64,
    /// Lessons since the gate has judged.
    pub(super) unjudged: u64,
    /// Losses at those of them that were ratings, before they were learned.
    pub(super) rated: Vec<LossPair>,
    pub(super) standing: Standing,
    /// Held-out ordinary positions; empty until the gate needs them.
    held_out: Vec<Arc<Observations>>,
    pub(super) harm: Option<f64>,
    fault: Option<String>,
    /// Lessons that no consolidation has considered.
    pub(super) new_lessons: u64,
    /// Consolidations that the gate has rejected.
    pub(super) rejected: u64,
    /// Times that the state was read from the store.
    pub(super) reloads: u64,
    /// Consolidation that trains: until it ends, nothing is judged or saved, so that the log leads
    /// from a snapshot to the state in which it began.
    in_flight: Weak<()>,
}

impl OnlineLearner {
    /// Continues the adapter of a tenant as its log says, or begins it with `learner`, which has
    /// learned nothing.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting); errors of the store and of the model;
    /// [`Error::Foreign`](crate::Error::Foreign) for a log of other settings.
    pub fn open(
        learner: InstantLearner,
        store: LearningStore,
        (tenant, adapter): (&str, &str),
        options: OnlineOptions,
        model: &dyn ObservedModel,
    ) -> Result<Self> {
        options.check()?;
        let settings = format!("{:?} {:?} {:?}", model.digest()?, learner.shape(), learner.settings());
        let mut opened = Self {
            fresh: learner.snapshot(),
            state: State { learner, consolidated: None },
            store,
            tenant: tenant.to_owned(),
            adapter: adapter.to_owned(),
            options,
            settings: Sha256::digest(settings).into(),
            through: 0,
            lessons: 0,
            ordinary: 0,
            unjudged: 0,
            rated: Vec::new(),
            standing: Standing::Learning,
            held_out: Vec::new(),
            harm: None,
            fault: None,
            new_lessons: 0,
            rejected: 0,
            reloads: 0,
            in_flight: Weak::new(),
        };
        opened.reload(model)?;
        Ok(opened)
    }

    /// The learner: its parameters are those that requests should use.
    pub fn learner(&self) -> &InstantLearner {
        &self.state.learner
    }

    /// The store.
    pub fn store(&self) -> &LearningStore {
        &self.store
    }

    /// Logs a lesson on these trajectories, and learns it.
    ///
    /// # Errors
    /// [`Error::Empty`](crate::Error::Empty) for a text without prompt or response; errors of the
    /// model and of the store. Nothing is learned then.
    pub fn teach(
        &mut self,
        model: &dyn ObservedModel,
        text: &TaughtText,
        trajectories: &[TrajectoryId],
    ) -> Result<Taught> {
        if self.standing != Standing::Learning {
            return Ok(Taught::Quarantined);
        }
        let observations = observe(model, text)?;
        if let Some(log_probability) = self.outlier(&observations, text)? {
            return Ok(Taught::Outlier { log_probability });
        }
        self.meet_ordinary(model)?;
        let event = LessonEvent::new(text);
        let sequence = self.append(&event, trajectories)?;
        let update = self.state.learner.learn(&observations, text.lesson)?;
        self.through = sequence;
        (self.lessons, self.new_lessons) = (self.lessons + 1, self.new_lessons + 1);
        self.unjudged += 1;
        self.rated.extend(rated(text.lesson, &update));
        let is_due = self.unjudged >= self.options.gate_lessons && self.in_flight.strong_count() == 0;
        let judged = if is_due { self.judge(model)? } else { None };
        Ok(Taught::Learned { sequence, update, judged })
    }

    /// Learns from the latest feedback on a trajectory; `None` if it teaches nothing.
    ///
    /// # Errors
    /// As [`teach`](Self::teach).
    pub fn teach_trajectory(
        &mut self,
        model: &dyn ObservedModel,
        stored: &StoredTrajectory,
    ) -> Result<Option<Taught>> {
        let Some(text) = stored.feedback.last().and_then(|feedback| taught_text(stored, feedback)) else {
            return Ok(None);
        };
        self.teach(model, &text, &[stored.id]).map(Some)
    }

    /// Measures the current state at held-out ordinary text. `None` if that is too short to say
    /// anything.
    ///
    /// # Errors
    /// Errors of the model.
    pub fn measure(&mut self, model: &dyn ObservedModel) -> Result<Option<GateReport>> {
        self.hold_out(model)?;
        let mut pairs = Vec::new();
        for text in &self.held_out {
            let scores = self.state.learner.scores(text)?;
            pairs.extend(scores.chunks_exact(EXAMPLE_POSITIONS).map(|example| {
                let mean = |sum: f64| -sum / EXAMPLE_POSITIONS as f64;
                LossPair {
                    task: 0,
                    before: mean(example.iter().map(|score| score.base_log_probability).sum()),
                    after: mean(example.iter().map(|score| score.log_probability).sum()),
                }
            }));
        }
        let report = self.options.gate.judge(&pairs)?;
        self.harm = report.as_ref().map(|report| report.overall.difference());
        Ok(report)
    }

    /// Observes held-out ordinary text, once.
    fn hold_out(&mut self, model: &dyn ObservedModel) -> Result<()> {
        if self.held_out.is_empty() {
            // Odd seeds: the even ones are those at which learning is held to the base.
            let seeds: Vec<u64> = (0..self.options.held_out_texts).map(|text| 2 * text + 1).collect();
            let texts = model.ordinary_texts(&seeds)?.into_iter();
            self.held_out =
                texts.map(|text| observe_all(model, &text).map(Arc::new)).collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// Judges the current state at held-out ordinary text and at what was rated since the last
    /// judgement: saves a snapshot of it, or goes back to the last clean one. The report is that of
    /// the texts which decided.
    ///
    /// # Errors
    /// Errors of the model and of the store; a snapshot that cannot be saved is no error but a
    /// [fault](OnlineStatus::fault).
    pub fn judge(&mut self, model: &dyn ObservedModel) -> Result<Option<GateReport>> {
        let ordinary = self.measure(model)?;
        let rated = self.options.rated.judge(&self.rated)?;
        let mut kind = SnapshotKind::Clean;
        let mut decided = None;
        for (report, is_needed) in [(&ordinary, true), (&rated, false)] {
            match report.as_ref().map(|report| &report.verdict) {
                Some(Verdict::TaskWorse { lower, .. }) => {
                    self.quarantine(*lower, model)?;
                    return Ok(report.clone());
                }
                Some(Verdict::Accepted) => continue,
                None if !is_needed => continue,
                Some(Verdict::NotShownHarmless { .. }) | None => kind = SnapshotKind::Tentative,
            }
            decided = decided.or_else(|| report.clone());
        }
        // Few texts are learned by heart; the learner keeps the latest.
        self.write_ordinary(self.options.fresh_texts, model)?;
        self.save(kind);
        Ok(decided.or(ordinary))
    }

    /// Plans a consolidation of the lessons in effect; `None` if too few of them are
    /// [new](super::ConsolidationOptions::lessons), or the adapter is in quarantine.
    ///
    /// # Errors
    /// Errors of the store and of the model.
    pub fn plan_consolidation(&mut self, model: &dyn ObservedModel) -> Result<Option<Consolidation>> {
        let options = self.options.consolidation;
        if self.standing != Standing::Learning || self.new_lessons < options.lessons {
            return Ok(None);
        }
        self.hold_out(model)?;
        let (lessons, tasks) = self.logged(u64::MAX)?;
        let in_flight = Arc::new(());
        self.in_flight = Arc::downgrade(&in_flight);
        Ok(Some(Consolidation {
            plan: Plan::new((lessons, &tasks), self.through, &self.state, options)?,
            state: self.state.clone(),
            in_flight,
            held_out: self.held_out.clone(),
            gate: self.options.gate,
            version: self.version(),
            new_lessons: self.new_lessons,
            trained: None,
        }))
    }

    /// Takes the result of a consolidation: what the gate has accepted replaces the parameters, and
    /// lessons that came meanwhile are learned again on top. False if the result is void: it was
    /// stopped, the adapter was rolled back or data was forgotten meanwhile, or new ordinary text
    /// came, to which the result is not held. It can be planned again then.
    ///
    /// # Errors
    /// Errors of the store and of the model.
    pub fn finish_consolidation(&mut self, model: &dyn ObservedModel, of: Consolidation) -> Result<bool> {
        let Consolidation { plan, mut state, version, new_lessons, trained, in_flight, .. } = of;
        drop(in_flight);
        let Some(trained) = trained.filter(Trained::is_done) else { return Ok(false) };
        if version != self.version() || self.standing != Standing::Learning {
            return Ok(false);
        }
        let is_judged = !matches!(trained.report.outcome, Outcome::Skipped(_));
        if is_judged {
            let is_accepted = trained.ewc.is_some();
            let event = ConsolidationEvent { through: plan.through, is_accepted, options: plan.options };
            self.through = self.append(&event, &[])?;
        }
        self.new_lessons = self.new_lessons.saturating_sub(new_lessons);
        let Some(ewc) = trained.ewc else {
            self.rejected += u64::from(is_judged);
            return Ok(true);
        };
        state.adopt(ewc)?;
        self.learn_between((plan.through, self.through), &mut state, model)?;
        self.state = state;
        self.judge(model)?;
        Ok(true)
    }

    /// Plans, trains and takes a consolidation at once; `None` if there was nothing to do or it was
    /// stopped.
    ///
    /// # Errors
    /// Errors of the store and of the model.
    pub fn consolidate(
        &mut self,
        model: &dyn ObservedModel,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Report>> {
        let Some(mut consolidation) = self.plan_consolidation(model)? else { return Ok(None) };
        let Some(report) = consolidation.train(model, keep_going)?.cloned() else { return Ok(None) };
        Ok(self.finish_consolidation(model, consolidation)?.then_some(report))
    }

    /// Version of all that a planned consolidation depends on besides lessons.
    fn version(&self) -> (u64, u64) {
        (self.reloads, self.ordinary)
    }

    /// Saves a snapshot of the current state. A fault is kept for the status.
    fn save(&mut self, kind: SnapshotKind) {
        let bytes = self.state.to_bytes();
        let (tenant, adapter, through) = (self.tenant.as_str(), self.adapter.as_str(), self.through);
        let saved = self.store.save_snapshot(&NewSnapshot { tenant, adapter, kind, through, bytes: &bytes });
        self.fault = saved.err().map(|error| error.to_string());
        if self.fault.is_none() {
            self.unjudged = 0;
            self.rated.clear();
        }
    }

    /// Goes back to the last clean snapshot and learns nothing until [`release`](Self::release).
    fn quarantine(&mut self, harm: f64, model: &dyn ObservedModel) -> Result<()> {
        let start = self.store.replay_start(&self.tenant, &self.adapter, SnapshotKind::Clean)?;
        let version = start.snapshot.map(|info| info.version);
        self.store.roll_back(&self.tenant, &self.adapter, version)?;
        self.append(&QuarantineEvent { harm }, &[])?;
        self.reload(model)
    }

    /// Ends a quarantine: the adapter learns again from its last clean snapshot.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn release(&mut self) -> Result<()> {
        if self.standing != Standing::Learning {
            self.through = self.append(&ReleaseEvent, &[])?;
            self.standing = Standing::Learning;
        }
        Ok(())
    }

    /// Goes back to a snapshot; `None`: to the base.
    ///
    /// # Errors
    /// [`Error::UnknownSnapshot`](crate::Error::UnknownSnapshot); errors of the store and of the
    /// model.
    pub fn roll_back(&mut self, version: Option<u64>, model: &dyn ObservedModel) -> Result<()> {
        self.store.roll_back(&self.tenant, &self.adapter, version)?;
        self.reload(model)
    }

    /// Keeps positions of ordinary traffic, at which later lessons hold the model to its base.
    ///
    /// # Errors
    /// Errors of the model and of the store; nothing is kept then.
    pub fn observe_ordinary(&mut self, tokens: &[u32], model: &dyn ObservedModel) -> Result<()> {
        let observations = observe_all(model, tokens)?;
        self.through = self.append(&OrdinaryEvent { tokens: tokens.to_vec() }, &[])?;
        self.ordinary += 1;
        observations.iter().try_for_each(|position| self.state.learner.observe_ordinary(position))
    }

    /// Before the first lesson: ordinary text to hold on to, and a snapshot with it.
    fn meet_ordinary(&mut self, model: &dyn ObservedModel) -> Result<()> {
        if self.state.learner.ordinary_positions() > 0 {
            return Ok(());
        }
        self.write_ordinary(self.options.ordinary_texts, model)?;
        self.save(SnapshotKind::Clean);
        Ok(())
    }

    /// Keeps positions of `count` texts of ordinary traffic that were not used before.
    fn write_ordinary(&mut self, count: u64, model: &dyn ObservedModel) -> Result<()> {
        let seeds: Vec<u64> = (self.ordinary..self.ordinary + count).map(|text| 2 * text).collect();
        let texts = if seeds.is_empty() { Vec::new() } else { model.ordinary_texts(&seeds)? };
        texts.iter().try_for_each(|text| self.observe_ordinary(text, model))
    }

    /// Removes data of the tenant from the store, and its influence from this adapter.
    ///
    /// # Errors
    /// Errors of the store, with nothing removed; errors of the model while the log behind the last
    /// clean snapshot is learned again.
    pub fn forget(&mut self, scope: ForgetScope, model: &dyn ObservedModel) -> Result<Forgotten> {
        let forgotten = self.store.forget(&self.tenant, scope)?;
        self.reload(model)?;
        Ok(forgotten)
    }

    /// Counters and measurements.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn status(&self) -> Result<OnlineStatus> {
        let Self { state, standing, lessons, through, harm, fault, .. } = self;
        let learner = &state.learner;
        Ok(OnlineStatus {
            standing: *standing,
            lessons: *lessons,
            updates: learner.updates(),
            baseline: learner.baseline(),
            norms: learner.norms(),
            through: *through,
            snapshot: self.store.current_snapshot(&self.tenant, &self.adapter)?,
            harm: *harm,
            fault: fault.clone(),
            new_lessons: self.new_lessons,
            consolidations: [state.consolidated.as_ref().map_or(0, Ewc::tasks), self.rejected],
            digest: state.digest(),
        })
    }

    /// Mean log-probability of a text that is too improbable to be taught.
    fn outlier(&mut self, observations: &Observations, text: &TaughtText) -> Result<Option<f64>> {
        let is_raised = match text.lesson {
            Lesson::Corrected => true,
            Lesson::Rated(rating) => rating.value() > 0.0,
        };
        if !is_raised || observations.len() < OUTLIER_TOKENS {
            return Ok(None);
        }
        let scores = self.state.learner.scores(observations)?;
        let sum: f64 = scores.iter().map(|score| score.base_log_probability).sum();
        let mean = sum / scores.len() as f64;
        Ok((mean < self.options.outlier_log_probability).then_some(mean))
    }
}

impl std::fmt::Debug for OnlineLearner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tenant, adapter, through, standing, .. } = self;
        f.debug_struct("OnlineLearner")
            .field("tenant", tenant)
            .field("adapter", adapter)
            .field("through", through)
            .field("standing", standing)
            .finish_non_exhaustive()
    }
}

/// Losses at a text that is rated, under the base model and before the lesson.
pub(super) fn rated(lesson: Lesson, update: &Update) -> Option<LossPair> {
    let (before, after) = (-update.base_log_probability, -update.log_probability_before);
    matches!(lesson, Lesson::Rated(_)).then_some(LossPair { task: 0, before, after })
}
