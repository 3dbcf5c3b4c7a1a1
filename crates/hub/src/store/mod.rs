//! The store: model files on this machine, under names.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, file_error, listed};
use crate::files;
use crate::near::nearest;
use crate::reference::{ModelReference, is_name};

mod folder;
mod lock;
mod manifest;
mod sweep;

pub(crate) use lock::Lock;
pub(crate) use manifest::Manifest;
pub use manifest::StoredFile;

/// Folder of the model files.
const FILES: &str = "files";

/// Folder of the locks.
const LOCKS: &str = "locks";

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
/// Several processes may use one store. Making a `Store` touches no disk. The folder of the store
/// may be a symbolic link; links in it are not followed where files are written or deleted.
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
    /// Path for a program to open: a file (the first of a split model) or a folder.
    pub path: PathBuf,
    /// When it was pulled, in seconds since 1970; 0 when it is not complete.
    pub pulled_unix: u64,
    /// Its files.
    pub files: Vec<StoredFile>,
    /// True if all files are there and verified.
    pub is_complete: bool,
}

/// A model of the store whose manifest cannot be read. [`Store::remove`] removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedModel {
    /// Its name.
    pub name: String,
    /// The manifest.
    pub path: PathBuf,
    /// The damage, as the parser or the system describes it.
    pub reason: String,
}

impl StoredModel {
    /// Length of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }

    /// The files of which the hub stated neither a SHA-256 nor an ETag.
    pub fn unverified(&self) -> impl Iterator<Item = &StoredFile> {
        self.files.iter().filter(|file| file.unverified)
    }
}

/// State of a manifest, by the folder that it lies in.
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
    /// directory (`XDG_DATA_HOME`, by default `~/.local/share`, on Windows `%LOCALAPPDATA%`).
    ///
    /// # Errors
    /// [`Error::NoHome`] when none of the variables is set.
    pub fn from_env() -> Result<Self> {
        let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let in_home = || match cfg!(windows) {
            true => path("LOCALAPPDATA"),
            false => Some(path("HOME")?.join(".local/share")),
        };
        let data = || path("XDG_DATA_HOME").or_else(in_home);
        let home = path("RUVLLM_HOME").or_else(|| Some(data()?.join("ruvllm"))).ok_or(Error::NoHome)?;
        Ok(Self::new(home.join("models")))
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All models in the order of their names; those whose download has not come to its end, too.
    /// Models with a damaged manifest are left out: see [`Self::damaged`].
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn list(&self) -> Result<Vec<StoredModel>> {
        let mut models: BTreeMap<String, StoredModel> = BTreeMap::new();
        for (state, manifest) in self.manifests()? {
            // A model that is being updated is there as it was.
            models.entry(manifest.name.clone()).or_insert_with(|| self.model(state, manifest));
        }
        Ok(models.into_values().collect())
    }

    /// The models whose manifest is damaged, in the order of their names.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn damaged(&self) -> Result<Vec<DamagedModel>> {
        let mut models: BTreeMap<String, DamagedModel> = BTreeMap::new();
        for (name, path, reason) in self.damaged_manifests()? {
            models.entry(name.clone()).or_insert(DamagedModel { name, path, reason });
        }
        Ok(models.into_values().collect())
    }

    /// The model of a name, or of the reference that it was pulled by, in any form of
    /// [`ModelReference::from_user`].
    ///
    /// # Errors
    /// [`Error::UnknownModel`] with the names that come near, [`Error::Incomplete`],
    /// [`Error::Manifest`] when that of this model is damaged.
    pub fn get(&self, name: &str) -> Result<StoredModel> {
        let found = match is_name(name) {
            true => self.find(name)?,
            false => self.pulled_as(name)?,
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
    /// [`Error::UnknownModel`] with the names that come near, [`Error::Manifest`] when that of this
    /// model is damaged.
    pub fn inspect(&self, name: &str) -> Result<StoredModel> {
        match self.find(name)? {
            Some(model) => Ok(model),
            None => Err(self.unknown(name)?),
        }
    }

    /// Removes a name, and the files that no other name needs. Gives the bytes of disk that are
    /// free now. The manifest may be damaged.
    ///
    /// # Errors
    /// [`Error::UnknownModel`]; [`Error::Busy`] while the model is being pulled; [`Error::Link`]
    /// when a folder of the store is one; a file that cannot be removed.
    pub fn remove(&self, name: &str) -> Result<u64> {
        if self.both(name).is_empty() {
            return Err(self.unknown(name)?);
        }
        self.check_folders()?;
        // Both manifests of a name are of one repository.
        let Some(repo) = self.repos(name).into_iter().next() else {
            // Nobody knows where its files are: those that no manifest names are looked for
            // everywhere.
            self.remove_manifests(name)?;
            return self.sweep_all();
        };
        let _lock = self.lock(&repo)?;
        // Whoever had the lock before may have given the name to another.
        if self.repos(name).iter().any(|other| *other != repo) {
            return Err(Error::Busy { repo });
        }
        self.remove_manifests(name)?;
        self.sweep(&repo)
    }

    /// Refuses a store whose folders are links: before anything is written or deleted.
    pub(crate) fn check_folders(&self) -> Result<()> {
        let folders = [State::Complete.folder(), State::Pending.folder(), FILES, LOCKS];
        folders.into_iter().try_for_each(|folder| files::check_not_link(&self.root.join(folder)))
    }

    fn remove_manifests(&self, name: &str) -> Result<()> {
        [State::Complete, State::Pending]
            .into_iter()
            .try_for_each(|state| files::remove(&self.manifest_path(state, name)))
    }

    /// The repositories that the manifests of a name are of, as far as they can be read.
    fn repos(&self, name: &str) -> Vec<String> {
        let repo = |(state, manifest): (State, Result<Manifest>)| match manifest {
            Ok(manifest) => Some(manifest.repo()),
            Err(_) => Manifest::owner(&self.manifest_path(state, name)).map(|(repo, _)| repo),
        };
        self.both(name).into_iter().filter_map(repo).collect()
    }

    /// Takes the lock of a repository.
    pub(crate) fn lock(&self, repo: &str) -> Result<Lock> {
        let folder = self.root.join(LOCKS);
        files::create_folder_below(&self.root, &folder)?;
        Lock::try_take(&folder.join(format!("{}.lock", flat(repo))), repo)
    }

    /// The folder of a repository's files at a commit.
    pub(crate) fn folder(&self, repo: &str, commit: &str) -> PathBuf {
        self.root.join(FILES).join(flat(repo)).join(commit)
    }

    /// All manifests that can be read: complete ones first.
    pub(crate) fn manifests(&self) -> Result<Vec<(State, Manifest)>> {
        let paths = self.manifest_paths()?.into_iter();
        // One that another process removes meanwhile is left out.
        let read = |(state, _, path): (State, String, PathBuf)| Some((state, Manifest::read(&path).ok()??));
        Ok(paths.filter_map(read).collect())
    }

    /// Name, path and damage of the manifests that cannot be read: complete ones first.
    fn damaged_manifests(&self) -> Result<Vec<(String, PathBuf, String)>> {
        let paths = self.manifest_paths()?.into_iter();
        let damage = |(_, name, path): (State, String, PathBuf)| match Manifest::read(&path) {
            Err(Error::Manifest { reason, .. }) => Some((name, path, reason)),
            Err(error) => Some((name, path, error.to_string())),
            Ok(_) => None,
        };
        Ok(paths.filter_map(damage).collect())
    }

    /// The names that have manifests, complete ones first. Files with other names than the store
    /// gives are none.
    fn manifest_paths(&self) -> Result<Vec<(State, String, PathBuf)>> {
        let mut found = Vec::new();
        for state in [State::Complete, State::Pending] {
            for path in files::list(&self.root.join(state.folder()))? {
                let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"));
                if let Some(name) = name.filter(|name| is_name(name)).map(str::to_owned) {
                    found.push((state, name, path));
                }
            }
        }
        Ok(found)
    }

    /// Writes a manifest; a name belongs to one model, whoever else pulls at the same time.
    ///
    /// # Errors
    /// [`Error::NameTaken`]; [`Error::Manifest`] when the name is that of a damaged one.
    pub(crate) fn write(&self, state: State, manifest: &Manifest) -> Result<()> {
        for folder in [LOCKS, state.folder()] {
            files::create_folder_below(&self.root, &self.root.join(folder))?;
        }
        let _lock = Lock::wait(&self.root.join(LOCKS).join("names.lock"))?;
        self.check_name(manifest)?;
        let path = self.manifest_path(state, &manifest.name);
        let text = manifest.to_json().map_err(file_error("write", &path))?;
        files::replace(&path, &text)?;
        if state == State::Complete {
            files::remove(&self.manifest_path(State::Pending, &manifest.name))?;
        }
        Ok(())
    }

    /// Refuses a manifest whose name belongs to another model, or to one that cannot be read: a
    /// newer program may be able to. Another revision of the same is an update.
    pub(crate) fn check_name(&self, manifest: &Manifest) -> Result<()> {
        for (state, other) in self.both(&manifest.name) {
            match other {
                Ok(other) if !manifest.is_update_of(&other) => {
                    return Err(Error::NameTaken { name: manifest.name.clone(), source_text: other.source });
                }
                Err(damage) if state == State::Complete => return Err(damage),
                // Of a download that did not come to its end nothing is lost.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// The model that was pulled by a reference.
    fn pulled_as(&self, text: &str) -> Result<Option<StoredModel>> {
        let Ok(reference) = ModelReference::from_user(text) else { return Ok(None) };
        let is_meant =
            |source: &str| source.parse().is_ok_and(|source: ModelReference| source.is_same(&reference));
        Ok(self.list()?.into_iter().find(|model| is_meant(&model.source)))
    }

    fn find(&self, name: &str) -> Result<Option<StoredModel>> {
        let Some((state, manifest)) = self.both(name).into_iter().next() else { return Ok(None) };
        Ok(Some(self.model(state, manifest?)))
    }

    /// The manifests of a name, the complete one first; errors are [`Error::Manifest`].
    fn both(&self, name: &str) -> Vec<(State, Result<Manifest>)> {
        let states = [State::Complete, State::Pending].into_iter().filter(|_| is_name(name));
        let read = |state| Some((state, Manifest::read(&self.manifest_path(state, name)).transpose()?));
        states.filter_map(read).collect()
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
        let models: Vec<String> = self.list()?.into_iter().map(|model| model.name).collect();
        let damaged: Vec<String> = self.damaged()?.into_iter().map(|model| model.name).collect();
        let names = || models.iter().chain(&damaged).map(String::as_str);
        let near = nearest(name, names());
        let there_is = if ModelReference::from_user(name).is_ok() {
            "pull it first".to_owned()
        } else if names().next().is_none() {
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

/// The repository of a folder that [`flat`] names.
fn repo_of(folder: &str) -> Option<String> {
    // The second part begins with a letter, a digit or `_`.
    let (org, name) = folder.rsplit_once("--")?;
    let repo = format!("{org}/{name}");
    let reference: ModelReference = format!("hf://{repo}").parse().ok()?;
    (reference.repo() == repo && flat(&repo) == folder).then_some(repo)
}
