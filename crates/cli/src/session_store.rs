//! Sessions of `chat`: one folder each, in the user's state folder.
//!
//! ```text
//! sessions/ID/chat.json   messages; the session exists once it does
//! sessions/ID/prefixes/   keys and values, files of the prefix cache
//! sessions/ID/lock        locked by the chat that has the session open
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::result_file::{self, Readers};
use crate::user_folders;

/// Largest number of bytes in an id.
const ID_BYTES: usize = 64;

/// Name of a session: letters, digits, `-` and `_`, so that it is a file name everywhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionId(String);

impl SessionId {
    /// Parses an id.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if (1..=ID_BYTES).contains(&text.len()) && text.bytes().all(is_part) && !text.starts_with('-') {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("expected up to {ID_BYTES} letters, digits, - and _, the first one no -"))
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The folder of all sessions.
#[derive(Debug)]
pub(crate) struct SessionStore {
    folder: PathBuf,
}

/// A session on disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) id: SessionId,
    /// The saved conversation.
    pub(crate) file: PathBuf,
    /// Time of the last answer.
    pub(crate) used: SystemTime,
    /// Size of messages, keys and values.
    pub(crate) bytes: u64,
}

/// A session that this process alone has open.
#[derive(Debug)]
pub(crate) struct OpenSession {
    pub(crate) id: SessionId,
    folder: PathBuf,
    /// Locked until it is dropped.
    lock: Lock,
}

/// The lock of a session.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Not by closing alone: a program that another thread is just starting has the file open
        // too.
        let _ = self.0.unlock();
    }
}

impl SessionStore {
    /// The store in the user's state folder.
    ///
    /// # Errors
    /// [`Error::NoStateFolder`].
    pub(crate) fn of_user() -> Result<Self> {
        let folder = user_folders::state().ok_or(Error::NoStateFolder)?.join("sessions");
        Ok(Self { folder })
    }

    fn path(&self, id: &SessionId) -> PathBuf {
        self.folder.join(&id.0)
    }

    /// All sessions, by id.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub(crate) fn list(&self) -> Result<Vec<StoredSession>> {
        let failed = |source| Error::ReadFile { path: self.folder.clone(), source };
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut sessions = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let id = name.to_str().and_then(|name| SessionId::parse(name).ok());
            sessions.extend(id.and_then(|id| self.find(&id)));
        }
        sessions.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(sessions)
    }

    /// The session of an id; `None` if there is none.
    fn find(&self, id: &SessionId) -> Option<StoredSession> {
        let folder = self.path(id);
        let file = folder.join("chat.json");
        let found = fs::metadata(&file).ok().filter(fs::Metadata::is_file)?;
        let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let bytes = found.len() + size(&folder.join("prefixes"));
        Some(StoredSession { id: id.clone(), file, used, bytes })
    }

    /// Opens a session for this process; its folder is created if it is missing.
    ///
    /// # Errors
    /// [`Error::SessionInUse`]; a folder that cannot be created.
    pub(crate) fn open(&self, id: &SessionId) -> Result<OpenSession> {
        let folder = self.path(id);
        let failed = |source| Error::WriteFile { path: folder.clone(), source };
        user_folders::make_private(&folder).map_err(failed)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("lock"))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(OpenSession { id: id.clone(), folder, lock: Lock(lock) }),
            Err(TryLockError::WouldBlock) => Err(Error::SessionInUse { id: id.0.clone() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// Makes a session with the messages, keys and values of another one, which may be open.
    ///
    /// # Errors
    /// [`Error::NoSession`], [`Error::SessionExists`], [`Error::SessionInUse`]; files that cannot
    /// be copied.
    pub(crate) fn fork(&self, id: &SessionId, new_id: &SessionId) -> Result<StoredSession> {
        let from = self.find(id).ok_or_else(|| Error::NoSession { id: id.0.clone() })?;
        let exists = || Error::SessionExists { id: new_id.0.clone() };
        if self.find(new_id).is_some() {
            return Err(exists());
        }
        let new = self.open(new_id)?;
        if self.find(new_id).is_some() {
            return Err(exists());
        }
        let messages = fs::read(&from.file).map_err(|source| Error::ReadFile { path: from.file, source })?;
        let failed = |source| Error::WriteFile { path: new.folder.clone(), source };
        copy_files(&self.path(id).join("prefixes"), &new.prefixes()).map_err(failed)?;
        result_file::write(&new.file(), &messages, Readers::Owner).map_err(failed)?;
        self.find(new_id).ok_or_else(|| Error::NoSession { id: new_id.0.clone() })
    }

    /// Removes a session; returns the freed bytes.
    ///
    /// # Errors
    /// [`Error::NoSession`], [`Error::SessionInUse`]; files that cannot be removed.
    pub(crate) fn remove(&self, id: &SessionId) -> Result<u64> {
        let found = self.find(id).ok_or_else(|| Error::NoSession { id: id.0.clone() })?;
        let open = self.open(id)?;
        let failed = |source| Error::WriteFile { path: open.folder.clone(), source };
        // After a kill in between, the session is gone and its folder can be used again.
        fs::remove_file(&found.file).map_err(failed)?;
        let folder = open.folder.clone();
        drop(open.lock);
        fs::remove_dir_all(&folder).map_err(|source| Error::WriteFile { path: folder, source })?;
        Ok(found.bytes)
    }
}

impl OpenSession {
    /// The saved conversation.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("chat.json")
    }

    /// Folder for keys and values.
    pub(crate) fn prefixes(&self) -> PathBuf {
        self.folder.join("prefixes")
    }
}

/// Bytes of the files in a folder; 0 without one.
fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// Copies the files of a folder, if there is one. Files of the prefix cache appear complete and do
/// not change, so that a link is a copy; where there are no links, the bytes are copied.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    user_folders::make_private(to)?;
    for entry in entries {
        let path = entry?.path();
        // Files that the writer has not finished have another ending.
        if path.extension().is_some_and(|extension| extension == "kv")
            && let Some(name) = path.file_name()
        {
            let target = to.join(name);
            match fs::hard_link(&path, &target).or_else(|_| fs::copy(&path, &target).map(drop)) {
                // Evicted meanwhile: it is computed again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, SessionStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SessionStore { folder: folder.path().join("sessions") };
        (folder, store)
    }

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    /// A session with messages and one prefix.
    fn written(store: &SessionStore, name: &str) {
        let open = store.open(&id(name)).unwrap();
        fs::write(open.file(), "[]").unwrap();
        fs::create_dir(open.prefixes()).unwrap();
        fs::write(open.prefixes().join("a.kv"), "keys").unwrap();
        fs::write(open.prefixes().join("b.tmp"), "k").unwrap();
    }

    #[test]
    fn ids_are_file_names() {
        for text in ["a", "My-session_2", &"x".repeat(64)] {
            assert_eq!(SessionId::parse(text).unwrap().as_str(), text);
        }
        for text in ["", ".", "..", "a/b", "a\\b", "-a", "a b", "\u{e9}", &"x".repeat(65)] {
            assert!(SessionId::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sessions_are_listed_forked_and_removed() {
        let (_folder, store) = store();
        assert_eq!(store.list().unwrap(), []);
        written(&store, "b");
        store.open(&id("empty")).unwrap();
        let forked = store.fork(&id("b"), &id("a")).unwrap();
        assert_eq!(fs::read_to_string(&forked.file).unwrap(), "[]");
        assert_eq!(forked.bytes, 6, "messages and the finished prefix");
        let ids = || store.list().unwrap().into_iter().map(|session| session.id.0).collect::<Vec<_>>();
        assert_eq!(ids(), ["a", "b"]);
        assert!(matches!(store.fork(&id("b"), &id("a")), Err(Error::SessionExists { .. })));
        assert!(matches!(store.fork(&id("c"), &id("d")), Err(Error::NoSession { .. })));
        assert_eq!(store.remove(&id("b")).unwrap(), 7);
        assert!(matches!(store.remove(&id("b")), Err(Error::NoSession { .. })));
        assert_eq!(ids(), ["a"]);
        assert_eq!(fs::read_to_string(store.path(&id("a")).join("prefixes/a.kv")).unwrap(), "keys");
    }

    #[test]
    fn an_open_session_is_opened_and_removed_by_nobody_else() {
        let (_folder, store) = store();
        written(&store, "a");
        let open = store.open(&id("a")).unwrap();
        assert!(matches!(store.open(&id("a")), Err(Error::SessionInUse { .. })));
        assert!(matches!(store.remove(&id("a")), Err(Error::SessionInUse { .. })));
        store.fork(&id("a"), &id("b")).unwrap();
        drop(open);
        store.remove(&id("a")).unwrap();
    }
}
