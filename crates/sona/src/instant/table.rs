//! Rows of the output projection, dequantized once for an update.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::SelectedRows;

use super::head::OutputHead;

/// Rows of the tokens that an update needs: most are candidates at many of its positions.
#[derive(Debug, Clone)]
pub(super) struct RowTable {
    kernels: Kernels,
    model_dim: usize,
    /// Tokens with a row, in its order.
    tokens: Vec<u32>,
    /// Row of each token, `[vocab_size]`: valid where [`tokens`](Self::tokens) names the token.
    rows: Vec<u32>,
    /// `[tokens, model_dim]`
    values: Vec<f32>,
}

impl RowTable {
    pub(super) fn new(head: &dyn OutputHead) -> Self {
        let (kernels, model_dim) = (head.kernels(), head.model_dim());
        Self { kernels, model_dim, tokens: Vec::new(), rows: vec![0; head.vocab_size()], values: Vec::new() }
    }

    /// Drops all rows.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Row of a token below the vocabulary size, which is taken from the head if it is new.
    pub(super) fn row(&mut self, head: &dyn OutputHead, token: u32) -> u32 {
        let row = &mut self.rows[token as usize];
        if self.tokens.get(*row as usize) != Some(&token) {
            *row = self.tokens.len() as u32;
            self.tokens.push(token);
            let end = self.tokens.len() * self.model_dim;
            if self.values.len() < end {
                self.values.resize(end, 0.0);
            }
            head.row(token, &mut self.values[end - self.model_dim..end]);
        }
        *row
    }

    /// Rows for a product.
    pub(super) fn select<'a>(&'a self, rows: &'a [u32]) -> SelectedRows<'a> {
        SelectedRows::new(&self.values, self.model_dim, rows)
    }

    /// Kernels of the passes.
    pub(super) fn kernels(&self) -> Kernels {
        self.kernels
    }
}
