//! Settings of a step that a tuner moves: applied before it, judged after it.

use super::{Scratch, StepLoop};
use crate::step::executor::Executor;
use crate::step::history::StepRecord;
use crate::step::tuning::{Sampling, Settled, StepTuner, Tuning};

impl<'c, X: Executor> StepLoop<'c, X> {
    /// The loop, which has no sequences yet, with settings that follow the load.
    #[must_use]
    pub(crate) fn with_tuning(self, tuning: &'c Tuning) -> Self {
        let tuner = StepTuner::new(tuning, self.executor.free_tokens());
        Self { tuner, ..self }
    }

    /// Takes the tuner's settings for the step that begins.
    pub(super) fn apply_settings(&mut self) {
        let Some(tuner) = &mut self.tuner else { return };
        let settings = tuner.before(self.scheduler.waiting(), self.scheduler.running());
        // A step has room for the decodes of a full batch, and for a prompt beside them.
        let step_tokens = settings.prefill_chunk.max(settings.max_batch.saturating_mul(2));
        self.scheduler.set_limits(settings.max_batch, step_tokens);
        self.speculator.set_limit(settings.draft_tokens);
    }

    /// Tokens that a step has sampled, for [`tune`](Self::tune); `None` without a tuner.
    pub(super) fn sampling(&self, scratch: &Scratch<'c>) -> Option<Sampling> {
        self.tuner.as_ref()?;
        let Scratch { step, sampled, drafted, .. } = scratch;
        let mut sampling = Sampling { drafted_tokens: drafted.iter().sum(), ..Sampling::default() };
        for (part, sampled) in step.parts().iter().zip(sampled) {
            let Some(Ok(sampled)) = sampled else { continue };
            sampling.decode_rows += usize::from(!part.is_prompt);
            sampling.emitted_tokens += sampled.tokens;
            sampling.accepted_tokens += sampled.kept;
        }
        Some(sampling)
    }

    /// Tells the tuner what the step was like.
    pub(super) fn tune(&mut self, sampling: Option<Sampling>, record: StepRecord) {
        if let (Some(tuner), Some(sampling)) = (&mut self.tuner, sampling) {
            let settled = Settled {
                duration: record.duration,
                prefill_tokens: record.prefill_tokens,
                recomputed: self.scheduler.statistics().recomputed,
                free_tokens: self.executor.free_tokens(),
            };
            tuner.after(sampling, settled);
        }
    }
}
