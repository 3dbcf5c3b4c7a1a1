//! Models whose layers differ (ADR-0151): bits of cut prompts, of batches with drafts, behind
//! stored prefixes, and with weights in memory of the host.

use std::ops::ControlFlow;
use std::path::Path;

use ruvllm::{
    BackendBatch, Decoded, Engine, EngineOptions, GpuBackend, GpuOptions, InferenceBackend, KvPolicy,
    NextToken, PrefixSharing, TokenId, Wanted,
};

use crate::batches::tokenizer_of;
use crate::families::form;
use crate::support::{error, gpu_with, options, prompt_logits, tolerance};

/// Heads of one width and two, shared keys and values, values that are keys, embeddings per layer,
/// experts beside a network, residual streams.
const DIFFERING: [&str; 6] =
    ["gemma4_alike", "gemma4_keys", "gemma4_shared", "gemma4_moe", "gemma3n", "gemma3n_widths"];

fn load(name: &str, folder: &Path, options: GpuOptions) -> Option<GpuBackend> {
    let tokenizer = Some(tokenizer_of(folder, 72));
    gpu_with(form(name), &GpuOptions { context: Some(256), tokenizer, ..options })
}

/// Prompt number `seed` of `n` tokens.
fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|at| ((at * 37 + seed * 101) % 69 + 3) as TokenId).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|x| x.is_finite()));
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Logits of tokens that follow sequences, one row each.
fn decode(batch: &mut dyn BackendBatch, rows: &[(usize, TokenId)]) -> Vec<Vec<u32>> {
    let next = |&(sequence, token)| NextToken { sequence, token, wanted: Wanted::Logits };
    let next: Vec<_> = rows.iter().map(next).collect();
    let mut found = vec![Vec::new(); rows.len()];
    let mut on_decoded = |rows: &[usize], decoded: Decoded<'_>| {
        let Decoded::Logits(logits) = decoded else { panic!("logits are wanted") };
        for (&row, logits) in rows.iter().zip(logits.chunks_exact(logits.len() / rows.len())) {
            found[row] = bits(logits);
        }
    };
    batch.decode(&next, &mut on_decoded).expect("logits");
    found
}

#[test]
fn bits_of_a_prompt_do_not_depend_on_its_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in DIFFERING {
        let Some(backend) = load(name, folder.path(), options()) else { return };
        let prompt = tokens(1, 90);
        let whole = bits(&prompt_logits(&backend, &prompt, 512));
        for chunk in [30, 7, 89] {
            assert!(bits(&prompt_logits(&backend, &prompt, chunk)) == whole, "{name} by {chunk}");
        }
    }
}

/// Rows of a batch, of which some are drafts of one sequence, beside each row alone.
#[test]
fn rows_of_a_batch_have_the_bits_that_they_have_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, sequences) in DIFFERING.into_iter().flat_map(|name| [(name, 1), (name, 64)]) {
        let options = GpuOptions { sequences, kv_tokens: Some(2048), ..options() };
        let Some(backend) = load(name, folder.path(), options) else { return };
        let (mut batch, mut alone) = (backend.batch(), backend.batch());
        let begin = |batch: &mut dyn BackendBatch, seed: usize| {
            let number = batch.begin(100).expect("a sequence");
            let session = batch.sequence(number).expect("it began");
            session.forward(&tokens(seed, 4 + seed * 9)).expect("logits");
            number
        };
        let numbers: Vec<_> =
            (0..4).map(|seed| (begin(&mut *batch, seed), begin(&mut *alone, seed))).collect();
        for lengths in [[1, 4, 2, 1], [3, 1, 1, 2]] {
            let (mut rows, mut expected) = (Vec::new(), Vec::new());
            for (&(number, single), n) in numbers.iter().zip(lengths) {
                for token in tokens(n, n) {
                    rows.push((number, token));
                    expected.extend(decode(&mut *alone, &[(single, token)]));
                }
            }
            for (row, (found, expected)) in decode(&mut *batch, &rows).iter().zip(&expected).enumerate() {
                assert!(found == expected, "{name}, {sequences} sequences: row {row} of {lengths:?}");
            }
        }
    }
}

/// Layers without keys and values of their own leave out the updates of these.
#[test]
fn adapters_have_the_logits_of_the_cpu() {
    crate::combined::adapters_have_the_logits_of_the_cpu("gemma3n", "f16");
}

/// Keys and values in F16 have the errors that they have on the CPU.
#[test]
fn logits_are_those_of_the_cpu_with_keys_in_f16() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = load("gemma3n", folder.path(), options()) else { return };
    let cpu = EngineOptions::default()
        .with_threads(2)
        .with_kv("f16".parse::<KvPolicy>().expect("a policy"))
        .with_tokenizer(Some(tokenizer_of(folder.path(), 72)));
    let engine = Engine::load(&form("gemma3n").into(), &cpu, &mut |_| ()).expect("the engine loads it");
    for n in [1, 9, 26, 40] {
        let prompt = tokens(n, n);
        let expected: Vec<f64> = prompt_logits(&engine, &prompt, 512).into_iter().map(f64::from).collect();
        let found = error(&prompt_logits(&backend, &prompt, 512), &expected);
        assert!(found <= tolerance(), "{n} tokens: {found}");
    }
}

/// Logits of a prompt behind the part of it that is stored, with the number of its tokens.
fn behind_prefix(backend: &GpuBackend, prompt: &[TokenId]) -> (usize, Vec<u32>) {
    let sharing = PrefixSharing { tenant: "", min_tokens: 0, shared_tokens: 0 };
    let mut batch = backend.batch();
    let (number, known) = batch.begin_with_prefix(prompt.len(), prompt, &sharing).expect("a sequence");
    let session = batch.sequence(number).expect("it began");
    let go_on = &mut || ControlFlow::Continue(());
    let logits = bits(session.prefill(&prompt[known..], 37, go_on).expect("logits").expect("all of it"));
    batch.keep_prefix(number, prompt, &sharing);
    (known, logits)
}

/// Stored prefixes, on the device and once others have displaced them to the host.
#[test]
fn bits_behind_a_stored_prefix_are_those_of_the_whole_prompt() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in DIFFERING {
        let options = GpuOptions { kv_tokens: Some(256), host_kv_bytes: 1 << 20, ..options() };
        let Some(backend) = load(name, folder.path(), options) else { return };
        let prompt = tokens(1, 150);
        let first = behind_prefix(&backend, &prompt);
        let second = behind_prefix(&backend, &prompt);
        assert_eq!((first.0, second.0), (0, 128), "{name}");
        let others = [2, 3].map(|seed| behind_prefix(&backend, &tokens(seed, 200)).0);
        assert_eq!(others, [0; 2], "{name}");
        let host = backend.host_prefix_statistics().expect("memory of the host");
        assert!(host.blocks > 0, "{name}: {host:?}");
        let third = behind_prefix(&backend, &prompt);
        assert_eq!(third.0, 128, "{name}");
        let whole = bits(&prompt_logits(&backend, &prompt, 512));
        assert!([first, second, third].iter().all(|(_, logits)| *logits == whole), "{name}");
    }
}

#[test]
fn weights_in_memory_of_the_host_change_no_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in DIFFERING {
        let of = |layers| {
            let backend = load(name, folder.path(), GpuOptions { layers, ..options() })?;
            let mut session = backend.session(60).expect("a sequence");
            let prompt = bits(session.forward(&tokens(2, 40)).expect("logits"));
            let token = bits(session.forward(&[9]).expect("logits"));
            Some((backend.host_layers(), prompt, token))
        };
        let (Some(device), Some(host)) = (of(None), of(Some(1))) else { return };
        assert!(device.0 == 0 && host.0 > 1, "{name}: {} layers", host.0);
        assert!(device.1 == host.1 && device.2 == host.2, "{name}");
    }
}
