//! Sampling allocates nothing per token.
//!
//! Alone in its program: an allocator counts for the whole process.

use ruvllm::{Kernels, Logprobs, Sampler, SamplingParams, TokenId};
use ruvllm_testkit::allocator::{Counting, calls, count_calls};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VOCAB_SIZE: usize = 3000;
const TOKENS: usize = 6000;

fn settings() -> Vec<(&'static str, SamplingParams)> {
    let base = || SamplingParams::default().with_seed(5);
    let order = "temperature;xtc;min_p;top_p;typ_p;dry;top_k;penalties;top_n_sigma";
    let all = |params: SamplingParams| {
        params
            .with_frequency_penalty(0.01)
            .with_top_n_sigma(2.0)
            .with_dry_multiplier(0.5)
            .with_typical_p(0.95)
            .with_xtc_probability(0.5)
            .with_dynatemp_range(0.3)
    };
    vec![
        ("default", base()),
        ("greedy", SamplingParams::greedy().with_dry_multiplier(0.5)),
        ("whole vocabulary", base().with_top_k(0)),
        ("dry over 100 tokens", base().with_dry_multiplier(0.5).with_dry_penalty_last_n(100)),
        ("all steps", all(base())),
        ("all steps in another order", all(base()).with_samplers(order.parse().expect("known names"))),
        ("mirostat", all(base()).with_mirostat(true)),
    ]
}

#[test]
fn sampling_allocates_nothing() {
    let row: Vec<f32> = (0..VOCAB_SIZE).map(|id| (id as f32 * 0.7).sin() * 4.0).collect();
    let kernels = Kernels::detect().expect("the instruction set that was asked for");
    count_calls();
    for (name, params) in settings() {
        let mut sampler = Sampler::new(kernels, &params, VOCAB_SIZE).expect("valid parameters");
        sampler.reserve(TOKENS);
        let mut logprobs = Logprobs::default();
        sampler.logprobs_into(&row, 0, 20, &mut logprobs).expect("finite logits");
        let before = calls();
        for position in 0..TOKENS / 20 {
            let token = sampler.sample(&row, position).expect("finite logits");
            sampler.logprobs_into(&row, token, 20, &mut logprobs).expect("finite logits");
            // More tokens than are sampled: the windows fill.
            (0..20).for_each(|other| sampler.accept((token + other % 3) % VOCAB_SIZE as TokenId));
        }
        assert_eq!(calls(), before, "{name}");
    }
}
