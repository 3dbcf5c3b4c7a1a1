//! State of quality targets per tenant, for later sequences: in memory, and beside the prefix files
//! if there is a folder.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use ruvllm_kv_cache::Controller;
use ruvllm_kv_cache::prefix::store::{create_private, open_regular, share_with_group};
use ruvllm_kv_cache::prefix::{FolderKey, PrefixKey, Purpose, Scope};
use sha2::{Digest, Sha256};

use crate::prefix::{Reports, hex};

/// Bytes of a SHA-256 digest and of a tag.
const DIGEST: usize = 32;

/// State of each tenant's last sequence. Tenants never see the states of others.
#[derive(Default)]
pub(crate) struct QualityMemory {
    /// Not locked during file access, so that requests of other tenants do not wait.
    state: Mutex<State>,
    files: Option<QualityFiles>,
}

#[derive(Default)]
struct State {
    /// By tenant path; `None`: no file found.
    learned: HashMap<String, Option<Controller>>,
    /// Tenants whose files are out of date.
    unwritten: Vec<String>,
    /// A thread is writing the files of all `unwritten` tenants.
    is_writing: bool,
}

/// Persistent states: one file per tenant, named by a hash over model fingerprint, policy and
/// tenant. Content: state, the same hash, checksum of both. In a shared folder, hash and checksum
/// are tags made with its key.
pub(crate) struct QualityFiles {
    /// The folder of the prefixes.
    pub(crate) folder: PathBuf,
    /// Key of a folder that other users write to.
    pub(crate) folder_key: Option<FolderKey>,
    /// Key of the root tenant's prefixes.
    pub(crate) key: PrefixKey,
    pub(crate) reports: Arc<Reports>,
}

impl QualityMemory {
    pub(crate) fn new(files: Option<QualityFiles>) -> Self {
        Self { state: Mutex::default(), files }
    }

    /// State of the quality target after the tenant's last sequence; `None` if there is none.
    pub(crate) fn recall(&self, tenant: &str) -> Option<Controller> {
        self.recall_or(tenant, || self.files.as_ref()?.read(tenant))
    }

    /// State of a tenant; `read` loads it from its file on first use.
    fn recall_or(&self, tenant: &str, read: impl FnOnce() -> Option<Controller>) -> Option<Controller> {
        let known = self.state.lock().learned.get(tenant).cloned();
        known.unwrap_or_else(|| {
            let stored = read();
            // A state stored meanwhile is newer than the file.
            self.state.lock().learned.entry(tenant.to_owned()).or_insert(stored).clone()
        })
    }

    /// Stores the state of a tenant's sequence, in memory and on disk.
    pub(crate) fn remember(&self, tenant: &str, controller: &Controller) {
        self.remember_and(tenant, controller, |tenant, controller| {
            if let Some(files) = &self.files {
                files.write(tenant, controller);
            }
        });
    }

    /// Stores a state and writes it if it has changed. One thread writes at a time, so that the
    /// last state of a tenant is written last; other threads leave their states to it.
    fn remember_and(&self, tenant: &str, controller: &Controller, write: impl Fn(&str, &Controller)) {
        let mut state = self.state.lock();
        let former = state.learned.insert(tenant.to_owned(), Some(controller.clone())).flatten();
        if former.as_ref() != Some(controller) && !state.unwritten.iter().any(|other| other == tenant) {
            state.unwritten.push(tenant.to_owned());
        }
        if state.is_writing {
            return;
        }
        state.is_writing = true;
        while let Some(tenant) = state.unwritten.pop() {
            let Some(latest) = state.learned.get(&tenant).cloned().flatten() else { continue };
            MutexGuard::unlocked(&mut state, || write(&tenant, &latest));
        }
        state.is_writing = false;
    }

    /// Relaxes a tenant's state after a sequence too short to be sampled with its hot tokens.
    pub(crate) fn relax(&self, tenant: &str) {
        if let Some(mut controller) = self.recall(tenant) {
            controller.relax();
            self.remember(tenant, &controller);
        }
    }
}

impl QualityFiles {
    fn digest(&self, tenant: &str) -> [u8; DIGEST] {
        let digest = PrefixKey { scope: Scope::Tenant(tenant.into()), ..self.key.clone() }.digest();
        self.folder_key.as_ref().map_or(digest, |key| key.tag(Purpose::Name, &digest))
    }

    /// Digest or tag that follows the content of a file.
    fn checksum(&self, content: &[u8]) -> [u8; DIGEST] {
        match &self.folder_key {
            Some(key) => key.tag(Purpose::State, content),
            None => Sha256::digest(content).into(),
        }
    }

    fn is_sound(&self, content: &[u8], checksum: &[u8; DIGEST]) -> bool {
        match &self.folder_key {
            Some(key) => key.verify(Purpose::State, content, checksum),
            None => self.checksum(content) == *checksum,
        }
    }

    fn path(&self, digest: &[u8; DIGEST], ending: &str) -> PathBuf {
        let digits = hex(digest);
        self.folder.join(format!("{digits}{ending}"))
    }

    /// State in a tenant's file; `None` if it is missing or damaged (reported).
    fn read(&self, tenant: &str) -> Option<Controller> {
        let digest = self.digest(tenant);
        let path = self.path(&digest, ".quality");
        match self.read_file(&path, &digest) {
            Ok(state) => Some(state),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.reports.add(format!("ignored {}: {error}", path.display()));
                None
            }
        }
    }

    /// Replaces a tenant's file atomically, without fsync: the checksum detects damage by a power
    /// cut.
    fn write(&self, tenant: &str, controller: &Controller) {
        let digest = self.digest(tenant);
        let mut bytes = [controller.to_bytes().as_slice(), &digest].concat();
        bytes.extend(self.checksum(&bytes));
        // Named as the temporary files of the prefix store, which deletes stale ones.
        let unique = RandomState::new().hash_one(digest);
        let temporary = self.path(&digest, &format!("-{unique:016x}.tmp"));
        let path = self.path(&digest, ".quality");
        let written = create_private(&temporary)
            .and_then(|mut file| {
                if self.folder_key.is_some() {
                    share_with_group(&file, &self.folder)?;
                }
                file.write_all(&bytes)
            })
            .and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            // Report the first error.
            let _ = fs::remove_file(&temporary);
            self.reports.add(format!("cannot write {}: {error}", path.display()));
        }
    }

    /// Reads and checks a state file.
    fn read_file(&self, path: &Path, digest: &[u8; DIGEST]) -> io::Result<Controller> {
        let invalid = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
        let mut bytes = Vec::new();
        // A state has some hundred bytes.
        let file = open_regular(path)?.ok_or_else(|| invalid("it is not a regular file"))?;
        file.take(1024).read_to_end(&mut bytes)?;
        let checked = || {
            let (content, checksum) = bytes.split_last_chunk()?;
            let (state, found) = content.split_last_chunk()?;
            let is_sound = self.is_sound(content, checksum) && found == digest;
            Controller::from_bytes(state).ok().filter(|_| is_sound)
        };
        checked().ok_or_else(|| {
            invalid(match self.folder_key {
                Some(_) => "damaged, or without a tag of the folder's key",
                None => "damaged, or of another model or policy",
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(folder: &Path, model: u8, kv_format: &str) -> QualityMemory {
        let (kv_format, rope_scaling) = (kv_format.into(), "none".into());
        let scope = Scope::Tenant("".into());
        let key = PrefixKey { model: [model; 32], adapter: None, kv_format, rope_scaling, scope };
        let files =
            QualityFiles { folder: folder.to_owned(), folder_key: None, key, reports: Arc::default() };
        QualityMemory::new(Some(files))
    }

    fn reports(memory: &QualityMemory) -> Vec<String> {
        memory.files.as_ref().expect("files").reports.take()
    }

    fn learned() -> Controller {
        let mut controller = Controller::new(0.02, 64..=4096);
        (0..10).for_each(|_| controller.observe(0.5));
        controller
    }

    fn only_file(folder: &Path) -> PathBuf {
        let files: Vec<_> = fs::read_dir(folder).expect("a listing").flatten().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].path()
    }

    #[test]
    fn each_tenant_goes_on_from_its_own_state() {
        let memory = QualityMemory::default();
        assert_eq!(memory.recall("a"), None);
        memory.remember("a", &learned());
        assert_eq!(
            (memory.recall("a"), memory.recall("b"), memory.recall("")),
            (Some(learned()), None, None)
        );
        memory.relax("a");
        memory.relax("b");
        let relaxed = memory.recall("a").expect("a state");
        assert!(relaxed.hot_tokens() < learned().hot_tokens(), "{relaxed:?}");
        assert_eq!((relaxed.estimate(), memory.recall("b")), (learned().estimate(), None));
    }

    #[test]
    fn files_are_read_and_written_while_others_go_on() {
        let memory = QualityMemory::default();
        // Would deadlock if the lock were held.
        let read = memory.recall_or("a", || {
            memory.remember("a", &learned());
            memory.recall("b")
        });
        assert_eq!(read, Some(learned()), "younger than the file");
        let mut younger = learned();
        younger.relax();
        let written = Mutex::new(Vec::new());
        let write = |tenant: &str, state: &Controller| {
            written.lock().push((tenant.to_owned(), state.clone()));
        };
        memory.remember_and("c", &learned(), |tenant, state| {
            write(tenant, state);
            memory.remember_and("c", &younger, |_, _| panic!("left to the one that writes"));
        });
        let expected = [learned(), younger].map(|state| ("c".to_owned(), state));
        assert_eq!(written.into_inner(), expected);
    }

    #[test]
    fn states_of_a_shared_folder_carry_a_tag_of_its_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let keyed = |secret: u8| {
            let mut memory = memory(folder.path(), 1, "tiered");
            let key = FolderKey::new(&[secret; 32]).expect("a key");
            memory.files.as_mut().expect("files").folder_key = Some(key);
            memory
        };
        keyed(1).remember("a", &learned());
        let path = only_file(folder.path());
        assert_eq!(keyed(1).recall("a"), Some(learned()));
        // Another key, or none, gives other file names.
        for other in [keyed(2), memory(folder.path(), 1, "tiered")] {
            assert_eq!((other.recall("a"), reports(&other).len()), (None, 0));
        }
        // Valid checksum without the key, under the right name and with the right digest.
        let sound = fs::read(&path).expect("a file");
        let content = &sound[..sound.len() - DIGEST];
        let checksummed = [content, &Sha256::digest(content)].concat();
        keyed(1).remember("b", &learned());
        let of_b = keyed(1).files.as_ref().map(|files| files.path(&files.digest("b"), ".quality"));
        let of_b = fs::read(of_b.expect("files")).expect("a file");
        for forged in [checksummed, content.to_vec(), of_b] {
            fs::write(&path, forged).expect("a file");
            let memory = keyed(1);
            assert_eq!((memory.recall("a"), memory.recall("b")), (None, Some(learned())));
            let warnings = reports(&memory);
            assert!(warnings.len() == 1 && warnings[0].ends_with("folder's key"), "{warnings:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn files_are_private_and_no_links() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        memory(folder.path(), 1, "tiered").remember("", &learned());
        let path = only_file(folder.path());
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        let elsewhere = tempfile::tempdir().expect("a folder");
        let target = elsewhere.path().join("target");
        fs::rename(&path, &target).expect("the file elsewhere");
        symlink(&target, &path).expect("a link");
        let linked = memory(folder.path(), 1, "tiered");
        assert_eq!((linked.recall(""), reports(&linked).len()), (None, 1));
        linked.remember("", &learned());
        assert!(fs::symlink_metadata(&path).expect("a file").is_file(), "the link was replaced");
    }

    #[test]
    fn a_state_is_found_again_by_its_model_policy_and_tenant_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = memory(folder.path(), 1, "tiered:target=0.02");
        first.remember("a", &learned());
        assert!(reports(&first).is_empty());
        let path = only_file(folder.path());
        let again = memory(folder.path(), 1, "tiered:target=0.02");
        assert_eq!((again.recall("a"), again.recall("b")), (Some(learned()), None));
        let others = [memory(folder.path(), 2, "tiered:target=0.02"), memory(folder.path(), 1, "tiered")];
        for other in &others {
            assert_eq!(other.recall("a"), None);
            assert!(reports(other).is_empty());
        }
        // A file under another one's name.
        others[0].remember("a", &learned());
        let foreign = others[0].files.as_ref().expect("files");
        fs::copy(foreign.path(&foreign.digest("a"), ".quality"), &path).expect("a copy");
        let again = memory(folder.path(), 1, "tiered:target=0.02");
        assert_eq!((again.recall("a"), reports(&again).len()), (None, 1));
    }

    #[test]
    fn damage_is_ignored_with_a_warning_and_mended_by_the_next_state() {
        let folder = tempfile::tempdir().expect("a folder");
        memory(folder.path(), 1, "tiered").remember("", &learned());
        let path = only_file(folder.path());
        let bytes = fs::read(&path).expect("a file");
        let mut damaged: Vec<Vec<u8>> = (0..bytes.len())
            .map(|at| {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1;
                bytes
            })
            .collect();
        damaged.extend([Vec::new(), bytes[1..].to_vec(), [bytes.as_slice(), &[0; 5000]].concat()]);
        for bytes in damaged {
            fs::write(&path, bytes).expect("a file");
            let memory = memory(folder.path(), 1, "tiered");
            assert_eq!((memory.recall(""), memory.recall("")), (None, None));
            let warnings = reports(&memory);
            assert!(warnings.len() == 1 && warnings[0].starts_with("ignored "), "{warnings:?}");
        }
        memory(folder.path(), 1, "tiered").remember("", &learned());
        assert_eq!(memory(folder.path(), 1, "tiered").recall(""), Some(learned()));
        only_file(folder.path());
        let gone = memory(&folder.path().join("gone"), 1, "tiered");
        gone.remember("", &learned());
        let warnings = reports(&gone);
        assert!(warnings.len() == 1 && warnings[0].starts_with("cannot write "), "{warnings:?}");
        assert_eq!(gone.recall(""), Some(learned()), "it is known all the same");
    }
}
