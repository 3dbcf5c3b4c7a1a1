//! The log of an adapter: reading it, and repeating what it says.

use super::consolidation::Plan;
use super::event::{self, ConsolidationEvent, LessonEvent, OrdinaryEvent, QuarantineEvent};
use super::learner::{OnlineLearner, rated};
use super::sample::Logged;
use super::state::State;
use super::text::observe;
use super::{ObservedModel, Replay, Standing, TaughtText};
use crate::error::{Error, Result};
use crate::instant::{Lesson, Update};
use crate::store::{EventPayload, LearningEvent, NewEvent, SnapshotKind};
use crate::trajectory::TrajectoryId;

/// Events read from the log at once.
const PAGE: usize = 64;

impl OnlineLearner {
    /// Lessons of the log that are in effect, in their order.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Record`] for a damaged payload.
    pub fn lessons(&self) -> Result<Vec<TaughtText>> {
        let mut lessons = Vec::new();
        self.each_event(0, |event| {
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
        let mut fresh = self.state.clone();
        fresh.reset(&self.fresh)?;
        let mut repeated = Repeated::new(fresh, 0, self.counts()?.starts);
        let mut lessons = 0;
        self.each_event(0, |event| {
            lessons += u64::from(self.apply(&mut repeated, event, model)?.is_some());
            Ok(())
        })?;
        let digest = repeated.state.digest();
        Ok(Replay { lessons, digest, is_equal: digest == self.state.digest() })
    }

    /// Takes the state that the store says: latest snapshot, and the events behind it. Needed after
    /// data was removed through another learner of the tenant.
    ///
    /// # Errors
    /// Errors of the store and of the model.
    pub fn reload(&mut self, model: &dyn ObservedModel) -> Result<()> {
        self.reloads += 1;
        self.state.reset(&self.fresh)?;
        (self.standing, self.unjudged, self.harm) = (Standing::Learning, 0, None);
        self.rated.clear();
        let start = self.store.replay_start(&self.tenant, &self.adapter, SnapshotKind::Tentative)?;
        if let Some(info) = &start.snapshot {
            let snapshot = self.store.snapshot(&self.tenant, &self.adapter, info.version)?;
            self.state.restore(&snapshot.bytes, self.options.consolidation.ewc)?;
        }
        self.through = start.after;
        let mut behind = Vec::new();
        self.each_event(start.after, |event| {
            behind.push(event);
            Ok(())
        })?;
        let Counts { lessons, ordinary, new, rejected, starts } = self.counts()?;
        (self.lessons, self.ordinary, self.new_lessons, self.rejected) = (lessons, ordinary, new, rejected);
        let mut repeated = Repeated::new(self.state.clone(), start.after, starts);
        for event in behind {
            if let Some(QuarantineEvent { harm }) = event.payload()? {
                self.standing = Standing::Quarantined { since_ms: event.event.created_ms, harm };
            } else if event.event.kind == event::RELEASE {
                self.standing = Standing::Learning;
            }
            self.through = event.sequence;
            if let Some((lesson, update)) = self.apply(&mut repeated, event, model)? {
                self.unjudged += 1;
                self.rated.extend(rated(lesson, &update));
            }
        }
        self.state = repeated.state;
        Ok(())
    }

    /// Counts events by their kind.
    fn counts(&self) -> Result<Counts> {
        let (mut lessons, mut considered, mut counts) = (Vec::new(), 0, Counts::default());
        self.each_event(0, |event| {
            match event.event.kind {
                event::LESSON => lessons.push(event.sequence),
                event::ORDINARY => counts.ordinary += 1,
                event::CONSOLIDATION if !event.is_trimmed => {
                    if let Some(ConsolidationEvent { through, is_accepted, .. }) = event.payload()? {
                        considered = through;
                        counts.rejected += u64::from(!is_accepted);
                        counts.starts.extend(is_accepted.then_some(through));
                    }
                }
                _ => (),
            }
            Ok(())
        })?;
        counts.lessons = lessons.len() as u64;
        counts.new = lessons.iter().filter(|sequence| **sequence > considered).count() as u64;
        Ok(counts)
    }

    /// Lessons of the log before a position, and the ends of the tasks that were consolidated
    /// there. Trimmed ones are gone.
    pub(super) fn logged(&self, before: u64) -> Result<(Vec<Logged>, Vec<u64>)> {
        let (mut lessons, mut tasks) = (Vec::new(), Vec::new());
        self.each_event(0, |event| {
            let sequence = event.sequence;
            if sequence >= before || event.is_trimmed {
                return Ok(());
            }
            if let Some(lesson) = event.payload::<LessonEvent>()? {
                lessons.push(Logged { sequence, text: lesson.text()? });
            } else if let Some(ConsolidationEvent { through, is_accepted: true, .. }) = event.payload()? {
                tasks.push(through);
            }
            Ok(())
        })?;
        Ok((lessons, tasks))
    }

    /// Learns lessons behind a position and before another one.
    pub(super) fn learn_between(
        &self,
        (after, before): (u64, u64),
        state: &mut State,
        model: &dyn ObservedModel,
    ) -> Result<()> {
        self.each_event(after, |event| {
            if event.sequence < before
                && let Some(lesson) = event.payload::<LessonEvent>()?
            {
                let text = lesson.text()?;
                state.learner.learn(&observe(model, &text)?, text.lesson)?;
            }
            Ok(())
        })
    }

    /// Passes the events of the adapter behind a position that are in effect to `work`.
    fn each_event(&self, mut after: u64, mut work: impl FnMut(LearningEvent) -> Result<()>) -> Result<()> {
        loop {
            let page = self.store.replay_events(&self.tenant, &self.adapter, after, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.sequence;
            page.into_iter().try_for_each(&mut work)?;
        }
    }

    /// Appends an event of these trajectories; its position.
    pub(super) fn append<P: EventPayload>(&self, payload: &P, of: &[TrajectoryId]) -> Result<u64> {
        let mut event = NewEvent::new(&self.tenant, &self.adapter, self.settings, payload)?;
        event.trajectories = of.to_vec();
        let sequences = self.store.append_events(&[event])?;
        sequences.first().copied().ok_or(Error::Empty { what: "answer of the store" })
    }

    /// Repeats an event; the update of a lesson.
    fn apply(
        &self,
        repeated: &mut Repeated,
        event: LearningEvent,
        model: &dyn ObservedModel,
    ) -> Result<Option<(Lesson, Update)>> {
        if event.event.settings != self.settings {
            return Err(Error::Foreign { what: "the feedback log", of: "model or learner's settings" });
        }
        repeated.arrive(event.sequence);
        let learner = &mut repeated.state.learner;
        if let Some(lesson) = event.payload::<LessonEvent>()? {
            let text = lesson.text()?;
            let update = learner.learn(&observe(model, &text)?, text.lesson)?;
            return Ok(Some((text.lesson, update)));
        }
        if let Some(OrdinaryEvent { tokens }) = event.payload()? {
            let observations = model.observe(&tokens, 1..tokens.len())?;
            observations.iter().try_for_each(|position| learner.observe_ordinary(position))?;
        }
        if let Some(ConsolidationEvent { through, is_accepted: true, options }) = event.payload()?
            && let Some(mut state) = repeated.start.take()
        {
            let (lessons, tasks) = self.logged(event.sequence)?;
            let plan = Plan::new((lessons, &tasks), through, &state, options)?;
            if plan.repeat(&mut state, model)? {
                self.learn_between((through, event.sequence), &mut state, model)?;
                repeated.state = state;
            }
        }
        Ok(None)
    }
}

/// State of a log that is repeated.
struct Repeated {
    state: State,
    /// Position of the state.
    through: u64,
    /// Positions at which consolidations have started, in order.
    starts: Vec<u64>,
    /// State at the latest of them.
    start: Option<State>,
}

impl Repeated {
    fn new(state: State, through: u64, starts: Vec<u64>) -> Self {
        Self { state, through, starts, start: None }
    }

    /// Goes on to an event: keeps the state if a consolidation started behind the one before.
    fn arrive(&mut self, sequence: u64) {
        if self.starts.iter().any(|start| (self.through..sequence).contains(start)) {
            self.start = Some(self.state.clone());
        }
        self.through = sequence;
    }
}

/// Numbers of events in effect.
#[derive(Default)]
struct Counts {
    lessons: u64,
    ordinary: u64,
    /// Lessons that no consolidation has considered.
    new: u64,
    /// Consolidations that the gate has rejected.
    rejected: u64,
    /// Positions from whose states the accepted ones have started.
    starts: Vec<u64>,
}
