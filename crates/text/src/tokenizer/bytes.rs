//! The byte-level alphabet: a printable character for each of the 256 bytes.
//!
//! Source: the GPT-2 encoder. Bytes that are printable in Latin-1 map to themselves, the others, in
//! ascending order, to the characters from U+0100 on.

/// True if a byte maps to the character of the same code point.
const fn is_own_character(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut moved = 0;
    let mut byte = 0;
    while byte < 256 {
        chars[byte] = if is_own_character(byte as u8) {
            byte as u8 as char
        } else {
            moved += 1;
            match char::from_u32(255 + moved) {
                Some(c) => c,
                None => panic!("U+0100..U+0144 are characters"),
            }
        };
        byte += 1;
    }
    chars
};

/// Bytes of the characters below U+0144; `None` for those outside the alphabet.
const BYTES: [Option<u8>; 0x144] = {
    let mut bytes = [None; 0x144];
    let mut byte = 0;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    bytes
};

/// Character that stands for a byte.
pub(crate) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// Byte that a character stands for.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    BYTES.get(c as usize).copied().flatten()
}

/// Bytes that a token text stands for; `None` if a character is outside the alphabet.
pub(crate) fn to_bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

/// Parses a byte token such as `<0x0A>`; `None` for any other text.
#[must_use]
pub fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` accepts a sign.
    (digits.len() == 2 && !digits.starts_with('+')).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xAD), 'Ń');
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(byte_of('▁'), None);
    }

    #[test]
    fn token_texts_become_bytes() {
        assert_eq!(to_bytes("Ġhello").as_deref(), Some(b" hello".as_slice()));
        assert_eq!(to_bytes("a b"), None);
    }
}
