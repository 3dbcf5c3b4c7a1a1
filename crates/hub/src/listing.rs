//! The files of a repository, as the hub lists them.

use serde::Deserialize;

use crate::digest::is_sha256;
use crate::reference::{is_name, is_safe_path};

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

impl RemoteFile {
    /// Whether the file can be stored below a folder.
    pub(crate) fn has_safe_path(&self) -> bool {
        is_safe_path(&self.path)
    }
}

/// The answer of `/api/models/ORG/REPO/revision/REVISION?blobs=true`, as far as it is used.
#[derive(Deserialize)]
struct Document {
    sha: String,
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

impl Listing {
    /// Reads the hub's answer; the error says what is wrong with it.
    pub(crate) fn from_json(text: &[u8]) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if !is_name(&document.sha) {
            return Err(format!("`{}` is not a commit", crate::error::shortened(&document.sha)));
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
}
