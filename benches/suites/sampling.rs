//! Time of one sampled token per sampler, one thread, at a vocabulary of 128,256. `bytes` is one
//! read of the logits.

use ruvllm::{DryBreakers, Logprobs, Sampler, SamplingParams, TokenId};
use ruvllm_benches::{Suite, Work, values};

fn main() {
    let mut suite = Suite::new();
    let (vocabulary, context) = if suite.is_test() { (211, 64) } else { (128_256, 4096) };
    // Sums of uniform values are nearly normal: a standard deviation of 3, as logits have.
    let parts = values(12 * vocabulary);
    let logits: Vec<f32> = parts.chunks(12).map(|twelve| 3.0 * twelve.iter().sum::<f32>()).collect();
    for (name, tokens, params) in settings(context) {
        let mut sampler = Sampler::new(suite.kernels, &params, vocabulary).expect("valid parameters");
        // Text with repetitions: a token of ten occurs often.
        let text = values(tokens).into_iter().enumerate();
        let text = text.map(|(i, u)| if u < 0.2 { i % 10 } else { (u * 400.0) as usize + 10 });
        text.for_each(|token| sampler.accept((token % vocabulary) as TokenId));
        let mut position = 0;
        suite.measure("sample", name, work(vocabulary), || {
            std::hint::black_box(sampler.sample(&logits, position)).expect("finite logits");
            position += 1;
        });
    }
    for top_n in [0, 20] {
        let params = SamplingParams::greedy();
        let mut sampler = Sampler::new(suite.kernels, &params, vocabulary).expect("valid parameters");
        let mut out = Logprobs::default();
        suite.measure("logprobs", &format!("top {top_n}"), work(vocabulary), || {
            sampler.logprobs_into(&logits, 7, top_n, &mut out).expect("finite logits");
        });
    }
    suite.finish();
}

fn work(vocabulary: usize) -> Work {
    Work { bytes: 4 * vocabulary as u64, flops: 0 }
}

/// Name, tokens of the sequence and parameters.
fn settings(context: usize) -> Vec<(&'static str, usize, SamplingParams)> {
    let plain = || SamplingParams::greedy().with_temperature(0.8).with_seed(1);
    let top_k = || plain().with_top_k(40);
    let dry = || plain().with_top_k(40).with_dry_multiplier(0.8).with_dry_breakers(DryBreakers::default());
    let order = "temperature;top_k;top_p".parse().expect("known names");
    vec![
        ("greedy", 0, SamplingParams::greedy()),
        ("default", 0, SamplingParams::default().with_seed(1)),
        ("no filter", 0, plain()),
        ("top_k 40", 0, top_k()),
        ("top_p 0.95", 0, plain().with_top_p(0.95)),
        ("min_p 0.05", 0, plain().with_min_p(0.05)),
        ("typical_p 0.9", 0, plain().with_typical_p(0.9)),
        ("top_k 40, penalties", context, top_k().with_repeat_penalty(1.1)),
        ("top_n_sigma 1", 0, plain().with_top_n_sigma(1.0)),
        ("top_n_sigma 2.5", 0, plain().with_top_n_sigma(2.5)),
        ("xtc 0.5", 0, plain().with_xtc_probability(0.5).with_xtc_threshold(0.1)),
        ("top_k 40, xtc 0.5", 0, top_k().with_xtc_probability(0.5)),
        ("dynatemp 0.5", 0, plain().with_dynatemp_range(0.5)),
        ("top_k 40, dynatemp 0.5", 0, top_k().with_dynatemp_range(0.5)),
        ("mirostat", 0, plain().with_mirostat(true)),
        ("top_k 40, dry over 4096", context, dry()),
        ("top_k 40, dry over 32768", 8 * context, dry()),
        ("temperature;top_k;top_p", 0, top_k().with_top_p(0.95).with_samplers(order)),
    ]
}
