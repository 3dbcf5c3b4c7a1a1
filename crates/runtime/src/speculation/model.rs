//! Draft model: a small model with the vocabulary of the large one, and its own KV cache.

use std::collections::HashMap;
use std::time::Instant;

use ruvllm_kv_cache::{KvPolicy, KvStore, Sequence};
use ruvllm_memory::{PagePool, PoolConfig};
use ruvllm_models::{Compute, KvFormat, LogitsRows, Model, Segment, Workspace};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;

use super::drafter::{Ask, Drafter, Lane};
use super::policy::{MOST_DRAFT, Offer, Policy, Source, Wanted};
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::options::{EngineOptions, ModelSource};
use crate::segments::{Batch, recycle};

/// Largest number of tokens that the draft model sees of a sequence. Drafts need the latest ones,
/// and a bounded past bounds the memory and the time of catching up.
const CAPACITY: usize = 1024;

/// Tokens that a sequence begins with, the latest ones.
const BEGIN: usize = 128;

/// Sequences that may begin in one step.
const BEGINNERS: usize = 4;

/// Sequences for which the KV budget has room.
const SEQUENCES: usize = 64;

/// Bytes of a page of the KV budget.
const PAGE: usize = 512 << 10;

/// A loaded draft model, shared by all requests.
pub(crate) struct DraftModel {
    model: Model,
    kv: KvStore,
    /// Ids that may be drafted.
    ids: usize,
}

impl DraftModel {
    /// The draft model of the options, or the first candidate with the model's vocabulary.
    ///
    /// # Errors
    /// As [`load`](Self::load), for the draft model that the options name.
    pub(crate) fn of_options(options: &EngineOptions, codec: &TextCodec) -> Result<Option<Self>> {
        let load = |source| Self::load(source, codec, options.mmap);
        match &options.draft {
            Some(draft) => load(draft).map(Some),
            None => Ok(options.draft_candidates.iter().find_map(|candidate| load(candidate).ok())),
        }
    }

    /// Loads a draft model for a model with this codec.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Load`], [`Error::Tokenizer`], [`Error::KvBudget`];
    /// [`Error::DraftVocabulary`] if the vocabularies differ.
    pub(crate) fn load(source: &ModelSource, codec: &TextCodec, mmap: bool) -> Result<Self> {
        let memory = gguf_rs_lite::FileMemory { mmap, mlock: false };
        let checkpoint = source.open(memory)?;
        let name = source.to_string();
        let refused = |reason| Error::DraftVocabulary { name: name.clone(), reason };
        // A list that is too short needs no tokenizer to tell.
        let listed = checkpoint.metadata().get_strings("tokenizer.ggml.tokens").ok().flatten();
        let expected = codec.tokenizer().text_vocab_size();
        if let Some(found) = listed.map(<[_]>::len).filter(|found| *found < expected) {
            return Err(refused(format!("it has {found} tokens, the model has {expected}")));
        }
        let tokenizer =
            checkpoint.tokenizer().map_err(|source| Error::Tokenizer { name: name.clone(), source })?;
        compare(&tokenizer, codec.tokenizer()).map_err(refused)?;
        let model = Model::load(&*checkpoint, &mut |_| ())
            .map_err(|source| Error::Load { name: name.clone(), source })?;
        let ids = codec.sampled_ids();
        if model.config().vocab_size < ids {
            let rows = model.config().vocab_size;
            return Err(refused(format!("its output has {rows} ids, the model's {ids}")));
        }
        let policy = KvPolicy::uniform(KvFormat::F16.into());
        let capacity = model.config().context_length.min(CAPACITY);
        let token_bytes = 4 * model.config().kv_shape().width() * model.config().n_layers;
        let budget = (SEQUENCES * capacity * token_bytes).max(4 * PAGE).next_multiple_of(PAGE);
        let pool = PagePool::new(PoolConfig { page_bytes: PAGE, ..PoolConfig::new(budget) })
            .map_err(|source| Error::KvBudget { budget, source })?;
        let kv = model
            .kv_store(&policy, &pool)
            .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source })?;
        Ok(Self { model, kv, ids })
    }
}

/// Compares two vocabularies; the first difference.
fn compare(draft: &Tokenizer, model: &Tokenizer) -> Result<(), String> {
    let (found, expected) = (draft.text_vocab_size(), model.text_vocab_size());
    if found != expected {
        return Err(format!("it has {found} tokens, the model has {expected}"));
    }
    let differs = |id: &TokenId| draft.id_to_token(*id) != model.id_to_token(*id);
    match (0..expected as TokenId).find(differs) {
        None => Ok(()),
        Some(id) => {
            let [found, expected] =
                [draft, model].map(|tokenizer| tokenizer.id_to_token(id).unwrap_or_default());
            Err(format!("token {id} is {found:?} and {expected:?} in the model's"))
        }
    }
}

/// Drafts of a [`DraftModel`]: its most likely tokens. All sequences go through one pass.
pub(super) struct ModelDrafter<'c> {
    draft: &'c DraftModel,
    compute: &'c Compute,
    workspace: Workspace,
    sequences: HashMap<Lane, Box<DraftSequence>>,
    /// Sequences of the present passes, with their index among those asked for.
    #[expect(clippy::vec_box, reason = "a sequence is large and moves between list and map in each step")]
    running: Vec<Box<DraftSequence>>,
    segments: Vec<Segment<'static>>,
    /// Probabilities of a row of logits.
    probabilities: Vec<f32>,
}

/// The end of a sequence as the draft model sees it.
struct DraftSequence {
    cache: Sequence,
    /// Position of its first token in the sequence.
    start: usize,
    /// Its tokens, drafts included.
    tokens: Vec<TokenId>,
    /// Number of its first tokens that are those of the sequence.
    agreed: usize,
    /// Index among the sequences asked for.
    index: usize,
    /// Tokens of the next pass.
    pending: Vec<TokenId>,
    /// Probability of the present draft as the draft model sees it.
    likelihood: f64,
}

impl<'c> ModelDrafter<'c> {
    pub(super) fn new(draft: &'c DraftModel, compute: &'c Compute) -> Self {
        Self {
            draft,
            compute,
            workspace: Workspace::new(),
            sequences: HashMap::new(),
            running: Vec::new(),
            segments: Vec::new(),
            probabilities: Vec::new(),
        }
    }

    fn capacity(&self) -> usize {
        self.draft.model.config().context_length.min(CAPACITY)
    }

    /// Takes the sequences that get drafts out of the map, and the tokens that they lack.
    fn collect(&mut self, asks: &[Ask<'_>], wanted: &[Wanted]) {
        let capacity = self.capacity();
        let mut beginners = 0;
        for (index, ask) in asks.iter().enumerate() {
            if wanted[index].tokens == 0 {
                continue;
            }
            let known = self.sequences.get(&ask.lane);
            if known.is_none_or(|known| known.lacks(ask.tokens) > BEGIN) {
                beginners += 1;
                if beginners > BEGINNERS {
                    continue;
                }
            }
            let mut sequence = match self.sequences.remove(&ask.lane) {
                Some(sequence) => sequence,
                None => match self.draft.model.new_sequence(&self.draft.kv, capacity) {
                    Ok(cache) => Box::new(DraftSequence::new(cache)),
                    Err(_) => continue,
                },
            };
            sequence.index = index;
            sequence.follow(ask.tokens, capacity.saturating_sub(wanted[index].tokens.min(MOST_DRAFT)));
            // A prompt may have ids beyond those that the vocabularies have in common.
            let rows = self.draft.model.config().vocab_size;
            if sequence.pending.iter().all(|&token| (token as usize) < rows) {
                self.running.push(sequence);
            }
        }
    }

    /// One pass of the pending tokens of all running sequences, which get the next token; false if
    /// it failed.
    fn pass(&mut self, policy: &mut Policy) -> bool {
        let started = Instant::now();
        let Self { draft, compute, workspace, running, segments, probabilities, .. } = self;
        let mut batch = recycle(std::mem::take(segments));
        let mut rows = 0;
        for sequence in running.iter_mut() {
            let DraftSequence { cache, tokens, pending, .. } = &mut **sequence;
            let Ok(segment) = Segment::new(compute, pending, cache, LogitsRows::Last) else {
                *segments = recycle(batch);
                return false;
            };
            tokens.extend_from_slice(pending);
            rows += pending.len();
            batch.push(segment);
        }
        let passed = draft.model.forward(compute, workspace, Batch(&mut batch)).is_ok();
        *segments = recycle(batch);
        if !passed {
            return false;
        }
        let logits = workspace.logits().chunks_exact(draft.model.config().vocab_size);
        for (sequence, row) in running.iter_mut().zip(logits) {
            sequence.pending.clear();
            probabilities.clear();
            probabilities.extend_from_slice(&row[..draft.ids]);
            if let Some(best) = compute.kernels.argmax(probabilities) {
                compute.kernels.softmax(probabilities);
                sequence.likelihood *= f64::from(probabilities[best]);
                sequence.pending.push(best as TokenId);
            }
        }
        policy.observe_draft(rows, started.elapsed());
        true
    }
}

impl DraftSequence {
    fn new(cache: Sequence) -> Self {
        Self {
            cache,
            start: 0,
            tokens: Vec::new(),
            agreed: 0,
            index: 0,
            pending: Vec::new(),
            likelihood: 1.0,
        }
    }

    /// Number of tokens of the sequence that are missing here.
    fn lacks(&self, tokens: &[TokenId]) -> usize {
        tokens.len().saturating_sub(self.start + self.agreed)
    }

    /// Drops drafts that were wrong and notes the tokens that are missing; begins with the latest
    /// tokens where more than `capacity` would be held, or where most are missing.
    fn follow(&mut self, tokens: &[TokenId], capacity: usize) {
        let known = tokens.get(self.start..).unwrap_or_default();
        let same = |(a, b): &(&TokenId, &TokenId)| a == b;
        let later = self.tokens[self.agreed..].iter().zip(known.get(self.agreed..).unwrap_or_default());
        // The last token is computed again, for its logits.
        self.agreed = (self.agreed + later.take_while(same).count()).min(known.len().saturating_sub(1));
        let missing = known.len() - self.agreed;
        if known.len() > capacity || missing > BEGIN || self.cache.truncate(self.agreed).is_err() {
            self.cache.clear();
            self.start = tokens.len().saturating_sub(BEGIN.min(capacity.div_ceil(2)));
            self.agreed = 0;
        }
        self.tokens.truncate(self.agreed);
        self.likelihood = 1.0;
        self.pending.clear();
        self.pending.extend_from_slice(&tokens[self.start + self.agreed..]);
    }
}

impl Drafter for ModelDrafter<'_> {
    fn offer(&mut self, ask: &Ask<'_>) -> Option<Offer> {
        let lacks = self.sequences.get(&ask.lane).map_or(ask.tokens.len(), |known| known.lacks(ask.tokens));
        Some(Offer { source: Source::Model, most: ask.most, behind: lacks.min(BEGIN) })
    }

    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        wanted: &[Wanted],
        drafts: &mut [Vec<TokenId>],
        policy: &mut Policy,
    ) {
        self.collect(asks, wanted);
        while !self.running.is_empty() && self.pass(policy) {
            for at in (0..self.running.len()).rev() {
                let sequence = &self.running[at];
                let (draft, wanted) = (&mut drafts[sequence.index], &wanted[sequence.index]);
                let [draft_floor, verify_floor] = wanted.floors;
                if sequence.likelihood >= verify_floor {
                    draft.extend_from_slice(&sequence.pending);
                }
                let is_done = sequence.pending.is_empty() || draft.len() >= wanted.tokens;
                // A likelihood that is no number ends the draft too.
                let goes_on = sequence.likelihood > draft_floor;
                if is_done || !goes_on {
                    let sequence = self.running.swap_remove(at);
                    self.sequences.insert(asks[sequence.index].lane, sequence);
                }
            }
        }
        // A pass that failed, for lack of memory say: these sequences begin anew.
        self.running.clear();
    }

    fn end(&mut self, lane: Lane) {
        self.sequences.remove(&lane);
    }
}
