//! Encoding and verification of whole entries, the same for every storage and transport.

use sha2::{Digest, Sha256};

use super::entry::{self, EntryHeader, EntryId, Fault, Missing};
use super::folder_key::{FolderKey, Purpose, TAG_BYTES};
use crate::prefix::PrefixKey;

/// Block size of a deployment's entries, and the key that names and tags them.
///
/// An entry is a header ([`EntryHeader`]), a tag if there is a key, and the payload. All checks of
/// entries are made here: storages and transports move bytes and are not trusted.
///
/// ```
/// use ruvllm_kv_cache::prefix::store::EntryFormat;
/// use ruvllm_kv_cache::prefix::{FolderKey, PrefixKey, Scope};
///
/// # let key = PrefixKey {
/// #     model: [0; 32],
/// #     adapter: None,
/// #     kv_format: "f16".into(),
/// #     rope_scaling: "none".into(),
/// #     scope: Scope::Shared,
/// # };
/// let format = EntryFormat::new(4, Some(FolderKey::new(&[7; 32])?));
/// let place = format.places(&key, &[1, 2, 3, 4]).next().expect("one block");
/// let entry = format.encode(&place, &[b"keys", b"values"]);
/// let (_, payload) = format.verify(place.id(), &entry).expect("a sound entry");
/// assert_eq!(payload, b"keysvalues");
/// assert!(format.verify(place.id(), &entry[1..]).is_err());
/// # Ok::<(), ruvllm_kv_cache::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EntryFormat {
    block_tokens: usize,
    key: Option<FolderKey>,
}

impl EntryFormat {
    /// The format of blocks of `block_tokens` tokens; with a key, names and headers carry its tags.
    ///
    /// # Panics
    /// If `block_tokens` is zero.
    #[must_use]
    pub fn new(block_tokens: usize, key: Option<FolderKey>) -> Self {
        assert!(block_tokens > 0, "a block has at least one token");
        Self { block_tokens, key }
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// The key of the entries.
    #[must_use]
    pub fn key(&self) -> Option<&FolderKey> {
        self.key.as_ref()
    }

    /// Bytes of an entry before its payload: the header, and the tag if there is a key.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        EntryHeader::bytes(self.block_tokens) + if self.key.is_some() { TAG_BYTES } else { 0 }
    }

    /// The places of the whole blocks of `tokens`, from the first on.
    pub fn places(&self, key: &PrefixKey, tokens: &[u32]) -> impl Iterator<Item = Missing> {
        entry::places(self.digest_of(key), tokens, self.block_tokens)
    }

    /// The names of the whole blocks of `tokens`, from the first on.
    pub fn ids(&self, key: &PrefixKey, tokens: &[u32]) -> impl Iterator<Item = EntryId> {
        entry::chain(self.digest_of(key), tokens, self.block_tokens).map(|(_, id)| id)
    }

    /// Header of an entry with its tag: the entry but for its payload.
    #[must_use]
    pub fn encode_header(&self, block: &Missing, payload: &[&[u8]]) -> Vec<u8> {
        let mut hash = Sha256::new();
        payload.iter().for_each(|part| hash.update(part));
        let payload_bytes = payload.iter().map(|part| part.len() as u64).sum();
        let mut encoded = block.header(payload_bytes, hash.finalize().into()).encode();
        if let Some(key) = &self.key {
            encoded.extend(key.tag(Purpose::Entry, &encoded));
        }
        encoded
    }

    /// A whole entry.
    #[must_use]
    pub fn encode(&self, block: &Missing, payload: &[&[u8]]) -> Vec<u8> {
        let mut entry = self.encode_header(block, payload);
        payload.iter().for_each(|part| entry.extend_from_slice(part));
        entry
    }

    /// Verifies an entry but for its payload. `head`: its first bytes, at least
    /// [`header_bytes`](Self::header_bytes) of them unless it is shorter; `entry_bytes`: its size.
    ///
    /// # Errors
    /// The first fault of format, name, tag and length.
    pub fn verify_header(&self, id: EntryId, head: &[u8], entry_bytes: u64) -> Result<EntryHeader, Fault> {
        let head = &head[..head.len().min(self.header_bytes())];
        let header = EntryHeader::parse(head)?;
        // The name is a hash over key, place and tokens: a header with this name has the right
        // ones.
        if header.id() != id {
            return Err(Fault::Foreign);
        }
        if let Some(key) = &self.key {
            let (header, tag) = head.split_at(EntryHeader::bytes(header.tokens.len()));
            if !key.verify(Purpose::Entry, header, tag) {
                return Err(Fault::Tag);
            }
        }
        let expected = (self.header_bytes() as u64).saturating_add(header.payload_bytes);
        if entry_bytes != expected {
            return Err(Fault::Length { expected, found: entry_bytes });
        }
        Ok(header)
    }

    /// Verifies a whole entry; its header and its payload.
    ///
    /// # Errors
    /// The first fault of format, name, tag, length and checksum.
    pub fn verify<'e>(&self, id: EntryId, entry: &'e [u8]) -> Result<(EntryHeader, &'e [u8]), Fault> {
        let header = self.verify_header(id, entry, entry.len() as u64)?;
        let payload = &entry[self.header_bytes()..];
        if Sha256::digest(payload)[..] != header.payload_sha256 {
            return Err(Fault::Checksum);
        }
        Ok((header, payload))
    }

    /// The digest that names are made of: with a key, nobody else can make it.
    fn digest_of(&self, key: &PrefixKey) -> [u8; 32] {
        let digest = key.digest();
        self.key.as_ref().map_or(digest, |key| key.tag(Purpose::Name, &digest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prefix::Scope;

    fn key() -> PrefixKey {
        PrefixKey {
            model: [1; 32],
            adapter: None,
            kv_format: "f16".into(),
            rope_scaling: "none".into(),
            scope: Scope::Shared,
        }
    }

    fn formats() -> [EntryFormat; 2] {
        [None, Some(FolderKey::new(&[7; 32]).expect("a key"))].map(|key| EntryFormat::new(4, key))
    }

    #[test]
    fn entries_of_other_places_keys_and_formats_are_refused() {
        let [plain, tagged] = formats();
        for format in [&plain, &tagged] {
            let places: Vec<Missing> = format.places(&key(), &[1, 2, 3, 4, 5, 6, 7, 8]).collect();
            assert!(format.ids(&key(), &[1, 2, 3, 4, 5, 6, 7, 8]).eq(places.iter().map(Missing::id)));
            let entry = format.encode(&places[0], &[b"pay", b"load"]);
            assert_eq!(format.verify(places[0].id(), &entry).expect("sound").1, b"payload");
            assert!(matches!(format.verify(places[1].id(), &entry), Err(Fault::Foreign)));
        }
        let other = EntryFormat::new(4, Some(FolderKey::new(&[8; 32]).expect("a key")));
        let place = tagged.places(&key(), &[1, 2, 3, 4]).next().expect("a place");
        // Another key with the same name: made by who has seen the name.
        let forged = other.encode(&place, &[b"payload"]);
        assert!(matches!(tagged.verify(place.id(), &forged), Err(Fault::Tag)));
        let untagged = plain.encode(&place, &[b"payload"]);
        assert!(matches!(tagged.verify(place.id(), &untagged), Err(Fault::Tag)));
        assert_eq!(plain.header_bytes() + TAG_BYTES, tagged.header_bytes());
    }

    proptest! {
        #[test]
        fn a_changed_entry_is_never_sound(at in 0_usize..500, change in 1_u8.., cut in 0_usize..500) {
            for format in formats() {
                let place = format.places(&key(), &[1, 2, 3, 4]).next().expect("a place");
                let sound = format.encode(&place, &[&[9; 100]]);
                let mut changed = sound.clone();
                let at = at % sound.len();
                changed[at] ^= change;
                // Without a key nobody vouches for the payload's own checksum, but both must agree.
                prop_assert!(format.verify(place.id(), &changed).is_err());
                let cut = cut % sound.len();
                prop_assert!(format.verify(place.id(), &sound[..cut]).is_err());
                let longer = [&sound[..], &[0]].concat();
                prop_assert!(format.verify(place.id(), &longer).is_err());
            }
        }
    }
}
