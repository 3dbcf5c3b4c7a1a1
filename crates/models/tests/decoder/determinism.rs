//! A token's logits depend on its sequence alone: bit for bit the same for every instruction set,
//! thread count, cut of the prompt and neighbour in the batch.

use gguf_rs_lite::Gguf;
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_models::{Compute, KvFormat, LogitsRows, Model, Segment, Workspace};
use ruvllm_text::TokenId;

use crate::fixtures::{self, Expected, THREADS, all_computes, all_logits, bits};

const MODELS: [(&str, &str); 12] = [
    ("tiny/llama", "model-F32.gguf"),
    ("tiny/llama", "model-F16.gguf"),
    ("tiny/mistral", "model-F16.gguf"),
    ("tiny/qwen2", "model-F16.gguf"),
    ("tiny/qwen3", "model-F16.gguf"),
    ("tiny/phi3", "model-F16.gguf"),
    ("tiny/gemma2", "model-F16.gguf"),
    ("tiny/gemma3", "model-F32.gguf"),
    ("quant", "llama-Q8_0.gguf"),
    ("quant", "llama-Q4_0.gguf"),
    ("quant", "llama-Q4_K_M.gguf"),
    ("quant", "llama-Q5_K_M.gguf"),
];

/// Lengths of the pieces in which a prompt of 128 tokens is put in.
const CHUNKS: [usize; 4] = [128, 64, 7, 1];

/// Every instruction set computes every model with every format; thread counts and lengths of
/// pieces go round, so that all pairs are met. A full run meets every combination.
#[test]
fn isa_threads_and_chunks_do_not_change_a_bit() {
    let mut turn = 0;
    for (folder, file) in MODELS {
        let model = fixtures::model(&format!("{folder}/{file}"));
        // Beyond every window, and several blocks of keys and values.
        let tokens = &Expected::read(folder).prompt("long")[..128];
        let head_dim = model.config().head_dim;
        let fits =
            |kv: &KvFormat| kv.keys_are_appendable() && head_dim.is_multiple_of(kv.head_dim_multiple());
        for kv in KvFormat::ALL.into_iter().filter(fits) {
            let mut first: Option<Vec<u32>> = None;
            turn += 1;
            for (nth, compute) in all_computes().into_iter().enumerate() {
                let (isa, threads) = (nth / THREADS, nth % THREADS);
                for (at, chunk) in CHUNKS.into_iter().enumerate() {
                    let is_its_turn = (isa + turn) % THREADS == threads && (isa + turn) % CHUNKS.len() == at;
                    if !is_its_turn && !ruvllm_testkit::is_full_run() {
                        continue;
                    }
                    let found = bits(&all_logits(&model, &compute, kv, tokens, chunk));
                    let what = format!(
                        "{folder}/{file} {kv:?}: {} {} threads, chunks of {chunk}",
                        compute.kernels.isa(),
                        compute.pool.threads()
                    );
                    let first = first.get_or_insert_with(|| found.clone());
                    assert!(*first == found, "{what}: other bits");
                }
            }
        }
    }
}

/// Steps of a batch: per sequence, how many tokens it adds in each step (0: not part of it).
const STEPS: [[usize; 3]; 6] = [[5, 0, 40], [7, 1, 0], [1, 30, 1], [0, 1, 1], [1, 1, 1], [64, 3, 2]];

#[test]
fn neighbours_in_a_batch_do_not_change_a_bit() {
    for (folder, file) in MODELS {
        let model = fixtures::model(&format!("{folder}/{file}"));
        let long = Expected::read(folder).prompt("long");
        let sequences: Vec<Vec<TokenId>> =
            (0..3).map(|sequence| long.iter().skip(sequence * 3).copied().collect()).collect();
        for compute in [Compute::new(1).expect("kernels"), Compute::new(3).expect("kernels")] {
            let batched = run_batched(&model, &compute, &sequences);
            for (sequence, found) in batched.iter().enumerate() {
                let n_tokens: usize = STEPS.iter().map(|step| step[sequence]).sum();
                let tokens = &sequences[sequence][..n_tokens];
                let alone = all_logits(&model, &compute, KvFormat::F16, tokens, n_tokens);
                assert!(bits(found) == bits(&alone), "{folder}/{file}: sequence {sequence} differs");
            }
        }
    }
}

/// All logits of each sequence, computed in the batches of `STEPS`.
fn run_batched(model: &Model, compute: &Compute, sequences: &[Vec<TokenId>]) -> Vec<Vec<f32>> {
    let mut caches: Vec<_> =
        sequences.iter().map(|_| fixtures::new_cache(model, KvFormat::F16, 128).expect("a cache")).collect();
    let mut logits = vec![Vec::new(); sequences.len()];
    let mut workspace = Workspace::new();
    for step in STEPS {
        let mut segments = Vec::new();
        let mut owners = Vec::new();
        for (sequence, cache) in caches.iter_mut().enumerate() {
            if step[sequence] > 0 {
                let tokens = &sequences[sequence][cache.len()..][..step[sequence]];
                owners.extend(vec![sequence; tokens.len()]);
                segments.push(Segment::new(compute, tokens, cache, LogitsRows::All).expect("room"));
            }
        }
        let rows = model.forward(compute, &mut workspace, segments).expect("a step");
        for (row, &owner) in rows.chunks_exact(model.config().vocab_size).zip(&owners) {
            logits[owner].extend_from_slice(row);
        }
    }
    logits
}

#[test]
fn asking_for_fewer_logits_does_not_change_a_bit() {
    let compute = fixtures::compute();
    for (folder, file) in MODELS {
        let model = fixtures::model(&format!("{folder}/{file}"));
        let vocab_size = model.config().vocab_size;
        let tokens = Expected::read(folder).prompt("long");
        let tokens = &tokens[..100];
        let all = all_logits(&model, &compute, KvFormat::F32, tokens, 50);
        let row = |index: usize| &all[index * vocab_size..][..vocab_size];

        let mut cache = fixtures::new_cache(&model, KvFormat::F32, 100).expect("a cache");
        let mut workspace = Workspace::new();
        let mut step = |range: std::ops::Range<usize>, logits: LogitsRows<'_>| {
            let segment = Segment::new(&compute, &tokens[range], &mut cache, logits).expect("room");
            let found = model.forward(&compute, &mut workspace, [segment]);
            bits(found.expect("a step"))
        };
        assert!(step(0..40, LogitsRows::None).is_empty());
        let found = step(40..60, LogitsRows::At(&[0, 1, 2, 7, 9, 10, 19]));
        let rows: Vec<f32> = [40, 41, 42, 47, 49, 50, 59].into_iter().flat_map(row).copied().collect();
        assert!(found == bits(&rows), "{folder}/{file}: chosen rows differ");
        let rows: Vec<f32> = [67, 68, 69].into_iter().flat_map(row).copied().collect();
        assert!(step(60..70, LogitsRows::Tail(3)) == bits(&rows), "{folder}/{file}: last rows differ");
        assert!(step(70..99, LogitsRows::Last) == bits(row(98)), "{folder}/{file}: last row differs");
        assert!(step(99..100, LogitsRows::All) == bits(row(99)), "{folder}/{file}: decoded row differs");
    }
}

/// The bytes of a file at an odd address: what a caller's own buffer may be.
struct Shifted(Vec<u8>);

impl AsRef<[u8]> for Shifted {
    fn as_ref(&self) -> &[u8] {
        &self.0[1..]
    }
}

#[test]
fn unaligned_files_do_not_change_a_bit() {
    for (folder, file) in MODELS {
        let tokens = Expected::read(folder).prompt("short");
        let mut bytes = vec![0];
        bytes.extend(std::fs::read(fixtures::path(&format!("{folder}/{file}"))).expect("the fixture"));
        let gguf = Gguf::from_owner(Shifted(bytes)).expect("a valid file");
        let shifted = Model::load(&gguf, &mut |_| ()).expect("it loads");
        let aligned = fixtures::model(&format!("{folder}/{file}"));
        for kernels in Kernels::available() {
            let compute = Compute::with(kernels, ThreadPool::new(2).expect("threads start"));
            let run = |model| bits(&all_logits(model, &compute, KvFormat::F32, &tokens, tokens.len()));
            assert!(run(&shifted) == run(&aligned), "{folder}/{file} {}", compute.kernels.isa());
        }
    }
}
