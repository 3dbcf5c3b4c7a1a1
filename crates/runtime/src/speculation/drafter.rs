//! The trait of what proposes tokens, and the two drafters that look up known ones.

use std::collections::HashMap;
use std::sync::Arc;

use ruvllm_adapters::kv_digest;
use ruvllm_kv_cache::KvStore;
use ruvllm_kv_cache::prefix::PrefixKey;
use ruvllm_text::TokenId;

use super::lookup;
use super::policy::{Offer, Policy, Source, Wanted};
use super::setting::Speculation;
use crate::prefix::PrefixCache;
use crate::sequence::SequenceSpec;

/// Number of a sequence, that of the step loop.
pub(crate) type Lane = u64;

/// A sequence that drafts are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'r> {
    pub(crate) lane: Lane,
    /// All its tokens; the last one is not computed yet.
    pub(crate) tokens: &'r [TokenId],
    pub(crate) spec: &'r SequenceSpec,
    /// Largest number of tokens of a draft.
    pub(crate) most: usize,
    /// True if it samples at a temperature of 0.5 or more.
    pub(crate) is_varied: bool,
    pub(crate) setting: Speculation,
}

/// Proposes the next tokens of sequences. Any proposal is right: it changes speed, never results.
pub(crate) trait Drafter {
    /// Number of a part's last tokens whose final hidden states it reads.
    fn states(&self) -> usize {
        0
    }

    /// Takes final hidden states of the model, `[tokens, model_dim]`, of the tokens of a sequence
    /// from position `first` on. Those of rejected drafts come too; later ones take their place.
    fn keep(&mut self, _lane: Lane, _first: usize, _states: &[f32]) {}

    /// A draft that [`draft`](Self::draft) could make for a sequence now.
    fn offer(&mut self, ask: &Ask<'_>) -> Option<Offer>;

    /// Fills in the drafts of the sequences from which some tokens are wanted; a draft may stay
    /// shorter, or empty. `asks`, `wanted` and `drafts` go together.
    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        wanted: &[Wanted],
        drafts: &mut [Vec<TokenId>],
        policy: &mut Policy,
    );

    /// Compares the last offer for a sequence with the tokens that followed, whether or not it
    /// became a draft: the number of tokens compared, and of the first of them that were right.
    /// `tokens` are those of the sequence, of which `before` were there at the offer. `None` if the
    /// tokens of an offer are not known.
    fn compare(&self, _lane: Lane, _tokens: &[TokenId], _before: usize) -> Option<[usize; 2]> {
        None
    }

    /// Forgets a sequence.
    fn end(&mut self, lane: Lane);
}

/// Number of tokens that two lists can have in common at their beginning, and have.
fn common(offered: &[TokenId], sampled: &[TokenId]) -> [usize; 2] {
    let right = offered.iter().zip(sampled).take_while(|(a, b)| a == b).count();
    [offered.len().min(sampled.len()), right]
}

/// Prompt look-up: the tokens that followed the same ones earlier in the sequence.
#[derive(Debug, Default)]
pub(super) struct PromptLookup {
    /// Token that follows the match, by sequence, of the last offer.
    found: HashMap<Lane, usize>,
}

impl Drafter for PromptLookup {
    fn offer(&mut self, ask: &Ask<'_>) -> Option<Offer> {
        let (length, next) = lookup::find(ask.tokens)?;
        self.found.insert(ask.lane, next);
        let source = match length {
            ..4 => Source::ShortLookup,
            4..8 => Source::Lookup,
            8.. => Source::LongLookup,
        };
        Some(Offer { source, most: ask.most, behind: 0 })
    }

    fn draft(&mut self, asks: &[Ask<'_>], wanted: &[Wanted], drafts: &mut [Vec<TokenId>], _: &mut Policy) {
        for ((ask, wanted), draft) in asks.iter().zip(wanted).zip(drafts) {
            let Some(&next) = self.found.get(&ask.lane) else { continue };
            for at in next..next + wanted.tokens {
                // A match that reaches the end is a period: it goes on with itself.
                let token = ask.tokens.get(at).copied().or_else(|| draft.get(at - ask.tokens.len()).copied());
                draft.extend(token);
            }
        }
    }

    fn compare(&self, lane: Lane, tokens: &[TokenId], before: usize) -> Option<[usize; 2]> {
        // Where a draft goes on with itself, it is right as long as these tokens are its own.
        Some(common(&tokens[*self.found.get(&lane)?..], &tokens[before..]))
    }

    fn end(&mut self, lane: Lane) {
        self.found.remove(&lane);
    }
}

/// Continuations in the prefix cache: tokens that earlier requests with the same beginning had.
pub(super) struct PrefixContinuation {
    prefixes: Arc<PrefixCache>,
    /// Store of sequences whose request names no policy.
    kv: KvStore,
    known: HashMap<Lane, Known>,
}

/// Place of a sequence in the prefix cache.
struct Known {
    key: PrefixKey,
    /// The continuation of the last look-up.
    next: Vec<TokenId>,
    /// Length of the sequence below which there is no need to look again.
    again_at: usize,
}

impl PrefixContinuation {
    /// Tokens until the next look-up where there was no continuation.
    const PATIENCE: usize = 32;

    pub(super) fn new(prefixes: Arc<PrefixCache>, kv: KvStore) -> Self {
        Self { prefixes, kv, known: HashMap::new() }
    }
}

impl Drafter for PrefixContinuation {
    fn offer(&mut self, ask: &Ask<'_>) -> Option<Offer> {
        if !ask.spec.caches_prefix {
            return None;
        }
        let prefixes = &self.prefixes;
        let known = self.known.entry(ask.lane).or_insert_with(|| {
            let SequenceSpec { tenant, adapters, capacity, kv, .. } = ask.spec;
            let store = kv.as_ref().unwrap_or(&self.kv);
            let key = prefixes.key_for(store, tenant.path(), *capacity, kv_digest(adapters));
            Known { key, next: Vec::new(), again_at: 0 }
        });
        known.next.clear();
        if ask.tokens.len() < known.again_at {
            return None;
        }
        prefixes.continuation(&known.key, ask.tokens, ask.most, &mut known.next);
        if known.next.is_empty() {
            known.again_at = ask.tokens.len() + Self::PATIENCE;
            return None;
        }
        Some(Offer { source: Source::Prefix, most: known.next.len(), behind: 0 })
    }

    fn draft(&mut self, asks: &[Ask<'_>], wanted: &[Wanted], drafts: &mut [Vec<TokenId>], _: &mut Policy) {
        for ((ask, wanted), draft) in asks.iter().zip(wanted).zip(drafts) {
            if let Some(known) = self.known.get(&ask.lane) {
                draft.extend(known.next.iter().take(wanted.tokens));
            }
        }
    }

    fn compare(&self, lane: Lane, tokens: &[TokenId], before: usize) -> Option<[usize; 2]> {
        Some(common(&self.known.get(&lane)?.next, &tokens[before..]))
    }

    fn end(&mut self, lane: Lane) {
        self.known.remove(&lane);
    }
}
