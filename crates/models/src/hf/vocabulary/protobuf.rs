//! As much of the Protocol Buffers wire format as a `tokenizer.model` needs: its fields, one after
//! the other.
//!
//! Source: the "Encoding" page of the Protocol Buffers documentation.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    /// A string, bytes, or a message.
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message with their numbers; `None` once, where the bytes are no message, and
/// then nothing more.
pub(super) struct Message<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn read_field(&mut self) -> Option<(u32, Field<'a>)> {
        let key = self.read_varint()?;
        let number = u32::try_from(key >> 3).ok()?;
        let field = match key & 7 {
            0 => Field::Varint(self.read_varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(*self.take(8)?.first_chunk()?)),
            2 => {
                let len = usize::try_from(self.read_varint()?).ok()?;
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(*self.take(4)?.first_chunk()?)),
            _ => return None,
        };
        Some((number, field))
    }

    /// Seven bits per byte, the lowest first; the highest bit says that more follow.
    fn read_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = Option<(u32, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read_field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_all_kinds_are_read() {
        let bytes =
            [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1D, 0, 0, 0x80, 0x3F, 0x21, 1, 0, 0, 0, 0, 0, 0, 0];
        let fields: Vec<_> = Message::new(&bytes).collect();
        assert_eq!(
            fields,
            [
                Some((1, Field::Varint(150))),
                Some((2, Field::Bytes(b"hi"))),
                Some((3, Field::Fixed32(1.0_f32.to_bits()))),
                Some((4, Field::Fixed64(1))),
            ]
        );
    }

    #[test]
    fn damage_ends_the_message() {
        for bytes in [
            &[0x08][..],
            &[0x12, 5, 1],
            &[0x0B],
            &[0x1D, 0],
            &[0xFF; 12],
            &[0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F],
        ] {
            assert_eq!(Message::new(bytes).collect::<Vec<_>>(), [None], "{bytes:?}");
        }
    }
}
