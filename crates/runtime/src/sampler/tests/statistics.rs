//! Chi-square tests of the draws against the exact distributions of the reference.

use super::reference::sorted;
use super::*;

const LOGITS: [f32; 12] = [0.3, 2.0, -1.0, 1.0, 0.0, 1.5, -0.5, 0.7, -2.0, 0.1, 1.1, -0.2];

/// Point of the chi-square distribution that one of 10,000 values exceeds, by the approximation of
/// Wilson and Hilferty.
fn limit(degrees: usize) -> f64 {
    let (k, z) = (degrees as f64, 3.719);
    k * (1.0 - 2.0 / (9.0 * k) + z * (2.0 / (9.0 * k)).sqrt()).powi(3)
}

/// Draws 40,000 tokens at different positions, each by a sampler of the same history, and compares
/// their counts with `expected`.
#[track_caller]
fn check(params: &SamplingParams, history: &[TokenId], expected: &[(TokenId, f64)]) {
    let mut drawing = sampler(params, LOGITS.len());
    history.iter().for_each(|&token| drawing.accept(token));
    let draws = 40_000;
    let mut counts = [0u32; LOGITS.len()];
    for position in 0..draws {
        counts[drawing.sample(&LOGITS, position).expect("finite logits") as usize] += 1;
    }
    let term = |&(id, p): &(TokenId, f64)| {
        let expected = p * draws as f64;
        assert!(expected > 20.0, "too few draws for the approximation: {expected} of token {id}");
        (f64::from(counts[id as usize]) - expected).powi(2) / expected
    };
    let chi_square: f64 = expected.iter().map(term).sum();
    let most = limit(expected.len() - 1);
    assert!(chi_square < most, "chi-square {chi_square} above {most}, {counts:?} for {expected:?}");
    let impossible = (0..).zip(counts).filter(|&(id, _)| expected.iter().all(|t| t.0 != id));
    assert_eq!(impossible.map(|t| t.1).sum::<u32>(), 0, "{counts:?} for {expected:?}");
}

fn exact(params: &SamplingParams, history: &[TokenId], is_excluding: bool) -> Vec<(TokenId, f64)> {
    Reference { params, history, is_excluding }.distribution(&LOGITS).expect("no rounding decides")
}

#[track_caller]
fn check_reference(params: &SamplingParams, history: &[TokenId]) {
    check(params, history, &exact(params, history, false));
}

#[test]
fn draws_follow_the_probabilities() {
    for temperature in [0.7f32, 1.0, 2.0] {
        check_reference(&SamplingParams { temperature, ..plain() }, &[]);
    }
}

#[test]
fn draws_with_top_n_sigma_follow_the_probabilities() {
    for top_n_sigma in [0.8, 1.5, 2.2] {
        check_reference(&SamplingParams { top_n_sigma, temperature: 1.5, ..plain() }, &[]);
    }
}

#[test]
fn draws_with_dry_follow_the_probabilities() {
    let params = SamplingParams { dry_multiplier: 0.4, dry_base: 1.5, ..plain() };
    check_reference(&params, &[1, 3, 5, 1, 7, 1, 3, 5, 11, 3, 5, 1, 3, 5]);
}

#[test]
fn draws_with_a_dynamic_temperature_follow_the_probabilities() {
    for exponent in [0.5, 1.0, 3.0] {
        let params = SamplingParams { dynatemp_range: 0.6, dynatemp_exponent: exponent, ..plain() };
        check_reference(&params, &[]);
    }
}

#[test]
fn draws_in_another_order_follow_the_probabilities() {
    let order = "temperature;xtc;dry;top_p;penalties;top_k".parse().expect("known names");
    let params = SamplingParams {
        samplers: order,
        temperature: 1.6,
        top_p: 0.93,
        top_k: 7,
        presence_penalty: 0.5,
        dry_multiplier: 0.5,
        dry_base: 2.0,
        ..plain()
    };
    check_reference(&params, &[1, 3, 5, 1, 3]);
}

#[test]
fn draws_with_xtc_follow_the_mixture() {
    for (probability, threshold) in [(0.5f32, 0.1), (0.2, 0.15), (1.0, 0.05)] {
        let params = SamplingParams { xtc_probability: probability, xtc_threshold: threshold, ..plain() };
        let share = |excluding: bool, id: TokenId| {
            let tokens = exact(&params, &[], excluding);
            tokens.iter().find(|t| t.0 == id).map_or(0.0, |t| t.1)
        };
        let p = f64::from(probability);
        let mixture =
            (0..LOGITS.len() as TokenId).map(|id| (id, p * share(true, id) + (1.0 - p) * share(false, id)));
        check(&params, &[], &mixture.filter(|t| t.1 > 0.0).collect::<Vec<_>>());
    }
}

/// XTC's choice and the draw at one position are independent: counts of both in quarters.
#[test]
fn the_numbers_of_xtc_and_of_the_draw_are_independent() {
    let mut counts = [0u32; 16];
    for position in 0..32_000 {
        let quarter = |u: f64| (u * 4.0) as usize;
        counts[4 * quarter(uniform(3, position)) + quarter(rng::uniform_for_xtc(3, position))] += 1;
    }
    let chi_square: f64 = counts.iter().map(|&n| (f64::from(n) - 2000.0).powi(2) / 2000.0).sum();
    assert!(chi_square < limit(15), "{chi_square} {counts:?}");
}

#[test]
fn draws_with_mirostat_follow_the_truncated_distribution() {
    // Without `accept` the threshold stays at twice the target.
    for (tau, kept) in [(0.5f32, 0), (1.3, 2), (1.9, 5), (9.0, 12)] {
        let params = SamplingParams { mirostat: true, mirostat_tau: tau, ..plain() };
        let all: Vec<_> = LOGITS.iter().zip(0..).map(|(&x, id)| (id, f64::from(x))).collect();
        let mut tokens = sorted(&all);
        tokens.retain(|t| -t.1.log2() <= 2.0 * f64::from(tau));
        assert_eq!(tokens.len(), kept, "{tokens:?}");
        if tokens.is_empty() {
            tokens.push((1, 1.0));
        }
        let total: f64 = tokens.iter().map(|t| t.1).sum();
        tokens.iter_mut().for_each(|t| t.1 /= total);
        if tokens.len() > 1 {
            check(&params, &[], &tokens);
        } else {
            assert!((0..99).all(|position| sampler(&params, 12).sample(&LOGITS, position).ok() == Some(1)));
        }
    }
}
