//! Prefix cache: hits, unchanged output, damaged files.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm::{
    Completion, Engine, Error, FolderKey, GenerateRequest, ModelSource, PrefixCaching, PrefixStorage, Prompt,
};
use ruvllm_kv_cache::prefix::store::shared_folder;
use ruvllm_testkit::builtin_model;

use crate::common::{complete, family_path, greedy, load, tiny_options, tiny_path};

/// Ids of the tiny model, another text for each seed.
fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 53 + 7 + seed * 31 * (i + 1)) % 500).collect()
}

fn request(tokens: &[u32]) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens.to_vec()), 6).with_ignore_eos(true)
}

fn engine(prefixes: PrefixCaching) -> Engine {
    load(tiny_path(), &tiny_options().with_prefixes(prefixes))
}

fn folder(path: &Path) -> PrefixCaching {
    PrefixCaching::Folder { path: path.to_owned(), limit_bytes: 64 << 20 }
}

fn uncached(tokens: &[u32]) -> Completion {
    let completion = complete(&engine(PrefixCaching::Off), &request(tokens));
    assert_eq!(completion.cached_tokens, 0);
    completion
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder can be listed") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[test]
fn engines_share_a_storage_that_takes_a_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let caching = |only_evicted| {
        let storage = PrefixStorage::new(shared_folder(folder.path()).expect("a storage"));
        PrefixCaching::Storage { storage, limit_bytes: 64 << 20, only_evicted }
    };
    let options = tiny_options().with_prefixes(caching(false));
    let error = Engine::load(&ModelSource::Path(tiny_path()), &options, &mut |_| ()).expect_err("no key");
    assert!(matches!(error, Error::NoPrefixKey), "{error}");
    let key = FolderKey::new(&[7; 32]).expect("a key");
    let options = options.with_prefix_key(key);
    let tokens = prompt(1, 100);
    let first = complete(&load(tiny_path(), &options), &request(&tokens));
    assert_eq!((first.cached_tokens, &first.tokens), (0, &uncached(&tokens).tokens));
    // Every engine finds it, also one that stores only what is evicted.
    for only_evicted in [false, true] {
        let options = options.clone().with_prefixes(caching(only_evicted));
        let engine = load(tiny_path(), &options);
        let again = complete(&engine, &request(&tokens));
        assert_eq!((again.cached_tokens, &again.tokens), (96, &first.tokens));
        let store = engine.prefix_statistics().and_then(|all| all.folder).expect("a storage");
        assert_eq!((store.storage_errors, store.unusable_blocks), (0, 0));
    }
}

#[test]
fn a_repeated_beginning_is_computed_once_and_the_output_stays_the_same() {
    let engine = engine(PrefixCaching::Memory);
    let first = prompt(1, 100);
    // 70 common tokens: two full blocks are shared, six tokens of the third copied. Then all but
    // the last token are cached, though the prefix ends inside of a block.
    let second: Vec<u32> = first[..70].iter().copied().chain(prompt(2, 40)).collect();
    for (tokens, cached) in [(&first, 0), (&second, 70), (&first, 99), (&second, 109)] {
        let completion = complete(&engine, &request(tokens));
        assert_eq!(completion.cached_tokens, cached);
        assert_eq!(completion.tokens, uncached(tokens).tokens);
    }
    let statistics = engine.prefix_statistics().expect("there is a cache");
    assert_eq!((statistics.memory.lookups, statistics.failures), (4, 0));
    assert!(statistics.folder.is_none());
}

#[test]
fn the_instruction_of_many_requests_is_computed_once() {
    let engine = engine(PrefixCaching::Memory);
    let instruction = prompt(11, 50);
    for i in 0..100 {
        let own = std::iter::once(i).chain(prompt(100 + i, 20));
        let tokens: Vec<u32> = instruction.iter().copied().chain(own).collect();
        let expected = if i == 0 { 0 } else { 50 };
        assert_eq!(complete(&engine, &request(&tokens)).cached_tokens, expected, "request {i}");
    }
    let memory = engine.prefix_statistics().expect("there is a cache").memory;
    // The first block is shared 99 times, and the next 18 tokens are copied.
    assert_eq!((memory.hit_tokens, memory.partial_tokens), (99 * 32, 99 * 18));
}

#[test]
fn a_conversation_goes_on_where_it_stopped() {
    let engine = engine(PrefixCaching::Memory);
    let mut history = prompt(3, 40);
    history.extend(complete(&engine, &request(&history)).tokens);
    let known = history.len() - 1;
    history.extend(prompt(4, 20));
    let completion = complete(&engine, &request(&history));
    assert_eq!(completion.cached_tokens, known);
    assert_eq!(completion.tokens, uncached(&history).tokens);
}

/// `LongRoPE` models use other RoPE frequencies for sequences that may become long, from the first
/// token on.
#[test]
fn sequences_on_both_sides_of_the_original_context_share_no_prefix() {
    let engine = |prefixes| load(family_path("phi3"), &tiny_options().with_prefixes(prefixes));
    let request = |tokens: &[u32], max_tokens| {
        greedy(Prompt::Tokens(tokens.to_vec()), max_tokens).with_ignore_eos(true)
    };
    let cached = engine(PrefixCaching::Memory);
    let uncached = engine(PrefixCaching::Off);
    let tokens = prompt(12, 100);
    // The original context has 256 tokens. Short and long sequences have separate prefixes: no hit
    // at first, then all but the last token.
    for (max_tokens, expected) in [(6, 0), (200, 0), (6, 99), (200, 99), (156, 99), (157, 99)] {
        let completion = complete(&cached, &request(&tokens, max_tokens));
        assert_eq!(completion.cached_tokens, expected, "{max_tokens} tokens to come");
        assert_eq!(completion.tokens, complete(&uncached, &request(&tokens, max_tokens)).tokens);
    }
}

#[test]
fn another_engine_finds_the_folder() {
    let temporary = tempfile::tempdir().expect("a folder");
    let tokens = prompt(5, 200);
    let expected = uncached(&tokens);
    let first = complete(&engine(folder(temporary.path())), &request(&tokens));
    assert_eq!((first.cached_tokens, &first.tokens), (0, &expected.tokens));
    let restarted = engine(folder(temporary.path()));
    let again = complete(&restarted, &request(&tokens));
    assert_eq!((again.cached_tokens, &again.tokens), (192, &expected.tokens));
    assert_eq!(restarted.take_prefix_warnings(), Vec::<String>::new());
}

#[test]
fn a_damaged_file_is_computed_again_with_a_warning() {
    let temporary = tempfile::tempdir().expect("a folder");
    let tokens = prompt(6, 200);
    let expected = complete(&engine(folder(temporary.path())), &request(&tokens));
    let files = entries(temporary.path());
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let mut bytes = fs::read(&file).expect("the file can be read");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&file, bytes).expect("the file can be written");
        let restarted = engine(folder(temporary.path()));
        let again = complete(&restarted, &request(&tokens));
        assert_eq!(again.tokens, expected.tokens);
        assert!(again.cached_tokens < 192, "{} of the damaged prefix", again.cached_tokens);
        let warnings = restarted.take_prefix_warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("checksum") && warnings[0].contains("ignored"), "{warnings:?}");
    }
}

#[test]
fn other_policies_and_models_share_a_folder_without_meeting() {
    let temporary = tempfile::tempdir().expect("a folder");
    let tokens = prompt(7, 100);
    complete(&engine(folder(temporary.path())), &request(&tokens));
    let prefixes = folder(temporary.path());
    let kv = Some("f16".parse().expect("a policy"));
    let other_policy = load(tiny_path(), &tiny_options().with_kv(kv).with_prefixes(prefixes.clone()));
    assert_eq!(complete(&other_policy, &request(&tokens)).cached_tokens, 0);
    let quantize = ruvllm::Recipe::from_name("q8_0");
    let quantized = tiny_options().with_quantize(quantize).with_prefixes(prefixes.clone());
    assert_eq!(complete(&load(tiny_path(), &quantized), &request(&tokens)).cached_tokens, 0);
    assert_eq!(complete(&load(tiny_path(), &quantized), &request(&tokens)).cached_tokens, 96);
    let other_model = load(builtin_model(), &tiny_options().with_prefixes(prefixes));
    let request = greedy(Prompt::Tokens(tokens), 2).with_ignore_eos(true);
    assert_eq!(complete(&other_model, &request).cached_tokens, 0);
}

#[test]
fn idle_conversations_go_to_files_when_memory_is_short_and_come_back() {
    let temporary = tempfile::tempdir().expect("a folder");
    let prefixes = PrefixCaching::Spill { path: temporary.path().to_owned(), limit_bytes: 64 << 20 };
    let options = tiny_options().with_kv_budget(8 << 20).with_prefixes(prefixes);
    let engine = load(tiny_path(), &options);
    let first = prompt(0, 300);
    let expected = complete(&engine, &request(&first));
    let spilled = || engine.prefix_statistics().expect("there is a cache").spilled_blocks;
    let others = (1..400).take_while(|&seed| {
        complete(&engine, &request(&prompt(seed, 300)));
        spilled() == 0
    });
    assert!(others.count() > 3, "memory is not short at once");
    engine.flush_prefixes();
    assert!(spilled() > 0 && !entries(temporary.path()).is_empty());
    let again = complete(&engine, &request(&first));
    assert_eq!((again.cached_tokens, &again.tokens), (288, &expected.tokens));
    engine.flush_prefixes();
    let statistics = engine.prefix_statistics().expect("there is a cache");
    assert_eq!(statistics.folder.map(|folder| folder.loaded_blocks), Some(9));
    assert_eq!((statistics.recomputed_tokens, statistics.failures), (0, 0));
    assert_eq!((statistics.waiting_blocks, statistics.dropped_blocks), (0, 0));
    // A later engine reuses the stored prefixes.
    let restarted = load(tiny_path(), &options);
    assert_eq!(complete(&restarted, &request(&first)).cached_tokens, 288);
}

#[test]
fn a_folder_that_is_gone_is_said_and_the_requests_are_served() {
    let temporary = tempfile::tempdir().expect("a folder");
    let path = temporary.path().join("prefixes");
    let engine = engine(folder(&path));
    fs::remove_dir(&path).expect("an empty folder");
    let tokens = prompt(8, 200);
    assert_eq!(complete(&engine, &request(&tokens)).tokens, uncached(&tokens).tokens);
    engine.flush_prefixes();
    let warnings = engine.take_prefix_warnings();
    assert!(warnings.len() == 1 && warnings[0].starts_with("cannot write "), "{warnings:?}");
    let statistics = engine.prefix_statistics().expect("there is a cache");
    assert_eq!((statistics.queued_blocks, statistics.dropped_blocks, statistics.failures), (6, 5, 1));
}

#[test]
fn prefixes_give_way_when_the_budget_is_needed() {
    let budget = 8 << 20;
    let engine = load(tiny_path(), &tiny_options().with_kv_budget(budget));
    let capacity = engine.kv_store().pool().stats().capacity_pages;
    for seed in 0..400 {
        let tokens = prompt(seed, 300);
        let completion = complete(&engine, &request(&tokens));
        assert_eq!(completion.tokens.len(), 6, "request {seed}");
        assert!(engine.kv_store().pool().stats().used_pages <= capacity);
    }
    let statistics = engine.prefix_statistics().expect("there is a cache");
    assert!(statistics.memory.evicted_blocks > 0, "{statistics:?}");
    // Remaining blocks still serve.
    assert!(complete(&engine, &request(&prompt(399, 300))).cached_tokens > 0);
}
