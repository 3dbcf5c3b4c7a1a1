//! KV store of a plan, and the plan of a model that is not loaded.

use gguf_rs_lite::{FileMemory, TensorInfo};
use ruvllm_kv_cache::{KvPolicy, KvStore};
use ruvllm_memory::{PagePool, PoolConfig};
use ruvllm_models::{Checkpoint, Model, ModelConfig};

use super::{ModelSize, Plan, compute};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::options::{EngineOptions, ModelSource};
use crate::prefix::fingerprint;

/// Bytes of a KV page: a huge page.
const PAGE: usize = 2 << 20;

/// Budgets below this use small pages, because each tier has one partly filled page.
const SMALL_BUDGET: usize = 64 << 20;

/// Bytes of a page of a small budget.
const SMALL_PAGE: usize = 512 << 10;

impl Plan {
    /// Plan that [`Engine::load`](crate::Engine::load) of `source` follows on `machine`. Only the
    /// header of the file is read; with a calibration, samples of the weights too. Weights count
    /// with their size in the file, even if `options` quantize them.
    ///
    /// # Errors
    /// Errors of [`Engine::load`](crate::Engine::load) that follow from options and header:
    /// [`Error::InvalidOption`], [`Error::MlockQuantized`], [`Error::SpillWithoutFolder`],
    /// [`Error::Compute`], [`Error::Open`], [`Error::Load`], [`Error::CalibrationModel`],
    /// [`Error::KvPolicy`], [`Error::KvBudgetTooSmall`] and [`Error::KvBudget`].
    pub fn of_source(source: &ModelSource, options: &EngineOptions, machine: &Machine) -> Result<Self> {
        compute(machine, options)?;
        let checkpoint = source.open(FileMemory::default())?;
        let config = ModelConfig::from_checkpoint(&*checkpoint)
            .map_err(|error| Error::Load { name: source.to_string(), source: error })?;
        let size = ModelSize::new(&config, weights_bytes(&*checkpoint));
        let plan = Self::new(machine, &size, options);
        check_kv(&*checkpoint, &config, options, &plan)?;
        Ok(plan)
    }
}

/// Bytes of all tensors in the file.
pub(crate) fn weights_bytes(checkpoint: &dyn Checkpoint) -> u64 {
    checkpoint.tensors().map(TensorInfo::bytes).fold(0, u64::saturating_add)
}

/// Returns the errors of [`new_kv_store`], without a loaded model.
fn check_kv(
    checkpoint: &dyn Checkpoint,
    config: &ModelConfig,
    options: &EngineOptions,
    plan: &Plan,
) -> Result<()> {
    check_calibration(options, || fingerprint(checkpoint, options.quantize))?;
    let policy = &plan.kv.value;
    let pool = kv_pool(config, policy, plan.kv_budget.value)?;
    let needs_calibration = policy.needs_calibration();
    let built = if options.kv_calibration.is_some() && needs_calibration {
        // `check_calibration` compared the models, and `kv_pool` the budget with every tier.
        Ok(())
    } else if options.kv_calibration.is_some() {
        let reason = "no tier needs the calibration; leave it out or use nuq3".to_owned();
        Err(ruvllm_kv_cache::Error::PolicyConflict { policy: policy.to_string(), reason })
    } else {
        KvStore::new(config.kv_shape(), &for_model(policy, config), &pool).map(drop)
    };
    built.map_err(|source| Error::KvPolicy { policy: policy.to_string(), source: source.into() })?;
    let block_tokens = block_tokens(policy, options);
    for policy in &options.request_kv {
        check_budget(config, policy, plan.kv_budget.value)?;
        KvStore::with_block_tokens(config.kv_shape(), &for_model(policy, config), &pool, block_tokens)
            .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source: source.into() })?;
    }
    Ok(())
}

/// Tokens of a block of the policy and of those that requests may name.
fn block_tokens(policy: &KvPolicy, options: &EngineOptions) -> usize {
    let others = options.request_kv.iter().map(KvPolicy::block_tokens);
    others.fold(policy.block_tokens(), usize::max)
}

/// Creates the page pool of a plan and the KV stores on it: of the plan's policy, and of those that
/// requests may name.
pub(crate) fn new_kv_store(
    model: &Model,
    fingerprint: impl FnOnce() -> [u8; 32],
    options: &EngineOptions,
    plan: &Plan,
) -> Result<(KvStore, Vec<KvStore>)> {
    check_calibration(options, fingerprint)?;
    let policy = &plan.kv.value;
    let pool = kv_pool(model.config(), policy, plan.kv_budget.value)?;
    let block_tokens = block_tokens(policy, options);
    let failed = |policy: &KvPolicy, source| Error::KvPolicy { policy: policy.to_string(), source };
    let store = match &options.kv_calibration {
        Some(calibration) => model.calibrated_kv_store(policy, &pool, calibration.clone()),
        None => model.kv_store_of_blocks(policy, &pool, block_tokens),
    };
    let store = store.map_err(|source| failed(policy, source))?;
    let others = options.request_kv.iter().map(|policy| {
        check_budget(model.config(), policy, plan.kv_budget.value)?;
        model.kv_store_of_blocks(policy, &pool, store.block_tokens()).map_err(|source| failed(policy, source))
    });
    let others = others.collect::<Result<_>>()?;
    Ok((store, others))
}

/// Refuses a calibration of another model.
fn check_calibration(options: &EngineOptions, fingerprint: impl FnOnce() -> [u8; 32]) -> Result<()> {
    match &options.kv_calibration {
        Some(calibration) if *calibration.model() != fingerprint() => Err(Error::CalibrationModel),
        _ => Ok(()),
    }
}

/// A page pool of `budget` bytes for keys and values.
pub(crate) fn kv_pool(config: &ModelConfig, policy: &KvPolicy, budget: usize) -> Result<PagePool> {
    let page_bytes = check_budget(config, policy, budget)?;
    let config = PoolConfig { page_bytes, ..PoolConfig::new(budget) };
    PagePool::new(config).map_err(|source| Error::KvBudget { budget, source })
}

/// Refuses a budget without room for a block of each tier; returns the page size.
fn check_budget(config: &ModelConfig, policy: &KvPolicy, budget: usize) -> Result<usize> {
    let page_bytes = if budget < SMALL_BUDGET { SMALL_PAGE } else { PAGE };
    let least_bytes = KvStore::least_bytes(config.kv_shape(), &for_model(policy, config), page_bytes)
        .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source: source.into() })?;
    if budget < least_bytes {
        let policy = policy.to_string();
        return Err(Error::KvBudgetTooSmall { budget, policy, page_bytes, least_bytes });
    }
    Ok(page_bytes)
}

/// The policy, completed for the model (grouped-query attention or not).
fn for_model(policy: &KvPolicy, config: &ModelConfig) -> KvPolicy {
    policy.for_model(config.n_heads > config.n_kv_heads)
}
