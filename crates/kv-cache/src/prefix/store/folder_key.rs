//! The key of a folder that several users or machines write to.

use std::{
    fmt, fs,
    io::{self, Read},
    path::Path,
};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::files;
use crate::Result;
use crate::prefix::PrefixError;

/// Bytes of a tag: HMAC-SHA-256.
pub const TAG_BYTES: usize = 32;

/// Permission bits that let the group or others read or write.
#[cfg(unix)]
const FOR_OTHERS: u32 = 0o077;

/// A secret that all users of a shared folder of prefixes have, and nobody else who can write to
/// it.
///
/// With a key, files are named and tagged by HMAC-SHA-256 (RFC 2104): without the key nobody can
/// tell which prompt a name belongs to, or write a file that is used. The key does not encrypt.
///
/// ```
/// use ruvllm_kv_cache::prefix::{FolderKey, Purpose};
///
/// let key = FolderKey::new(&[7; 32])?;
/// let tag = key.tag(Purpose::Entry, b"header");
/// assert!(key.verify(Purpose::Entry, b"header", &tag));
/// assert!(!key.verify(Purpose::State, b"header", &tag));
/// assert!(FolderKey::new(b"too short").is_err());
/// # Ok::<(), ruvllm_kv_cache::Error>(())
/// ```
#[derive(Clone)]
pub struct FolderKey {
    /// The state after the key, which is not kept itself.
    mac: Hmac<Sha256>,
}

/// Purpose of a tag. Tags of one purpose are not valid for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Names of files: of the digest of a [`PrefixKey`](crate::prefix::PrefixKey).
    Name,
    /// Content of an entry: of its header, which has the payload's length and SHA-256.
    Entry,
    /// State of a quality target.
    State,
}

impl FolderKey {
    /// Fewest bytes of a key.
    pub const LEAST_BYTES: usize = 32;
    /// Most bytes of a key.
    pub const MOST_BYTES: usize = 1024;

    /// The key of these bytes, which should be random.
    ///
    /// # Errors
    /// [`PrefixError::KeyLength`] for fewer than 32 or more than 1024 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let (least, most) = (Self::LEAST_BYTES, Self::MOST_BYTES);
        let is_key = (least..=most).contains(&bytes.len());
        // HMAC takes keys of any length.
        let mac = Hmac::new_from_slice(bytes).ok().filter(|_| is_key);
        let mac = mac.ok_or(PrefixError::KeyLength { bytes: bytes.len(), least, most })?;
        Ok(Self { mac })
    }

    /// The key in a file: all of its bytes, a line break at the end included. The path may be a
    /// link.
    ///
    /// # Errors
    /// [`PrefixError::ReadableKey`] if the group or others may read or write the file (not checked
    /// on Windows), [`PrefixError::File`] if it cannot be read or is no regular file, and
    /// [`PrefixError::KeyLength`].
    pub fn from_file(path: &Path) -> Result<Self> {
        let failed =
            |source| PrefixError::File { action: "read the key in", path: path.to_path_buf(), source };
        let not_regular = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        let target = fs::canonicalize(path).map_err(failed)?;
        let file =
            files::open_regular(&target).and_then(|file| file.ok_or_else(not_regular)).map_err(failed)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
            if mode & FOR_OTHERS != 0 {
                return Err(PrefixError::ReadableKey { path: path.to_path_buf(), mode }.into());
            }
        }
        let mut bytes = Vec::new();
        file.take(Self::MOST_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        Self::new(&bytes)
    }

    /// The tag of `content` for a purpose.
    #[must_use]
    pub fn tag(&self, purpose: Purpose, content: &[u8]) -> [u8; TAG_BYTES] {
        self.mac_of(purpose, content).finalize().into_bytes().into()
    }

    /// `true` for the tag of `content`, found in constant time.
    #[must_use]
    pub fn verify(&self, purpose: Purpose, content: &[u8], tag: &[u8]) -> bool {
        self.mac_of(purpose, content).verify_slice(tag).is_ok()
    }

    fn mac_of(&self, purpose: Purpose, content: &[u8]) -> Hmac<Sha256> {
        let label: &[u8; 16] = match purpose {
            Purpose::Name => b"ruvllm kv name\0\0",
            Purpose::Entry => b"ruvllm kv entry\0",
            Purpose::State => b"ruvllm kv state\0",
        };
        self.mac.clone().chain_update(label).chain_update(content)
    }
}

/// Without the key.
impl fmt::Debug for FolderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn tags_are_hmac_sha_256() {
        // RFC 4231, test case 7: a key that is longer than a block of SHA-256.
        let key = FolderKey::new(&[0xaa; 131]).expect("a key");
        let data = b"This is a test using a larger than block-size key and a larger than block-size data. \
                     The key needs to be hashed before being used by the HMAC algorithm.";
        let tag = key.mac.clone().chain_update(data).finalize().into_bytes();
        let digits: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
    }

    #[test]
    fn key_purpose_and_content_decide_the_tag() {
        let keys = [[1; 32], [2; 32]].map(|bytes| FolderKey::new(&bytes).expect("a key"));
        let tag = keys[0].tag(Purpose::Entry, b"content");
        assert!(keys[0].verify(Purpose::Entry, b"content", &tag));
        assert!(!keys[1].verify(Purpose::Entry, b"content", &tag));
        assert!(!keys[0].verify(Purpose::State, b"content", &tag));
        assert!(!keys[0].verify(Purpose::Name, b"content", &tag));
        assert!(!keys[0].verify(Purpose::Entry, b"contents", &tag));
        assert!(!keys[0].verify(Purpose::Entry, b"content", &tag[..31]));
        assert!(!keys[0].verify(Purpose::Entry, b"content", &[]));
        assert_eq!(format!("{:?}", keys[0]), "FolderKey { .. }");
    }

    #[test]
    fn keys_have_a_length() {
        for (bytes, is_key) in [(0, false), (31, false), (32, true), (1024, true), (1025, false)] {
            let key = FolderKey::new(&vec![7; bytes]);
            assert_eq!(key.is_ok(), is_key, "{bytes} bytes");
            if let Err(error) = key {
                assert!(
                    matches!(error, Error::Prefix(PrefixError::KeyLength { bytes: found, .. }) if found == bytes)
                );
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn files_of_keys_are_private_and_regular() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        fs::write(&path, [7; 32]).expect("a file");
        let with_mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
            FolderKey::from_file(&path)
        };
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let error = with_mode(mode).expect_err("others can read it");
            let Error::Prefix(PrefixError::ReadableKey { mode: found, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!(*found, mode);
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        with_mode(0o400).expect("a private file");
        let key = with_mode(0o600).expect("a private file");
        assert_eq!(
            key.tag(Purpose::Name, b"a"),
            FolderKey::new(&[7; 32]).expect("a key").tag(Purpose::Name, b"a")
        );
        let link = folder.path().join("link");
        symlink(&path, &link).expect("a link");
        FolderKey::from_file(&link).expect("the file that it leads to");
        fs::write(&path, [7; 5000]).expect("a file");
        let error = FolderKey::from_file(&path).expect_err("too long");
        assert!(matches!(error, Error::Prefix(PrefixError::KeyLength { bytes: 1025, .. })), "{error}");
        for path in [folder.path(), Path::new("/dev/zero"), &folder.path().join("none")] {
            let error = FolderKey::from_file(path).expect_err("no regular file");
            assert!(matches!(error, Error::Prefix(PrefixError::File { .. })), "{error}");
        }
    }
}
