//! The two files of a PEFT folder. Fields as PEFT 0.17 writes them.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

use super::folder::Files;
use super::{FactorType, NewAdapter, NewUpdate};
use crate::error::{Error, Result};
use crate::format::peft::{CONFIG, WEIGHTS, module_name, place};

/// Weights and configuration.
pub(super) fn files(adapter: &NewAdapter) -> Result<Files> {
    let mut config =
        serde_json::to_vec_pretty(&config(adapter)?).map_err(|source| Error::Config { source })?;
    config.push(b'\n');
    Ok([(WEIGHTS, weights(adapter)?), (CONFIG, config)])
}

/// The module of an update.
pub(super) fn module(update: &NewUpdate) -> Result<String> {
    let known =
        update.peft_name.clone().filter(|name| place(name) == Some((update.projection, update.layer)));
    known
        .or_else(|| module_name(update.projection, update.layer))
        .ok_or(Error::Unnamed { format: "PEFT", projection: update.projection })
}

fn weights(adapter: &NewAdapter) -> Result<Vec<u8>> {
    let dtype = match adapter.factors {
        FactorType::F32 => Dtype::F32,
        FactorType::F16 => Dtype::F16,
        FactorType::BF16 => Dtype::BF16,
    };
    let mut tensors = Vec::with_capacity(2 * adapter.updates.len());
    for update in &adapter.updates {
        let module = module(update)?;
        let name = |which: &str| format!("base_model.model.{module}.lora_{which}.weight");
        tensors.push((name("A"), [update.rank, update.inputs], adapter.factors.bytes(&update.a)));
        tensors.push((name("B"), [update.outputs, update.rank], adapter.factors.bytes(&update.b)));
    }
    let invalid = |source| Error::Safetensors { source };
    let views = tensors.iter().map(|(name, shape, bytes)| {
        Ok((name.as_str(), TensorView::new(dtype, shape.to_vec(), bytes).map_err(invalid)?))
    });
    let views: Vec<_> = views.collect::<Result<_>>()?;
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(views, Some(metadata)).map_err(invalid)
}

/// The configuration. Scales are 1: alpha is the rank, of each module by its pattern.
fn config(adapter: &NewAdapter) -> Result<Value> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for update in &adapter.updates {
        *counts.entry(update.rank).or_default() += 1;
    }
    let rank = counts.iter().max_by_key(|&(_, count)| count).map_or(1, |(&rank, _)| rank);
    let (mut patterns, mut modules) = (Map::new(), Vec::with_capacity(adapter.updates.len()));
    for update in &adapter.updates {
        let module = module(update)?;
        if update.rank != rank {
            patterns.insert(module.clone(), json!(update.rank));
        }
        modules.push((update.layer, module));
    }
    Ok(json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": null,
        "inference_mode": true,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "target_modules": targets(&modules),
        "rank_pattern": patterns,
        "alpha_pattern": patterns,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "modules_to_save": null,
        "use_dora": false,
        "use_rslora": false,
    }))
}

/// Ends of module names where each layer has the same ones, else whole names: PEFT adds a module to
/// whatever matches.
fn targets(modules: &[(usize, String)]) -> Vec<&str> {
    let mut by_layer: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    let mut outside: BTreeSet<&str> = BTreeSet::new();
    for (layer, name) in modules {
        match name.rsplit_once('.') {
            Some((before, end)) if before.contains("layers.") => {
                by_layer.entry(*layer).or_default().insert(end);
            }
            _ => {
                outside.insert(name);
            }
        }
    }
    let mut sets = by_layer.values();
    let first = sets.next().cloned().unwrap_or_default();
    let contiguous = by_layer.keys().enumerate().all(|(i, &layer)| i == layer);
    if contiguous && sets.all(|set| *set == first) {
        return first.union(&outside).copied().collect();
    }
    modules.iter().map(|(_, name)| name.as_str()).collect()
}
