//! Passes over sequences: prepared launches by size, and their buffers.

mod hidden;
mod reserve;
mod results;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm_adapters::ScaledAdapter;
use ruvllm_gpu::{Activation, AttentionKernel, Buffer, Error, Gpu, KV_BLOCK_TOKENS, Readback, Result};
use ruvllm_models::ModelConfig;
use ruvllm_text::TokenId;

pub(super) use self::hidden::HiddenReading;
pub(super) use self::reserve::Reserve;
use self::results::Recorded;
pub(super) use self::results::{Argmax, Ids};
use super::adapters::{Adapted, DeviceAdapters, Failure as AdapterFailure, Leased};
use super::blocks::Lease;
use super::final_states::Kept;
use super::heads::kinds;
use super::host_blocks::{Direction, Transfers};
use super::largest::Prepared;
use super::launches::{Operands, Parts, Pass, Phase, attention};
use super::pool::{Angles, KvPool};
use super::refusal::MOST_PARTS;
use super::rows::{MOST_PAIRS, Rows};
use super::states::StateLease;
use super::weights::DeviceWeights;

/// Rows of the largest and the smallest prefill pass. Sizes are powers of two; padding rows fill
/// the rest.
pub(super) const MAX_ROWS: u32 = 512;
const _: () = assert!(MOST_PARTS * MAX_ROWS as usize <= u16::MAX as usize);
const MIN_ROWS: u32 = 16;

/// Blocks of the smallest block table: one split of attention. Larger ones have `2^n` or `3 * 2^n /
/// 2` times as many, because unused entries cost idle workgroups.
const MIN_TABLE: u32 = 8;

/// Rows of the decode passes of several sequences; padding rows fill the rest.
const BATCH_ROWS: [u32; 8] = [2, 4, 8, 16, 24, 32, 48, 64];

/// Largest number of rows of a sequence with a draft: so many read the weights of a product once.
pub(super) const DRAFT_ROWS: u32 = 8;

/// Maximum bytes of partial sums of attention; passes get fewer rows above it.
const MAX_SCRATCH: u64 = 256 << 20;

/// A loaded model on a device. Sequences share activations and launches, one pass at a time.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) gpu: Arc<Gpu>,
    pub(super) config: ModelConfig,
    pub(super) activation: Activation,
    pub(super) weights: DeviceWeights,
    pub(super) pool: KvPool,
    pub(super) angles: Angles,
    /// Ids that the tokenizer has, from 0 on; padding of the vocabulary follows.
    ids: usize,
    decode_gemm: bool,
    /// Rows whose final hidden states can be read.
    kept: Kept,
    passes: Mutex<Passes>,
}

/// The next token of a sequence in a decode pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Next<'p> {
    pub(super) place: &'p Place,
    /// `None` for a row whose result nobody takes: it writes no keys and values.
    pub(super) position: Option<usize>,
    /// `None` if the pass before left it on the device.
    pub(super) token: Option<TokenId>,
}

/// A sequence on the device.
#[derive(Debug)]
pub(super) struct Place {
    /// Unique number of the sequence.
    pub(super) id: u64,
    pub(super) lease: Lease,
    /// True if the sequence uses the second RoPE frequencies (`LongRoPE`).
    pub(super) long: bool,
    /// Adapters of all its tokens.
    pub(super) adapters: Leased,
    /// Its states, in models whose layers keep some.
    pub(super) state: Option<StateLease>,
}

/// Size and kind of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Size {
    phase: Phase,
    rows: u32,
    /// Blocks of the table.
    table: u32,
    long: bool,
    /// Entries of the lists of adapters; 0 for rows without any.
    terms: u32,
}

/// Block tables of one or several sequences on the device.
#[derive(Debug)]
struct Table {
    buffer: Buffer,
    /// Sequences whose blocks it holds.
    sequences: Vec<u64>,
}

/// Prepared passes and their shared buffers.
#[derive(Debug)]
pub(super) struct Passes {
    prepared: HashMap<Size, Arc<Pass>>,
    rows: HashMap<u32, Arc<Rows>>,
    /// By number of sequences and blocks of each.
    tables: HashMap<(u32, u32), Table>,
    /// Partial sums of attention, by size: passes run one after the other and share them.
    scratch: HashMap<u64, Buffer>,
    /// By number of rows.
    logits: HashMap<u32, Buffer>,
    logits_readbacks: HashMap<u32, Readback>,
    token_readbacks: HashMap<u32, Vec<Readback>>,
    largest: Prepared,
    /// Final hidden states, by number of rows.
    hidden: HashMap<u32, Buffer>,
    hidden_readbacks: HashMap<usize, Vec<Readback>>,
    recorded: Option<Recorded>,
    /// Number of the last write to the tokens of these rows.
    token_writes: HashMap<u32, u64>,
    writes: u64,
    sequences: u64,
    adapters: DeviceAdapters,
}

impl Executor {
    pub(super) fn new(
        gpu: impl Into<Arc<Gpu>>,
        config: ModelConfig,
        activation: Activation,
        weights: DeviceWeights,
        (pool, angles): (KvPool, Angles),
        ids: usize,
        (decode_gemm, adapters): (bool, DeviceAdapters),
    ) -> Result<Self> {
        let gpu = gpu.into();
        let logits = gpu.zeroed(config.vocab_size as u64 * 4)?;
        let passes = Passes {
            prepared: HashMap::new(),
            rows: HashMap::new(),
            tables: HashMap::new(),
            scratch: HashMap::new(),
            logits: HashMap::from([(1, logits)]),
            logits_readbacks: HashMap::new(),
            token_readbacks: HashMap::new(),
            largest: Prepared::default(),
            hidden: HashMap::new(),
            hidden_readbacks: HashMap::new(),
            recorded: None,
            token_writes: HashMap::new(),
            writes: 0,
            sequences: 0,
            adapters,
        };
        let (kept, passes) = (Kept::None, Mutex::new(passes));
        Ok(Self { gpu, config, activation, weights, pool, angles, ids, decode_gemm, kept, passes })
    }

    /// Keeps final hidden states of passes where they are read.
    pub(super) fn keeping(self, kept: Kept) -> Self {
        Self { kept, ..self }
    }

    /// Locks the passes for one sequence.
    pub(super) fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares the passes of short prompts and of the first tokens, with drafts or without, so
    /// that background threads compile their kernels.
    ///
    /// # Errors
    /// Too little memory for their buffers. The kernels so far are compiled all the same.
    pub(super) fn compile_ahead(&self, context: usize, has_drafts: bool) -> Result<()> {
        /// Rows of the prefill passes: longer prompts are rarer and have larger buffers.
        const PROMPTS: [usize; 3] = [16, 32, 64];
        let tokens = context.min((MIN_TABLE * KV_BLOCK_TOKENS) as usize);
        let Ok(lease) = self.pool.blocks.lease(tokens, self) else { return Ok(()) };
        let mut passes = self.passes();
        let (long, adapters) = (self.angles.is_long(tokens), Leased::default());
        let place = Place { id: passes.next_sequence(), lease, long, adapters, state: None };
        for (index, prompt) in PROMPTS.into_iter().enumerate() {
            let (rows, _) = passes.prefill_rows(self, 0, prompt);
            passes.pass(self, &[&place], Phase::Prefill, rows, 1)?;
            if index == 0 {
                let pass = passes.pass(self, &[&place], Phase::Decode, 1, 1)?;
                if self.config.decoder.logits_soft_cap.is_none() {
                    let lists = passes.largest.take(&self.gpu, &pass, self.ids as u32)?;
                    passes.largest.keep(&pass, lists);
                }
            }
        }
        for &rows in BATCH_ROWS.iter().filter(|&&rows| has_drafts && rows <= DRAFT_ROWS) {
            passes.pass(self, &vec![&place; rows as usize], Phase::Decode, rows, 1)?;
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
            ids: self.ids as u32,
            decode_gemm: self.decode_gemm,
        }
    }
}

impl Transfers for Executor {
    fn copy(&self, direction: Direction, pairs: &[(u32, u32)]) -> bool {
        self.pool.copy(&self.gpu, direction, pairs).is_ok()
    }
}

impl Passes {
    /// Unique number for a new sequence.
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequences += 1;
        self.sequences
    }

    /// Slots for the adapters of a sequence.
    pub(super) fn lease(
        &mut self,
        executor: &Executor,
        adapters: &[ScaledAdapter],
    ) -> std::result::Result<Leased, AdapterFailure> {
        let (gpu, mut has_grown) = (&executor.gpu, false);
        let mut leased = self.adapters.lease(gpu, adapters, &mut has_grown);
        if let Err(AdapterFailure::Gpu(Error::OverBudget { .. } | Error::OutOfMemory { .. })) = leased {
            self.release(executor)?;
            leased = self.adapters.lease(gpu, adapters, &mut has_grown);
        }
        if has_grown {
            self.recorded = None;
            self.prepared.retain(|size, _| size.terms == 0);
        }
        leased
    }

    /// Bytes of the adapters on the device.
    pub(super) fn adapter_bytes(&self) -> u64 {
        self.adapters.bytes()
    }

    /// Size of the next prefill pass: rows of the launches, and tokens among them. `tokens` tokens
    /// from position `start` on are left.
    pub(super) fn prefill_rows(&self, executor: &Executor, start: usize, tokens: usize) -> (u32, usize) {
        let mut rows = (tokens as u32).next_power_of_two().clamp(MIN_ROWS, MAX_ROWS);
        let has_latent = executor.config.decoder.latent.is_some();
        let heads = if has_latent { executor.config.n_heads as u32 } else { 0 };
        while rows > MIN_ROWS
            && (scratch_bytes(&executor.config, true, rows, start + tokens) > MAX_SCRATCH
                || rows * heads > MOST_PAIRS)
        {
            rows /= 2;
        }
        (rows, tokens.min(rows as usize))
    }

    /// Writes a prefill pass's inputs and returns its launches.
    pub(super) fn prefill(
        &mut self,
        executor: &Executor,
        place: &Place,
        start: usize,
        tokens: &[TokenId],
        rows: u32,
    ) -> Result<Arc<Pass>> {
        let pass = self.pass(executor, &[place], Phase::Prefill, rows, start + tokens.len())?;
        let gpu = &executor.gpu;
        let positions = start..start + tokens.len();
        gpu.write(&pass.rows.tokens, &padded(tokens.iter().copied(), 0, rows))?;
        self.note_write(rows);
        gpu.write(&pass.rows.kv.positions, &padded(positions.clone().map(|p| p as u32), 0, rows))?;
        if let (Some(states), Some(state)) = (&pass.rows.states, &place.state) {
            states.write_prompt(executor, state, positions.clone())?;
        }
        let slots = positions.map(|position| place.lease.slot(position));
        gpu.write(&pass.rows.kv.slots, &padded(slots, executor.pool.unused_slot(), rows))?;
        let last = tokens.len() - 1;
        gpu.write(&pass.rows.last, &[last as u32])?;
        gpu.write(&pass.last.kv.positions, &[(start + last) as u32])?;
        if let Some(Adapted { rows, last, .. }) = &pass.adapted {
            rows.write(gpu, &[place.adapters.list()])?;
            last.write(gpu, &[place.adapters.list()])?;
        }
        Ok(pass)
    }

    /// Largest number of sequences in a decode pass whose longest has `tokens` tokens.
    pub(super) fn batch_limit(&self, executor: &Executor, tokens: usize) -> usize {
        let fits = |rows: &&u32| scratch_bytes(&executor.config, false, **rows, tokens) <= MAX_SCRATCH;
        BATCH_ROWS.iter().rev().find(fits).map_or(1, |&rows| rows as usize)
    }

    /// Writes the inputs of a decode pass of at most [`batch_limit`](Self::batch_limit) sequences,
    /// all with the same RoPE frequencies, and returns its launches.
    pub(super) fn decode(&mut self, executor: &Executor, batch: &[Next<'_>]) -> Result<Arc<Pass>> {
        let rows = batch_rows(batch.len());
        let end = batch.iter().filter_map(|next| next.position).max().map_or(1, |last| last + 1);
        let places: Vec<&Place> = batch.iter().map(|next| next.place).collect();
        let pass = self.pass(executor, &places, Phase::Decode, rows, end)?;
        let gpu = &executor.gpu;
        if let Some(tokens) = batch.iter().map(|next| next.token).collect::<Option<Vec<_>>>() {
            gpu.write(&pass.rows.tokens, &padded(tokens.into_iter(), 0, rows))?;
            self.note_write(rows);
        }
        let positions = batch.iter().map(|next| next.position.unwrap_or(0) as u32);
        gpu.write(&pass.rows.kv.positions, &padded(positions, 0, rows))?;
        let unused = executor.pool.unused_slot();
        let slot = |next: &Next<'_>| next.position.map_or(unused, |at| next.place.lease.slot(at));
        gpu.write(&pass.rows.kv.slots, &padded(batch.iter().map(slot), unused, rows))?;
        if let Some(states) = &pass.rows.states {
            states.write_rows(executor, batch)?;
        }
        if let Some(Adapted { rows, .. }) = &pass.adapted {
            let lists: Vec<_> = places.iter().map(|place| place.adapters.list()).collect();
            rows.write(gpu, &lists)?;
        }
        Ok(pass)
    }

    /// Prepares the passes of short and long prompts, in a short context and in one of `capacity`
    /// tokens.
    pub(super) fn prepare_sizes(
        &mut self,
        executor: &Executor,
        place: &Place,
        capacity: usize,
    ) -> Result<()> {
        for tokens in [1, capacity] {
            for prompt in [1, 32, 64, MAX_ROWS as usize] {
                let (rows, _) = self.prefill_rows(executor, tokens - 1, prompt);
                self.pass(executor, &[place], Phase::Prefill, rows, tokens)?;
            }
            self.pass(executor, &[place], Phase::Decode, 1, tokens)?;
        }
        Ok(())
    }

    /// Prepared pass of a size, with the blocks of its sequences written to their tables: one of a
    /// prompt; in decode one for each row, padding rows aside.
    fn pass(
        &mut self,
        executor: &Executor,
        places: &[&Place],
        phase: Phase,
        rows: u32,
        tokens: usize,
    ) -> Result<Arc<Pass>> {
        self.with_room(executor, |passes| passes.prepare(executor, places, phase, rows, tokens))
    }

    /// Runs an allocation; if memory is short, once more after the release of prepared passes.
    fn with_room<T>(&mut self, executor: &Executor, allocate: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        match allocate(self) {
            Err(Error::OverBudget { .. } | Error::OutOfMemory { .. }) => {
                self.release(executor)?;
                allocate(self)
            }
            result => result,
        }
    }

    /// Releases prepared passes and their buffers, apart from those that callers hold.
    fn release(&mut self, executor: &Executor) -> Result<()> {
        self.recorded = None;
        self.prepared.clear();
        self.scratch.clear();
        self.tables.clear();
        self.logits.clear();
        self.logits_readbacks.clear();
        self.largest.clear();
        self.hidden.clear();
        self.hidden_readbacks.clear();
        self.adapters.release();
        // A decode pass may have left its token in the buffers of one row.
        self.rows.retain(|&rows, _| rows == 1);
        self.token_writes.retain(|&rows, _| rows == 1);
        // The device gives memory back after the passes that use it.
        executor.gpu.wait()
    }

    fn prepare(
        &mut self,
        executor: &Executor,
        places: &[&Place],
        phase: Phase,
        rows: u32,
        tokens: usize,
    ) -> Result<Arc<Pass>> {
        let gpu = &executor.gpu;
        let long = places.iter().any(|place| place.long);
        let terms = DeviceAdapters::terms(places.iter().map(|place| &place.adapters));
        let size = Size { phase, rows, table: table_blocks(tokens), long, terms };
        let last = if phase == Phase::Decode { rows } else { 1 };
        let table = self.table(executor, places, (last, size.table))?;
        if let Some(pass) = self.prepared.get(&size) {
            return Ok(Arc::clone(pass));
        }
        let bytes = scratch_bytes(&executor.config, last == 1, rows, tokens).next_power_of_two();
        let scratch = match self.scratch.get(&bytes) {
            Some(buffer) => buffer.clone(),
            None => gpu.zeroed(bytes)?,
        };
        self.scratch.insert(bytes, scratch.clone());
        let logits = match self.logits.get(&last) {
            Some(buffer) => buffer.clone(),
            None => gpu.zeroed(u64::from(last) * executor.config.vocab_size as u64 * 4)?,
        };
        self.logits.insert(last, logits.clone());
        let adapted = self.adapters.adapted(gpu, terms, (rows, last), phase == Phase::Prefill)?;
        let hidden = self.hidden(executor, phase, (rows, last))?;
        let (rows, last) = (self.rows(executor, rows)?, self.rows(executor, last)?);
        let operands = Operands { rows, last, table, scratch, logits, long, adapted, hidden };
        let pass = executor.parts().pass(phase, operands)?;
        let pass = Arc::new(pass);
        self.prepared.insert(size, Arc::clone(&pass));
        Ok(pass)
    }

    /// The buffer of `rows` block tables of `blocks` blocks, with the blocks of the sequences.
    fn table(
        &mut self,
        executor: &Executor,
        places: &[&Place],
        (rows, blocks): (u32, u32),
    ) -> Result<Buffer> {
        let gpu = &executor.gpu;
        let table = match self.tables.entry((rows, blocks)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let buffer = gpu.zeroed(u64::from(rows) * u64::from(blocks) * 4)?;
                entry.insert(Table { buffer, sequences: Vec::new() })
            }
        };
        if !table.sequences.iter().copied().eq(places.iter().map(|place| place.id)) {
            table.sequences.clear();
            let mut all = vec![executor.pool.unused_block(); (rows * blocks) as usize];
            for (row, place) in all.chunks_exact_mut(blocks as usize).zip(places) {
                let own = place.lease.blocks();
                let n = own.len().min(row.len());
                row[..n].copy_from_slice(&own[..n]);
            }
            gpu.write(&table.buffer, &all)?;
            table.sequences.extend(places.iter().map(|place| place.id));
        }
        Ok(table.buffer.clone())
    }

    fn rows(&mut self, executor: &Executor, n: u32) -> Result<Arc<Rows>> {
        if let Some(rows) = self.rows.get(&n) {
            return Ok(Arc::clone(rows));
        }
        let (gpu, config) = (&executor.gpu, &executor.config);
        let rows = Rows::new(gpu, config, n)?;
        let is_head = executor.weights.pairing.is_some();
        let rows = Arc::new(if is_head { rows.with_pairs(gpu, config)? } else { rows });
        if let Some(unwritten) = &rows.unwritten {
            executor.gpu.write(&unwritten.slots, &vec![executor.pool.unused_slot(); n as usize])?;
        }
        self.rows.insert(n, Arc::clone(&rows));
        Ok(rows)
    }
}

/// Bytes of partial sums of attention of `rows` rows behind `tokens` tokens.
fn scratch_bytes(config: &ModelConfig, one_sequence: bool, rows: u32, tokens: usize) -> u64 {
    let tokens = table_blocks(tokens) * KV_BLOCK_TOKENS;
    // Some layers may have no window.
    let key = |layer| AttentionKernel { window: None, ..attention(config, layer, one_sequence) };
    kinds(config).map(|layer| key(layer).scratch_bytes(rows, tokens)).max().unwrap_or(0)
}

/// `rows` values, those behind `values` unused.
fn padded(values: impl Iterator<Item = u32>, unused: u32, rows: u32) -> Vec<u32> {
    values.chain(std::iter::repeat(unused)).take(rows as usize).collect()
}

/// Rows of the decode pass of `n` sequences.
pub(super) fn batch_rows(n: usize) -> u32 {
    let [.., most] = BATCH_ROWS;
    if n <= 1 { 1 } else { BATCH_ROWS.into_iter().find(|&rows| n <= rows as usize).unwrap_or(most) }
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
    fn batches_have_room_for_their_sequences_and_whole_products() {
        for n in 1..=64 {
            let rows = batch_rows(n);
            assert!(rows as usize >= n && (rows <= 8 || rows.is_multiple_of(8)), "{n} sequences");
        }
        assert_eq!([1, 2, 3, 9, 17, 49].map(batch_rows), [1, 2, 4, 16, 24, 64]);
    }

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
