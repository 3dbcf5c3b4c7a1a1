//! API keys as callers hold them, and their hashes.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Beginning of every key, so that scanners for leaked secrets find them.
const PREFIX: &str = "rk-";

/// Random bytes of a key.
const SECRET_BYTES: usize = 32;

/// Beginning of a hash in a keys file.
const ALGORITHM: &str = "sha256:";

/// A new API key. `Debug` hides it; [`Secret::reveal`] is for the one time that it is printed.
pub struct Secret(String);

impl Secret {
    /// A key from the system's random generator.
    ///
    /// # Errors
    /// A random generator that does not work.
    pub fn generate() -> Result<Self, std::io::Error> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
        Ok(Self(format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// The key as text.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Hash of the key.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// SHA-256 of an API key. A fast hash is enough: keys are 256 random bits, no passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hash of what a caller sent.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Comparison in constant time.
    pub(super) fn is(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALGORITHM)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The text is not repeated: somebody may have written the key itself.
        parse(&text).ok_or_else(|| {
            D::Error::custom("expected \"sha256:\" and 64 hexadecimal digits; `ruvllm key new` writes them")
        })
    }
}

fn parse(text: &str) -> Option<KeyHash> {
    let digits = text.strip_prefix(ALGORITHM).filter(|digits| digits.len() == 64 && digits.is_ascii())?;
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(KeyHash(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_random_and_hidden() {
        let (one, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_eq!(one.reveal().len(), 3 + 43);
        assert!(one.reveal().starts_with("rk-") && one.reveal() != other.reveal());
        assert!(!format!("{one:?} {:?}", one.hash()).contains(&one.reveal()[3..]));
        assert!(!format!("{:?}", one.hash()).contains(&one.hash().to_string()[7..]));
    }

    #[test]
    fn hashes_come_back_and_others_are_refused() {
        let hash = KeyHash::of("abc");
        let text = hash.to_string();
        assert_eq!(text, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(parse(&text) == Some(hash));
        for wrong in ["", "sha256:", "sha256:00", &text[7..], &text.replace('b', "x"), &format!("{text}0")] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
