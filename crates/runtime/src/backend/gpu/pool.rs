//! Keys and values of all sequences, and RoPE tables.

use std::sync::Arc;

use ruvllm_gpu::{Buffer, Gpu, KV_BLOCK_TOKENS, KvBlocks, KvFormat, Memory, Result, stored_head_dim};
use ruvllm_kernels::rope::{RopeFrequencies, RopeTable};
use ruvllm_kv_cache::{KvPolicy, KvRopes};
use ruvllm_models::ModelConfig;

use super::blocks::BlockPool;
use super::free_blocks::Block;
use super::heads::reads_others;
use super::host_blocks::Direction;
use super::kv_policy::policy_of;
use super::states::{StateNumbers, StatePool};
use super::temperature::Temperature;

/// Tokens of a KV block.
const BLOCK: usize = KV_BLOCK_TOKENS as usize;

/// KV blocks of all layers with attention; a block has the same index in every layer. Beside them
/// the states of the layers that keep one.
#[derive(Debug)]
pub(super) struct KvPool {
    pub(super) format: KvFormat,
    /// `None` for layers without keys and values of their own.
    layers: Vec<Option<KvBlocks>>,
    /// Layers whose keys and values each layer reads.
    sources: Vec<usize>,
    /// Places of prefixes in memory of the host; none without any.
    host: Vec<Option<KvBlocks>>,
    n_blocks: u32,
    pub(super) blocks: BlockPool,
    pub(super) states: Option<StatePool>,
}

impl KvPool {
    /// Allocates blocks for `tokens` tokens, one for padding rows, and as many in memory of the
    /// host as `host_bytes` have room for.
    pub(super) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        format: KvFormat,
        tokens: usize,
        host_bytes: u64,
    ) -> Result<Self> {
        let n_blocks = tokens.div_ceil(BLOCK) as u32;
        // Blocks of a model with states are of no use without the state behind them.
        let host_bytes = if config.decoder.recurrent.is_some() { 0 } else { host_bytes };
        let on_host = u32::try_from(host_bytes / block_bytes(config, format)).unwrap_or(u32::MAX);
        let layers = |memory, blocks| {
            let new = |layer| {
                let heads = config.heads(layer);
                let (kv_heads, head_dim) = (heads.n_kv_heads as u32, stored_head_dim(heads.head_dim as u32));
                match config.decoder.latent {
                    Some(_) => KvBlocks::without_values(gpu, memory, format, blocks, kv_heads, head_dim),
                    None => KvBlocks::new_in(gpu, memory, format, blocks, kv_heads, head_dim),
                }
            };
            let layer = |layer| writes(config, layer).then(|| new(layer)).transpose();
            (0..config.n_layers).map(layer).collect::<Result<_>>()
        };
        Ok(Self {
            format,
            layers: layers(Memory::Device, n_blocks + 1)?,
            sources: (0..config.n_layers).map(|layer| config.decoder.layers.kv_source(layer)).collect(),
            host: if on_host > 0 { layers(Memory::Host, on_host)? } else { Vec::new() },
            n_blocks,
            blocks: BlockPool::new(n_blocks, on_host, BLOCK),
            states: None,
        })
    }

    /// Adds the states of a model whose layers keep some; `None`: the usual number of spare ones.
    pub(super) fn with_states(
        self,
        gpu: &Gpu,
        config: &ModelConfig,
        (sequences, earlier, spare): (usize, usize, Option<usize>),
    ) -> Result<Self> {
        let kv_bytes = self.bytes();
        let states = |recurrent| {
            let numbers = StateNumbers { sequences, earlier, spare: spare.unwrap_or_default() };
            let usual = || numbers.with_usual_spare(recurrent, kv_bytes);
            StatePool::new(gpu, config, recurrent, spare.map_or_else(usual, |_| numbers))
        };
        Ok(Self { states: config.decoder.recurrent.as_ref().map(states).transpose()?, ..self })
    }

    /// Takes a slot for a state: see [`StatePool::take_or_evict`].
    pub(super) fn take_state(&self) -> Option<Arc<Block>> {
        self.states().take_or_evict(&self.blocks)
    }

    /// States of a model whose layers keep some.
    pub(super) fn states(&self) -> &StatePool {
        self.states.as_ref().expect("the model has layers with a state")
    }

    /// Tokens, in whole blocks, whose keys and values take at most `bytes`; at least one block.
    pub(super) fn tokens_of(config: &ModelConfig, format: KvFormat, bytes: u64) -> usize {
        // One block is for padding rows.
        let blocks = (bytes / block_bytes(config, format)).saturating_sub(1).max(1);
        usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(BLOCK)
    }

    /// Policy of the format.
    pub(super) fn policy(&self) -> KvPolicy {
        policy_of(self.format)
    }

    /// Blocks that the attention of a layer reads.
    pub(super) fn layer(&self, layer: usize) -> &KvBlocks {
        self.layers[self.sources[layer]].as_ref().expect("a layer with attention")
    }

    /// Bytes of keys and values, and of states.
    pub(super) fn bytes(&self) -> u64 {
        let kv: u64 = self.layers.iter().flatten().map(KvBlocks::bytes).sum();
        kv + self.states.as_ref().map_or(0, StatePool::bytes)
    }

    pub(super) fn host_bytes(&self) -> u64 {
        self.host.iter().flatten().map(KvBlocks::bytes).sum()
    }

    /// Copies blocks of all layers, pairs of the numbers of a source and a target.
    pub(super) fn copy(&self, gpu: &Gpu, direction: Direction, pairs: &[(u32, u32)]) -> Result<()> {
        let layers = self.layers.iter().flatten().zip(self.host.iter().flatten());
        let layers: Vec<_> = match direction {
            Direction::ToHost => layers.collect(),
            Direction::ToDevice => layers.map(|(device, host)| (host, device)).collect(),
        };
        gpu.copy_blocks(&layers, pairs)
    }

    /// Block of the keys and values of padding rows.
    pub(super) fn unused_block(&self) -> u32 {
        self.n_blocks
    }

    /// Slot of the keys and values of padding rows.
    pub(super) fn unused_slot(&self) -> u32 {
        self.n_blocks * KV_BLOCK_TOKENS
    }
}

/// True for a layer with keys and values of its own.
fn writes(config: &ModelConfig, layer: usize) -> bool {
    config.decoder.has_attention(layer) && !reads_others(config, layer)
}

/// Bytes of a block in all layers.
fn block_bytes(config: &ModelConfig, format: KvFormat) -> u64 {
    let heads = (0..config.n_layers).filter(|&layer| writes(config, layer)).map(|layer| config.heads(layer));
    let planes: u64 = heads
        .map(|heads| heads.n_kv_heads as u64 * format.plane_bytes(stored_head_dim(heads.head_dim as u32)))
        .sum();
    // Values of latent attention are a part of its keys.
    (planes * if config.decoder.latent.is_some() { 1 } else { 2 }).max(1)
}

/// RoPE table of some layers.
#[derive(Debug)]
struct Table {
    turns: Buffer,
    rotary_dim: u32,
}

/// RoPE tables, cosines and sines as `[positions, rotary_dim / 2, 2]`, with the values of the CPU,
/// and factors of queries.
#[derive(Debug)]
pub(super) struct Angles {
    usual: Table,
    /// Global layers of sequences above a capacity (`LongRoPE`).
    long: Option<(usize, Table)>,
    /// Local layers, as marked in the mask.
    local: Option<(Table, Vec<bool>)>,
    temperature: Option<Temperature>,
}

impl Angles {
    /// Uploads tables of `context` positions.
    pub(super) fn new(gpu: &Gpu, config: &ModelConfig, ropes: &KvRopes, context: usize) -> Result<Self> {
        let table = |frequencies: &RopeFrequencies, positions: usize| -> Result<Table> {
            let table = RopeTable::from_frequencies(frequencies, 0..positions);
            let mut turns = Vec::with_capacity(positions * frequencies.inverse.len() * 2);
            for position in 0..positions {
                let (cos, sin) = table.at(position);
                turns.extend(cos.iter().zip(sin).flat_map(|(&c, &s)| [c, s]));
            }
            Ok(Table { turns: gpu.upload(&turns)?, rotary_dim: 2 * frequencies.inverse.len() as u32 })
        };
        let long = ropes.long.as_ref().filter(|(length, _)| context > *length);
        let local = ropes.local.as_ref().zip(config.local_rope.as_ref());
        Ok(Self {
            usual: table(&ropes.usual.frequencies, context)?,
            long: long.map(|(length, rope)| Ok((*length, table(&rope.frequencies, context)?))).transpose()?,
            local: local
                .map(|((rope, _), local)| Ok((table(&rope.frequencies, context)?, local.layers.clone())))
                .transpose()?,
            temperature: Temperature::new(gpu, config, context)?,
        })
    }

    /// True if sequences of this capacity use the second RoPE frequencies.
    pub(super) fn is_long(&self, capacity: usize) -> bool {
        self.long.as_ref().is_some_and(|(length, _)| capacity > *length)
    }

    /// Factors of the queries of a layer by position.
    pub(super) fn factors(&self, layer: usize) -> Option<&Buffer> {
        self.temperature.as_ref()?.of(layer)
    }

    /// RoPE table of a layer.
    pub(super) fn of(&self, layer: usize, long: bool) -> &Buffer {
        &self.table(layer, long).turns
    }

    /// Number of leading dimensions of a head that RoPE rotates in a layer.
    pub(super) fn rotary_dim(&self, layer: usize) -> u32 {
        self.table(layer, false).rotary_dim
    }

    fn table(&self, layer: usize, long: bool) -> &Table {
        match (&self.local, &self.long) {
            (Some((local, layers)), _) if layers[layer] => local,
            (_, Some((_, table))) if long => table,
            _ => &self.usual,
        }
    }
}
