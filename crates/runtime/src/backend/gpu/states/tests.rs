//! Slots of states, against the tokens that each stands for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use ruvllm_kv_cache::prefix::{PrefixKey, Scope};
use ruvllm_models::HfFolder;
use ruvllm_testkit::model_data;
use ruvllm_text::TokenId;

use super::lease::Step;
use super::*;
use crate::backend::gpu::blocks::{BlockPool, Lease};
use crate::backend::gpu::host_blocks::{Direction, Transfers};

/// Tokens of a KV block.
const BLOCK: usize = 4;

/// No memory of the host.
struct Nowhere;

impl Transfers for Nowhere {
    fn copy(&self, _: Direction, _: &[(u32, u32)]) -> bool {
        false
    }
}

fn key() -> PrefixKey {
    PrefixKey {
        model: [0; 32],
        adapter: None,
        kv_format: "f16".into(),
        rope_scaling: "usual".into(),
        scope: Scope::Tenant("".into()),
    }
}

/// Slots, blocks, and the tokens whose state each slot has.
struct World {
    states: StatePool,
    blocks: BlockPool,
    contents: RefCell<HashMap<u32, Vec<TokenId>>>,
}

/// A sequence, as a session holds it.
struct Member {
    lease: Lease,
    state: StateLease,
    prefix: StatePrefix,
    prompt: Vec<TokenId>,
    tokens: Vec<TokenId>,
    as_prompt: usize,
    capacity: usize,
}

impl World {
    fn new(sequences: usize, earlier: usize, spare: usize) -> Self {
        let states = StatePool::of_layers(Vec::new(), StateNumbers { sequences, earlier, spare });
        Self { states, blocks: BlockPool::new(32, 0, BLOCK), contents: RefCell::default() }
    }

    fn take(&self) -> Option<Arc<Block>> {
        self.states.take_or_evict(&self.blocks)
    }

    /// Begins a sequence; `None` without room for it.
    fn begin(&self, prompt: &[TokenId], more: usize) -> Option<Member> {
        let state = self.states.lease().ok()?;
        let capacity = prompt.len() + more;
        let (lease, known) = self.blocks.lease_with_state(capacity, &key(), prompt, 0, &Nowhere).ok()?;
        let begun = (known.tokens, known.blocks);
        let prefix = StatePrefix::new((key(), 0), prompt, begun, (&state, BLOCK));
        if let Some(stored) = known.state {
            assert_eq!(self.contents.borrow()[&stored.index], prompt[..known.tokens], "a stored state");
            state.begin(known.tokens, stored);
        }
        let (prompt, tokens) = (prompt.to_vec(), prompt[..known.tokens].to_vec());
        Some(Member { lease, state, prefix, prompt, tokens, as_prompt: known.tokens, capacity })
    }

    /// Reads the state before a pass, and writes those behind tokens that it appends to a sequence.
    fn run(&self, member: &Member, step: &Step, tokens: &[TokenId]) {
        let (mut contents, all) = (self.contents.borrow_mut(), [&member.tokens[..], tokens].concat());
        match step.from {
            Some(slot) => assert_eq!(contents[&slot], member.tokens, "the state before a pass"),
            None => assert!(member.tokens.is_empty()),
        }
        for &(end, slot) in &step.kept {
            assert_ne!(Some(slot), step.from);
            contents.insert(slot, all[..end].to_vec());
        }
    }

    fn prefill(&self, member: &mut Member, n: usize) {
        let (start, rest) =
            (member.tokens.len(), member.prompt.get(member.tokens.len()..).unwrap_or_default());
        let now = rest[..n.min(rest.len())].to_vec();
        if now.is_empty() {
            return;
        }
        if member.as_prompt == start {
            member.prefix.append(start, &now);
        }
        let step = member.state.prefill(&|| self.take(), start..start + now.len()).expect("a slot");
        self.run(member, &step, &now);
        member.tokens.extend(now);
        if member.as_prompt == start {
            member.as_prompt = member.tokens.len();
        }
        member.prefix.keep(&self.blocks, (&member.lease, &member.state), member.as_prompt);
    }

    /// A step with `drafts` tokens behind the next one, of which `kept` stay. `in_vain`: it is
    /// begun and dropped before; twice: another pass is begun behind it and dropped.
    fn decode(&self, member: &mut Member, (drafts, kept): (usize, usize), in_vain: usize) {
        let len = member.tokens.len();
        let room = member.capacity - len;
        let drop_pass = |at: usize| {
            let step = member.state.decode(&|| self.take(), at, 1).expect("a slot");
            step.kept.iter().for_each(|&(_, slot)| drop(self.contents.borrow_mut().insert(slot, vec![99])));
        };
        if in_vain == 1 && room > 0 {
            drop_pass(len);
        }
        if in_vain == 2 && room > 1 {
            let step = member.state.decode(&|| self.take(), len, 1).expect("a slot");
            self.run(member, &step, &[77]);
            drop_pass(len + 1);
            member.tokens.push(77);
            return;
        }
        let rows = (1 + drafts).min(room);
        if rows == 0 {
            return;
        }
        let tokens: Vec<TokenId> = (0..rows).map(|at| (50 + (len + at) % 7) as TokenId).collect();
        let step = member.state.decode(&|| self.take(), len, rows).expect("slots that were reserved");
        assert_eq!(step.kept.len(), rows);
        self.run(member, &step, &tokens);
        member.tokens.extend(tokens);
        let end = len + 1 + kept.min(rows - 1);
        assert_eq!(self.truncate(member, end), end, "a draft is taken back");
    }

    /// Goes on with a prompt of other tokens behind what is there, and computes it.
    fn go_on(&self, member: &mut Member, n: usize) {
        let len = member.tokens.len();
        if member.as_prompt == len {
            let kinds = member.prompt[len..].iter().map(|token| token ^ 1).chain(std::iter::repeat(1));
            let rest = kinds.take(n.min(member.capacity - len));
            member.prompt = member.tokens.iter().copied().chain(rest).collect();
            let begun = (len, len);
            member.prefix = StatePrefix::new((key(), 0), &member.prompt, begun, (&member.state, BLOCK));
            self.prefill(member, n);
        }
    }

    fn truncate(&self, member: &mut Member, len: usize) -> usize {
        let before = member.tokens.len();
        if len >= before {
            return before;
        }
        let mut len = member.state.floor(len);
        loop {
            let Ok(unshared) = self.blocks.unshare(&mut member.lease, len, &Nowhere) else { return before };
            let wanted = unshared.unwrap_or(len);
            member.prefix.truncate(wanted);
            len = member.state.cut(wanted);
            member.tokens.truncate(len);
            member.as_prompt = member.as_prompt.min(len);
            if len == wanted {
                return len;
            }
        }
    }
}

#[test]
fn a_token_computed_again_reads_the_state_that_it_had() {
    let world = World::new(1, 0, 0);
    let lease = world.states.lease().expect("a sequence");
    let take = || world.take();
    let prompt = lease.prefill(&take, 0..5).expect("a slot");
    assert_eq!((prompt.from, prompt.kept.len(), prompt.kept[0].0), (None, 1, 5));
    let first = lease.decode(&take, 5, 1).expect("a slot");
    let again = lease.decode(&take, 5, 1).expect("a slot");
    assert_eq!(first.from, Some(prompt.kept[0].1));
    assert_eq!((again.from, again.kept[0].0), (first.from, 6));
    // The next token writes over the state before it, not over its own.
    let next = lease.decode(&take, 6, 1).expect("a slot");
    assert_eq!((next.from, next.kept), (Some(again.kept[0].1), vec![(7, prompt.kept[0].1)]));
    // A state that is gone is an error, as are more rows than there are slots.
    let error = lease.decode(&take, 5, 1).expect_err("it is gone").to_string();
    assert!(error.contains("one behind 5 tokens"), "{error}");
    assert_eq!(lease.draft_room(6, 7), 0);
    assert!(lease.decode(&take, 6, 2).is_err());
    assert!(world.states.lease().is_err() && world.states.room() == 0);
    drop(lease);
    assert_eq!(world.states.room(), 1);
}

#[test]
fn drafts_have_the_spare_states_that_others_leave() {
    let world = World::new(3, 0, 7);
    let leases: Vec<_> = (0..2).map(|_| world.states.lease().expect("a sequence")).collect();
    let take = || world.take();
    for lease in &leases {
        lease.prefill(&take, 0..5).expect("a slot");
    }
    assert_eq!((leases[0].draft_room(5, 7), leases[1].draft_room(5, 7)), (3, 3));
    leases[0].decode(&take, 5, 4).expect("slots");
    let third = world.states.lease().expect("a sequence");
    third.prefill(&take, 0..3).expect("a slot");
    // Two of three shares are there: the first sequence has its states until it goes on.
    assert_eq!((third.draft_room(3, 7), leases[1].draft_room(5, 7)), (1, 2));
    assert_eq!(leases[0].draft_room(9, 7), 2);
    assert_eq!((third.draft_room(3, 7), third.draft_room(3, 1)), (2, 1));
    drop(leases);
    assert_eq!(third.draft_room(3, 9), 7);
    // States before the last one are for a draft model, whose tokens are steps of their own.
    let draft = World::new(1, 8, 0);
    let lease = draft.states.lease().expect("a sequence");
    let take = || draft.take();
    lease.prefill(&take, 0..20).expect("a slot");
    for at in 20..32 {
        lease.decode(&take, at, 1).expect("a slot");
    }
    assert_eq!([22, 23, 30].map(|len| lease.floor(len)), [0, 23, 30]);
    assert_eq!((lease.cut(25), lease.draft_room(25, 7), lease.floor(24)), (25, 7, 24));
}

#[test]
fn spare_states_take_as_much_memory_as_keys_values_and_sequences() {
    let folder = HfFolder::open(model_data("forms/qwen3next")).expect("a folder");
    let config = ModelConfig::from_checkpoint(&folder).expect("a configuration");
    let recurrent = config.decoder.recurrent.as_ref().expect("it has states");
    let state = state_bytes(recurrent);
    let spare = |sequences, kv_bytes| {
        let numbers = StateNumbers { sequences, earlier: 0, spare: 0 };
        numbers.with_usual_spare(recurrent, kv_bytes).spare
    };
    assert_eq!((spare(1, 0), spare(3, 5 * state + 1), spare(100, 0)), (2, 11, 32));
}

#[derive(Debug, Clone)]
enum Change {
    /// Begins a prompt of tokens of few kinds.
    Begin {
        prompt: Vec<TokenId>,
        more: usize,
    },
    Prefill(usize, usize),
    /// A step of all sequences whose prompt is computed: number of the draft's tokens that stay,
    /// and passes in vain before the step.
    Step {
        kept: usize,
        in_vain: usize,
        drafts: bool,
    },
    /// Cuts a sequence, which goes on with so many tokens.
    Cut(usize, usize, usize),
    End(usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let prompt = prop::collection::vec(0u32..2, 1..7)
        .prop_map(|kinds| kinds.into_iter().flat_map(|kind| [kind; 3]).collect());
    let change = prop_oneof![
        3 => (prompt, 0usize..16).prop_map(|(prompt, more)| Change::Begin { prompt, more }),
        4 => (0usize..3, 1usize..20).prop_map(|(of, n)| Change::Prefill(of, n)),
        4 => (0usize..8, 0usize..3, any::<bool>())
            .prop_map(|(kept, in_vain, drafts)| Change::Step { kept, in_vain, drafts }),
        3 => (0usize..3, 0usize..20, 0usize..16).prop_map(|(of, len, rest)| Change::Cut(of, len, rest)),
        1 => (0usize..3).prop_map(Change::End),
    ];
    prop::collection::vec(change, 1..80)
}

proptest! {
    /// Every pass reads the state of its sequence's own tokens, whatever others do meanwhile;
    /// drafts that were promised have slots, and no slot is lost.
    #[test]
    fn sequences_read_the_states_of_their_own_tokens(
        changes in changes(), sequences in 1usize..4, earlier in 0usize..3, spare in 0usize..9,
    ) {
        let world = World::new(sequences, earlier, spare);
        let mut members = Vec::<Member>::new();
        for change in changes {
            match change {
                Change::Begin { prompt, more } => {
                    let room = world.states.room();
                    prop_assert_eq!(room, sequences - members.len());
                    members.extend(world.begin(&prompt, more));
                }
                Change::Prefill(of, n) => {
                    if let Some(member) = members.get_mut(of) {
                        world.prefill(member, n);
                    }
                }
                Change::Step { kept, in_vain, drafts } => {
                    let is_ready = |member: &Member| member.tokens.len() >= member.prompt.len();
                    let room = |member: &Member| match is_ready(member) && drafts {
                        true => member.state.draft_room(member.tokens.len(), 7),
                        false => 0,
                    };
                    let rooms: Vec<usize> = members.iter().map(room).collect();
                    for (member, room) in members.iter_mut().zip(rooms).filter(|(member, _)| is_ready(member)) {
                        let in_vain = if room > 0 { in_vain.min(1) } else { in_vain };
                        world.decode(member, (room, kept), in_vain);
                    }
                }
                Change::Cut(of, len, rest) => {
                    if let Some(member) = members.get_mut(of) {
                        world.truncate(member, len);
                        world.go_on(member, rest);
                    }
                }
                Change::End(of) => {
                    if of < members.len() {
                        members.swap_remove(of);
                    }
                }
            }
        }
        members.clear();
        let all = std::iter::from_fn(|| world.take()).collect::<Vec<_>>();
        prop_assert_eq!(all.len(), world.states.numbers().slots());
        prop_assert_eq!(world.states.room(), sequences);
        prop_assert_eq!(world.states.counts().spare, spare);
    }
}
