//! Every step alone, and any order of steps, against the reference.

use super::*;

/// Tokens with their probabilities, by id.
fn distribution(params: &SamplingParams, history: &[TokenId], logits: &[f32]) -> Vec<(TokenId, f64)> {
    let mut sampler = sampler(params, logits.len());
    for &token in history {
        sampler.accept(token);
    }
    sampler.adjust(logits);
    let total = sampler.distribution(0, None);
    let mut tokens: Vec<_> = sampler.candidates.iter().map(|c| (c.id, c.weight / total)).collect();
    tokens.sort_by_key(|t| t.0);
    tokens
}

/// Compares sampler and reference.
fn check(
    params: &SamplingParams,
    history: &[TokenId],
    logits: &[f32],
) -> std::result::Result<(), TestCaseError> {
    let history: Vec<_> = history.iter().map(|token| token % logits.len() as TokenId).collect();
    let history = history.as_slice();
    let seed = params.seed.expect("a seed");
    let is_excluding = params.xtc_probability > 0.0
        && params.xtc_threshold <= 0.5
        && rng::uniform_for_xtc(seed, 0) < f64::from(params.xtc_probability);
    let Some(expected) = (Reference { params, history, is_excluding }).distribution(logits) else {
        return Ok(());
    };
    let found = distribution(params, history, logits);
    let ids = |tokens: &[(TokenId, f64)]| tokens.iter().map(|t| t.0).collect::<Vec<_>>();
    prop_assert_eq!(ids(&found), ids(&expected));
    for (found, expected) in found.iter().zip(&expected) {
        prop_assert!((found.1 - expected.1).abs() < 2e-5, "{found:?} for {expected:?}");
    }
    Ok(())
}

/// Parameters of which every step changes something; f32 holds their penalties exactly.
fn all_steps() -> impl Strategy<Value = SamplingParams> {
    let filters = (0.3f32..2.5, 1usize..60, 0.3f32..1.0, 0.3f32..1.0, 0.0f32..0.3);
    let others = (0.0f32..1.0, 0.02f32..0.4, 0.3f32..2.0, 0.0f32..1.5, 0.3f32..2.0, any::<u64>());
    (filters, others).prop_map(|((sigma, k, typical, top, min), others)| {
        let (xtc, threshold, temperature, range, exponent, seed) = others;
        SamplingParams {
            top_n_sigma: sigma,
            top_k: k,
            typical_p: typical,
            top_p: top,
            min_p: min,
            xtc_probability: xtc,
            xtc_threshold: threshold,
            temperature,
            dynatemp_range: range,
            dynatemp_exponent: exponent,
            repeat_penalty: 2.0,
            repeat_last_n: 8,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            dry_multiplier: 0.5,
            dry_base: 2.0,
            seed: Some(seed),
            ..SamplingParams::greedy()
        }
    })
}

fn history() -> impl Strategy<Value = Vec<TokenId>> {
    prop::collection::vec(0u32..4, 0..20)
}

fn orders() -> impl Strategy<Value = SamplerOrder> {
    let steps = prop::sample::subsequence(SamplerStep::ALL.to_vec(), 0..=9).prop_shuffle();
    steps.prop_map(|steps| SamplerOrder::new(steps).expect("different steps"))
}

proptest! {
    #[test]
    fn each_step_alone_equals_the_reference(params in all_steps(), history in history(), logits in logits()) {
        for step in SamplerStep::ALL {
            let samplers = SamplerOrder::new([step]).expect("one step");
            check(&SamplingParams { samplers, ..params.clone() }, &history, &logits)?;
        }
    }

    #[test]
    fn any_order_equals_the_reference(
        params in all_steps(), samplers in orders(), history in history(), logits in logits(),
    ) {
        check(&SamplingParams { samplers, ..params }, &history, &logits)?;
    }

    #[test]
    fn any_order_gives_a_possible_token_or_an_error(
        params in all_steps(), samplers in orders(), bits in prop::collection::vec(any::<u32>(), 1..40),
        mirostat: bool,
    ) {
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let params = SamplingParams { samplers, mirostat, ..params };
        let mut sampler = sampler(&params, logits.len());
        for position in 0..8 {
            match sampler.sample(&logits, position) {
                Ok(token) => {
                    prop_assert!(logits[token as usize] > f32::NEG_INFINITY);
                    sampler.accept(token);
                }
                Err(Error::NoCandidate) => break,
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}

#[test]
fn filters_after_the_temperature_see_its_probabilities() {
    let logits = [2.0f32, 1.0, 0.0];
    let kept = |order: &str| {
        let samplers = order.parse().expect("known names");
        kept(&SamplingParams { top_p: 0.65, temperature: 10.0, samplers, ..plain() }, &logits)
    };
    // 0.67, 0.24, 0.09 at temperature 1; 0.37, 0.33, 0.30 at temperature 10.
    assert_eq!(kept("top_p;temperature"), [0]);
    assert_eq!(kept("temperature;top_p"), [0, 1]);
    let kept = |order: &str| {
        let samplers = order.parse().expect("known names");
        self::kept(&SamplingParams { min_p: 0.5, temperature: 10.0, samplers, ..plain() }, &logits)
    };
    assert_eq!(kept("min_p;temperature"), [0]);
    assert_eq!(kept("temperature;min_p"), [0, 1, 2]);
}

#[test]
fn absent_steps_do_not_run() {
    let logits = [2.0f32, 1.0, 0.0, 0.5];
    let params = SamplingParams { top_k: 1, repeat_penalty: 4.0, temperature: 0.1, ..plain() };
    let free = SamplingParams { samplers: "".parse().expect("no names"), ..params.clone() };
    assert_eq!(distribution(&free, &[0, 1], &logits), distribution(&plain(), &[], &logits));
    assert_eq!(kept(&params, &logits), [0]);
    // Temperature 0 is greedy in every order, and the penalties of the order hold.
    let greedy = SamplingParams { temperature: 0.0, ..free };
    assert_eq!(sampler(&greedy, 4).sample(&logits, 0).ok(), Some(0));
    let order = "top_k;penalties".parse().expect("known names");
    let mut late = sampler(&SamplingParams { samplers: order, ..greedy }, 4);
    late.accept(0);
    assert_eq!(late.sample(&logits, 0).ok(), Some(1));
}

#[test]
fn top_n_sigma_keeps_what_is_near_the_largest_logit() {
    // Mean 2, standard deviation 2.
    let logits = [0.0f32, 0.0, 4.0, 4.0, f32::NEG_INFINITY, f32::NAN];
    let kept = |n| kept(&SamplingParams { top_n_sigma: n, ..plain() }, &logits);
    assert_eq!(kept(1.9), [2, 3]);
    assert_eq!(kept(2.0), [0, 1, 2, 3]);
    assert_eq!(kept(1e-30), [2, 3]);
    assert_eq!(kept(f32::MAX), [0, 1, 2, 3]);
}

#[test]
fn xtc_keeps_the_least_likely_of_the_top() {
    let logits = [0.5f32, 0.25, 0.15, 0.1].map(f32::ln);
    let kept = |probability, threshold| {
        kept(&SamplingParams { xtc_probability: probability, xtc_threshold: threshold, ..plain() }, &logits)
    };
    assert_eq!(kept(1.0, 0.2), [1, 2, 3]);
    assert_eq!(kept(1.0, 0.12), [2, 3]);
    assert_eq!(kept(1.0, 0.0), [3]);
    // One token above the threshold, or none, or switched off.
    assert_eq!(kept(1.0, 0.4), [0, 1, 2, 3]);
    assert_eq!(kept(1.0, 0.6), [0, 1, 2, 3]);
    assert_eq!(kept(0.0, 0.1), [0, 1, 2, 3]);
}

#[test]
fn dynamic_temperature_follows_the_entropy() {
    let temperature = |logits: &[f32], range, exponent| {
        let params = SamplingParams { dynatemp_range: range, dynatemp_exponent: exponent, ..plain() };
        let mut sampler = sampler(&params, logits.len());
        sampler.adjust(logits);
        sampler.filter(0, None)
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} for {b}");
    near(temperature(&[1.0; 8], 0.5, 3.0), 1.5);
    near(temperature(&[50.0, 0.0, 0.0], 0.5, 1.0), 0.5);
    near(temperature(&[50.0, 0.0, 0.0], 0.5, 0.0), 1.5);
    // Probabilities 0.9 and 0.1 have 0.46900 of the largest entropy.
    near(temperature(&[9.0f32.ln(), 0.0], 1.0, 1.0), 0.937_991);
    near(temperature(&[9.0f32.ln(), 0.0], 1.0, 2.0), 2.0 * 0.468_995_6 * 0.468_995_6);
    // A range beyond the temperature reaches 0, the limit of greedy sampling.
    let cold = SamplingParams { dynatemp_range: 5.0, ..plain() };
    assert!((0..50).all(|position| sampler(&cold, 3).sample(&[900.0, 0.0, 1.0], position).ok() == Some(0)));
}
