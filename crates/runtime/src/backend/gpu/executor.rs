//! Passes over sequences: prepared launches by size, their buffers, and readback of results.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm_gpu::{Activation, Buffer, Dispatch, Gpu, KV_BLOCK_TOKENS, Readback, Reading, Result};
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

use super::launches::{Operands, Parts, Pass, Phase};
use super::pool::{Angles, KvPool, Lease};
use super::rows::Rows;
use super::weights::DeviceWeights;

/// Rows of the largest and the smallest prefill pass. Sizes are powers of two; padding rows fill
/// the rest.
pub(super) const MAX_ROWS: u32 = 512;
const MIN_ROWS: u32 = 16;

/// Blocks of the smallest block table: one split of attention. Larger ones have `2^n` or `3 * 2^n /
/// 2` times as many, because unused entries cost idle workgroups.
const MIN_TABLE: u32 = 8;

/// Maximum bytes of partial sums of attention; passes get fewer rows above it.
const MAX_SCRATCH: u64 = 256 << 20;

/// A loaded model on a device. Sequences share activations and launches, one pass at a time.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) gpu: Gpu,
    pub(super) config: ModelConfig,
    pub(super) activation: Activation,
    pub(super) weights: DeviceWeights,
    pub(super) pool: KvPool,
    pub(super) angles: Angles,
    passes: Mutex<Passes>,
}

/// A sequence on the device.
#[derive(Debug)]
pub(super) struct Place<'p> {
    /// Unique number of the sequence.
    pub(super) id: u64,
    pub(super) lease: Lease<'p>,
    /// True if the sequence uses the second RoPE frequencies (`LongRoPE`).
    pub(super) long: bool,
}

/// Size and kind of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Size {
    phase: Phase,
    rows: u32,
    /// Blocks of the table.
    table: u32,
    long: bool,
}

/// A block table on the device, and the sequence whose blocks it holds.
#[derive(Debug)]
struct Table {
    buffer: Buffer,
    sequence: Option<u64>,
}

/// Prepared passes and their shared buffers.
#[derive(Debug)]
pub(super) struct Passes {
    prepared: HashMap<Size, Arc<Pass>>,
    rows: HashMap<u32, Arc<Rows>>,
    tables: HashMap<u32, Table>,
    scratch: HashMap<(u32, u32), Buffer>,
    logits: Buffer,
    logits_readback: Option<Readback>,
    token_readbacks: Vec<Readback>,
    sequences: u64,
}

impl Executor {
    pub(super) fn new(
        gpu: Gpu,
        config: ModelConfig,
        activation: Activation,
        weights: DeviceWeights,
        (pool, angles): (KvPool, Angles),
    ) -> Result<Self> {
        let logits = gpu.zeroed(config.vocab_size as u64 * 4)?;
        let passes = Passes {
            prepared: HashMap::new(),
            rows: HashMap::new(),
            tables: HashMap::new(),
            scratch: HashMap::new(),
            logits,
            logits_readback: None,
            token_readbacks: Vec::new(),
            sequences: 0,
        };
        Ok(Self { gpu, config, activation, weights, pool, angles, passes: Mutex::new(passes) })
    }

    /// Locks the passes for one sequence.
    pub(super) fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares the passes of short prompts and of the first tokens, so that background threads
    /// compile their kernels.
    ///
    /// # Errors
    /// Too little memory for their buffers. The kernels so far are compiled all the same.
    pub(super) fn compile_ahead(&self, context: usize) -> Result<()> {
        /// Rows of the prefill passes: longer prompts are rarer and have larger buffers.
        const PROMPTS: [usize; 3] = [16, 32, 64];
        let tokens = context.min((MIN_TABLE * KV_BLOCK_TOKENS) as usize);
        let Ok(lease) = self.pool.lease(tokens) else { return Ok(()) };
        let mut passes = self.passes();
        let place = Place { id: passes.next_sequence(), lease, long: self.angles.is_long(tokens) };
        for (index, prompt) in PROMPTS.into_iter().enumerate() {
            let (rows, _) = passes.prefill_rows(self, 0, prompt);
            passes.pass(self, &place, Phase::Prefill, rows, 1)?;
            if index == 0 {
                passes.pass(self, &place, Phase::Decode, 1, 1)?;
            }
        }
        Ok(())
    }

    fn parts(&self) -> Parts<'_> {
        Parts {
            gpu: &self.gpu,
            config: &self.config,
            activation: self.activation,
            weights: &self.weights,
            pool: &self.pool,
            angles: &self.angles,
        }
    }
}

impl Passes {
    /// Unique number for a new sequence.
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequences += 1;
        self.sequences
    }

    /// Size of the next prefill pass: rows of the launches, and tokens among them. `tokens` tokens
    /// from position `start` on are left.
    pub(super) fn prefill_rows(&self, executor: &Executor, start: usize, tokens: usize) -> (u32, usize) {
        let mut rows = (tokens as u32).next_power_of_two().clamp(MIN_ROWS, MAX_ROWS);
        let room = table_blocks(start + tokens) * KV_BLOCK_TOKENS;
        let key = executor.parts().attention(0);
        let scratch = |rows| ruvllm_gpu::AttentionKernel { window: None, ..key }.scratch_bytes(rows, room);
        while rows > MIN_ROWS && scratch(rows) > MAX_SCRATCH {
            rows /= 2;
        }
        (rows, tokens.min(rows as usize))
    }

    /// Writes a prefill pass's inputs and returns its launches.
    pub(super) fn prefill(
        &mut self,
        executor: &Executor,
        place: &Place<'_>,
        start: usize,
        tokens: &[TokenId],
        rows: u32,
    ) -> Result<Arc<Pass>> {
        let pass = self.pass(executor, place, Phase::Prefill, rows, start + tokens.len())?;
        let gpu = &executor.gpu;
        let n = rows as usize;
        let padded = |values: &mut dyn Iterator<Item = u32>, unused: u32| -> Vec<u32> {
            values.chain(std::iter::repeat(unused)).take(n).collect()
        };
        let positions = start..start + tokens.len();
        gpu.write(&pass.rows.tokens, &padded(&mut tokens.iter().copied(), 0))?;
        gpu.write(&pass.rows.kv.positions, &padded(&mut positions.clone().map(|p| p as u32), 0))?;
        let mut slots = positions.map(|position| place.lease.slot(position));
        gpu.write(&pass.rows.kv.slots, &padded(&mut slots, executor.pool.unused_slot()))?;
        let last = tokens.len() - 1;
        gpu.write(&pass.rows.last, &[last as u32])?;
        gpu.write(&pass.last.kv.positions, &[(start + last) as u32])?;
        Ok(pass)
    }

    /// Writes the position of a decode pass and returns its launches. `token`: `None` if the
    /// previous pass left it on the device.
    pub(super) fn decode(
        &mut self,
        executor: &Executor,
        place: &Place<'_>,
        position: usize,
        token: Option<TokenId>,
    ) -> Result<Arc<Pass>> {
        let pass = self.pass(executor, place, Phase::Decode, 1, position + 1)?;
        if let Some(token) = token {
            executor.gpu.write(&pass.rows.tokens, &[token])?;
        }
        executor.gpu.write(&pass.rows.kv.positions, &[position as u32])?;
        executor.gpu.write(&pass.rows.kv.slots, &[place.lease.slot(position)])?;
        Ok(pass)
    }

    /// Prepares the passes of short and long prompts, in a short context and in one of `capacity`
    /// tokens.
    pub(super) fn prepare_sizes(
        &mut self,
        executor: &Executor,
        place: &Place<'_>,
        capacity: usize,
    ) -> Result<()> {
        for tokens in [1, capacity] {
            for prompt in [1, 32, 64, MAX_ROWS as usize] {
                let (rows, _) = self.prefill_rows(executor, tokens - 1, prompt);
                self.pass(executor, place, Phase::Prefill, rows, tokens)?;
            }
            self.pass(executor, place, Phase::Decode, 1, tokens)?;
        }
        Ok(())
    }

    /// Prepared pass of a size, with the sequence's blocks written to its table.
    fn pass(
        &mut self,
        executor: &Executor,
        place: &Place<'_>,
        phase: Phase,
        rows: u32,
        tokens: usize,
    ) -> Result<Arc<Pass>> {
        let gpu = &executor.gpu;
        let size = Size { phase, rows, table: table_blocks(tokens), long: place.long };
        let table = match self.tables.entry(size.table) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Table { buffer: gpu.zeroed(u64::from(size.table) * 4)?, sequence: None })
            }
        };
        if table.sequence != Some(place.id) {
            table.sequence = None;
            let blocks = place.lease.blocks();
            gpu.write(&table.buffer, &blocks[..blocks.len().min(size.table as usize)])?;
            table.sequence = Some(place.id);
        }
        if let Some(pass) = self.prepared.get(&size) {
            return Ok(Arc::clone(pass));
        }
        let table = table.buffer.clone();
        let parts = executor.parts();
        let full = ruvllm_gpu::AttentionKernel { window: None, ..parts.attention(0) };
        let scratch = full.scratch_bytes(rows, size.table * KV_BLOCK_TOKENS);
        let scratch = match self.scratch.get(&(rows, size.table)) {
            Some(buffer) => buffer.clone(),
            None => gpu.zeroed(scratch)?,
        };
        self.scratch.insert((rows, size.table), scratch.clone());
        let operands = Operands {
            rows: self.rows(executor, rows)?,
            last: self.rows(executor, 1)?,
            table,
            scratch,
            logits: self.logits.clone(),
            long: place.long,
        };
        let pass = Arc::new(parts.pass(phase, operands)?);
        self.prepared.insert(size, Arc::clone(&pass));
        Ok(pass)
    }

    fn rows(&mut self, executor: &Executor, n: u32) -> Result<Arc<Rows>> {
        if let Some(rows) = self.rows.get(&n) {
            return Ok(Arc::clone(rows));
        }
        let rows = Arc::new(Rows::new(&executor.gpu, &executor.config, n)?);
        self.rows.insert(n, Arc::clone(&rows));
        Ok(rows)
    }

    /// Runs a pass and returns its logits, `[vocab_size]`.
    pub(super) fn logits(&mut self, executor: &Executor, pass: &Pass) -> Result<Vec<f32>> {
        let gpu = &executor.gpu;
        let readback = match self.logits_readback.take() {
            Some(readback) => readback,
            None => gpu.readback(self.logits.len())?,
        };
        let list: Vec<&Dispatch> = pass.keys.iter().chain(&pass.logits).collect();
        let reading = gpu.run_reading(&list, &self.logits, readback)?;
        let (values, readback) = gpu.finish(reading)?;
        self.logits_readback = Some(readback);
        Ok(values)
    }

    /// Starts a pass and the readback of its argmax (4 bytes); returns before it ends.
    pub(super) fn start_argmax(&mut self, executor: &Executor, pass: &Pass) -> Result<Reading> {
        let gpu = &executor.gpu;
        let readback = match self.token_readbacks.pop() {
            Some(readback) => readback,
            None => gpu.readback(4)?,
        };
        let list: Vec<&Dispatch> = pass.keys.iter().chain(&pass.logits).chain(&pass.argmax).collect();
        gpu.run_reading(&list, &pass.last.tokens, readback)
    }

    /// Waits for the token of a pass.
    pub(super) fn finish_argmax(&mut self, executor: &Executor, reading: Reading) -> Result<TokenId> {
        let (tokens, readback) = executor.gpu.finish::<u32>(reading)?;
        self.token_readbacks.push(readback);
        Ok(tokens.first().copied().unwrap_or_default())
    }
}

/// Size of the block table, in blocks, for `tokens` tokens.
fn table_blocks(tokens: usize) -> u32 {
    let needed = tokens.div_ceil(KV_BLOCK_TOKENS as usize) as u32;
    let whole = needed.next_power_of_two().max(MIN_TABLE);
    let between = whole / 4 * 3;
    if between >= needed.max(MIN_TABLE) { between } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_room_and_few_sizes() {
        for (tokens, blocks) in [(1, 8), (256, 8), (257, 12), (385, 16), (512, 16), (4096, 128), (4608, 192)]
        {
            assert_eq!(table_blocks(tokens), blocks, "{tokens} tokens");
        }
        for tokens in 1..20_000 {
            let room = table_blocks(tokens) as usize * KV_BLOCK_TOKENS as usize;
            assert!(room >= tokens && table_blocks(tokens).is_multiple_of(4), "{tokens} tokens");
        }
    }
}
