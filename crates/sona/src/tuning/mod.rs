//! Settings of an engine's step loop from measurements: a real-time tuner and a learner of KV
//! policies.
//!
//! - [`Tuner`]: hooks before and after a step; moves tier borders, batch size, prefill chunk and
//!   draft length within bounds. `moves.rs` lists the changes it may try, `trial.rs` compares a
//!   change with what was before.
//! - [`KvPolicyLearner`]: the cheapest KV policy that kept its quality on similar prompts.
//! - [`MovingAverage`], [`LogHistogram`]: statistics that follow the present.

mod change;
mod learner;
mod moves;
mod settings;
#[cfg(any(test, feature = "simulator"))]
pub mod simulator;
mod statistics;
mod step;
#[cfg(test)]
mod tests;
mod trial;
mod tuner;

pub use change::{Cause, Change, Outcome};
pub use learner::{KvPolicyLearner, LearnerSettings, Observation, Suggestion};
pub use moves::Move;
pub use settings::{Bounds, StepSettings, TunerSettings};
pub use statistics::{LogHistogram, MovingAverage};
pub use step::{StepEnd, StepStart};
pub use tuner::Tuner;
