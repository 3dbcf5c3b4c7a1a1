//! From the tensors of a folder to those of a GGUF file: names, shapes, and what happens to the
//! values on the way.

use std::collections::HashMap;

use gguf_rs_lite::{TensorInfo, TensorType};

use super::config::Hyperparameters;
use super::family::{Bias, Decoder, Family, Form, Part, Shape};
use super::latent::JointProjections;
use super::origin::{Change, Origin, Tensor};
use super::row_parts::{self, RowPart};
use super::shards::Stored;
use super::sizes::Sizes;
use super::stacks::Stacks;
use super::stored_names::{split_layer, without_prefix};
use super::streams::StreamProjections;
use crate::error::{Error, Result};
use crate::tensor_names::OUTPUT;

/// Parts of a model that sees images or hears.
const NOT_TEXT: [&str; 10] = [
    "visual.",
    "model.visual.",
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.audio_tower.",
    "model.embed_audio.",
    "model.embed_vision.",
];

/// Makes the list of a model's tensors: generated ones first, then those of the files in their
/// order.
///
/// # Errors
/// A tensor that is missing, left over, there twice, or of a wrong shape or type. Names are those
/// of the folder.
pub(super) fn list(model: &Hyperparameters, is_multimodal: bool, stored: Vec<Stored>) -> Result<Vec<Tensor>> {
    list_stored(model, is_multimodal, stored).map_err(|error| match error {
        Error::MissingTensor { name } => Error::MissingTensor { name: model.own_name(name) },
        other => other,
    })
}

/// As [`list`]; the layer of a prediction head has the name of one behind the last in errors.
fn list_stored(model: &Hyperparameters, is_multimodal: bool, stored: Vec<Stored>) -> Result<Vec<Tensor>> {
    // Each layer has tensors of its own: a count beyond their number must not decide the size of
    // anything.
    if model.sizes.n_layers > stored.len() {
        let layer = stored.len();
        return Err(Error::MissingTensor {
            name: shown(model, Some(layer), &model.family.layer[0][0], "weight"),
        });
    }
    let mut tensors = Vec::with_capacity(stored.len() + model.generated.len());
    for generated in &model.generated {
        let info = TensorInfo::new(generated.name, [generated.values.len() as u64], TensorType::F32)?;
        tensors.push(Tensor { info, origin: Origin::Generated(generated.values.clone()) });
    }
    let mut seen: HashMap<String, String> = HashMap::new();
    let (mut stacks, mut joint) = (Stacks::default(), JointProjections::default());
    let mut streams = StreamProjections::default();
    let experts = match &model.family.form {
        Form::Decoder(decoder) => decoder.experts.zip(model.sizes.experts.as_ref()),
        Form::Encoder(_) => None,
    };
    for tensor in stored {
        let name = without_prefix(&tensor.name).to_owned();
        let Some(tensor) = streams.take(&name, tensor)? else { continue };
        let place_in_stack = experts.and_then(|(experts, _)| {
            let name = model.usual_name(&tensor.name);
            let name = name.strip_prefix(model.family.names.layers)?;
            let (layer, rest) = split_layer(name, model.n_stored_layers())?;
            Some((experts, layer, experts.usual_name(rest)))
        });
        let tensor = match place_in_stack {
            None => tensor,
            Some((experts, layer, name)) => match stacks.take(experts, (layer, &name), tensor)? {
                None => continue,
                Some(tensor) => tensor,
            },
        };
        let place_of_joint = model.sizes.latent.and_then(|_| {
            let name = model.usual_name(&tensor.name);
            let name = name.strip_prefix(model.family.names.layers)?;
            let (layer, rest) = split_layer(name, model.n_stored_layers())?;
            Some((layer, rest.to_owned()))
        });
        let tensor = match place_of_joint {
            None => tensor,
            Some((layer, name)) => match joint.take((layer, &name), tensor)? {
                None => continue,
                Some(tensor) => tensor,
            },
        };
        let target = match place(&tensor.name, model, is_multimodal) {
            Place::Ignored => continue,
            Place::Unknown => {
                let architecture = model.family.architecture.to_owned();
                return Err(Error::UnexpectedTensor { name: tensor.name, architecture });
            }
            Place::At(target) => target,
        };
        if seen.insert(target.name.clone(), tensor.name.clone()).is_some() {
            return Err(Error::DuplicateTensor { name: tensor.name });
        }
        target.push(tensor, &mut tensors)?;
    }
    check_complete(model, |name| seen.contains_key(name))?;
    add_unused(model, |name| seen.contains_key(name), &mut tensors)?;
    tensors.extend(streams.finish(&model.sizes, model.family.architecture)?);
    let n_layers = model.n_stored_layers();
    tensors.extend(joint.finish(&model.sizes, n_layers)?);
    if let Some((experts, sizes)) = experts {
        let layers: Vec<usize> = (0..n_layers).filter(|&layer| model.have_experts(layer)).collect();
        let sizes = (model.sizes.model_dim, sizes);
        tensors.extend(stacks.finish(experts, sizes, &layers, model.family.architecture)?);
    }
    Ok(tensors)
}

/// Destination of a folder's tensor.
enum Place {
    At(Target),
    /// It follows from others, or belongs to a part that is not for text.
    Ignored,
    Unknown,
}

/// Tensor of the model that a stored tensor becomes.
struct Target {
    name: String,
    /// Fastest-varying first; 0 is any size.
    dims: Vec<u64>,
    change: Change,
    /// Its dimensions in GGUF, where they are others.
    reshaped: Option<[u64; 2]>,
    /// Tensors that have its rows; empty: one has all.
    parts: Vec<RowPart>,
}

impl Target {
    /// Adds the tensor, or those that have its rows, to a list.
    fn push(self, stored: Stored, tensors: &mut Vec<Tensor>) -> Result<()> {
        self.check_shape(&stored)?;
        if self.parts.is_empty() {
            tensors.push(self.tensor(stored)?);
        } else {
            for part in self.parts {
                tensors.push(part.tensor(&stored)?);
            }
        }
        Ok(())
    }

    fn check_shape(&self, stored: &Stored) -> Result<()> {
        let fits = self.dims.len() == stored.dims.len()
            && self
                .dims
                .iter()
                .zip(&stored.dims)
                .all(|(&expected, &found)| expected == 0 || expected == found);
        if fits {
            return Ok(());
        }
        let (name, found) = (stored.name.clone(), stored.dims.clone());
        Err(Error::TensorShape { name, expected: self.dims.clone(), found })
    }

    fn tensor(self, stored: Stored) -> Result<Tensor> {
        let tensor_type = stored.supported_type()?;
        if let Change::HeadColumns(order) = self.change
            && !order.fits(tensor_type)
        {
            let (found, supported) =
                (tensor_type.name(), "F32, F16 and BF16 for heads of this width".to_owned());
            return Err(Error::UnsupportedTensorType { name: stored.name, found, supported });
        }
        // Vectors, routers and token types are small and used in f32, and llama.cpp wants them so.
        let is_small = stored.dims.len() == 1
            || matches!(self.change, Change::Widen | Change::Flatten | Change::Taps(_));
        let tensor_type = if is_small { TensorType::F32 } else { tensor_type };
        let mut dims = stored.dims.clone();
        match self.change {
            Change::Flatten => dims.truncate(1),
            Change::Taps(_) => dims.retain(|&dim| dim != 1),
            _ => {}
        }
        if let (Change::SkipRows(rows), [_, stored_rows]) = (self.change, dims.as_mut_slice()) {
            *stored_rows = stored_rows.saturating_sub(rows as u64);
        }
        if let Some(reshaped) = self.reshaped {
            dims = reshaped.to_vec();
        }
        let info = TensorInfo::new(self.name, dims, tensor_type)?;
        Ok(Tensor { info, origin: Origin::Stored(stored, self.change) })
    }
}

fn place(name: &str, model: &Hyperparameters, is_multimodal: bool) -> Place {
    if name.ends_with("rotary_emb.inv_freq")
        || is_multimodal && NOT_TEXT.iter().any(|prefix| name.starts_with(prefix))
    {
        return Place::Ignored;
    }
    let name = &*model.usual_name(name);
    let names = model.family.names;
    if model.leaves_out(name) {
        return Place::Ignored;
    }
    if names.unused.iter().any(|prefix| name.starts_with(prefix)) {
        return Place::Ignored;
    }
    if name == "lm_head.weight" {
        if model.is_tied == Some(true) {
            return Place::Ignored;
        }
        let (name, dims) = (OUTPUT.to_owned(), dims(Shape::Embedding, &model.sizes));
        let factor = model.sizes.multipliers.logits;
        let parts = (factor != 1.0).then(|| RowPart::scaled(OUTPUT, factor)).into_iter().collect();
        let (change, reshaped) = (Change::None, None);
        return Place::At(Target { name, dims, change, reshaped, parts });
    }
    let target = match name.strip_prefix(names.layers) {
        Some(rest) => {
            let of_layer = split_layer(rest, model.sizes.n_layers);
            if of_layer.is_some_and(|(layer, name)| model.ignores(layer, name)) {
                return Place::Ignored;
            }
            place_in_layer(rest, model)
        }
        None => place_part(name, model.parts_outside(), "", (model.family, &model.sizes)),
    };
    target.map_or(Place::Unknown, Place::At)
}

fn place_in_layer(name: &str, model: &Hyperparameters) -> Option<Target> {
    let (layer, rest) = split_layer(name, model.n_stored_layers())?;
    let rest = match &model.family.form {
        Form::Decoder(Decoder { experts: Some(experts), .. }) => experts.usual_name(rest),
        _ => rest.to_owned(),
    };
    let sizes = model.sizes_of(layer);
    let parts = model.parts_of(layer).chain(model.optional_parts_of(layer));
    place_part(&rest, parts, &format!("blk.{layer}."), (model.family, &sizes))
}

/// The place of a tensor that is one of `parts`, whose names in GGUF begin with `prefix`.
fn place_part<'a>(
    name: &str,
    parts: impl Iterator<Item = &'a Part> + Clone,
    prefix: &str,
    (family, sizes): (&Family, &Sizes),
) -> Option<Target> {
    let find = |stem: &str, has_suffix: bool| {
        parts.clone().find(|part| part.hf == stem && part.shape.is_bare() != has_suffix)
    };
    if let Some(part) = find(name, false) {
        return Some(target(part, (prefix, ""), dims(part.shape, sizes), (family, sizes)));
    }
    let (stem, suffix) = name.rsplit_once('.')?;
    let part = find(stem, true)?;
    let suffix = match suffix {
        "weight" | "bias" => suffix,
        // The first published encoders.
        "gamma" if is_layer_norm(part) => "weight",
        "beta" if is_layer_norm(part) => "bias",
        _ => return None,
    };
    let mut dims = dims(part.shape, sizes);
    if suffix == "bias" {
        if part.bias == Bias::Never {
            return None;
        }
        // As many as there are outputs.
        dims.drain(..dims.len() - 1);
    }
    Some(target(part, (prefix, suffix), dims, (family, sizes)))
}

/// The place of a tensor of a part with these dimensions.
fn target(
    part: &Part,
    (prefix, suffix): (&str, &str),
    dims: Vec<u64>,
    (family, sizes): (&Family, &Sizes),
) -> Target {
    let name = part.gguf_name(prefix, suffix);
    let parts = row_parts::of(part, &name, &dims, sizes);
    Target { name, dims, change: change(part, family, sizes), reshaped: reshaped(part.shape, sizes), parts }
}

/// True if a part is a norm with a bias.
fn is_layer_norm(part: &Part) -> bool {
    part.shape == Shape::ModelNorm && part.bias == Bias::Always
}

/// The shape of a tensor, fastest-varying dimension first.
fn dims(shape: Shape, sizes: &Sizes) -> Vec<u64> {
    let (query, key) = (sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim);
    let (width, inner, state) = (sizes.model_dim, sizes.ffn_dim, &sizes.recurrent);
    let latent = sizes.latent.unwrap_or_default();
    let (count, shared) = sizes.experts.map_or((0, 0), |experts| (experts.count, experts.shared_dim));
    let (n_streams, rank) = sizes.streams.map_or((0, 0), |streams| (streams.count, streams.rank));
    let (input, inputs) = (sizes.layer_input_dim, sizes.layer_input_dim * sizes.n_layers);
    let dims = match shape {
        Shape::LayerScale => return vec![1],
        Shape::LayerInputNorm => return vec![input as u64],
        Shape::LayerInputs => [inputs, sizes.layer_input_rows.or(sizes.vocab_size).unwrap_or(0)],
        Shape::LayerInputProjection => [width, inputs],
        Shape::LayerInputGate => [width, input],
        Shape::LayerInputOutput => [input, width],
        Shape::StreamRouter => [width, n_streams],
        Shape::StreamPrediction => [n_streams, n_streams * n_streams],
        Shape::StreamCorrection => [n_streams, n_streams],
        Shape::LowRankDown => [width, rank],
        Shape::LowRankUp => [rank, width],
        Shape::ModelNorm | Shape::LaterNorm | Shape::BareNorm | Shape::RouterScale | Shape::StreamScale => {
            return vec![width as u64];
        }
        Shape::HeadNorm => return vec![sizes.head_dim as u64],
        Shape::QueryNorm => return vec![query as u64],
        Shape::KeyNorm => return vec![key as u64],
        Shape::Sinks => return vec![sizes.n_heads as u64],
        Shape::SelectionBias | Shape::ExpertScales => return vec![count as u64],
        Shape::StateBias | Shape::StateDecay | Shape::MambaDecay | Shape::MambaSkip => {
            return vec![state.value_heads as u64];
        }
        Shape::StateNorm => return vec![state.value_dim as u64],
        Shape::MambaNorm => return vec![state.values() as u64],
        Shape::StateTaps => return vec![state.taps as u64, 1, (2 * state.keys() + state.values()) as u64],
        Shape::ConvolutionTaps => return vec![state.taps as u64, 1, width as u64],
        Shape::QueryLatentNorm => return vec![latent.query_rank.unwrap_or(0) as u64],
        Shape::LatentNorm => return vec![latent.rank as u64],
        Shape::QueryLatent => [width, latent.query_rank.unwrap_or(0)],
        Shape::LatentQuery => [latent.query_rank.unwrap_or(width), sizes.n_heads * latent.query_dim()],
        Shape::Latent => [width, latent.rank + latent.rotary_dim],
        Shape::LatentOutput => [sizes.n_heads * latent.value_dim, width],
        Shape::StateInput => [width, 2 * state.keys() + state.values()],
        Shape::StateGate => [width, state.values()],
        Shape::MambaInput => [width, 2 * (state.keys() + state.values()) + state.value_heads],
        Shape::InterleavedInput => [width, 2 * (state.keys() + state.values())],
        Shape::StateHeads => [width, state.value_heads],
        Shape::InterleavedHeads => [width, 2 * state.value_heads],
        Shape::StateOutput => [state.values(), width],
        Shape::ConvolutionInput => [width, 3 * width],
        Shape::ConvolutionOutput | Shape::HeadHidden => [width, width],
        Shape::PairProjection => [2 * width, width],
        Shape::GatedQuery => [width, 2 * query],
        Shape::Router => [width, count],
        Shape::SharedGate | Shape::HeadOutput => [width, 1],
        Shape::SharedUp => [width, shared],
        Shape::SharedGateAndUp => [width, 2 * shared],
        Shape::SharedDown => [shared, width],
        Shape::Embedding => [width, sizes.vocab_size.unwrap_or(0)],
        Shape::Positions => [width, sizes.first_position + sizes.context],
        Shape::TokenTypes => [width, sizes.n_token_types],
        Shape::Query => [width, query],
        Shape::Key | Shape::Value => [width, key],
        Shape::QueryKeyValue => [width, query + 2 * key],
        Shape::AttentionOutput => [query, width],
        Shape::Up => [width, inner],
        Shape::GateUp | Shape::GateAndUp => [width, 2 * inner],
        Shape::Down => [inner, width],
    };
    dims.map(|dim| dim as u64).to_vec()
}

/// The dimensions of a vector that is a matrix in GGUF.
fn reshaped(shape: Shape, sizes: &Sizes) -> Option<[u64; 2]> {
    let state = &sizes.recurrent;
    let dims = match shape {
        Shape::MambaDecay | Shape::MambaSkip => [1, state.value_heads],
        Shape::MambaNorm => [state.values() / state.key_heads.max(1), state.key_heads],
        _ => return None,
    };
    Some(dims.map(|dim| dim as u64))
}

fn change(part: &Part, family: &Family, sizes: &Sizes) -> Change {
    let state = &sizes.recurrent;
    let rows = |before, rows| match state.order(before, rows) {
        order if order.is_same() => Change::None,
        order => Change::HeadRows(order),
    };
    match part.shape {
        Shape::StateInput => rows(2 * state.keys(), state.value_dim),
        Shape::StateGate => rows(0, state.value_dim),
        Shape::StateHeads | Shape::StateBias => rows(0, 1),
        Shape::StateDecay | Shape::MambaDecay => Change::Decay(state.order(0, 1)),
        Shape::StateTaps => Change::Taps(state.order(2 * state.keys(), state.value_dim)),
        Shape::ConvolutionTaps => Change::Taps(state.order(0, 1)),
        Shape::StateOutput if !state.order(0, 1).is_same() => {
            Change::HeadColumns(state.order(0, state.value_dim))
        }
        Shape::Query if family.interleaves_heads => Change::Interleave(sizes.n_heads),
        Shape::Key if family.interleaves_heads => Change::Interleave(sizes.n_kv_heads),
        Shape::ModelNorm | Shape::HeadNorm if family.norms_plus_one => Change::PlusOne,
        Shape::Router | Shape::TokenTypes | Shape::StreamPrediction | Shape::StreamCorrection => {
            Change::Widen
        }
        Shape::SharedGate => Change::Flatten,
        Shape::Positions if sizes.first_position > 0 => Change::SkipRows(sizes.first_position),
        _ => Change::None,
    }
}

/// Checks that every tensor is there that the model needs.
fn check_complete(model: &Hyperparameters, has: impl Fn(&str) -> bool) -> Result<()> {
    let check = |layer: Option<usize>, part: &Part| {
        let prefix = layer.map_or_else(String::new, |layer| format!("blk.{layer}."));
        let needed: &[&str] = if part.bias == Bias::Always { &["weight", "bias"] } else { &["weight"] };
        match needed.iter().find(|suffix| !has(&part.gguf_name(&prefix, suffix))) {
            None => Ok(()),
            Some(suffix) => Err(Error::MissingTensor { name: shown(model, layer, part, suffix) }),
        }
    };
    model.parts_outside().try_for_each(|part| check(None, part))?;
    if model.is_tied == Some(false) && !has(OUTPUT) {
        return Err(Error::MissingTensor { name: "lm_head.weight".to_owned() });
    }
    let needed = |layer| model.parts_of(layer).filter(move |part| !model.may_lack(layer, part));
    (0..model.n_stored_layers())
        .try_for_each(|layer| needed(layer).try_for_each(|part| check(Some(layer), part)))
}

/// Adds the tensors of layers that files have, though nothing uses them, and the folder lacks.
fn add_unused(model: &Hyperparameters, has: impl Fn(&str) -> bool, tensors: &mut Vec<Tensor>) -> Result<()> {
    for layer in 0..model.sizes.n_layers {
        for part in model.parts_of(layer).filter(|part| model.may_lack(layer, part)) {
            let name = part.gguf_name(&format!("blk.{layer}."), "weight");
            if !has(&name) {
                let dims = dims(part.shape, &model.sizes_of(layer));
                let tensor_type = if dims.len() == 1 { TensorType::F32 } else { TensorType::F16 };
                let info = TensorInfo::new(name, dims, tensor_type)?;
                tensors.push(Tensor { info, origin: Origin::Zeros });
            }
        }
    }
    Ok(())
}

/// The name of a tensor in a folder.
fn shown(model: &Hyperparameters, layer: Option<usize>, part: &Part, suffix: &str) -> String {
    let names = model.family.names;
    let layer = layer.map_or_else(String::new, |layer| format!("{}{layer}.", names.layers));
    let suffix = if part.shape.is_bare() { String::new() } else { format!(".{suffix}") };
    format!("{}{layer}{}{suffix}", names.shown_prefix, part.hf)
}
