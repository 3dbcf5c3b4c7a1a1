//! Entries of the store of adapters in JSON documents.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_adapters::StoredAdapter;
use serde::Serialize;

use crate::output;

/// An adapter in the JSON documents.
#[derive(Serialize)]
pub(super) struct AdapterDocument<'a> {
    pub(super) name: &'a str,
    pub(super) source: &'a str,
    pub(super) architecture: &'a str,
    pub(super) rank: usize,
    pub(super) path: &'a Path,
    pub(super) bytes: u64,
    pub(super) added_unix: u64,
}

impl<'a> From<&'a StoredAdapter> for AdapterDocument<'a> {
    fn from(adapter: &'a StoredAdapter) -> Self {
        let file = &adapter.file;
        Self {
            name: &adapter.name,
            source: file.source(),
            architecture: &file.base().architecture,
            rank: adapter.rank(),
            path: file.path(),
            bytes: adapter.bytes,
            added_unix: file.added_unix(),
        }
    }
}

/// Age of an adapter, as text: `3 days ago`.
pub(super) fn added(adapter: &StoredAdapter) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    output::ago(now.saturating_sub(adapter.file.added_unix()))
}

/// A digest in hexadecimal digits.
pub(super) fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
