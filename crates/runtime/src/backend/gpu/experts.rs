//! Mixtures of experts on the device: a router and the stacked matrices of all experts.

use ruvllm_gpu::{Activation, Buffer, ExpertMatrix, Format, RouterKernel, RouterScoring};
use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_models::{ExpertLinears, ExpertWeights, Experts, Scoring};

use super::beside::DeviceBeside;
use super::refusal::{self, Refusal};
use super::uploads::{Uploader, stored_format};

/// Matrices of experts with one input, and their offset in the output row.
#[derive(Debug)]
pub(super) struct ExpertPart {
    pub(super) matrix: ExpertMatrix,
    /// For matrices in memory of the host: as [`Stored::staged`](super::uploads::Stored).
    pub(super) staged: Option<ExpertMatrix>,
    pub(super) first: u32,
}

/// Projections of one input by experts: `[outputs]` values per pair of a row and an expert.
#[derive(Debug)]
pub(super) struct ExpertProjection {
    /// Gate and up of one format are stored as one matrix per expert; there may be no gate.
    pub(super) parts: Vec<ExpertPart>,
    pub(super) outputs: u32,
    /// `[experts, outputs]`.
    pub(super) bias: Option<Buffer>,
}

/// The experts of a layer.
#[derive(Debug)]
pub(super) struct DeviceExperts {
    pub(super) key: RouterKernel,
    /// `[experts, model_dim]`, and behind it the direction of the gate of the shared experts.
    pub(super) router: Buffer,
    pub(super) router_bias: Option<Buffer>,
    pub(super) selection_bias: Option<Buffer>,
    pub(super) gate_up: ExpertProjection,
    pub(super) down: ExpertProjection,
    pub(super) activation: Activation,
    /// Weights multiply the inputs of experts instead of their outputs.
    pub(super) weighs_inputs: bool,
    /// The output of the shared experts is multiplied by the sigmoid of the last logit.
    pub(super) shared_gate: bool,
    /// Experts that stand beside the network of every token.
    pub(super) beside: Option<DeviceBeside>,
}

impl DeviceExperts {
    /// Allocates the experts of a layer whose tensors `name` names.
    pub(super) fn allocate<'m>(
        uploader: &mut Uploader<'_, 'm>,
        spec: &Experts,
        name: &dyn Fn(&str) -> String,
        weights: &'m ExpertWeights,
        has_shared: bool,
    ) -> Result<Self, Refusal> {
        let [gate_name, up_name, down_name] =
            ["ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"].map(name);
        let gates = weights.gate.iter().map(|gate| (gate_name.as_str(), gate));
        let inputs: Vec<_> = gates.chain([(up_name.as_str(), &weights.up)]).collect();
        let gate_up = inputs_of(uploader, spec, &inputs)?;
        let down = &weights.down;
        let down_part = part(uploader, spec, &down_name, down.weights.iter().collect(), 0)?;
        let down = ExpertProjection {
            outputs: down_part.matrix.rows(),
            parts: vec![down_part],
            bias: biases(uploader, spec, &[down])?,
        };
        let shared_gate = weights.shared_gate.as_deref().filter(|_| has_shared);
        Ok(Self {
            key: router_key(spec, weights.selection_bias.is_some(), shared_gate.is_some())?,
            router: uploader.vector(&router(&weights.router.weights, shared_gate))?,
            router_bias: match &weights.router.bias {
                Some(bias) if shared_gate.is_some() => Some(uploader.vector(&[bias, &[0.0][..]].concat())?),
                bias => uploader.optional(bias.as_deref())?,
            },
            selection_bias: uploader.optional(weights.selection_bias.as_deref())?,
            gate_up,
            down,
            activation: refusal::activation(spec.activation)?,
            weighs_inputs: spec.weighs_inputs,
            shared_gate: shared_gate.is_some(),
            beside: match &weights.beside {
                Some(beside) => Some(DeviceBeside::upload(uploader, beside)?),
                None => None,
            },
        })
    }
}

impl ExpertProjection {
    /// Formats of its matrices.
    pub(super) fn formats(&self) -> impl Iterator<Item = Format> {
        self.parts.iter().map(|part| part.matrix.matrix().format())
    }
}

/// Projections that the activation is computed from.
fn inputs_of<'m>(
    uploader: &mut Uploader<'_, 'm>,
    spec: &Experts,
    inputs: &[(&str, &'m ExpertLinears)],
) -> Result<ExpertProjection, Refusal> {
    let of_expert = |expert: usize| inputs.iter().map(move |(_, linears)| &linears.weights[expert]);
    let all: Vec<_> = (0..spec.count).flat_map(of_expert).collect();
    let mut formats = of_expert(0).map(stored_format);
    let first = formats.next();
    let width = spec.ffn_dim as u32;
    let parts = if formats.all(|format| Some(format) == first) && uploader.fits(&all) {
        let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
        vec![part(uploader, spec, &names.join(", "), all, 0)?]
    } else {
        let own = |(index, (name, linears)): (u32, &(&str, &'m ExpertLinears))| {
            part(uploader, spec, name, linears.weights.iter().collect(), index * width)
        };
        (0..).zip(inputs).map(own).collect::<Result<_, _>>()?
    };
    let linears: Vec<&ExpertLinears> = inputs.iter().map(|(_, linears)| *linears).collect();
    Ok(ExpertProjection {
        parts,
        outputs: inputs.len() as u32 * width,
        bias: biases(uploader, spec, &linears)?,
    })
}

fn router_key(spec: &Experts, biased: bool, has_gate: bool) -> Result<RouterKernel, Refusal> {
    let scoring = match spec.router.scoring {
        Scoring::Sigmoid => RouterScoring::Sigmoid,
        Scoring::SoftmaxOfSelected => RouterScoring::ChosenSoftmax,
        Scoring::SigmoidOfSelected => RouterScoring::ChosenSigmoid,
        Scoring::SparseMixer => RouterScoring::SparseMixer,
        Scoring::Softmax => RouterScoring::Softmax,
        other => return Err(Refusal::Unsupported(format!("no GPU kernel has the router {other:?}"))),
    };
    Ok(RouterKernel {
        experts: spec.count as u32,
        used: spec.used as u32,
        width: spec.count as u32 + u32::from(has_gate),
        scoring,
        groups: spec.router.groups.map(|groups| (groups.count as u32, groups.used as u32)),
        biased,
        renormalize: spec.router.renormalize,
        scale_bits: spec.router.scale.to_bits(),
    })
}

/// Rows of the router in f32, and the gate of the shared experts behind them.
fn router(weights: &PackedMatrix, gate: Option<&[f32]>) -> Vec<f32> {
    let cols = weights.cols();
    let mut rows = vec![0.0; weights.rows() * cols];
    for (index, row) in rows.chunks_exact_mut(cols).enumerate() {
        weights.dequantize_row(index, row);
    }
    rows.extend(gate.unwrap_or_default());
    rows
}

fn part<'m>(
    uploader: &mut Uploader<'_, 'm>,
    spec: &Experts,
    name: &str,
    sources: Vec<&'m PackedMatrix>,
    first: u32,
) -> Result<ExpertPart, Refusal> {
    let stored = uploader.stored(name, &sources)?;
    let experts = |matrix| {
        ExpertMatrix::new(matrix, spec.count as u32)
            .map_err(|source| Refusal::Gpu { action: format!("upload {name}"), source })
    };
    let staged = stored.staged.map(experts).transpose()?;
    Ok(ExpertPart { matrix: experts(stored.matrix)?, staged, first })
}

/// Biases of each expert, those of several projections one behind the other.
fn biases(
    uploader: &Uploader<'_, '_>,
    spec: &Experts,
    linears: &[&ExpertLinears],
) -> Result<Option<Buffer>, Refusal> {
    if linears.iter().all(|linears| linears.bias.is_none()) {
        return Ok(None);
    }
    let mut all = Vec::new();
    for expert in 0..spec.count {
        for linears in linears {
            let outputs = linears.weights[expert].rows();
            match &linears.bias {
                Some(bias) => all.extend_from_slice(&bias[expert * outputs..][..outputs]),
                None => all.resize(all.len() + outputs, 0.0),
            }
        }
    }
    uploader.vector(&all).map(Some)
}
