//! Header parser for bytes in memory and for streams; checks the whole header.
//!
//! The input is untrusted. Memory for a count is allocated only if the rest of the file can hold
//! it, and all arithmetic is checked.

use std::{
    io::{BufReader, ErrorKind, Read, Seek, SeekFrom},
    mem,
};

use crate::{
    TensorType,
    error::{Error, Field, Place, Result},
    format::{
        ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_ARRAY_DEPTH, MAX_DIMS, MAX_HEADER_BYTES, MAX_KEY_BYTES,
        MAX_NAME_BYTES, align_up, alignment_of,
    },
    header::{Header, TensorInfo, check_name},
    layout,
    metadata::Metadata,
    value::{Array, Value, ValueType},
};

/// Smallest metadata entry in bytes: key length, value type, a one-byte value.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;

/// Smallest tensor entry in bytes: name length, dimension count, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// Largest reservation at a time of items that are larger in memory than in the file.
const RESERVE_ITEMS: usize = 64;

/// Bytes of numbers read from the input at a time.
const SCRATCH_BYTES: usize = 8192;

impl Header {
    /// Parses the header of a file in memory.
    ///
    /// # Errors
    /// If the bytes are not a well-formed file, or do not hold all tensor data.
    pub fn parse(file: &[u8]) -> Result<Self> {
        parse(file, file.len() as u64)
    }

    /// Reads the header of a file from a stream, from its start regardless of its position.
    ///
    /// Buffers internally. The stream's length decides whether the tensor data are complete.
    ///
    /// # Errors
    /// If the stream fails, is not a well-formed file, or does not hold all tensor data.
    pub fn read(file: &mut (impl Read + Seek)) -> Result<Self> {
        let len = file
            .seek(SeekFrom::End(0))
            .and_then(|len| file.seek(SeekFrom::Start(0)).map(|_| len))
            .map_err(|source| Error::Read { place: Place::of("length of the file"), source })?;
        parse(BufReader::with_capacity(64 * 1024, file), len)
    }
}

/// Reads a header from `input`, the first byte of a file that is `file_len` bytes long.
fn parse(input: impl Read, file_len: u64) -> Result<Header> {
    let mut cursor = Cursor {
        input,
        position: 0,
        limit: file_len.min(MAX_HEADER_BYTES),
        file_len,
        scratch: vec![0; SCRATCH_BYTES],
    };
    let magic: [u8; 4] = cursor.bytes(Field::File("magic"))?;
    if magic != MAGIC {
        return Err(Error::BadMagic { found: magic });
    }
    let version = cursor.u32(Field::File("version"))?;
    check_version(version)?;
    let n_tensors_at = cursor.position;
    let n_tensors = cursor.u64(Field::File("tensor count"))?;
    let n_entries = cursor.count(MIN_ENTRY_BYTES, Field::File("metadata count"))?;
    cursor.bound(n_tensors, MIN_TENSOR_BYTES, n_tensors_at, Field::File("tensor count"))?;

    let (metadata, alignment) = cursor.metadata(n_entries as u64)?;
    let n_tensors = cursor.bound(n_tensors, MIN_TENSOR_BYTES, n_tensors_at, Field::File("tensor count"))?;
    let mut tensors = Vec::with_capacity(n_tensors.min(RESERVE_ITEMS));
    let mut positions = Vec::with_capacity(n_tensors.min(RESERVE_ITEMS));
    for index in 0..n_tensors as u64 {
        positions.push(cursor.position);
        tensors.push(cursor.tensor(index, alignment)?);
    }

    // The position is below MAX_HEADER_BYTES and the alignment below 2^32, so this always succeeds.
    let data_offset = align_up(cursor.position, alignment).unwrap_or(u64::MAX);
    layout::check(&tensors, &positions, data_offset, file_len)?;
    Ok(Header { version, alignment, metadata, tensors, data_offset })
}

fn check_version(version: u32) -> Result<()> {
    match version {
        2 | 3 => Ok(()),
        _ if (1..=99).contains(&version.swap_bytes()) => {
            Err(Error::BigEndian { version: version.swap_bytes() })
        }
        _ => Err(Error::UnsupportedVersion { version }),
    }
}

/// A position in the input, and what may still be read.
struct Cursor<R> {
    input: R,
    position: u64,
    /// End of reading: the end of the file or the largest header, whichever comes first.
    limit: u64,
    file_len: u64,
    /// Space for numbers on their way into an array; kept, because a file can hold millions of tiny
    /// arrays.
    scratch: Vec<u8>,
}

impl<R: Read> Cursor<R> {
    fn remaining(&self) -> u64 {
        self.limit - self.position
    }

    /// Fills `out` from the input.
    fn fill(&mut self, out: &mut [u8], field: Field<'_>) -> Result<()> {
        let needed = out.len() as u64;
        if needed > self.remaining() {
            return Err(self.too_short(needed, field));
        }
        self.input.read_exact(out).map_err(|source| match source.kind() {
            // The file has become shorter since its length was taken.
            ErrorKind::UnexpectedEof => {
                Error::Truncated { place: Place::at(self.position, field), needed, available: 0 }
            }
            _ => Error::Read { place: Place::at(self.position, field), source },
        })?;
        self.position += needed;
        Ok(())
    }

    fn too_short(&self, needed: u64, field: Field<'_>) -> Error {
        let place = Place::at(self.position, field);
        if self.limit < self.file_len {
            Error::HeaderTooLarge { place, limit: self.limit }
        } else {
            Error::Truncated { place, needed, available: self.remaining() }
        }
    }

    fn bytes<const N: usize>(&mut self, field: Field<'_>) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, field)?;
        Ok(bytes)
    }

    fn u32(&mut self, field: Field<'_>) -> Result<u32> {
        self.bytes(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: Field<'_>) -> Result<u64> {
        self.bytes(field).map(u64::from_le_bytes)
    }

    /// Reads a count of items that take at least `min_bytes` each.
    fn count(&mut self, min_bytes: u64, field: Field<'_>) -> Result<usize> {
        let at = self.position;
        let count = self.u64(field)?;
        self.bound(count, min_bytes, at, field)
    }

    /// A count read at `at`, if the rest of the file can hold that many items of `min_bytes`.
    fn bound(&self, count: u64, min_bytes: u64, at: u64, field: Field<'_>) -> Result<usize> {
        let limit = self.remaining() / min_bytes;
        let too_large = || Error::CountTooLarge { place: Place::at(at, field), count, limit };
        if count > limit {
            return Err(too_large());
        }
        usize::try_from(count).map_err(|_| too_large())
    }

    /// Reads a string of at most `limit` bytes.
    fn string(&mut self, limit: u64, field: Field<'_>) -> Result<String> {
        let at = self.position;
        let len = self.u64(field)?;
        let limit = limit.min(self.remaining());
        let too_long = || Error::StringTooLong { place: Place::at(at, field), len, limit };
        if len > limit {
            return Err(too_long());
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| too_long())?];
        let start = self.position;
        self.fill(&mut bytes, field)?;
        String::from_utf8(bytes).map_err(|e| Error::InvalidUtf8 {
            place: Place::at(start + e.utf8_error().valid_up_to() as u64, field),
        })
    }

    /// Reads all metadata; also answers the alignment that it sets.
    fn metadata(&mut self, n_entries: u64) -> Result<(Metadata, u64)> {
        let mut metadata = Metadata::new();
        let mut alignment = DEFAULT_ALIGNMENT;
        for index in 0..n_entries {
            let key_at = self.position;
            let key = self.string(MAX_KEY_BYTES, Field::Entry(index, "key"))?;
            if key.is_empty() {
                return Err(Error::EmptyName { place: Place::at(key_at, Field::Entry(index, "key")) });
            }
            if metadata.contains(&key) {
                return Err(Error::DuplicateKey { place: Place::at(key_at, Field::Key(&key, "key")) });
            }
            let value_type = self.value_type(Field::Key(&key, "value type"))?;
            let value_at = self.position;
            let field = Field::Key(&key, "value");
            let value = self.value(value_type, field)?;
            if key == ALIGNMENT_KEY {
                alignment = alignment_of(&value, || Place::at(value_at, field))?;
            }
            metadata.insert(key, value);
        }
        Ok((metadata, alignment))
    }

    fn value_type(&mut self, field: Field<'_>) -> Result<ValueType> {
        let at = self.position;
        let tag = self.u32(field)?;
        ValueType::from_tag(tag).ok_or_else(|| Error::UnknownValueType { place: Place::at(at, field), tag })
    }

    fn value(&mut self, value_type: ValueType, field: Field<'_>) -> Result<Value> {
        Ok(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.bytes(field)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.bytes(field)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.bytes(field)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.bytes(field)?)),
            ValueType::U32 => Value::U32(self.u32(field)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.bytes(field)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.bytes(field)?)),
            ValueType::Bool => {
                let at = self.position;
                let [byte] = self.bytes(field)?;
                Value::Bool(boolean(byte, at, field)?)
            }
            ValueType::String => Value::String(self.string(u64::MAX, field)?),
            ValueType::Array => Value::Array(self.array(1, field)?),
            ValueType::U64 => Value::U64(self.u64(field)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.bytes(field)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.bytes(field)?)),
        })
    }

    /// Reads an array at nesting depth `depth`; recursion ends at the depth limit.
    fn array(&mut self, depth: usize, field: Field<'_>) -> Result<Array> {
        if depth > MAX_ARRAY_DEPTH {
            let place = Place::at(self.position, field);
            return Err(Error::ArrayTooDeep { place, limit: MAX_ARRAY_DEPTH });
        }
        let element_type = self.value_type(field)?;
        let n = self.count(element_type.min_bytes(), field)?;
        Ok(match element_type {
            ValueType::U8 => Array::U8(self.numbers(n, field, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.numbers(n, field, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.numbers(n, field, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.numbers(n, field, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.numbers(n, field, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.numbers(n, field, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.numbers(n, field, f32::from_le_bytes)?),
            ValueType::Bool => {
                let start = self.position;
                let bytes = self.numbers(n, field, u8::from_le_bytes)?;
                Array::Bool((start..).zip(bytes).map(|(at, b)| boolean(b, at, field)).collect::<Result<_>>()?)
            }
            ValueType::String => Array::String(self.items(n, |c| c.string(u64::MAX, field))?),
            ValueType::Array => Array::Array(self.items(n, |c| c.array(depth + 1, field))?),
            ValueType::U64 => Array::U64(self.numbers(n, field, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.numbers(n, field, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.numbers(n, field, f64::from_le_bytes)?),
        })
    }

    /// Reads `n` numbers of `N` bytes, many at a time. The caller has bounded `n` by the rest of
    /// the file.
    fn numbers<T, const N: usize>(
        &mut self,
        n: usize,
        field: Field<'_>,
        from_le: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(n);
        // Taken out, so that it can be filled while `self` reads; after an error nothing is read
        // any more.
        let mut scratch = mem::take(&mut self.scratch);
        while out.len() < n {
            let take = (n - out.len()).min(scratch.len() / N);
            let chunk = &mut scratch[..take * N];
            self.fill(chunk, field)?;
            out.extend(chunk.as_chunks::<N>().0.iter().map(|&bytes| from_le(bytes)));
        }
        self.scratch = scratch;
        Ok(out)
    }

    /// Reads `n` items of varying size.
    fn items<T>(&mut self, n: usize, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(n.min(RESERVE_ITEMS));
        for _ in 0..n {
            out.push(read(self)?);
        }
        Ok(out)
    }

    /// Reads one tensor entry.
    fn tensor(&mut self, index: u64, alignment: u64) -> Result<TensorInfo> {
        let name_at = self.position;
        let name = self.string(MAX_NAME_BYTES, Field::Tensor(index, "name"))?;
        check_name(&name, Some(name_at))?;
        let n_dims_at = self.position;
        let n_dims = self.u32(Field::Named(&name, "dimension count"))?;
        if n_dims as usize > MAX_DIMS {
            let place = Place::at(n_dims_at, Field::Named(&name, "dimension count"));
            return Err(Error::TooManyDims { place, n_dims: n_dims.into(), limit: MAX_DIMS });
        }
        let dims_at = self.position;
        let dims = self.numbers(n_dims as usize, Field::Named(&name, "dimensions"), u64::from_le_bytes)?;
        let tensor_type = self.tensor_type(&name)?;
        let offset_at = self.position;
        let offset = self.u64(Field::Named(&name, "offset"))?;
        let tensor = TensorInfo::located(name, dims, tensor_type, offset, Some(dims_at))?;
        if !offset.is_multiple_of(alignment) {
            let place = Place::at(offset_at, Field::Named(&tensor.name, "offset"));
            return Err(Error::MisalignedTensor { place, data_offset: offset, alignment });
        }
        Ok(tensor)
    }

    fn tensor_type(&mut self, name: &str) -> Result<TensorType> {
        let field = Field::Named(name, "type");
        let at = self.position;
        let tag = self.u32(field)?;
        TensorType::from_tag(tag).ok_or_else(|| {
            let place = Place::at(at, field);
            match TensorType::removed_name(tag) {
                Some(name) => Error::RemovedTensorType { place, tag, name },
                None => Error::UnknownTensorType { place, tag },
            }
        })
    }
}

fn boolean(byte: u8, at: u64, field: Field<'_>) -> Result<bool> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(Error::BadBool { place: Place::at(at, field), value }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(input: &[u8], limit: u64) -> Cursor<&[u8]> {
        Cursor { input, position: 0, limit, file_len: input.len() as u64, scratch: vec![0; 8] }
    }

    #[test]
    fn the_end_of_the_largest_header_is_told_from_the_end_of_the_file() {
        let field = Field::File("test");
        let bytes = [0; 12];
        let mut limited = cursor(&bytes, 6);
        assert_eq!(limited.u32(field).expect("inside the limit"), 0);
        assert!(matches!(limited.u32(field), Err(Error::HeaderTooLarge { limit: 6, .. })));
        let mut whole = cursor(&bytes, 12);
        assert_eq!(whole.u64(field).expect("inside the file"), 0);
        assert!(matches!(whole.u64(field), Err(Error::Truncated { needed: 8, available: 4, .. })));
    }

    #[test]
    fn counts_are_bounded_by_what_is_left() {
        let field = Field::File("test");
        let file = [&3u64.to_le_bytes()[..], &[0; 11]].concat();
        assert!(matches!(
            cursor(&file, 19).count(4, field),
            Err(Error::CountTooLarge { count: 3, limit: 2, place }) if place.offset == Some(0)
        ));
        assert_eq!(cursor(&file, 19).count(3, field).expect("three of three bytes"), 3);
    }

    #[test]
    fn numbers_longer_than_the_scratch_space_are_complete() {
        let file: Vec<u8> = (0..30).collect();
        let numbers =
            cursor(&file, 30).numbers(15, Field::File("test"), u16::from_le_bytes).expect("numbers");
        assert_eq!(numbers, (0..15).map(|i| 0x0100 + 0x0202 * i).collect::<Vec<u16>>());
    }

    #[test]
    fn versions() {
        assert!(check_version(2).is_ok() && check_version(3).is_ok());
        assert!(matches!(check_version(3 << 24), Err(Error::BigEndian { version: 3 })));
        for version in [0, 1, 4, u32::MAX] {
            assert!(matches!(check_version(version), Err(Error::UnsupportedVersion { .. })));
        }
    }
}
