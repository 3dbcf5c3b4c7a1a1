//! Continual learning: what protects former tasks while new ones are learned.
//!
//! Parameters are flat slices with a [`ParameterLayout`]; models take part through [`Learner`].
//! [`Ewc`] holds the importance and the anchor of former tasks ([`Fisher`], [`RunningFisher`],
//! [`PathIntegral`]), [`Boundary`] finds where a task ends, [`ReplayBuffer`] keeps a sample of
//! examples, and [`consolidate`] trains the slow adapter on it behind a [`Gate`].

mod adam;
mod boundary;
mod consolidate;
mod ewc;
mod fisher;
mod gate;
mod layout;
mod learner;
mod path;
mod replay;
mod running;
#[cfg(test)]
mod tests;

pub use adam::Adam;
pub use boundary::{Boundary, BoundarySettings};
#[cfg(feature = "store")]
pub(crate) use consolidate::train;
pub use consolidate::{ConsolidationSettings, Outcome, Report, Skip, consolidate};
pub use ewc::{Ewc, EwcSettings, StepSize};
pub use fisher::Fisher;
pub use gate::{Gate, GateReport, LossPair, PairedTest, Verdict};
pub use layout::ParameterLayout;
pub use learner::{Learner, SampledGradient};
pub use path::PathIntegral;
pub use replay::{Pushed, ReplayBuffer, ReplaySettings, Replayed, Split};
pub use running::RunningFisher;
