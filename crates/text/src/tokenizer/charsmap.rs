//! Normalization table of a `SentencePiece` model (`tokenizer.ggml.precompiled_charsmap`). It has
//! character sequences and their replacements.
//!
//! The table is a double-array trie (darts-clone) over bytes; its values are offsets into a list of
//! zero-terminated texts. Files are untrusted: every step stays within the table, and a walk has a
//! length limit.

/// Longest sequence that is looked up, in bytes; Unicode's normal forms need less than 32.
const LONGEST_KEY: usize = 64;

/// Table of replacements.
#[derive(Debug, Clone)]
pub(crate) struct CharacterMap {
    units: Vec<u32>,
    /// Replacement texts, each terminated by a zero byte.
    texts: String,
}

impl CharacterMap {
    /// Parses the table; `None` if it is malformed. The layout is the trie's size in bytes (32
    /// bits, little-endian), the trie, the texts.
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        let (size, rest) = bytes.split_first_chunk::<4>()?;
        let (trie, texts) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
        let (units, odd) = trie.as_chunks::<4>();
        let texts = std::str::from_utf8(texts).ok()?;
        let is_whole = odd.is_empty() && !units.is_empty() && texts.ends_with('\0');
        is_whole.then(|| Self {
            units: units.iter().map(|&unit| u32::from_le_bytes(unit)).collect(),
            texts: texts.to_owned(),
        })
    }

    /// Longest sequence at the start of `text` with a replacement: its length in bytes and the
    /// replacement.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut at = offset(*self.units.first()?);
        let mut found = None;
        for (i, &byte) in text.as_bytes().iter().take(LONGEST_KEY).enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            if byte == 0 || label(unit) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if has_leaf(unit) && text.is_char_boundary(i + 1) {
                found = self.units.get(at).map(|&leaf| (i + 1, leaf & 0x7FFF_FFFF)).or(found);
            }
        }
        let (len, start) = found?;
        let text = self.texts.get(start as usize..)?;
        Some((len, &text[..text.find('\0')?]))
    }

    /// Calls `part` with the pieces of the normalized text, in order.
    pub(crate) fn normalize(&self, text: &str, part: &mut impl FnMut(&str)) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (len, replacement) =
                self.longest(rest).unwrap_or((first.len_utf8(), &rest[..first.len_utf8()]));
            part(replacement);
            rest = &rest[len..];
        }
    }
}

/// Offset of a node's children, combined with their byte by XOR.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

/// Byte that leads to a node; values have a bit that no byte has.
fn label(unit: u32) -> u32 {
    unit & (1 << 31 | 0xFF)
}

/// True if a sequence ends at a node.
fn has_leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table of the sequences `a` (replaced by `x`), `ab` (by nothing) and `é` (by `e`), laid out
    /// by hand: the root's children are at 256 ^ byte, those of `a` at 512 ^ byte, those of 0xC3 at
    /// 768 ^ byte; leaves are at index 0 of their node's children.
    fn table() -> Vec<u8> {
        let mut units = vec![0u32; 2048];
        let node = |byte: u8, at: usize, children: usize, leaf: bool| {
            ((at ^ children) as u32) << 10 | u32::from(leaf) << 8 | u32::from(byte)
        };
        let leaf = |offset: u32| 1 << 31 | offset;
        units[0] = 256 << 10;
        let a = 256 ^ usize::from(b'a');
        units[a] = node(b'a', a, 512, true);
        units[512] = leaf(0);
        let b = 512 ^ usize::from(b'b');
        units[b] = node(b'b', b, 1024, true);
        units[1024] = leaf(2);
        let c3 = 256 ^ 0xC3;
        units[c3] = node(0xC3, c3, 768, false);
        let a9 = 768 ^ 0xA9;
        units[a9] = node(0xA9, a9, 1536, true);
        units[1536] = leaf(3);
        let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(b"x\0\0e\0");
        bytes
    }

    fn normalized(map: &CharacterMap, text: &str) -> String {
        let mut out = String::new();
        map.normalize(text, &mut |part| out.push_str(part));
        out
    }

    #[test]
    fn the_longest_sequence_is_replaced() {
        let map = CharacterMap::new(&table()).unwrap();
        assert_eq!(normalized(&map, "aab ba é ä\0a"), "x bx e ä\0x");
        assert_eq!(normalized(&map, ""), "");
    }

    #[test]
    fn malformed_tables_are_refused() {
        let whole = table();
        for len in [0, 3, 4, 100, whole.len() - 5, whole.len() - 1] {
            assert!(CharacterMap::new(&whole[..len]).is_none(), "{len}");
        }
        for size in [0u32, 3, 8193, u32::MAX] {
            let mut wrong = whole.clone();
            wrong[..4].copy_from_slice(&size.to_le_bytes());
            assert!(CharacterMap::new(&wrong).is_none(), "{size}");
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_tables_stay_within_bounds(
            changes in proptest::collection::vec((4usize..8192, proptest::prelude::any::<u8>()), 1..200),
        ) {
            let mut bytes = table();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Some(map) = CharacterMap::new(&bytes) {
                normalized(&map, "aab ba é ä\0a 你好 \u{10ffff}");
            }
        }
    }
}
