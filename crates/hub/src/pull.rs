//! Pulling a model: from a reference to files in the store.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::client::{FileFacts, Hub};
use crate::digest::sha256_of_file;
use crate::download::{Download, FileProgress, Partial, PullStage};
use crate::error::{Error, Result};
use crate::files;
use crate::listing::RemoteFile;
use crate::reference::{ModelReference, is_name};
use crate::select::select;
use crate::store::{Manifest, State, Store, StoredFile, StoredModel};

/// Room that a download leaves on the disk.
const RESERVE_BYTES: u64 = 64 << 20;

/// Progress of a pull.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PullProgress<'a> {
    /// Path of the file that is worked on.
    pub file: &'a str,
    /// Stage of its download.
    pub stage: PullStage,
    /// Bytes of all files that have passed the stage.
    pub bytes_done: u64,
    /// Bytes of all files.
    pub bytes_total: u64,
}

/// A model that was pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// The model.
    pub model: StoredModel,
    /// Bytes that came from the hub in this call.
    pub downloaded_bytes: u64,
    /// Bytes of disk that became free: files of the repository that no name means any more.
    pub freed_bytes: u64,
}

/// Hears how far a pull has come, and may stop it.
pub type OnPull<'a> = dyn FnMut(PullProgress<'_>) -> ControlFlow<()> + 'a;

/// A file of the selection and how it gets into the store.
struct Wanted {
    file: RemoteFile,
    target: PathBuf,
    facts: FileFacts,
    /// Record of the file if it is there as a whole, with the checksum computed when it arrived.
    known: Option<StoredFile>,
    /// Bytes of the disk that what is there of it takes.
    disk_bytes: u64,
}

impl Store {
    /// Brings the model of a reference into the store, under `name` or one that follows from the
    /// files, and says how far it is. What an interrupted call has fetched is not fetched again. A
    /// name that is there is updated to what the reference means now; files that no name needs any
    /// more are deleted.
    ///
    /// Stopping takes until the running reads end,
    /// [`HubSettings::silence`](crate::HubSettings::silence) at most.
    ///
    /// # Errors
    /// See [`Error`]; whatever the failure, a model that was there under the name stays as it was.
    pub fn pull(
        &self,
        hub: &Hub,
        reference: &ModelReference,
        name: Option<&str>,
        progress: &mut OnPull<'_>,
    ) -> Result<Pulled> {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            return Err(Error::Name { name: crate::error::shortened(name) });
        }
        self.check_folders()?;
        if hub.settings().offline {
            let model = self.pulled_before(reference, name)?;
            return Ok(Pulled { model, downloaded_bytes: 0, freed_bytes: 0 });
        }
        let listing = hub.list(reference)?;
        let selection = select(&listing, reference)?;
        let name = name.unwrap_or(&selection.name);
        let mut manifest =
            Manifest::new(name, reference, &hub.settings().endpoint, &listing.commit, &selection.model);
        self.check_name(&manifest)?;
        let _lock = self.lock(reference.repo())?;
        let mut wanted = self.wanted(reference, &listing.commit, selection.files)?;
        // Before a request for each file: the list states most lengths.
        self.check_room(&wanted)?;
        for wanted in wanted.iter_mut().filter(|wanted| wanted.known.is_none()) {
            wanted.facts = hub.file_facts(reference.repo(), &listing.commit, &wanted.file)?;
        }
        self.check_room(&wanted)?;
        manifest.files = wanted.iter().map(Wanted::stored).collect();
        self.write(State::Pending, &manifest)?;
        let downloaded_bytes = self.fetch(hub, reference, &listing.commit, &mut wanted, progress)?;

        manifest.files = wanted.iter().map(Wanted::stored).collect();
        manifest.pulled_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        self.write(State::Complete, &manifest)?;
        let freed_bytes = self.sweep(reference.repo())?;
        Ok(Pulled { model: self.get(name)?, downloaded_bytes, freed_bytes })
    }

    /// The complete model of the reference, for a client that must not ask.
    fn pulled_before(&self, reference: &ModelReference, name: Option<&str>) -> Result<StoredModel> {
        let text = reference.to_string();
        let is_meant = |model: &StoredModel| {
            model.is_complete && model.source == text && name.is_none_or(|name| name == model.name)
        };
        self.list()?.into_iter().find(is_meant).ok_or(Error::Offline { reference: text })
    }

    /// The files with the facts of the list, and those that are there already.
    fn wanted(
        &self,
        reference: &ModelReference,
        commit: &str,
        files: Vec<RemoteFile>,
    ) -> Result<Vec<Wanted>> {
        let folder = self.folder(reference.repo(), commit);
        let complete = self.manifests()?.into_iter().filter(|(state, manifest)| {
            *state == State::Complete && manifest.repo() == reference.repo() && manifest.commit == commit
        });
        let known: HashMap<String, StoredFile> =
            complete.flat_map(|(_, manifest)| manifest.files).map(|file| (file.path.clone(), file)).collect();
        let mut wanted: Vec<Wanted> = Vec::with_capacity(files.len());
        for file in files {
            let target = folder.join(&file.path);
            let is_there = |known: &&StoredFile| {
                has_length(&target, known.bytes)
                    && known.sha256.is_some()
                    && file.bytes.is_none_or(|listed| listed == known.bytes)
                    && (file.sha256.is_none() || file.sha256 == known.sha256)
            };
            let known = known.get(&file.path).filter(is_there).cloned();
            let (bytes, sha256) = match &known {
                Some(known) => (known.bytes, known.sha256.clone()),
                None => (file.bytes.unwrap_or(0), file.sha256.clone()),
            };
            let facts = FileFacts { bytes, sha256, etag: None, is_weak: false };
            let disk_bytes = files::disk_bytes_at(&target) + Partial::of(&target).disk_bytes();
            wanted.push(Wanted { file, target, facts, known, disk_bytes });
        }
        Ok(wanted)
    }

    /// Fetches what is not there; gives the bytes that came.
    fn fetch(
        &self,
        hub: &Hub,
        reference: &ModelReference,
        commit: &str,
        wanted: &mut [Wanted],
        progress: &mut OnPull<'_>,
    ) -> Result<u64> {
        let bytes_total = wanted.iter().map(|wanted| wanted.facts.bytes).fold(0, u64::saturating_add);
        let (mut before, mut downloaded) = (0, 0);
        for wanted in wanted {
            if wanted.known.is_none() {
                let path = wanted.file.path.as_str();
                let url = hub.file_url(reference.repo(), commit, path);
                let mut report = |stage, bytes: u64| {
                    progress(PullProgress { file: path, stage, bytes_done: before + bytes, bytes_total })
                };
                let there = verified(&wanted.target, &wanted.facts, &mut report)?;
                let sha256 = match there {
                    Some(sha256) => sha256,
                    None => {
                        if let Some(folder) = wanted.target.parent() {
                            files::create_folder_below(self.root(), folder)?;
                        }
                        let (facts, target) = (&wanted.facts, wanted.target.as_path());
                        let arrived =
                            Download { hub, url: &url, name: path, facts, target }.run(&mut report)?;
                        downloaded += arrived.received_bytes;
                        arrived.sha256
                    }
                };
                wanted.known = Some(StoredFile { sha256: Some(sha256), ..wanted.stored() });
            }
            before += wanted.facts.bytes;
        }
        Ok(downloaded)
    }

    /// Refuses a download that would fill the disk.
    fn check_room(&self, wanted: &[Wanted]) -> Result<()> {
        let needed = wanted.iter().map(Wanted::missing_bytes).fold(0, u64::saturating_add);
        files::create_folder(self.root())?;
        match files::free_bytes(self.root()) {
            Some(available) if needed > 0 && needed.saturating_add(RESERVE_BYTES) > available => {
                Err(Error::DiskFull { path: self.root().to_owned(), needed, available })
            }
            _ => Ok(()),
        }
    }
}

impl Wanted {
    fn missing_bytes(&self) -> u64 {
        if self.known.is_some() { 0 } else { self.facts.bytes.saturating_sub(self.disk_bytes) }
    }

    /// As the manifest lists it.
    fn stored(&self) -> StoredFile {
        match &self.known {
            Some(known) => known.clone(),
            None => StoredFile {
                path: self.file.path.clone(),
                bytes: self.facts.bytes,
                sha256: None,
                unverified: self.facts.are_unverified(),
            },
        }
    }
}

/// The checksum of a file that an earlier pull has brought as a whole; one that does not hold it is
/// deleted.
fn verified(target: &Path, facts: &FileFacts, report: &mut FileProgress<'_>) -> Result<Option<String>> {
    if !has_length(target, facts.bytes) {
        return Ok(None);
    }
    let mut hashed = 0;
    let found = sha256_of_file(target, &mut |n_bytes| {
        hashed += n_bytes;
        report(PullStage::Verify, hashed)
    })?;
    if facts.sha256.as_ref().is_some_and(|expected| *expected != found) {
        files::remove(target)?;
        return Ok(None);
    }
    Ok(Some(found))
}

fn has_length(path: &Path, bytes: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && file.len() == bytes)
}
