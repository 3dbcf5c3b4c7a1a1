//! Sample of the lessons of a log on which a consolidation trains.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::text::observe;
use super::{ObservedModel, TaughtText};
use crate::continual::{ReplayBuffer, ReplaySettings, Replayed, Split};
use crate::error::{Error, Result};
use crate::instant::pieces::{Aim, Piece};
use crate::instant::{DRAWS, InstantLearner, Lesson, Observations};

/// Positions of a text that are drawn together. A longer text is several draws.
const DRAWN_POSITIONS: usize = 128;
/// Positions of an example: its rows of the output projection are taken once.
pub(super) const EXAMPLE_POSITIONS: usize = 16;

/// Lesson of a log.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    pub(super) sequence: u64,
    pub(super) text: TaughtText,
}

/// Part of a lesson's response.
#[derive(Debug, Clone)]
pub(super) struct Part {
    lesson: usize,
    range: Range<usize>,
}

/// Parts of lessons, drawn by their content, and the texts that they are of.
pub(super) struct Sample {
    lessons: Vec<Logged>,
    parts: [Vec<Replayed<Part>>; 2],
}

/// The same, observed: examples to train on and examples of the gate.
pub(super) struct Observed {
    pub(super) train: Vec<Replayed<Piece>>,
    pub(super) held_out: Vec<Replayed<Piece>>,
}

impl Sample {
    /// Draws from lessons in their order. `tasks` are the log positions at which tasks ended. Equal
    /// lessons are one: draws and splits depend on the content alone.
    pub(super) fn new(
        lessons: Vec<Logged>,
        tasks: &[u64],
        learner: &InstantLearner,
        settings: ReplaySettings,
    ) -> Result<Self> {
        let position = 4 * (learner.shape().model_dim + learner.ordinary().candidates() + DRAWS + 2);
        let mut buffer = ReplayBuffer::new(settings)?;
        for (index, Logged { sequence, text }) in lessons.iter().enumerate() {
            let task = tasks.iter().filter(|end| *end < sequence).count() as u64;
            let digest = digest(text);
            for (number, start) in (0..text.response.len()).step_by(DRAWN_POSITIONS).enumerate() {
                let range = start..text.response.len().min(start + DRAWN_POSITIONS);
                let bytes = position * range.len();
                let identity = digest.wrapping_add(number as u128);
                buffer.push("", task, identity, Part { lesson: index, range }, bytes);
            }
        }
        let parts = [Split::Train, Split::HeldOut].map(|split| buffer.examples("", split).cloned().collect());
        Ok(Self { lessons, parts })
    }

    /// Observes the parts; `None` if `keep_going` says so between two texts.
    pub(super) fn observe(
        &self,
        model: &dyn ObservedModel,
        rating_clip: f64,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Observed>> {
        // Last position that is needed of each lesson.
        let mut ends = BTreeMap::new();
        for part in self.parts.iter().flatten() {
            let end = ends.entry(part.example.lesson).or_insert(0);
            *end = part.example.range.end.max(*end);
        }
        let mut texts = BTreeMap::new();
        for (lesson, end) in ends {
            if !keep_going() {
                return Ok(None);
            }
            let mut text = self.lessons[lesson].text.clone();
            text.response.truncate(end);
            texts.insert(lesson, Arc::new(observe(model, &text)?));
        }
        let [train, held_out] = self.parts.each_ref().map(|parts| {
            let mut examples = Vec::new();
            for part in parts {
                let (lesson, range) = (part.example.lesson, part.example.range.clone());
                let Some(observations) = texts.get(&lesson) else { continue };
                let aim = aim(self.lessons[lesson].text.lesson, rating_clip);
                let pieces = pieces(observations, range, aim)?;
                examples.extend(pieces.into_iter().map(|piece| part.with(piece)));
            }
            Ok::<_, Error>(examples)
        });
        Ok(Some(Observed { train: train?, held_out: held_out? }))
    }
}

/// Cuts positions into examples.
pub(super) fn pieces(of: &Arc<Observations>, range: Range<usize>, aim: Aim) -> Result<Vec<Piece>> {
    let starts = range.clone().step_by(EXAMPLE_POSITIONS);
    let piece =
        |start: usize| Piece::new(Arc::clone(of), start..range.end.min(start + EXAMPLE_POSITIONS), aim);
    starts.map(piece).collect()
}

fn aim(lesson: Lesson, clip: f64) -> Aim {
    match lesson {
        Lesson::Corrected => Aim::Likelihood,
        Lesson::Rated(rating) => Aim::Rating { value: rating.value(), clip },
    }
}

/// First bytes of the SHA-256 of a lesson.
fn digest(text: &TaughtText) -> u128 {
    let mut hash = Sha256::new();
    for tokens in [&text.prompt, &text.response] {
        hash.update((tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    }
    if let Lesson::Rated(rating) = text.lesson {
        hash.update(rating.value().to_le_bytes());
    }
    let bytes: [u8; 32] = hash.finalize().into();
    bytes.iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}
