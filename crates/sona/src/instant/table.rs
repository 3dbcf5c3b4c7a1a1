//! Rows of the output projection, dequantized once for many updates.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::SelectedRows;

use super::head::OutputHead;

/// Bytes of rows that are kept from one update to the next.
const KEPT_BYTES: usize = 8 << 20;

/// Rows of the tokens that updates need: most are candidates at many positions.
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

    /// Drops all rows if they are more than are kept. Rows taken later have other places then.
    pub(super) fn trim(&mut self) {
        if self.tokens.len() * self.model_dim * size_of::<f32>() > KEPT_BYTES {
            self.tokens.clear();
        }
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
