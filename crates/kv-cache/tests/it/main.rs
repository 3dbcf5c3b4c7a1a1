//! Sequences against an uncompressed model, and prefixes in a shared folder.

mod drop;
mod nuq;
mod oracle;
mod probe;
mod sequence;
mod shared_folder;
mod squat;
mod steps;
mod stress;
mod tenants;
mod threads;
mod tiers;
