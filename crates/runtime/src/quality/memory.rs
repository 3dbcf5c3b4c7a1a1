//! What quality targets have come to, for sequences to come: in memory, and beside the stored
//! prefixes where there are any.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_kv_cache::Controller;
use ruvllm_kv_cache::prefix::{PrefixKey, Scope};
use sha2::{Digest, Sha256};

use crate::prefix::{Reports, hex};

/// Bytes of a SHA-256.
const DIGEST: usize = 32;

/// The state of the last sequence of each tenant. Who has learned what is a tenant's own business.
#[derive(Default)]
pub(crate) struct QualityMemory {
    /// By the tenant's path; `None` was looked for and not found.
    learned: Mutex<HashMap<String, Option<Controller>>>,
    files: Option<QualityFiles>,
}

/// Where states outlive the engine: a file for each tenant, named by a hash over the model's
/// fingerprint, the policy and the tenant, which stands in the file as well. Behind it comes a
/// checksum of both.
pub(crate) struct QualityFiles {
    /// The folder of the prefixes.
    pub(crate) folder: PathBuf,
    /// What prefixes of the root tenant are known by.
    pub(crate) key: PrefixKey,
    pub(crate) reports: Arc<Reports>,
}

impl QualityMemory {
    pub(crate) fn new(files: Option<QualityFiles>) -> Self {
        Self { learned: Mutex::default(), files }
    }

    /// What a tenant's sequences have come to.
    pub(crate) fn recall(&self, tenant: &str) -> Option<Controller> {
        let mut learned = self.learned.lock();
        if let Some(known) = learned.get(tenant) {
            return known.clone();
        }
        let stored = self.files.as_ref().and_then(|files| files.read(tenant));
        learned.insert(tenant.to_owned(), stored.clone());
        stored
    }

    /// Takes note of what a sequence has come to.
    pub(crate) fn remember(&self, tenant: &str, controller: &Controller) {
        let mut learned = self.learned.lock();
        let former = learned.insert(tenant.to_owned(), Some(controller.clone())).flatten();
        if let Some(files) = &self.files
            && former.as_ref() != Some(controller)
        {
            files.write(tenant, controller);
        }
    }

    /// Takes note of a sequence that was too short to learn anything with the border that it began
    /// with.
    pub(crate) fn relax(&self, tenant: &str) {
        if let Some(mut controller) = self.recall(tenant) {
            controller.relax();
            self.remember(tenant, &controller);
        }
    }
}

impl QualityFiles {
    fn digest(&self, tenant: &str) -> [u8; DIGEST] {
        PrefixKey { scope: Scope::Tenant(tenant.into()), ..self.key.clone() }.digest()
    }

    fn path(&self, digest: &[u8; DIGEST], ending: &str) -> PathBuf {
        let digits = hex(digest);
        self.folder.join(format!("{digits}{ending}"))
    }

    /// The state in a tenant's file, if there is a sound one.
    fn read(&self, tenant: &str) -> Option<Controller> {
        let digest = self.digest(tenant);
        let path = self.path(&digest, ".quality");
        let stored = read(&path, &digest);
        match stored {
            Ok(state) => Some(state),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.reports.add(format!("ignored {}: {error}", path.display()));
                None
            }
        }
    }

    /// Replaces a tenant's file, as a whole. It is not synced: what a power cut leaves of it is
    /// noticed by the checksum.
    fn write(&self, tenant: &str, controller: &Controller) {
        let digest = self.digest(tenant);
        let mut bytes = [controller.to_bytes().as_slice(), &digest].concat();
        bytes.extend(Sha256::digest(&bytes));
        // As temporary files of the prefix store, which sweeps those that were left behind.
        let unique = RandomState::new().hash_one(digest);
        let temporary = self.path(&digest, &format!("-{unique:016x}.tmp"));
        let path = self.path(&digest, ".quality");
        if let Err(error) = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path)) {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
            self.reports.add(format!("cannot write {}: {error}", path.display()));
        }
    }
}

/// The state in a file that belongs to a key.
fn read(path: &Path, key: &[u8; DIGEST]) -> io::Result<Controller> {
    let mut bytes = Vec::new();
    // A state is some hundred bytes.
    File::open(path)?.take(1024).read_to_end(&mut bytes)?;
    let checked = || {
        let (content, checksum) = bytes.split_last_chunk::<DIGEST>()?;
        let (state, found) = content.split_last_chunk::<DIGEST>()?;
        let is_sound = Sha256::digest(content)[..] == checksum[..] && found == key;
        Controller::from_bytes(state).ok().filter(|_| is_sound)
    };
    checked()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "damaged, or of another model or policy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(folder: &Path, model: u8, kv_format: &str) -> QualityMemory {
        let (kv_format, rope_scaling) = (kv_format.into(), "none".into());
        let scope = Scope::Tenant("".into());
        let key = PrefixKey { model: [model; 32], adapter: None, kv_format, rope_scaling, scope };
        let files = QualityFiles { folder: folder.to_owned(), key, reports: Arc::default() };
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
        // A file under the name of another one.
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
