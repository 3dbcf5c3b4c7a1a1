//! The keys of a running server, and the lookup of callers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use parking_lot::RwLock;
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use thiserror::Error;

use super::file::{KeyEntry, KeyFile, KeysError, permission_warning};
use super::scope::Scopes;
use super::secret::KeyHash;
use super::time::Moment;
use crate::config::DEFAULT_TENANT;

/// Header of Anthropic's clients.
const API_KEY: &str = "x-api-key";

/// Name, tenant and scopes of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Name of the key; `None` on a server without keys.
    pub(crate) key: Option<Arc<str>>,
    /// Tenant whose limits and quotas hold.
    pub(crate) tenant: Arc<str>,
    /// Groups of endpoints.
    pub(crate) scopes: Scopes,
}

/// Reason why a caller is not identified. Unknown, disabled and expired keys are one case, so that
/// nobody learns which keys exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Unauthorized {
    /// No key was sent.
    #[error(
        "no API key was sent; set the header `Authorization: Bearer rk-...` (or `x-api-key`), which clients \
         do with their setting `api_key`"
    )]
    Missing,
    /// The key is not accepted.
    #[error("incorrect API key; `ruvllm key list` on the server lists the valid ones by name")]
    Incorrect,
}

/// API keys of a server, replaced as a whole by [`Keys::reload`].
#[derive(Debug)]
pub(crate) struct Keys {
    path: Option<PathBuf>,
    set: RwLock<Arc<KeySet>>,
}

impl Keys {
    /// Keys of a server that asks for none: every caller is the default tenant with all scopes.
    pub(crate) fn none() -> Self {
        Self { path: None, set: RwLock::default() }
    }

    /// Reads a keys file, and warns in the log if other users can read it.
    ///
    /// # Errors
    /// As [`KeyFile::read`].
    pub(crate) fn read(path: &Path) -> Result<Self, KeysError> {
        let set = KeySet::read(path)?;
        Ok(Self { path: Some(path.to_owned()), set: RwLock::new(Arc::new(set)) })
    }

    /// Reads the file again and replaces all keys at once. Requests that run go on.
    ///
    /// # Errors
    /// As [`KeyFile::read`]; the keys are then those from before.
    pub(crate) fn reload(&self) -> Result<(), KeysError> {
        if let Some(path) = &self.path {
            let set = Arc::new(KeySet::read(path)?);
            *self.set.write() = set;
        }
        Ok(())
    }

    /// True if callers need a key.
    pub(crate) fn are_needed(&self) -> bool {
        self.path.is_some()
    }

    /// Identifies a caller by the headers of a request.
    ///
    /// # Errors
    /// [`Unauthorized`].
    pub(crate) fn identify(&self, headers: &HeaderMap, now: SystemTime) -> Result<Identity, Unauthorized> {
        if !self.are_needed() {
            return Ok(Identity { key: None, tenant: DEFAULT_TENANT.into(), scopes: Scopes::all() });
        }
        let secret = sent(headers).ok_or(Unauthorized::Missing)?;
        let set = Arc::clone(&self.set.read());
        set.find(&KeyHash::of(secret), Moment::new(now)).ok_or(Unauthorized::Incorrect)
    }
}

/// The key that a request sends: as a bearer token, else in Anthropic's header.
fn sent(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    let other = || headers.get(API_KEY).and_then(|value| value.to_str().ok());
    bearer.or_else(other).filter(|secret| !secret.is_empty())
}

/// Keys as they are compared: one row per hash.
#[derive(Debug, Default)]
struct KeySet {
    entries: Vec<KeyEntry>,
    /// Hash, entry, and end if it is that of a rotated key.
    rows: Vec<(KeyHash, u32, Option<Moment>)>,
}

impl KeySet {
    fn read(path: &Path) -> Result<Self, KeysError> {
        let file = KeyFile::read(path)?;
        if let Some(warning) = permission_warning(path) {
            tracing::warn!("{warning}");
        }
        Ok(Self::new(file))
    }

    fn new(file: KeyFile) -> Self {
        let mut rows = Vec::new();
        for (index, key) in (0..).zip(&file.keys) {
            rows.push((key.hash.clone(), index, None));
            rows.extend(key.previous.iter().map(|former| (former.hash.clone(), index, Some(former.expires))));
        }
        Self { entries: file.keys, rows }
    }

    /// Compares with every hash, in a time that does not depend on which of them is equal.
    fn find(&self, hash: &KeyHash, now: Moment) -> Option<Identity> {
        const NONE: u32 = u32::MAX;
        let mut found = NONE;
        for (row, (known, ..)) in (0..).zip(&self.rows) {
            found = u32::conditional_select(&found, &row, known.is(hash));
        }
        let is_known: Choice = !found.ct_eq(&NONE);
        let (_, index, rotated) = self.rows.get(found as usize)?;
        let key = self.entries.get(*index as usize)?;
        let is_over = |end: &Option<Moment>| end.is_some_and(|end| end <= now);
        let accepted = bool::from(is_known) && !key.disabled && !is_over(&key.expires) && !is_over(rotated);
        accepted.then(|| Identity {
            key: Some(key.name.as_str().into()),
            tenant: key.tenant.as_str().into(),
            scopes: key.scopes,
        })
    }
}
