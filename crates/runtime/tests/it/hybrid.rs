//! Models with layers that keep a state instead of keys and values (ADR-0119, ADR-0120).

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use ruvllm::{
    BenchOptions, BenchTest, Completion, Engine, Error, GenerateRequest, ModelSource, PrefixCaching, Prompt,
    SamplingParams, Speculation, Tenant, TransferError,
};
use ruvllm_testkit::{letters_tokenizer, model_data};

use crate::common::{complete, greedy, load, tiny_options};

/// Folders with gated `DeltaNet`, alone and with experts, with short convolutions, with Mamba-2 in
/// the place of attention, in layers of one part, and beside attention.
const FORMS: [&str; 8] = [
    "qwen35",
    "qwen35moe",
    "lfm2",
    "granitehybrid",
    "qwen3next",
    "nemotron_h",
    "nemotron_h_moe",
    "falcon_h1",
];

/// Copy of a form's folder.
pub(crate) fn folder(name: &str) -> tempfile::TempDir {
    folder_of(&model_data("forms").join(name))
}

/// Copy of a folder, which has no tokenizer, with one of single letters.
pub(crate) fn folder_of(form: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(form.join(file), folder.path().join(file)).expect("a copy");
    }
    fs::write(folder.path().join("tokenizer.json"), letters_tokenizer()).expect("a file");
    folder
}

fn engine(folder: &Path) -> Engine {
    load(folder.to_owned(), &tiny_options().with_prefixes(PrefixCaching::Memory))
}

/// Ids of a text, another one for each seed.
pub(crate) fn ids(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + (i * 17 + i * i * (seed + 1)) % 60).collect()
}

pub(crate) fn request(tokens: &[u32]) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens.to_vec()), 12).with_ignore_eos(true).with_logprobs(3)
}

/// A completion of an engine that has seen nothing else, stores nothing and drafts nothing, with
/// the log-probabilities of its tokens.
fn alone(folder: &Path, request: &GenerateRequest) -> Completion {
    let engine = load(folder.to_owned(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let plain = request.clone().with_speculation(Speculation::Off).with_tenant(Tenant::root());
    complete(&engine, &plain)
}

/// Checks that a request gets what an engine alone computes, bit for bit, with `cached` tokens from
/// prefixes; returns the tokens of its answer.
#[track_caller]
pub(crate) fn agrees(engine: &Engine, folder: &Path, request: &GenerateRequest, cached: usize) -> Vec<u32> {
    let (found, expected) = (complete(engine, request), alone(folder, request));
    assert_eq!(found.cached_tokens, cached);
    assert_eq!(found.tokens, expected.tokens);
    assert_eq!(found.logprobs, expected.logprobs);
    assert!(!found.logprobs.is_empty());
    found.tokens
}

#[test]
fn conversations_go_on_and_others_begin_at_a_snapshot() {
    for name in FORMS {
        let folder = folder(name);
        let engine = engine(folder.path());
        let first = ids(1, 70);
        let answer = agrees(&engine, folder.path(), &request(&first).with_session("talk"), 0);
        // The sequence holds the beginning of the next prompt: all but the last token was computed.
        let longer = [&first[..], &answer, &ids(2, 9)].concat();
        agrees(&engine, folder.path(), &request(&longer).with_session("talk"), 81);
        // A prompt that differs before the end of the sequence's last block.
        let other = [&first[..64], &ids(3, 20)].concat();
        agrees(&engine, folder.path(), &request(&other).with_session("talk"), 64);
        // Without a session.
        agrees(&engine, folder.path(), &request(&longer), 64);
    }
}

#[test]
fn prefixes_end_where_prompts_part_and_where_answers_end() {
    for name in FORMS {
        let folder = folder(name);
        let engine = engine(folder.path());
        let (folder, system) = (folder.path(), ids(5, 75));
        let prompt = |seed: u32| [&system[..], &ids(seed, 60)].concat();
        let answer = agrees(&engine, folder, &request(&prompt(6)).with_max_tokens(40), 0);
        agrees(&engine, folder, &request(&prompt(6)), 128);
        // The blocks are known, the state behind them is not, so the second prompt stores it.
        agrees(&engine, folder, &request(&prompt(7)), 0);
        agrees(&engine, folder, &request(&prompt(8)), 64);
        agrees(&engine, folder, &request(&prompt(7)).with_min_cache_tokens(129), 0);
        // 135 tokens and 39 of the answer: five whole blocks.
        let next = [&prompt(6)[..], &answer, &ids(9, 20)].concat();
        agrees(&engine, folder, &request(&next), 160);
        let statistics = engine.prefix_statistics().expect("a prefix cache");
        assert!(statistics.memory.states >= 5 && statistics.snapshot_bytes > 0, "{statistics:?}");
        assert_eq!(statistics.memory.evicted_states, 0);
        // Nothing is stored for those who do not want it.
        agrees(&engine, folder, &request(&prompt(10)).with_cache_prefix(false), 0);
        agrees(&engine, folder, &request(&prompt(10)), 64);
    }
}

#[test]
fn tenants_share_what_is_declared_alone() {
    for name in FORMS {
        let folder = folder(name);
        let engine = engine(folder.path());
        let pool = engine.kv_store().pool();
        let tenants = ["ann", "bob"].map(|tenant| pool.tenant(tenant).expect("a tenant"));
        let prompt = |seed: u32| [&ids(5, 75)[..], &ids(seed, 60)].concat();
        let of = |tenant: usize, seed: u32| {
            request(&prompt(seed)).with_tenant(tenants[tenant].clone()).with_shared_tokens(75)
        };
        agrees(&engine, folder.path(), &of(0, 1), 0);
        agrees(&engine, folder.path(), &of(0, 1), 128);
        agrees(&engine, folder.path(), &of(1, 1), 64);
        agrees(&engine, folder.path(), &of(1, 2), 64);
    }
}

#[test]
fn several_sequences_and_choices_are_those_of_one_alone() {
    for name in FORMS {
        let folder = folder(name);
        let engine = engine(folder.path());
        let prompts: Vec<Vec<u32>> = (0..5).map(|seed| ids(seed, 20 + 13 * seed)).collect();
        let handles: Vec<_> =
            prompts.iter().map(|prompt| engine.submit(request(prompt)).expect("a handle")).collect();
        for (handle, prompt) in handles.into_iter().zip(&prompts) {
            let found = handle.wait().expect("a completion");
            assert_eq!(found.tokens, alone(folder.path(), &request(prompt)).tokens, "{name}");
        }
        let prompt = ids(11, 77);
        for choice in engine.submit_many(request(&prompt), 3).expect("three handles") {
            let found = choice.wait().expect("a completion");
            assert_eq!(found.logprobs, alone(folder.path(), &request(&prompt)).logprobs, "{name}");
        }
    }
}

#[test]
fn snapshots_yield_to_requests_and_outputs_stay() {
    for name in FORMS {
        let folder = folder(name);
        let options = tiny_options().with_prefixes(PrefixCaching::Memory).with_context(512);
        let engine = load(folder.path().to_owned(), &options.with_kv_budget(8 << 20));
        let mut evicted = 0;
        for round in 0..400 {
            let prompt = [&[3 + round % 60, 3 + round / 60], &ids(round, 200 + round % 50)[..]].concat();
            let found = complete(&engine, &request(&prompt).with_max_tokens(2));
            if round % 40 == 0 {
                assert_eq!(
                    found.logprobs,
                    alone(folder.path(), &request(&prompt).with_max_tokens(2)).logprobs,
                    "{name}"
                );
            }
            evicted = engine.prefix_statistics().expect("a prefix cache").memory.evicted_states;
            if evicted > 5 {
                break;
            }
        }
        assert!(evicted > 5, "{name}: {:?}", engine.prefix_statistics());
    }
}

#[test]
fn the_benchmark_runs_behind_a_depth() {
    for name in FORMS {
        let folder = folder(name);
        let options = BenchOptions::default()
            .with_tests(vec![BenchTest::Prefill(20), BenchTest::Decode(3)])
            .with_depth(45)
            .with_runs(2);
        let results = engine(folder.path()).bench(&options, &mut |_, _| ControlFlow::Continue(()));
        let results = results.expect("a valid benchmark");
        assert!(results.len() == 2 && results.iter().all(|result| result.depth == 45), "{name}");
    }
}

/// Engine with a prefix cache in files.
pub(crate) fn with_files(folder: &Path, files: &Path) -> Engine {
    let caching = PrefixCaching::Folder { path: files.join("prefixes"), limit_bytes: 1 << 30 };
    load(folder.to_owned(), &tiny_options().with_prefixes(caching).with_prefix_transfers(true))
}

#[test]
fn prefixes_and_sessions_survive_a_restart() {
    for name in FORMS {
        let (folder, files) = (folder(name), tempfile::tempdir().expect("a folder"));
        let (folder, files) = (folder.path(), files.path());
        let (prompt, talk) = (ids(5, 135), ids(6, 70));
        let engine = with_files(folder, files);
        let answer = agrees(&engine, folder, &request(&prompt).with_max_tokens(40), 0);
        let said = agrees(&engine, folder, &request(&talk).with_max_tokens(40).with_session("talk"), 0);
        engine.sessions().save(&files.join("sessions")).expect("a folder");
        drop(engine);

        let engine = with_files(folder, files);
        agrees(&engine, folder, &request(&prompt), 128);
        let next = [&prompt[..], &answer, &ids(9, 20)].concat();
        agrees(&engine, folder, &request(&next), 160);
        assert_eq!(engine.prefix_statistics().expect("a prefix cache").failures, 0);
        drop(engine);

        // An engine with a prefix cache in memory alone.
        let engine = self::engine(folder);
        assert_eq!(engine.sessions().restore(&files.join("sessions")).expect("a folder"), 1);
        let next = [&talk[..], &said, &ids(9, 20)].concat();
        agrees(&engine, folder, &request(&next).with_session("talk"), 96);

        let entries = fs::read_dir(files.join("prefixes")).expect("a folder");
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            let mut bytes = fs::read(&path).expect("a file");
            *bytes.last_mut().expect("a file with content") ^= 1;
            fs::write(path, bytes).expect("a file");
        }
        let engine = with_files(folder, files);
        agrees(&engine, folder, &request(&prompt), 0);
        assert!(engine.prefix_statistics().expect("a prefix cache").failures > 0);
    }
}

/// Drafts of the model itself, whose two likeliest tokens are drawn as equals: it proposes the
/// likelier one, so about half of them are wrong, and states go back to the last that was right.
#[test]
fn drafts_change_no_token_and_no_state() {
    for name in FORMS {
        let folder = folder(name);
        let options = tiny_options().with_prefixes(PrefixCaching::Memory);
        let options = options.with_draft(Some(ModelSource::Path(folder.path().to_owned())));
        let engine = load(folder.path().to_owned(), &options);
        let sampling = SamplingParams::default().with_temperature(1000.0).with_top_k(2);
        let sampling = sampling.with_top_p(1.0).with_min_p(0.0);
        for (seed, tokens) in [(4, 1), (5, 4), (6, 8)] {
            let drafted = |prompt: &[u32]| {
                let sampled = request(prompt).with_sampling(sampling.clone()).with_seed(7);
                sampled.with_max_tokens(70).with_speculation(Speculation::Fixed(tokens))
            };
            let prompt = ids(seed, 40);
            let answer = agrees(&engine, folder.path(), &drafted(&prompt), 0);
            // The next turn begins at the last border, whose state no draft has touched.
            let turn = [&prompt[..], &answer, &ids(seed + 9, 5)].concat();
            agrees(&engine, folder.path(), &drafted(&turn), 96);
        }
        let counts = engine.step_statistics();
        let rejected = counts.drafted_tokens - counts.accepted_tokens;
        assert!(counts.accepted_tokens > 50 && rejected > 50, "{name}: {counts:?}");
    }
}

#[test]
fn transfers_and_adapters_of_attention_are_left_out() {
    for name in FORMS {
        let (folder, files) = (folder(name), tempfile::tempdir().expect("a folder"));
        let engine = with_files(folder.path(), files.path());
        let prompt = ids(4, 12).repeat(6);
        agrees(&engine, folder.path(), &request(&prompt), 0);
        assert_eq!(engine.adapter_base().query_dim, 0, "{name}");
        assert!(engine.plan().state_bytes > 0, "{name}");
        let error = engine.export_prefix(&Tenant::root(), &prompt, 0).expect_err("blocks alone");
        assert!(matches!(error, Error::PrefixTransfer(TransferError::State)), "{error:?}");
    }
}
