//! A tenant's router in a file: magic, SHA-256 of the rest, [`SavedTenantRouter`] as postcard.

use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::tenant::SavedTenantRouter;
use crate::error::{Error, Result};
use crate::files;

const MAGIC: &[u8; 8] = b"RUVRTR01";
const DIGEST: usize = 32;

impl SavedTenantRouter {
    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Damaged`] for a file that no router has written.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::File { path: path.to_owned(), error }),
        };
        parse(&bytes).map(Some).ok_or(Error::Damaged { what: "saved router" })
    }

    /// Writes a file that [`read`](Self::read) reads; it replaces a former one as a whole.
    ///
    /// # Errors
    /// [`Error::File`]; a former file stays as it was.
    pub fn write(&self, path: &Path) -> Result<()> {
        let encoded = postcard::to_extend(self, Vec::new());
        let state = encoded.map_err(|error| Error::Record { field: "router", reason: error.to_string() })?;
        let bytes = [MAGIC, Sha256::digest(&state).as_slice(), &state].concat();
        files::replace(path, &bytes)
    }
}

fn parse(bytes: &[u8]) -> Option<SavedTenantRouter> {
    let (digest, state) = bytes.strip_prefix(MAGIC)?.split_at_checked(DIGEST)?;
    if Sha256::digest(state).as_slice() != digest {
        return None;
    }
    match postcard::take_from_bytes(state).ok()? {
        (saved, []) => Some(saved),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::routing::{Arm, Prompt, RouterSettings, TenantRouter};

    #[test]
    fn files_give_the_same_router_and_damage_is_found_at_every_byte() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("team.router");
        assert_eq!(SavedTenantRouter::read(&path).expect("no file"), None);
        let arms = vec![Arm::model("a"), Arm::model("b")];
        let mut router =
            TenantRouter::new("team", "base", RouterSettings::new(2), arms).expect("valid settings");
        let prompt =
            Prompt { embedding: &[0.3, 0.1], tokens: 9, has_tools: true, is_constrained: true, turns: 1 };
        for (id, outcome) in [("1", 1.0), ("2", 0.1)] {
            router.decide(id, &prompt, |_| true).expect("a decision");
            router.finish(id, Duration::from_millis(123));
            router.learn(id, outcome).expect("an outcome");
        }
        router.decide("3", &prompt, |_| true).expect("a decision");
        router.save().write(&path).expect("written");
        assert_eq!(SavedTenantRouter::read(&path).expect("read"), Some(router.save()));
        let bytes = fs::read(&path).expect("its bytes");
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert!(parse(&damaged).is_none() && parse(&bytes[..place]).is_none(), "byte {place}");
        }
        assert!(parse(&[&bytes[..], &[0]].concat()).is_none());
        let gone = folder.path().join("none").join("team.router");
        assert!(matches!(router.save().write(&gone), Err(Error::File { .. })));
    }
}
