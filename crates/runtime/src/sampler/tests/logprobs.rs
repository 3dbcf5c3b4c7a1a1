//! Log-probabilities against a naive log-softmax.

use super::*;

proptest! {
    #[test]
    fn logprobs_equal_the_reference(
        logits in logits(), temperature in 0.0f32..2.0, token in 0u32..300, top_n in 0usize..30,
    ) {
        let token = token % logits.len() as u32;
        // Of the raw logits, whatever the sampler's steps are.
        let params = SamplingParams { temperature, top_k: 2, presence_penalty: 1.0, ..plain() };
        let mut sampler = sampler(&params, logits.len());
        sampler.accept(token);
        let found = sampler.logprobs(&logits, token, top_n).expect("finite logits");
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let mut all: Vec<(TokenId, f64)> =
            logits.iter().zip(0..).map(|(&x, id)| (id, f64::from(x) - total.ln())).collect();
        let near = |found: TokenLogprob, expected: (TokenId, f64)| {
            found.token == expected.0 && (found.logprob - expected.1).abs() < 1e-11
        };
        prop_assert!(near(found.token, all[token as usize]), "{found:?}");
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        prop_assert_eq!(found.top.len(), top_n.min(all.len()));
        prop_assert!(found.top.iter().zip(&all).all(|(&found, &expected)| near(found, expected)), "{found:?}");
    }
}

#[test]
fn impossible_tokens_have_no_probability() {
    let mut sampler = sampler(&plain(), 4);
    let found = sampler.logprobs(&[f32::NAN, 0.0, f32::NEG_INFINITY, 0.0], 2, 9).expect("two tokens");
    let half = -std::f64::consts::LN_2;
    assert_eq!(found.token, TokenLogprob { token: 2, logprob: f64::NEG_INFINITY });
    assert_eq!(found.top, [1, 3].map(|token| TokenLogprob { token, logprob: half }));
    let found = sampler.logprobs(&[f32::INFINITY, 9.0, f32::INFINITY, 0.0], 2, 1).expect("two tokens");
    assert_eq!(found.token.logprob, half);
    // An id outside of the row is impossible too.
    let found = sampler.logprobs(&[0.0; 4], 4, 0).expect("four tokens");
    assert_eq!((found.token.logprob, found.top.len()), (f64::NEG_INFINITY, 0));
    for logits in [[f32::NAN; 4], [f32::NEG_INFINITY; 4]] {
        assert!(matches!(sampler.logprobs(&logits, 0, 3), Err(Error::NoCandidate)));
    }
}
