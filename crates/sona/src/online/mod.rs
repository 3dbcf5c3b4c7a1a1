//! Online learning: each feedback is logged, learned, and from time to time judged at held-out
//! ordinary text.
//!
//! ```text
//! feedback ─▶ log on disk ─▶ InstantLearner ─▶ gate ─┬─ harmless: clean snapshot
//!                                                    ├─ not sure: tentative snapshot
//!                                                    └─ harmful: back to the last clean one, quarantine
//! ```
//!
//! Harm is a rise of the loss at ordinary text, or at rated texts before they are learned: ratings
//! then go against all text of a kind that the adapter has long ceased to write.
//!
//! The log comes first: a process that is killed at any moment goes on with the state that its log
//! says, bit by bit. Engines implement [`ObservedModel`].

mod event;
mod options;
#[cfg(test)]
mod tests;
mod text;

use std::ops::Range;

use sha2::{Digest as _, Sha256};

use self::event::{LessonEvent, OrdinaryEvent, QuarantineEvent, ReleaseEvent};
use self::text::{observe, observe_all, taught_text};
use crate::continual::{GateReport, LossPair, Verdict};
use crate::error::{Error, Result};
use crate::instant::{InstantLearner, Lesson, Observations, Snapshot, Update};
use crate::store::{
    ForgetScope, Forgotten, LearningEvent, LearningStore, NewEvent, NewSnapshot, SnapshotInfo, SnapshotKind,
};
use crate::trajectory::{StoredTrajectory, TrajectoryId};

pub use self::options::OnlineOptions;
pub use self::text::TaughtText;

/// Events read from the log at once.
const PAGE: usize = 64;
/// Positions of held-out ordinary text whose mean loss is one example of the gate.
const EXAMPLE_POSITIONS: usize = 16;
/// Tokens from which on a text can be an outlier.
const OUTLIER_TOKENS: usize = 8;

/// Model whose last products learn.
pub trait ObservedModel {
    /// Digest of the weights: a log belongs to one model.
    ///
    /// # Errors
    /// [`Error::Model`].
    fn digest(&self) -> Result<[u8; 32]>;

    /// Runs a text through the model, without adapters, and observes the `targets`: positions of
    /// tokens that are taught, from 1 on. Equal texts give equal bits.
    ///
    /// # Errors
    /// [`Error::Model`].
    fn observe(&self, tokens: &[u32], targets: Range<usize>) -> Result<Observations>;

    /// Texts of ordinary traffic; without any, those that the model writes itself with these seeds.
    ///
    /// # Errors
    /// [`Error::Model`].
    fn ordinary_texts(&self, seeds: &[u64]) -> Result<Vec<Vec<u32>>>;
}

/// Fate of a lesson.
#[derive(Debug, Clone, PartialEq)]
pub enum Taught {
    /// It was logged and learned.
    Learned {
        /// Position in the log.
        sequence: u64,
        /// Measurements of the update.
        update: Update,
        /// Judgement of the gate, if it was due.
        judged: Option<GateReport>,
    },
    /// The correction, or the text that is rated above 0, is so improbable that it is taken for
    /// noise; nothing was learned.
    Outlier {
        /// Mean log-probability of its tokens under the base model, in nats.
        log_probability: f64,
    },
    /// The adapter is in quarantine; nothing was learned.
    Quarantined,
}

/// Standing of an adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing {
    /// It learns.
    Learning,
    /// It has harmed ordinary text, is back at its last clean snapshot, and learns nothing until it
    /// is released.
    Quarantined {
        /// Wall clock in milliseconds since 1970.
        since_ms: u64,
        /// Lower 95 % bound of the rise of the loss at ordinary text, or at rated texts, in nats.
        harm: f64,
    },
}

/// State of a learner, in numbers that were counted or measured.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OnlineStatus {
    /// Standing.
    pub standing: Standing,
    /// Lessons in the log that are in effect.
    pub lessons: u64,
    /// Steps of updates applied.
    pub updates: u64,
    /// Running mean of the ratings.
    pub baseline: f32,
    /// Bounds of the Frobenius norms of the updates of the hidden state and of the logits.
    pub norms: [f32; 2],
    /// Events included in the current state.
    pub through: u64,
    /// Snapshot that the current state goes back to, if any.
    pub snapshot: Option<SnapshotInfo>,
    /// Rise of the mean loss at held-out ordinary text when it was last judged by this process.
    pub harm: Option<f64>,
    /// Fault of the latest snapshot; it is tried again with the next lesson.
    pub fault: Option<String>,
    /// SHA-256 of the state.
    pub digest: [u8; 32],
}

/// Result of a replay of the whole log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Lessons learned again.
    pub lessons: u64,
    /// SHA-256 of the state that the log gives.
    pub digest: [u8; 32],
    /// True if the current state has the same bits.
    pub is_equal: bool,
}

/// Learner of one adapter of a tenant, with its log and snapshots in a store.
pub struct OnlineLearner {
    learner: InstantLearner,
    /// State without lessons.
    fresh: Snapshot,
    store: LearningStore,
    tenant: String,
    adapter: String,
    options: OnlineOptions,
    settings: [u8; 32],
    /// Log position of the current state.
    through: u64,
    lessons: u64,
    /// Ordinary texts in the log that are in effect.
    ordinary: u64,
    /// Lessons since the gate has judged.
    unjudged: u64,
    /// Losses at those of them that were ratings, before they were learned.
    rated: Vec<LossPair>,
    standing: Standing,
    /// Held-out ordinary positions; empty until the gate needs them.
    held_out: Vec<Observations>,
    harm: Option<f64>,
    fault: Option<String>,
}

impl OnlineLearner {
    /// Continues the adapter of a tenant as its log says, or begins it with `learner`, which has
    /// learned nothing.
    ///
    /// # Errors
    /// [`Error::Setting`]; errors of the store and of the model; [`Error::Foreign`] for a log of
    /// other settings.
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
            learner,
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
        };
        opened.reload(model)?;
        Ok(opened)
    }

    /// The learner: its parameters are those that requests should use.
    pub fn learner(&self) -> &InstantLearner {
        &self.learner
    }

    /// The store.
    pub fn store(&self) -> &LearningStore {
        &self.store
    }

    /// Logs a lesson on these trajectories, and learns it.
    ///
    /// # Errors
    /// [`Error::Empty`] for a text without prompt or response; errors of the model and of the
    /// store. Nothing is learned then.
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
        let update = self.learner.learn(&observations, text.lesson)?;
        (self.through, self.lessons, self.unjudged) = (sequence, self.lessons + 1, self.unjudged + 1);
        self.rated.extend(rated(text.lesson, &update));
        let judged = if self.unjudged >= self.options.gate_lessons { self.judge(model)? } else { None };
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
        if self.held_out.is_empty() {
            // Odd seeds: the even ones are those at which learning is held to the base.
            let seeds: Vec<u64> = (0..self.options.held_out_texts).map(|text| 2 * text + 1).collect();
            let texts = model.ordinary_texts(&seeds)?;
            self.held_out = texts.iter().map(|text| observe_all(model, text)).collect::<Result<_>>()?;
        }
        let mut pairs = Vec::new();
        for text in &self.held_out {
            let scores = self.learner.scores(text)?;
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

    /// Saves a snapshot of the current state. A fault is kept for the status.
    fn save(&mut self, kind: SnapshotKind) {
        let bytes = self.learner.snapshot().to_bytes();
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
    /// [`Error::UnknownSnapshot`]; errors of the store and of the model.
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
        observations.iter().try_for_each(|position| self.learner.observe_ordinary(position))
    }

    /// Before the first lesson: ordinary text to hold on to, and a snapshot with it.
    fn meet_ordinary(&mut self, model: &dyn ObservedModel) -> Result<()> {
        if self.learner.ordinary_positions() > 0 {
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

    /// Lessons of the log that are in effect, in their order.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Record`] for a damaged payload.
    pub fn lessons(&self) -> Result<Vec<TaughtText>> {
        let mut lessons = Vec::new();
        self.each_event(|event| {
            lessons.extend(event.payload::<LessonEvent>()?.map(LessonEvent::text).transpose()?);
            Ok(())
        })?;
        Ok(lessons)
    }

    /// Learns the whole log again from the base, beside the current state, and compares.
    ///
    /// # Errors
    /// Errors of the store and of the model; [`Error::Record`] for a log that was trimmed.
    pub fn replay(&self, model: &dyn ObservedModel) -> Result<Replay> {
        let mut learner = self.learner.clone();
        learner.restore(&self.fresh)?;
        let mut lessons = 0;
        self.each_event(|event| {
            lessons += u64::from(self.apply(&mut learner, event, model)?.is_some());
            Ok(())
        })?;
        let digest = digest(&learner);
        Ok(Replay { lessons, digest, is_equal: digest == self::digest(&self.learner) })
    }

    /// Counters and measurements.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn status(&self) -> Result<OnlineStatus> {
        let Self { learner, standing, lessons, through, harm, fault, .. } = self;
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
            digest: digest(learner),
        })
    }

    /// Takes the state that the store says: latest snapshot, and the events behind it. Needed after
    /// data was removed through another learner of the tenant.
    ///
    /// # Errors
    /// Errors of the store and of the model.
    pub fn reload(&mut self, model: &dyn ObservedModel) -> Result<()> {
        self.learner.restore(&self.fresh)?;
        (self.standing, self.unjudged, self.harm) = (Standing::Learning, 0, None);
        self.rated.clear();
        let start = self.store.replay_start(&self.tenant, &self.adapter, SnapshotKind::Tentative)?;
        if let Some(info) = &start.snapshot {
            let snapshot = self.store.snapshot(&self.tenant, &self.adapter, info.version)?;
            self.learner.restore(&Snapshot::from_bytes(&snapshot.bytes)?)?;
        }
        self.through = start.after;
        let (mut lessons, mut ordinary, mut behind) = (0, 0, Vec::new());
        self.each_event(|event| {
            lessons += u64::from(event.event.kind == event::LESSON);
            ordinary += u64::from(event.event.kind == event::ORDINARY);
            if event.sequence > start.after {
                behind.push(event);
            }
            Ok(())
        })?;
        (self.lessons, self.ordinary) = (lessons, ordinary);
        let mut learner = self.learner.clone();
        for event in behind {
            if let Some(QuarantineEvent { harm }) = event.payload()? {
                self.standing = Standing::Quarantined { since_ms: event.event.created_ms, harm };
            } else if event.event.kind == event::RELEASE {
                self.standing = Standing::Learning;
            }
            self.through = event.sequence;
            if let Some((lesson, update)) = self.apply(&mut learner, event, model)? {
                self.unjudged += 1;
                self.rated.extend(rated(lesson, &update));
            }
        }
        self.learner = learner;
        Ok(())
    }

    /// Passes the events of the adapter that are in effect to `work`.
    fn each_event(&self, mut work: impl FnMut(LearningEvent) -> Result<()>) -> Result<()> {
        let mut after = 0;
        loop {
            let page = self.store.replay_events(&self.tenant, &self.adapter, after, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.sequence;
            page.into_iter().try_for_each(&mut work)?;
        }
    }

    /// Repeats an event; the update of a lesson.
    fn apply(
        &self,
        learner: &mut InstantLearner,
        event: LearningEvent,
        model: &dyn ObservedModel,
    ) -> Result<Option<(Lesson, Update)>> {
        if event.event.settings != self.settings {
            return Err(Error::Foreign { what: "the feedback log", of: "model or learner's settings" });
        }
        if let Some(lesson) = event.payload::<LessonEvent>()? {
            let text = lesson.text()?;
            let update = learner.learn(&observe(model, &text)?, text.lesson)?;
            return Ok(Some((text.lesson, update)));
        }
        if let Some(OrdinaryEvent { tokens }) = event.payload()? {
            let observations = model.observe(&tokens, 1..tokens.len())?;
            observations.iter().try_for_each(|position| learner.observe_ordinary(position))?;
        }
        Ok(None)
    }

    fn append<P: crate::store::EventPayload>(&self, payload: &P, of: &[TrajectoryId]) -> Result<u64> {
        let mut event = NewEvent::new(&self.tenant, &self.adapter, self.settings, payload);
        event.trajectories = of.to_vec();
        let sequences = self.store.append_events(&[event])?;
        sequences.first().copied().ok_or(Error::Empty { what: "answer of the store" })
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
        let scores = self.learner.scores(observations)?;
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
fn rated(lesson: Lesson, update: &Update) -> Option<LossPair> {
    let (before, after) = (-update.base_log_probability, -update.log_probability_before);
    matches!(lesson, Lesson::Rated(_)).then_some(LossPair { task: 0, before, after })
}

fn digest(learner: &InstantLearner) -> [u8; 32] {
    Sha256::digest(learner.snapshot().to_bytes()).into()
}
