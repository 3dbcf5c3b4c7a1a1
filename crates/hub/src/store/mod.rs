//! The store: model files on this machine, under names.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::download::Partial;
use crate::error::{Error, Result, file_error, listed};
use crate::files;
use crate::near::nearest;
use crate::reference::{ModelReference, is_name};

mod lock;
mod manifest;

pub(crate) use lock::Lock;
pub(crate) use manifest::Manifest;
pub use manifest::StoredFile;

/// Model files on this machine, under names.
///
/// The files of a repository lie under its name and the commit that they are of, so nothing that is
/// there ever changes, and models that share files share them on disk:
///
/// ```text
/// manifests/NAME.json                what a name means
/// pending/NAME.json                  the same of a download that has not come to its end
/// files/ORG--REPO/COMMIT/PATH        the files
/// files/ORG--REPO/COMMIT/PATH.part   a file that is on its way, with what has arrived in PATH.part.json
/// locks/                             one empty file per repository
/// ```
///
/// Several processes may use one store. Making a `Store` touches no disk.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// A model in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredModel {
    /// Its name.
    pub name: String,
    /// The reference that was pulled.
    pub source: String,
    /// The hub that it came from.
    pub endpoint: String,
    /// The commit that the reference meant.
    pub commit: String,
    /// What a program opens: a file (the first of a split model) or a folder.
    pub path: PathBuf,
    /// When it was pulled, in seconds since 1970; 0 when it is not complete.
    pub pulled_unix: u64,
    /// Its files.
    pub files: Vec<StoredFile>,
    /// Whether all files are there and verified.
    pub is_complete: bool,
}

impl StoredModel {
    /// Length of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }
}

/// Which of the two folders a manifest lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Complete,
    Pending,
}

impl State {
    fn folder(self) -> &'static str {
        match self {
            Self::Complete => "manifests",
            Self::Pending => "pending",
        }
    }
}

impl Store {
    /// The store in a folder, which is created when a model is pulled.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The store of this user: `models` in `RUVLLM_HOME`, else in `ruvllm` of the XDG data
    /// directory (`XDG_DATA_HOME`, by default `~/.local/share`).
    ///
    /// # Errors
    /// [`Error::NoHome`] when none of the variables is set.
    pub fn from_env() -> Result<Self> {
        let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let data = || path("XDG_DATA_HOME").or_else(|| Some(path("HOME")?.join(".local/share")));
        let home = path("RUVLLM_HOME").or_else(|| Some(data()?.join("ruvllm"))).ok_or(Error::NoHome)?;
        Ok(Self::new(home.join("models")))
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All models in the order of their names; those whose download has not come to its end, too.
    ///
    /// # Errors
    /// A damaged manifest, or a folder that cannot be read.
    pub fn list(&self) -> Result<Vec<StoredModel>> {
        let mut models: Vec<StoredModel> = Vec::new();
        for (state, manifest) in self.manifests()? {
            // A model that is being updated is there as it was.
            let is_update = state == State::Pending && models.iter().any(|model| model.name == manifest.name);
            if !is_update {
                models.push(self.model(state, manifest));
            }
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// The model of a name, or of the reference that it was pulled by.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] with the names that come near, [`Error::Incomplete`], a damaged
    /// manifest.
    pub fn get(&self, name: &str) -> Result<StoredModel> {
        let found = match is_name(name) {
            true => self.find(name)?,
            false => self.list()?.into_iter().find(|model| model.source == name),
        };
        match found {
            Some(model) if model.is_complete => Ok(model),
            Some(model) => Err(Error::Incomplete { name: model.name, source_text: model.source }),
            None => Err(self.unknown(name)?),
        }
    }

    /// The model of a name, complete or not.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] with the names that come near, a damaged manifest.
    pub fn inspect(&self, name: &str) -> Result<StoredModel> {
        match self.find(name)? {
            Some(model) => Ok(model),
            None => Err(self.unknown(name)?),
        }
    }

    /// Removes a name, and the files that no other name needs. Gives the bytes of disk that are
    /// free now.
    ///
    /// # Errors
    /// [`Error::UnknownModel`]; [`Error::Busy`] while the model is being pulled; a file that cannot
    /// be removed.
    pub fn remove(&self, name: &str) -> Result<u64> {
        // Both manifests of a name are of one repository.
        let Some((_, first)) = self.both(name)?.into_iter().next() else {
            return Err(self.unknown(name)?);
        };
        let repo = first.repo();
        let _lock = self.lock(&repo)?;
        // Whoever had the lock before may have given the name to another.
        if self.both(name)?.iter().any(|(_, manifest)| manifest.repo() != repo) {
            return Err(Error::Busy { repo });
        }
        for state in [State::Complete, State::Pending] {
            files::remove(&self.manifest_path(state, name))?;
        }
        self.sweep(&repo)
    }

    /// Takes the lock of a repository.
    pub(crate) fn lock(&self, repo: &str) -> Result<Lock> {
        let folder = self.root.join("locks");
        files::create_folder(&folder)?;
        Lock::try_take(&folder.join(format!("{}.lock", flat(repo))), repo)
    }

    /// The folder of a repository's files at a commit.
    pub(crate) fn folder(&self, repo: &str, commit: &str) -> PathBuf {
        self.root.join("files").join(flat(repo)).join(commit)
    }

    /// All manifests: complete ones first.
    pub(crate) fn manifests(&self) -> Result<Vec<(State, Manifest)>> {
        let mut found = Vec::new();
        for state in [State::Complete, State::Pending] {
            let folder = self.root.join(state.folder());
            for path in files::list(&folder)? {
                if path.extension().is_some_and(|extension| extension == "json") {
                    // One that another process removes meanwhile is left out.
                    found.extend(Manifest::read(&path)?.map(|manifest| (state, manifest)));
                }
            }
        }
        Ok(found)
    }

    /// Writes a manifest; a name belongs to one model, whoever else pulls at the same time.
    ///
    /// # Errors
    /// [`Error::NameTaken`].
    pub(crate) fn write(&self, state: State, manifest: &Manifest) -> Result<()> {
        for folder in ["locks", state.folder()] {
            files::create_folder(&self.root.join(folder))?;
        }
        let _lock = Lock::wait(&self.root.join("locks").join("names.lock"))?;
        self.check_name(manifest)?;
        let path = self.manifest_path(state, &manifest.name);
        let text = manifest.to_json().map_err(file_error("write", &path))?;
        files::replace(&path, &text)?;
        if state == State::Complete {
            files::remove(&self.manifest_path(State::Pending, &manifest.name))?;
        }
        Ok(())
    }

    /// Refuses a manifest whose name belongs to another model. Another revision of the same is an
    /// update.
    pub(crate) fn check_name(&self, manifest: &Manifest) -> Result<()> {
        match self.both(&manifest.name)?.into_iter().find(|(_, other)| !manifest.is_update_of(other)) {
            None => Ok(()),
            Some((_, other)) => {
                Err(Error::NameTaken { name: manifest.name.clone(), source_text: other.source })
            }
        }
    }

    /// Deletes what no manifest names of a repository that is locked, and the folders that are
    /// empty then. Gives the bytes of disk that are free now.
    ///
    /// Looking at what is there, instead of at what a removed manifest has named, also finds what a
    /// process has left that was killed between the two.
    pub(crate) fn sweep(&self, repo: &str) -> Result<u64> {
        let mut kept = HashSet::new();
        for (state, manifest) in self.manifests()? {
            let folder = self.folder(&manifest.repo(), &manifest.commit);
            for file in &manifest.files {
                let path = folder.join(&file.path);
                if state == State::Pending {
                    kept.extend(Partial::of(&path).into_paths());
                }
                kept.insert(path);
            }
        }
        let mut freed = 0;
        let mut folders = vec![self.root.join("files").join(flat(repo))];
        let mut next = 0;
        while let Some(folder) = folders.get(next).cloned() {
            next += 1;
            for path in files::list(&folder)? {
                let Ok(found) = fs::symlink_metadata(&path) else { continue };
                if found.is_dir() {
                    folders.push(path);
                } else if !kept.contains(&path) {
                    files::remove(&path)?;
                    freed += if Partial::is_data(&path) { files::disk_bytes(&found) } else { found.len() };
                }
            }
        }
        for folder in folders.iter().rev() {
            // A folder that is not empty stays; that is no failure.
            let _ = fs::remove_dir(folder);
        }
        Ok(freed)
    }

    fn find(&self, name: &str) -> Result<Option<StoredModel>> {
        let first = self.both(name)?.into_iter().next();
        Ok(first.map(|(state, manifest)| self.model(state, manifest)))
    }

    /// The manifests of a name, the complete one first.
    fn both(&self, name: &str) -> Result<Vec<(State, Manifest)>> {
        let mut found = Vec::new();
        for state in [State::Complete, State::Pending].into_iter().filter(|_| is_name(name)) {
            found.extend(Manifest::read(&self.manifest_path(state, name))?.map(|manifest| (state, manifest)));
        }
        Ok(found)
    }

    fn model(&self, state: State, manifest: Manifest) -> StoredModel {
        let folder = self.folder(&manifest.repo(), &manifest.commit);
        StoredModel {
            path: if manifest.model.is_empty() { folder } else { folder.join(&manifest.model) },
            is_complete: state == State::Complete,
            name: manifest.name,
            source: manifest.source,
            endpoint: manifest.endpoint,
            commit: manifest.commit,
            pulled_unix: manifest.pulled_unix,
            files: manifest.files,
        }
    }

    fn manifest_path(&self, state: State, name: &str) -> PathBuf {
        self.root.join(state.folder()).join(format!("{name}.json"))
    }

    /// The error for a name that is not there.
    fn unknown(&self, name: &str) -> Result<Error> {
        let models = self.list()?;
        let names = || models.iter().map(|model| model.name.as_str());
        let near = nearest(name, names());
        let there_is = if name.parse::<ModelReference>().is_ok() {
            "pull it first".to_owned()
        } else if models.is_empty() {
            "it is empty".to_owned()
        } else if near.is_empty() {
            format!("there is {}", listed(names()))
        } else {
            format!("near to it is {}", listed(near.into_iter()))
        };
        Ok(Error::UnknownModel { name: crate::error::shortened(name), there_is })
    }
}

/// A repository's name as one folder: `ORG--REPO`. No part of a name holds two dashes in a row.
fn flat(repo: &str) -> String {
    repo.replace('/', "--")
}
