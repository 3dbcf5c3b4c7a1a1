//! Reference to a model on a hub: `hf://ORG/REPO[/FILE][@REVISION]`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::names::{part_fault, path_fault};

/// The prefix of every reference.
const SCHEME: &str = "hf://";

/// Hosts whose addresses are references: of pages, and of files to download.
const HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];

/// Words of an address between the repository and its revision.
const PAGES: [&str; 3] = ["tree", "blob", "resolve"];

/// The revision of a reference without one.
pub const DEFAULT_REVISION: &str = "main";

/// A model on a hub.
///
/// ```
/// use ruvllm_hub::ModelReference;
///
/// let reference: ModelReference = "hf://org/repo/sub/model-Q4_K_M.gguf@v1.0".parse()?;
/// assert_eq!(reference.repo(), "org/repo");
/// assert_eq!(reference.file(), Some("sub/model-Q4_K_M.gguf"));
/// assert_eq!(reference.revision(), "v1.0");
/// assert!("hf://repo".parse::<ModelReference>().is_err());
/// # Ok::<(), ruvllm_hub::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelReference {
    repo: String,
    file: Option<String>,
    revision: Option<String>,
}

impl ModelReference {
    /// The repository, `ORG/REPO`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The file in the repository, or the name of a quantization; absent when the repository itself
    /// is named.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Branch, tag or commit; [`DEFAULT_REVISION`] when none is named.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// The reference that a person writes: as it is read by [`FromStr`], the same without `hf://`,
    /// or the address of a repository, folder or file on `huggingface.co`.
    ///
    /// ```
    /// use ruvllm_hub::ModelReference;
    ///
    /// let address = "https://huggingface.co/org/repo/blob/main/m.gguf";
    /// assert_eq!(ModelReference::from_user("org/repo")?.to_string(), "hf://org/repo");
    /// assert_eq!(ModelReference::from_user(address)?.to_string(), "hf://org/repo/m.gguf@main");
    /// # Ok::<(), ruvllm_hub::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Reference`] for anything else, other hosts included.
    pub fn from_user(text: &str) -> Result<Self> {
        if text.starts_with(SCHEME) {
            return text.parse();
        }
        let refused = |reason| Error::Reference { text: crate::error::shortened(text), reason };
        let reference = match text.split_once("://") {
            None => format!("{SCHEME}{text}"),
            Some(("https" | "http", address)) => {
                of_address(address).ok_or_else(|| refused("it is no address of a repository of the hub"))?
            }
            Some(_) => return Err(refused("it begins neither with hf:// nor with https://")),
        };
        // The message names what was written.
        reference.parse().map_err(|error| match error {
            Error::Reference { reason, .. } => refused(reason),
            other => other,
        })
    }

    /// True if both mean the same: a reference without a revision means [`DEFAULT_REVISION`].
    pub fn is_same(&self, other: &Self) -> bool {
        (self.repo(), self.file(), self.revision()) == (other.repo(), other.file(), other.revision())
    }

    /// The reference without its revision: what stays the same when a model is updated.
    pub(crate) fn without_revision(&self) -> Self {
        Self { revision: None, ..self.clone() }
    }
}

impl FromStr for ModelReference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |reason| Error::Reference { text: crate::error::shortened(text), reason };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| refused("it does not begin with hf://"))?;
        let (path, revision) = match rest.rsplit_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (rest, None),
        };
        if revision.is_some_and(|revision| !is_revision(revision)) {
            return Err(refused("the revision is not the name of a branch, a tag or a commit"));
        }
        let mut parts = path.splitn(3, '/');
        let (org, name, file) = (parts.next(), parts.next(), parts.next());
        let (Some(org), Some(name)) = (org, name) else {
            return Err(refused("it names no repository"));
        };
        if !is_repo_part(org) || !is_repo_part(name) {
            return Err(refused("the repository is not two names of letters, digits, `.`, `_` and `-`"));
        }
        if part_fault(&format!("{org}--{name}")).is_some() {
            return Err(refused("the repository's name cannot be that of a folder on every system"));
        }
        if let Some(fault) = file.and_then(path_fault) {
            return Err(refused(fault));
        }
        Ok(Self {
            repo: format!("{org}/{name}"),
            file: file.map(str::to_owned),
            revision: revision.map(str::to_owned),
        })
    }
}

impl fmt::Display for ModelReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repo)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

/// The text of a reference for an address without its scheme: `huggingface.co/ORG/REPO`, perhaps
/// with `tree`, `blob` or `resolve`, a revision and a path.
fn of_address(address: &str) -> Option<String> {
    let address = address.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let (host, path) = address.split_once('/')?;
    if !HOSTS.iter().any(|known| host.eq_ignore_ascii_case(known)) {
        return None;
    }
    let mut parts = path.splitn(5, '/');
    let (org, name) = (parts.next()?, parts.next()?);
    let mut text = format!("{SCHEME}{org}/{name}");
    if let Some(page) = parts.next() {
        let revision = parts.next().filter(|_| PAGES.contains(&page))?;
        if let Some(file) = parts.next() {
            text.push('/');
            text.push_str(&decoded(file)?);
        }
        text.push('@');
        text.push_str(&decoded(revision)?);
    }
    Some(text)
}

/// `text` with its `%XX` as bytes; nothing if that is no UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Half of a repository's name. Two dashes or dots in a row are reserved on the hub, and by the
/// store's folders.
fn is_repo_part(part: &str) -> bool {
    is_word(part) && !part.contains("--") && !part.contains("..")
}

/// Branches and tags may contain slashes (`refs/pr/1`).
fn is_revision(revision: &str) -> bool {
    revision.len() <= 200 && revision.split('/').all(is_word)
}

/// Letters, digits, `.`, `_` and `-`, at most 100, and not a leading `.` or `-`: safe as an
/// argument, and as a file name on every system.
pub(crate) fn is_name(name: &str) -> bool {
    is_word(name) && part_fault(name).is_none()
}

/// As [`is_name`], but for names that are no files.
fn is_word(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.len() <= 100
        && name.starts_with(is_word)
        && name.chars().all(|c| is_word(c) || matches!(c, '.' | '-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_are_read_and_written() {
        for (text, repo, file, revision) in [
            ("hf://a/b", "a/b", None, "main"),
            ("hf://a/b@v2", "a/b", None, "v2"),
            ("hf://a/b@refs/pr/1", "a/b", None, "refs/pr/1"),
            ("hf://con/aux@nul", "con/aux", None, "nul"),
            ("hf://a/b/c.gguf", "a/b", Some("c.gguf"), "main"),
            ("hf://A-1/b.c_d/e/f g.gguf@0123abc", "A-1/b.c_d", Some("e/f g.gguf"), "0123abc"),
            ("hf://a/b/odd@name.gguf@main", "a/b", Some("odd@name.gguf"), "main"),
        ] {
            let reference: ModelReference = text.parse().unwrap();
            assert_eq!(
                (reference.repo(), reference.file(), reference.revision()),
                (repo, file, revision),
                "{text}"
            );
            assert_eq!(reference.to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "a/b",
            "hf:/a/b",
            "hf://",
            "hf://a",
            "hf://a/",
            "hf:///b",
            "hf://a/b/",
            "hf://a/b//c",
            "hf://a/b@",
            "hf://a/../c",
            "hf://a/b/../c",
            "hf://a/b/c/..",
            "hf://a/b/./c",
            "hf://a/b/c\\d",
            "hf://a/b/C:d",
            "hf://a/b/c\nd",
            "hf://a/b/nul.gguf",
            "hf://a/b/x./c.gguf",
            "hf://a/b/c\u{202e}d",
            "hf://con.x/b",
            "hf://a/b.",
            "hf://a b/c",
            "hf://a--b/c",
            "hf://-a/c",
            "hf://a/.b",
            "hf://a/b@-x",
            "hf://a/b@x y",
            "hf://a/b@x//y",
            "hf://a/b@../x",
            "https://huggingface.co/a/b",
        ] {
            assert!(text.parse::<ModelReference>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn people_write_addresses_and_leave_the_scheme_out() {
        for (text, expected) in [
            ("hf://a/b@v2", Some("hf://a/b@v2")),
            ("a/b", Some("hf://a/b")),
            ("a/b/Q4_K_M@v2", Some("hf://a/b/Q4_K_M@v2")),
            ("https://huggingface.co/a/b", Some("hf://a/b")),
            ("https://hf.co/a/b/", Some("hf://a/b")),
            ("http://www.HuggingFace.co/a/b?library=x#y", Some("hf://a/b")),
            ("https://huggingface.co/a/b/tree/main", Some("hf://a/b@main")),
            ("https://huggingface.co/a/b/tree/refs%2Fpr%2F1", Some("hf://a/b@refs/pr/1")),
            (
                "https://huggingface.co/a/b/resolve/main/x/c%20d.gguf?download=true",
                Some("hf://a/b/x/c d.gguf@main"),
            ),
            ("https://huggingface.co/a/b/blob/main/odd@name.gguf", Some("hf://a/b/odd@name.gguf@main")),
            ("https://huggingface.co/a", None),
            ("https://huggingface.co/a/b/discussions/1", None),
            ("https://huggingface.co/a/b/tree", None),
            ("https://huggingface.co/a/b/blob/main/%2e%2e/c", None),
            ("https://huggingface.co/a/b/blob/main/%0a", None),
            ("https://huggingface.co/a/b/blob/main/%+1", None),
            ("https://huggingface.co/a/b/blob/main/%ff", None),
            ("https://huggingface.co.evil/a/b", None),
            ("https://me:secret@huggingface.co/a/b", None),
            ("ftp://huggingface.co/a/b", None),
            ("a", None),
            ("./a", None),
            ("/a/b", None),
            ("", None),
        ] {
            let read = ModelReference::from_user(text).ok().map(|reference| reference.to_string());
            assert_eq!(read.as_deref(), expected, "{text:?}");
        }
        let same = |a: &str, b: &str| {
            ModelReference::from_user(a).unwrap().is_same(&ModelReference::from_user(b).unwrap())
        };
        assert!(same("a/b", "hf://a/b@main") && !same("a/b", "a/b@v2") && !same("a/b", "a/b/c"));
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(https?://)?(hf.co/)?[a-z@/.%0-9]{0,20}") {
            if let Ok(reference) = ModelReference::from_user(&text) {
                let again: ModelReference = reference.to_string().parse().unwrap();
                prop_assert_eq!(again.to_string(), reference.to_string());
            }
        }

        #[test]
        fn what_is_read_is_written_as_it_was(text in "(hf://)?[a-z@/.]{0,20}") {
            if let Ok(reference) = text.parse::<ModelReference>() {
                prop_assert_eq!(reference.to_string(), text);
            }
        }
    }
}
