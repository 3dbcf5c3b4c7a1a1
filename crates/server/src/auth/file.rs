//! Keys file: names, tenants, scopes and hashes of API keys.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::scope::Scopes;
use super::secret::{KeyHash, Secret};
use super::time::Moment;
use crate::config::{DEFAULT_TENANT, is_name};

/// Most bytes of a keys file; an entry takes about 250.
const MOST_BYTES: u64 = 16 << 20;

/// Most keys: each request is compared with all of them.
const MOST_KEYS: usize = 10_000;

/// Reason why keys cannot be read or changed. No variant holds a key.
#[derive(Debug, Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read the keys file {}: {source}; `ruvllm key new NAME` makes one", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is no valid keys file.
    #[error("keys file{}: {reason}", path.as_ref().map_or_else(String::new, |path| format!(" {}", path.display())))]
    Invalid {
        /// Path of the file, if it has one.
        path: Option<PathBuf>,
        /// The fault and its line.
        reason: String,
    },
    /// A name is in use.
    #[error(
        "there is a key {name:?}; `ruvllm key rotate {name}` replaces it, `ruvllm key rm {name}` removes it"
    )]
    Exists {
        /// The name.
        name: String,
    },
    /// A name is not in use.
    #[error("there is no key {name:?}; `ruvllm key list` lists the names")]
    Absent {
        /// The name.
        name: String,
    },
    /// The random generator of the system failed.
    #[error("no random numbers for a key: {0}")]
    Random(#[from] io::Error),
}

/// An API key without the key itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// Name in logs and lists.
    pub name: String,
    /// Tenant whose limits and quotas hold.
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// Hash of the key.
    pub hash: KeyHash,
    /// Groups of endpoints.
    pub scopes: Scopes,
    /// Time of `key new` or `key rotate`.
    pub created: Moment,
    /// End of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Moment>,
    /// True for a key that is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// The key before the last rotation, while both are accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousKey>,
}

/// A rotated key that is still accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviousKey {
    /// Hash of the key.
    pub hash: KeyHash,
    /// End of the key.
    pub expires: Moment,
}

fn default_tenant() -> String {
    DEFAULT_TENANT.to_owned()
}

/// Content of a keys file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The keys.
    #[serde(default)]
    pub keys: Vec<KeyEntry>,
}

impl KeyFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`KeysError::Read`], [`KeysError::Invalid`].
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let failed = |source| KeysError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.len() > MOST_BYTES {
            let reason = format!("not a regular file of at most {MOST_BYTES} bytes");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text).map_err(|error| match error {
            KeysError::Invalid { reason, .. } => KeysError::Invalid { path: Some(path.to_owned()), reason },
            other => other,
        })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`KeysError::Invalid`].
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let invalid = |reason| KeysError::Invalid { path: None, reason };
        let file: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = 1 + text.bytes().take(before).filter(|byte| *byte == b'\n').count();
            let words: Vec<&str> = error.message().split_whitespace().collect();
            invalid(format!("line {line}: {}", words.join(" ")))
        })?;
        if file.keys.len() > MOST_KEYS {
            return Err(invalid(format!("{} keys; at most {MOST_KEYS} are allowed", file.keys.len())));
        }
        for (index, key) in file.keys.iter().enumerate() {
            if !is_name(&key.name) || !is_name(&key.tenant) {
                return Err(invalid(format!(
                    "key {}: name and tenant are 1 to 64 ASCII letters, digits, `.`, `_`, `-`",
                    index + 1
                )));
            }
            if file.keys[..index].iter().any(|earlier| earlier.name == key.name) {
                return Err(invalid(format!("the name {:?} is there twice", key.name)));
            }
        }
        Ok(file)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let keys = toml::to_string(self).unwrap_or_default();
        format!("# API keys of `ruvllm serve`; `ruvllm key` changes them.\n\n{keys}")
    }

    /// Adds a key and returns it; only its hash is kept.
    ///
    /// # Errors
    /// [`KeysError::Exists`], [`KeysError::Invalid`] for a name of other characters, and
    /// [`KeysError::Random`].
    pub fn add(
        &mut self,
        name: &str,
        tenant: &str,
        scopes: Scopes,
        created: Moment,
        expires: Option<Moment>,
    ) -> Result<Secret, KeysError> {
        if self.keys.iter().any(|key| key.name == name) {
            return Err(KeysError::Exists { name: name.to_owned() });
        }
        for name in [name, tenant] {
            if !is_name(name) {
                let reason = format!("{name:?} is not 1 to 64 ASCII letters, digits, `.`, `_`, `-`");
                return Err(KeysError::Invalid { path: None, reason });
            }
        }
        let secret = Secret::generate()?;
        self.keys.push(KeyEntry {
            name: name.to_owned(),
            tenant: tenant.to_owned(),
            hash: secret.hash(),
            scopes,
            created,
            expires,
            disabled: false,
            previous: None,
        });
        Ok(secret)
    }

    /// Replaces a key; the former one is accepted for `overlap` more.
    ///
    /// # Errors
    /// [`KeysError::Absent`], [`KeysError::Random`].
    pub fn rotate(&mut self, name: &str, now: Moment, overlap: Duration) -> Result<Secret, KeysError> {
        let key = self
            .keys
            .iter_mut()
            .find(|key| key.name == name)
            .ok_or_else(|| KeysError::Absent { name: name.to_owned() })?;
        let secret = Secret::generate()?;
        let former = std::mem::replace(&mut key.hash, secret.hash());
        let expires = now.after(overlap).min(key.expires.unwrap_or(now.after(overlap)));
        key.previous = (!overlap.is_zero()).then_some(PreviousKey { hash: former, expires });
        key.created = now;
        Ok(secret)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`KeysError::Absent`].
    pub fn remove(&mut self, name: &str) -> Result<(), KeysError> {
        let before = self.keys.len();
        self.keys.retain(|key| key.name != name);
        if self.keys.len() == before {
            return Err(KeysError::Absent { name: name.to_owned() });
        }
        Ok(())
    }
}

/// Warning for a keys file that other users can read or change; only on Unix.
pub fn permission_warning(path: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = path.metadata().ok()?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = path.display();
            return Some(format!(
                "other users can read or change the keys file {path} (mode {mode:o}); `chmod 600 {path}`"
            ));
        }
    }
    #[cfg(not(unix))]
    let _ = path;
    None
}
