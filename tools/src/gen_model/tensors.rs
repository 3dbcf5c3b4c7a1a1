//! Tensors of a shape, in the order of the file, under the names of llama.cpp's converter.

use super::shape::{DeltaNet, Experts, Family, Sizes};

/// One tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// Values of a row, rows, and for experts their number.
    pub(super) dims: Vec<u64>,
    pub(super) values: Values,
}

/// Values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Values {
    /// Drawn with mean 0 and this standard deviation.
    Normal(f32),
    Constant(f32),
}

/// Deviation of all drawn values but those that write into the residual stream.
const DEVIATION: f32 = 0.02;

impl Tensor {
    /// Values of a row.
    pub(super) fn cols(&self) -> usize {
        self.dims[0] as usize
    }

    /// Rows, those of all experts together.
    pub(super) fn rows(&self) -> usize {
        self.dims[1..].iter().product::<u64>() as usize
    }

    pub(super) fn len(&self) -> usize {
        self.rows() * self.cols()
    }

    fn new(name: String, dims: &[usize], values: Values) -> Self {
        Self { name, dims: dims.iter().map(|&dim| dim as u64).collect(), values }
    }
}

/// The tensors of one layer.
struct Layer<'a> {
    sizes: &'a Sizes,
    index: usize,
    tensors: &'a mut Vec<Tensor>,
}

impl Sizes {
    /// All tensors in the order of the file.
    ///
    /// Values are drawn with deviation 0.02; the projections that write into the residual stream
    /// get `0.02 / sqrt(2 n_layers)`, so that its size does not grow with the depth (as GPT-2 is
    /// initialized).
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let table = |name: &str| {
            Tensor::new(name.into(), &[self.model_dim, self.vocab_size], Values::Normal(DEVIATION))
        };
        let mut tensors = vec![table("token_embd.weight")];
        if !self.tied {
            tensors.push(table("output.weight"));
        }
        tensors.push(Tensor::new("output_norm.weight".into(), &[self.model_dim], Values::Constant(1.0)));
        for index in 0..self.n_layers {
            Layer { sizes: self, index, tensors: &mut tensors }.add();
        }
        tensors
    }
}

impl Layer<'_> {
    fn add(&mut self) {
        let model_dim = self.sizes.model_dim;
        self.constant("attn_norm.weight", &[model_dim], 1.0);
        match self.sizes.family {
            Family::Qwen35(net) if !(self.index + 1).is_multiple_of(net.interval) => self.delta_net(net),
            Family::Qwen35(_) => self.attention(2),
            _ => self.attention(1),
        }
        match self.sizes.family {
            Family::Llama | Family::Qwen3Moe(_) => self.constant("ffn_norm.weight", &[model_dim], 1.0),
            Family::GptOss(_) | Family::Qwen35(_) => {
                self.constant("post_attention_norm.weight", &[model_dim], 1.0);
            }
        }
        match self.sizes.family {
            Family::Llama | Family::Qwen35(_) => self.feed_forward("", &[]),
            Family::Qwen3Moe(experts) | Family::GptOss(experts) => self.experts(experts),
        }
    }

    /// Projections of attention; `query_parts` is 2 for queries with gates behind them.
    fn attention(&mut self, query_parts: usize) {
        let &Sizes { model_dim, head_dim, n_heads, n_kv_heads, .. } = self.sizes;
        let (queries, kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        self.matrix("attn_q", &[model_dim, queries * query_parts]);
        self.matrix("attn_k", &[model_dim, kv]);
        self.matrix("attn_v", &[model_dim, kv]);
        self.residual("attn_output", &[queries, model_dim]);
        match self.sizes.family {
            Family::Llama => {}
            Family::Qwen3Moe(_) | Family::Qwen35(_) => {
                self.constant("attn_q_norm.weight", &[head_dim], 1.0);
                self.constant("attn_k_norm.weight", &[head_dim], 1.0);
            }
            Family::GptOss(_) => {
                self.constant("attn_q.bias", &[queries], 0.0);
                self.constant("attn_k.bias", &[kv], 0.0);
                self.constant("attn_v.bias", &[kv], 0.0);
                self.constant("attn_output.bias", &[model_dim], 0.0);
                self.constant("attn_sinks.weight", &[n_heads], 0.0);
            }
        }
    }

    /// Gated `DeltaNet` with decays of about a half per token.
    fn delta_net(&mut self, net: DeltaNet) {
        let (model_dim, values_dim) = (self.sizes.model_dim, net.values_dim());
        self.matrix("attn_qkv", &[model_dim, net.channels()]);
        self.matrix("attn_gate", &[model_dim, values_dim]);
        self.matrix("ssm_alpha", &[model_dim, net.value_heads]);
        self.matrix("ssm_beta", &[model_dim, net.value_heads]);
        self.constant("ssm_a", &[net.value_heads], -1.0);
        self.constant("ssm_dt.bias", &[net.value_heads], 0.0);
        self.matrix("ssm_conv1d", &[net.taps, net.channels()]);
        self.constant("ssm_norm.weight", &[net.head_dim], 1.0);
        self.residual("ssm_out", &[values_dim, model_dim]);
    }

    fn experts(&mut self, experts: Experts) {
        let (model_dim, ffn_dim, count) = (self.sizes.model_dim, self.sizes.ffn_dim, experts.count);
        self.matrix("ffn_gate_inp", &[model_dim, count]);
        self.feed_forward("_exps", &[count]);
        if matches!(self.sizes.family, Family::GptOss(_)) {
            self.constant("ffn_gate_inp.bias", &[count], 0.0);
            self.constant("ffn_gate_exps.bias", &[ffn_dim, count], 0.0);
            self.constant("ffn_up_exps.bias", &[ffn_dim, count], 0.0);
            self.constant("ffn_down_exps.bias", &[model_dim, count], 0.0);
        }
    }

    /// Gate, up and down; `count` has the number of experts, if they are some.
    fn feed_forward(&mut self, suffix: &str, count: &[usize]) {
        let (model_dim, ffn_dim) = (self.sizes.model_dim, self.sizes.ffn_dim);
        self.matrix(&format!("ffn_gate{suffix}"), &[&[model_dim, ffn_dim], count].concat());
        self.matrix(&format!("ffn_up{suffix}"), &[&[model_dim, ffn_dim], count].concat());
        self.residual(&format!("ffn_down{suffix}"), &[&[ffn_dim, model_dim], count].concat());
    }

    fn matrix(&mut self, name: &str, dims: &[usize]) {
        self.push(&format!("{name}.weight"), dims, Values::Normal(DEVIATION));
    }

    /// A matrix that writes into the residual stream.
    fn residual(&mut self, name: &str, dims: &[usize]) {
        let deviation = DEVIATION / (2.0 * self.sizes.n_layers as f32).sqrt();
        self.push(&format!("{name}.weight"), dims, Values::Normal(deviation));
    }

    fn constant(&mut self, name: &str, dims: &[usize], value: f32) {
        self.push(name, dims, Values::Constant(value));
    }

    fn push(&mut self, name: &str, dims: &[usize], values: Values) {
        self.tensors.push(Tensor::new(format!("blk.{}.{name}", self.index), dims, values));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shape;

    #[track_caller]
    fn parameters(shape: Shape, expected_millions: f64) {
        let count: usize = shape.sizes(None).tensors().iter().map(super::Tensor::len).sum();
        let millions = count as f64 / 1e6;
        assert!((millions / expected_millions - 1.0).abs() < 0.001, "{millions} M parameters");
    }

    /// Published counts; the last one without the vision part and the head for further tokens.
    #[test]
    fn shapes_have_the_parameters_of_their_models() {
        parameters(Shape::Llama110m, 124.67);
        parameters(Shape::Llama1b, 1235.8);
        parameters(Shape::Llama7b, 7241.7);
        parameters(Shape::Qwen3Moe30b, 30_532.1);
        parameters(Shape::GptOss20b, 20_914.8);
        parameters(Shape::Qwen35Dense9b, 8_953.8);
    }

    #[test]
    fn layers_can_be_left_out() {
        let tensors = Shape::Llama7b.sizes(Some(1)).tensors();
        assert_eq!(tensors.len(), 3 + 9);
        assert!(!tensors.iter().any(|tensor| tensor.name.starts_with("blk.1.")));
    }
}
