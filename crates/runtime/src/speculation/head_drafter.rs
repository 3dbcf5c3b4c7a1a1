//! Drafts of the model's own prediction head, of all sequences in one pass (ADR-0130).

use std::collections::HashMap;
use std::time::Instant;

use ruvllm_text::TokenId;

use super::drafter::{Ask, Drafter, Lane};
use super::head_engine::{HeadEngine, Pairs};
use super::policy::{MOST_DRAFT, Offer, Policy, Source, Wanted};
use super::proposal::{Choice, Proposal};

/// Latest states of a sequence that are held for its next draft; as many of a prompt's end are
/// computed. The head reads each state once, and attends to those that it has read.
pub(super) const HELD: usize = 128;

/// Drafts of a prediction head: its most likely tokens. All sequences go through one pass of its
/// engine.
pub(super) struct HeadDrafter<E: HeadEngine> {
    engine: E,
    sequences: HashMap<Lane, Box<HeadSequence<E::Cache>>>,
    /// Sequences of the present passes. Boxed: they are large and move between list and map in each
    /// step.
    running: Vec<Box<HeadSequence<E::Cache>>>,
    /// Tokens of the last pass.
    found: Vec<Option<Choice>>,
    /// The head's own states of the last pass, `[sequences, model_dim]`.
    hidden: Vec<f32>,
}

/// A sequence as the head sees it: pairs of a token's final hidden state and the token behind it.
struct HeadSequence<C> {
    cache: C,
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

impl<C> HeadSequence<C> {
    fn new(cache: C, width: usize) -> Self {
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
    fn follow(
        &mut self,
        engine: &mut impl HeadEngine<Cache = C>,
        tokens: &[TokenId],
        capacity: usize,
    ) -> bool {
        let Some(lacks) = self.lacks(tokens.len()).filter(|lacks| *lacks <= capacity) else { return false };
        let follows = self.start + self.agreed == self.held.first && self.agreed + lacks <= capacity;
        if !follows || !engine.truncate(&mut self.cache, self.agreed) {
            engine.clear(&mut self.cache);
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

impl<E: HeadEngine> HeadDrafter<E> {
    pub(super) fn new(engine: E) -> Self {
        let (running, found, hidden) = (Vec::new(), Vec::new(), Vec::new());
        Self { engine, sequences: HashMap::new(), running, found, hidden }
    }

    /// One pass of the pairs of all running sequences, which get the next token; false if it
    /// failed.
    fn pass(&mut self, policy: &mut Policy) -> bool {
        let started = Instant::now();
        let Self { engine, running, found, hidden, .. } = self;
        let rows = running.iter().map(|sequence| sequence.tokens.len()).sum();
        let parts = running.iter_mut().map(|sequence| {
            let HeadSequence { cache, tokens, inputs, .. } = &mut **sequence;
            Pairs { cache, tokens, states: inputs }
        });
        if !engine.pass(parts, found, hidden) {
            return false;
        }
        let hidden = hidden.chunks_exact(engine.model_dim());
        for ((sequence, choice), hidden) in running.iter_mut().zip(found.drain(..)).zip(hidden) {
            let HeadSequence { tokens, inputs, proposal, .. } = &mut **sequence;
            proposal.take(choice);
            tokens.clear();
            tokens.extend(proposal.token);
            inputs.clear();
            inputs.extend_from_slice(hidden);
        }
        policy.observe_draft(rows, started.elapsed());
        true
    }
}

impl<E: HeadEngine> Drafter for HeadDrafter<E> {
    fn states(&self) -> usize {
        HELD
    }

    fn keep(&mut self, lane: Lane, first: usize, states: &[f32]) {
        let width = self.engine.model_dim();
        if let Some(sequence) = self.sequences.get_mut(&lane) {
            sequence.keep(first, states);
        } else if let Some(cache) = self.engine.begin() {
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
            let capacity = self.engine.capacity().saturating_sub(wanted[index].tokens.min(MOST_DRAFT));
            match sequence.follow(&mut self.engine, ask.tokens, capacity) {
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

    use ruvllm_memory::{PagePool, PoolConfig, PressurePolicy, Tenant};
    use ruvllm_models::{Compute, HfFolder, KvFormat, LogitsRows, Model, Segment, Workspace};
    use ruvllm_testkit::model_data;

    use super::*;
    use crate::sequence::SequenceSpec;
    use crate::speculation::Speculation;
    use crate::speculation::draft_head::{DraftHead, ModelHead};

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
    fn draft(drafter: &mut HeadDrafter<impl HeadEngine>, lane: Lane, tokens: &[TokenId]) -> Vec<TokenId> {
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
        let mut drafter = HeadDrafter::new(ModelHead::new(&head, &model, &compute));
        let width = model.config().model_dim;
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
        let mut drafter = HeadDrafter::new(ModelHead::new(&head, &model, &compute));
        let width = model.config().model_dim;
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

    /// An engine whose likeliest token is the one after the last, with places for two sequences.
    /// States have one value, and the head's own is the number of pairs.
    #[derive(Default)]
    struct Counting {
        live: usize,
        fails: bool,
        /// Tokens and states of each part of the last passes.
        passes: Vec<Vec<(Vec<TokenId>, Vec<f32>)>>,
    }

    impl HeadEngine for Counting {
        type Cache = usize;

        fn capacity(&self) -> usize {
            16
        }

        fn model_dim(&self) -> usize {
            1
        }

        fn begin(&mut self) -> Option<usize> {
            let has_place = self.live < 2;
            self.live += usize::from(has_place);
            has_place.then_some(0)
        }

        fn truncate(&mut self, cache: &mut usize, len: usize) -> bool {
            *cache = (*cache).min(len);
            true
        }

        fn clear(&mut self, cache: &mut usize) {
            *cache = 0;
        }

        fn pass<'p>(
            &mut self,
            parts: impl Iterator<Item = Pairs<'p, usize>>,
            found: &mut Vec<Option<Choice>>,
            hidden: &mut Vec<f32>,
        ) -> bool {
            found.clear();
            hidden.clear();
            let mut passed = Vec::new();
            for Pairs { cache, tokens, states } in parts {
                *cache += tokens.len();
                passed.push((tokens.to_vec(), states.to_vec()));
                hidden.push(*cache as f32);
                found.push(tokens.last().map(|last| Choice { token: last + 1, probability: 0.9 }));
            }
            self.passes.push(passed);
            !self.fails
        }

        fn end(&mut self, _: usize) {
            self.live -= 1;
        }
    }

    #[test]
    fn sequences_of_a_pass_that_failed_end_and_begin_anew() {
        let mut drafter = HeadDrafter::new(Counting::default());
        for lane in 0..3 {
            drafter.keep(lane, 0, &[0.1, 0.2]);
        }
        assert_eq!(drafter.engine.live, 2, "a third one finds no place");
        assert_eq!(draft(&mut drafter, 0, &[5, 6, 7]), [8, 9, 10]);
        let part = |tokens: &[TokenId], states: &[f32]| vec![(tokens.to_vec(), states.to_vec())];
        let passes = [part(&[6, 7], &[0.1, 0.2]), part(&[8], &[2.0]), part(&[9], &[3.0])];
        assert_eq!(drafter.engine.passes, passes);
        drafter.engine.fails = true;
        drafter.keep(0, 2, &[0.3]);
        assert!(draft(&mut drafter, 0, &[5, 6, 7, 8]).is_empty());
        assert_eq!(drafter.engine.live, 1);
        (drafter.engine.fails, drafter.engine.passes) = (false, Vec::new());
        drafter.keep(0, 3, &[0.4]);
        assert_eq!(draft(&mut drafter, 0, &[5, 6, 7, 8, 2]), [3, 4, 5]);
        assert_eq!(drafter.engine.passes[0], part(&[2], &[0.4]), "it begins with the states at hand");
        (0..3).for_each(|lane| drafter.end(lane));
        assert_eq!(drafter.engine.live, 0);
    }
}
