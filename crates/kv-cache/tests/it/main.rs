//! Sequences against an uncompressed model.

mod drop;
mod nuq;
mod oracle;
mod probe;
mod sequence;
mod squat;
mod steps;
mod stress;
mod tenants;
mod threads;
mod tiers;
