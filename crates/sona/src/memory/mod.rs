//! Memory of agents: four kinds of entries over one store, and a cache of tool results.
//!
//! [`AgentMemory`] writes and recalls entries of the [`Kind`]s working, episodic, semantic and
//! procedural through a [`MemoryStore`]: [`InMemory`], or `DiskStore` with the feature `store`.
//! Each call names its tenant, and no call reads or evicts entries of another. Times are Unix times
//! in milliseconds and are given by the caller.

mod agent;
mod consolidate;
#[cfg(feature = "store")]
mod disk;
mod entry;
mod in_memory;
mod lines;
mod settings;
mod store;
mod tool_cache;

pub use agent::AgentMemory;
pub use consolidate::Consolidated;
#[cfg(feature = "store")]
pub use disk::DiskStore;
pub use entry::{Detail, Entry, Id, Kind, Source};
pub use in_memory::InMemory;
pub use lines::{export, import};
pub use settings::Settings;
pub use store::{Change, Forget, Hit, Limits, MemoryStore, Query, Usage};
pub use tool_cache::{CacheLimits, CacheStats, Cached, ToolCache, ToolPolicy, canonical_json};

#[cfg(test)]
mod tests;
