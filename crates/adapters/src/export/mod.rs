//! Adapters that are made here, and the files they are written to: a PEFT folder, or a GGUF adapter
//! as llama.cpp reads it. A result appears complete or not at all.

mod folder;
mod gguf;
mod peft;

use std::fmt;
use std::path::Path;

use ruvllm_kernels::quant::WeightFormat;

pub use self::folder::write_new_folder;
use crate::error::{Error, Result};
use crate::place::{BaseModel, Projection, RowOrder, reorder};

/// File format of an adapter, which decides the order of rows and the names of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterFormat {
    /// `adapter_config.json` beside `adapter_model.safetensors`.
    Peft,
    /// One GGUF file, `adapter.type` is `lora`.
    Gguf,
}

/// Storage type of factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactorType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats, up to 65504.
    F16,
    /// 16-bit floats with the range of F32.
    BF16,
}

/// Adapter in memory that can be written. Scales are multiplied into `B`.
#[derive(Debug, Clone)]
pub struct NewAdapter {
    format: AdapterFormat,
    architecture: Option<String>,
    factors: FactorType,
    updates: Vec<NewUpdate>,
}

/// Change of one matrix: `B A`.
#[derive(Debug, Clone, PartialEq)]
pub struct NewUpdate {
    /// The matrix.
    pub projection: Projection,
    /// Layer index; 0 for matrices outside the layers.
    pub layer: usize,
    /// Name of the module in PEFT folders; `None` = that of a text model.
    pub peft_name: Option<String>,
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// Columns of `A`.
    pub inputs: usize,
    /// Rows of `B`.
    pub outputs: usize,
    /// `[rank, inputs]`.
    pub a: Vec<f32>,
    /// `[outputs, rank]`, rows in the order of the format.
    pub b: Vec<f32>,
}

impl AdapterFormat {
    /// Checks that an adapter can be written to a path, before it is made.
    ///
    /// # Errors
    /// As [`NewAdapter::write`].
    pub fn check_output(self, path: &Path, replace: bool) -> Result<()> {
        let reason = match path.symlink_metadata() {
            Err(_) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                return parent.map_or(Ok(()), |parent| parent.metadata().map(drop)).map_err(failed(path));
            }
            Ok(_) if !replace => return Err(Error::Exists { path: path.to_owned() }),
            Ok(_) if self == Self::Peft && !folder::is_adapter(path) => {
                "is no folder of an adapter; name another"
            }
            Ok(_) if self == Self::Gguf && !path.is_file() => "is no file; name another",
            Ok(_) => return Ok(()),
        };
        Err(Error::NotReplaced { path: path.to_owned(), reason })
    }

    /// Rows of `width` values of a projection of a model, given in the model's order, in the order
    /// of the format.
    pub fn rows(self, base: &BaseModel, projection: Projection, width: usize, rows: Vec<f32>) -> Vec<f32> {
        reorder(rows, width, projection, base, (RowOrder::Gguf, self.row_order()))
    }

    pub(crate) fn row_order(self) -> RowOrder {
        match self {
            Self::Peft => RowOrder::HuggingFace,
            Self::Gguf => RowOrder::Gguf,
        }
    }
}

impl FactorType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::BF16];

    /// Name, such as `F16`.
    pub fn name(self) -> &'static str {
        self.format().name()
    }

    fn format(self) -> WeightFormat {
        match self {
            Self::F32 => WeightFormat::F32,
            Self::F16 => WeightFormat::F16,
            Self::BF16 => WeightFormat::BF16,
        }
    }

    /// Values as stored.
    fn bytes(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * if self == Self::F32 { 4 } else { 2 }];
        self.format().quantize(values, &mut bytes);
        bytes
    }

    /// Rounds values to the type; infinite where they are beyond its range.
    pub fn round(self, values: &mut [f32]) {
        if self != Self::F32 {
            self.format().dequantize(&self.bytes(values), values);
        }
    }
}

impl NewAdapter {
    /// An adapter of some updates, whose rows are in the order of `format`.
    ///
    /// # Errors
    /// [`Error::MergeEmpty`] without updates; [`Error::Unnamed`] for a projection that the format
    /// has no name for; [`Error::BaseNeeded`] for a GGUF adapter without an architecture.
    pub fn new(
        format: AdapterFormat,
        architecture: Option<String>,
        factors: FactorType,
        updates: Vec<NewUpdate>,
    ) -> Result<Self> {
        if updates.is_empty() {
            return Err(Error::MergeEmpty);
        }
        if format == AdapterFormat::Gguf && architecture.is_none() {
            return Err(Error::BaseNeeded { reason: "a GGUF adapter names an architecture" });
        }
        let adapter = Self { format, architecture, factors, updates };
        for update in &adapter.updates {
            adapter.name(update)?;
        }
        Ok(adapter)
    }

    /// Its updates.
    pub fn updates(&self) -> &[NewUpdate] {
        &self.updates
    }

    /// Names of the matrices in its format, in the order of its updates.
    pub fn names(&self) -> Vec<String> {
        // The constructor has checked that there are names.
        self.updates.iter().map(|update| self.name(update).unwrap_or_default()).collect()
    }

    fn name(&self, update: &NewUpdate) -> Result<String> {
        match self.format {
            AdapterFormat::Peft => peft::module(update),
            AdapterFormat::Gguf => gguf::matrix(update),
        }
    }

    /// Bytes of its factors as stored.
    pub fn bytes(&self) -> usize {
        let values: usize = self.updates.iter().map(|update| update.a.len() + update.b.len()).sum();
        values * if self.factors == FactorType::F32 { 4 } else { 2 }
    }

    /// Writes a file (GGUF) or a folder (PEFT).
    ///
    /// A folder that is replaced keeps its other files. A reader finds the old adapter, none, or
    /// the new one.
    ///
    /// # Errors
    /// [`Error::Exists`] if `path` exists, unless `replace` is set; then [`Error::NotReplaced`]
    /// unless it is a file (GGUF) or the folder of an adapter (PEFT); [`Error::Write`] for errors
    /// of the file system.
    pub fn write(&self, path: &Path, replace: bool) -> Result<()> {
        self.format.check_output(path, replace)?;
        match self.format {
            AdapterFormat::Peft => folder::write(path, &peft::files(self)?),
            AdapterFormat::Gguf => gguf::write(self, path),
        }
    }
}

/// The error of a file that cannot be written.
fn failed<E: std::error::Error + Send + Sync + 'static>(path: &Path) -> impl FnOnce(E) -> Error {
    move |source| Error::Write { path: path.to_owned(), source: Box::new(source) }
}

impl fmt::Display for AdapterFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peft => "PEFT",
            Self::Gguf => "GGUF",
        })
    }
}
