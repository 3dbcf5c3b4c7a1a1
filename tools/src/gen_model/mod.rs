//! `cargo xtask gen-model`: a model file of a real shape with random weights.
//!
//! For work on speed and memory: sizes, types and tensor names are those of real models, the text
//! is noise. Tensors are generated, quantized and written a few rows at a time.

mod random;
mod shape;
mod types;
mod vocabulary;

use std::num::NonZero;
use std::path::Path;
use std::time::Instant;

use gguf_rs_lite::{Metadata, TensorInfo, TensorType, Writer, write_file};

use crate::{Error, Result};
use random::Source;
pub use shape::Shape;
use shape::{Sizes, Tensor};
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
    let total: u64 = tensors.iter().map(|tensor| (tensor.rows * tensor.cols) as u64).sum();
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
    let entry = |(i, tensor): (usize, &Tensor)| {
        let dims = if tensor.is_vector() {
            vec![tensor.cols as u64]
        } else {
            vec![tensor.cols as u64, tensor.rows as u64]
        };
        TensorInfo::new(&tensor.name, dims, tensor_type(i))
    };
    tensors.iter().enumerate().map(entry).collect()
}

/// Generates, quantizes and writes one tensor, `threads` chunks of rows at a time.
fn write_tensor<W: std::io::Write>(
    writer: &mut Writer<W>,
    source: &Source,
    index: u64,
    tensor: &Tensor,
    format: types::Format,
    threads: usize,
) -> gguf_rs_lite::Result<()> {
    let rows_per_chunk = (CHUNK_VALUES / tensor.cols).clamp(1, tensor.rows);
    let mut chunks: Vec<Vec<u8>> = vec![Vec::new(); threads];
    let mut next = 0;
    while next < tensor.rows {
        std::thread::scope(|scope| {
            for (i, bytes) in chunks.iter_mut().enumerate() {
                let first = (next + i * rows_per_chunk).min(tensor.rows);
                let last = (first + rows_per_chunk).min(tensor.rows);
                scope.spawn(move || fill_rows(source, index, tensor, format, first..last, bytes));
            }
        });
        for bytes in &chunks {
            writer.write_chunk(bytes)?;
        }
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
    let mut values = vec![0.0; tensor.cols];
    bytes.clear();
    for row in rows {
        match tensor.deviation {
            Some(deviation) => source.fill(index, row as u64, deviation, &mut values),
            None => values.fill(1.0),
        }
        format.append(&values, bytes);
    }
}

fn metadata(options: &Options, sizes: &Sizes) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
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
        self.done += (tensor.rows * tensor.cols) as u64;
        let percent = self.done * 100 / self.total.max(1);
        if percent >= self.percent + 5 {
            self.percent = percent;
            eprintln!("{percent:3} %  {:6.1} s  {}", self.start.elapsed().as_secs_f64(), tensor.name);
        }
    }
}
