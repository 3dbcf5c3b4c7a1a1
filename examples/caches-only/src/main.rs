//! A toy engine around the KV cache: one attention layer with fixed weights. Several questions
//! follow the same instructions, with prefix sharing and precision tiers.

use std::error::Error;

use ruvllm_kv_cache::kernels::attention::{AttentionScratch, AttentionShape, Mask};
use ruvllm_kv_cache::kernels::{Kernels, ThreadPool};
use ruvllm_kv_cache::prefix::{PrefixKey, PrefixTree, Scope};
use ruvllm_kv_cache::{Block, KvShape, KvStore, Sequence};
use ruvllm_memory::{PagePool, PoolConfig, PressurePolicy};

const HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const DIM: usize = HEADS * HEAD_DIM;
const VOCABULARY: u32 = 97;
const INSTRUCTIONS: u32 = 384;
const QUESTION: u32 = 20;
const ANSWER: usize = 8;
/// The last 32 tokens stay in F16, the 128 before them have 8 bits, all others 2.
const POLICY: &str = "tiered:hot=32,sink=4,warm=q8,warm_tokens=128,cold=kivi2";

/// Tokens of an answer, and the states that they were chosen by.
type Answer = (Vec<u32>, Vec<f32>);

/// Model, and the memory that its sequences share.
struct Engine {
    kernels: Kernels,
    threads: ThreadPool,
    store: KvStore,
    prefixes: PrefixTree<Block>,
    key: PrefixKey,
}

impl Engine {
    fn new() -> Result<Self, Box<dyn Error>> {
        let pool = PagePool::new(PoolConfig::new(64 << 20))?;
        let shape = KvShape::new(1, HEADS, HEAD_DIM);
        let store = KvStore::new(shape, &POLICY.parse()?, &pool)?;
        Ok(Self {
            kernels: Kernels::detect()?,
            threads: ThreadPool::new(2)?,
            prefixes: PrefixTree::new(store.block_tokens()),
            key: PrefixKey {
                model: [0; 32],
                adapter: None,
                kv_format: POLICY.into(),
                rope_scaling: "none".into(),
                scope: Scope::Shared,
            },
            store,
        })
    }

    /// Appends `tokens` to a sequence in one step; returns the state of the last one, `[DIM]`.
    fn forward(&self, sequence: &mut Sequence, tokens: &[u32]) -> Result<Vec<f32>, Box<dyn Error>> {
        let (start, n) = (sequence.len(), tokens.len());
        let [queries, keys, values] =
            [1, 2, 3].map(|part| tokens.iter().flat_map(|&token| weights(part, token)).collect::<Vec<_>>());
        // The step has all its memory: nothing after it fails for lack of memory.
        let mut step = sequence.step(&self.kernels, n)?;
        step.write(&self.kernels, 0, &keys, &values);
        let mut states = vec![0.0; n * DIM];
        let shape = AttentionShape {
            n_heads: HEADS,
            n_kv_heads: HEADS,
            head_dim: HEAD_DIM,
            query_start: start,
            n_queries: n,
            scale: (HEAD_DIM as f32).powf(-0.5),
            mask: Mask::CAUSAL,
            soft_cap: None,
            alibi: None,
        };
        let mut blocks = Vec::new();
        let view = step.view(0, &mut blocks);
        let mut scratch = AttentionScratch::new();
        self.kernels.attention(&self.threads, &shape, &queries, &view, &mut states, &mut scratch);
        step.commit();
        Ok(states.split_off((n - 1) * DIM))
    }

    /// Generates the answer to a prompt that begins with the instructions. With `share`, their
    /// blocks are served from the prefix tree, or inserted there for the next prompt.
    fn answer(&self, prompt: &[u32], share: bool) -> Result<Answer, Box<dyn Error>> {
        let mut sequence = self.store.sequence(prompt.len() + ANSWER);
        // The pin keeps the blocks in the tree while this sequence exists.
        let mut pin = None;
        if share {
            let found = self.prefixes.lookup(&self.key, prompt);
            sequence.append_shared(&found.blocks)?;
            println!(
                "  {} of {} prompt tokens shared ({} blocks)",
                found.tokens,
                prompt.len(),
                found.blocks.len()
            );
            pin = found.pin;
        }
        let instructions = INSTRUCTIONS as usize;
        if sequence.is_empty() {
            self.forward(&mut sequence, &prompt[..instructions])?;
            // Older blocks move to their tiers between steps.
            sequence.settle(&self.kernels, &self.threads, PressurePolicy::default());
            if share {
                pin = self.prefixes.insert(&self.key, &prompt[..instructions], sequence.share()).pin;
            }
        }
        let known = sequence.len();
        let mut state = self.forward(&mut sequence, &prompt[known..])?;
        let mut answer = (Vec::new(), state.clone());
        while answer.0.len() < ANSWER {
            let token = likeliest(&state);
            state = self.forward(&mut sequence, &[token])?;
            answer.0.push(token);
            answer.1.extend(&state);
        }
        drop(pin);
        Ok(answer)
    }

    /// Prints blocks and bytes of each tier.
    fn print_tiers(&self, when: &str) {
        println!("{when}:");
        for tier in self.store.tiers() {
            println!("  {:6} {:2} blocks, {:6} bytes", tier.formats.to_string(), tier.blocks, tier.bytes);
        }
    }
}

/// Pseudorandom weights in -1..1 of a token in one part of the model, `[DIM]`.
fn weights(part: u32, token: u32) -> Vec<f32> {
    let mut state = u64::from(1 + part * VOCABULARY + token);
    let mut next = || {
        // Lehmer generator with the multiplier of Park and Miller.
        state = state * 48_271 % 0x7fff_ffff;
        state as f32 / 0x3fff_ffff as f32 - 1.0
    };
    // The first numbers of neighbouring seeds are similar.
    for _ in 0..8 {
        next();
    }
    (0..DIM).map(|_| next()).collect()
}

/// Greedy choice: the token with the largest logit.
fn likeliest(state: &[f32]) -> u32 {
    let logit = |token: u32| weights(4, token).iter().zip(state).map(|(a, b)| a * b).sum::<f32>();
    (0..VOCABULARY).max_by(|&a, &b| logit(a).total_cmp(&logit(b))).unwrap_or_default()
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new()?;
    let prompt = |question: u32| -> Vec<u32> {
        let instructions = (0..INSTRUCTIONS).map(|i| (i * i + 3) % VOCABULARY);
        instructions.chain((0..QUESTION).map(|i| (question * 31 + i * 7) % VOCABULARY)).collect()
    };
    for question in 0..3 {
        println!("question {question}:");
        let shared = engine.answer(&prompt(question), true)?;
        let alone = engine.answer(&prompt(question), false)?;
        assert_eq!(shared, alone, "sharing changes no bit");
        println!("  answer {:?}, the same without sharing", shared.0);
    }
    engine.print_tiers("the shared instructions take");
    let tiers: usize = engine.store.tiers().map(|tier| tier.bytes).sum();
    let half_precision = INSTRUCTIONS as usize * DIM * 2 * size_of::<u16>();
    println!("together {tiers} bytes; {half_precision} in F16");
    assert!(tiers < half_precision, "the tiers save memory");

    let evicted = engine.prefixes.evict(1000);
    println!("{} blocks evicted", evicted.iter().map(|prefix| prefix.blocks.len()).sum::<usize>());
    drop(evicted);
    assert!(engine.store.tiers().all(|tier| tier.blocks == 0), "nothing holds memory now");
    Ok(())
}
