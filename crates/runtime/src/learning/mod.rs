//! Learning from feedback (`ruvllm-sona`): what the model computed at the tokens of a text, and
//! adapters that the instant loop changes while requests run.

mod head;
mod learned;
mod observe;

pub use self::learned::LearnedAdapter;
