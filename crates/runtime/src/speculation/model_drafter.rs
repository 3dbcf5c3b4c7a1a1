//! Drafts of a small model, of all sequences in one pass.

use std::collections::HashMap;
use std::time::Instant;

use ruvllm_text::TokenId;

use super::draft_engine::DraftEngine;
use super::drafter::{Ask, Drafter, Lane};
use super::policy::{MOST_DRAFT, Offer, Policy, Source, Wanted};
use super::proposal::{Choice, Proposal};

/// Tokens that a sequence begins with, the latest ones. More would cost more than they gain: the
/// past grows with the sequence.
const BEGIN: usize = 32;

/// Sequences that may begin in one step.
const BEGINNERS: usize = 4;

/// Drafts of a model: its most likely tokens. All sequences go through one pass of its engine.
pub(super) struct ModelDrafter<E: DraftEngine> {
    engine: E,
    sequences: HashMap<Lane, Box<DraftSequence<E::Cache>>>,
    /// Sequences of the present passes, with their index among those asked for. Boxed: they are
    /// large and move between list and map in each step.
    running: Vec<Box<DraftSequence<E::Cache>>>,
    /// Tokens of the last pass.
    found: Vec<Option<Choice>>,
}

/// The end of a sequence as the draft model sees it.
struct DraftSequence<C> {
    cache: C,
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

impl<E: DraftEngine> ModelDrafter<E> {
    pub(super) fn new(engine: E) -> Self {
        Self { engine, sequences: HashMap::new(), running: Vec::new(), found: Vec::new() }
    }

    /// Takes the sequences that get drafts out of the map, and the tokens that they lack.
    fn collect(&mut self, asks: &[Ask<'_>], wanted: &[Wanted]) {
        let Self { engine, sequences, running, .. } = self;
        let (capacity, vocab_size) = (engine.capacity(), engine.vocab_size());
        let mut beginners = 0;
        for (index, ask) in asks.iter().enumerate() {
            if wanted[index].tokens == 0 {
                continue;
            }
            let known = sequences.get(&ask.lane);
            if known.is_none_or(|known| known.lacks(ask.tokens) > BEGIN) {
                beginners += 1;
                if beginners > BEGINNERS {
                    continue;
                }
            }
            let mut sequence = match sequences.remove(&ask.lane) {
                Some(sequence) => sequence,
                None => match engine.begin() {
                    Some(cache) => Box::new(DraftSequence::new(cache)),
                    None => continue,
                },
            };
            sequence.proposal = Proposal::new(index);
            let room = capacity.saturating_sub(wanted[index].tokens.min(MOST_DRAFT));
            sequence.follow(engine, ask.tokens, room);
            // A prompt may have ids beyond those that the vocabularies have in common.
            match sequence.pending.iter().all(|&token| (token as usize) < vocab_size) {
                true => running.push(sequence),
                false => engine.end(sequence.cache),
            }
        }
    }

    /// One pass of the pending tokens of all running sequences, which get the next token; false if
    /// it failed.
    fn pass(&mut self, policy: &mut Policy) -> bool {
        let started = Instant::now();
        let Self { engine, running, found, .. } = self;
        let rows = running.iter().map(|sequence| sequence.pending.len()).sum();
        let parts = running.iter_mut().map(|sequence| {
            let DraftSequence { cache, pending, .. } = &mut **sequence;
            (cache, &pending[..])
        });
        if !engine.pass(parts, found) {
            return false;
        }
        for (sequence, choice) in running.iter_mut().zip(found.drain(..)) {
            let DraftSequence { tokens, pending, proposal, .. } = &mut **sequence;
            tokens.append(pending);
            proposal.take(choice);
            pending.extend(proposal.token);
        }
        policy.observe_draft(rows, started.elapsed());
        true
    }
}

impl<C> DraftSequence<C> {
    fn new(cache: C) -> Self {
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
    fn follow(&mut self, engine: &mut impl DraftEngine<Cache = C>, tokens: &[TokenId], capacity: usize) {
        let known = tokens.get(self.start..).unwrap_or_default();
        let same = |(a, b): &(&TokenId, &TokenId)| a == b;
        let later = self.tokens[self.agreed..].iter().zip(known.get(self.agreed..).unwrap_or_default());
        // The last token is computed again, for its logits.
        self.agreed = (self.agreed + later.take_while(same).count()).min(known.len().saturating_sub(1));
        let missing = known.len() - self.agreed;
        if known.len() > capacity || missing > BEGIN || !engine.truncate(&mut self.cache, self.agreed) {
            engine.clear(&mut self.cache);
            self.start = tokens.len().saturating_sub(BEGIN.min(capacity.div_ceil(2)));
            self.agreed = 0;
        }
        self.tokens.truncate(self.agreed);
        self.pending.clear();
        self.pending.extend_from_slice(&tokens[self.start + self.agreed..]);
    }
}

impl<E: DraftEngine> Drafter for ModelDrafter<E> {
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
        self.running.drain(..).for_each(|sequence| self.engine.end(sequence.cache));
    }

    fn end(&mut self, lane: Lane) {
        if let Some(sequence) = self.sequences.remove(&lane) {
            self.engine.end(sequence.cache);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ruvllm_memory::{PressurePolicy, Tenant};

    use super::*;
    use crate::sequence::SequenceSpec;
    use crate::speculation::Speculation;

    /// An engine whose likeliest token is the one after the last, with places for two sequences.
    #[derive(Default)]
    struct Counting {
        live: usize,
        fails: bool,
        /// Numbers of tokens of each pass.
        passes: Vec<Vec<usize>>,
    }

    impl DraftEngine for Counting {
        type Cache = Vec<TokenId>;

        fn capacity(&self) -> usize {
            64
        }

        fn vocab_size(&self) -> usize {
            1000
        }

        fn begin(&mut self) -> Option<Vec<TokenId>> {
            let has_place = self.live < 2;
            self.live += usize::from(has_place);
            has_place.then(Vec::new)
        }

        fn truncate(&mut self, cache: &mut Vec<TokenId>, len: usize) -> bool {
            cache.truncate(len);
            true
        }

        fn clear(&mut self, cache: &mut Vec<TokenId>) {
            cache.clear();
        }

        fn pass<'p>(
            &mut self,
            parts: impl Iterator<Item = (&'p mut Vec<TokenId>, &'p [TokenId])>,
            found: &mut Vec<Option<Choice>>,
        ) -> bool {
            found.clear();
            let mut sizes = Vec::new();
            for (cache, tokens) in parts {
                cache.extend_from_slice(tokens);
                sizes.push(tokens.len());
                found.push(cache.last().map(|last| Choice { token: last + 1, probability: 0.9 }));
            }
            self.passes.push(sizes);
            !self.fails
        }

        fn end(&mut self, _: Vec<TokenId>) {
            self.live -= 1;
        }
    }

    /// Drafts of two tokens for sequences, numbered from 0.
    fn drafts(drafter: &mut ModelDrafter<Counting>, sequences: &[&[TokenId]]) -> Vec<Vec<TokenId>> {
        let spec = SequenceSpec {
            tenant: Tenant::root(),
            adapters: Arc::default(),
            kv: None,
            min_cache_tokens: 0,
            pressure: PressurePolicy::default(),
            capacity: 64,
            caches_prefix: false,
            shared_tokens: 0,
        };
        let asks: Vec<Ask<'_>> = (0..)
            .zip(sequences)
            .map(|(lane, &tokens)| {
                let setting = Speculation::Fixed(2);
                Ask { lane, tokens, spec: &spec, most: 2, is_varied: false, setting }
            })
            .collect();
        let wanted = vec![Wanted { tokens: 2, floors: [0.0; 2] }; asks.len()];
        let mut drafts = vec![Vec::new(); asks.len()];
        drafter.draft(&asks, &wanted, &mut drafts, &mut Policy::new());
        drafts
    }

    #[test]
    fn sequences_of_a_pass_that_failed_end_and_begin_anew() {
        let mut drafter = ModelDrafter::new(Counting::default());
        let none = [Vec::<TokenId>::new()];
        // A third one finds no place.
        let found = drafts(&mut drafter, &[&[5, 6], &[8], &[9]]);
        assert_eq!(found, [vec![7, 8], vec![9, 10], vec![]]);
        assert_eq!((drafter.engine.live, &drafter.engine.passes[..]), (2, &[vec![2, 1], vec![1, 1]][..]));
        // All right and one more token; one wrong.
        drafter.engine.passes.clear();
        let found = drafts(&mut drafter, &[&[5, 6, 7, 8, 3], &[8, 4]]);
        assert_eq!(found, [vec![4, 5], vec![5, 6]]);
        assert_eq!(drafter.engine.passes, [vec![2, 1], vec![1, 1]]);
        (drafter.engine.fails, drafter.engine.passes) = (true, Vec::new());
        assert_eq!(drafts(&mut drafter, &[&[5, 6, 7, 8, 3, 1]]), none);
        assert_eq!((drafter.engine.live, &drafter.engine.passes[..]), (1, &[vec![1]][..]));
        (drafter.engine.fails, drafter.engine.passes) = (false, Vec::new());
        assert_eq!(drafts(&mut drafter, &[&[5, 6, 7, 8, 3, 1]]), [vec![2, 3]]);
        assert_eq!(drafter.engine.passes[0], [6], "it begins anew");
        // An id that the model does not have.
        assert_eq!(drafts(&mut drafter, &[&[5, 1000]]), none);
        drafter.end(1);
        assert_eq!(drafter.engine.live, 0);
    }
}
