//! Hit rates of the prefix tree on traces of requests; counts, no timings.
//!
//! Traces are synthetic: they show the tree's behaviour on the sharing patterns of chats and
//! documents, not that of a real service.

use std::fmt::Write as _;

use ruvllm_kv_cache::prefix::{PrefixKey, PrefixTree, Scope, TreeStatistics};

use super::section;
use xtask::Workspace;

use crate::Result;

const PAGE: &str = "docs/kv-cache.md";
const SECTION: &str = "prefix-traces";

/// Tokens per block.
const BLOCK: usize = 32;

/// Conversations or documents per trace.
const SIZE: u32 = 64;

/// Divisors of the memory for replays: all that the trace fills, and fractions of it.
const PARTS: [usize; 3] = [1, 4, 16];

/// A request: prompt and generated tokens. Both are cached afterwards.
struct Request {
    prompt: Vec<u32>,
    reply: Vec<u32>,
}

/// Result of a replay with a limited number of blocks.
struct Replay {
    trace: &'static str,
    room: usize,
    counts: TreeStatistics,
}

/// Replays all traces and, unless told not to, writes the section of `docs/kv-cache.md`.
///
/// # Errors
/// If the page cannot be written.
pub(super) fn prefix_traces(workspace: &Workspace, no_record: bool) -> Result<()> {
    let text = markdown(&replay_all(SIZE));
    println!("{text}");
    if no_record { Ok(()) } else { section::record(workspace, PAGE, SECTION, &text) }
}

/// Replays each trace with room for all its blocks, and for fractions of that.
fn replay_all(n: u32) -> Vec<Replay> {
    let traces = [("chat", chat(n)), ("documents", documents(n)), ("mixed", mixed(n))];
    let mut replays = Vec::new();
    for (trace, requests) in traces {
        let blocks = replay(&requests, usize::MAX).blocks;
        let rooms = PARTS.map(|part| blocks / part);
        replays.extend(rooms.map(|room| Replay { trace, room, counts: replay(&requests, room) }));
    }
    replays
}

/// Looks each request up, inserts its blocks, and evicts the least recently used ones beyond
/// `room`.
fn replay(requests: &[Request], room: usize) -> TreeStatistics {
    let tree = PrefixTree::<()>::new(BLOCK);
    let key = PrefixKey {
        model: [0; 32],
        adapter: None,
        kv_format: "f16".into(),
        rope_scaling: "none".into(),
        scope: Scope::Tenant("replay".into()),
    };
    let mut used = 0;
    for request in requests {
        let found = tree.lookup(&key, &request.prompt);
        let tokens = [&request.prompt[..], &request.reply].concat();
        let inserted = tree.insert(&key, &tokens, &vec![(); tokens.len().div_ceil(BLOCK)]);
        used += inserted.new_blocks - inserted.replaced.len();
        drop((found, inserted));
        if used > room {
            used -= tree.evict(used - room).iter().map(|evicted| evicted.blocks.len()).sum::<usize>();
        }
    }
    tree.statistics()
}

/// Tokens of a text, unique for each name.
fn text(name: [u32; 3], n_tokens: usize) -> impl Iterator<Item = u32> {
    let mut state = name.into_iter().fold(0x9e37_79b9_7f4a_7c15_u64, |state, part| {
        (state ^ u64::from(part)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31)
    });
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as u32
    })
    .take(n_tokens)
}

/// Order of `n` sequences with `steps` steps each, `width` of them interleaved: (sequence, step).
fn in_turn(n: u32, width: u32, steps: u32) -> impl Iterator<Item = (u32, u32)> {
    let together = move |first: u32, step: u32| (first..n.min(first + width)).map(move |i| (i, step));
    (0..n)
        .step_by(width as usize)
        .flat_map(move |first| (0..steps).flat_map(move |step| together(first, step)))
}

/// `n` conversations of six turns, eight interleaved: 40 tokens per user message, 60 per reply,
/// after one of four system prompts of 200 tokens. One reply in eight is regenerated; the
/// conversation continues with the second.
fn chat(n: u32) -> Vec<Request> {
    let of = |conversation: u32, turn: u32| {
        let system = text([1, conversation % 4, 0], 200);
        let earlier = (0..turn)
            .flat_map(move |turn| text([2, conversation, turn], 40).chain(text([3, conversation, turn], 60)));
        let prompt: Vec<u32> = system.chain(earlier).chain(text([2, conversation, turn], 40)).collect();
        let is_retried = (conversation + turn) % 8 == 7;
        let refused = Request { prompt: prompt.clone(), reply: text([9, conversation, turn], 60).collect() };
        let taken = Request { prompt, reply: text([3, conversation, turn], 60).collect() };
        is_retried.then_some(refused).into_iter().chain([taken])
    };
    in_turn(n, 8, 6).flat_map(|(conversation, turn)| of(conversation, turn)).collect()
}

/// `n` documents of 1,000 to 2,750 tokens, eight questions of 30 tokens on each, four documents
/// interleaved.
fn documents(n: u32) -> Vec<Request> {
    let of = |document: u32, question: u32| {
        let text_of = text([4, document, 0], 1000 + 250 * (document as usize % 8));
        let prompt = text_of.chain(text([5, document, question], 30)).collect();
        Request { prompt, reply: text([6, document, question], 80).collect() }
    };
    in_turn(n, 4, 8).map(|(document, question)| of(document, question)).collect()
}

/// Chats, documents, and one in five requests of 300 unshared tokens.
fn mixed(n: u32) -> Vec<Request> {
    let single =
        |i: u32| Request { prompt: text([7, i, 0], 300).collect(), reply: text([8, i, 0], 60).collect() };
    let (mut chat, mut documents) = (chat(n).into_iter(), documents(n).into_iter());
    let mut requests = Vec::new();
    for i in 0.. {
        let before = requests.len();
        requests.extend(chat.by_ref().take(2));
        requests.extend(documents.by_ref().take(2));
        if requests.len() == before {
            break;
        }
        requests.push(single(i));
    }
    requests
}

fn markdown(replays: &[Replay]) -> String {
    let mut text = format!(
        "```text\n{}\n```\n\nBlocks of {BLOCK} tokens; {SIZE} conversations, {SIZE} documents. Room is what may be kept \
         between requests: everything that the trace leaves behind, a quarter and a sixteenth of it.\n\n| trace | room, \
         blocks | lookups | full hits | partial hits | tokens found | of them shared | copied | evicted blocks \
         |\n|---|---|---|---|---|---|---|---|---|\n",
        section::this_command(),
    );
    for Replay { trace, room, counts } in replays {
        let found = counts.hit_tokens + counts.partial_tokens;
        let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        let _ = writeln!(
            text,
            "| {trace} | {room} | {} | {} | {} | {:.1} % | {:.1} % | {:.1} % | {} |",
            counts.lookups,
            counts.full_hits,
            counts.partial_hits,
            percent(found, found + counts.missed_tokens),
            percent(counts.hit_tokens, found),
            percent(counts.partial_tokens, found),
            counts.evicted_blocks,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hits of an unlimited cache: per request the longest common prefix with an earlier request
    /// and its reply, by brute force.
    fn shared_tokens(requests: &[Request]) -> u64 {
        let cached: Vec<Vec<u32>> =
            requests.iter().map(|request| [&request.prompt[..], &request.reply].concat()).collect();
        let shared = |i: usize, prompt: &[u32]| {
            let agreeing = |other: &Vec<u32>| other.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            let longest = cached[..i].iter().map(agreeing).max().unwrap_or(0);
            longest.min(prompt.len() - 1) as u64
        };
        requests.iter().enumerate().map(|(i, request)| shared(i, &request.prompt)).sum()
    }

    #[test]
    fn with_room_for_everything_all_that_requests_share_is_found() {
        for requests in [chat(8), documents(8), mixed(8)] {
            let counts = replay(&requests, usize::MAX);
            assert_eq!(counts.lookups, requests.len() as u64);
            assert_eq!(counts.hit_tokens + counts.partial_tokens, shared_tokens(&requests));
            assert_eq!(counts.evicted_blocks, 0);
        }
    }

    #[test]
    fn what_was_asked_before_is_a_full_hit() {
        let requests = chat(8);
        let retried = requests.windows(2).filter(|pair| pair[0].prompt == pair[1].prompt).count();
        assert!(retried > 0);
        assert_eq!(replay(&requests, usize::MAX).full_hits, retried as u64);
    }

    #[test]
    fn less_room_means_evictions_and_fewer_hits() {
        let replays = replay_all(16);
        for of_trace in replays.chunks(PARTS.len()) {
            let [all, .., least] = of_trace else { panic!("a replay for each part") };
            assert!(least.room < all.room && least.counts.blocks <= least.room);
            assert!(all.counts.evicted_blocks == 0 && least.counts.evicted_blocks > 0);
            assert!(least.counts.hit_tokens < all.counts.hit_tokens);
        }
    }

    #[test]
    fn the_table_has_a_row_per_replay() {
        let replays = replay_all(4);
        let text = markdown(&replays);
        let rows = text.lines().filter(|line| line.starts_with("| chat") || line.starts_with("| mixed"));
        assert_eq!(rows.count(), 2 * PARTS.len(), "{text}");
        assert!(!text.contains("NaN"), "{text}");
    }
}
