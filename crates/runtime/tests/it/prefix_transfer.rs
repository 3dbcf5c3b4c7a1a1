//! Prompts that one engine computes and another goes on with.

use std::collections::HashSet;
use std::path::PathBuf;

use proptest::prelude::*;
use ruvllm::{
    Completion, Engine, EngineOptions, EntryFault, Error, FolderKey, GenerateRequest, ImportedPrefix,
    KvPolicy, PrefixCaching, PrefixOffer, Prompt, Quota, Tenant, TransferError, TransferStatistics,
};

use crate::common::{complete, family_path, greedy, load, tiny_options, tiny_path, tiny_source};

/// Tokens of a block.
const BLOCK: usize = 32;
/// Bytes of a header.
const HEADER: usize = 8 + 4 + 4 + 32 + 32 + 8 + 32 + 4 * BLOCK;

/// Ids of the tiny model, another text for each seed.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 3 + (i * 53 + 7 + seed * 31 * (i + 1)) % 400).collect()
}

fn options(policy: &str) -> EngineOptions {
    let policy: KvPolicy = policy.parse().expect("a policy");
    tiny_options().with_kv(policy).with_prefix_transfers(true)
}

fn engine(policy: &str) -> Engine {
    load(tiny_path(), &options(policy))
}

/// A model whose heads have whole groups of the quantized formats.
fn wide(policy: &str) -> Engine {
    load(family_path("qwen3"), &options(policy))
}

fn request(tokens: &[u32]) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens.to_vec()), 8).with_ignore_eos(true).with_logprobs(3)
}

/// Computes a prompt as a prefill worker does.
fn prefill(engine: &Engine, tokens: &[u32]) {
    complete(engine, &greedy(Prompt::Tokens(tokens.to_vec()), 1));
}

/// Tokens and the bits of all log-probabilities.
fn bits(completion: &Completion) -> (Vec<u32>, Vec<u64>) {
    let all = completion.logprobs.iter().flat_map(|one| std::iter::once(&one.token).chain(&one.top));
    (completion.tokens.clone(), all.map(|one| one.logprob.to_bits()).collect())
}

/// The output of an engine that computes everything itself.
fn alone(policy: &str, tokens: &[u32]) -> Completion {
    alone_with(tiny_path(), policy, tokens)
}

fn alone_with(model: PathBuf, policy: &str, tokens: &[u32]) -> Completion {
    complete(&load(model, &options(policy).with_prefixes(PrefixCaching::Off)), &request(tokens))
}

/// Offer and entries of all whole blocks of a prompt.
fn export(engine: &Engine, tokens: &[u32]) -> (PrefixOffer, Vec<Vec<u8>>) {
    let export = engine.export_prefix(&Tenant::root(), tokens, 0).expect("transfers are on");
    (export.offer().clone(), export.collect())
}

fn import(
    engine: &Engine,
    tokens: &[u32],
    offer: &PrefixOffer,
    entries: &[Vec<u8>],
) -> Result<ImportedPrefix, TransferError> {
    let mut import = engine.import_prefix(&Tenant::root(), tokens).expect("transfers are on");
    import.accept(offer)?;
    entries.iter().try_for_each(|entry| import.push(entry))?;
    import.finish()
}

fn statistics(engine: &Engine) -> TransferStatistics {
    engine.prefix_statistics().expect("there is a cache").transfers
}

#[test]
fn output_after_a_transfer_is_that_of_one_engine_bit_for_bit() {
    // With a rest of a block and at the end of one.
    for (policy, n) in [
        ("f32", 100),
        ("f16", 96),
        ("bf16", 70),
        ("q8", 480),
        ("q4", 100),
        ("q8+q4", 96),
        ("q4:rotate=on", 100),
    ] {
        let tokens = tokens(1, n);
        let (source, target) = (wide(policy), wide(policy));
        prefill(&source, &tokens);
        let (offer, entries) = export(&source, &tokens);
        let sent: usize = entries.iter().map(Vec::len).sum();
        assert_eq!((offer.blocks, offer.bytes), (n / BLOCK, sent as u64));
        let imported = import(&target, &tokens, &offer, &entries).expect("good blocks");
        assert_eq!((imported.blocks, imported.bytes), (n / BLOCK, sent as u64));
        let completion = complete(&target, &request(&tokens));
        assert_eq!(completion.cached_tokens, (n / BLOCK * BLOCK).min(n - 1), "{policy}");
        assert_eq!(bits(&completion), bits(&alone_with(family_path("qwen3"), policy, &tokens)), "{policy}");
        let (from, to) = (statistics(&source), statistics(&target));
        assert_eq!((from.exported_blocks, from.exported_bytes), (offer.blocks as u64, offer.bytes));
        assert_eq!((to.imported_blocks, to.imported_bytes), (offer.blocks as u64, offer.bytes));
        assert_eq!((to.imports, to.refused_imports, to.incomplete_imports), (1, 0, 0));
        assert!(!to.import_time.is_zero());
    }
}

/// Blocks of older tokens have a lower precision: a prompt that was computed here was read at a
/// higher one while it was computed.
#[test]
fn tiers_by_age_give_the_output_of_a_prefix_hit() {
    for policy in ["tiered:hot=64,warm=q8,cold=q4", "tiered:hot=64,warm=turbo3", "q8+kivi4"] {
        let tokens = tokens(2, 416);
        let (source, target) = (wide(policy), wide(policy));
        // Blocks move between the steps of a sequence.
        complete(&source, &request(&tokens));
        let (offer, entries) = export(&source, &tokens);
        let sizes: HashSet<usize> = entries.iter().map(Vec::len).collect();
        assert_eq!(sizes.len() > 1, policy.starts_with("tiered"), "{policy}: tiers of the blocks");
        import(&target, &tokens, &offer, &entries).expect("good blocks");
        let hit = complete(&source, &request(&tokens));
        let completion = complete(&target, &request(&tokens));
        assert_eq!(
            (completion.cached_tokens, bits(&completion)),
            (hit.cached_tokens, bits(&hit)),
            "{policy}"
        );
    }
}

#[test]
fn a_prompt_whose_beginning_is_known_needs_the_rest_alone() {
    let (source, target) = (engine("f16"), engine("f16"));
    let all = tokens(3, 200);
    prefill(&source, &all);
    prefill(&target, &all[..80]);
    let plan = target.plan_import(&Tenant::root(), &all).expect("transfers are on");
    assert_eq!((plan.known_blocks, plan.missing_blocks, plan.is_worthwhile), (2, 4, true));
    let export = source.export_prefix(&Tenant::root(), &all, 2).expect("transfers are on");
    let offer = export.offer().clone();
    assert_eq!((offer.first_block, offer.blocks, offer.bytes, export.len()), (2, 4, plan.bytes, 4));
    let entries: Vec<Vec<u8>> = export.collect();
    let imported = import(&target, &all, &offer, &entries).expect("good blocks");
    assert_eq!((imported.blocks, imported.cached_tokens), (4, 192));
    let completion = complete(&target, &request(&all));
    assert_eq!((completion.cached_tokens, bits(&completion)), (192, bits(&alone("f16", &all))));
    // Nothing is missing any more.
    let plan = target.plan_import(&Tenant::root(), &all).expect("transfers are on");
    assert_eq!((plan.missing_blocks, plan.is_worthwhile), (0, false));
    // An engine that has lost the first blocks takes none that follow them.
    let empty = engine("f16");
    let error = import(&empty, &all, &offer, &entries).expect_err("a gap");
    assert!(matches!(error, TransferError::Gap { first: 2, known: 0 }), "{error}");
    // Nor does a source send blocks that it does not have.
    let other = source.export_prefix(&Tenant::root(), &tokens(4, 100), 1).expect("transfers are on");
    assert_eq!((other.offer().first_block, other.offer().blocks, other.offer().bytes), (0, 0, 0));
}

/// Name of the variant of an error, and of its fault.
fn kind(error: &TransferError) -> &'static str {
    match error {
        TransferError::Off => "off",
        TransferError::Model { .. } => "model",
        TransferError::KvFormat { .. } => "format",
        TransferError::BlockTokens { .. } => "block tokens",
        TransferError::Key { .. } => "key",
        TransferError::Order => "order",
        TransferError::Gap { .. } => "gap",
        TransferError::Surplus { .. } => "surplus",
        TransferError::Incomplete { .. } => "incomplete",
        TransferError::Memory { .. } => "memory",
        TransferError::Entry { fault: EntryFault::Format(_), .. } => "entry format",
        TransferError::Entry { fault: EntryFault::Origin, .. } => "entry origin",
        TransferError::Entry { fault: EntryFault::Place, .. } => "entry place",
        TransferError::Entry { fault: EntryFault::Tokens, .. } => "entry tokens",
        TransferError::Entry { fault: EntryFault::Size { .. }, .. } => "entry size",
        _ => "unknown",
    }
}

/// Error of an import into a new engine, which keeps `kept` blocks and has the same output as one
/// without the import.
fn refusal(
    options: &EngineOptions,
    tokens: &[u32],
    offer: &PrefixOffer,
    entries: &[Vec<u8>],
    kept: usize,
) -> TransferError {
    let target = load(tiny_path(), options);
    let error = import(&target, tokens, offer, entries).expect_err("a fault");
    let found = statistics(&target);
    let is_incomplete = matches!(error, TransferError::Incomplete { .. });
    let counts = (found.imports, found.refused_imports, found.incomplete_imports);
    assert_eq!(counts, (0, u64::from(!is_incomplete), u64::from(is_incomplete)), "{error}");
    assert_eq!(found.imported_blocks, kept as u64, "{error}");
    let completion = complete(&target, &request(tokens));
    assert_eq!(completion.cached_tokens, kept * BLOCK, "{error}");
    let policy = target.kv_policy().to_string();
    assert_eq!(bits(&completion), bits(&alone(&policy, tokens)), "{error}");
    error
}

#[test]
fn faulty_entries_are_refused_by_name_and_the_prompt_is_computed() {
    let prompt = tokens(5, 140);
    let source = engine("f32");
    prefill(&source, &prompt);
    let (offer, good) = export(&source, &prompt);
    let other = tokens(6, 140);
    prefill(&source, &other);
    let (_, foreign) = export(&source, &other);
    type Change<'a> = &'a dyn Fn(&mut Vec<Vec<u8>>);
    let cases: [(Change<'_>, usize, &str, &str); 18] = [
        (&|all| all[0][0] ^= 1, 0, "entry format", "refused block 0: not a stored prefix"),
        (&|all| all[1][8] = 9, 1, "entry format", "refused block 1: format version 9"),
        (&|all| all[0][12] = 33, 0, "entry format", "bytes instead of"),
        (&|all| all[0][12] = 31, 0, "entry tokens", "other tokens"),
        (&|all| all[0][16] ^= 1, 0, "entry origin", "another model, KV policy"),
        (&|all| all[0][48] ^= 1, 0, "entry place", "does not follow"),
        (&|all| all[2][80] ^= 1, 2, "entry size", "bytes, and no tier"),
        (&|all| all[0][87] = 0xff, 0, "entry size", "bytes, and no tier"),
        (&|all| all[0][88] ^= 1, 0, "entry format", "checksum"),
        (&|all| all[3][120] ^= 1, 3, "entry tokens", "other tokens"),
        (&|all| all[0][HEADER] ^= 1, 0, "entry format", "checksum"),
        (&|all| *all[3].last_mut().expect("bytes") ^= 1, 3, "entry format", "checksum"),
        (&|all| all.swap(1, 2), 1, "entry place", "does not follow"),
        (&|all| all[0] = foreign[0].clone(), 0, "entry tokens", "other tokens"),
        (&|all| all[2] = foreign[2].clone(), 2, "entry place", "does not follow"),
        (&|all| all.push(foreign[0].clone()), 4, "surplus", "after block 4"),
        (&|all| _ = all[3].pop(), 3, "incomplete", "3 of 4 blocks"),
        (&|all| all.clear(), 0, "incomplete", "0 of 4 blocks"),
    ];
    for (index, (change, kept, expected, text)) in cases.into_iter().enumerate() {
        let mut entries = good.clone();
        change(&mut entries);
        let error = refusal(&options("f32"), &prompt, &offer, &entries, kept);
        assert_eq!(kind(&error), expected, "case {index}: {error}");
        assert!(error.to_string().contains(text), "case {index}: {error}");
    }
}

#[test]
fn engines_that_cannot_share_blocks_say_why() {
    let prompt = tokens(7, 100);
    let source = engine("f32");
    prefill(&source, &prompt);
    let (good, entries) = export(&source, &prompt);
    let change = |change: &dyn Fn(&mut PrefixOffer)| {
        let mut offer = good.clone();
        change(&mut offer);
        offer
    };
    let keyed = options("f32").with_prefix_key(FolderKey::new(&[1; 32]).expect("a key"));
    for (options, offer, expected, text) in [
        (options("f16"), good.clone(), "format", "keeps keys and values as \"f32\", here \"f16\""),
        (keyed.clone(), good.clone(), "key", "this engine has a prefix key and the sender none"),
        (options("f32"), change(&|offer| offer.model[0] ^= 1), "model", "another model: fingerprint"),
        (options("f32"), change(&|offer| offer.block_tokens = 64), "block tokens", "of 64 tokens, here 32"),
        (options("f32"), change(&|offer| offer.is_tagged = true), "key", "the sender has a prefix key"),
        (options("f32"), change(&|offer| offer.blocks = 4), "surplus", "after block 3"),
        (options("f32"), change(&|offer| offer.blocks = usize::MAX), "surplus", "after block 3"),
        (options("f32"), change(&|offer| offer.first_block = 1), "gap", "begin at block 1 and 0"),
        (options("f32"), change(&|offer| offer.blocks = 0), "surplus", "after block 0"),
    ] {
        let error = refusal(&options, &prompt, &offer, &entries, 0);
        assert_eq!(kind(&error), expected, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    // A sender that lies about its key: the entries themselves were made without one.
    let error = refusal(&keyed, &prompt, &change(&|offer| offer.is_tagged = true), &entries, 0);
    assert_eq!(kind(&error), "entry origin", "{error}");
    // Another model that says it is this one.
    let changed = tiny_source(|metadata| {
        metadata.insert("general.name", "another");
    });
    let other = Engine::load(&changed, &options("f32"), &mut |_| ()).expect("the model loads");
    prefill(&other, &prompt);
    let (offer, others) = export(&other, &prompt);
    assert_eq!(kind(&refusal(&options("f32"), &prompt, &offer, &others, 0)), "model");
    assert_eq!(kind(&refusal(&options("f32"), &prompt, &good, &others, 0)), "entry origin");
}

#[test]
fn entries_of_engines_with_a_key_carry_its_tag() {
    let key = |byte| FolderKey::new(&[byte; 32]).expect("a key");
    let with_key = |byte| options("f32").with_prefix_key(key(byte));
    let prompt = tokens(8, 100);
    let source = load(tiny_path(), &with_key(1));
    prefill(&source, &prompt);
    let (offer, entries) = export(&source, &prompt);
    assert!(offer.is_tagged);
    import(&load(tiny_path(), &with_key(1)), &prompt, &offer, &entries).expect("the same key");
    assert_eq!(kind(&refusal(&with_key(2), &prompt, &offer, &entries, 0)), "entry origin");
    assert_eq!(kind(&refusal(&options("f32"), &prompt, &offer, &entries, 0)), "key");
    // The tag covers length and checksum of the payload, which are no part of the name.
    for at in [80, 88, 119, HEADER, HEADER + 31] {
        let mut changed = entries.clone();
        changed[1][at] ^= 1;
        let error = refusal(&with_key(1), &prompt, &offer, &changed, 1);
        assert!(error.to_string().contains("has no tag"), "byte {at}: {error}");
    }
}

#[test]
fn parts_out_of_order_are_refused() {
    let prompt = tokens(9, 100);
    let (source, target) = (engine("f32"), engine("f32"));
    prefill(&source, &prompt);
    let (offer, entries) = export(&source, &prompt);
    let begin = || target.import_prefix(&Tenant::root(), &prompt).expect("transfers are on");
    assert_eq!(kind(&begin().push(&entries[0]).expect_err("no offer")), "order");
    assert_eq!(kind(&begin().finish().expect_err("no offer")), "order");
    let mut import = begin();
    import.accept(&offer).expect("an offer");
    import.push(&entries[0]).expect("an entry");
    assert_eq!(kind(&import.accept(&offer).expect_err("a second offer")), "order");
    assert_eq!(kind(&import.push(&entries[1]).expect_err("after an error")), "order");
    drop(import);
    assert_eq!((statistics(&target).refused_imports, statistics(&target).imported_blocks), (2, 1));
    // One that is given up leaves what arrived.
    let rest = source.export_prefix(&Tenant::root(), &prompt, 1).expect("transfers are on");
    let mut import = begin();
    import.accept(rest.offer()).expect("an offer");
    import.push(&entries[1]).expect("an entry");
    drop(import);
    let found = statistics(&target);
    assert_eq!((found.incomplete_imports, found.imported_blocks), (2, 2));
    let completion = complete(&target, &request(&prompt));
    assert_eq!((completion.cached_tokens, bits(&completion)), (64, bits(&alone("f32", &prompt))));
}

#[test]
fn engines_without_transfers_and_tokens_outside_of_the_vocabulary_are_refused() {
    let root = Tenant::root();
    for options in
        [options("f32").with_prefix_transfers(false), options("f32").with_prefixes(PrefixCaching::Off)]
    {
        let engine = load(tiny_path(), &options);
        let errors = [
            engine.export_prefix(&root, &[1, 2], 0).expect_err("off"),
            engine.plan_import(&root, &[1, 2]).expect_err("off"),
            engine.import_prefix(&root, &[1, 2]).expect_err("off"),
        ];
        assert!(errors.iter().all(|error| matches!(error, Error::PrefixTransfer(TransferError::Off))));
    }
    let error = engine("f32").export_prefix(&root, &[1, u32::MAX], 0).expect_err("no token");
    assert!(matches!(error, Error::TokenOutOfRange { position: 1, .. }), "{error}");
    // A prompt without a whole block is nothing to send.
    let (source, target) = (engine("f32"), engine("f32"));
    prefill(&source, &tokens(1, 20));
    let (offer, entries) = export(&source, &tokens(1, 20));
    assert_eq!((offer.blocks, entries.len()), (0, 0));
    let imported = import(&target, &tokens(1, 20), &offer, &entries).expect("an empty import");
    assert_eq!((imported.blocks, imported.cached_tokens), (0, 0));
}

#[test]
fn prefixes_stay_with_the_tenant_that_asked_for_them() {
    let prompt = tokens(10, 100);
    let (source, target) = (engine("f32"), engine("f32"));
    let named = |engine: &Engine, name| engine.kv_store().pool().tenant(name).expect("a tenant");
    let (sender, receiver) = (named(&source, "sender"), named(&target, "receiver"));
    complete(&source, &greedy(Prompt::Tokens(prompt.clone()), 1).with_tenant(sender.clone()));
    let (offer, _) = export(&source, &prompt);
    assert_eq!(offer.blocks, 0, "blocks of another tenant");
    let export = source.export_prefix(&sender, &prompt, 0).expect("transfers are on");
    let mut import = target.import_prefix(&receiver, &prompt).expect("transfers are on");
    import.accept(export.offer()).expect("an offer");
    export.for_each(|entry| import.push(&entry).expect("a good entry"));
    import.finish().expect("all blocks");
    assert_eq!(complete(&target, &request(&prompt)).cached_tokens, 0);
    assert_eq!(complete(&target, &request(&prompt).with_tenant(receiver)).cached_tokens, 96);
}

#[test]
fn imports_evict_prefixes_and_end_where_memory_does() {
    let prompt = |seed| tokens(seed, 480);
    let small = options("f32").with_kv_budget(2 << 20).with_context(512);
    let (source, target) = (engine("f32"), load(tiny_path(), &small));
    for seed in 20..40 {
        prefill(&source, &prompt(seed));
        let (offer, entries) = export(&source, &prompt(seed));
        assert_eq!(import(&target, &prompt(seed), &offer, &entries).expect("room").blocks, 15);
    }
    let memory = target.prefix_statistics().expect("there is a cache").memory;
    assert!(memory.evicted_blocks > 0, "the budget holds all prefixes");
    assert_eq!(complete(&target, &request(&prompt(39))).cached_tokens, 479);
    // A tenant whose quota is a page, 21 blocks: those that are arriving cannot be evicted.
    let pool = target.kv_store().pool();
    let tenant = pool.tenant("small").expect("a tenant");
    pool.set_quota(&tenant, Quota { hard_pages: 1, soft_pages: 1 }).expect("a quota");
    let mut imports = [38, 39].map(|seed| {
        let import = target.import_prefix(&tenant, &prompt(seed)).expect("transfers are on");
        (import, export(&source, &prompt(seed)))
    });
    let results = imports.each_mut().map(|(import, (offer, entries))| {
        import.accept(offer)?;
        entries.iter().try_for_each(|entry| import.push(entry))
    });
    let [Ok(()), Err(error)] = results else { panic!("{results:?}") };
    assert_eq!(kind(&error), "memory", "{error}");
    assert!(error.to_string().contains("no room for block 6"), "{error}");
}

#[test]
fn measured_rates_decide_for_the_quicker_way() {
    let (source, target) = (engine("f32"), engine("f32"));
    let prompt = |seed| tokens(seed, 256);
    let plan = |seed| target.plan_import(&Tenant::root(), &prompt(seed)).expect("transfers are on");
    let unknown = plan(60);
    assert!(unknown.is_worthwhile && unknown.transfer_seconds.is_none() && unknown.prefill_seconds.is_none());
    // Prefill of this engine, measured; and a transfer that takes far longer.
    prefill(&target, &prompt(61));
    prefill(&source, &prompt(62));
    let (offer, entries) = export(&source, &prompt(62));
    let prefill_seconds = plan(62).prefill_seconds.expect("a prefill");
    let mut import = target.import_prefix(&Tenant::root(), &prompt(62)).expect("transfers are on");
    import.accept(&offer).expect("an offer");
    std::thread::sleep(std::time::Duration::from_secs_f64(4.0 * prefill_seconds));
    entries.iter().for_each(|entry| import.push(entry).expect("a good entry"));
    import.finish().expect("all blocks");
    let slow = plan(63);
    assert!(!slow.is_worthwhile && slow.transfer_seconds > slow.prefill_seconds, "{slow:?}");
    let found = statistics(&target);
    assert_eq!((found.slower_imports, found.slower_tokens), (1, 256));
    // Each advice against it makes the next transfer more likely: it may have been slow by chance.
    let advised = (0..1000).take_while(|_| !plan(63).is_worthwhile).count();
    assert!((1..1000).contains(&advised), "{advised} plans");
    assert_eq!(statistics(&target).slower_imports, 1 + advised as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Entries arrive in parts of any size.
    #[test]
    fn entries_may_be_cut_anywhere(cuts in proptest::collection::vec(1usize..40_000, 1..20)) {
        let (source, prompt) = (crate::common::tiny_transfers(), tokens(70, 100));
        prefill(source, &prompt);
        let (offer, entries) = export(source, &prompt);
        let target = engine("f32");
        let mut import = target.import_prefix(&Tenant::root(), &prompt).expect("transfers are on");
        import.accept(&offer).expect("an offer");
        let all = entries.concat();
        let (mut rest, mut sizes) = (&all[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(*sizes.next().expect("endless")));
            import.push(part).expect("a good part");
            rest = after;
        }
        prop_assert_eq!(import.finish().expect("all blocks").blocks, 3);
        prop_assert_eq!(export(&target, &prompt), (offer, entries));
    }

    /// One changed byte anywhere: an error, and only blocks before it are used.
    #[test]
    fn every_changed_byte_is_noticed(at in any::<proptest::sample::Index>(), change in 1u8..) {
        let (source, prompt) = (crate::common::tiny_transfers(), tokens(71, 100));
        prefill(source, &prompt);
        let (offer, entries) = export(source, &prompt);
        let (mut all, size) = (entries.concat(), entries[0].len());
        let at = at.index(all.len());
        all[at] ^= change;
        let target = engine("f32");
        let mut import = target.import_prefix(&Tenant::root(), &prompt).expect("transfers are on");
        import.accept(&offer).expect("an offer");
        prop_assert!(import.push(&all).is_err(), "byte {}", at);
        drop(import);
        let (kept, good) = export(&target, &prompt);
        prop_assert_eq!(kept.blocks, at / size);
        prop_assert_eq!(&good[..], &entries[..kept.blocks]);
    }
}

/// Models with two sets of RoPE frequencies choose by the length that a sequence may reach: blocks
/// of the shorter kind are of no use to a longer sequence.
#[test]
fn sequences_beyond_the_original_context_are_computed() {
    let engine = || load(family_path("phi3"), &options("f32"));
    let prompt = tokens(80, 100);
    let (source, target) = (engine(), engine());
    prefill(&source, &prompt);
    let (offer, entries) = export(&source, &prompt);
    import(&target, &prompt, &offer, &entries).expect("good blocks");
    let request = |max| greedy(Prompt::Tokens(prompt.clone()), max).with_ignore_eos(true);
    let expected = |max| complete(&source, &request(max)).tokens;
    // The original context has 256 tokens.
    for (max, cached) in [(6, 96), (200, 0)] {
        let completion = complete(&target, &request(max));
        assert_eq!((completion.cached_tokens, completion.tokens), (cached, expected(max)));
    }
}

/// The other way: a folder that both engines use.
#[test]
fn a_shared_folder_hands_prompts_over_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = FolderKey::new(&[3; 32]).expect("a key");
    let caching = PrefixCaching::Folder { path: folder.path().join("prefixes"), limit_bytes: 64 << 20 };
    let engine =
        || load(tiny_path(), &options("f16").with_prefixes(caching.clone()).with_prefix_key(key.clone()));
    let (source, target) = (engine(), engine());
    let prompt = tokens(90, 200);
    prefill(&source, &prompt);
    source.flush_prefixes();
    let completion = complete(&target, &request(&prompt));
    assert_eq!((completion.cached_tokens, bits(&completion)), (192, bits(&alone("f16", &prompt))));
}
