//! Trainable LoRA factors of a decoder: one vector of f32 values with a fixed layout.
//!
//! The vector is a concatenation over sites, ascending by layer and site. A site is `A` of all its
//! modules, one below the other, `[site rank, inputs]`, then `B` of each module and target,
//! transposed: `[rank, outputs]`. Gradients, moments and Fisher information have the same layout.

mod factors;
mod loaded;
mod transfer;

use std::ops::Range;
use std::sync::Arc;

use ruvllm_adapters::{BaseModel, Projection, Site};

pub(crate) use self::factors::SiteFactors;
use crate::error::{Error, Result};
use crate::random::Random;

/// Shape and start of trainable factors.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank of each module.
    pub rank: usize,
    /// Scaling: updates are `alpha / rank * B A`.
    pub alpha: f32,
    /// Target modules, in each chosen layer. Modules outside the layers cannot be trained.
    pub targets: Vec<Projection>,
    /// Chosen layers; `None` = all.
    pub layers: Option<Vec<usize>>,
    /// Seed of the first values of `A`.
    pub seed: u64,
}

impl Default for LoraConfig {
    /// Rank 8, alpha 16, all seven matrices of all layers.
    fn default() -> Self {
        use Projection::{AttentionOutput, Down, Gate, Key, Query, Up, Value};
        let targets = vec![Query, Key, Value, AttentionOutput, Gate, Up, Down];
        Self { rank: 8, alpha: 16.0, targets, layers: None, seed: 0 }
    }
}

/// Trainable factors: `y += alpha / rank * B (A x)` for each module.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    base: Arc<BaseModel>,
    rank: usize,
    scale: f32,
    sites: Vec<SiteModules>,
    values: Vec<f32>,
}

/// Modules of one site of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SiteModules {
    pub(crate) layer: usize,
    pub(crate) site: Site,
    /// Input width.
    pub(crate) inputs: usize,
    pub(crate) modules: Vec<Projection>,
    /// Blocks of `B`: by module, then by target.
    pub(crate) blocks: Vec<Block>,
    /// Place of the values of `A`.
    pub(crate) a: Range<usize>,
}

/// Rows of a module's `B` that belong to one target of its site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Index of the module in its site.
    pub(crate) module: usize,
    /// Target of the site.
    pub(crate) target: usize,
    /// Rows of the module's `B`.
    pub(crate) rows: Range<usize>,
    /// Place of the values, `[rank, rows]`.
    pub(crate) values: Range<usize>,
}

impl Lora {
    /// Makes factors that change nothing yet: `A` uniform in `±1/sqrt(inputs)`, `B` zero.
    ///
    /// # Errors
    /// [`Error::Setting`] for a rank of 0, an alpha that is not a number, no or repeated targets,
    /// targets outside the layers, and layers that the model does not have.
    pub fn new(base: &Arc<BaseModel>, config: &LoraConfig) -> Result<Self> {
        check(base, config)?;
        let layers = match &config.layers {
            Some(layers) => layers.clone(),
            None => (0..base.n_layers).collect(),
        };
        let (mut sites, mut end) = (Vec::new(), 0);
        for layer in layers {
            for site in
                [Site::AttentionInput, Site::AttentionOutput, Site::FeedForwardInput, Site::FeedForwardOutput]
            {
                let modules: Vec<_> =
                    config.targets.iter().copied().filter(|&target| base.site(target) == site).collect();
                if !modules.is_empty() {
                    sites.push(SiteModules::new(base, (layer, site), modules, config.rank, &mut end));
                }
            }
        }
        let mut values = vec![0.0; end];
        let mut random = Random::new(config.seed);
        for site in &sites {
            let bound = 1.0 / (site.inputs as f32).sqrt();
            values[site.a.clone()].fill_with(|| bound * random.signed());
        }
        let scale = config.alpha / config.rank as f32;
        Ok(Self { base: Arc::clone(base), rank: config.rank, scale, sites, values })
    }

    /// The values of all factors.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The values of all factors, to be changed.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True without values; no constructor makes such factors.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Rank of each module.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Multiplier of updates, `alpha / rank`.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Sizes of the model that it changes.
    pub fn base(&self) -> &Arc<BaseModel> {
        &self.base
    }

    /// Modules in the order of their values, with the layer of each.
    pub fn modules(&self) -> impl Iterator<Item = (Projection, usize)> + '_ {
        self.sites.iter().flat_map(|site| site.modules.iter().map(|&module| (module, site.layer)))
    }

    /// Places of the factors in the values: of each module its `A`, then its parts of `B`.
    pub fn factor_ranges(&self) -> Vec<Range<usize>> {
        let of_module = |site: &SiteModules, module: usize| {
            let blocks = site.blocks.iter().filter(move |block| block.module == module);
            let mut ranges = vec![site.a_of(module)];
            ranges.extend(blocks.map(|block| block.values.clone()));
            ranges
        };
        let modules = self.sites.iter().flat_map(|site| (0..site.modules.len()).map(move |at| (site, at)));
        modules.flat_map(|(site, module)| of_module(site, module)).collect()
    }

    /// First layer with factors.
    pub(crate) fn first_layer(&self) -> usize {
        self.sites.iter().map(|site| site.layer).min().unwrap_or(0)
    }
}

impl SiteModules {
    fn new(
        base: &BaseModel,
        (layer, site): (usize, Site),
        modules: Vec<Projection>,
        rank: usize,
        end: &mut usize,
    ) -> Self {
        let mut place = |n: usize| {
            *end += n;
            *end - n..*end
        };
        let inputs = base.inputs(site);
        let a = place(modules.len() * rank * inputs);
        let mut blocks = Vec::new();
        for (module, &projection) in modules.iter().enumerate() {
            for (target, rows) in base.target_rows(projection) {
                let values = place(rank * rows.len());
                blocks.push(Block { module, target, rows, values });
            }
        }
        Self { layer, site, inputs, modules, blocks, a }
    }

    /// Place of the values of `A` of a module.
    pub(crate) fn a_of(&self, module: usize) -> Range<usize> {
        let len = self.a.len() / self.modules.len();
        self.a.start + module * len..self.a.start + (module + 1) * len
    }
}

fn check(base: &BaseModel, config: &LoraConfig) -> Result<()> {
    let wrong = |name, value: String, range| Err(Error::Setting { name, value, range });
    let LoraConfig { rank, alpha, targets, layers, .. } = config;
    if *rank == 0 || *rank > base.model_dim {
        return wrong("rank", rank.to_string(), "between 1 and the width of the model");
    }
    if !alpha.is_finite() || *alpha == 0.0 {
        return wrong("alpha", alpha.to_string(), "a number other than 0");
    }
    if targets.is_empty() {
        return wrong("targets", "empty".to_owned(), "at least one module");
    }
    for (index, &target) in targets.iter().enumerate() {
        if matches!(target, Projection::Logits | Projection::FinalHidden) {
            return wrong("targets", target.to_string(), "modules of the layers");
        }
        if targets[..index].contains(&target) || targets[..index].iter().any(|&other| overlap(other, target))
        {
            return wrong("targets", target.to_string(), "there once, and not beside a joint module of it");
        }
    }
    match layers {
        Some(layers) if layers.is_empty() || layers.iter().any(|&layer| layer >= base.n_layers) => {
            wrong("layers", format!("{layers:?}"), "layers of the model, at least one")
        }
        Some(layers) if !layers.is_sorted_by(|a, b| a < b) => {
            wrong("layers", format!("{layers:?}"), "ascending")
        }
        _ => Ok(()),
    }
}

/// True for a joint module and a part of it.
fn overlap(one: Projection, other: Projection) -> bool {
    use Projection::{Gate, GateUp, Key, Query, QueryKeyValue, Up, Value};
    matches!(
        (one, other),
        (QueryKeyValue, Query | Key | Value)
            | (Query | Key | Value, QueryKeyValue)
            | (GateUp, Gate | Up)
            | (Gate | Up, GateUp)
    )
}
