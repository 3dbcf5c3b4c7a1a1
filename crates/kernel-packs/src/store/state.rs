//! State of a pack in the store: `state.json`.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{InstalledPack, StoredRelease, folder_name};
use crate::error::{Error, Result, field};
use crate::files;
use crate::json;
use crate::limits::MAX_STATE_BYTES;
use crate::pack::Release;

const STATE: &str = "state.json";
const TEMPORARY: &str = "state.json.new";
const VERSION: u32 = 1;

/// Versions of a pack. `current` and `previous` are generations of `releases`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    schema_version: u32,
    current: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<u32>,
    pub(super) floor: Release,
    /// In the order of their generations, each version once.
    releases: Vec<StoredRelease>,
}

impl State {
    /// State after a first installation.
    pub(super) fn first(installed: StoredRelease) -> Self {
        Self {
            schema_version: VERSION,
            current: installed.generation,
            previous: None,
            floor: installed.release.clone(),
            releases: vec![installed],
        }
    }

    /// Reads the state in a folder; `None` without one.
    pub(super) fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(STATE);
        let bytes = match files::read(&path, MAX_STATE_BYTES) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let what = || path.display().to_string();
        let state: Self = json::read(&bytes, &what())?;
        if state.schema_version != VERSION {
            return Err(Error::SchemaVersion { what: what(), found: state.schema_version, known: VERSION });
        }
        let generations = state.releases.iter().map(|stored| stored.generation);
        let is_sorted = generations.is_sorted_by(|a, b| a < b);
        let has = |generation| state.find(generation).is_some();
        if !is_sorted
            || !has(state.current)
            || !state.previous.is_none_or(has)
            || state.previous == Some(state.current)
        {
            return Err(field(
                what(),
                "its versions do not fit together; move its folder away and install again",
            ));
        }
        Ok(Some(state))
    }

    /// Replaces the state in a folder.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(STATE);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| Error::Json { what: path.display().to_string(), source })?;
        files::replace(&path, &folder.join(TEMPORARY), &text)
    }

    /// State after another installation. A version that is installed again has one folder.
    pub(super) fn with(&self, installed: StoredRelease) -> Self {
        let is_same = |stored: &StoredRelease| {
            stored.release.version.cmp_precedence(&installed.release.version).is_eq()
        };
        let replaced = |generation: u32| self.find(generation).is_some_and(is_same);
        let previous = if replaced(self.current) { self.previous } else { Some(self.current) };
        let mut releases: Vec<_> = self.releases.iter().filter(|stored| !is_same(stored)).cloned().collect();
        releases.push(installed.clone());
        Self {
            schema_version: VERSION,
            current: installed.generation,
            previous,
            floor: installed.release,
            releases,
        }
    }

    /// State with current and previous version exchanged.
    pub(super) fn rolled_back(&self) -> Self {
        let current = self.previous.unwrap_or(self.current);
        Self { current, previous: Some(self.current), ..self.clone() }
    }

    /// State with two versions at most, and the versions that it lacks.
    pub(super) fn pruned(&self) -> (Self, Vec<StoredRelease>) {
        let is_kept = |stored: &StoredRelease| {
            stored.generation == self.current || Some(stored.generation) == self.previous
        };
        let (releases, removed) = self.releases.iter().cloned().partition(is_kept);
        (Self { releases, ..self.clone() }, removed)
    }

    /// The current version.
    pub(super) fn current(&self) -> &StoredRelease {
        // `load` and the constructors have it.
        self.find(self.current).unwrap_or(&self.releases[0])
    }

    /// The previous version.
    pub(super) fn previous(&self) -> Option<&StoredRelease> {
        self.find(self.previous?)
    }

    /// Number of versions.
    pub(super) fn n_releases(&self) -> u64 {
        self.releases.len() as u64
    }

    /// Generation of the next installation.
    pub(super) fn next_generation(&self) -> u32 {
        self.releases.last().map_or(1, |stored| stored.generation.saturating_add(1))
    }

    /// Names of the folders of all versions.
    pub(super) fn folders(&self) -> impl Iterator<Item = String> {
        self.releases.iter().map(|stored| folder_name(stored.generation))
    }

    /// The pack for callers.
    pub(super) fn installed(&self, name: String) -> InstalledPack {
        let (_, older) = self.pruned();
        InstalledPack {
            name,
            current: self.current().clone(),
            previous: self.previous().cloned(),
            older,
            floor: self.floor.clone(),
        }
    }

    fn find(&self, generation: u32) -> Option<&StoredRelease> {
        self.releases.iter().find(|stored| stored.generation == generation)
    }
}
