//! Entries of a memory.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::lexical::normalized;

/// Most sources that a fact keeps.
pub(super) const MAX_SOURCES: usize = 32;

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// State of one session, which decays within hours.
    Working,
    /// Event of a session.
    Episodic,
    /// Fact with its sources.
    Semantic,
    /// Skill with its outcomes.
    Procedural,
}

impl Kind {
    /// Time in which the strength of an entry halves.
    fn half_life_ms(self) -> f64 {
        const HOUR: f64 = 3_600_000.0;
        match self {
            Self::Working => 0.5 * HOUR,
            Self::Episodic => 30.0 * 24.0 * HOUR,
            Self::Semantic | Self::Procedural => 365.0 * 24.0 * HOUR,
        }
    }
}

/// Identity of an entry within its tenant: a digest of kind, session and normalized text, so that
/// the same thing said twice is one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u128);

impl Id {
    /// Computes the identity.
    pub fn of(kind: Kind, session: Option<&str>, text: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update([kind as u8, u8::from(session.is_some())]);
        let session = session.unwrap_or_default();
        digest.update((session.len() as u64).to_le_bytes());
        digest.update(session);
        digest.update(normalized(text));
        let bytes: [u8; 32] = digest.finalize().into();
        Self(bytes[..16].iter().fold(0, |id, &byte| id << 8 | u128::from(byte)))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Source of a fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Session, or the name that the caller gave.
    pub name: String,
    /// True if the fact was consolidated from episodes of this session.
    pub is_session: bool,
    /// Confidence from 0 to 1 that this source alone gives.
    pub confidence: f32,
}

/// Content that depends on the kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Detail {
    /// Working memory.
    Working,
    /// Event, which happened at [`Entry::created_ms`].
    Episodic,
    /// Fact.
    Semantic {
        /// Its sources, at most 32.
        sources: Vec<Source>,
    },
    /// Skill.
    Procedural {
        /// Uses that succeeded.
        successes: u32,
        /// Uses that failed.
        failures: u32,
    },
}

/// Entry of a memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Session to which it belongs; `None` for facts and skills.
    pub session: Option<String>,
    /// Its text.
    pub text: String,
    /// Embedding of the text, of length 1; empty without an embedding model.
    #[serde(default)]
    pub embedding: Vec<f32>,
    /// Importance from 0 to 1.
    pub importance: f32,
    /// Times that it was seen, at least 1.
    pub count: u32,
    /// Time of the event, or when it was first seen.
    pub created_ms: u64,
    /// Time of the latest sighting.
    pub seen_ms: u64,
    /// Time from which it is no longer found.
    pub expires_ms: Option<u64>,
    /// Content that depends on the kind.
    #[serde(flatten)]
    pub detail: Detail,
}

impl Entry {
    /// Makes an entry that is seen for the first time.
    pub fn new(detail: Detail, session: Option<&str>, text: &str, importance: f32, now_ms: u64) -> Self {
        Self {
            session: session.map(str::to_owned),
            text: text.to_owned(),
            embedding: Vec::new(),
            importance,
            count: 1,
            created_ms: now_ms,
            seen_ms: now_ms,
            expires_ms: None,
            detail,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self.detail {
            Detail::Working => Kind::Working,
            Detail::Episodic => Kind::Episodic,
            Detail::Semantic { .. } => Kind::Semantic,
            Detail::Procedural { .. } => Kind::Procedural,
        }
    }

    /// Its identity.
    pub fn id(&self) -> Id {
        Id::of(self.kind(), self.session.as_deref(), &self.text)
    }

    /// True until it expires.
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|expires| now_ms < expires)
    }

    /// Confidence in the entry: of a fact, that not all sources are wrong, taken as independent
    /// (noisy or); of a skill, the mean of the Beta posterior of success; of others 1.
    pub fn confidence(&self) -> f32 {
        match &self.detail {
            Detail::Working | Detail::Episodic => 1.0,
            Detail::Semantic { sources } => {
                1.0 - sources.iter().map(|source| 1.0 - source.confidence).product::<f32>()
            }
            Detail::Procedural { successes, failures } => {
                let (good, bad) = (f64::from(*successes), f64::from(*failures));
                ((good + 1.0) / (good + bad + 2.0)) as f32
            }
        }
    }

    /// Importance times confidence, halved with the time since it was last seen: the weakest entry
    /// is evicted first.
    pub fn strength(&self, now_ms: u64) -> f64 {
        let age = now_ms.saturating_sub(self.seen_ms) as f64;
        f64::from(self.importance * self.confidence()) * (-age / self.kind().half_life_ms()).exp2()
    }

    /// Bytes that count against budgets: the entry and its text, embedding and names.
    pub(super) fn bytes(&self) -> usize {
        let sources = match &self.detail {
            Detail::Semantic { sources } => {
                sources.iter().map(|source| size_of::<Source>() + source.name.len()).sum()
            }
            _ => 0,
        };
        size_of::<Self>()
            + self.text.len()
            + self.session.as_ref().map_or(0, String::len)
            + self.embedding.len() * size_of::<f32>()
            + sources
    }

    /// Checks the values of an entry that comes from outside.
    pub(super) fn check(&self) -> Result<()> {
        let unit = |name, value: f32| {
            let range = "from 0 to 1";
            let is_unit = (0.0..=1.0).contains(&value);
            if is_unit { Ok(()) } else { Err(Error::Setting { name, value: value.to_string(), range }) }
        };
        unit("importance", self.importance)?;
        if normalized(&self.text).is_empty() {
            return Err(Error::Setting {
                name: "text",
                value: format!("{:?}", self.text),
                range: "not empty",
            });
        }
        let Detail::Semantic { sources } = &self.detail else { return Ok(()) };
        if sources.is_empty() || sources.len() > MAX_SOURCES {
            let value = sources.len().to_string();
            return Err(Error::Setting { name: "number of sources", value, range: "from 1 to 32" });
        }
        sources.iter().try_for_each(|source| unit("confidence", source.confidence))
    }
}
