//! The files of a repository, as the hub lists them.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::digest::is_sha256;
use crate::error::{Error, Result, shortened};
use crate::limits::MAX_LISTED_FILES;
use crate::reference::is_name;

/// A repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The commit that the revision means now.
    pub commit: String,
    /// Its files, in the hub's order.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteFile {
    /// Path in the repository. A hub may list any text here; what is stored is checked.
    pub path: String,
    /// Length, if the hub says it.
    pub bytes: Option<u64>,
    /// SHA-256 in lower-case hexadecimal, which the hub knows of large files.
    pub sha256: Option<String>,
}

/// The answer of `/api/models/ORG/REPO/revision/REVISION?blobs=true`, as far as it is used.
#[derive(Deserialize)]
struct Document {
    sha: String,
    #[serde(deserialize_with = "siblings")]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: Option<String>,
    size: Option<u64>,
}

/// The files of a list, up to [`MAX_LISTED_FILES`]: a short text may hold millions.
fn siblings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Sibling>, D::Error> {
    struct Siblings;
    impl<'de> Visitor<'de> for Siblings {
        type Value = Vec<Sibling>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of files")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut files = Vec::new();
            while let Some(file) = list.next_element()? {
                if files.len() == MAX_LISTED_FILES {
                    return Err(A::Error::custom(format!("it has more than {MAX_LISTED_FILES} files")));
                }
                files.push(file);
            }
            Ok(files)
        }
    }
    deserializer.deserialize_seq(Siblings)
}

impl Listing {
    /// Reads the answer of a hub to `/api/models/ORG/REPO/revision/REVISION?blobs=true`.
    ///
    /// # Errors
    /// [`Error::Listing`] for one that is not understood, that names a file twice or too many.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let refused = |reason| Error::Listing { reason };
        let document: Document = serde_json::from_slice(text).map_err(|error| refused(error.to_string()))?;
        if !is_name(&document.sha) {
            return Err(refused(format!("`{}` is not a commit", shortened(&document.sha))));
        }
        let mut paths = HashSet::with_capacity(document.siblings.len());
        if let Some(twice) = document.siblings.iter().find(|file| !paths.insert(file.rfilename.as_str())) {
            return Err(refused(format!("it names `{}` twice", shortened(&twice.rfilename))));
        }
        let files = document.siblings.into_iter().map(|file| {
            let (large_sha256, large_bytes) =
                file.lfs.map_or((None, None), |large| (large.sha256, large.size));
            let sha256 =
                large_sha256.map(|sha256| sha256.to_ascii_lowercase()).filter(|sha256| is_sha256(sha256));
            RemoteFile { path: file.rfilename, bytes: large_bytes.or(file.size), sha256 }
        });
        Ok(Self { commit: document.sha, files: files.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_the_hub_is_read() {
        let sha256 = "0123456789abcdef".repeat(4);
        let text = format!(
            r#"{{"id": "a/b", "sha": "abc123", "gated": false, "siblings": [
                {{"rfilename": "config.json", "size": 10, "blobId": "ff"}},
                {{"rfilename": "m.gguf", "size": 7, "lfs": {{"sha256": "{sha256}", "size": 7, "pointerSize": 130}}}},
                {{"rfilename": "plain"}}]}}"#
        );
        let listing = Listing::from_json(text.as_bytes()).unwrap();
        assert_eq!(listing.commit, "abc123");
        let file = |path: &str, bytes, sha256| RemoteFile { path: path.to_owned(), bytes, sha256 };
        assert_eq!(
            listing.files,
            [
                file("config.json", Some(10), None),
                file("m.gguf", Some(7), Some(sha256)),
                file("plain", None, None)
            ]
        );
    }

    #[test]
    fn other_answers_are_refused() {
        for text in
            ["", "{", "[]", "{}", r#"{"sha": "../x", "siblings": []}"#, r#"{"sha": "a", "siblings": [{"rfil"#]
        {
            assert!(Listing::from_json(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn files_have_a_number_and_different_names() {
        let list = |paths: &mut dyn Iterator<Item = usize>| {
            let files: Vec<String> = paths.map(|path| format!(r#"{{"rfilename":"{path}"}}"#)).collect();
            Listing::from_json(format!(r#"{{"sha": "a", "siblings": [{}]}}"#, files.join(",")).as_bytes())
        };
        assert_eq!(list(&mut (0..MAX_LISTED_FILES)).unwrap().files.len(), MAX_LISTED_FILES);
        let message = |result: Result<Listing>| result.unwrap_err().to_string();
        assert!(message(list(&mut (0..=MAX_LISTED_FILES))).contains("more than 100000 files"));
        assert!(message(list(&mut [1, 2, 1].into_iter())).contains("names `1` twice"));
    }
}
