//! Sequences against an uncompressed model.

mod nuq;
mod oracle;
mod park;
mod probe;
mod sequence;
mod squat;
mod stress;
mod tenants;
mod threads;
mod tiers;
