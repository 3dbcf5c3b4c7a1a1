//! Entries as objects below a prefix of a bucket.

use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt as _};
use ruvllm_kv_cache::prefix::store::{EntryHead, EntryId, EntryName, EntryStorage, ListedEntry, OpenEntry};
use ruvllm_kv_cache::prefix::{Fault, PrefixError};

use crate::Error;
use crate::answer::{Answer, Answers};
use crate::location::Location;

/// Time for the answers of one lookup.
const PATIENCE: Duration = Duration::from_secs(2);

/// Factor on the patience for writing an entry and for a listing, for which no request waits.
const SLOW: u32 = 5;

/// Requests of one call.
const AT_ONCE: usize = 32;

const EXTENSION: &str = "kv";

/// Object store as the storage of a [`PrefixStore`](ruvllm_kv_cache::prefix::PrefixStore).
///
/// The name of an object is the id of its entry and the index of its block. Objects have no times
/// of use: entries count as used when they were written, minus a second for each block before
/// them, so that the ends of prefixes are deleted first. A prefix that is deleted while requests
/// still use it is written again by the next of them.
#[derive(Debug)]
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    prefix: Key,
    location: PathBuf,
    patience: Duration,
    answers: Answers,
}

/// Part of an object.
struct Part {
    bytes: Vec<u8>,
    object_bytes: u64,
}

impl ObjectStorage {
    /// The store at `url`: `s3://BUCKET/PREFIX`. `variables` are the names and values of the
    /// environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
    /// `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP` and all others that `object_store` knows.
    /// Without credentials those of the machine's metadata service are used. Nothing is requested
    /// yet.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::PlainHttp`], [`Error::Settings`] and [`Error::Threads`].
    pub fn open(url: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let location = Location::parse(url)?;
        let store = location.connect(url, variables, PATIENCE)?;
        Self::new(store, location.prefix, url.trim_end_matches('/'))
    }

    /// Objects of any store below `prefix`; `location` names them in messages.
    ///
    /// # Errors
    /// [`Error::Threads`].
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Key, location: &str) -> Result<Self, Error> {
        let answers = Answers::new()?;
        Ok(Self { store, prefix, location: location.into(), patience: PATIENCE, answers })
    }

    /// Replaces the time for the answers of one lookup, 2 s.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn key_of(&self, name: EntryName) -> Key {
        self.prefix.clone().join(file_name(name))
    }

    /// Starts to read the first `n_bytes` bytes of an object; `None` if there is none.
    fn read(&self, name: EntryName, n_bytes: u64) -> Answer<Option<Part>> {
        let (store, key) = (Arc::clone(&self.store), self.key_of(name));
        self.answers.start(self.patience, async move {
            let options = GetOptions { range: Some(GetRange::Bounded(0..n_bytes)), ..GetOptions::default() };
            match store.get_opts(&key, options).await {
                Ok(found) => {
                    let object_bytes = found.meta.size;
                    Ok(Some(Part { bytes: found.bytes().await?.into(), object_bytes }))
                }
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                // No range of an empty object can be read.
                Err(error) => match store.head(&key).await {
                    Ok(meta) if meta.size == 0 => Ok(Some(Part { bytes: Vec::new(), object_bytes: 0 })),
                    _ => Err(error),
                },
            }
        })
    }

    fn failed(&self, action: &'static str, name: Option<EntryName>) -> impl FnOnce(io::Error) -> PrefixError {
        let path = name.map_or_else(|| self.location.clone(), |name| self.path_of(name));
        move |source| PrefixError::File { action, path, source }
    }
}

impl EntryStorage for ObjectStorage {
    fn location(&self) -> &Path {
        &self.location
    }

    fn path_of(&self, name: EntryName) -> PathBuf {
        self.location.join(file_name(name))
    }

    fn most_at_once(&self) -> usize {
        AT_ONCE
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.patience)
    }

    fn heads(&self, names: &[EntryName], n_bytes: usize) -> Vec<Result<Option<EntryHead>, Fault>> {
        let answers: Vec<_> = names.iter().map(|&name| self.read(name, n_bytes as u64)).collect();
        let head = |part: Part| EntryHead { bytes: part.bytes, entry_bytes: part.object_bytes };
        let wait = |answer: Answer<Option<Part>>| match answer.wait() {
            Ok(part) => Ok(part.map(head)),
            Err(error) => Err(Fault::Unreadable(error)),
        };
        answers.into_iter().map(wait).collect()
    }

    fn open(&self, entries: &[(EntryName, u64)]) -> Vec<Result<Option<OpenEntry<'_>>, Fault>> {
        let answers: Vec<_> = entries.iter().map(|&(name, bytes)| self.read(name, bytes)).collect();
        let open = |Part { bytes, object_bytes }| OpenEntry {
            entry_bytes: object_bytes,
            content: Box::new(Cursor::new(bytes)),
        };
        let wait = |answer: Answer<Option<Part>>| match answer.wait() {
            Ok(part) => Ok(part.map(open)),
            Err(error) => Err(Fault::Unreadable(error)),
        };
        answers.into_iter().map(wait).collect()
    }

    fn touch(&self, _: EntryName, _: SystemTime) {}

    fn write(&self, name: EntryName, parts: &[&[u8]], _: SystemTime) -> Result<(), PrefixError> {
        let (store, key, bytes) = (Arc::clone(&self.store), self.key_of(name), parts.concat());
        let put = async move { store.put(&key, bytes.into()).await.map(drop) };
        self.answers.start(self.patience * SLOW, put).wait().map_err(self.failed("write", Some(name)))
    }

    fn remove(&self, names: &[EntryName]) -> Vec<Result<(), PrefixError>> {
        let start = |&name: &EntryName| {
            let (store, key) = (Arc::clone(&self.store), self.key_of(name));
            let remove = async move {
                match store.delete(&key).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(()),
                    removed => removed,
                }
            };
            (name, self.answers.start(self.patience, remove))
        };
        let answers: Vec<_> = names.iter().map(start).collect();
        let wait = |(name, answer): (EntryName, Answer<()>)| {
            answer.wait().map_err(self.failed("remove", Some(name)))
        };
        answers.into_iter().map(wait).collect()
    }

    fn list(&self) -> Result<Vec<ListedEntry>, PrefixError> {
        let (store, prefix) = (Arc::clone(&self.store), self.prefix.clone());
        let list = async move { store.list_with_delimiter(Some(&prefix)).await };
        let listed = self.answers.start(self.patience * SLOW, list).wait();
        let objects = listed.map_err(self.failed("list", None))?.objects;
        let entry = |object: &object_store::ObjectMeta| {
            let name = parse_name(object.location.filename()?)?;
            let before = Duration::from_secs(u64::from(name.index));
            let used = SystemTime::from(object.last_modified);
            Some(ListedEntry { name, bytes: object.size, used: used.checked_sub(before).unwrap_or(used) })
        };
        Ok(objects.iter().filter_map(entry).collect())
    }
}

/// The name of an object below the prefix.
fn file_name(EntryName { id, index }: EntryName) -> String {
    format!("{id}-{index}.{EXTENSION}")
}

fn parse_name(text: &str) -> Option<EntryName> {
    let (id, index) = text.strip_suffix(EXTENSION)?.strip_suffix('.')?.split_once('-')?;
    let name = EntryName { id: EntryId::parse(id)?, index: index.parse().ok()? };
    (file_name(name) == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_are_read_as_written(text in "[0-9a-f]{64}", index: u32, other in "[0-9a-fk.v+-]{0,80}") {
            let name = EntryName { id: EntryId::parse(&text).expect("an id"), index };
            prop_assert_eq!(parse_name(&file_name(name)), Some(name));
            if let Some(name) = parse_name(&other) {
                prop_assert_eq!(file_name(name), other);
            }
            prop_assert_eq!(parse_name(&format!("{text}-+{index}.kv")), None);
        }
    }
}
