//! Batch of one forward pass: any mix of prompt chunks and single tokens of several sequences, and
//! the rows whose logits are wanted. Checked here, computed in `decoder`.

use ruvllm_adapters::ScaledAdapter;
use ruvllm_kv_cache::{KvStep, Sequence};
use ruvllm_text::TokenId;

use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// New tokens of one sequence, and the KV step that stores their keys and values after the present
/// ones.
///
/// Room for them is allocated here, so a pass cannot fail for lack of it. Dropping a segment leaves
/// the sequence as it was.
#[derive(Debug)]
pub struct Segment<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) step: KvStep<'a>,
    pub(crate) logits: LogitsRows<'a>,
    pub(crate) adapters: &'a [ScaledAdapter],
    pub(crate) probed_layer: Option<usize>,
    /// Tokens at the end whose final hidden states are kept.
    pub(crate) hidden_tail: usize,
}

impl<'a> Segment<'a> {
    /// Begins a step of `tokens` (at least one), without adapters.
    ///
    /// # Errors
    /// [`Error::KvCache`] beyond the capacity of the sequence, or without memory.
    pub fn new(
        compute: &Compute,
        tokens: &'a [TokenId],
        cache: &'a mut Sequence,
        logits: LogitsRows<'a>,
    ) -> Result<Self> {
        let step = cache.step(&compute.kernels, tokens.len())?;
        Ok(Self { tokens, step, logits, adapters: &[], probed_layer: None, hidden_tail: 0 })
    }

    /// The segment with adapters, whose updates add up in their order. Those that change keys and
    /// values ([`kv_digest`](ruvllm_adapters::kv_digest)) must be those of the tokens before.
    #[must_use]
    pub fn with_adapters(self, adapters: &'a [ScaledAdapter]) -> Self {
        Self { adapters, ..self }
    }

    /// The segment with a layer whose query of the last token is kept for
    /// [`Model::probe`](crate::Model::probe).
    #[must_use]
    pub fn with_probe(self, layer: Option<usize>) -> Self {
        Self { probed_layer: layer, ..self }
    }

    /// The segment with the final hidden states of its last `tokens` tokens, at most all, kept
    /// beside those of tokens with logits: [`Workspace::hidden`](crate::Workspace::hidden).
    ///
    /// Logits keep their bits.
    #[must_use]
    pub fn with_hidden(self, tokens: usize) -> Self {
        Self { hidden_tail: tokens, ..self }
    }

    /// The segment with a journal, so that [`Model::rewind`](crate::Model::rewind) can drop some of
    /// its tokens again after the pass, also where layers keep a state.
    ///
    /// # Errors
    /// [`Error::KvCache`] without memory.
    pub fn rewindable(mut self, config: &ModelConfig) -> Result<Self> {
        self.step.keep_journal(self.tokens.len().saturating_mul(config.journal_values()))?;
        Ok(self)
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }
}

/// The tokens of a segment whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsRows<'a> {
    /// None of them: a prompt chunk that is not the last.
    None,
    /// The last one, which predicts the next token.
    Last,
    /// As many at the end, at most all of them: the last token and drafts behind it, say.
    Tail(usize),
    /// All of them.
    All,
    /// The ones at these indices into the segment, strictly ascending.
    At(&'a [usize]),
}

/// Consecutive tokens of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Index of the segment.
    pub(crate) segment: usize,
    /// Index of the first token among all tokens of the batch.
    pub(crate) row: usize,
    /// Position of the first token in its sequence.
    pub(crate) position: usize,
    /// Number of tokens.
    pub(crate) len: usize,
}

/// The rows of a checked batch. Kept between steps for its memory.
#[derive(Debug, Default)]
pub(crate) struct BatchRows {
    /// Every segment as a whole, in order.
    pub(crate) all: Vec<Span>,
    /// The tokens whose final hidden states are wanted, in order: those with logits, and those that
    /// are kept beside them.
    pub(crate) wanted: Vec<Span>,
    /// The same when their rows have been moved to the front.
    pub(crate) front: Vec<Span>,
    /// The tokens of these that have logits.
    pub(crate) scored: Vec<Span>,
    /// The same at their rows when the wanted ones have been moved to the front.
    pub(crate) scored_front: Vec<Span>,
    /// True if hidden states are kept.
    pub(crate) keeps_hidden: bool,
}

impl BatchRows {
    /// Checks a batch against the model and lays its rows out. Changes no cache.
    pub(crate) fn fill(&mut self, config: &ModelConfig, segments: &[Segment<'_>]) -> Result<()> {
        self.all.clear();
        self.wanted.clear();
        self.scored.clear();
        self.keeps_hidden = segments.iter().any(|segment| segment.hidden_tail > 0);
        if segments.is_empty() {
            return Err(Error::EmptyBatch);
        }
        let mut row = 0;
        for (index, segment) in segments.iter().enumerate() {
            check_segment(config, index, segment)?;
            let span = Span {
                segment: index,
                row,
                position: segment.step.sequence().len(),
                len: segment.tokens.len(),
            };
            self.all.push(span);
            let first = self.scored.len();
            self.score(span, segment.logits)?;
            self.want(span, first, segment.hidden_tail.min(span.len));
            row += span.len;
        }
        let mut row = 0;
        self.front.clear();
        self.front.extend(self.wanted.iter().map(|span| {
            row += span.len;
            Span { row: row - span.len, ..*span }
        }));
        self.place_scored();
        Ok(())
    }

    /// Adds the tokens of a segment that are wanted: those that are scored, from index `first` on,
    /// and the last `tail`.
    fn want(&mut self, span: Span, first: usize, tail: usize) {
        let tail = span.part(span.len - tail, tail);
        let before = |scored: &Span| scored.row < tail.row;
        self.wanted.extend(self.scored[first..].iter().copied().filter(before));
        if tail.len == 0 {
            return;
        }
        match self.wanted.last_mut() {
            Some(last) if last.segment == span.segment && last.row + last.len >= tail.row => {
                last.len = tail.row + tail.len - last.row;
            }
            _ => self.wanted.push(tail),
        }
    }

    /// Finds the rows of scored tokens among the wanted ones at the front. A span of these has all
    /// tokens of each scored one that it has any of.
    fn place_scored(&mut self) {
        self.scored_front.clear();
        let mut places = self.wanted.iter().zip(&self.front).peekable();
        for scored in &self.scored {
            while let Some((wanted, _)) = places.peek()
                && wanted.row + wanted.len <= scored.row
            {
                places.next();
            }
            if let Some((wanted, front)) = places.peek() {
                self.scored_front.push(Span { row: front.row + scored.row - wanted.row, ..*scored });
            }
        }
    }

    /// Adds the tokens of a segment that have logits.
    fn score(&mut self, span: Span, logits: LogitsRows<'_>) -> Result<()> {
        match logits {
            LogitsRows::None | LogitsRows::Tail(0) => {}
            LogitsRows::Last => self.scored.push(span.part(span.len - 1, 1)),
            LogitsRows::Tail(rows) if rows > span.len => {
                return Err(Error::LogitsRow { segment: span.segment, row: rows, tokens: span.len });
            }
            LogitsRows::Tail(rows) => self.scored.push(span.part(span.len - rows, rows)),
            LogitsRows::All => self.scored.push(span),
            LogitsRows::At(rows) => {
                let mut next = 0;
                for &row in rows {
                    if row < next || row >= span.len {
                        return Err(Error::LogitsRow { segment: span.segment, row, tokens: span.len });
                    }
                    match self.scored.last_mut() {
                        // Neighbours share one span, so that they share one pass of attention.
                        Some(last) if row > 0 && row == next && last.ends_at(span.row + row) => last.len += 1,
                        _ => self.scored.push(span.part(row, 1)),
                    }
                    next = row + 1;
                }
            }
        }
        Ok(())
    }

    /// Number of tokens in the batch.
    pub(crate) fn n_tokens(&self) -> usize {
        count(&self.all)
    }

    /// Number of tokens whose final hidden states are wanted.
    pub(crate) fn n_wanted(&self) -> usize {
        count(&self.wanted)
    }

    /// Number of tokens with logits.
    pub(crate) fn n_scored(&self) -> usize {
        count(&self.scored)
    }

    /// True if all wanted tokens have logits.
    pub(crate) fn scores_all(&self) -> bool {
        self.n_scored() == self.n_wanted()
    }

    /// Number of positions that the longest sequence has after the step.
    pub(crate) fn n_positions(&self) -> usize {
        self.all.iter().map(|span| span.position + span.len).max().unwrap_or(0)
    }
}

impl Span {
    /// The `len` tokens from index `first` on.
    pub(crate) fn part(self, first: usize, len: usize) -> Self {
        Self { segment: self.segment, row: self.row + first, position: self.position + first, len }
    }

    fn ends_at(self, row: usize) -> bool {
        self.row + self.len == row
    }

    /// The span's part of a buffer with `width` numbers per token of the batch.
    pub(crate) fn range(self, width: usize) -> std::ops::Range<usize> {
        self.row * width..(self.row + self.len) * width
    }
}

pub(crate) fn count(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.len).sum()
}

fn check_segment(config: &ModelConfig, index: usize, segment: &Segment<'_>) -> Result<()> {
    if segment.tokens.is_empty() {
        return Err(Error::EmptySegment { segment: index });
    }
    let (found, expected) = (segment.step.sequence().store().shape(), config.kv_shape());
    if found != expected {
        return Err(Error::CacheShape {
            segment: index,
            found: found.to_string(),
            expected: expected.to_string(),
        });
    }
    let (found, expected) = (segment.step.sequence().state_values(), config.state_values());
    if found != expected {
        let values = |values: usize| format!("a state of {values} values");
        return Err(Error::CacheShape { segment: index, found: values(found), expected: values(expected) });
    }
    let unknown = segment.tokens.iter().position(|&token| token as usize >= config.vocab_size);
    match unknown {
        None => Ok(()),
        Some(at) => Err(Error::TokenOutOfRange {
            segment: index,
            index: at,
            token: segment.tokens[at],
            vocab_size: config.vocab_size,
        }),
    }
}
