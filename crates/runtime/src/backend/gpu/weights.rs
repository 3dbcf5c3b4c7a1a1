//! Weights of a decoder on the device: matrices in the formats of the kernels, vectors in f32.

use ruvllm_gpu::{Buffer, Format, Gpu, Matrix};
use ruvllm_kernels::quant::{PackedMatrix, WeightFormat};
use ruvllm_models::{LayerWeights, Linear, Model};

use super::refusal::Refusal;

/// Rows of one or several projections of one input, and their offset in the output row.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) matrix: Matrix,
    pub(super) first: u32,
}

/// Projections of one input: `[outputs]` values per row.
#[derive(Debug)]
pub(super) struct Projection {
    /// Adjacent projections of one format are stored as one matrix.
    pub(super) parts: Vec<Part>,
    pub(super) outputs: u32,
    /// `[outputs]`.
    pub(super) bias: Option<Buffer>,
}

/// One transformer layer.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    pub(super) attention_norm: Buffer,
    /// Queries, keys and values.
    pub(super) qkv: Projection,
    /// Norm weights of queries and keys, `[2, head_dim]`.
    pub(super) head_norms: Option<Buffer>,
    pub(super) attention_output: Projection,
    pub(super) attention_post_norm: Option<Buffer>,
    pub(super) ffn_norm: Buffer,
    pub(super) gate_up: Projection,
    pub(super) down: Projection,
    pub(super) ffn_post_norm: Option<Buffer>,
}

/// All weights.
#[derive(Debug)]
pub(super) struct DeviceWeights {
    pub(super) embedding: Matrix,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) output_norm: Buffer,
    pub(super) output: Projection,
    /// True if the output matrix is the embedding (tied).
    tied: bool,
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

impl DeviceWeights {
    /// Allocates the weights of `model` and uploads its vectors. The matrices remain to be written,
    /// so that kernels can be compiled meanwhile.
    pub(super) fn allocate<'m>(gpu: &Gpu, model: &'m Model) -> Result<(Self, Uploads<'m>), Refusal> {
        let weights = model.weights();
        let mut uploader = Uploader { gpu, waiting: Vec::new(), converted: Vec::new() };
        let layer = |(index, layer)| uploader.layer(index, layer);
        let layers = weights.layers.iter().enumerate().map(layer).collect::<Result<_, _>>()?;
        let embedding = uploader.matrix("token_embd.weight", &[&weights.embedding])?;
        let output = match &weights.output {
            Some(linear) => uploader.projection(&[("output", linear)])?,
            None => Projection {
                outputs: embedding.rows(),
                parts: vec![Part { matrix: embedding.clone(), first: 0 }],
                bias: None,
            },
        };
        let output_norm = uploader.vector(&weights.output_norm)?;
        let Uploader { waiting, converted, .. } = uploader;
        let tied = weights.output.is_none();
        Ok((Self { embedding, layers, output_norm, output, tied }, Uploads { waiting, converted }))
    }

    /// Bytes of the matrices on the device.
    pub(super) fn bytes(&self) -> u64 {
        let projections = |layer: &DeviceLayer| {
            [&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down].map(Projection::bytes)
        };
        let layers: u64 = self.layers.iter().flat_map(projections).sum();
        let embedding = if self.tied { 0 } else { self.embedding.bytes() };
        layers + self.output.bytes() + embedding
    }
}

impl Projection {
    /// Formats of its matrices.
    pub(super) fn formats(&self) -> impl Iterator<Item = Format> {
        self.parts.iter().map(|part| part.matrix.format())
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.matrix.bytes()).sum()
    }
}

/// Kernel format with the same quant blocks as a file's format, if any.
fn device_format(format: WeightFormat) -> Option<Format> {
    match format {
        WeightFormat::F16 => Some(Format::F16),
        WeightFormat::Q8_0 => Some(Format::Q8_0),
        WeightFormat::Q4_0 => Some(Format::Q4_0),
        WeightFormat::IQ4NL => Some(Format::IQ4NL),
        WeightFormat::Q4K => Some(Format::Q4K),
        WeightFormat::Q5K => Some(Format::Q5K),
        WeightFormat::Q6K => Some(Format::Q6K),
        _ => None,
    }
}

impl Uploads<'_> {
    /// Writes all matrices; returns [`converted`](Self::converted).
    pub(super) fn write(self, gpu: &Gpu) -> Result<Vec<String>, Refusal> {
        for Upload { name, matrix, sources } in &self.waiting {
            let mut owned = Vec::new();
            let bytes: &[u8] = match sources[..] {
                [one] if device_format(one.format()).is_some() => one.bytes(),
                _ => {
                    for source in sources {
                        match device_format(source.format()) {
                            Some(_) => owned.extend_from_slice(source.bytes()),
                            None => to_f16(source, name, &mut owned)?,
                        }
                    }
                    &owned
                }
            };
            matrix
                .write(gpu, bytes)
                .map_err(|source| Refusal::Gpu { action: format!("upload {name}"), source })?;
        }
        Ok(self.converted)
    }
}

struct Uploader<'a, 'm> {
    gpu: &'a Gpu,
    waiting: Vec<Upload<'m>>,
    converted: Vec<String>,
}

impl<'m> Uploader<'_, 'm> {
    fn layer(&mut self, index: usize, layer: &'m LayerWeights) -> Result<DeviceLayer, Refusal> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(name);
        let [output, gate, up, down] = ["attn_output", "ffn_gate", "ffn_up", "ffn_down"].map(name);
        let missing = |what| Refusal::Unsupported(format!("its layer {index} has no {what}"));
        let network = layer.feed_forward.as_ref();
        let network = network.ok_or_else(|| missing("feed-forward network for every token"))?;
        let gate_weights =
            network.gate.as_ref().ok_or_else(|| missing("gate of its feed-forward network"))?;
        let input_norm = |norm: &'m Option<Vec<f32>>| norm.as_deref().ok_or_else(|| missing("input norm"));
        let attention = layer.mixer.attention().ok_or_else(|| missing("attention"))?;
        let value = attention.value.as_ref().ok_or_else(|| missing("projection to values"))?;
        let head_norms = match (&attention.query_norm, &attention.key_norm) {
            (Some(query), Some(key)) => Some(self.vector(&[query.as_slice(), key].concat())?),
            _ => None,
        };
        Ok(DeviceLayer {
            attention_norm: self.vector(input_norm(&layer.attention_norm)?)?,
            qkv: self.projection(&[(&q, &attention.query), (&k, &attention.key), (&v, value)])?,
            head_norms,
            attention_output: self.projection(&[(&output, &attention.output)])?,
            attention_post_norm: self.optional(layer.attention_post_norm.as_deref())?,
            ffn_norm: self.vector(input_norm(&layer.ffn_norm)?)?,
            gate_up: self.projection(&[(&gate, gate_weights), (&up, &network.up)])?,
            down: self.projection(&[(&down, &network.down)])?,
            ffn_post_norm: self.optional(layer.ffn_post_norm.as_deref())?,
        })
    }

    fn vector(&self, values: &[f32]) -> Result<Buffer, Refusal> {
        self.gpu.upload(values).map_err(|source| Refusal::Gpu { action: "upload a vector".into(), source })
    }

    fn optional(&self, values: Option<&[f32]>) -> Result<Option<Buffer>, Refusal> {
        values.map(|values| self.vector(values)).transpose()
    }

    fn projection(&mut self, linears: &[(&str, &'m Linear)]) -> Result<Projection, Refusal> {
        let stored = |linear: &Linear| device_format(linear.weights.format()).unwrap_or(Format::F16);
        let mut parts = Vec::new();
        let mut outputs = 0;
        for run in linears.chunk_by(|(_, a), (_, b)| stored(a) == stored(b)) {
            let matrices: Vec<&'m PackedMatrix> = run.iter().map(|(_, linear)| &linear.weights).collect();
            let names: Vec<&str> = run.iter().map(|(name, _)| *name).collect();
            let matrix = self.matrix(&format!("{}.weight", names.join(", ")), &matrices)?;
            let rows = matrix.rows();
            parts.push(Part { matrix, first: outputs });
            outputs += rows;
        }
        let bias = if linears.iter().any(|(_, linear)| linear.bias.is_some()) {
            let bias = |(_, linear): &(&str, &Linear)| {
                linear.bias.clone().unwrap_or_else(|| vec![0.0; linear.weights.rows()])
            };
            Some(self.vector(&linears.iter().flat_map(bias).collect::<Vec<f32>>())?)
        } else {
            None
        };
        Ok(Projection { parts, outputs, bias })
    }

    /// Allocates a matrix for weights of one device format, concatenated by rows.
    fn matrix(&mut self, name: &str, sources: &[&'m PackedMatrix]) -> Result<Matrix, Refusal> {
        let cols = sources[0].cols();
        let rows: usize = sources.iter().map(|source| source.rows()).sum();
        let format = device_format(sources[0].format()).unwrap_or(Format::F16);
        let unit = format.column_unit();
        if !cols.is_multiple_of(unit) {
            let found = sources[0].format().name();
            return Err(Refusal::Columns { tensor: name.to_owned(), format: found, cols, unit });
        }
        for source in sources.iter().filter(|source| device_format(source.format()).is_none()) {
            self.converted.push(format!("{name} ({})", source.format().name()));
        }
        let matrix = Matrix::zeroed(self.gpu, format, rows as u32, cols as u32)
            .map_err(|source| Refusal::Gpu { action: format!("upload {name}"), source })?;
        let (name, sources) = (name.to_owned(), sources.to_vec());
        self.waiting.push(Upload { name, matrix: matrix.clone(), sources });
        Ok(matrix)
    }
}

/// Smallest magnitude that rounds to infinity in F16.
const BEYOND_F16: f32 = 65_520.0;

/// Appends the values of a matrix as F16.
fn to_f16(matrix: &PackedMatrix, name: &str, bytes: &mut Vec<u8>) -> Result<(), Refusal> {
    let mut row = vec![0.0; matrix.cols()];
    for index in 0..matrix.rows() {
        matrix.dequantize_row(index, &mut row);
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
