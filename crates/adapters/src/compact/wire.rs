//! Fields of a header: little-endian numbers, and texts with their length.

/// Fault of a header, as the end of a sentence about the file.
pub(super) type Fault = &'static str;

/// Reads fields from the beginning of bytes.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("its header is cut")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Fault> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of 32 bits that counts or measures something.
    pub(super) fn size(&mut self) -> Result<usize, Fault> {
        self.u32().map(|size| size as usize)
    }

    /// A text of at most `most` bytes.
    pub(super) fn text(&mut self, most: usize) -> Result<String, Fault> {
        let len = self.size()?;
        if len > most {
            return Err("a text in its header is too long");
        }
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| "a text in its header is not UTF-8")
    }
}

/// Appends fields.
#[derive(Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Puts a size; `None` beyond 32 bits.
    pub(super) fn size(&mut self, size: usize) -> Option<&mut Self> {
        Some(self.put(&u32::try_from(size).ok()?.to_le_bytes()))
    }

    pub(super) fn text(&mut self, text: &str) -> Option<&mut Self> {
        Some(self.size(text.len())?.put(text.as_bytes()))
    }
}
