//! Gradients of every factor of tiny models of all families, against PyTorch (`data/make.py`).

use ruvllm_models::{Compute, Model, Pooling, open_checkpoint};
use ruvllm_testkit::model_data;
use ruvllm_training::{Backprop, BackpropOptions, GradientFormat, Lora, LoraConfig, Sequence};
use safetensors::SafeTensors;

use ruvllm_adapters::Projection::{
    self, AttentionOutput, Down, Gate, GateUp, Key, Query, QueryKeyValue, Up, Value,
};

/// Largest deviation of a factor's gradient, relative to the norm of PyTorch's.
const TOLERANCE: f64 = 1e-3;

const MODELS: [(&str, &str); 11] = [
    ("llama", "tiny/llama/hf"),
    ("llama_yarn", "tiny/llama_yarn/hf"),
    ("mistral", "tiny/mistral/hf"),
    ("qwen2", "tiny/qwen2/hf"),
    ("qwen3", "tiny/qwen3/hf"),
    ("phi3", "tiny/phi3/hf"),
    ("gemma2", "tiny/gemma2/hf"),
    ("gemma3", "tiny/gemma3/hf"),
    ("gemma", "forms/gemma"),
    ("llama_biases", "forms/llama_biases"),
    ("ministral3", "forms/ministral3"),
];

struct Golden<'a> {
    tensors: SafeTensors<'a>,
    model: &'static str,
}

impl Golden<'_> {
    fn bytes(&self, name: &str) -> Vec<u8> {
        let name = format!("{}.{name}", self.model);
        self.tensors.tensor(&name).unwrap_or_else(|error| panic!("{name}: {error}")).data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn doubles(&self, name: &str) -> Vec<f64> {
        self.bytes(name).as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
    }

    fn sequence(&self, index: usize) -> Sequence {
        let tokens = self.bytes(&format!("tokens{index}"));
        let tokens = tokens.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let mask = self.bytes(&format!("mask{index}")).into_iter().map(|scored| scored != 0);
        Sequence { tokens: tokens.collect(), mask: mask.collect() }
    }

    /// Values of all factors, or gradients, in the layout of `lora`.
    fn values(&self, lora: &Lora, what: &str) -> Vec<f32> {
        let mut lora = lora.clone();
        let names: Vec<_> = lora.modules().collect();
        for (projection, layer) in names {
            let name = |which| format!("{what}.layers.{layer}.{}.{which}", module(projection));
            let (a, b) = (self.floats(&name("A")), self.floats(&name("B")));
            lora.set_module(projection, layer, &a, &b).expect("a module of the adapter");
        }
        lora.values().to_vec()
    }
}

fn module(projection: Projection) -> &'static str {
    match projection {
        Query => "self_attn.q_proj",
        Key => "self_attn.k_proj",
        Value => "self_attn.v_proj",
        QueryKeyValue => "self_attn.qkv_proj",
        AttentionOutput => "self_attn.o_proj",
        Gate => "mlp.gate_proj",
        Up => "mlp.up_proj",
        GateUp => "mlp.gate_up_proj",
        Down => "mlp.down_proj",
        _ => unreachable!("not trained"),
    }
}

/// Relative deviation of each factor.
fn deviations(lora: &Lora, found: &[f32], expected: &[f32]) -> Vec<f64> {
    lora.factor_ranges()
        .into_iter()
        .map(|range| {
            let square = |x: f64| x * x;
            let pairs = || found[range.clone()].iter().zip(&expected[range.clone()]);
            let error: f64 = pairs().map(|(x, y)| square(f64::from(x - y))).sum();
            let norm: f64 = pairs().map(|(_, y)| square(f64::from(*y))).sum();
            (error / norm.max(1e-30)).sqrt()
        })
        .collect()
}

fn with_model(name: &'static str, folder: &str, test: impl FnOnce(&Golden<'_>, &Model, Lora)) {
    let path = ruvllm_testkit::workspace("crates/training/tests/data/gradients.safetensors");
    let bytes = std::fs::read(path).expect("the golden file");
    let golden = Golden { tensors: SafeTensors::deserialize(&bytes).expect("safetensors"), model: name };
    let checkpoint = open_checkpoint(model_data(folder)).expect("a model");
    let model = Model::load(&*checkpoint, &mut |_| ()).expect("a model");
    let targets = if name == "phi3" {
        vec![QueryKeyValue, AttentionOutput, GateUp, Down]
    } else {
        LoraConfig::default().targets
    };
    let config = LoraConfig { rank: 2, alpha: 3.0, targets, ..LoraConfig::default() };
    let mut lora = Lora::new(model.adapter_base(), &config).expect("factors");
    let values = golden.values(&lora, "factor");
    lora.values_mut().copy_from_slice(&values);
    test(&golden, &model, lora);
}

#[test]
fn gradients_are_those_of_pytorch() {
    let compute = Compute::new(2).expect("threads");
    for (name, folder) in MODELS {
        with_model(name, folder, |golden, model, lora| {
            let sequences = [golden.sequence(0), golden.sequence(1)];
            let coefficients: Vec<f32> =
                [0, 1].iter().flat_map(|index| golden.floats(&format!("coefficients{index}"))).collect();
            let expected = golden.values(&lora, "gradient");
            let mut results = Vec::new();
            for checkpointing in [false, true] {
                let options = BackpropOptions { gradients: GradientFormat::F32, checkpointing };
                let mut backprop = Backprop::new(model, &compute, options).expect("a model");
                let mut pass = backprop.forward(&lora, &[&sequences[0], &sequences[1]]).expect("a pass");
                let scored = pass.log_probabilities();
                for (index, range) in scored.sequences().iter().enumerate() {
                    let expected = golden.doubles(&format!("logp{index}"));
                    for (found, expected) in scored.tokens()[range.clone()].iter().zip(expected) {
                        assert!((f64::from(*found) - expected).abs() < 1e-3, "{name}: {found} {expected}");
                    }
                }
                // The derivatives of the loss, which is minus the weighted sum.
                let derivatives: Vec<f32> = coefficients.iter().map(|c| -c).collect();
                let mut gradients = vec![0.0; lora.len()];
                pass.backward(&derivatives, &mut gradients).expect("gradients");
                results.push(gradients);
            }
            assert!(results[0] == results[1], "{name}: checkpointing changes gradients");
            let deviations = deviations(&lora, &results[0], &expected);
            let worst = deviations.iter().copied().fold(0.0, f64::max);
            assert!(worst < TOLERANCE, "{name}: {worst:e} of {deviations:?}");
        });
    }
}

#[test]
fn gradients_of_pooled_states_are_those_of_pytorch() {
    let compute = Compute::new(2).expect("threads");
    for (name, folder) in MODELS {
        with_model(name, folder, |golden, model, lora| {
            let sequences = [golden.sequence(0), golden.sequence(1)];
            let direction = golden.floats("direction");
            let derivatives: Vec<f32> =
                [1.0, 2.0].iter().flat_map(|scale| direction.iter().map(move |d| scale * d)).collect();
            let options = BackpropOptions { gradients: GradientFormat::F32, checkpointing: false };
            let mut backprop = Backprop::new(model, &compute, options).expect("a model");
            let pass = backprop.forward(&lora, &[&sequences[0], &sequences[1]]).expect("a pass");
            let mut gradients = vec![0.0; lora.len()];
            pass.backward_pooled(Pooling::Mean, &derivatives, &mut gradients).expect("gradients");
            let expected = golden.values(&lora, "pooled");
            let worst = deviations(&lora, &gradients, &expected).into_iter().fold(0.0, f64::max);
            assert!(worst < TOLERANCE, "{name}: {worst:e}");
        });
    }
}

#[test]
fn quantized_gradients_point_the_same_way() {
    let compute = Compute::new(1).expect("threads");
    with_model("llama", "tiny/llama/hf", |golden, model, lora| {
        let sequences = [golden.sequence(0), golden.sequence(1)];
        let gradients = |gradients| {
            let options = BackpropOptions { gradients, checkpointing: false };
            let mut backprop = Backprop::new(model, &compute, options).expect("a model");
            let pass = backprop.forward(&lora, &[&sequences[0], &sequences[1]]).expect("a pass");
            let n = sequences.iter().map(Sequence::n_scored).sum();
            let mut gradients = vec![0.0; lora.len()];
            pass.backward(&vec![-1.0 / n as f32; n], &mut gradients).expect("gradients");
            gradients
        };
        let exact = gradients(GradientFormat::F32);
        assert!(deviations(&lora, &gradients(GradientFormat::Q8_0), &exact).iter().all(|d| *d < 0.05));
        assert!(deviations(&lora, &gradients(GradientFormat::BF16), &exact).iter().all(|d| *d < 0.02));
    });
}
