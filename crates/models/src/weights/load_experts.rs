//! Loading of mixtures of experts.

use super::linear::linear;
use super::source::TensorSource;
use super::{BesideWeights, ExpertLinears, ExpertWeights, FeedForward, ReadAhead};
use crate::error::{Error, Result};
use crate::family::{Experts, Scoring};

pub(super) fn load_shared(
    source: &mut TensorSource<'_>,
    (ffn_dim, model_dim): (usize, usize),
    is_gated: bool,
    name: &dyn Fn(&str) -> String,
) -> Result<FeedForward> {
    let gate = name("ffn_gate_shexp");
    Ok(FeedForward {
        gate: is_gated.then(|| linear(source, &gate, ffn_dim, model_dim)).transpose()?,
        up: linear(source, &name("ffn_up_shexp"), ffn_dim, model_dim)?,
        down: linear(source, &name("ffn_down_shexp"), model_dim, ffn_dim)?,
    })
}

pub(super) fn load_experts(
    source: &mut TensorSource<'_>,
    experts: &Experts,
    model_dim: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<ExpertWeights> {
    let (n, ffn_dim) = (experts.count, experts.ffn_dim);
    let mut read_ahead = Vec::new();
    let mut linears = |source: &mut TensorSource<'_>, part: &str, rows: usize, cols: usize| {
        let name = name(part);
        let (weights, file) = source.expert_matrices(&format!("{name}.weight"), n, rows, cols)?;
        read_ahead.extend(file);
        let bias = format!("{name}.bias");
        let bias = source.has(&bias).then(|| source.values(&bias, &[rows, n])).transpose()?;
        Ok::<_, Error>(ExpertLinears { weights, bias })
    };
    let joint = name("ffn_gate_up_exps.weight");
    let (gate, up, joint) = if experts.is_beside && source.has(&joint) {
        let (gate, up, joint) = load_joint(source, &joint, (n, ffn_dim), model_dim)?;
        (Some(gate), up, joint)
    } else {
        let is_gated = experts.activation.is_gated();
        let gate = is_gated.then(|| linears(source, "ffn_gate_exps", ffn_dim, model_dim)).transpose()?;
        (gate, linears(source, "ffn_up_exps", ffn_dim, model_dim)?, None)
    };
    let down = linears(source, "ffn_down_exps", model_dim, ffn_dim)?;
    read_ahead.extend(joint);
    let selection_bias = match experts.router.scoring {
        Scoring::Sigmoid => source.optional_vector(&name("exp_probs_b.bias"), n)?,
        _ => None,
    };
    let shared_gate = name("ffn_gate_inp_shexp.weight");
    let beside = experts.is_beside.then(|| load_beside(source, n, model_dim, name)).transpose()?;
    Ok(ExpertWeights {
        router: linear(source, &name("ffn_gate_inp"), n, model_dim)?,
        selection_bias,
        gate,
        up,
        down,
        shared_gate: experts.shared_gate.then(|| source.vector(&shared_gate, model_dim)).transpose()?,
        beside,
        read_ahead,
    })
}

/// Gate and up of all experts in one tensor, the rows of an expert's gate before those of its up.
fn load_joint(
    source: &mut TensorSource<'_>,
    name: &str,
    (n, ffn_dim): (usize, usize),
    model_dim: usize,
) -> Result<(ExpertLinears, ExpertLinears, Option<ReadAhead>)> {
    let mut rows = source.stacked_rows(name, model_dim, &[model_dim, 2 * ffn_dim, n])?;
    let read_ahead = rows.read_ahead(n);
    let (mut gate, mut up) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for _ in 0..n {
        gate.push(rows.next(ffn_dim)?);
        up.push(rows.next(ffn_dim)?);
    }
    let linears = |weights| ExpertLinears { weights, bias: None };
    Ok((linears(gate), linears(up), read_ahead))
}

fn load_beside(
    source: &mut TensorSource<'_>,
    n: usize,
    model_dim: usize,
    name: &dyn Fn(&str) -> String,
) -> Result<BesideWeights> {
    let mut router_norm = source.vector(&name("ffn_gate_inp.scale"), model_dim)?;
    let scale = (model_dim as f64).sqrt().recip() as f32;
    router_norm.iter_mut().for_each(|weight| *weight *= scale);
    Ok(BesideWeights {
        router_norm,
        input_norm: source.vector(&name("pre_ffw_norm_2.weight"), model_dim)?,
        network_norm: source.vector(&name("post_ffw_norm_1.weight"), model_dim)?,
        output_norm: source.vector(&name("post_ffw_norm_2.weight"), model_dim)?,
        scales: source.optional_vector(&name("ffn_down_exps.scale"), n)?,
    })
}
