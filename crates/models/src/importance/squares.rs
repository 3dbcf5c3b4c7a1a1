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
    /// The logits, then four sites per layer.
    sites: Vec<SiteSquares>,
}

/// Sums of one site.
#[derive(Debug, Clone, Default, PartialEq)]
struct SiteSquares {
    /// `[columns]`
    sums: Vec<f64>,
    rows: u64,
}

/// Sites of a layer with products of their own.
const SITES: usize = 4;

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

/// Site whose product multiplies a tensor; `output` is the name of the one that makes the logits.
fn site_of(tensor: &str, output: &str) -> Option<(usize, Site)> {
    if tensor == output {
        return Some((0, Site::Logits));
    }
    let layer = usize::try_from(layer_of(tensor)?).ok()?;
    let (_, part) = tensor.strip_suffix(".weight")?.rsplit_once('.')?;
    let site = match part {
        "attn_q" | "attn_k" | "attn_v" | "attn_qkv" => Site::AttentionInput,
        "attn_output" => Site::AttentionOutput,
        "ffn_gate" | "ffn_up" => Site::FeedForwardInput,
        "ffn_down" => Site::FeedForwardOutput,
        _ => return None,
    };
    Some((layer, site))
}

impl InputSquares {
    /// Adds the rows of a product's input.
    pub(crate) fn add(&mut self, at: (usize, Site), input: &Activations) {
        let Some(place) = place(at) else { return };
        if self.sites.len() <= place {
            self.sites.resize_with(place + 1, SiteSquares::default);
        }
        let site = &mut self.sites[place];
        site.sums.resize(input.cols(), 0.0);
        site.rows += input.tokens() as u64;
        for row in input.values().chunks_exact(input.cols().max(1)) {
            for (sum, &x) in site.sums.iter_mut().zip(row) {
                *sum += f64::from(x) * f64::from(x);
            }
        }
    }

    /// Sums, `[columns]`, and number of inputs of a tensor.
    pub(super) fn of_tensor(&self, tensor: &str, output: &str) -> Option<(&[f64], u64)> {
        let site = self.sites.get(place(site_of(tensor, output)?)?)?;
        (site.rows > 0).then_some((site.sums.as_slice(), site.rows))
    }
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
            let found = squares.of_tensor(tensor, "token_embd.weight");
            assert_eq!(found.map(|(_, rows)| rows), expected, "{tensor}");
            if let Some((sums, rows)) = found {
                assert_eq!(sums, [9.0 * rows as f64; 2]);
            }
        }
    }
}
