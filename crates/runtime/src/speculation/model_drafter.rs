//! Drafts of a small model, of all sequences in one pass.

use std::collections::HashMap;
use std::time::Instant;

use ruvllm_kv_cache::Sequence;
use ruvllm_models::{Compute, LogitsRows, Segment, Workspace};
use ruvllm_text::TokenId;

use super::draft_model::DraftModel;
use super::drafter::{Ask, Drafter, Lane};
use super::memory::CAPACITY;
use super::policy::{MOST_DRAFT, Offer, Policy, Source, Wanted};
use super::proposal::Proposal;
use crate::segments::{Batch, recycle};

/// Tokens that a sequence begins with, the latest ones. More would cost more than they gain: the
/// past grows with the sequence.
const BEGIN: usize = 32;

/// Sequences that may begin in one step.
const BEGINNERS: usize = 4;

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
    /// Tokens of the next pass.
    pending: Vec<TokenId>,
    proposal: Proposal,
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
            sequence.proposal = Proposal::new(index);
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
            sequence.proposal.choose(&compute.kernels, &row[..draft.ids], probabilities);
            sequence.pending.extend(sequence.proposal.token);
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
            pending: Vec::new(),
            proposal: Proposal::new(0),
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
                let proposal = &self.running[at].proposal;
                if !proposal.extend(&mut drafts[proposal.index], &wanted[proposal.index]) {
                    let sequence = self.running.swap_remove(at);
                    self.sequences.insert(asks[sequence.proposal.index].lane, sequence);
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
