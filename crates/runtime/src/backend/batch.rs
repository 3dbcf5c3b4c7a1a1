//! Sequences of a backend that are decoded together.

use ruvllm_adapters::ScaledAdapter;
use ruvllm_text::TokenId;

use super::sequence::BackendSession;
use crate::adapter_refusal::AdapterRefusal;
use crate::error::{Error, Result};

/// Takes results of a decode step: indexes of the tokens, and a result for each, in this order.
pub type OnDecoded<'l> = dyn FnMut(&[usize], Decoded<'_>) + 'l;

/// Takes results as [`OnDecoded`] does, and behind them final hidden states, `[results,
/// model_dim]`, or none.
pub type OnStates<'l> = dyn FnMut(&[usize], Decoded<'_>, &[f32]) + 'l;

/// Token to append to a sequence of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextToken {
    /// Number of the sequence.
    pub sequence: usize,
    /// Id of the token.
    pub token: TokenId,
    /// Result that is wanted of the step.
    pub wanted: Wanted,
}

/// Result that a sequence wants of a decode step. Logits are an answer to all: the caller finds
/// the rest in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Logits.
    Logits,
    /// So many of the largest logits.
    Largest(usize),
    /// The greedy token alone.
    Greedy {
        /// True if the sequence has room for the token after it: computing that in advance, behind
        /// the greedy token, may be of use.
        goes_on: bool,
    },
}

/// Results of a decode step.
#[derive(Debug, Clone, Copy)]
pub enum Decoded<'l> {
    /// Logits, a row `[vocab_size]` for each token.
    Logits(&'l [f32]),
    /// Greedy tokens, for those that want one: the id of the largest logit, the lowest of equals,
    /// among the ids of the tokenizer. `None` if every one is NaN or `-inf`.
    Greedy(&'l [Option<TokenId>]),
    /// The largest logits among the ids of the tokenizer, for those that want so many or fewer.
    Largest {
        /// Number of logits of a row.
        most: usize,
        /// Rows of so many: largest first, equal ones by id. NaN counts as `-inf`.
        logits: &'l [TokenLogit],
    },
}

/// A logit and its token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogit {
    /// Id of the token.
    pub token: TokenId,
    /// Its logit.
    pub logit: f32,
}

/// Result of one token of a decode step: see [`Decoded`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Row<'l> {
    Logits(&'l [f32]),
    Greedy(Option<TokenId>),
    Largest(&'l [TokenLogit]),
}

impl<'l> Decoded<'l> {
    /// The result of one row.
    pub(crate) fn row(&self, row: usize, vocab_size: usize) -> Row<'l> {
        match *self {
            Self::Logits(logits) => Row::Logits(&logits[row * vocab_size..][..vocab_size]),
            Self::Greedy(tokens) => Row::Greedy(tokens[row]),
            Self::Largest { most, logits } => Row::Largest(&logits[row * most..][..most]),
        }
    }
}

/// Requests with which a sequence shares stored prefixes.
#[derive(Debug, Clone, Copy)]
pub struct PrefixSharing<'t> {
    /// Path of the tenant: the sequence shares with requests of this tenant, and what is stored for
    /// all.
    pub tenant: &'t str,
    /// Number of tokens below which a stored prefix is not taken.
    pub min_tokens: usize,
    /// First tokens, in whole blocks, that are stored for all tenants.
    pub shared_tokens: usize,
}

/// Sequences of a backend whose next tokens can be computed together.
///
/// [`InferenceBackend::batch`](crate::InferenceBackend::batch) makes one. By default a sequence is
/// computed after the other; a GPU computes a pass with a row for each.
pub trait BackendBatch {
    /// Begins an empty sequence of at most `capacity` tokens; returns its number.
    ///
    /// # Errors
    /// As [`InferenceBackend::session`](crate::InferenceBackend::session).
    fn begin(&mut self, capacity: usize) -> Result<usize>;

    /// Begins a sequence with the part of `prompt` that earlier sequences have stored; returns its
    /// number and that of its tokens. At least the last token of `prompt` is left to compute.
    /// Default: an empty sequence.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn begin_with_prefix(
        &mut self,
        capacity: usize,
        _prompt: &[TokenId],
        _sharing: &PrefixSharing<'_>,
    ) -> Result<(usize, usize)> {
        self.begin(capacity).map(|number| (number, 0))
    }

    /// As [`begin`](Self::begin), or as [`begin_with_prefix`](Self::begin_with_prefix) with a
    /// prompt, for a sequence with adapters, whose updates add up. Prefixes of other adapters are
    /// not taken. Default: refuses adapters.
    ///
    /// # Errors
    /// As [`begin`](Self::begin), and [`Error::AdapterBackend`].
    fn begin_adapted(
        &mut self,
        capacity: usize,
        adapters: &[ScaledAdapter],
        prompt: Option<(&[TokenId], &PrefixSharing<'_>)>,
    ) -> Result<(usize, usize)> {
        match prompt {
            _ if !adapters.is_empty() => {
                let backend = "of this batch".to_owned();
                Err(Error::AdapterBackend(AdapterRefusal::Unsupported { backend }))
            }
            Some((prompt, sharing)) => self.begin_with_prefix(capacity, prompt, sharing),
            None => self.begin(capacity).map(|number| (number, 0)),
        }
    }

    /// Stores a sequence, which begins with `tokens`, as a prefix of later ones, as far as a later
    /// one would compute the same bits. Default: does nothing.
    fn keep_prefix(&mut self, _number: usize, _tokens: &[TokenId], _sharing: &PrefixSharing<'_>) {}

    /// Tells a sequence that goes on with the rest of `prompt`, whose beginning it has, whom it
    /// shares what it computes of it with; `None`: with nobody. Default: does nothing.
    fn go_on_with(&mut self, _number: usize, _prompt: &[TokenId], _sharing: Option<&PrefixSharing<'_>>) {}

    /// The sequence with a number; `None` after [`end`](Self::end).
    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession>;

    /// Releases a sequence, if there is one. Its number may be given to another.
    fn end(&mut self, number: usize);

    /// Largest number of tokens behind the next one of a sequence that the next
    /// [`decode`](Self::decode) computes in about the time of that one, and that
    /// [`BackendSession::truncate`] drops again. Default: 0, no drafts.
    fn draft_room(&self, _number: usize) -> usize {
        0
    }

    /// Appends tokens to sequences as decode steps do, with the result of each: one token of a
    /// sequence, or up to [`draft_room`](Self::draft_room) more that follow it in `tokens`. Passes
    /// each result to `on_decoded` once, those of a pass together, and those of a sequence in one
    /// pass.
    ///
    /// # Errors
    /// See [`BackendSession::forward`]. Sequences without new tokens are as they were, and
    /// their results were not passed.
    fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()>;

    /// As [`decode`](Self::decode), with the final hidden state of each token beside its result:
    /// behind the model's last norm, what the logits are the products of. Default: passes none.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    fn decode_with_states(&mut self, tokens: &[NextToken], on_decoded: &mut OnStates<'_>) -> Result<()> {
        self.decode(tokens, &mut |rows, decoded| on_decoded(rows, decoded, &[]))
    }
}

/// Values by number; numbers are reused.
#[derive(Debug)]
pub(crate) struct Numbered<T>(Vec<Option<T>>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Numbered<T> {
    pub(crate) fn insert(&mut self, value: T) -> usize {
        match self.0.iter().position(Option::is_none) {
            Some(free) => {
                self.0[free] = Some(value);
                free
            }
            None => {
                self.0.push(Some(value));
                self.0.len() - 1
            }
        }
    }

    #[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "only devices read their sequences"))]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.0.get_mut(number)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: usize) {
        if let Some(value) = self.0.get_mut(number) {
            *value = None;
        }
    }
}

/// Makes a sequence of a backend for so many tokens.
pub(crate) type Open<'b> = Box<dyn Fn(usize) -> Result<Box<dyn BackendSession + 'b>> + 'b>;

/// Sequences that are computed one after the other.
pub(crate) struct OneByOne<'b> {
    open: Open<'b>,
    sequences: Numbered<Box<dyn BackendSession + 'b>>,
}

impl<'b> OneByOne<'b> {
    pub(crate) fn new(open: Open<'b>) -> Self {
        Self { open, sequences: Numbered::default() }
    }
}

impl BackendBatch for OneByOne<'_> {
    fn begin(&mut self, capacity: usize) -> Result<usize> {
        Ok(self.sequences.insert((self.open)(capacity)?))
    }

    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession> {
        match self.sequences.get_mut(number) {
            Some(sequence) => Some(&mut **sequence),
            None => None,
        }
    }

    fn end(&mut self, number: usize) {
        self.sequences.remove(number);
    }

    fn decode(&mut self, tokens: &[NextToken], on_decoded: &mut OnDecoded<'_>) -> Result<()> {
        let (mut start, mut ids, mut logits) = (0, Vec::new(), Vec::new());
        for run in tokens.chunk_by(|a, b| a.sequence == b.sequence) {
            if let Some(sequence) = self.sequences.get_mut(run[0].sequence) {
                ids.clear();
                ids.extend(run.iter().map(|next| next.token));
                let rows: Vec<usize> = (start..start + run.len()).collect();
                on_decoded(&rows, Decoded::Logits(sequence.forward_all(&ids, &mut logits)?));
            }
            start += run.len();
        }
        Ok(())
    }
}
