//! The file of one block: its name and its header.

use std::{fmt, io};

use sha2::{Digest, Sha256};

/// Version of the file format. Part of every entry's name, so versions share a folder without
/// meeting.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"KVPREFIX";

/// Names a block by everything that its keys and values depend on: SHA-256 over the format version,
/// the key, the name of the block before it, and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub(super) [u8; 32]);

impl EntryId {
    /// Stands for the block before the first.
    pub const START: Self = Self([0; 32]);

    /// The id of 64 hexadecimal digits in lower case, as it is displayed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (digits, []) = text.as_bytes().as_chunks::<2>() else { return None };
        let mut bytes = [0; 32];
        if digits.len() != bytes.len() {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        for (byte, &[high, low]) in bytes.iter_mut().zip(digits) {
            *byte = value(high)? << 4 | value(low)?;
        }
        Some(Self(bytes))
    }
}

/// In hexadecimal digits, as in the name of the file.
impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Name of an entry in a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName {
    /// The entry.
    pub id: EntryId,
    /// Index of its block in the prefix. A storage without times of use keeps it, to delete the
    /// ends of prefixes first.
    pub index: u32,
}

impl EntryName {
    pub(super) fn new(id: EntryId, index: usize) -> Self {
        Self { id, index: u32::try_from(index).unwrap_or(u32::MAX) }
    }
}

/// Fault of an entry's file or object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The system or the server refused to open or read it, or did not answer.
    #[error("cannot be read ({0})")]
    Unreadable(io::Error),
    /// The name is that of a link, a pipe, a folder or a device.
    #[error("not a regular file")]
    NotRegular,
    /// The file does not begin as an entry does.
    #[error("not a stored prefix")]
    Magic,
    /// The file has a format that this version does not read.
    #[error("format version {found}, not {FORMAT_VERSION}")]
    Version {
        /// The version it states.
        found: u32,
    },
    /// The file is shorter or longer than it says.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Bytes that the header announces, or that a header takes.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The header is of another model, tenant, format, prefix or block than the file's name.
    #[error("holds another prefix than its name says")]
    Foreign,
    /// The tag of the folder's key is missing, or of another key or header.
    #[error("has no tag of the folder's key")]
    Tag,
    /// The payload is not what was written.
    #[error("the checksum of the payload is wrong")]
    Checksum,
}

/// Header of an entry's file. All numbers are little-endian:
///
/// | bytes | field |
/// |---|---|
/// | 8 | `KVPREFIX` |
/// | 4 | format version |
/// | 4 | number of tokens |
/// | 32 | digest of the [`PrefixKey`](crate::prefix::PrefixKey) |
/// | 32 | [`EntryId`] of the block before, or zeros |
/// | 8 | bytes of payload |
/// | 32 | SHA-256 of the payload |
/// | 4 each | tokens |
///
/// In a folder with a [`FolderKey`](crate::prefix::FolderKey) the digest of the key is a tag of it
/// ([`Purpose::Name`](crate::prefix::Purpose)), and the header is followed by the 32 bytes of its
/// own tag ([`Purpose::Entry`](crate::prefix::Purpose)).
///
/// A parsed header may state anything; only [`id`](Self::id) ties it to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    /// Digest of the key.
    pub key: [u8; 32],
    /// The block before this one, or [`EntryId::START`].
    pub parent: EntryId,
    /// Size of the payload.
    pub payload_bytes: u64,
    /// SHA-256 of the payload.
    pub payload_sha256: [u8; 32],
    /// The block's tokens.
    pub tokens: Vec<u32>,
}

impl EntryHeader {
    /// Bytes of a header before its tokens.
    pub const FIXED_BYTES: usize = 8 + 4 + 4 + 32 + 32 + 8 + 32;

    /// Bytes of a header with `n_tokens` tokens.
    #[must_use]
    pub const fn bytes(n_tokens: usize) -> usize {
        Self::FIXED_BYTES + n_tokens * size_of::<u32>()
    }

    /// The name that an entry with this header has.
    #[must_use]
    pub fn id(&self) -> EntryId {
        entry_id(&self.key, self.parent, &self.tokens)
    }

    /// The header's bytes.
    ///
    /// # Panics
    /// If there are more than 2^32 tokens.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let n_tokens = u32::try_from(self.tokens.len()).expect("a block has fewer than 2^32 tokens");
        let mut bytes = Vec::with_capacity(Self::bytes(self.tokens.len()));
        bytes.extend(MAGIC);
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(n_tokens.to_le_bytes());
        bytes.extend(self.key);
        bytes.extend(self.parent.0);
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes.extend(self.payload_sha256);
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// Reads a header from the start of `bytes`.
    ///
    /// # Errors
    /// If the bytes are too few or do not begin as a header of this version does.
    pub fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let mut rest = bytes;
        let mut header = || {
            if take(&mut rest)? != MAGIC {
                return Some(Err(Fault::Magic));
            }
            let version = u32::from_le_bytes(take(&mut rest)?);
            if version != FORMAT_VERSION {
                return Some(Err(Fault::Version { found: version }));
            }
            let n_tokens = u32::from_le_bytes(take(&mut rest)?);
            let key = take(&mut rest)?;
            let parent = EntryId(take(&mut rest)?);
            let payload_bytes = u64::from_le_bytes(take(&mut rest)?);
            let payload_sha256 = take(&mut rest)?;
            let tokens = rest.as_chunks().0.get(..n_tokens as usize);
            Some(match tokens {
                Some(tokens) => {
                    let tokens = tokens.iter().copied().map(u32::from_le_bytes).collect();
                    Ok(Self { key, parent, payload_bytes, payload_sha256, tokens })
                }
                None => {
                    let expected = Self::FIXED_BYTES as u64 + u64::from(n_tokens) * 4;
                    Err(Fault::Length { expected, found: bytes.len() as u64 })
                }
            })
        };
        let too_short = Fault::Length { expected: Self::FIXED_BYTES as u64, found: bytes.len() as u64 };
        header().unwrap_or(Err(too_short))
    }
}

/// The place of a block that is not stored: the inputs of its file's name, some hundred bytes. It
/// stays valid, so that the block can be written later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    index: usize,
    id: EntryId,
    key: [u8; 32],
    parent: EntryId,
    tokens: Vec<u32>,
}

impl Missing {
    /// Index of the block in its prefix.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The name of its entry in a storage.
    pub(super) fn name(&self) -> EntryName {
        EntryName::new(self.id, self.index)
    }

    /// The name that its entry will have.
    #[must_use]
    pub fn id(&self) -> EntryId {
        self.id
    }

    /// The block before it, without which it is not found; [`EntryId::START`] for the first.
    #[must_use]
    pub fn parent(&self) -> EntryId {
        self.parent
    }

    /// Header of its file.
    pub(super) fn header(&self, payload_bytes: u64, payload_sha256: [u8; 32]) -> EntryHeader {
        let Self { key, parent, .. } = *self;
        EntryHeader { key, parent, payload_bytes, payload_sha256, tokens: self.tokens.clone() }
    }
}

/// The places of the whole blocks of `tokens`.
pub(super) fn places(key: [u8; 32], tokens: &[u32], block_tokens: usize) -> impl Iterator<Item = Missing> {
    let blocks = tokens.chunks_exact(block_tokens).zip(chain(key, tokens, block_tokens)).enumerate();
    blocks.map(move |(index, (block, (parent, id)))| Missing {
        index,
        id,
        key,
        parent,
        tokens: block.to_vec(),
    })
}

/// Takes the first `N` bytes off `rest`.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

fn entry_id(key: &[u8; 32], parent: EntryId, tokens: &[u32]) -> EntryId {
    let mut hash = Sha256::new();
    hash.update(FORMAT_VERSION.to_le_bytes());
    hash.update(key);
    hash.update(parent.0);
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    EntryId(hash.finalize().into())
}

/// The ids of the whole blocks of `tokens`, each with the one before it.
pub(super) fn chain(
    key: [u8; 32],
    tokens: &[u32],
    block_tokens: usize,
) -> impl Iterator<Item = (EntryId, EntryId)> {
    tokens.chunks_exact(block_tokens).scan(EntryId::START, move |parent, block| {
        let before = *parent;
        *parent = entry_id(&key, before, block);
        Some((before, *parent))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> EntryHeader {
        EntryHeader {
            key: [1; 32],
            parent: EntryId([2; 32]),
            payload_bytes: 3,
            payload_sha256: [4; 32],
            tokens: vec![5, 6, 7],
        }
    }

    #[test]
    fn encoded_header_is_parsed() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), EntryHeader::bytes(3));
        assert_eq!(EntryHeader::parse(&bytes).expect("a header"), header());
        for end in 0..bytes.len() {
            let fault = EntryHeader::parse(&bytes[..end]).expect_err("a part of a header");
            assert!(matches!(fault, Fault::Length { found, .. } if found == end as u64));
        }
    }

    #[test]
    fn a_version_that_is_not_known_is_refused() {
        let mut bytes = header().encode();
        bytes[8] = 99;
        assert!(matches!(EntryHeader::parse(&bytes), Err(Fault::Version { found: 99 })));
        bytes[0] = 0;
        assert!(matches!(EntryHeader::parse(&bytes), Err(Fault::Magic)));
    }

    #[test]
    fn ids_tell_key_place_and_tokens_apart() {
        let base = header();
        let others = [
            EntryHeader { key: [9; 32], ..base.clone() },
            EntryHeader { parent: EntryId::START, ..base.clone() },
            EntryHeader { tokens: vec![5, 6, 8], ..base.clone() },
            EntryHeader { tokens: vec![5, 6], ..base.clone() },
        ];
        assert!(others.iter().all(|other| other.id() != base.id()));
        assert_eq!(EntryHeader { payload_sha256: [0; 32], ..base.clone() }.id(), base.id());
        let text = base.id().to_string();
        assert_eq!((text.len(), EntryId::parse(&text)), (64, Some(base.id())));
        for other in ["", &text[1..], &text[2..], &format!("{text}00"), &text.replace(char::is_numeric, "G")]
        {
            assert_eq!(EntryId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_header_of_a_place_has_its_name() {
        let tokens: Vec<u32> = (0..10).collect();
        let places: Vec<Missing> = places([1; 32], &tokens, 4).collect();
        assert_eq!(places.iter().map(Missing::index).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((places[0].parent(), places[1].parent()), (EntryId::START, places[0].id()));
        for place in places {
            assert_eq!(place.header(3, [4; 32]).id(), place.id());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = EntryHeader::parse(&bytes);
            let mut framed = header().encode();
            framed.truncate(12);
            framed.extend(bytes);
            if let Ok(parsed) = EntryHeader::parse(&framed) {
                let encoded = parsed.encode();
                prop_assert_eq!(&framed[..encoded.len()], encoded);
            }
        }
    }
}
