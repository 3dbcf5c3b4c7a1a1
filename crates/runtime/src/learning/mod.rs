//! Learning from feedback (`ruvllm-sona`): what the model computed at the tokens of a text, and
//! adapters that the instant loop changes while requests run.

mod head;
mod learned;
mod observe;
#[cfg(feature = "learning")]
mod online;
#[cfg(feature = "learning")]
mod pace;

pub use self::learned::LearnedAdapter;
#[cfg(feature = "learning")]
pub use self::online::{LearningOptions, OnlineAdapter};
#[cfg(feature = "learning")]
pub(crate) use self::pace::LessonTurns;
