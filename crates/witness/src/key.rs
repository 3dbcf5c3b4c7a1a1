//! Ed25519 keys, in the PEM files that openssl reads and writes.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature as DalekSignature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, bytes_of, hex};
use crate::error::{Error, Result, io_error};

/// DER of PKCS #8 before the 32 bytes of a private key (RFC 8410).
const PRIVATE: (&str, &[u8]) = ("PRIVATE KEY", &[48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32]);
/// DER of `SubjectPublicKeyInfo` before the 32 bytes of a public key.
const PUBLIC: (&str, &[u8]) = ("PUBLIC KEY", &[48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0]);
/// A key file is smaller.
const MAX_FILE_BYTES: u64 = 4096;

/// Id of a public key: the first 8 bytes of its SHA-256, as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId([u8; 8]);

/// Key that signs.
pub struct PrivateKey(SigningKey);

/// Key that verifies. Text form: 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(VerifyingKey);

/// Ed25519 signature. Text form: 128 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signature(pub [u8; 64]);

impl FromStr for Signature {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        bytes_of(text.as_bytes()).map(Self).ok_or("expected 128 lower-case hexadecimal digits")
    }
}

impl TryFrom<String> for Signature {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl From<Signature> for String {
    fn from(signature: Signature) -> Self {
        signature.to_string()
    }
}

impl PrivateKey {
    /// Makes a key of random bytes of the system.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(Error::Random)?;
        Ok(Self::from_bytes(&bytes))
    }

    /// Key of 32 secret bytes.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(bytes))
    }

    /// Reads a file in PKCS #8 (PEM), as [`create`](Self::create) and `openssl genpkey -algorithm
    /// ed25519` write it.
    ///
    /// # Errors
    /// A file that cannot be read or is no key; on Unix [`Error::ReadableKey`] for one that group
    /// or others may read.
    pub fn load(path: &Path) -> Result<Self> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(path).map_err(io_error("read", path))?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(Error::ReadableKey { path: path.to_owned(), mode });
            }
        }
        let reason = "no private Ed25519 key in PKCS #8 (PEM)";
        let key = unpem(&read_small(path)?, PRIVATE).map(|bytes| Self::from_bytes(&bytes));
        key.ok_or_else(|| Error::Key { path: path.to_owned(), reason })
    }

    /// Writes the key to a new file that its owner alone may read (mode 0600).
    ///
    /// # Errors
    /// A file that exists or cannot be written.
    pub fn create(&self, path: &Path) -> Result<()> {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        create(path, &mut options, &pem(self.0.as_bytes(), PRIVATE))
    }

    /// Public key.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> Signature {
        Signature(self.0.sign(message).to_bytes())
    }
}

/// Shows the public key alone.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.public_key().id()).finish()
    }
}

impl PublicKey {
    /// Reads a file in PEM, as [`create`](Self::create) and `openssl pkey -pubout` write it.
    ///
    /// # Errors
    /// A file that cannot be read, is no key, or is a key for which anybody can sign.
    pub fn load(path: &Path) -> Result<Self> {
        let reason = "no public Ed25519 key (PEM)";
        let key = unpem(&read_small(path)?, PUBLIC).and_then(|bytes| Self::strong(&bytes));
        key.ok_or_else(|| Error::Key { path: path.to_owned(), reason })
    }

    /// Key of 32 bytes, unless of small order.
    fn strong(bytes: &[u8; 32]) -> Option<Self> {
        VerifyingKey::from_bytes(bytes).ok().filter(|key| !key.is_weak()).map(Self)
    }

    /// Writes the key to a new file.
    ///
    /// # Errors
    /// A file that exists or cannot be written.
    pub fn create(&self, path: &Path) -> Result<()> {
        create(path, &mut OpenOptions::new(), &pem(self.0.as_bytes(), PUBLIC))
    }

    /// Id, as signed documents state it.
    pub fn id(&self) -> KeyId {
        let mut id = [0; 8];
        id.copy_from_slice(&Digest::of(self.0.as_bytes()).0[..8]);
        KeyId(id)
    }

    /// True if the key made the signature. Strict: points of small order are refused.
    pub fn verifies(&self, message: &[u8], signature: &Signature) -> bool {
        self.0.verify_strict(message, &DalekSignature::from_bytes(&signature.0)).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0.as_bytes()))
    }
}

/// Refuses keys for which anybody can sign.
impl FromStr for PublicKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = bytes_of(text.as_bytes()).ok_or("expected 64 lower-case hexadecimal digits")?;
        Self::strong(&bytes).ok_or("no Ed25519 key, or one for which anybody can sign")
    }
}

impl TryFrom<String> for PublicKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for KeyId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        bytes_of(text.as_bytes()).map(Self).ok_or("expected 16 lower-case hexadecimal digits")
    }
}

impl TryFrom<String> for KeyId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.to_string()
    }
}

fn pem(key: &[u8; 32], (label, der): (&str, &[u8])) -> String {
    let text = STANDARD.encode([der, key].concat());
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

fn unpem(text: &str, (label, der): (&str, &[u8])) -> Option<[u8; 32]> {
    let text = text.trim().strip_prefix(&format!("-----BEGIN {label}-----"))?;
    let text = text.strip_suffix(&format!("-----END {label}-----"))?;
    STANDARD.decode(text.trim()).ok()?.strip_prefix(der)?.try_into().ok()
}

fn read_small(path: &Path) -> Result<String> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut text))
        .map_err(io_error("read", path))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn create(path: &Path, options: &mut OpenOptions, text: &str) -> Result<()> {
    let mut file = options.write(true).create_new(true).open(path).map_err(io_error("create", path))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
    }
    written.map_err(io_error("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key pair that openssl made: `openssl genpkey -algorithm ed25519`, `openssl pkey -pubout`.
    const OPENSSL: [&str; 2] = [
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n",
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n",
    ];

    fn write(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        #[cfg(unix)]
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }

    #[test]
    fn keys_are_the_files_of_openssl() {
        // Test 1 of RFC 8032.
        let secret: [u8; 32] =
            bytes_of(b"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let paths = ["private", "public"].map(|name| folder.path().join(name));
        let key = PrivateKey::from_bytes(&secret);
        key.create(&paths[0]).unwrap();
        key.public_key().create(&paths[1]).unwrap();
        for (path, text) in paths.iter().zip(OPENSSL) {
            assert_eq!(fs::read_to_string(path).unwrap(), text);
        }
        assert_eq!(PrivateKey::load(&paths[0]).unwrap().0.to_bytes(), secret);
        assert_eq!(PublicKey::load(&paths[1]).unwrap(), key.public_key());
        assert!(matches!(key.create(&paths[0]), Err(Error::Io { action: "create", .. })), "none is replaced");
        assert!(!format!("{key:?}").contains("9d61"));
    }

    #[test]
    fn generated_keys_differ_and_sign() {
        let keys = [PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap()];
        let signature = keys[0].sign(b"message");
        assert!(keys[0].public_key().verifies(b"message", &signature));
        assert!(!keys[0].public_key().verifies(b"other", &signature));
        assert!(!keys[1].public_key().verifies(b"message", &signature));
        assert_ne!(keys[0].public_key().id(), keys[1].public_key().id());
    }

    #[test]
    fn public_keys_and_signatures_have_one_text() {
        let key = PrivateKey::from_bytes(&[3; 32]);
        let (public, signature) = (key.public_key(), key.sign(b"message"));
        assert_eq!(public.to_string().parse(), Ok(public.clone()));
        assert_eq!(signature.to_string().parse(), Ok(signature.clone()));
        let weak = format!("01{}", "0".repeat(62));
        for text in ["", "x", &weak, &public.to_string().to_uppercase(), &signature.to_string()] {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
        }
        assert!(signature.to_string().to_uppercase().parse::<Signature>().is_err());
    }

    #[cfg(unix)]
    #[test]
    fn private_keys_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        PrivateKey::from_bytes(&[1; 32]).create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [0o640, 0o604, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(
                matches!(PrivateKey::load(&path), Err(Error::ReadableKey { mode: found, .. }) if found == mode)
            );
        }
    }

    #[test]
    fn files_that_are_no_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let weak = pem(
            &{
                let mut one = [0; 32];
                one[0] = 1;
                one
            },
            PUBLIC,
        );
        for text in ["", "x", OPENSSL[0], &weak, &OPENSSL[1].replace("MCow", "MCox"), &OPENSSL[1][..80]] {
            write(&path, text);
            assert!(matches!(PublicKey::load(&path), Err(Error::Key { .. })), "{text}");
        }
        write(&path, OPENSSL[1]);
        assert!(matches!(PrivateKey::load(&path), Err(Error::Key { .. })));
        assert!(matches!(PrivateKey::load(folder.path().join("none").as_path()), Err(Error::Io { .. })));
    }
}
