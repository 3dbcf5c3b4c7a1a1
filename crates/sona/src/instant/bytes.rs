//! Reader of the bytes of a snapshot, which may be anything.

use crate::error::{Error, Result};

/// Sizes that do not fit the bytes.
pub(crate) const TOO_LARGE: Error = Error::Snapshot { reason: "it is cut off, or its sizes are wrong" };

/// Bytes that were not read yet.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(TOO_LARGE)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// A whole number.
    pub(crate) fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| TOO_LARGE)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Token ids.
    pub(crate) fn tokens(&mut self, count: usize) -> Result<Vec<u32>> {
        let bytes = self.take(count.checked_mul(4).ok_or(TOO_LARGE)?)?;
        Ok(bytes.as_chunks().0.iter().map(|&four| u32::from_le_bytes(four)).collect())
    }

    /// Finite numbers.
    pub(crate) fn floats(&mut self, count: usize) -> Result<Vec<f32>> {
        let values = self.any_floats(count)?;
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(Error::Snapshot { reason: "a number is not finite" }),
        }
    }

    /// Numbers that may be infinite.
    pub(crate) fn any_floats(&mut self, count: usize) -> Result<Vec<f32>> {
        Ok(self.tokens(count)?.into_iter().map(f32::from_bits).collect())
    }
}
