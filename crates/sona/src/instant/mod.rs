//! Instant loop: a low-rank update of the last two products of a language model, changed in place
//! by each feedback (MicroLoRA).
//!
//! The gradient is that of the model's own loss. With the final hidden state `h`, the output
//! projection `W`, probabilities `p` and the token `y` that followed, the cross-entropy has
//! `dL/dlogits = p - e_y` and `dL/dh = W^T (p - e_y)`; nothing goes back through the layers, and
//! [`Observations`] hold all that it needs.
//!
//! ```text
//! engine ── Observations ──▶ InstantLearner ── parameters ──▶ adapter of the next requests
//!              Lesson ───────▶    │
//!                                 └─ Update: what was done, and why not
//! ```

pub(crate) mod bytes;
mod head;
mod learner;
mod observation;
mod optimizer;
mod parameters;
mod pass;
#[cfg(any(feature = "store", test))]
pub(crate) mod pieces;
mod settings;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use self::head::OutputHead;
pub use self::learner::{InstantLearner, Lesson, Outcome, Update};
pub use self::observation::{DRAWS, Observation, Observations, Scratch};
pub use self::parameters::{MAX_RANK, Shape};
pub use self::pass::Score;
pub use self::settings::Settings;
pub use self::state::Snapshot;
