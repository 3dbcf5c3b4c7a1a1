//! Place of stored prefixes: a folder, or an object store that several programs share.

use std::path::{Path, PathBuf};

use ruvllm::PrefixCaching;

use crate::user_folders;

/// Result whose error is [`PrefixPlaceError`].
type Result<T> = std::result::Result<T, PrefixPlaceError>;

/// A place of stored prefixes that is unknown or cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrefixPlaceError {
    /// No folder for cache files can be derived from the environment.
    #[error(
        "no folder for stored prefixes: neither XDG_CACHE_HOME nor HOME is set; name one with --prefix-dir"
    )]
    NoCacheFolder,
    /// The scheme of the URL is not known.
    #[error("--prefix-dir {url}: expected a folder, file:///PATH or s3://BUCKET/PREFIX")]
    Url {
        /// The URL.
        url: String,
    },
    /// An object store without a key: who can write to it could write answers.
    #[error("--prefix-dir {url}: everybody who can write to it could forge prefixes; give --prefix-key FILE")]
    NoKey {
        /// The URL.
        url: String,
    },
    /// The feature `object-store` is off.
    #[error(
        "--prefix-dir {url}: this program has no object stores; build it with --features object-store, or name \
         a folder"
    )]
    #[cfg_attr(feature = "object-store", allow(dead_code))]
    NoObjectStore {
        /// The URL.
        url: String,
    },
    /// The object store cannot be opened.
    #[cfg(feature = "object-store")]
    #[error(transparent)]
    ObjectStore(#[from] ruvllm_prefix_objects::Error),
}

/// Folder or URL of `--prefix-dir`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PrefixPlace {
    Folder(PathBuf),
    ObjectStore(String),
}

impl PrefixPlace {
    /// The place given: a path, `file:///PATH` or `s3://BUCKET/PREFIX`; without one, that in the
    /// user's cache folder.
    ///
    /// # Errors
    /// [`PrefixPlaceError::NoCacheFolder`] and [`PrefixPlaceError::Url`].
    pub(super) fn of(given: Option<&Path>) -> Result<Self> {
        let Some(path) = given else {
            let folder = user_folders::cache().map(|folder| folder.join("prefixes"));
            return folder.map(Self::Folder).ok_or(PrefixPlaceError::NoCacheFolder);
        };
        let Some((text, (scheme, rest))) =
            path.to_str().and_then(|text| Some((text, text.split_once("://")?)))
        else {
            return Ok(Self::Folder(path.to_owned()));
        };
        match scheme {
            "s3" => Ok(Self::ObjectStore(text.to_owned())),
            // A folder is better than objects in files: durable names, private files, times of use.
            "file" if rest.starts_with('/') && !rest.contains(['%', '?', '#']) => {
                Ok(Self::Folder(rest.into()))
            }
            _ => Err(PrefixPlaceError::Url { url: text.to_owned() }),
        }
    }

    /// Setting of the prefix cache at this place; `has_key`: `--prefix-key` is given.
    ///
    /// # Errors
    /// [`PrefixPlaceError::NoKey`], and those of the object store.
    pub(super) fn caching(
        self,
        limit_bytes: u64,
        only_evicted: bool,
        has_key: bool,
    ) -> Result<PrefixCaching> {
        match self {
            Self::Folder(path) if only_evicted => Ok(PrefixCaching::Spill { path, limit_bytes }),
            Self::Folder(path) => Ok(PrefixCaching::Folder { path, limit_bytes }),
            Self::ObjectStore(url) if !has_key => Err(PrefixPlaceError::NoKey { url }),
            Self::ObjectStore(url) => object_store(&url, limit_bytes, only_evicted),
        }
    }
}

#[cfg(feature = "object-store")]
fn object_store(url: &str, limit_bytes: u64, only_evicted: bool) -> Result<PrefixCaching> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        // Other variables of the environment may be no text.
        Some((name.into_string().ok()?, value.into_string().ok()?))
    });
    let objects = ruvllm_prefix_objects::ObjectStorage::open(url, variables)?;
    let storage = ruvllm::PrefixStorage::new(std::sync::Arc::new(objects));
    Ok(PrefixCaching::Storage { storage, limit_bytes, only_evicted })
}

#[cfg(not(feature = "object-store"))]
fn object_store(url: &str, _limit_bytes: u64, _only_evicted: bool) -> Result<PrefixCaching> {
    Err(PrefixPlaceError::NoObjectStore { url: url.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths_and_urls() {
        let place = |text: &str| PrefixPlace::of(Some(Path::new(text)));
        let folder = |path: &str| PrefixPlace::Folder(path.into());
        assert_eq!(place("prefixes").unwrap(), folder("prefixes"));
        assert_eq!(place("/a/b c").unwrap(), folder("/a/b c"));
        assert_eq!(place("file:///a/b").unwrap(), folder("/a/b"));
        assert_eq!(place("s3://models/a").unwrap(), PrefixPlace::ObjectStore("s3://models/a".to_owned()));
        for url in ["gs://models/a", "file://host/a", "file:///a%20b", "https://models", "://a"] {
            assert!(matches!(place(url), Err(PrefixPlaceError::Url { .. })), "{url}");
        }
        let shared = place("s3://models/a").unwrap();
        assert!(matches!(shared.caching(1, false, false), Err(PrefixPlaceError::NoKey { .. })));
    }
}
