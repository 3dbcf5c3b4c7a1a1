//! KV-cache precision in the engine: quality targets, blocks kept hot by attention, budgets.

use std::error::Error as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use ruvllm::{
    CancelToken, Completion, Engine, EngineOptions, Error, GenerateRequest, KvPolicy, ModelSource,
    PrefixCaching, Prompt,
};
use ruvllm_testkit::builtin_model;

use crate::common::{complete, greedy, load};

const TEXT: &str = include_str!("../../../cli/tests/data/validation-prefix.txt");

fn options(kv: &str, kv_budget: Option<usize>) -> EngineOptions {
    EngineOptions::default()
        .with_threads(2)
        .with_kv(kv.parse::<KvPolicy>().expect("a policy"))
        .with_kv_budget(kv_budget)
        .with_prefixes(PrefixCaching::Off)
}

/// The first `n` tokens of real text.
fn text(engine: &Engine, n: usize) -> Vec<u32> {
    let head: String = TEXT.chars().take(8 * n).collect();
    let tokens = engine.encode_prompt(&Prompt::Text(head)).expect("text can be encoded");
    tokens[..n].to_vec()
}

fn request(tokens: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens), max_tokens).with_ignore_eos(true)
}

/// Completion of a prompt of 700 tokens, in passes of one block, and the blocks per tier that stay
/// in the prefix cache.
fn run(kv: &str) -> (Completion, Vec<usize>) {
    let prefixes = PrefixCaching::Memory;
    let engine = load(builtin_model(), &options(kv, None).with_prefixes(prefixes).with_prefill_chunk(32));
    let completion = complete(&engine, &request(text(&engine, 700), 20));
    (completion, engine.kv_store().tiers().map(|tier| tier.blocks).collect())
}

fn failure(engine: &Engine, request: &GenerateRequest) -> Error {
    let result = engine.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    result.expect_err("more than the budget holds")
}

/// Message of an error with its sources.
fn message(error: &Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn a_tight_target_keeps_more_tokens_hot_than_a_loose_one() {
    let quality = |target: &str| {
        let (completion, tiers) = run(&format!("tiered:hot=64,target={target},warm=kivi4,cold=off"));
        (completion.kv_quality.expect("there is a target"), tiers)
    };
    let (loose, loose_tiers) = quality("1");
    let (medium, medium_tiers) = quality("0.01");
    let (tight, tight_tiers) = quality("0.0001");
    assert_eq!(loose.hot_tokens, 64, "nothing is spent on a target that is met: {loose:?}");
    assert!(
        loose.hot_tokens < medium.hot_tokens && medium.hot_tokens < tight.hot_tokens,
        "{medium:?} {tight:?}"
    );
    assert!(loose_tiers[0] < medium_tiers[0] && medium_tiers[0] < tight_tiers[0], "{medium_tiers:?}");
    for quality in [loose, medium, tight] {
        assert!(quality.samples > 0 && quality.error.is_some_and(|error| error > 0.0), "{quality:?}");
    }
    assert!(medium.error < loose.error, "{medium:?} {loose:?}");
    assert_eq!(run("tiered:hot=64").0.kv_quality, None, "no target, no quality");
}

#[test]
fn what_a_request_has_learned_is_where_the_next_one_begins() {
    let temporary = tempfile::tempdir().expect("a folder");
    let prefixes = PrefixCaching::Folder { path: temporary.path().to_owned(), limit_bytes: 1 << 30 };
    let kv = "tiered:hot=64,target=0.0001,warm=kivi4,cold=off";
    let load = || load(builtin_model(), &options(kv, None).with_prefixes(prefixes.clone()));
    let engine = load();
    let tokens = text(&engine, 900);
    let (long, short) = (request(tokens[..700].to_vec(), 20), request(tokens[700..].to_vec(), 2));
    let quality = |engine: &Engine, request: &GenerateRequest| {
        complete(engine, request).kv_quality.expect("there is a target")
    };
    let learned = quality(&engine, &long);
    assert!(learned.hot_tokens > 202 && learned.samples > 0, "{learned:?}");
    // All tokens stay hot, so there was nothing to sample.
    let next = quality(&engine, &short);
    assert_eq!((next.hot_tokens, next.error, next.samples), (202, learned.error, 0));
    drop(engine);
    // A restart, and one with a damaged file.
    let restarted = load();
    let next = quality(&restarted, &short);
    assert_eq!((next.hot_tokens, next.samples), (202, 0));
    assert_eq!(restarted.take_prefix_warnings(), Vec::<String>::new());
    drop(restarted);
    let is_state = |path: &PathBuf| path.extension().is_some_and(|found| found == "quality");
    let listing = fs::read_dir(temporary.path()).expect("a listing").flatten();
    let states: Vec<PathBuf> = listing.map(|file| file.path()).filter(is_state).collect();
    assert_eq!(states.len(), 1, "{states:?}");
    let mut bytes = fs::read(&states[0]).expect("a state");
    bytes[20] ^= 1;
    fs::write(&states[0], bytes).expect("a state");
    let damaged = load();
    // A text without prefix hit: cached blocks may have lower precision already.
    let other = request(tokens[650..850].to_vec(), 2);
    assert!(quality(&damaged, &other).samples > 0, "from the beginning");
    let warnings = damaged.take_prefix_warnings();
    assert!(warnings.len() == 1 && warnings[0].starts_with("ignored "), "{warnings:?}");
}

#[test]
fn blocks_that_attention_returns_to_stay_hot() {
    let hot_blocks = |keep: usize| run(&format!("tiered:hot=64,sink=0,keep={keep},warm=q8,cold=off")).1[0];
    let by_age = hot_blocks(0);
    assert_eq!(hot_blocks(3), by_age + 3);
}

#[test]
fn a_context_of_four_times_the_budget_loses_bits_and_completes() {
    let budget = 8 << 20;
    let engine = load(builtin_model(), &options("tiered:hot=64,warm=kivi4,cold=kivi2", Some(budget)));
    let context = 4096;
    let half = engine.kv_policy().hot;
    let block_tokens = engine.kv_store().block_tokens();
    let block = half.block_bytes(engine.kv_store().shape(), block_tokens).expect("a layout");
    assert!(context / block_tokens * block >= 4 * budget);
    let completion = complete(&engine, &request(text(&engine, context - 8), 9));
    assert_eq!(completion.tokens.len(), 9);
    let stats = engine.kv_store().pool().stats();
    assert!(stats.used_pages <= stats.capacity_pages && stats.capacity_pages * stats.page_bytes <= budget);
    assert!(engine.kv_store().tiers().all(|tier| tier.blocks == 0), "all memory is back");
}

#[test]
fn a_request_that_exhausts_the_budget_does_not_disturb_another_one() {
    let engine = load(builtin_model(), &options("tiered:hot=64,warm=kivi4,cold=kivi2", Some(4 << 20)));
    let (small, large) = (request(text(&engine, 100), 20), request(text(&engine, 4000), 4));
    let used = || engine.kv_store().pool().stats().used_pages;
    let expected = complete(&engine, &small);
    failure(&engine, &large);
    let before = used();

    // The large request starts, grows and fails during the small one.
    let mut failures = Vec::new();
    let completion = engine
        .generate_with(&small, &CancelToken::new(), &mut |_| {
            if failures.is_empty() {
                failures.push(failure(&engine, &large));
            }
            ControlFlow::Continue(())
        })
        .expect("there is room for the small one");
    assert_eq!((completion.text, completion.tokens), (expected.text, expected.tokens));
    let text = message(&failures[0]);
    assert!(text.contains("cannot compute positions") && text.contains("pages of 524288 bytes"), "{text}");
    assert_eq!(used(), before, "what the failed request had is back");
}

#[test]
fn a_budget_below_one_block_is_refused_with_the_least_that_works() {
    let source = ModelSource::Path(builtin_model());
    let load = |budget| Engine::load(&source, &options("tiered:cold=kivi2", Some(budget)), &mut |_| ());
    let error = load(1000).expect_err("less than a page");
    let Error::KvBudgetTooSmall { page_bytes, least_bytes, .. } = error else { panic!("{error:?}") };
    assert_eq!((page_bytes, least_bytes), (512 << 10, 3 * (512 << 10)), "a page for each tier");
    assert!(error.to_string().contains("524288") && error.to_string().contains("1572864"), "{error}");
    assert!(load(least_bytes - 1).is_err());
    let engine = load(least_bytes).expect("the least that works");
    assert_eq!(complete(&engine, &request(vec![5; 20], 3)).tokens.len(), 3);
}
