//! A mixture of experts with adapters and drafts in one batch.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use ruvllm::{
    Adapter, BackendBatch, CancelToken, Completion, Decoded, Engine, EngineOptions, FactorFormat,
    GenerateRequest, GpuBackend, GpuOptions, InferenceBackend, KvPolicy, NextToken, Prompt, SamplingParams,
    ScaledAdapter, Speculation, TokenId, Wanted,
};
use ruvllm_adapters::{BaseModel, Projection};

use crate::adapter_sites::{of_modules, of_site, sites};
use crate::families::{form, form_options};
use crate::mixtures::mixture;
use crate::support::{error, gpu_with, options, prompt_logits, tolerance};

fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn scaled(adapter: &Arc<Adapter>, scale: f32) -> ScaledAdapter {
    ScaledAdapter::new(Arc::clone(adapter), scale)
}

/// Lists of adapters of the modules of attention and of the final state: none, one, two.
fn lists(base: &Arc<BaseModel>) -> [Vec<ScaledAdapter>; 5] {
    use Projection::{AttentionOutput, Key, Query, Value};
    let small = of_modules(base, &[Query, Value], 2, 1);
    let large = of_modules(base, &[Query, Key, Value, AttentionOutput], 8, 2);
    let last = of_site(base, 0, sites(base).last().expect("the final state"));
    [
        vec![],
        vec![scaled(&small, 1.0)],
        vec![scaled(&large, 0.7), scaled(&small, -0.5)],
        vec![scaled(&large, 1.0), last],
        vec![],
    ]
}

/// The same sequences in two batches: one decodes all rows at once, the other token by token.
struct Sequence {
    number: usize,
    alone: usize,
    len: usize,
}

fn begin(batch: &mut dyn BackendBatch, prompt: &[TokenId], list: &[ScaledAdapter]) -> usize {
    let (number, _) = batch.begin_adapted(prompt.len() + 30, list, None).expect("a sequence");
    let session = batch.sequence(number).expect("it began");
    session.prefill(prompt, 512, &mut || ControlFlow::Continue(())).expect("logits");
    number
}

/// Logits of the rows of a step.
fn decode(batch: &mut dyn BackendBatch, next: &[NextToken], vocab: usize) -> Vec<Vec<f32>> {
    let mut found = vec![Vec::new(); next.len()];
    let mut on_decoded = |rows: &[usize], decoded: Decoded<'_>| {
        let Decoded::Logits(logits) = decoded else { panic!("logits are wanted") };
        for (&row, logits) in rows.iter().zip(logits.chunks_exact(vocab)) {
            found[row] = logits.to_vec();
        }
    };
    batch.decode(next, &mut on_decoded).expect("results");
    found
}

fn rows_are_those_of_single_steps(backend: &GpuBackend, lists: &[Vec<ScaledAdapter>], name: &str) {
    let vocab = backend.config().vocab_size;
    let (mut batch, mut alone) = (backend.batch(), backend.batch());
    let mut sequences: Vec<Sequence> = (0..)
        .zip(lists)
        .map(|(seed, list)| {
            let prompt = tokens(seed, 4 + 9 * seed);
            let (number, alone) = (begin(&mut *batch, &prompt, list), begin(&mut *alone, &prompt, list));
            Sequence { number, alone, len: prompt.len() }
        })
        .collect();
    // Drafts of other lengths in each round, some of one token.
    for (round, lengths) in [[1, 4, 2, 1, 3], [3, 1, 1, 5, 1]].into_iter().enumerate() {
        let (mut next, mut expected) = (Vec::new(), Vec::new());
        for (seed, (sequence, n)) in sequences.iter().zip(lengths).enumerate() {
            for i in 0..n {
                let token = ((round * 67 + i * 13 + seed * 29) % 500 + 3) as TokenId;
                next.push(NextToken { sequence: sequence.number, token, wanted: Wanted::Logits });
                let single = NextToken { sequence: sequence.alone, token, wanted: Wanted::Logits };
                expected.extend(decode(&mut *alone, &[single], vocab));
            }
        }
        let found = decode(&mut *batch, &next, vocab);
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(bits(found) == bits(expected), "{name}: round {round}, row {row} of {lengths:?}");
        }
        // The last tokens of each draft are dropped.
        for (sequence, n) in sequences.iter_mut().zip(lengths) {
            sequence.len += n.div_ceil(2);
            for (batch, number) in [(&mut batch, sequence.number), (&mut alone, sequence.alone)] {
                let session = batch.sequence(number).expect("it has not ended");
                assert_eq!(session.truncate(sequence.len).expect("it is cut"), sequence.len);
            }
        }
    }
}

/// Products of pairs, and of sorted pairs.
const SEQUENCES: [usize; 2] = [1, 64];

fn load(path: PathBuf, sequences: usize) -> Option<GpuBackend> {
    let options = GpuOptions { kv_tokens: Some(2048), context: Some(256), sequences, ..options() };
    gpu_with(path, &options)
}

fn base(backend: &GpuBackend) -> Arc<BaseModel> {
    Arc::clone(backend.backend_adapters().expect("adapters").registry().residency().base())
}

#[test]
fn drafts_with_adapters_on_a_mixture_have_the_bits_of_single_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    for (mix, sequences) in ["Q4_0", "Q4_K_M"].into_iter().zip(SEQUENCES) {
        let Some(backend) = load(mixture(mix, folder.path()), sequences) else { return };
        rows_are_those_of_single_steps(&backend, &lists(&base(&backend)), mix);
    }
}

/// Mixtures in F16, whose products do not round activations.
#[test]
fn adapters_of_a_mixture_have_the_logits_of_the_cpu() {
    ["mixtral", "qwen3moe"].into_iter().for_each(|name| adapters_have_the_logits_of_the_cpu(name, "f32"));
}

/// A form beside the engine with the same adapters of attention and of the final state, and keys
/// and values in a format.
pub(crate) fn adapters_have_the_logits_of_the_cpu(name: &str, kv: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = GpuOptions { adapter_format: FactorFormat::F32, ..form_options(folder.path()) };
    let Some(mut backend) = gpu_with(form(name), &options) else { return };
    let cpu = EngineOptions::default()
        .with_threads(2)
        .with_kv(kv.parse::<KvPolicy>().expect("a policy"))
        .with_tokenizer(options.tokenizer.clone());
    let mut engine = Engine::load(&form(name).into(), &cpu, &mut |_| ()).expect("the engine loads it");
    let prompt: Vec<TokenId> = (0..21).map(|i| (i * 7 + 3) % 50).collect();
    let without = prompt_logits(&backend, &prompt, 512);
    for list in lists(&base(&backend)).into_iter().filter(|list| !list.is_empty()) {
        backend.set_adapters(&list).expect("default adapters");
        engine.set_adapters(&list).expect("default adapters");
        let expected: Vec<f64> = prompt_logits(&engine, &prompt, 512).into_iter().map(f64::from).collect();
        let found = error(&prompt_logits(&backend, &prompt, 512), &expected);
        let change = error(&without, &expected);
        println!("{name}, {} adapters: {found:.1e}, {change:.1e} without", list.len());
        assert!(found <= tolerance(), "{name}: {found}");
        assert!(change > 2.0 * tolerance(), "{name}: {found}, {change} without");
    }
}

#[test]
fn requests_with_adapters_and_drafts_on_a_mixture_have_the_texts_that_they_have_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = load(mixture("Q4_K_M", folder.path()), SEQUENCES[1]) else { return };
    let lists = lists(&base(&backend));
    let request = |seed: usize, speculation| {
        let sampling =
            if seed.is_multiple_of(2) { SamplingParams::greedy() } else { SamplingParams::default() };
        GenerateRequest::new(Prompt::Tokens(tokens(seed, 9).repeat(3)))
            .with_max_tokens(12 + seed)
            .with_sampling(sampling.with_seed(Some(seed as u64)))
            .with_ignore_eos(true)
            .with_adapters(lists[seed % lists.len()].clone())
            .with_speculation(speculation)
    };
    let cancel = CancelToken::new();
    let alone = |request: &GenerateRequest| -> Completion {
        backend.generate_with(request, &cancel, &mut |_| ControlFlow::Continue(())).expect("text")
    };
    let plain: Vec<_> = (0..5).map(|seed| alone(&request(seed, Speculation::Off)).tokens).collect();
    let requests: Vec<_> = (0..5).map(|seed| request(seed, Speculation::Fixed(4))).collect();
    let found = backend.generate_many(&requests, &cancel, &mut |_, _| ControlFlow::Continue(()));
    let found: Vec<_> = found.expect("threads").into_iter().map(|found| found.expect("text")).collect();
    assert_eq!(found.iter().map(|completion| completion.tokens.clone()).collect::<Vec<_>>(), plain);
    let drafted: usize = found.iter().map(|completion| completion.drafted_tokens).sum();
    assert!(drafted > 10, "{drafted} drafted tokens");
}
