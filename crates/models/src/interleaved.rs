//! Rows of projections that are interleaved by head.

use std::ops::Range;

/// Rows of each part of a tensor that has, for each of `heads`, `rows` rows of the parts one behind
/// the other.
pub(crate) fn parts<const N: usize>(heads: usize, rows: [usize; N]) -> [Vec<Range<usize>>; N] {
    let stride: usize = rows.iter().sum();
    let mut before = 0;
    rows.map(|rows| {
        let first = before;
        before += rows;
        (0..heads).map(|head| head * stride + first..head * stride + first + rows).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_head_has_rows_of_every_part() {
        assert_eq!(parts(2, [1, 3]), [vec![0..1, 4..5], vec![1..4, 5..8]]);
        assert_eq!(parts(0, [2]), [Vec::<Range<usize>>::new()]);
    }
}
