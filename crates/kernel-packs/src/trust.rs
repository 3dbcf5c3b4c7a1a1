//! Trusted keys and the allow-list of kernels.

use std::collections::BTreeSet;
use std::path::Path;

use ruvllm_witness::{Digest, KeyId, PublicKey, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, field, within};
use crate::files;
use crate::json::{self, present};
use crate::limits::{MAX_ALLOWED, MAX_KEYS, MAX_TRUST_BYTES};
use crate::manifest::{SCHEMA_VERSION, check_text};

/// Keys whose packs are accepted.
///
/// Several keys may be valid at the same time, so that authors can change theirs: the new key is
/// added, packs are signed with it, and the old one is given an end or revoked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedKeys {
    schema_version: u32,
    keys: Vec<TrustedKey>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    allowed_kernels: Option<BTreeSet<Digest>>,
}

/// A trusted key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TrustedKey {
    /// Id of the key.
    pub id: KeyId,
    /// Owner, for people.
    pub name: String,
    /// The key.
    pub public_key: PublicKey,
    /// Begin of its validity, inclusive; absent for no bound.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub valid_from: Option<Timestamp>,
    /// End of its validity, exclusive; absent for no bound. Installed packs stay good.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
    /// Reason for which the key is no longer trusted, also for installed packs.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
}

impl TrustedKey {
    /// A key without bounds of its validity.
    pub fn new(name: &str, public_key: PublicKey) -> Self {
        let id = public_key.id();
        Self { id, name: name.to_owned(), public_key, valid_from: None, valid_until: None, revoked: None }
    }
}

impl TrustedKeys {
    /// Checks a list of keys, and hashes of the only kernels that are accepted; `None` for all
    /// kernels of trusted keys.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::Field`] for an id that is not that of its key;
    /// [`Error::Duplicate`].
    pub fn new(keys: Vec<TrustedKey>, allowed_kernels: Option<BTreeSet<Digest>>) -> Result<Self> {
        let trusted = Self { schema_version: SCHEMA_VERSION, keys, allowed_kernels };
        trusted.check()?;
        Ok(trusted)
    }

    /// Reads a file that nobody but its owner may change. The path may be a link.
    ///
    /// # Errors
    /// [`Error::Writable`], [`Error::NotRegular`], [`Error::Io`] and those of
    /// [`parse`](Self::parse).
    pub fn load(path: &Path) -> Result<Self> {
        let target = files::resolve(path)?;
        let bytes = files::read(&target, MAX_TRUST_BYTES)?;
        files::check_private(&target)?;
        Self::parse(&bytes, &path.display().to_string())
    }

    /// Reads the text of a file; `what` names it in messages.
    ///
    /// # Errors
    /// [`Error::Json`], [`Error::SchemaVersion`] and those of [`new`](Self::new).
    pub fn parse(text: &[u8], what: &str) -> Result<Self> {
        within(format!("{what} (bytes)"), text.len() as u64, MAX_TRUST_BYTES)?;
        let trusted: Self = json::read(text, what)?;
        if trusted.schema_version != SCHEMA_VERSION {
            let found = trusted.schema_version;
            return Err(Error::SchemaVersion { what: what.to_owned(), found, known: SCHEMA_VERSION });
        }
        trusted.check()?;
        Ok(trusted)
    }

    /// The keys, revoked ones too.
    pub fn keys(&self) -> &[TrustedKey] {
        &self.keys
    }

    /// The key of an id, if it may sign at `now`; without a time, bounds of its validity do not
    /// count.
    ///
    /// # Errors
    /// [`Error::NoTrustedKey`], [`Error::UnknownKey`], [`Error::RevokedKey`],
    /// [`Error::KeyNotValid`].
    pub fn find(&self, id: KeyId, now: Option<Timestamp>) -> Result<&TrustedKey> {
        if self.keys.is_empty() {
            return Err(Error::NoTrustedKey);
        }
        let key = self.keys.iter().find(|key| key.id == id).ok_or(Error::UnknownKey { key: id })?;
        if let Some(reason) = &key.revoked {
            return Err(Error::RevokedKey { key: id, reason: reason.clone() });
        }
        let (from, until) = (key.valid_from, key.valid_until);
        match now {
            Some(now) if from.is_some_and(|from| now < from) || until.is_some_and(|until| now >= until) => {
                Err(Error::KeyNotValid { key: id, from, until, now })
            }
            _ => Ok(key),
        }
    }

    /// True if kernels with this hash are accepted.
    pub fn allows(&self, kernel: &Digest) -> bool {
        self.allowed_kernels.as_ref().is_none_or(|allowed| allowed.contains(kernel))
    }

    fn check(&self) -> Result<()> {
        within("trusted keys", self.keys.len() as u64, MAX_KEYS as u64)?;
        let allowed = self.allowed_kernels.as_ref().map_or(0, BTreeSet::len);
        within("allowed_kernels", allowed as u64, MAX_ALLOWED as u64)?;
        let mut ids = BTreeSet::new();
        for (index, key) in self.keys.iter().enumerate() {
            let place = format!("keys[{index}]");
            check_text(&format!("{place}.name"), &key.name)?;
            check_text(&format!("{place}.revoked"), key.revoked.as_deref().unwrap_or("-"))?;
            if key.id != key.public_key.id() {
                let why = format!("the id of its public_key is {}", key.public_key.id());
                return Err(field(format!("{place}.id"), why));
            }
            if !ids.insert(key.id) {
                return Err(Error::Duplicate { place, id: key.id.to_string() });
            }
            if let (Some(from), Some(until)) = (key.valid_from, key.valid_until)
                && until <= from
            {
                return Err(field(format!("{place}.valid_until"), "it must be later than valid_from"));
            }
        }
        Ok(())
    }
}
