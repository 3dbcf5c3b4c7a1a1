//! FP8 matrices of experts whose scales are one tensor per layer.
//!
//! Source: `FP8Experts` and `Fp8Quantize` of transformers 5.24. It saves the scales of a model that
//! it has quantized itself under the names that it computes with, beside quants under the names of
//! published folders: those of all experts, or of single ones.

use std::collections::BTreeMap;

use super::super::shards::Stored;
use super::matrix::Packed;
use super::scheme::Method;
use crate::error::{Error, Result};

const GATE_UP: &str = "gate_up_proj";
const UP: &str = "up_proj";
const DOWN: &str = "down_proj";

/// Ends of names of scales, and of those of activations, behind the name of the weights.
const SCALES: &str = "_scale_inv";
const OF_ACTIVATIONS: &str = "_activation_scale";

/// Names of single matrices and of those of a layer in one tensor: those of the scales, the number
/// of matrices of an expert there, and the index of this one.
const PARTS: [(&str, &str, usize, usize); 6] = [
    ("gate_proj", GATE_UP, 2, 0),
    ("up_proj", GATE_UP, 2, 1),
    ("down_proj", DOWN, 1, 0),
    ("w1", GATE_UP, 2, 0),
    ("w3", GATE_UP, 2, 1),
    ("w2", DOWN, 1, 0),
];

/// Granite's names of the weights of a layer, and those of the scales.
const GRANITE: [(&str, &str); 2] =
    [(".input_linear", ".experts.gate_up_proj"), (".output_linear", ".experts.down_proj")];

/// True if a name is that of a tensor of all experts.
fn is_of_all(name: &str) -> bool {
    let Some((beginning, name)) = name.rsplit_once('.') else { return false };
    [GATE_UP, UP, DOWN].contains(&name) && beginning.rsplit('.').next() == Some("experts")
}

/// Scales by the name of the weights, and true if there are such weights.
#[derive(Default)]
pub(super) struct ExpertScales(BTreeMap<String, (Stored, bool)>);

impl ExpertScales {
    /// Takes a tensor if it holds scales of all experts of a layer; gives others back.
    pub(super) fn take(&mut self, method: Method, stored: Stored) -> Option<Stored> {
        if !matches!(method, Method::Float8 { .. }) {
            return Some(stored);
        }
        let weights = |end| stored.name.strip_suffix(end).filter(|stem| is_of_all(stem)).map(str::to_owned);
        if weights(OF_ACTIVATIONS).is_some() {
            return None;
        }
        match weights(SCALES) {
            Some(stem) => {
                self.0.insert(stem, (stored, false));
                None
            }
            None => Some(stored),
        }
    }

    fn of(&mut self, name: &str) -> Option<Stored> {
        self.0.get_mut(name).map(|(stored, is_used)| {
            *is_used = true;
            stored.clone()
        })
    }

    /// A tensor of all experts with its scales; others as they are.
    ///
    /// # Errors
    /// Scales that are missing, or not of whole tiles of such matrices.
    pub(super) fn joint(&mut self, method: Method, stored: Stored) -> Result<Stored> {
        let is_float8 = matches!(method, Method::Float8 { .. }) && stored.type_name == "F8_E4M3";
        if !is_float8 || !is_of_all(&stored.name) {
            return Ok(stored);
        }
        let name = stored.name.clone();
        let missing = || Error::MissingTensor { name: format!("{name}{SCALES}") };
        let scales = self.of(&name).ok_or_else(missing)?;
        Ok(Packed::of_float8(stored, scales, method.tile())?.listed(name))
    }

    /// The scales of a tensor of all experts of Granite, by its name without `.weight`.
    pub(super) fn of_granite(&mut self, stem: &str) -> Option<Stored> {
        let find = |(end, own)| Some((stem.strip_suffix(end)?, own));
        let (beginning, own) = GRANITE.into_iter().find_map(find)?;
        self.of(&format!("{beginning}{own}"))
    }

    /// A single matrix with its part of the scales; `None` if there are none of it.
    ///
    /// # Errors
    /// Scales that are not of whole tiles of such matrices.
    pub(super) fn single(
        &mut self,
        stem: &str,
        quants: &Stored,
        tile: Option<[u64; 2]>,
    ) -> Option<Result<Packed>> {
        let (beginning, part) = stem.rsplit_once('.')?;
        let (beginning, expert) = beginning.rsplit_once('.')?;
        let expert: usize = expert.parse().ok()?;
        let &(_, name, count, index) = PARTS.iter().find(|(own, ..)| *own == part)?;
        let scales = self.of(&format!("{beginning}.{name}"))?;
        let experts = scales.dims.last().and_then(|&experts| usize::try_from(experts).ok());
        let experts = experts.filter(|&experts| expert < experts)?;
        Some(Packed::of_expert(quants.clone(), scales, experts, count, expert * count + index, tile))
    }

    /// Scales of no weights.
    pub(super) fn left_over(self) -> impl Iterator<Item = Stored> {
        self.0.into_values().filter(|(_, is_used)| !is_used).map(|(stored, _)| stored)
    }
}
