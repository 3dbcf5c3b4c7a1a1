//! The store of packs: installed versions in a folder, replaced as a whole.

mod state;

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ruvllm_witness::Timestamp;
use serde::{Deserialize, Serialize};

use self::state::State;
use crate::contents::Contents;
use crate::error::{Error, Result, excerpt, io_error, within};
use crate::files;
use crate::limits::MAX_RELEASES;
use crate::name::name_fault;
use crate::pack::{Pack, Policy, Release};

const LOCK: &str = "packs.lock";
/// Prefix of the folder of a version that is not complete.
const INCOMPLETE: &str = "new-";

/// Packs on this machine, under their names.
///
/// ```text
/// packs.lock                 locked by the one process that changes the store
/// NAME/state.json            current and previous version, versions that are kept, the floor
/// NAME/00000001/             one version: the files of its pack
/// NAME/new-00000002/         one that is being written
/// ```
///
/// A version gets a new folder and is written and synced as a whole; then `state.json` is replaced,
/// which is the one moment at which it becomes the current one. A process that is killed leaves
/// the version before or the new one, and folders that the next change removes. Folders are for
/// their owner alone (mode 0700), files too (0600). Making a `Store` touches no disk.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// Version of a pack in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StoredRelease {
    /// Number of its folder; later ones have greater numbers.
    pub generation: u32,
    /// Version and digest.
    pub release: Release,
    /// Time of the installation.
    pub installed: Timestamp,
}

/// Pack in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstalledPack {
    /// Its name.
    pub name: String,
    /// Version that is used.
    pub current: StoredRelease,
    /// Version that a rollback goes to.
    pub previous: Option<StoredRelease>,
    /// Other versions that are kept, earliest first.
    pub older: Vec<StoredRelease>,
    /// Latest version that was ever installed: earlier ones are refused.
    pub floor: Release,
}

/// Pack in the store whose state cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub struct DamagedPack {
    /// Its name.
    pub name: String,
    /// The damage.
    pub error: Error,
}

impl Store {
    /// The store in a folder, which is created when a pack is installed.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Verifies a pack, at the time of the clock if the policy has none, and makes it the current
    /// version of its name. Its version must not be below
    /// the floor of that name, which it raises. The version that was current becomes the previous
    /// one; the same version again repairs its files.
    ///
    /// # Errors
    /// As [`Contents::verify_above`]; [`Error::Busy`], [`Error::Writable`],
    /// [`Error::Limit`] for too many versions, [`Error::Io`]. The version before stays current.
    pub fn install(&self, contents: Contents, policy: Policy<'_>) -> Result<InstalledPack> {
        files::create_folder(&self.root)?;
        files::check_private(&self.root)?;
        let _lock = self.lock()?;
        let policy = Policy { now: policy.now.or_else(|| Some(Timestamp::now())), ..policy };
        let name = contents.manifest().name.clone();
        let state = self.state(&name)?;
        let pack = contents.verify_above(policy, state.as_ref().map(|state| &state.floor))?;
        let folder = self.root.join(&name);
        files::create_folder(&folder)?;
        files::sync_folder(&self.root)?;
        self.sweep(&name, state.as_ref())?;
        let generation = state.as_ref().map_or(1, State::next_generation);
        let installed = StoredRelease { generation, release: pack.release(), installed: Timestamp::now() };
        let next = match state {
            Some(state) => state.with(installed),
            None => State::first(installed),
        };
        within(
            format!("versions of {name} (remove old ones: Store::prune)"),
            next.n_releases(),
            MAX_RELEASES as u64,
        )?;
        let incomplete = folder.join(format!("{INCOMPLETE}{generation:08}"));
        let written = write_files(&incomplete, pack.contents())
            .and_then(|()| files::rename(&incomplete, &folder.join(folder_name(generation))))
            .and_then(|()| next.save(&folder));
        if written.is_err() {
            // The first error is the one to report; the next change sweeps what is left.
            let _ = files::remove_folder(&incomplete);
        }
        written?;
        // The pack is installed; what is left behind goes with the next change.
        let _ = self.sweep(&name, Some(&next));
        Ok(next.installed(name))
    }

    /// Reads and verifies the current version of a pack: signature, hashes, revoked keys, host.
    /// Keys whose validity has ended since the installation stay good.
    ///
    /// # Errors
    /// [`Error::NotInstalled`]; [`Error::Writable`]; [`Error::Installed`] with the fault of the
    /// pack.
    pub fn open(&self, name: &str, policy: Policy<'_>) -> Result<Pack> {
        loop {
            let state = self.existing(name)?;
            let opened = self.open_release(name, state.current(), policy);
            // Another process may have installed and pruned since the state was read.
            if opened.is_ok() || self.existing(name)? == state {
                return opened;
            }
        }
    }

    /// All packs in the order of their names, and those whose state is damaged. Files of packs are
    /// not read.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Writable`]. A folder that does not exist is empty.
    pub fn list(&self) -> Result<(Vec<InstalledPack>, Vec<DamagedPack>)> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Default::default()),
            entries => entries.map_err(io_error("list", &self.root))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(io_error("list", &self.root))?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            names.extend(
                entry.file_name().into_string().ok().filter(|name| is_folder && name_fault(name).is_none()),
            );
        }
        names.sort();
        let (mut packs, mut damaged) = (Vec::new(), Vec::new());
        for name in names {
            match self.state(&name) {
                Ok(Some(state)) => packs.push(state.installed(name)),
                // Its installation did not come to its end.
                Ok(None) => {}
                Err(error @ Error::Writable { .. }) => return Err(error),
                Err(error) => damaged.push(DamagedPack { name, error }),
            }
        }
        Ok((packs, damaged))
    }

    /// Makes the previous version of a pack the current one, after it was verified as
    /// [`open`](Self::open) does. The floor stays, and a second rollback undoes the first.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::NoPrevious`], [`Error::Busy`]; [`Error::Installed`] with
    /// the fault of the previous version, which then does not become the current one.
    pub fn rollback(&self, name: &str, policy: Policy<'_>) -> Result<InstalledPack> {
        let rolled_back = self.rollback_if(name, policy, |_| true)?;
        rolled_back.ok_or_else(|| Error::NoPrevious { name: name.to_owned() })
    }

    /// Rollback under the condition that `accepts` the versions, which no other process changes in
    /// between; `None` if it does not.
    ///
    /// # Errors
    /// As [`rollback`](Self::rollback).
    pub fn rollback_if(
        &self,
        name: &str,
        policy: Policy<'_>,
        accepts: impl FnOnce(&InstalledPack) -> bool,
    ) -> Result<Option<InstalledPack>> {
        self.existing(name)?;
        let _lock = self.lock()?;
        let state = self.existing(name)?;
        let previous = state.previous().ok_or_else(|| Error::NoPrevious { name: name.to_owned() })?;
        if !accepts(&state.installed(name.to_owned())) {
            return Ok(None);
        }
        self.open_release(name, previous, policy)?;
        let next = state.rolled_back();
        next.save(&self.root.join(name))?;
        Ok(Some(next.installed(name.to_owned())))
    }

    /// Removes all versions of a pack but the current and the previous one. Returns those that
    /// were removed.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::Busy`], [`Error::Io`].
    pub fn prune(&self, name: &str) -> Result<Vec<StoredRelease>> {
        self.existing(name)?;
        let _lock = self.lock()?;
        let state = self.existing(name)?;
        let (next, removed) = state.pruned();
        next.save(&self.root.join(name))?;
        self.sweep(name, Some(&next))?;
        Ok(removed)
    }

    /// Takes the lock, which lasts until it is dropped or the process ends.
    fn lock(&self) -> Result<Lock> {
        let path = self.root.join(LOCK);
        let file = files::private().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(io_error("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => Err(Error::Busy { root: self.root.clone() }),
            Err(TryLockError::Error(source)) => Err(io_error("lock", &path)(source)),
        }
    }

    /// State of a name; `None` if no installation came to its end.
    fn state(&self, name: &str) -> Result<Option<State>> {
        if name_fault(name).is_some() {
            return Ok(None);
        }
        let folder = self.root.join(name);
        let found = match fs::symlink_metadata(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found.map_err(io_error("read", &folder))?,
        };
        if !found.is_dir() {
            return Err(Error::NotRegular { path: folder });
        }
        files::check_private(&self.root)?;
        files::check_private(&folder)?;
        State::load(&folder)
    }

    /// State of an installed pack.
    fn existing(&self, name: &str) -> Result<State> {
        self.state(name)?.ok_or_else(|| Error::NotInstalled { name: excerpt(name) })
    }

    fn open_release(&self, name: &str, stored: &StoredRelease, policy: Policy<'_>) -> Result<Pack> {
        let folder = self.root.join(name).join(folder_name(stored.generation));
        let opened = || {
            if folder.is_symlink() {
                return Err(Error::NotRegular { path: folder.clone() });
            }
            let contents = Contents::open(&folder)?;
            // A file of the state says which pack was installed: not any that a trusted key signed.
            if contents.manifest().name != name
                || contents.manifest_sha256() != stored.release.manifest_sha256
            {
                let version = stored.release.version.clone();
                return Err(Error::Replaced { name: name.to_owned(), version });
            }
            contents.verify(Policy { now: None, ..policy })
        };
        opened().map_err(|source| Error::Installed { name: name.to_owned(), source: Box::new(source) })
    }

    /// Removes what belongs to no version of the state: leftovers of killed processes, and
    /// versions that were replaced.
    fn sweep(&self, name: &str, state: Option<&State>) -> Result<()> {
        let folder = self.root.join(name);
        for entry in fs::read_dir(&folder).map_err(io_error("list", &folder))? {
            let entry = entry.map_err(io_error("list", &folder))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let generation = name.strip_prefix(INCOMPLETE).unwrap_or(&name).parse().ok();
            let is_version = generation.is_some_and(|generation| name.ends_with(&folder_name(generation)));
            let is_kept = state.is_some_and(|state| state.folders().any(|kept| kept == name));
            if is_version && !is_kept {
                files::remove_folder(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// The lock of a store.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Not by closing alone: a program that another thread is just starting has the file open
        // too.
        let _ = self.0.unlock();
    }
}

/// Name of the folder of a version.
fn folder_name(generation: u32) -> String {
    format!("{generation:08}")
}

/// Writes the files of a pack to a new folder and waits until they are on the disk.
fn write_files(folder: &Path, contents: &Contents) -> Result<()> {
    files::create_folder(folder)?;
    let mut folders = vec![folder.to_owned()];
    for (path, bytes) in contents.files() {
        let mut parent = folder.to_owned();
        let (above, _) = path.rsplit_once('/').unwrap_or_default();
        for part in above.split('/').filter(|part| !part.is_empty()) {
            parent.push(part);
            if !folders.contains(&parent) {
                files::create_folder(&parent)?;
                folders.push(parent.clone());
            }
        }
        files::write_new(&folder.join(path), bytes)?;
    }
    folders.iter().rev().try_for_each(|folder| files::sync_folder(folder))
}
