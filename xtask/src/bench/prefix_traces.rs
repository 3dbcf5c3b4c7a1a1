//! Hit rates of the prefix tree on traces of requests.

use ruvllm_kv_cache::prefix::{PrefixKey, PrefixTree, Scope, TreeStatistics};

use super::BLOCK;

/// A request: the prompt, and the tokens that were generated for it. Both are in the cache afterwards.
struct Request {
    prompt: Vec<u32>,
    reply: Vec<u32>,
}

/// Tokens of a text that no other text shares, unless it has the same name.
pub(super) fn text(name: [u32; 3], n_tokens: usize) -> impl Iterator<Item = u32> {
    let mut state = name.into_iter().fold(0x9e37_79b9_7f4a_7c15_u64, |state, part| {
        (state ^ u64::from(part)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31)
    });
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as u32
    })
    .take(n_tokens)
}

/// The order of `n` sequences with `steps` steps each, `width` of which take turns at a time: (sequence, step).
fn in_turn(n: u32, width: u32, steps: u32) -> impl Iterator<Item = (u32, u32)> {
    let together = move |first: u32, step: u32| (first..n.min(first + width)).map(move |i| (i, step));
    (0..n)
        .step_by(width as usize)
        .flat_map(move |first| (0..steps).flat_map(move |step| together(first, step)))
}

/// `n` conversations of six turns, eight going on at a time: 40 tokens of a user, 60 of a reply, after one of four system
/// prompts of 200 tokens.
fn chat(n: u32) -> Vec<Request> {
    let of = |conversation: u32, turn: u32| {
        let system = text([1, conversation % 4, 0], 200);
        let earlier = (0..turn)
            .flat_map(move |turn| text([2, conversation, turn], 40).chain(text([3, conversation, turn], 60)));
        let prompt = system.chain(earlier).chain(text([2, conversation, turn], 40)).collect();
        Request { prompt, reply: text([3, conversation, turn], 60).collect() }
    };
    in_turn(n, 8, 6).map(|(conversation, turn)| of(conversation, turn)).collect()
}

/// `n` documents of 1,000 to 2,750 tokens, eight questions of 30 tokens on each, four documents in turn.
fn documents(n: u32) -> Vec<Request> {
    let of = |document: u32, question: u32| {
        let text_of = text([4, document, 0], 1000 + 250 * (document as usize % 8));
        let prompt = text_of.chain(text([5, document, question], 30)).collect();
        Request { prompt, reply: text([6, document, question], 80).collect() }
    };
    in_turn(n, 4, 8).map(|(document, question)| of(document, question)).collect()
}

/// Chats, documents, and requests of 300 tokens that share nothing with any other, one in five.
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

/// Prints the hit rates of all traces: with room for everything, which must find exactly what the requests share, and
/// with room for a sixteenth.
pub(super) fn replay_all(is_test: bool) {
    let n = if is_test { 8 } else { 64 };
    println!("hit rates on synthetic traces (tokens found, of all in the prompts):");
    for (name, requests) in [("chat", chat(n)), ("documents", documents(n)), ("mixed", mixed(n))] {
        let everything = replay(name, &requests, usize::MAX);
        let hit = everything.hit_tokens + everything.partial_tokens;
        assert_eq!(hit, shared_tokens(&requests), "{name}: what the requests share");
        replay(name, &requests, everything.blocks / 16);
    }
}

fn replay(name: &str, requests: &[Request], capacity_blocks: usize) -> TreeStatistics {
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
        let inserted = tree.insert(&key, &tokens, &vec![(); tokens.len() / BLOCK]);
        used += inserted.new_blocks;
        drop((found, inserted));
        if used > capacity_blocks {
            used -=
                tree.evict(used - capacity_blocks).iter().map(|evicted| evicted.blocks.len()).sum::<usize>();
        }
    }
    let s = tree.statistics();
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all as f64;
    let all = s.hit_tokens + s.partial_tokens + s.missed_tokens;
    println!(
        "  {name:9} {:4} requests, {:6} blocks kept at most: {:.1} % ({:.1} % shared, {:.1} % copied), {:.0} % of the \
         requests find something, {} blocks evicted",
        requests.len(),
        if capacity_blocks == usize::MAX { s.blocks } else { capacity_blocks },
        percent(s.hit_tokens + s.partial_tokens, all),
        percent(s.hit_tokens, all),
        percent(s.partial_tokens, all),
        percent(s.full_hits + s.partial_hits, s.lookups),
        s.evicted_blocks
    );
    s
}

/// What a cache of unlimited size finds: for each request the longest start that it shares with an earlier one's whole
/// blocks, found by comparing it with every one.
fn shared_tokens(requests: &[Request]) -> u64 {
    let cached: Vec<Vec<u32>> = requests
        .iter()
        .map(|request| {
            let mut tokens = [&request.prompt[..], &request.reply].concat();
            tokens.truncate(tokens.len() / BLOCK * BLOCK);
            tokens
        })
        .collect();
    let shared = |i: usize, prompt: &[u32]| {
        let agreeing = |other: &Vec<u32>| other.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let longest = cached[..i].iter().map(agreeing).max().unwrap_or(0);
        longest.min(prompt.len() - 1) as u64
    };
    requests.iter().enumerate().map(|(i, request)| shared(i, &request.prompt)).sum()
}
