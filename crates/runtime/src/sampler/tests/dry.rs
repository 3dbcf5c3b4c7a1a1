//! The DRY penalty against a quadratic search, and its formula.

use super::*;

/// Bytes of the tokens of a small vocabulary.
const BYTES: [&str; 9] = ["a", "b", "ab", "\n", "a\n", "bb", "", "<e", "nd>"];

fn bytes(id: TokenId) -> Vec<u8> {
    BYTES[id as usize].as_bytes().to_vec()
}

/// Naive penalty of a token; `breakers` over the tokens' text.
pub(super) fn penalty(
    params: &SamplingParams,
    history: &[TokenId],
    breakers: &[&str],
    token: TokenId,
) -> f64 {
    let within = |token: TokenId| {
        breakers.iter().any(|&breaker| BYTES.get(token as usize).is_some_and(|text| text.contains(breaker)))
    };
    if within(token) || params.dry_multiplier == 0.0 {
        return 0.0;
    }
    // Tokens in which a breaker ends, by the text of the whole sequence.
    let mut text = String::new();
    let is_boundary = |token: &TokenId| {
        let before = text.len();
        text.push_str(BYTES.get(*token as usize).unwrap_or(&""));
        (before + 1..=text.len()).any(|end| breakers.iter().any(|breaker| text[..end].ends_with(breaker)))
    };
    let boundaries: Vec<bool> = history.iter().map(is_boundary).collect();
    let window = history.len().saturating_sub(params.dry_penalty_last_n);
    let matched = |end: usize| {
        let reaches = |&len: &usize| {
            let (here, last) = (end - len, history.len() - 1 - len);
            here >= window && history[here] == history[last] && !boundaries[last]
        };
        (0..=end).take_while(reaches).count()
    };
    let follows = |&end: &usize| history[end + 1] == token;
    let longest = (window..history.len().saturating_sub(1)).filter(follows).map(matched).max().unwrap_or(0);
    if longest < params.dry_allowed_length {
        return 0.0;
    }
    let excess = (longest - params.dry_allowed_length) as f64;
    f64::from(params.dry_multiplier) * f64::from(params.dry_base).powf(excess)
}

fn params(breakers: &[&str]) -> SamplingParams {
    let breakers = DryBreakers::resolve(BYTES.len(), bytes, breakers.iter().copied());
    SamplingParams {
        dry_multiplier: 0.5,
        dry_base: 2.0,
        dry_breakers: breakers.expect("valid breakers"),
        ..SamplingParams::greedy()
    }
}

proptest! {
    #[test]
    fn penalties_equal_a_quadratic_search(
        history in prop::collection::vec(prop_oneof![3 => 0u32..2, 1 => 0u32..9], 0..60),
        breakers in prop::sample::subsequence(vec!["\n", "ab", "ba", "<end>", "bbb"], 0..4),
        last_n in prop_oneof![Just(usize::MAX), 0usize..20], allowed in 1usize..4,
    ) {
        let params =
            SamplingParams { dry_penalty_last_n: last_n, dry_allowed_length: allowed, ..params(&breakers) };
        let found = adjusted(&params, &history, &[0.0; 9]);
        for (id, &logit) in (0..).zip(&found) {
            let expected = penalty(&params, &history, &breakers, id);
            prop_assert!((f64::from(-logit) / expected.max(1e-30) - 1.0).abs() < 1e-6 || f64::from(-logit) == expected,
                "token {id}: {} for {expected}", -logit);
        }
    }
}

#[test]
fn penalty_grows_with_the_repetition() {
    // "0 1 2 3" occurred; after "0 1 2" the token 3 would repeat it.
    let after = |history: &[TokenId]| adjusted(&params(&[]), history, &[0.0; 5]);
    assert_eq!(after(&[0, 1, 2, 3, 4, 2]), [0.0; 5]);
    assert_eq!(after(&[0, 1, 2, 3, 4, 1, 2]), [0.0, 0.0, 0.0, -0.5, 0.0]);
    assert_eq!(after(&[0, 1, 2, 3, 4, 0, 1, 2]), [0.0, 0.0, 0.0, -1.0, 0.0]);
    // The longest match counts, and a sequence may overlap its repetition.
    assert_eq!(after(&[1, 2, 4, 0, 1, 2, 3, 0, 1, 2]), [0.0, 0.0, 0.0, -1.0, -0.5]);
    assert_eq!(after(&[0, 0, 0, 0, 0]), [-2.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn breakers_end_a_repetition() {
    // Tokens 0 "a", 1 "b", 3 "\n", 4 "a\n", 7 "<e", 8 "nd>".
    let after = |breakers: &[&str], history: &[TokenId]| adjusted(&params(breakers), history, &[0.0; 9])[1];
    assert_eq!(after(&[], &[5, 3, 0, 1, 2, 5, 3, 0]), -1.0);
    assert_eq!(after(&["\n"], &[5, 3, 0, 1, 2, 5, 3, 0]), 0.0);
    assert_eq!(after(&["\n"], &[3, 5, 0, 1, 2, 3, 5, 0]), -0.5);
    // A breaker of two tokens, and one of the two alone.
    assert_eq!(after(&["<end>"], &[7, 8, 0, 1, 2, 7, 8, 0]), 0.0);
    assert_eq!(after(&["<end>"], &[5, 8, 0, 1, 2, 5, 8, 0]), -1.0);
    // A token with a breaker in it is never penalized.
    let history = [0, 2, 4, 5, 0, 2];
    assert_eq!(adjusted(&params(&[]), &history, &[0.0; 9])[4], -0.5);
    assert_eq!(adjusted(&params(&["\n"]), &history, &[0.0; 9])[4], 0.0);
}

#[test]
fn a_long_repetition_forbids_no_token() {
    let history = vec![1; 5000];
    let found = adjusted(&params(&[]), &history, &[9.0; 3]);
    assert_eq!(found, [9.0, -f32::MAX, 9.0]);
    let mut sampler = sampler(&SamplingParams { temperature: 1.0, ..params(&[]) }, 1);
    (0..5000).for_each(|_| sampler.accept(0));
    assert_eq!(sampler.sample(&[3.0], 5000).ok(), Some(0));
}

#[test]
fn breakers_out_of_range_are_refused() {
    let refused = |texts: Vec<String>| {
        DryBreakers::resolve(BYTES.len(), bytes, texts).err().map(|error| error.to_string())
    };
    assert_eq!(
        refused(vec!["a".into(), String::new()]).as_deref(),
        Some("DRY sequence breaker 2 has 0 bytes, expected at most 64 breakers of 1 to 128 bytes")
    );
    assert!(refused(vec!["x".repeat(129)]).is_some_and(|text| text.contains("129 bytes")));
    assert!(refused(vec!["x".into(); 65]).is_some_and(|text| text.contains("breaker 65")));
    assert_eq!(refused(vec!["x".repeat(128); 64]), None);
}
