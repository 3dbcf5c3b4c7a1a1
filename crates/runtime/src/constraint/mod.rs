//! Output constrained by a schema, grammar, regular expression or list of choices.
//!
//! ```text
//! Constraint ──compile──▶ ConstraintState ──mask──▶ ids that may be sampled next
//! (schema, regex, ...)      │    ▲
//!      ConstraintCompiler ──┘    └── accept(sampled id)
//!      (vocabulary as a trie, cache of compiled constraints)
//! ```
//! The grammar engine is `llguidance` (ADR-0042). This module keeps it within limits, gives it the
//! vocabulary of a [`Tokenizer`](crate::Tokenizer), and rewrites schemas so that every output is a
//! value that the schema accepts.

mod cache;
mod compiler;
mod elements;
mod error;
mod gbnf;
mod messages;
mod schema;
mod source;
mod state;
mod tools;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use self::compiler::ConstraintCompiler;
pub use self::error::ConstraintError;
pub use self::source::Constraint;
pub use self::state::{ConstraintState, TokenMask};
pub(crate) use self::tools::{CallGrammar, CallTarget};
