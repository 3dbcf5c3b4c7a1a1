//! Block borders at which prompts are stored with the state behind them (ADR-0120).

/// Borders of a prompt of `tokens` tokens behind `start`, in their order: behind what all tenants
/// share, where other prompts part from it (`known` of its tokens are stored), and at its end,
/// whose last token is computed in any case.
pub(crate) fn borders(
    tokens: usize,
    [shared, known]: [usize; 2],
    start: usize,
    block_tokens: usize,
) -> Vec<usize> {
    let most = tokens.saturating_sub(1);
    let borders = [shared, known, most].map(|end| end.min(most) / block_tokens * block_tokens);
    let mut borders: Vec<usize> = borders.into_iter().filter(|&border| border > start).collect();
    borders.sort_unstable();
    borders.dedup();
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_stored_where_others_may_begin() {
        assert_eq!(borders(100, [40, 70], 0, 32), [32, 64, 96]);
        assert_eq!(borders(97, [40, 70], 0, 32), [32, 64, 96]);
        // The last token is left to compute.
        assert_eq!(borders(96, [96, 90], 0, 32), [64]);
        assert_eq!(borders(100, [40, 70], 32, 32), [64, 96]);
        assert_eq!(borders(33, [0, 0], 0, 32), [32]);
        assert!(borders(32, [0, 0], 0, 32).is_empty() && borders(0, [5, 5], 0, 32).is_empty());
    }
}
