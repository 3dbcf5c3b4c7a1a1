//! Sums of squared inputs of products, by place in the model.

use ruvllm_adapters::Site;
use ruvllm_kernels::matmul::Activations;

use crate::tensor_names::layer_of;

/// Sums of the squared inputs of every product of the forward passes of a workspace.
///
/// In f64 and in the order of the rows: the same for every cut of a text, thread count and
/// instruction set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputSquares {
    /// The logits, then [`SITES`] places per layer; the matrices of each, one but for experts.
    places: Vec<Vec<MatrixSquares>>,
    /// Layer of the prediction head whose passes are summed; 0 in passes of the model.
    head_layer: usize,
}

/// Sums of the inputs of one matrix, or of several that have the same.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct MatrixSquares {
    /// `[columns]`
    pub(super) sums: Vec<f64>,
    pub(super) rows: u64,
}

/// Products of the experts of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertProduct {
    /// Gate and up.
    Input,
    /// Down.
    Output,
}

/// Places of a layer with products of their own: four sites, two of experts, the output of a state
/// beside attention, and of a prediction head its first product and its logits.
const SITES: usize = 9;

/// Index of a site; `None` for one without a product.
fn place((layer, site): (usize, Site)) -> Option<usize> {
    let site = match site {
        Site::Logits => return Some(0),
        Site::AttentionInput => 0,
        Site::AttentionOutput => 1,
        Site::FeedForwardInput => 2,
        Site::FeedForwardOutput => 3,
        // The final hidden state is the input of no product of its own.
        _ => return None,
    };
    Some(1 + layer * SITES + site)
}

/// Index of a product of experts.
fn expert_place(layer: usize, product: ExpertProduct) -> usize {
    1 + layer * SITES + if product == ExpertProduct::Input { 4 } else { 5 }
}

/// Index of the product of the output of a state beside attention.
fn state_place(layer: usize) -> usize {
    1 + layer * SITES + 6
}

/// Index of the product before the layer of a prediction head.
fn pair_place(layer: usize) -> usize {
    1 + layer * SITES + 7
}

/// Index of the logits of a prediction head.
fn head_logits_place(layer: usize) -> usize {
    1 + layer * SITES + 8
}

/// Place of the product that multiplies a tensor; `output` is the name of the one that makes the
/// logits.
fn place_of(tensor: &str, output: &str) -> Option<usize> {
    if tensor == output {
        return place((0, Site::Logits));
    }
    let layer = usize::try_from(layer_of(tensor)?).ok()?;
    let (_, part) = tensor.strip_suffix(".weight")?.rsplit_once('.')?;
    let site = match part {
        "attn_q" | "attn_k" | "attn_v" | "attn_qkv"
        // Layers with a state have these in the place of attention.
        | "attn_gate" | "ssm_alpha" | "ssm_beta" | "ssm_ba" | "ssm_in" | "in_proj" => Site::AttentionInput,
        "attn_output" | "ssm_out" | "out_proj" => Site::AttentionOutput,
        "ffn_gate" | "ffn_up" | "ffn_gate_shexp" | "ffn_up_shexp" => Site::FeedForwardInput,
        "ffn_down" | "ffn_down_shexp" => Site::FeedForwardOutput,
        "ffn_gate_exps" | "ffn_up_exps" => return Some(expert_place(layer, ExpertProduct::Input)),
        "ffn_down_exps" => return Some(expert_place(layer, ExpertProduct::Output)),
        "eh_proj" => return Some(pair_place(layer)),
        "shared_head_head" => return Some(head_logits_place(layer)),
        _ => return None,
    };
    place((layer, site))
}

impl MatrixSquares {
    fn add(&mut self, row: &[f32]) {
        self.sums.resize(row.len(), 0.0);
        self.rows += 1;
        for (sum, &x) in self.sums.iter_mut().zip(row) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
}

impl InputSquares {
    /// Counts the products that follow as those of a prediction head in this layer of the file; 0 =
    /// as those of the model.
    pub(crate) fn count_for_head(&mut self, layer: usize) {
        self.head_layer = layer;
    }

    /// Adds the rows of the input of a prediction head.
    pub(crate) fn add_pairs(&mut self, input: &Activations) {
        self.add_rows(pair_place(self.head_layer), input);
    }

    /// Adds the rows of a product's input.
    pub(crate) fn add(&mut self, (layer, site): (usize, Site), input: &Activations) {
        let place = match site {
            Site::Logits if self.head_layer > 0 => Some(head_logits_place(self.head_layer)),
            _ => place((self.head_layer + layer, site)),
        };
        if let Some(place) = place {
            self.add_rows(place, input);
        }
    }

    fn add_rows(&mut self, place: usize, input: &Activations) {
        let [matrix] = self.matrices(place, 1) else { return };
        rows(input).for_each(|row| matrix.add(row));
    }

    /// Adds the rows of the output of a state beside attention.
    pub(crate) fn add_state_output(&mut self, layer: usize, input: &Activations) {
        self.add_rows(state_place(layer), input);
    }

    /// Adds the rows of a product of `n_experts` experts; `experts` names the one of each row.
    pub(crate) fn add_experts(
        &mut self,
        (layer, product): (usize, ExpertProduct),
        n_experts: usize,
        input: &Activations,
        experts: impl Iterator<Item = usize>,
    ) {
        let matrices = self.matrices(expert_place(self.head_layer + layer, product), n_experts);
        rows(input).zip(experts).for_each(|(row, expert)| matrices[expert].add(row));
    }

    fn matrices(&mut self, place: usize, n_matrices: usize) -> &mut [MatrixSquares] {
        if self.places.len() <= place {
            self.places.resize_with(place + 1, Vec::new);
        }
        let matrices = &mut self.places[place];
        matrices.resize_with(n_matrices, MatrixSquares::default);
        matrices
    }

    /// Sums of the matrices of a tensor; `None` if it had no inputs.
    pub(super) fn of_tensor(&self, tensor: &str, output: &str) -> Option<&[MatrixSquares]> {
        let of_state = || {
            let layer = layer_of(tensor).filter(|_| tensor.ends_with(".ssm_out.weight"))?;
            self.places.get(state_place(usize::try_from(layer).ok()?)).filter(|matrices| !matrices.is_empty())
        };
        let matrices = match of_state() {
            Some(matrices) => matrices,
            None => self.places.get(place_of(tensor, output)?)?,
        };
        matrices.iter().any(|matrix| matrix.rows > 0).then_some(matrices)
    }
}

/// Rows of an input.
fn rows(input: &Activations) -> impl Iterator<Item = &[f32]> {
    input.values().chunks_exact(input.cols().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_found_by_their_site() {
        let mut squares = InputSquares::default();
        let mut input = Activations::new();
        for (at, rows) in
            [((1, Site::AttentionInput), 2), ((0, Site::Logits), 1), ((0, Site::FinalHidden), 1)]
        {
            input.resize(rows, 2).fill(3.0);
            squares.add(at, &input);
        }
        for (tensor, expected) in [
            ("blk.1.attn_k.weight", Some(2)),
            ("blk.1.attn_qkv.weight", Some(2)),
            ("blk.1.attn_output.weight", None),
            ("blk.1.attn_k.bias", None),
            ("blk.9.attn_k.weight", None),
            ("token_embd.weight", Some(1)),
            ("output.weight", None),
        ] {
            let found = squares.of_tensor(tensor, "token_embd.weight").map(|matrices| &matrices[0]);
            assert_eq!(found.map(|matrix| matrix.rows), expected, "{tensor}");
            if let Some(matrix) = found {
                assert_eq!(matrix.sums, [9.0 * matrix.rows as f64; 2]);
            }
        }
    }

    #[test]
    fn experts_have_sums_of_their_own() {
        let mut squares = InputSquares::default();
        let mut input = Activations::new();
        input.resize(3, 1).copy_from_slice(&[1.0, 2.0, 3.0]);
        squares.add_experts((1, ExpertProduct::Input), 4, &input, [0, 2, 2].into_iter());
        for tensor in ["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"] {
            let matrices = squares.of_tensor(tensor, "output.weight").unwrap();
            let found = matrices.iter().map(|matrix| (matrix.rows, matrix.sums.iter().sum::<f64>()));
            assert_eq!(found.collect::<Vec<_>>(), [(1, 1.0), (0, 0.0), (2, 13.0), (0, 0.0)]);
        }
        for tensor in ["blk.1.ffn_down_exps.weight", "blk.0.ffn_up_exps.weight", "blk.1.ffn_up_shexp.weight"]
        {
            assert!(squares.of_tensor(tensor, "output.weight").is_none(), "{tensor}");
        }
    }
}
