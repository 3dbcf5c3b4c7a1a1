//! Format of the file: a header, then the driver's data.
//!
//! ```text
//! 0   magic "RUVLLMPC"
//! 8   version of the format, u32 little-endian
//! 12  SHA-256 of adapter, driver, version of the kernels and of the crate
//! 44  length of the data, u64 little-endian
//! 52  SHA-256 of the data
//! 84  data
//! ```

use sha2::{Digest, Sha256};

use crate::adapter::AdapterInfo;

const MAGIC: &[u8; 8] = b"RUVLLMPC";
const FORMAT: u32 = 1;

/// Size of the header in bytes.
pub(super) const HEADER: usize = 84;

/// Digest of whatever must be the same for the data to be of use.
pub(super) type Identity = [u8; 32];

/// Data of a file whose header and checksum are right.
#[derive(Debug)]
pub(super) struct Verified<'a>(&'a [u8]);

impl<'a> Verified<'a> {
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// Identity of the data that `info` takes.
pub(super) fn identity(info: &AdapterInfo, kernels: u32) -> Identity {
    let key = info.cache_key.as_deref().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let kernels = kernels.to_string();
    let mut hash = Sha256::new();
    for part in [&info.backend, key, &info.name, &info.driver, version, &kernels] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Header of `data`.
pub(super) fn header(data: &[u8], identity: &Identity) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..44].copy_from_slice(identity);
    header[44..52].copy_from_slice(&(data.len() as u64).to_le_bytes());
    header[52..].copy_from_slice(&Sha256::digest(data));
    header
}

/// Data of a file; the error is the reason not to use it.
pub(super) fn decode<'a>(file: &'a [u8], identity: &Identity) -> Result<Verified<'a>, &'static str> {
    let Some((found, data)) = file.split_at_checked(HEADER) else { return Err("it is truncated") };
    if &found[..8] != MAGIC || found[8..12] != FORMAT.to_le_bytes() {
        return Err("it is no pipeline cache of this version");
    }
    if found[12..44] != identity[..] {
        return Err("it is of another driver or program version");
    }
    if found[44..52] != (data.len() as u64).to_le_bytes() {
        return Err("its length is wrong");
    }
    if found != header(data, identity) {
        return Err("its checksum is wrong");
    }
    Ok(Verified(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damage_is_found() {
        let (identity, data) = ([7; 32], [1_u8, 2, 3, 250].repeat(9));
        let file = [&header(&data, &identity)[..], &data].concat();
        assert_eq!(decode(&file, &identity).map(|data| data.bytes().to_vec()), Ok(data));
        for position in 0..file.len() {
            for bit in [1, 0x80] {
                let mut damaged = file.clone();
                damaged[position] ^= bit;
                assert!(decode(&damaged, &identity).is_err(), "bit {bit:x} of byte {position}");
            }
            assert!(decode(&file[..position], &identity).is_err(), "{position} bytes");
        }
        assert!(decode(&[&file[..], &[0]].concat(), &identity).is_err());
        assert!(decode(&file, &[8; 32]).is_err());
    }
}
