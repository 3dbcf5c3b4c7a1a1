//! Upload of weights: projections are allocated first and written later, from the mapped file.

use std::collections::HashMap;

use ruvllm_gpu::{Buffer, Format, Gpu, Matrix, Memory};
use ruvllm_kernels::quant::{PackedMatrix, WeightFormat};
use ruvllm_models::Linear;

use super::refusal::Refusal;

/// Bytes of sources that are written together.
const PIECE: usize = 16 << 20;

/// Rows of one or several projections of one input, and their offset in the output row.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) matrix: Stored,
    pub(super) first: u32,
}

/// A matrix in memory of the device or of the host.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) matrix: Matrix,
    /// For a matrix in memory of the host: memory of the device that it is copied to before
    /// products of many rows, shared by all matrices of the format and size.
    pub(super) staged: Option<Matrix>,
}

/// Weights of an `RMSNorm`, or with a bias of a layer norm.
#[derive(Debug, Clone)]
pub(super) struct Norm {
    /// `[model_dim]`.
    pub(super) weight: Buffer,
    /// `[model_dim]`.
    pub(super) bias: Option<Buffer>,
}

/// Projections of one input: `[outputs]` values per row.
#[derive(Debug, Clone)]
pub(super) struct Projection {
    /// Adjacent projections of one format are stored as one matrix.
    pub(super) parts: Vec<Part>,
    pub(super) outputs: u32,
    /// `[outputs]`.
    pub(super) bias: Option<Buffer>,
}

/// Matrices that are allocated and not written yet.
#[derive(Debug)]
pub(super) struct Uploads<'m> {
    waiting: Vec<Upload<'m>>,
    /// Names and formats of matrices stored as F16 because their format has no kernels.
    pub(super) converted: Vec<String>,
}

/// Source of a matrix: weights of one device format, concatenated by rows.
#[derive(Debug)]
struct Upload<'m> {
    name: String,
    matrix: Matrix,
    sources: Vec<&'m PackedMatrix>,
}

impl Projection {
    /// Formats of its matrices.
    pub(super) fn formats(&self) -> impl Iterator<Item = Format> {
        self.parts.iter().map(|part| part.matrix.format())
    }
}

impl Stored {
    pub(super) fn format(&self) -> Format {
        self.matrix.format()
    }
}

/// Kernel format with the same quant blocks as a file's format, if any.
fn device_format(format: WeightFormat) -> Option<Format> {
    match format {
        WeightFormat::F16 => Some(Format::F16),
        WeightFormat::Q8_0 => Some(Format::Q8_0),
        WeightFormat::Q4_0 => Some(Format::Q4_0),
        WeightFormat::IQ4NL => Some(Format::IQ4NL),
        WeightFormat::MXFP4 => Some(Format::MXFP4),
        WeightFormat::Q4K => Some(Format::Q4K),
        WeightFormat::Q5K => Some(Format::Q5K),
        WeightFormat::Q6K => Some(Format::Q6K),
        _ => None,
    }
}

impl Uploads<'_> {
    /// Writes all matrices; returns [`converted`](Self::converted).
    pub(super) fn write(self, gpu: &Gpu) -> Result<Vec<String>, Refusal> {
        for upload in &self.waiting {
            upload.write(gpu)?;
        }
        Ok(self.converted)
    }
}

impl Upload<'_> {
    /// Writes the sources one after the other, in pieces of so many rows as the format takes: those
    /// that are stored as they are and have such a number, straight from the mapped file.
    fn write(&self, gpu: &Gpu) -> Result<(), Refusal> {
        let name = &self.name;
        let failed = |source| Refusal::Gpu { action: format!("upload {name}"), source };
        let (unit, cols) = (self.matrix.format().row_unit(), self.matrix.cols() as usize);
        let (mut first, mut rows, mut owned) = (0, 0_u32, Vec::new());
        for (index, source) in self.sources.iter().enumerate() {
            let is_last = index + 1 == self.sources.len();
            let is_stored = device_format(source.format()).is_some() && source.cols() == cols;
            let is_whole = is_last || source.rows().is_multiple_of(unit as usize);
            if is_stored && owned.is_empty() && is_whole {
                self.matrix.write_rows(gpu, first, source.bytes()).map_err(failed)?;
                first += source.rows() as u32;
                continue;
            }
            rows += source.rows() as u32;
            match is_stored {
                true => owned.extend_from_slice(source.bytes()),
                false => to_f16(source, cols, name, &mut owned)?,
            }
            if is_last || rows.is_multiple_of(unit) && owned.len() >= PIECE {
                self.matrix.write_rows(gpu, first, &owned).map_err(failed)?;
                owned.clear();
                first += std::mem::take(&mut rows);
            }
        }
        Ok(())
    }
}

/// Bytes of matrices by the memory that they lie in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WeightBytes {
    pub(super) device: u64,
    pub(super) host: u64,
}

impl WeightBytes {
    /// Bytes since these.
    pub(super) fn since(self, before: Self) -> Self {
        Self { device: self.device - before.device, host: self.host - before.host }
    }
}

/// Allocates weights and lists what is to be written.
pub(super) struct Uploader<'a, 'm> {
    gpu: &'a Gpu,
    /// Memory of the matrices to come.
    pub(super) memory: Memory,
    staging: HashMap<(Format, usize, usize), Matrix>,
    bytes: WeightBytes,
    waiting: Vec<Upload<'m>>,
    converted: Vec<String>,
}

impl<'a, 'm> Uploader<'a, 'm> {
    pub(super) fn new(gpu: &'a Gpu) -> Self {
        Self {
            gpu,
            memory: Memory::Device,
            staging: HashMap::new(),
            bytes: WeightBytes::default(),
            waiting: Vec::new(),
            converted: Vec::new(),
        }
    }

    /// Bytes of the matrices so far.
    pub(super) fn bytes(&self) -> WeightBytes {
        self.bytes
    }

    /// Lists the matrices that remain to be written, and the bytes of all.
    pub(super) fn finish(self) -> (Uploads<'m>, WeightBytes) {
        (Uploads { waiting: self.waiting, converted: self.converted }, self.bytes)
    }

    pub(super) fn vector(&self, values: &[f32]) -> Result<Buffer, Refusal> {
        self.gpu.upload(values).map_err(|source| Refusal::Gpu { action: "upload a vector".into(), source })
    }

    pub(super) fn optional(&self, values: Option<&[f32]>) -> Result<Option<Buffer>, Refusal> {
        values.map(|values| self.vector(values)).transpose()
    }

    pub(super) fn projection(&mut self, linears: &[(&str, &'m Linear)]) -> Result<Projection, Refusal> {
        let outputs = linears.iter().map(|(_, linear)| linear.weights.rows()).sum();
        self.wide_projection(linears, outputs)
    }

    /// As [`projection`](Self::projection), into rows of `width` values. Those behind the
    /// projections are left as they are.
    pub(super) fn wide_projection(
        &mut self,
        linears: &[(&str, &'m Linear)],
        width: usize,
    ) -> Result<Projection, Refusal> {
        let stored = |linear: &Linear| stored_format(&linear.weights);
        let mut parts = Vec::new();
        let mut outputs = 0;
        for run in linears.chunk_by(|(_, a), (_, b)| stored(a) == stored(b)) {
            let matrices: Vec<&'m PackedMatrix> = run.iter().map(|(_, linear)| &linear.weights).collect();
            let names: Vec<&str> = run.iter().map(|(name, _)| *name).collect();
            let stored = self.stored(&format!("{}.weight", names.join(", ")), &matrices)?;
            let rows = stored.matrix.rows();
            parts.push(Part { matrix: stored, first: outputs });
            outputs += rows;
        }
        let bias = if linears.iter().any(|(_, linear)| linear.bias.is_some()) {
            let bias = |(_, linear): &(&str, &Linear)| {
                linear.bias.clone().unwrap_or_else(|| vec![0.0; linear.weights.rows()])
            };
            let mut biases = linears.iter().flat_map(bias).collect::<Vec<f32>>();
            biases.resize(width, 0.0);
            Some(self.vector(&biases)?)
        } else {
            None
        };
        Ok(Projection { parts, outputs: width as u32, bias })
    }

    /// True if a binding of the device can hold all of these matrices.
    pub(super) fn fits(&self, sources: &[&PackedMatrix]) -> bool {
        let bytes = |source: &&PackedMatrix| {
            let format = stored_format(source);
            (source.rows() * (source.cols() / format.block_len()) * format.block_bytes()) as u64
        };
        sources.iter().map(bytes).sum::<u64>() <= self.gpu.info().max_binding
    }

    /// Allocates a matrix as [`matrix`](Self::matrix) does, with memory to copy it to if it lies in
    /// memory of the host.
    pub(super) fn stored(&mut self, name: &str, sources: &[&'m PackedMatrix]) -> Result<Stored, Refusal> {
        let matrix = self.matrix(name, sources)?;
        self.with_staging(name, matrix)
    }

    fn with_staging(&mut self, name: &str, matrix: Matrix) -> Result<Stored, Refusal> {
        let staged = match self.memory {
            Memory::Device => None,
            Memory::Host => {
                let (format, rows, cols) = (matrix.format(), matrix.rows(), matrix.cols());
                let key = (format, rows as usize, cols as usize);
                let staged = match self.staging.get(&key) {
                    Some(staged) => staged.clone(),
                    None => Matrix::zeroed(self.gpu, format, rows, cols).map_err(|source| Refusal::Gpu {
                        action: format!("allocate memory that {name} is copied to"),
                        source,
                    })?,
                };
                self.staging.insert(key, staged.clone());
                Some(staged)
            }
        };
        Ok(Stored { matrix, staged })
    }

    /// Allocates a projection of an input that is filled up with zeros.
    pub(super) fn padded_projection(
        &mut self,
        name: &str,
        linear: &'m Linear,
    ) -> Result<Projection, Refusal> {
        let name = format!("{name}.weight");
        let matrix = self.padded_matrix(&name, &[&linear.weights])?;
        let (outputs, bias) = (matrix.rows(), self.optional(linear.bias.as_deref())?);
        let matrix = self.with_staging(&name, matrix)?;
        Ok(Projection { parts: vec![Part { matrix, first: 0 }], outputs, bias })
    }

    /// As [`matrix`](Self::matrix), in F16 with rows that are filled up with zeros to whole units.
    pub(super) fn padded_matrix(
        &mut self,
        name: &str,
        sources: &[&'m PackedMatrix],
    ) -> Result<Matrix, Refusal> {
        let (format, cols) = (stored_format(sources[0]), sources[0].cols());
        let unit = if format == Format::F16 { format.column_unit() } else { 1 };
        self.matrix_of(name, sources, cols.next_multiple_of(unit))
    }

    /// Allocates a matrix for weights of one device format, concatenated by rows.
    pub(super) fn matrix(&mut self, name: &str, sources: &[&'m PackedMatrix]) -> Result<Matrix, Refusal> {
        self.matrix_of(name, sources, sources[0].cols())
    }

    fn matrix_of(
        &mut self,
        name: &str,
        sources: &[&'m PackedMatrix],
        cols: usize,
    ) -> Result<Matrix, Refusal> {
        let rows: usize = sources.iter().map(|source| source.rows()).sum();
        let format = stored_format(sources[0]);
        let unit = format.column_unit();
        if !cols.is_multiple_of(unit) {
            let found = sources[0].format().name();
            return Err(Refusal::Columns { tensor: name.to_owned(), format: found, cols, unit });
        }
        for source in sources.iter().filter(|source| device_format(source.format()).is_none()) {
            let converted = format!("{name} ({})", source.format().name());
            // The matrices of experts are one tensor.
            if self.converted.last() != Some(&converted) {
                self.converted.push(converted);
            }
        }
        let matrix = Matrix::zeroed_in(self.gpu, self.memory, format, rows as u32, cols as u32)
            .map_err(|source| Refusal::Gpu { action: format!("upload {name}"), source })?;
        match self.memory {
            Memory::Device => self.bytes.device += matrix.bytes(),
            Memory::Host => self.bytes.host += matrix.bytes(),
        }
        let (name, sources) = (name.to_owned(), sources.to_vec());
        self.waiting.push(Upload { name, matrix: matrix.clone(), sources });
        Ok(matrix)
    }
}

/// Format of a matrix on the device.
pub(super) fn stored_format(matrix: &PackedMatrix) -> Format {
    device_format(matrix.format()).unwrap_or(Format::F16)
}

/// Smallest magnitude that rounds to infinity in F16.
const BEYOND_F16: f32 = 65_520.0;

/// Appends the values of a matrix as F16, in rows of `cols` values filled up with zeros.
fn to_f16(matrix: &PackedMatrix, cols: usize, name: &str, bytes: &mut Vec<u8>) -> Result<(), Refusal> {
    let mut row = vec![0.0; cols];
    for index in 0..matrix.rows() {
        matrix.dequantize_row(index, &mut row[..matrix.cols()]);
        if let Some(&value) = row.iter().find(|value| value.is_nan() || value.abs() >= BEYOND_F16) {
            let format = matrix.format().name();
            return Err(Refusal::BeyondF16 { tensor: name.to_owned(), format, value });
        }
        let start = bytes.len();
        bytes.resize(start + 2 * row.len(), 0);
        WeightFormat::F16.quantize(&row, &mut bytes[start..]);
    }
    Ok(())
}
