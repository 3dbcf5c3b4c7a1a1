//! Manifests: the store's record of a model, one JSON file per name.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::address::shown;
use crate::digest::is_sha256;
use crate::error::{Error, Result};
use crate::files;
use crate::limits::{MAX_MANIFEST_BYTES, MAX_MODEL_FILES};
use crate::names::path_fault;
use crate::reference::{ModelReference, is_name};

/// Version of the form; others are refused.
const VERSION: u32 = 1;

/// A file of a model in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredFile {
    /// Path in the repository, and below the folder of its revision.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal, computed when the file arrived; absent before.
    pub sha256: Option<String>,
    /// True if the hub stated neither a SHA-256 nor an ETag: nothing but the length was held
    /// against what it says, so the SHA-256 is that of whatever arrived.
    #[serde(default)]
    pub unverified: bool,
}

/// A model of the store as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    pub(crate) name: String,
    /// The reference that was pulled.
    pub(crate) source: String,
    /// The hub that it came from.
    pub(crate) endpoint: String,
    /// The commit that the reference meant.
    pub(crate) commit: String,
    /// Path of what a program opens; empty for the folder.
    pub(crate) model: String,
    /// Time of the pull, in seconds since 1970.
    pub(crate) pulled_unix: u64,
    pub(crate) files: Vec<StoredFile>,
}

impl Manifest {
    pub(crate) fn new(
        name: &str,
        reference: &ModelReference,
        endpoint: &str,
        commit: &str,
        model: &str,
    ) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            source: reference.to_string(),
            endpoint: shown(endpoint),
            commit: commit.to_owned(),
            model: model.to_owned(),
            pulled_unix: 0,
            files: Vec::new(),
        }
    }

    /// Reads the manifest at `path`; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::Manifest`] for one that cannot be read or is damaged. Whoever wrote it, its paths
    /// lead nowhere outside the store.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let damaged = |reason: String| Error::Manifest { path: path.to_owned(), reason };
        let text = match files::read_bounded(path, MAX_MANIFEST_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| damaged(error.to_string()))?,
        };
        let mut manifest: Self = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        manifest.check(path).map_err(|reason| damaged(reason.to_owned()))?;
        // Earlier versions stored endpoints with passwords.
        manifest.endpoint = shown(&manifest.endpoint);
        Ok(Some(manifest))
    }

    /// Repository and commit of the manifest at `path`, however damaged the rest of it is.
    pub(super) fn owner(path: &Path) -> Option<(String, String)> {
        #[derive(Deserialize)]
        struct Owner {
            source: String,
            commit: String,
        }
        let text = files::read_bounded(path, MAX_MANIFEST_BYTES).ok()?;
        let owner: Owner = serde_json::from_slice(&text).ok()?;
        let reference: ModelReference = owner.source.parse().ok()?;
        is_name(&owner.commit).then(|| (reference.repo().to_owned(), owner.commit))
    }

    fn check(&self, path: &Path) -> Result<(), &'static str> {
        if self.version != VERSION {
            return Err("its version is another");
        }
        if path.file_stem().and_then(|stem| stem.to_str()) != Some(&self.name) || !is_name(&self.name) {
            return Err("its name is not that of the file");
        }
        if self.reference().is_none() || !is_name(&self.commit) {
            return Err("its source is not understood");
        }
        if self.files.len() > MAX_MODEL_FILES {
            return Err("it has too many files");
        }
        if !self.files.iter().all(|file| path_fault(&file.path).is_none()) {
            return Err("a path is not safe");
        }
        if !self.files.iter().all(|file| file.sha256.as_deref().is_none_or(is_sha256)) {
            return Err("a checksum is none");
        }
        if !self.model.is_empty() && !self.files.iter().any(|file| file.path == self.model) {
            return Err("its model is not among its files");
        }
        Ok(())
    }

    /// The reference that was pulled; present in every manifest that was read.
    pub(crate) fn reference(&self) -> Option<ModelReference> {
        self.source.parse().ok()
    }

    /// The repository.
    pub(crate) fn repo(&self) -> String {
        self.reference().map(|reference| reference.repo().to_owned()).unwrap_or_default()
    }

    /// True if both are versions of one model, perhaps at different revisions: the same repository,
    /// and the same model or reference.
    pub(super) fn is_update_of(&self, other: &Self) -> bool {
        let (new, old) = (self.reference(), other.reference());
        let reference = |of: &Option<ModelReference>| of.as_ref().map(ModelReference::without_revision);
        self.repo() == other.repo() && (self.model == other.model || reference(&new) == reference(&old))
    }

    /// As it is written.
    pub(super) fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }
}
