//! Installed packs in JSON documents and text.

use ruvllm_kernel_packs::{InstalledPack, StoredRelease, Version};
use serde::Serialize;

/// An installed pack in the JSON documents.
#[derive(Serialize)]
pub(super) struct PackDocument<'a> {
    name: &'a str,
    version: &'a Version,
    previous: Option<&'a Version>,
    older: Vec<&'a Version>,
    floor: &'a Version,
    installed: String,
}

impl<'a> From<&'a InstalledPack> for PackDocument<'a> {
    fn from(pack: &'a InstalledPack) -> Self {
        let version = |stored: &'a StoredRelease| &stored.release.version;
        Self {
            name: &pack.name,
            version: version(&pack.current),
            previous: pack.previous.as_ref().map(version),
            older: pack.older.iter().map(version).collect(),
            floor: &pack.floor.version,
            installed: pack.current.installed.to_string(),
        }
    }
}

/// Name, current and previous version for people.
pub(super) fn text(pack: &InstalledPack) -> String {
    let previous = match &pack.previous {
        Some(previous) => format!("previous {}", previous.release.version),
        None => "no previous version".to_owned(),
    };
    format!("{} {}, {previous}\n", pack.name, pack.current.release.version)
}
