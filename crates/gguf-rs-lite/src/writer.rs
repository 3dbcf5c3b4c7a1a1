//! Streaming writer of version 3 files: tensors are declared first, then their data follow in that
//! order.

use std::io::{self, Read, Write};

use crate::{
    error::{Error, Field, Place, Result},
    format::{
        ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_ARRAY_DEPTH, MAX_HEADER_BYTES, MAX_KEY_BYTES,
        WRITTEN_VERSION, align_up, alignment_of,
    },
    header::{TensorInfo, check_name},
    layout,
    metadata::Metadata,
    value::{Array, Value},
};

/// Streaming writer of one file.
///
/// The header is written first; then the data of each tensor in the declared order, whole or in
/// chunks of any size, so that no two tensors need to be in memory at once. [`Writer::finish`]
/// fails while data are missing.
///
/// ```
/// use gguf_rs_lite::{Gguf, Metadata, TensorInfo, TensorType, Writer};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", "llama");
/// let tensors = [TensorInfo::new("output_norm.weight", [4], TensorType::F32)?];
///
/// let mut writer = Writer::new(Vec::new(), &metadata, tensors)?;
/// for value in [1.0f32, 2.0, 3.0, 4.0] {
///     writer.write_chunk(&value.to_le_bytes())?;
/// }
/// let file: Vec<u8> = writer.finish()?;
///
/// assert_eq!(Gguf::from_owner(file)?.data("output_norm.weight")?.len(), 16);
/// # Ok::<(), gguf_rs_lite::Error>(())
/// ```
#[derive(Debug)]
pub struct Writer<W> {
    out: Counted<W>,
    tensors: Vec<TensorInfo>,
    alignment: u64,
    /// Index of the tensor that takes the next byte; never one without bytes.
    next: usize,
    /// Bytes that tensor already has.
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header and declares the tensors, assigning their offsets.
    ///
    /// Makes many small writes: use a buffered sink.
    ///
    /// The alignment is that of `general.alignment` in the metadata, or [`DEFAULT_ALIGNMENT`].
    ///
    /// # Errors
    /// If a key, name, shape, array or alignment is not allowed by the format, if two tensors have
    /// the same name, if the header exceeds [`MAX_HEADER_BYTES`], or if the sink fails.
    pub fn new(out: W, metadata: &Metadata, tensors: impl IntoIterator<Item = TensorInfo>) -> Result<Self> {
        let alignment = match metadata.get(ALIGNMENT_KEY) {
            Some(value) => alignment_of(value, || Place::of(Field::Key(ALIGNMENT_KEY, "value")))?,
            None => DEFAULT_ALIGNMENT,
        };
        let tensors = place_tensors(tensors, alignment)?;
        for (key, value) in metadata.iter() {
            check_entry(key, value)?;
        }
        let mut out = Counted { inner: out, position: 0 };
        write_header(&mut out, metadata, &tensors).map_err(Error::write)?;
        if out.position > MAX_HEADER_BYTES {
            let place = Place::at(out.position, Field::File("end of the header"));
            return Err(Error::HeaderTooLarge { place, limit: MAX_HEADER_BYTES });
        }
        let mut writer = Self { out, tensors, alignment, next: 0, written: 0 };
        if !writer.tensors.is_empty() {
            writer.pad()?;
        }
        writer.skip_empty();
        Ok(writer)
    }

    /// Declared tensors with their offsets.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Tensor that takes the next byte; `None` when all are complete.
    pub fn next_tensor(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.next)
    }

    /// Bytes missing from the tensor of [`Writer::next_tensor`].
    pub fn remaining(&self) -> u64 {
        self.next_tensor().map_or(0, |tensor| tensor.bytes() - self.written)
    }

    /// Writes all data of a tensor.
    ///
    /// # Errors
    /// If the tensor is not the next one or is begun already, if the size is not the declared one,
    /// or if the sink fails.
    pub fn write_tensor(&mut self, name: impl AsRef<str>, data: &[u8]) -> Result<()> {
        let name = name.as_ref();
        let given = data.len() as u64;
        let Some(tensor) = self.next_tensor().filter(|tensor| tensor.name == name && self.written == 0)
        else {
            return match self.tensors.iter().find(|tensor| tensor.name == name) {
                // A tensor without elements has no turn in the order of the data.
                Some(tensor) if tensor.bytes() == 0 => check_size(tensor, given),
                _ => Err(Error::TensorOrder {
                    given: name.to_owned(),
                    expected: self.next_tensor().map(|tensor| tensor.name.clone()),
                }),
            };
        };
        check_size(tensor, given)?;
        self.write_chunk(data)
    }

    /// Writes the next bytes of the next tensor.
    ///
    /// # Errors
    /// If `data` exceeds the tensor's missing bytes, or if the sink fails.
    pub fn write_chunk(&mut self, data: &[u8]) -> Result<()> {
        let given = data.len() as u64;
        if given == 0 {
            return Ok(());
        }
        let Some(tensor) = self.tensors.get(self.next) else {
            return Err(Error::NoMoreTensors { bytes: given });
        };
        if given > tensor.bytes() - self.written {
            return Err(Error::TensorSize {
                name: tensor.name.clone(),
                expected: tensor.bytes(),
                given: self.written.saturating_add(given),
            });
        }
        self.out.write_all(data).map_err(Error::write)?;
        self.written += given;
        if self.written == tensor.bytes() {
            self.next += 1;
            self.written = 0;
            self.pad()?;
            self.skip_empty();
        }
        Ok(())
    }

    /// Copies the missing bytes of the next tensor from `source`, through a small buffer.
    ///
    /// # Errors
    /// If no tensor is left, if the source fails or ends early, or if the sink fails.
    pub fn copy_from(&mut self, source: &mut impl Read) -> Result<()> {
        let Some(tensor) = self.next_tensor() else { return Err(Error::NoMoreTensors { bytes: 0 }) };
        let name = tensor.name.clone();
        let mut buffer = vec![0; usize::try_from(self.remaining()).unwrap_or(usize::MAX).min(64 * 1024)];
        let mut left = self.remaining();
        while left > 0 {
            let chunk = &mut buffer[..usize::try_from(left).unwrap_or(usize::MAX).min(64 * 1024)];
            source.read_exact(chunk).map_err(|source| Error::Read {
                place: Place::of(Field::Named(&name, "data to copy")),
                source,
            })?;
            left -= chunk.len() as u64;
            self.write_chunk(chunk)?;
        }
        Ok(())
    }

    /// Flushes the sink and returns it.
    ///
    /// # Errors
    /// [`Error::MissingData`] if a tensor is not complete; also if the sink fails.
    pub fn finish(mut self) -> Result<W> {
        if let Some(tensor) = self.next_tensor() {
            return Err(Error::MissingData {
                name: tensor.name.clone(),
                written: self.written,
                expected: tensor.bytes(),
            });
        }
        self.out.flush().map_err(Error::write)?;
        Ok(self.out.inner)
    }

    /// Writes zeros up to the next multiple of the alignment.
    fn pad(&mut self) -> Result<()> {
        let zeros = self.out.position.next_multiple_of(self.alignment) - self.out.position;
        io::copy(&mut io::repeat(0).take(zeros), &mut self.out).map_err(Error::write)?;
        Ok(())
    }

    fn skip_empty(&mut self) {
        while self.next_tensor().is_some_and(|tensor| tensor.bytes() == 0) {
            self.next += 1;
        }
    }
}

fn check_size(tensor: &TensorInfo, given: u64) -> Result<()> {
    if given == tensor.bytes() {
        Ok(())
    } else {
        Err(Error::TensorSize { name: tensor.name.clone(), expected: tensor.bytes(), given })
    }
}

/// Checks declared tensors and lays their data out one after the other.
fn place_tensors(declared: impl IntoIterator<Item = TensorInfo>, alignment: u64) -> Result<Vec<TensorInfo>> {
    let mut tensors = Vec::new();
    let mut end = 0;
    for TensorInfo { name, dims, tensor_type, .. } in declared {
        // Computed anew, because the public fields may have been changed since the entry was made.
        check_name(&name, None)?;
        let tensor = TensorInfo::located(name, dims, tensor_type, end, None)?;
        // One tensor has below 2^63 bytes, but their sum may overflow.
        end = end
            .checked_add(tensor.bytes())
            .and_then(|end| align_up(end, alignment))
            .filter(|&end| end <= i64::MAX as u64)
            .ok_or_else(|| Error::ShapeOverflow {
                place: Place::of(Field::Named(&tensor.name, "end of data")),
                dims: tensor.dims.clone(),
            })?;
        tensors.push(tensor);
    }
    match layout::duplicate_name(&tensors) {
        Some(i) => Err(Error::DuplicateTensor { place: Place::of(Field::Named(&tensors[i].name, "name")) }),
        None => Ok(tensors),
    }
}

/// Checks that this crate's own reader would take a metadata entry.
fn check_entry(key: &str, value: &Value) -> Result<()> {
    let len = key.len() as u64;
    let place = |part| Place::of(Field::Key(key, part));
    if len == 0 {
        return Err(Error::EmptyName { place: place("key") });
    }
    if len > MAX_KEY_BYTES {
        return Err(Error::StringTooLong { place: place("key"), len, limit: MAX_KEY_BYTES });
    }
    match value {
        Value::Array(array) if deeper_than(array, MAX_ARRAY_DEPTH) => {
            Err(Error::ArrayTooDeep { place: place("value"), limit: MAX_ARRAY_DEPTH })
        }
        _ => Ok(()),
    }
}

fn deeper_than(array: &Array, limit: usize) -> bool {
    match array {
        _ if limit == 0 => true,
        Array::Array(inner) => inner.iter().any(|array| deeper_than(array, limit - 1)),
        _ => false,
    }
}

fn write_header(out: &mut impl Write, metadata: &Metadata, tensors: &[TensorInfo]) -> io::Result<()> {
    out.write_all(&MAGIC)?;
    out.write_all(&WRITTEN_VERSION.to_le_bytes())?;
    out.write_all(&(tensors.len() as u64).to_le_bytes())?;
    out.write_all(&(metadata.len() as u64).to_le_bytes())?;
    for (key, value) in metadata.iter() {
        write_string(out, key)?;
        out.write_all(&value.value_type().tag().to_le_bytes())?;
        write_value(out, value)?;
    }
    for tensor in tensors {
        write_string(out, &tensor.name)?;
        // At most MAX_DIMS, which was checked.
        out.write_all(&(tensor.dims.len() as u32).to_le_bytes())?;
        write_all(out, &tensor.dims, |dim| dim.to_le_bytes())?;
        out.write_all(&tensor.tensor_type.tag().to_le_bytes())?;
        out.write_all(&tensor.offset.to_le_bytes())?;
    }
    Ok(())
}

fn write_string(out: &mut impl Write, s: &str) -> io::Result<()> {
    out.write_all(&(s.len() as u64).to_le_bytes())?;
    out.write_all(s.as_bytes())
}

fn write_value(out: &mut impl Write, value: &Value) -> io::Result<()> {
    match value {
        Value::U8(v) => out.write_all(&v.to_le_bytes()),
        Value::I8(v) => out.write_all(&v.to_le_bytes()),
        Value::U16(v) => out.write_all(&v.to_le_bytes()),
        Value::I16(v) => out.write_all(&v.to_le_bytes()),
        Value::U32(v) => out.write_all(&v.to_le_bytes()),
        Value::I32(v) => out.write_all(&v.to_le_bytes()),
        Value::F32(v) => out.write_all(&v.to_le_bytes()),
        Value::Bool(v) => out.write_all(&[u8::from(*v)]),
        Value::String(v) => write_string(out, v),
        Value::Array(v) => write_array(out, v),
        Value::U64(v) => out.write_all(&v.to_le_bytes()),
        Value::I64(v) => out.write_all(&v.to_le_bytes()),
        Value::F64(v) => out.write_all(&v.to_le_bytes()),
    }
}

fn write_array(out: &mut impl Write, array: &Array) -> io::Result<()> {
    out.write_all(&array.element_type().tag().to_le_bytes())?;
    out.write_all(&(array.len() as u64).to_le_bytes())?;
    match array {
        Array::U8(v) => out.write_all(v),
        Array::I8(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::U16(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::I16(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::U32(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::I32(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::F32(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::Bool(v) => write_all(out, v, |&v| [u8::from(v)]),
        Array::String(v) => v.iter().try_for_each(|s| write_string(out, s)),
        Array::Array(v) => v.iter().try_for_each(|inner| write_array(out, inner)),
        Array::U64(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::I64(v) => write_all(out, v, |v| v.to_le_bytes()),
        Array::F64(v) => write_all(out, v, |v| v.to_le_bytes()),
    }
}

fn write_all<T, const N: usize>(
    out: &mut impl Write,
    values: &[T],
    to_le: impl Fn(&T) -> [u8; N],
) -> io::Result<()> {
    values.iter().try_for_each(|value| out.write_all(&to_le(value)))
}

/// Sink that counts its bytes.
#[derive(Debug)]
struct Counted<W> {
    inner: W,
    position: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(data)?;
        self.position += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
