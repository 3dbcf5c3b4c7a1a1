//! Adapters folded into the weights of a model, and adapters extracted from two models (ADR-0055).

mod extract;
mod fold;
mod folder;
mod pieces;

pub use self::extract::{Extracted, extract};
pub use self::fold::{Folded, Types};
pub use self::folder::write_folder;
