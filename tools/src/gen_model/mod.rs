//! `cargo xtask gen-model`: a model file of a real shape with random weights.
//!
//! For work on speed and memory: sizes, types and tensor names are those of real models, the text
//! is noise. Tensors are generated, quantized and written a few rows at a time.

mod random;
mod shape;
mod tensors;
mod types;
mod vocabulary;

use std::num::NonZero;
use std::path::Path;
use std::time::Instant;

use gguf_rs_lite::{Metadata, TensorInfo, TensorType, Writer, write_file};

use crate::{Error, Result};
use random::Source;
pub use shape::Shape;
use shape::Sizes;
use tensors::{Tensor, Values};
pub use types::TypeMix;

/// Values per chunk of a worker; bounds the memory in use.
const CHUNK_VALUES: usize = 1 << 18;

/// Options of a generated model.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sizes of the model.
    pub shape: Shape,
    /// Types of its matrices.
    pub types: TypeMix,
    /// Seed; the same seed gives the same file for any number of threads.
    pub seed: u64,
    /// Number of layers instead of the shape's.
    pub layers: Option<usize>,
    /// Worker threads instead of all cores.
    pub threads: Option<usize>,
}

/// Writes the model to `out`; progress goes to stderr.
///
/// # Errors
/// [`Error::Gguf`] if the file cannot be written.
pub fn gen_model(options: &Options, out: &Path) -> Result<()> {
    let sizes = options.shape.sizes(options.layers);
    let tensors = sizes.tensors();
    let wrap = |source: gguf_rs_lite::Error| Error::Gguf { path: out.into(), source };
    let floats = declare(&tensors, |_| TensorType::F32).map_err(wrap)?;
    let formats = options.types.formats(&floats, sizes.heads_per_kv_head());
    let declared = declare(&tensors, |i| formats[i].tensor_type()).map_err(wrap)?;
    let total: u64 = tensors.iter().map(|tensor| tensor.len() as u64).sum();
    let threads = options
        .threads
        .or_else(|| std::thread::available_parallelism().ok().map(NonZero::get))
        .unwrap_or(1)
        .max(1);
    let source = Source::new(options.seed, total);
    let mut progress = Progress { total, done: 0, percent: 0, start: Instant::now() };
    let metadata = metadata(options, &sizes);
    let fill = |writer: &mut gguf_rs_lite::FileWriter| {
        for (i, tensor) in tensors.iter().enumerate() {
            write_tensor(writer, &source, i as u64, tensor, formats[i], threads)?;
            progress.add(tensor);
        }
        Ok(())
    };
    write_file(out, &metadata, declared, fill).map_err(wrap)?;
    let seconds = progress.start.elapsed().as_secs_f64();
    eprintln!("{}: {:.1} M parameters in {seconds:.1} s", out.display(), total as f64 / 1e6);
    Ok(())
}

/// Declares all tensors in the header; returns the format of each.
fn declare(
    tensors: &[Tensor],
    tensor_type: impl Fn(usize) -> TensorType,
) -> gguf_rs_lite::Result<Vec<TensorInfo>> {
    let entry =
        |(i, tensor): (usize, &Tensor)| TensorInfo::new(&tensor.name, tensor.dims.clone(), tensor_type(i));
    tensors.iter().enumerate().map(entry).collect()
}

/// Generates, quantizes and writes one tensor.
fn write_tensor<W: std::io::Write>(
    writer: &mut Writer<W>,
    source: &Source,
    index: u64,
    tensor: &Tensor,
    format: types::Format,
    threads: usize,
) -> gguf_rs_lite::Result<()> {
    let distinct = source.distinct_rows(tensor.rows());
    if distinct == tensor.rows() {
        return generate_rows(source, index, tensor, format, (distinct, threads), |bytes| {
            writer.write_chunk(bytes)
        });
    }
    let mut rows = Vec::new();
    generate_rows(source, index, tensor, format, (distinct, threads), |bytes| {
        rows.extend_from_slice(bytes);
        Ok(())
    })?;
    let row_bytes = rows.len() / distinct;
    (0..tensor.rows() as u64).try_for_each(|row| {
        let start = source.pick(index, row, distinct) * row_bytes;
        writer.write_chunk(&rows[start..start + row_bytes])
    })
}

/// Generates and quantizes the first `rows` rows of a tensor, `threads` chunks at a time.
fn generate_rows(
    source: &Source,
    index: u64,
    tensor: &Tensor,
    format: types::Format,
    (rows, threads): (usize, usize),
    mut write: impl FnMut(&[u8]) -> gguf_rs_lite::Result<()>,
) -> gguf_rs_lite::Result<()> {
    let rows_per_chunk = (CHUNK_VALUES / tensor.cols()).clamp(1, rows.div_ceil(threads));
    let mut chunks: Vec<Vec<u8>> = vec![Vec::new(); threads];
    let mut next = 0;
    while next < rows {
        std::thread::scope(|scope| {
            for (i, bytes) in chunks.iter_mut().enumerate() {
                let first = (next + i * rows_per_chunk).min(rows);
                let last = (first + rows_per_chunk).min(rows);
                scope.spawn(move || fill_rows(source, index, tensor, format, first..last, bytes));
            }
        });
        chunks.iter().try_for_each(|bytes| write(bytes))?;
        next += threads * rows_per_chunk;
    }
    Ok(())
}

/// Bytes of some rows of a tensor.
fn fill_rows(
    source: &Source,
    index: u64,
    tensor: &Tensor,
    format: types::Format,
    rows: std::ops::Range<usize>,
    bytes: &mut Vec<u8>,
) {
    let mut values = vec![0.0; tensor.cols()];
    bytes.clear();
    for row in rows {
        match tensor.values {
            Values::Normal(deviation) => source.fill(index, row as u64, deviation, &mut values),
            Values::Constant(value) => values.fill(value),
        }
        format.append(&values, bytes);
    }
}

fn metadata(options: &Options, sizes: &Sizes) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", sizes.architecture());
    metadata.insert("general.name", format!("{} with random weights", sizes.name));
    metadata.insert("general.file_type", options.types.file_type());
    metadata.insert("general.quantization_version", 2u32);
    sizes.describe(&mut metadata);
    vocabulary::describe(sizes.vocab_size, &mut metadata);
    metadata
}

/// Percentages on stderr.
struct Progress {
    total: u64,
    done: u64,
    percent: u64,
    start: Instant,
}

impl Progress {
    fn add(&mut self, tensor: &Tensor) {
        self.done += tensor.len() as u64;
        let percent = self.done * 100 / self.total.max(1);
        if percent >= self.percent + 5 {
            self.percent = percent;
            eprintln!("{percent:3} %  {:6.1} s  {}", self.start.elapsed().as_secs_f64(), tensor.name);
        }
    }
}
