//! Payloads of the feedback log.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ConsolidationOptions, TaughtText};
use crate::error::{Error, Result};
use crate::instant::Lesson;
use crate::rating::Rating;
use crate::store::EventPayload;

pub(super) const LESSON: u16 = 1;
pub(super) const ORDINARY: u16 = 2;
const QUARANTINE: u16 = 3;
pub(super) const RELEASE: u16 = 4;
pub(super) const CONSOLIDATION: u16 = 5;

/// A lesson.
#[derive(Serialize, Deserialize)]
pub(super) struct LessonEvent {
    prompt: Vec<u32>,
    response: Vec<u32>,
    /// `None`: a correction.
    rating: Option<f32>,
}

/// Ordinary text to hold on to.
#[derive(Serialize, Deserialize)]
pub(super) struct OrdinaryEvent {
    pub(super) tokens: Vec<u32>,
}

/// Begin of a quarantine.
#[derive(Serialize, Deserialize)]
pub(super) struct QuarantineEvent {
    pub(super) harm: f64,
}

/// End of a quarantine.
#[derive(Serialize, Deserialize)]
pub(super) struct ReleaseEvent;

/// Consolidation that was judged.
#[derive(Serialize, Deserialize)]
pub(super) struct ConsolidationEvent {
    /// Position in the log up to which lessons were in the sample.
    pub(super) through: u64,
    pub(super) is_accepted: bool,
    /// Options, with which it is repeated.
    pub(super) options: ConsolidationOptions,
}

impl LessonEvent {
    pub(super) fn new(text: &TaughtText) -> Self {
        let rating = match text.lesson {
            Lesson::Corrected => None,
            Lesson::Rated(rating) => Some(rating.value()),
        };
        Self { prompt: text.prompt.clone(), response: text.response.clone(), rating }
    }

    pub(super) fn text(self) -> Result<TaughtText> {
        let rating = self.rating.map(Rating::new).transpose()?;
        let lesson = rating.map_or(Lesson::Corrected, Lesson::Rated);
        Ok(TaughtText { prompt: self.prompt, response: self.response, lesson })
    }
}

macro_rules! payload {
    ($($type:ty = $kind:expr),*) => {$(
        impl EventPayload for $type {
            const KIND: u16 = $kind;

            fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
                encode(self, out)
            }

            fn decode(bytes: &[u8]) -> Result<Self> {
                decode(bytes)
            }
        }
    )*};
}

payload!(
    LessonEvent = LESSON,
    OrdinaryEvent = ORDINARY,
    QuarantineEvent = QUARANTINE,
    ReleaseEvent = RELEASE,
    ConsolidationEvent = CONSOLIDATION
);

fn encode(payload: &impl Serialize, out: &mut Vec<u8>) -> Result<()> {
    *out = postcard::to_extend(payload, std::mem::take(out)).map_err(wrong)?;
    Ok(())
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(wrong)
}

fn wrong(error: postcard::Error) -> Error {
    Error::Record { field: "payload", reason: error.to_string() }
}
