//! Mirostat: its threshold against a naive controller, its target, its state.

use super::reference::sorted;
use super::*;

/// Zipf-like logits of 400 tokens that differ by position.
fn row(position: usize) -> Vec<f32> {
    (0..400).map(|id| -1.2 * f32::ln(1.0 + ((id * 7 + position * 31) % 400) as f32)).collect()
}

fn params(tau: f32) -> SamplingParams {
    SamplingParams { mirostat: true, mirostat_tau: tau, mirostat_eta: 0.2, top_k: 3, ..plain() }
}

fn mu(sampler: &Sampler) -> f64 {
    sampler.state().mirostat_mu.expect("mirostat is on")
}

proptest! {
    #[test]
    fn threshold_equals_the_reference(
        tau in 0.5f32..7.0, eta in 0.0f32..1.0, temperature in 0.3f32..2.0, seed: u64,
    ) {
        let params = SamplingParams { mirostat_eta: eta, temperature, seed: Some(seed), ..params(tau) };
        let (tau, eta) = (f64::from(tau), f64::from(eta));
        let mut sampler = sampler(&params, 400);
        let mut expected = 2.0 * tau;
        for position in 0..30 {
            let logits = row(position);
            let token = sampler.sample(&logits, position).expect("finite logits");
            let scaled: Vec<_> =
                logits.iter().zip(0..).map(|(&x, id)| (id, f64::from(x) / f64::from(temperature))).collect();
            let tokens = sorted(&scaled);
            if tokens.iter().any(|t| (-t.1.log2() - expected).abs() < 1e-9) {
                return Ok(());
            }
            let count = tokens.iter().take_while(|t| -t.1.log2() <= expected).count().max(1);
            let total: f64 = tokens[..count].iter().map(|t| t.1).sum();
            let chosen = tokens[..count].iter().find(|t| t.0 == token);
            prop_assert!(chosen.is_some(), "token {token} is above the threshold {expected}");
            sampler.accept(token);
            expected -= eta * (-(chosen.map_or(0.0, |t| t.1) / total).log2() - tau);
            prop_assert!((mu(&sampler) - expected).abs() < 1e-9, "{} for {expected}", mu(&sampler));
        }
    }
}

#[test]
fn surprise_of_the_output_meets_the_target() {
    for tau in [2.0f32, 3.5, 5.0] {
        let mut sampler = sampler(&params(tau), 400);
        let mut surprise = 0.0;
        for position in 0..2000 {
            let before = mu(&sampler);
            let token = sampler.sample(&row(position), position).expect("finite logits");
            sampler.accept(token);
            surprise += f64::from(tau) + (before - mu(&sampler)) / f64::from(0.2f32);
        }
        let mean = surprise / 2000.0;
        assert!((mean - f64::from(tau)).abs() < 0.05, "mean surprise {mean} for {tau}");
    }
}

#[test]
fn only_sampled_tokens_move_the_threshold() {
    let mut sampler = sampler(&params(3.0), 400);
    (0..50).for_each(|token| sampler.accept(token));
    assert_eq!(mu(&sampler), 6.0);
    let token = sampler.sample(&row(0), 50).expect("finite logits");
    sampler.accept((token + 1) % 400);
    assert_eq!(mu(&sampler), 6.0, "another token than the sampled one");
    // A draw that the sequence does not take leaves nothing behind.
    let token = sampler.sample(&row(1), 51).expect("finite logits");
    assert_eq!(sampler.sample(&row(1), 51).ok(), Some(token));
    sampler.accept(token);
    assert_ne!(mu(&sampler), 6.0);
}

#[test]
fn a_restored_sampler_continues_with_the_same_tokens() {
    let params = SamplingParams {
        repeat_penalty: 1.3,
        repeat_last_n: 16,
        dry_multiplier: 0.8,
        dry_penalty_last_n: 24,
        ..params(4.0)
    };
    let mut tokens: Vec<TokenId> = vec![5, 6, 7, 5, 6];
    let mut first = sampler(&params, 400);
    tokens.iter().for_each(|&token| first.accept(token));
    let advance = |sampler: &mut Sampler, tokens: &mut Vec<TokenId>, count| {
        for _ in 0..count {
            let token = sampler.sample(&row(tokens.len() / 3), tokens.len()).expect("finite logits");
            sampler.accept(token);
            tokens.push(token);
        }
    };
    advance(&mut first, &mut tokens, 60);
    let (state, shared) = (first.state(), tokens.clone());
    advance(&mut first, &mut tokens, 40);
    // Another sampler, and the same one after tokens that were dropped.
    let mut second = sampler(&params, 400);
    for other in [&mut second, &mut first] {
        let mut again = shared.clone();
        other.restore(&again, state).expect("a finite state");
        advance(other, &mut again, 40);
        assert_eq!(again, tokens);
    }
}

#[test]
fn a_state_without_a_number_is_refused() {
    let mut sampler = sampler(&params(3.0), 4);
    for bad in [f64::NAN, f64::INFINITY] {
        let refused = sampler.restore(&[], SamplerState { mirostat_mu: Some(bad) });
        assert!(matches!(refused, Err(Error::SamplingParameter { name: "mirostat_mu", .. })));
    }
    sampler.restore(&[1], SamplerState { mirostat_mu: None }).expect("the state at the start");
    assert_eq!(mu(&sampler), 6.0);
    assert_eq!(self::sampler(&plain(), 4).state(), SamplerState { mirostat_mu: None });
}
