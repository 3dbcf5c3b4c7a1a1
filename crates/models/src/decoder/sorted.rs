//! Rows of a mixture, sorted by expert: buffers of a step.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::matmul::{Activations, RowGroups};

use super::router::Choice;
use crate::family::Experts;

/// Buffers of the experts of a layer; those of other models stay empty.
#[derive(Default)]
pub(crate) struct ExpertBuffers {
    /// `[tokens, experts]`
    pub(super) logits: Vec<f32>,
    /// `[tokens, experts]`
    pub(super) selection: Vec<f32>,
    /// Experts of each token, `[tokens, used]`.
    pub(super) choices: Vec<Choice>,
    /// Rows of each expert, `[experts]`; while rows are placed, the next place of each.
    pub(super) places: Vec<usize>,
    /// Token and expert of each sorted row, `[tokens * used]`.
    pub(super) sorted: Vec<SortedRow>,
    pub(super) groups: RowGroups,
    /// Inputs of the sorted rows, `[tokens * used, model_dim]`.
    pub(super) input: Activations,
    /// `activation(gate) * up`, `[tokens * used, ffn_dim]`.
    pub(super) gated: Activations,
    /// `[tokens * used, ffn_dim]`
    pub(super) up: Vec<f32>,
    /// `[tokens * used, model_dim]`
    pub(super) down: Vec<f32>,
    /// Outputs of the experts beside a network, `[tokens, model_dim]`; empty in models without.
    pub(super) beside: Vec<f32>,
}

/// Origin of a row among those sorted by expert.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SortedRow {
    pub(super) token: u32,
    pub(super) expert: u32,
    /// Factor of the input; another than 1 where weights multiply inputs.
    pub(super) input_scale: f32,
}

impl ExpertBuffers {
    /// Sorts the rows of the tokens' experts by expert, those of one by token.
    pub(super) fn sort(&mut self, kernels: &Kernels, experts: &Experts, n_tokens: usize) {
        let Self { choices, places, sorted, groups, .. } = self;
        let choices = &mut choices[..n_tokens * experts.used];
        places.clear();
        places.resize(experts.count, 0);
        for choice in &*choices {
            places[choice.expert as usize] += 1;
        }
        groups.fill(kernels, places.iter().copied());
        let mut next = 0;
        for place in &mut *places {
            next += std::mem::replace(place, next);
        }
        for (token, choices) in choices.chunks_exact_mut(experts.used).enumerate() {
            for choice in choices {
                let place = &mut places[choice.expert as usize];
                choice.row = *place as u32;
                let input_scale =
                    if experts.weighs_inputs { std::mem::replace(&mut choice.weight, 1.0) } else { 1.0 };
                sorted[*place] = SortedRow { token: token as u32, expert: choice.expert, input_scale };
                *place += 1;
            }
        }
    }
}
