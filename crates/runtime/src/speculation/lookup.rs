//! Prompt look-up: what followed the last tokens when they occurred before.
//!
//! # Source
//! A. Saxena, "Prompt Lookup Decoding", 2023; here the longest match wins instead of a fixed n.

use ruvllm_text::TokenId;

/// Shortest match in tokens.
pub(super) const SHORTEST: usize = 2;

/// Matches longer than this one count as equal; the latest of them wins.
const LONGEST: usize = 16;

/// Last tokens that are searched.
const SEARCHED: usize = 1 << 15;

/// The longest earlier occurrence of the last tokens: its number of equal tokens, up to 16, and
/// the index of the token that followed it. Of equal ones the latest. `None` below 2 equal tokens.
///
/// Takes time linear in the tokens, of which the last 32768 are searched: one comparison each, and
/// up to 16 where the last token is equal.
pub(super) fn find(tokens: &[TokenId]) -> Option<(usize, usize)> {
    let (&last, before) = tokens.split_last()?;
    let first = before.len().saturating_sub(SEARCHED);
    let mut best = (SHORTEST - 1, 0);
    for at in (first..before.len()).rev() {
        if tokens[at] != last {
            continue;
        }
        let equal = |i: &usize| tokens[at - i] == tokens[tokens.len() - 1 - i];
        let length = 1 + (1..LONGEST.min(at + 1)).take_while(equal).count();
        if length > best.0 {
            best = (length, at + 1);
            if length == LONGEST {
                break;
            }
        }
    }
    (best.0 >= SHORTEST).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_wins_and_of_equal_ones_the_latest() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[1]), None);
        assert_eq!(find(&[1, 1]), None, "one equal token is chance");
        assert_eq!(find(&[1, 2, 3, 9, 2, 3]), Some((2, 3)));
        assert_eq!(find(&[1, 2, 3, 9, 2, 3, 8, 2, 3]), Some((2, 6)), "the latest");
        assert_eq!(find(&[1, 2, 3, 9, 2, 3, 8, 1, 2, 3]), Some((3, 3)), "the longest");
        assert_eq!(find(&[5; 40]), Some((LONGEST, 39)));
    }
}
