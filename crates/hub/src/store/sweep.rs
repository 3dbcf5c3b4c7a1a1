//! Deleting what no manifest names: files of models that were removed or updated, and what a
//! process has left that was killed.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::folder::{Entry, Folder};
use super::manifest::Manifest;
use super::{FILES, State, Store, flat, repo_of};
use crate::download::Partial;
use crate::error::{Error, Result, file_error};
use crate::names::MAX_DEPTH;

/// Deepest folder that is looked into, below that of the files. What lies deeper is not the
/// store's.
const DEEPEST: usize = MAX_DEPTH + 2;

/// Paths that a sweep leaves alone.
#[derive(Debug, Default)]
struct Kept {
    /// The paths that manifests name, with the folders that lead there.
    paths: HashSet<PathBuf>,
    /// Folders of models whose manifest is damaged, but for where they are.
    folders: HashSet<PathBuf>,
}

impl Store {
    /// Deletes what no manifest names of a repository that is locked, and the folders that are
    /// empty then. Gives the bytes of disk that are free now. Links are deleted, not followed.
    ///
    /// Looking at what is there, instead of at what a removed manifest has named, also finds what a
    /// process has left that was killed between the two.
    pub(crate) fn sweep(&self, repo: &str) -> Result<u64> {
        let kept = self.kept()?;
        let Some(files) = self.open_files()? else { return Ok(0) };
        let name = flat(repo);
        match files.entry(OsStr::new(&name)).map_err(file_error("read", &files.path().join(&name)))? {
            Some(entry) => sweep_entry(&files, &entry, &kept, 1),
            None => Ok(0),
        }
    }

    /// As [`Self::sweep`], for all repositories that nobody works on.
    pub(super) fn sweep_all(&self) -> Result<u64> {
        let Some(files) = self.open_files()? else { return Ok(0) };
        let mut freed = 0;
        for entry in files.entries().map_err(file_error("list", files.path()))? {
            let Some(repo) = entry.name.to_str().and_then(repo_of) else { continue };
            match self.lock(&repo) {
                Err(Error::Busy { .. }) => {}
                lock => {
                    let _lock = lock?;
                    freed += self.sweep(&repo)?;
                }
            }
        }
        Ok(freed)
    }

    fn kept(&self) -> Result<Kept> {
        let top = self.root().join(FILES);
        let mut kept = Kept::default();
        let mut keep = |path: &Path| {
            // Ends at the first folder that is known: those above it are known, too.
            for path in path.ancestors().take_while(|path| *path != top) {
                if !kept.paths.insert(path.to_owned()) {
                    break;
                }
            }
        };
        for (state, manifest) in self.manifests()? {
            let folder = self.folder(&manifest.repo(), &manifest.commit);
            for file in &manifest.files {
                let path = folder.join(&file.path);
                if state == State::Pending {
                    Partial::of(&path).into_paths().iter().for_each(|path| keep(path));
                }
                keep(&path);
            }
        }
        for (_, path, _) in self.damaged_manifests()? {
            kept.folders.extend(Manifest::owner(&path).map(|(repo, commit)| self.folder(&repo, &commit)));
        }
        Ok(kept)
    }

    fn open_files(&self) -> Result<Option<Folder>> {
        let name = OsStr::new(FILES);
        match Folder::open(self.root()).and_then(|root| root.child(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(file_error("list", &self.root().join(name))),
        }
    }
}

/// Deletes what nobody keeps of an entry, and the entry if nothing is left of it. Gives the bytes
/// of disk that are free now.
fn sweep_entry(parent: &Folder, entry: &Entry, kept: &Kept, depth: usize) -> Result<u64> {
    let path = parent.path().join(&entry.name);
    let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    if kept.folders.contains(&path) {
        return Ok(0);
    }
    if !entry.is_folder {
        if kept.paths.contains(&path) {
            return Ok(0);
        }
        return match parent.remove_file(&entry.name) {
            Err(error) if is_absent(&error) => Ok(0),
            Err(error) => Err(file_error("remove", &path)(error)),
            Ok(()) if Partial::is_data(&path) => Ok(entry.disk_bytes),
            Ok(()) => Ok(entry.bytes),
        };
    }
    if depth == DEEPEST {
        return Ok(0);
    }
    let folder = match parent.child(&entry.name) {
        Err(error) if is_absent(&error) => return Ok(0),
        folder => folder.map_err(file_error("list", &path))?,
    };
    let mut freed = 0;
    for entry in folder.entries().map_err(file_error("list", &path))? {
        freed += sweep_entry(&folder, &entry, kept, depth + 1)?;
    }
    // A folder that is not empty stays; that is no failure.
    let _ = parent.remove_folder(&entry.name);
    Ok(freed)
}
