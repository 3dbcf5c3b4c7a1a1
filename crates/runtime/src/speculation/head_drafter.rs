//! Drafts of the model's own prediction head, of all sequences in one pass (ADR-0130).

use std::collections::HashMap;
use std::time::Instant;

use ruvllm_kv_cache::Sequence;
use ruvllm_models::{Compute, LogitsRows, Model, Segment, Workspace};
use ruvllm_text::TokenId;

use super::draft_head::DraftHead;
use super::drafter::{Ask, Drafter, Lane};
use super::policy::{MOST_DRAFT, Offer, Policy, Source, Wanted};
use super::proposal::{Choice, Proposal};
use crate::segments::{Batch, recycle};

/// Latest states of a sequence that are held for its next draft; as many of a prompt's end are
/// computed. The head reads each state once, and attends to those that it has read.
pub(super) const HELD: usize = 128;

/// Drafts of a [`DraftHead`]: its most likely tokens. All sequences go through one pass.
pub(super) struct HeadDrafter<'c> {
    head: &'c DraftHead,
    model: &'c Model,
    compute: &'c Compute,
    workspace: Workspace,
    sequences: HashMap<Lane, Box<HeadSequence>>,
    /// Sequences of the present passes.
    #[expect(clippy::vec_box, reason = "a sequence is large and moves between list and map in each step")]
    running: Vec<Box<HeadSequence>>,
    segments: Vec<Segment<'static>>,
    /// States of a pass, `[tokens, model_dim]`.
    states: Vec<f32>,
    /// Probabilities of a row of logits.
    probabilities: Vec<f32>,
}

/// A sequence as the head sees it: pairs of a token's final hidden state and the token behind it.
struct HeadSequence {
    cache: Sequence,
    /// Position of the token whose state the cache begins with.
    start: usize,
    /// Number of cached pairs whose states are the model's; those behind are the head's own, of the
    /// last draft.
    agreed: usize,
    /// States that the head has not read.
    held: States,
    /// Pairs of the next pass: tokens, and the states before them.
    tokens: Vec<TokenId>,
    inputs: Vec<f32>,
    proposal: Proposal,
}

/// Final hidden states of consecutive tokens of a sequence.
struct States {
    /// Position of the first token.
    first: usize,
    /// Values of a state.
    width: usize,
    /// `[tokens, width]`
    rows: Vec<f32>,
}

impl States {
    /// Position behind the last token.
    fn end(&self) -> usize {
        self.first + self.rows.len() / self.width
    }

    /// Adds the states from position `first` on, in place of those that were there. Those before a
    /// gap are dropped, and the oldest beyond [`HELD`].
    fn keep(&mut self, first: usize, rows: &[f32]) {
        match (self.first..=self.end()).contains(&first) {
            true => self.rows.truncate((first - self.first) * self.width),
            false => (self.first, _) = (first, self.rows.clear()),
        }
        self.rows.extend_from_slice(rows);
        let excess = (self.end() - self.first).saturating_sub(HELD);
        self.rows.drain(..excess * self.width);
        self.first += excess;
    }
}

impl HeadSequence {
    fn new(cache: Sequence, width: usize) -> Self {
        Self {
            cache,
            start: 0,
            agreed: 0,
            held: States { first: 0, width, rows: Vec::new() },
            tokens: Vec::new(),
            inputs: Vec::new(),
            proposal: Proposal::new(0),
        }
    }

    /// Holds states of the model. A sequence that was cut back loses what was read beyond that.
    fn keep(&mut self, first: usize, states: &[f32]) {
        self.agreed = self.agreed.min(first.saturating_sub(self.start));
        self.held.keep(first, states);
    }

    /// Number of states that the head lacks of a sequence of `tokens` tokens, the last of which has
    /// none yet; `None` if it cannot have them all.
    fn lacks(&self, tokens: usize) -> Option<usize> {
        let computed = tokens.checked_sub(1)?;
        let lacks = computed.checked_sub(self.held.first)?;
        (lacks > 0 && self.held.end() >= computed).then_some(lacks)
    }

    /// Drops the pairs of the last draft and takes those that are missing into the next pass;
    /// begins anew where the cache has others before it, or no room. False without room for them.
    fn follow(&mut self, tokens: &[TokenId], capacity: usize) -> bool {
        let Some(lacks) = self.lacks(tokens.len()).filter(|lacks| *lacks <= capacity) else { return false };
        let follows = self.start + self.agreed == self.held.first && self.agreed + lacks <= capacity;
        if !follows || self.cache.truncate(self.agreed).is_err() {
            self.cache.clear();
            (self.start, self.agreed) = (self.held.first, 0);
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(&tokens[self.held.first + 1..]);
        self.inputs.clear();
        self.inputs.extend_from_slice(&self.held.rows[..lacks * self.held.width]);
        self.held.rows.clear();
        self.held.first += lacks;
        self.agreed += lacks;
        true
    }
}

impl<'c> HeadDrafter<'c> {
    pub(super) fn new(head: &'c DraftHead, model: &'c Model, compute: &'c Compute) -> Self {
        Self {
            head,
            model,
            compute,
            workspace: Workspace::new(),
            sequences: HashMap::new(),
            running: Vec::new(),
            segments: Vec::new(),
            states: Vec::new(),
            probabilities: Vec::new(),
        }
    }

    /// One pass of the pairs of all running sequences, which get the next token; false if it
    /// failed.
    fn pass(&mut self, policy: &mut Policy) -> bool {
        let started = Instant::now();
        let Self { head, model, compute, workspace, running, segments, states, probabilities, .. } = self;
        let mut batch = recycle(std::mem::take(segments));
        let mut rows = 0;
        states.clear();
        for sequence in running.iter_mut() {
            let HeadSequence { cache, tokens, inputs, .. } = &mut **sequence;
            let Ok(segment) = Segment::new(compute, tokens, cache, LogitsRows::Last) else {
                *segments = recycle(batch);
                return false;
            };
            states.extend_from_slice(inputs);
            rows += tokens.len();
            batch.push(segment);
        }
        let passed = model.predict(compute, workspace, Batch(&mut batch), states).is_ok();
        *segments = recycle(batch);
        if !passed {
            return false;
        }
        let config = model.config();
        let logits = workspace.logits().chunks_exact(config.vocab_size);
        let hidden = workspace.hidden().chunks_exact(config.model_dim);
        for ((sequence, logits), hidden) in running.iter_mut().zip(logits).zip(hidden) {
            let HeadSequence { tokens, inputs, proposal, .. } = &mut **sequence;
            let logits = &logits[..head.ids];
            proposal.take(Choice::of_logits(&compute.kernels, logits, probabilities));
            tokens.clear();
            tokens.extend(proposal.token);
            inputs.clear();
            inputs.extend_from_slice(hidden);
        }
        policy.observe_draft(rows, started.elapsed());
        true
    }
}

impl Drafter for HeadDrafter<'_> {
    fn states(&self) -> usize {
        HELD
    }

    fn keep(&mut self, lane: Lane, first: usize, states: &[f32]) {
        let width = self.model.config().model_dim;
        if let Some(sequence) = self.sequences.get_mut(&lane) {
            sequence.keep(first, states);
        } else if let Some(cache) = self.head.new_sequence(self.model) {
            let mut sequence = Box::new(HeadSequence::new(cache, width));
            sequence.keep(first, states);
            self.sequences.insert(lane, sequence);
        }
    }

    fn offer(&mut self, ask: &Ask<'_>) -> Option<Offer> {
        let behind = self.sequences.get(&ask.lane)?.lacks(ask.tokens.len())?;
        Some(Offer { source: Source::Model, most: ask.most, behind })
    }

    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        wanted: &[Wanted],
        drafts: &mut [Vec<TokenId>],
        policy: &mut Policy,
    ) {
        for (index, ask) in asks.iter().enumerate().filter(|(index, _)| wanted[*index].tokens > 0) {
            let Some(mut sequence) = self.sequences.remove(&ask.lane) else { continue };
            sequence.proposal = Proposal::new(index);
            let capacity = self.head.capacity.saturating_sub(wanted[index].tokens.min(MOST_DRAFT));
            match sequence.follow(ask.tokens, capacity) {
                true => self.running.push(sequence),
                false => drop(self.sequences.insert(ask.lane, sequence)),
            }
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ruvllm_memory::{PagePool, PoolConfig, PressurePolicy, Tenant};
    use ruvllm_models::{HfFolder, KvFormat};
    use ruvllm_testkit::model_data;

    use super::*;
    use crate::sequence::SequenceSpec;
    use crate::speculation::Speculation;

    #[test]
    fn later_states_replace_those_of_drafts_and_gaps_drop_what_is_before() {
        let mut states = States { first: 0, width: 2, rows: Vec::new() };
        states.keep(5, &[5.0, 5.5, 6.0, 6.5, 7.0, 7.5]);
        assert_eq!((states.first, states.end()), (5, 8));
        states.keep(6, &[16.0, 16.5]);
        assert_eq!((states.first, &states.rows[..]), (5, &[5.0, 5.5, 16.0, 16.5][..]));
        states.keep(7, &[7.0, 7.5]);
        assert_eq!((states.first, states.end()), (5, 8));
        states.keep(9, &[9.0, 9.5]);
        assert_eq!((states.first, &states.rows[..]), (9, &[9.0, 9.5][..]));
        states.keep(4, &[4.0, 4.5]);
        assert_eq!((states.first, &states.rows[..]), (4, &[4.0, 4.5][..]));
        states.keep(5, &vec![1.0; 2 * HELD]);
        assert_eq!((states.first, states.end()), (5, 5 + HELD));
    }

    fn spec() -> SequenceSpec {
        SequenceSpec {
            tenant: Tenant::root(),
            adapters: Arc::default(),
            kv: None,
            min_cache_tokens: 0,
            pressure: PressurePolicy::default(),
            capacity: 64,
            caches_prefix: false,
            shared_tokens: 0,
        }
    }

    /// Final hidden states of the model behind each token.
    fn states_of(model: &Model, compute: &Compute, tokens: &[TokenId]) -> Vec<f32> {
        let pool = PagePool::new(PoolConfig::new(32 << 20)).expect("a pool");
        let store = model.kv_store(&KvFormat::F32.into(), &pool).expect("a store");
        let mut cache = model.new_sequence(&store, 64).expect("a sequence");
        let segment = Segment::new(compute, tokens, &mut cache, LogitsRows::None).expect("room");
        let mut workspace = Workspace::new();
        model.forward(compute, &mut workspace, [segment.with_hidden(tokens.len())]).expect("a pass");
        workspace.hidden().to_vec()
    }

    /// A draft of three tokens behind `tokens`.
    fn draft(drafter: &mut HeadDrafter<'_>, lane: Lane, tokens: &[TokenId]) -> Vec<TokenId> {
        let (spec, setting) = (spec(), Speculation::Fixed(3));
        let ask = Ask { lane, tokens, spec: &spec, most: 3, is_varied: false, setting };
        let offer = drafter.offer(&ask).expect("the states are there");
        assert_eq!(offer.most, 3);
        let mut drafts = [Vec::new()];
        let wanted = [Wanted { tokens: 3, floors: [0.0; 2] }];
        drafter.draft(&[ask], &wanted, &mut drafts, &mut Policy::new());
        std::mem::take(&mut drafts[0])
    }

    /// Steps with rejected drafts, with none, without a draft in between, and cut back: the draft
    /// is that of a head that has read the text at once.
    #[test]
    fn drafts_depend_on_the_text_alone() {
        let folder = HfFolder::open(model_data("prediction/qwen35")).expect("a folder");
        let model = Model::load(&folder, &mut |_| ()).expect("a model");
        let compute = Compute::new(1).expect("kernels");
        let head = DraftHead::of_model(&model, 60).expect("memory").expect("a head");
        let (mut drafter, width) = (HeadDrafter::new(&head, &model, &compute), model.config().model_dim);
        let tokens: Vec<TokenId> = (0..50_u32).map(|i| 3 + (i * 17 + i * i) % 50).collect();
        let states = states_of(&model, &compute, &tokens);
        let mut drafts = std::collections::HashSet::new();
        // Tokens whose states are there, and of these the ones that come with the last step.
        for (computed, new) in [(9, 9), (10, 1), (13, 3), (14, 1), (20, 6), (12, 2), (30, 18)] {
            let mut of_step = states[(computed - new) * width..computed * width].to_vec();
            of_step.extend(vec![0.5; 2 * width]);
            drafter.keep(1, computed - new, &of_step);
            if computed == 13 {
                continue;
            }
            let found = draft(&mut drafter, 1, &tokens[..=computed]);
            drafter.keep(2, 0, &states[..computed * width]);
            assert_eq!(found, draft(&mut drafter, 2, &tokens[..=computed]), "{computed} tokens");
            assert_eq!(found.len(), 3);
            drafter.end(2);
            drafts.insert(found);
        }
        assert!(drafts.len() > 3, "the text matters: {drafts:?}");
        assert!(drafter.sequences.contains_key(&1), "no pass failed");
    }

    /// A sequence that outgrows the cache begins anew, and one whose states are missing waits.
    #[test]
    fn full_caches_begin_anew() {
        let folder = HfFolder::open(model_data("prediction/qwen35")).expect("a folder");
        let model = Model::load(&folder, &mut |_| ()).expect("a model");
        let compute = Compute::new(1).expect("kernels");
        let mut head = DraftHead::of_model(&model, 60).expect("memory").expect("a head");
        head.capacity = 16;
        let (mut drafter, width) = (HeadDrafter::new(&head, &model, &compute), model.config().model_dim);
        let tokens: Vec<TokenId> = (0..50_u32).map(|i| 3 + (i * 17 + i * i) % 50).collect();
        let states = states_of(&model, &compute, &tokens);
        for computed in 4..40 {
            let from = if computed == 4 { 0 } else { computed - 1 };
            drafter.keep(1, from, &states[from * width..computed * width]);
            assert_eq!(draft(&mut drafter, 1, &tokens[..=computed]).len(), 3);
        }
        let spec = spec();
        let ask = |tokens| Ask {
            lane: 1,
            tokens,
            spec: &spec,
            most: 3,
            is_varied: false,
            setting: Speculation::Auto,
        };
        assert!(drafter.offer(&ask(&tokens[..45])).is_none(), "states are missing");
    }
}
