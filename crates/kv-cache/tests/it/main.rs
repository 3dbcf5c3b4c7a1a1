//! Sequences against an uncompressed model.

mod oracle;
mod park;
mod sequence;
mod stress;
mod threads;
mod tiers;
