//! A matrix of a classifier, whole or as a product of two factors.

use std::ops::Range;

use crate::routing::vector::dot_f64;

/// Place of a matrix of `rows` x `cols` in the parameters. With a rank, the factor of `rows` x
/// `rank` comes first and that of `rank` x `cols` behind it.
#[derive(Debug, Clone)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    rank: Option<usize>,
    start: usize,
}

impl Matrix {
    pub(super) fn new(rows: usize, cols: usize, rank: Option<usize>, start: usize) -> Self {
        Self { rows, cols, rank, start }
    }

    /// Behind its last parameter.
    pub(super) fn end(&self) -> usize {
        let count = self.rank.map_or(self.rows * self.cols, |rank| rank * (self.rows + self.cols));
        self.start + count
    }

    /// Dense matrices whose product it is, each with its number of columns.
    pub(super) fn factors(&self) -> Vec<(Range<usize>, usize)> {
        match self.rank {
            None => vec![(self.start..self.end(), self.cols)],
            Some(rank) => {
                let middle = self.start + self.rows * rank;
                vec![(self.start..middle, rank), (middle..self.end(), self.cols)]
            }
        }
    }

    /// Product with `x`; `middle` keeps that of the second factor alone.
    pub(super) fn product(&self, parameters: &[f64], x: &[f64], middle: &mut Vec<f64>) -> Vec<f64> {
        let multiply = |(range, cols): &(Range<usize>, usize), x: &[f64]| -> Vec<f64> {
            parameters[range.clone()].chunks_exact(*cols).map(|row| dot_f64(row, x)).collect()
        };
        match &self.factors()[..] {
            [first, second] => {
                *middle = multiply(second, x);
                multiply(first, middle)
            }
            factors => factors.first().map(|whole| multiply(whole, x)).unwrap_or_default(),
        }
    }

    /// Adds the gradient of the parameters for the gradient `dy` of the product; returns that of
    /// `x`.
    pub(super) fn gradient(
        &self,
        parameters: &[f64],
        gradient: &mut [f64],
        (x, middle): (&[f64], &[f64]),
        dy: &[f64],
    ) -> Vec<f64> {
        let mut backward = |(range, cols): &(Range<usize>, usize), x: &[f64], dy: &[f64]| {
            let mut dx = vec![0.0; *cols];
            let rows = parameters[range.clone()].chunks_exact(*cols);
            for ((row, sums), &dy) in rows.zip(gradient[range.clone()].chunks_exact_mut(*cols)).zip(dy) {
                dx.iter_mut().zip(row).for_each(|(dx, w)| *dx += dy * w);
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += dy * x);
            }
            dx
        };
        match &self.factors()[..] {
            [first, second] => {
                let dmiddle = backward(first, middle, dy);
                backward(second, x, &dmiddle)
            }
            factors => factors.first().map(|whole| backward(whole, x, dy)).unwrap_or_default(),
        }
    }
}
