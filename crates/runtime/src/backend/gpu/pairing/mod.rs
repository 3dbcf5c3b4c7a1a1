//! Beginning of the passes of a prediction head (ADR-0160): pairs of a token and the final hidden
//! state before it become the residual stream.

mod launches;
mod rows;
mod weights;

pub(super) use self::rows::PairRows;
pub(super) use self::weights::DevicePairing;
