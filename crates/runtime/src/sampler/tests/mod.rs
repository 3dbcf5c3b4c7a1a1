//! The sampler against a naive f64 reference, formulas of the penalties, statistics of the draws.

mod dry;
mod logprobs;
mod mirostat;
mod order;
mod reference;
mod statistics;

use proptest::prelude::*;

use self::reference::Reference;
use super::*;

fn kernels() -> Kernels {
    Kernels::detect().expect("the instruction set that was asked for")
}

fn sampler(params: &SamplingParams, vocab_size: usize) -> Sampler {
    Sampler::new(kernels(), params, vocab_size).expect("valid parameters")
}

/// Parameters that sample the whole distribution.
fn plain() -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: Some(1), ..SamplingParams::greedy() }
}

/// Ids left by the filters, ascending.
fn kept(params: &SamplingParams, logits: &[f32]) -> Vec<TokenId> {
    let mut sampler = sampler(params, logits.len());
    sampler.adjust(logits);
    sampler.filter(0, None);
    let mut ids: Vec<TokenId> = sampler.candidates.iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

/// The logits after penalties and bias.
fn adjusted(params: &SamplingParams, history: &[TokenId], logits: &[f32]) -> Vec<f32> {
    let mut sampler = sampler(params, logits.len());
    for &token in history {
        sampler.accept(token);
    }
    sampler.adjust(logits);
    sampler.logits
}

/// Ids that the reference of the filters leaves; `None` where rounding could decide.
fn naive(params: &SamplingParams, logits: &[f32]) -> Option<Vec<TokenId>> {
    let left = Reference { params, history: &[], is_excluding: false }.distribution(logits)?;
    Some(left.iter().map(|t| t.0).collect())
}

/// Logits with ties (multiples of 1/4), or arbitrary ones.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec((-20i8..20).prop_map(|x| f32::from(x) / 4.0), 1..300),
        prop::collection::vec(-12.0f32..12.0, 1..300),
    ]
}

proptest! {
    #[test]
    fn top_k_keeps_the_k_most_likely(logits in logits(), k in 1usize..320) {
        // Logits as they came in: exact, however near they are.
        let mut expected: Vec<TokenId> = (0..logits.len() as TokenId).collect();
        expected.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        expected.truncate(k);
        expected.sort_unstable();
        prop_assert_eq!(kept(&SamplingParams { top_k: k, ..plain() }, &logits), expected);
    }

    #[test]
    fn top_p_keeps_the_nucleus(logits in logits(), p in 0.0f32..1.0) {
        let params = SamplingParams { top_p: p, ..plain() };
        if let Some(expected) = naive(&params, &logits) {
            prop_assert_eq!(kept(&params, &logits), expected);
        }
    }

    #[test]
    fn min_p_keeps_what_is_near_the_best(logits in logits(), p in 0.0f32..1.0) {
        let params = SamplingParams { min_p: p, ..plain() };
        if let Some(expected) = naive(&params, &logits) {
            prop_assert_eq!(kept(&params, &logits), expected);
        }
    }

    #[test]
    fn typical_keeps_what_is_near_the_entropy(logits in logits(), p in 0.0f32..1.0) {
        let params = SamplingParams { typical_p: p, ..plain() };
        if let Some(expected) = naive(&params, &logits) {
            prop_assert_eq!(kept(&params, &logits), expected);
        }
    }

    #[test]
    fn the_chain_runs_in_its_order(
        logits in logits(), k in 0usize..60, typical in 0.3f32..1.2, top in 0.3f32..1.2, min in -0.2f32..0.5,
    ) {
        let params = SamplingParams {
            top_k: k, typical_p: typical.min(1.0), top_p: top.min(1.0), min_p: min.max(0.0), ..plain()
        };
        if let Some(expected) = naive(&params, &logits) {
            prop_assert_eq!(kept(&params, &logits), expected);
        }
    }

    #[test]
    fn any_bits_of_logits_give_a_possible_token_or_an_error(
        bits in prop::collection::vec(any::<u32>(), 1..40), seed: u64, temperature in 0.0f32..3.0,
    ) {
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        for base in [SamplingParams::default(), SamplingParams { typical_p: 0.5, ..plain() }, plain()] {
            let params = SamplingParams { seed: Some(seed), temperature, ..base };
            match sampler(&params, logits.len()).sample(&logits, 3) {
                Ok(token) => prop_assert!(logits[token as usize] > f32::NEG_INFINITY),
                Err(Error::NoCandidate) => prop_assert!(!logits.iter().any(|&x| x > f32::NEG_INFINITY)),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}

#[test]
fn greedy_takes_the_first_of_equal_maxima() {
    let mut greedy = sampler(&SamplingParams::greedy(), 5);
    assert_eq!(greedy.sample(&[0.0, 2.0, -1.0, 2.0, 2.0], 0).ok(), Some(1));
    assert_eq!(greedy.sample(&[-0.0, 0.0, -1.0, 0.0, f32::NAN], 0).ok(), Some(0));
    assert_eq!(greedy.sample(&[f32::NAN, f32::NEG_INFINITY, -3e38, f32::NAN, -3e38], 0).ok(), Some(2));
    assert_eq!(greedy.sample(&[1.0, f32::INFINITY, 5.0, f32::INFINITY, 0.0], 0).ok(), Some(1));
}

#[test]
fn a_tiny_temperature_takes_the_best_token() {
    let mut cold = sampler(&SamplingParams { temperature: 1e-30, ..plain() }, 3);
    assert!((0..50).all(|position| cold.sample(&[1.0, 1.001, 0.0], position).ok() == Some(1)));
}

#[test]
fn infinite_logits_share_the_draws() {
    let logits = [f32::INFINITY, 1.0, f32::INFINITY, f32::NEG_INFINITY];
    let mut any = sampler(&plain(), 4);
    let drawn: Vec<_> = (0..100).filter_map(|position| any.sample(&logits, position).ok()).collect();
    assert_eq!(drawn.len(), 100);
    assert!(drawn.iter().all(|&id| id == 0 || id == 2) && drawn.contains(&0) && drawn.contains(&2));
}

#[test]
fn no_possible_token_is_an_error() {
    for params in [SamplingParams::greedy(), SamplingParams::default(), plain()] {
        for logits in [[f32::NAN; 3], [f32::NEG_INFINITY; 3]] {
            assert!(matches!(sampler(&params, 3).sample(&logits, 0), Err(Error::NoCandidate)));
        }
    }
}

#[test]
fn a_seed_repeats_the_draws_and_another_one_does_not() {
    let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32 / 3.0).collect();
    let draw = |seed| {
        let mut sampler = sampler(&SamplingParams { seed: Some(seed), ..SamplingParams::default() }, 100);
        (0..50).map(|position| sampler.sample(&logits, position).expect("finite logits")).collect::<Vec<_>>()
    };
    assert_eq!(draw(5), draw(5));
    assert_ne!(draw(5), draw(6));
}

#[test]
fn a_draw_depends_on_its_position_and_not_on_earlier_draws() {
    let logits: Vec<f32> = (0..50).map(|i| (i % 5) as f32).collect();
    let mut all = sampler(&plain(), 50);
    let drawn: Vec<_> =
        (0..20).map(|position| all.sample(&logits, position).expect("finite logits")).collect();
    for (position, &token) in drawn.iter().enumerate().rev() {
        assert_eq!(sampler(&plain(), 50).sample(&logits, position).ok(), Some(token));
    }
}

#[test]
fn without_a_seed_each_sampler_has_another_one() {
    let params = SamplingParams { seed: None, ..plain() };
    assert_ne!(sampler(&params, 2).seed(), sampler(&params, 2).seed());
    assert_eq!(sampler(&plain(), 2).seed(), 1);
}

#[test]
fn penalties_follow_their_formulas() {
    let logits = [2.0f32, -2.0, 1.0, 0.5];
    let history = [0, 1, 1, 0, 1];
    let params = |repeat, presence, frequency| SamplingParams {
        repeat_penalty: repeat,
        presence_penalty: presence,
        frequency_penalty: frequency,
        ..SamplingParams::greedy()
    };
    assert_eq!(adjusted(&params(1.0, 0.0, 0.0), &history, &logits), logits);
    assert_eq!(adjusted(&params(2.0, 0.0, 0.0), &history, &logits), [1.0, -4.0, 1.0, 0.5]);
    assert_eq!(adjusted(&params(1.0, 0.25, 0.0), &history, &logits), [1.75, -2.25, 1.0, 0.5]);
    assert_eq!(adjusted(&params(1.0, 0.0, 0.5), &history, &logits), [1.0, -3.5, 1.0, 0.5]);
    assert_eq!(adjusted(&params(2.0, 0.25, 0.5), &history, &logits), [-0.25, -5.75, 1.0, 0.5]);
}

#[test]
fn penalties_look_at_the_last_n_tokens() {
    let penalized = |repeat_last_n, history: &[TokenId]| {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n, ..SamplingParams::greedy() };
        adjusted(&params, history, &[0.0; 3])
    };
    let history = [0, 0, 1, 2, 1];
    assert_eq!(penalized(0, &history), [0.0, 0.0, 0.0]);
    assert_eq!(penalized(1, &history), [0.0, -1.0, 0.0]);
    assert_eq!(penalized(3, &history), [0.0, -2.0, -1.0]);
    assert_eq!(penalized(4, &history), [-1.0, -2.0, -1.0]);
    assert_eq!(penalized(64, &history), [-2.0, -2.0, -1.0]);
    assert_eq!(penalized(usize::MAX, &history), [-2.0, -2.0, -1.0]);
    // Ids outside of the vocabulary are ignored.
    assert_eq!(penalized(64, &[7, u32::MAX]), [0.0; 3]);
}

#[test]
fn a_bias_is_added_and_can_forbid_a_token() {
    let params =
        SamplingParams { logit_bias: [(0, f32::NEG_INFINITY), (2, 1.5)].into(), ..SamplingParams::greedy() };
    assert_eq!(adjusted(&params, &[], &[9.0, 1.0, 0.0]), [f32::NEG_INFINITY, 1.0, 1.5]);
    assert_eq!(sampler(&params, 3).sample(&[9.0, 1.0, 0.0], 0).ok(), Some(2));
    let drawing = SamplingParams { logit_bias: params.logit_bias, ..plain() };
    let mut drawing = sampler(&drawing, 3);
    assert!((0..200).all(|position| drawing.sample(&[9.0, 1.0, 0.0], position).is_ok_and(|id| id != 0)));
}

#[test]
fn a_bias_outside_the_vocabulary_is_refused() {
    let params = SamplingParams { logit_bias: [(3, 1.0)].into(), ..SamplingParams::greedy() };
    let refused = Sampler::new(kernels(), &params, 3).err().map(|error| error.to_string());
    assert_eq!(refused.as_deref(), Some("logit bias for token 3, but the vocabulary ends at 2"));
}

#[test]
fn parameters_out_of_range_are_named() {
    let refused = |change: &dyn Fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        match params.validate() {
            Err(Error::SamplingParameter { name, .. }) => name,
            other => panic!("expected a parameter error, found {other:?}"),
        }
    };
    for bad in [f32::NAN, -0.1, f32::INFINITY] {
        assert_eq!(refused(&|p| p.top_n_sigma = bad), "top_n_sigma");
        assert_eq!(refused(&|p| p.dry_multiplier = bad), "dry_multiplier");
        assert_eq!(refused(&|p| p.dry_base = bad), "dry_base");
        assert_eq!(refused(&|p| p.xtc_probability = bad), "xtc_probability");
        assert_eq!(refused(&|p| p.xtc_threshold = bad), "xtc_threshold");
        assert_eq!(refused(&|p| p.mirostat_tau = bad), "mirostat_tau");
        assert_eq!(refused(&|p| p.mirostat_eta = bad), "mirostat_eta");
        assert_eq!(refused(&|p| p.dynatemp_range = bad), "dynatemp_range");
        assert_eq!(refused(&|p| p.dynatemp_exponent = bad), "dynatemp_exponent");
        assert_eq!(refused(&|p| p.temperature = bad), "temperature");
        assert_eq!(refused(&|p| p.top_p = bad), "top_p");
        assert_eq!(refused(&|p| p.min_p = bad), "min_p");
        assert_eq!(refused(&|p| p.typical_p = bad), "typical_p");
        assert_eq!(refused(&|p| p.repeat_penalty = bad), "repeat_penalty");
    }
    assert_eq!(refused(&|p| p.top_p = 1.5), "top_p");
    assert_eq!(refused(&|p| p.repeat_penalty = 0.0), "repeat_penalty");
    assert_eq!(refused(&|p| p.dry_base = 0.99), "dry_base");
    assert_eq!(refused(&|p| p.dry_allowed_length = 0), "dry_allowed_length");
    assert_eq!(refused(&|p| p.xtc_probability = 1.01), "xtc_probability");
    assert_eq!(refused(&|p| p.mirostat_tau = 0.0), "mirostat_tau");
    assert_eq!(refused(&|p| p.presence_penalty = f32::NAN), "presence_penalty");
    assert_eq!(refused(&|p| p.frequency_penalty = f32::NEG_INFINITY), "frequency_penalty");
    assert_eq!(refused(&|p| _ = p.logit_bias.insert(0, f32::NAN)), "logit_bias");
    assert_eq!(refused(&|p| _ = p.logit_bias.insert(0, f32::INFINITY)), "logit_bias");
    assert!(SamplingParams::default().validate().is_ok() && SamplingParams::greedy().validate().is_ok());
}

/// Hash of draws before the order could be given: the default order and its seeds keep their
/// results.
#[test]
fn the_default_order_keeps_its_draws() {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for case in 0..96u64 {
        let uniform = |index: u64| uniform(case + 1000, index) as f32;
        let pick = |index: u64, off: f32, on: f32| if uniform(index) < 0.5 { off } else { on };
        let params = SamplingParams {
            temperature: pick(0, 0.8, 1.7),
            top_k: if uniform(1) < 0.5 { 0 } else { 17 },
            top_p: pick(2, 1.0, 0.9),
            min_p: pick(3, 0.0, 0.03),
            typical_p: pick(4, 1.0, 0.85),
            repeat_penalty: pick(5, 1.0, 1.2),
            repeat_last_n: 9,
            presence_penalty: pick(6, 0.0, 0.25),
            frequency_penalty: pick(7, 0.0, 0.5),
            logit_bias: if case % 3 == 0 { [(4, 1.5), (5, f32::NEG_INFINITY)].into() } else { [].into() },
            seed: Some(case),
            ..SamplingParams::greedy()
        };
        let mut sampler = sampler(&params, 211);
        for position in 0..40 {
            let logits: Vec<f32> =
                (0..211).map(|id| 9.0 * uniform(1000 * (position as u64 + 1) + id) - 4.5).collect();
            let token = sampler.sample(&logits, position).expect("finite logits");
            sampler.accept(token);
            hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    assert_eq!(hash, 0x29A0_782B_145E_66BB, "{hash:#x}");
}
