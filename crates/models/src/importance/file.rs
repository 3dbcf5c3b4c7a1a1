//! Files of importance matrices: llama.cpp's GGUF form, written and read, and its older `.dat`
//! form, read only.

use std::collections::BTreeMap;

use gguf_rs_lite::{Gguf, Metadata, TensorInfo, TensorType, Value, Writer};

use super::{Entry, ImportanceMatrix};
use crate::error::{Error, Result};

/// Suffixes of the two tensors of a matrix.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// Largest number of entries and of columns of the older form; more means that it is another file.
const MAX_ENTRIES: usize = 1 << 16;
const MAX_COLUMNS: usize = 1 << 24;

impl ImportanceMatrix {
    /// The file's bytes, GGUF.
    ///
    /// # Errors
    /// [`Error::Gguf`] for names that a file cannot have.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut metadata = Metadata::new();
        metadata.insert("general.type", "imatrix");
        metadata.insert("imatrix.datasets", self.datasets.clone());
        metadata.insert("imatrix.chunk_count", u32::try_from(self.windows).unwrap_or(u32::MAX));
        metadata.insert("imatrix.chunk_size", u32::try_from(self.window).unwrap_or(u32::MAX));
        let mut tensors = Vec::with_capacity(2 * self.entries.len());
        for (name, entry) in &self.entries {
            let (sums, matrices) = (entry.sums.len() as u64, entry.counts.len() as u64);
            let dims = [sums / matrices, matrices];
            tensors.push(TensorInfo::new(format!("{name}{SUMS}"), dims, TensorType::F32)?);
            tensors.push(TensorInfo::new(format!("{name}{COUNTS}"), [1, matrices], TensorType::F32)?);
        }
        let mut writer = Writer::new(Vec::new(), &metadata, tensors)?;
        for (name, entry) in &self.entries {
            let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            writer.write_tensor(format!("{name}{SUMS}"), &bytes(&entry.sums))?;
            writer.write_tensor(format!("{name}{COUNTS}"), &bytes(&entry.counts))?;
        }
        Ok(writer.finish()?)
    }

    /// Reads a file of either form.
    ///
    /// # Errors
    /// [`Error::ImportanceFile`] for anything else, [`Error::Gguf`] for a damaged GGUF file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        if bytes.starts_with(b"GGUF") { from_gguf(bytes) } else { from_dat(&bytes) }
    }
}

fn wrong(reason: impl Into<String>) -> Error {
    Error::ImportanceFile { reason: reason.into() }
}

fn from_gguf(bytes: Vec<u8>) -> Result<ImportanceMatrix> {
    let gguf = Gguf::from_owner(bytes)?;
    let metadata = gguf.metadata();
    if metadata.get_str("general.type")? != Some("imatrix") {
        return Err(wrong("a GGUF file whose `general.type` is not `imatrix`"));
    }
    let mut entries = BTreeMap::new();
    for tensor in gguf.tensors() {
        let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
        let counts = floats(&gguf, &format!("{name}{COUNTS}"))?;
        entries.insert(name.to_owned(), checked(name, floats(&gguf, &tensor.name)?, counts)?);
    }
    if entries.is_empty() {
        return Err(wrong("it has no entries"));
    }
    let number =
        |key: &str| metadata.get(key).and_then(Value::as_integer).and_then(|n| usize::try_from(n).ok());
    Ok(ImportanceMatrix {
        entries,
        datasets: metadata.get_strings("imatrix.datasets")?.unwrap_or(&[]).to_vec(),
        window: number("imatrix.chunk_size").unwrap_or(0),
        windows: number("imatrix.chunk_count").unwrap_or(0),
    })
}

/// Values of an F32 tensor.
fn floats(gguf: &Gguf, name: &str) -> Result<Vec<f32>> {
    match gguf.tensor(name) {
        Some(tensor) if tensor.tensor_type == TensorType::F32 => {
            let data = gguf.data(name)?;
            Ok(data.as_bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
        }
        Some(tensor) => Err(wrong(format!("tensor `{name}` has type {}, not F32", tensor.tensor_type))),
        None => Err(wrong(format!("it has no tensor `{name}`"))),
    }
}

/// An entry of finite numbers that are not negative, with as many sums for each count.
fn checked(name: &str, sums: Vec<f32>, counts: Vec<f32>) -> Result<Entry> {
    if counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
        return Err(wrong(format!("`{name}` has {} sums and {} counts", sums.len(), counts.len())));
    }
    if sums.iter().chain(&counts).all(|x| x.is_finite() && *x >= 0.0) {
        Ok(Entry { sums, counts })
    } else {
        Err(wrong(format!("`{name}` has a sum that is negative or not finite")))
    }
}

/// Reader of the older form: numbers of 32 bits, little-endian.
struct Dat<'a>(&'a [u8]);

impl<'a> Dat<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(|| wrong("it is cut short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A count of at most `most`.
    fn count(&mut self, what: &str, most: usize) -> Result<usize> {
        let number = i32::from_le_bytes(self.bytes(4)?.try_into().expect("4 bytes"));
        let count = usize::try_from(number).ok().filter(|&count| count <= most);
        count.ok_or_else(|| wrong(format!("{number} {what}")))
    }
}

fn from_dat(bytes: &[u8]) -> Result<ImportanceMatrix> {
    let mut dat = Dat(bytes);
    let n_entries = dat.count("entries", MAX_ENTRIES)?;
    let mut entries = BTreeMap::new();
    for _ in 0..n_entries {
        let len = dat.count("bytes of a name", gguf_rs_lite::MAX_NAME_BYTES as usize)?;
        let name = std::str::from_utf8(dat.bytes(len)?).map_err(|_| wrong("a name is not UTF-8"))?;
        // Sums are divided by the inputs of a window: the mean times the number of windows.
        let windows = dat.count("windows", i32::MAX as usize)?;
        let columns = dat.count("columns", MAX_COLUMNS)?;
        let sums = dat.bytes(columns * 4)?.as_chunks().0;
        let sums = sums.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        entries.insert(name.to_owned(), checked(name, sums, vec![windows as f32])?);
    }
    if entries.is_empty() {
        return Err(wrong("it has no entries"));
    }
    // Files of the first version end here.
    let windows = dat.count("windows", i32::MAX as usize).unwrap_or(0);
    Ok(ImportanceMatrix { entries, datasets: Vec::new(), window: 0, windows })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> ImportanceMatrix {
        let entry = |sums: [f32; 3]| Entry { sums: sums.to_vec(), counts: vec![4.0] };
        ImportanceMatrix {
            entries: BTreeMap::from([
                ("blk.0.attn_q.weight".to_owned(), entry([1.0, 2.0, 3.0])),
                ("blk.0.ffn_down.weight".to_owned(), entry([0.0, 0.5, 8.0])),
            ]),
            datasets: vec!["text".to_owned()],
            window: 512,
            windows: 7,
        }
    }

    /// The older form of [`matrix`].
    fn dat() -> Vec<u8> {
        let mut bytes = 2_i32.to_le_bytes().to_vec();
        for (name, entry) in &matrix().entries {
            bytes.extend((name.len() as i32).to_le_bytes());
            bytes.extend(name.bytes());
            bytes.extend((entry.counts[0] as i32).to_le_bytes());
            bytes.extend((entry.sums.len() as i32).to_le_bytes());
            bytes.extend(entry.sums.iter().flat_map(|sum| sum.to_le_bytes()));
        }
        bytes
    }

    #[test]
    fn files_are_read_as_written() {
        let matrix = matrix();
        assert_eq!(ImportanceMatrix::from_bytes(matrix.to_bytes().unwrap()).unwrap(), matrix);
        assert_eq!(matrix.means("blk.0.attn_q.weight"), Some(vec![0.25, 0.5, 0.75]));
        assert_eq!(ImportanceMatrix::from_bytes(dat()).unwrap().entries, matrix.entries);
    }

    #[test]
    fn experts_have_counts_of_their_own() {
        let name = "blk.0.ffn_up_exps.weight".to_owned();
        let entry = Entry { sums: vec![2.0, 4.0, 0.0, 0.0, 9.0, 3.0], counts: vec![2.0, 0.0, 3.0] };
        let matrix = ImportanceMatrix { entries: BTreeMap::from([(name.clone(), entry)]), ..matrix() };
        let read = ImportanceMatrix::from_bytes(matrix.to_bytes().unwrap()).unwrap();
        assert_eq!(read, matrix);
        assert_eq!(read.means(&name), Some(vec![1.0, 2.0, 0.0, 0.0, 3.0, 1.0]));
        let stack = |dims: [u64; 3]| TensorInfo::new(name.clone(), dims, TensorType::F16).unwrap();
        assert!(read.check(&[&stack([2, 7, 3])]).is_ok());
        for other in [[2, 7, 2], [3, 7, 2], [3, 7, 3]] {
            let refused = read.check(&[&stack(other)]).unwrap_err();
            assert!(refused.to_string().contains(&name), "{refused}");
        }
    }

    #[test]
    fn cut_and_foreign_files_are_one_error() {
        for bytes in [matrix().to_bytes().unwrap(), dat()] {
            // The last bytes may be padding.
            for len in 0..bytes.len() - 32 {
                let cut = ImportanceMatrix::from_bytes(bytes[..len].to_vec());
                let reason = cut.expect_err("a cut file").to_string();
                assert!(!reason.contains('\n'), "{reason}");
            }
        }
        for foreign in [&b"\x05\0\0\0\xff\xff\xff\xff"[..], b"text of no kind", &[0; 64]] {
            assert!(ImportanceMatrix::from_bytes(foreign.to_vec()).is_err());
        }
    }

    #[test]
    fn sums_that_are_no_squares_are_refused() {
        for bad in [-1.0, f32::NAN, f32::INFINITY] {
            let mut matrix = matrix();
            matrix.entries.get_mut("blk.0.attn_q.weight").unwrap().sums[1] = bad;
            let found = ImportanceMatrix::from_bytes(matrix.to_bytes().unwrap()).unwrap_err();
            assert!(found.to_string().contains("blk.0.attn_q.weight"), "{found}");
        }
    }
}
