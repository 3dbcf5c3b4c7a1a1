//! Distillation of tiny models: gradients, exactness, continuation, refusals.

use std::ops::ControlFlow;
use std::path::Path;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType, Writer};
use ruvllm_models::{Compute, Model, open_checkpoint};
use ruvllm_testkit::{Random, model_data};
use ruvllm_training::{
    Agreement, Backprop, BackpropOptions, Batch, CrossEntropy, Distillation, DistillationConfig, Error,
    GradientFormat, Lora, LoraConfig, Objective, Sequence, Teacher, TrainConfig, Trainer, agreement,
};

const EXACT: BackpropOptions = BackpropOptions { gradients: GradientFormat::F32, checkpointing: false };

fn model(path: &str) -> Model {
    let checkpoint = open_checkpoint(model_data(path)).expect("a model");
    Model::load(&*checkpoint, &mut |_| ()).expect("a model")
}

fn llama() -> Model {
    model("tiny/llama/model-F32.gguf")
}

/// The tiny Llama with a bias of its logits, which no family has but the format allows.
fn llama_with_output_bias() -> Model {
    let gguf = Gguf::open(model_data("tiny/llama/model-F32.gguf")).expect("a file");
    let mut random = Random::new(8);
    let rows = gguf.tensor("output.weight").expect("an output").dims[1];
    let bias: Vec<u8> = (0..rows).flat_map(|_| random.normal().to_le_bytes()).collect();
    let added = TensorInfo::new("output.bias", vec![rows], TensorType::F32).expect("a tensor");
    let tensors: Vec<TensorInfo> = gguf.tensors().cloned().chain([added]).collect();
    let mut writer = Writer::new(Vec::new(), gguf.metadata(), tensors.clone()).expect("a header");
    for tensor in &tensors {
        let data = gguf.data(&tensor.name).map_or_else(|_| bias.clone(), |data| data.as_ref().to_vec());
        writer.write_tensor(&tensor.name, &data).expect("data");
    }
    let changed = Gguf::from_owner(writer.finish().expect("a file")).expect("a file");
    Model::load(&changed, &mut |_| ()).expect("a model")
}

/// New factors, or with `noise` such that change the model.
fn lora(model: &Model, seed: u64, noise: f32) -> Lora {
    let config = LoraConfig { rank: 2, alpha: 4.0, seed, ..LoraConfig::default() };
    let mut lora = Lora::new(model.adapter_base(), &config).expect("factors");
    let mut random = Random::new(seed);
    lora.values_mut().iter_mut().for_each(|value| *value += noise * random.normal());
    lora
}

/// Sequences of random tokens, the first ones of each not scored.
fn sequences(n: usize, len: usize, seed: u64) -> Vec<Sequence> {
    let mut random = Random::new(seed);
    let mut tokens = |n: usize| (0..n).map(|_| 3 + random.below(60) as u32).collect::<Vec<_>>();
    (0..n).map(|_| Sequence::with_prompt(&tokens(3), &tokens(len - 3))).collect()
}

fn add_gradients(
    objective: &mut dyn Objective,
    backprop: &mut Backprop<'_>,
    lora: &Lora,
    n: usize,
) -> (f64, Vec<f32>) {
    let (examples, mut gradients) = ((0..n).collect::<Vec<_>>(), vec![0.0; lora.len()]);
    let batch = Batch { step: 0, examples: &examples, per_pass: 3 };
    let found = objective.add_gradients(backprop, lora, &batch, &mut gradients).expect("gradients");
    (found.loss, gradients)
}

fn config(teacher_share: f64, temperature: f64) -> DistillationConfig {
    DistillationConfig { teacher_share, temperature }
}

/// Slopes along the gradient and along random directions are differences of the loss.
fn check_gradients(name: &str, teacher: &mut Teacher<'_>, student: &Model, config: DistillationConfig) {
    let compute = Compute::new(1).expect("threads");
    let mut backprop = Backprop::new(student, &compute, EXACT).expect("a model");
    let (data, lora) = (sequences(4, 9, 5), lora(student, 4, 0.05));
    let mut objective = Distillation::new(&backprop, teacher, &data, &data, config).expect("data");
    let (loss, gradients) = add_gradients(&mut objective, &mut backprop, &lora, 4);
    let mut loss_of =
        |lora: &Lora| objective.validate(&mut backprop, lora, 4).expect("a loss").expect("data");
    assert!((loss - loss_of(&lora)).abs() < 1e-9, "{name}");
    let mut random = Random::new(6);
    let own = gradients.clone();
    let directions =
        [own].into_iter().chain((0..3).map(|_| gradients.iter().map(|_| random.normal()).collect()));
    for direction in directions {
        let direction: Vec<f32> = direction;
        let norm = ruvllm_training::gradient_norm(&direction);
        let mut moved = |step: f64| {
            let mut moved = lora.clone();
            let pairs = moved.values_mut().iter_mut().zip(&direction);
            pairs.for_each(|(value, along)| *value += (step / norm) as f32 * along);
            loss_of(&moved)
        };
        let difference = (moved(0.02) - moved(-0.02)) / 0.04;
        let products = gradients.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d));
        let slope = products.sum::<f64>() / norm;
        assert!((slope - difference).abs() < 5e-4 + 0.02 * slope.abs(), "{name}: {slope} {difference}");
    }
}

#[test]
fn gradients_are_differences_of_the_loss() {
    let compute = Compute::new(2).expect("threads");
    let (gemma2, gemma, biases) =
        (model("tiny/gemma2/hf"), model("forms/gemma"), model("forms/llama_biases"));
    let (plain, biased) = (llama(), llama_with_output_bias());
    let teacher = |model| Teacher::new(model, &compute).expect("a model");
    let other = lora(&gemma2, 9, 0.2);
    check_gradients("soft caps", &mut teacher(&gemma2).with_lora(&other), &gemma2, config(0.7, 2.0));
    check_gradients("two families", &mut teacher(&gemma), &biases, config(0.9, 1.0));
    check_gradients("the other way", &mut teacher(&biases), &gemma, config(0.5, 0.7));
    check_gradients("a bias of the teacher", &mut teacher(&biased), &plain, config(1.0, 1.5));
    check_gradients("a bias of the student", &mut teacher(&plain), &biased, config(0.8, 1.0));
}

/// Distribution behind a prefix, by the log-probability of each token on its own.
fn distribution(model: &Model, lora: Option<&Lora>, prefix: &[u32]) -> Vec<f64> {
    let compute = Compute::new(2).expect("threads");
    let mut backprop = Backprop::new(model, &compute, EXACT).expect("a model");
    let all: Vec<Sequence> =
        (0..model.config().vocab_size as u32).map(|token| Sequence::with_prompt(prefix, &[token])).collect();
    let all: Vec<&Sequence> = all.iter().collect();
    let scored = backprop.log_probabilities(lora, &all).expect("a pass");
    scored.sums().into_iter().map(f64::exp).collect()
}

#[test]
fn agreement_is_that_of_whole_distributions() {
    let compute = Compute::new(1).expect("threads");
    let (plain, biased, gemma2) = (llama(), llama_with_output_bias(), model("tiny/gemma2/hf"));
    let factors = lora(&gemma2, 9, 0.3);
    let prefix = [5, 40, 17, 9];
    for (teacher, its_lora, student) in [(&biased, None, &plain), (&gemma2, Some(&factors), &gemma2)] {
        let mut backprop = Backprop::new(student, &compute, EXACT).expect("a model");
        let (q, p) = (distribution(teacher, its_lora, &prefix), distribution(student, None, &prefix));
        assert!((q.iter().sum::<f64>() - 1.0).abs() < 1e-4);
        let mut teacher = Teacher::new(teacher, &compute).expect("a model");
        if let Some(lora) = its_lora {
            teacher = teacher.with_lora(lora);
        }
        let sequence = Sequence::with_prompt(&prefix, &[3]);
        let found = agreement(&mut backprop, None, &mut teacher, &[sequence], 1).expect("an agreement");
        let kl: f64 = q.iter().zip(&p).map(|(q, p)| q * (q / p).ln()).sum();
        let acceptance: f64 = q.iter().zip(&p).map(|(q, p)| q.min(*p)).sum();
        assert!(kl > 0.01 && (found.kl - kl).abs() < 1e-4, "{found:?} {kl}");
        assert!((found.acceptance - acceptance).abs() < 1e-4, "{found:?} {acceptance}");
    }
}

#[test]
fn a_model_has_nothing_to_learn_from_itself() {
    let (model, compute) = (llama(), Compute::new(2).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, EXACT).expect("a model");
    // 800 scored tokens: more than one chunk of the head.
    let (data, lora) = (sequences(4, 203, 1), lora(&model, 3, 0.0));
    let mut teacher = Teacher::new(&model, &compute).expect("a model");
    let found = agreement(&mut backprop, Some(&lora), &mut teacher, &data, 4).expect("an agreement");
    assert!(
        found.kl == 0.0 && (found.acceptance - 1.0).abs() < 1e-6 && found.same_argmax == 1.0,
        "{found:?}"
    );
    for temperature in [1.0, 3.0] {
        let config = config(1.0, temperature);
        let mut objective = Distillation::new(&backprop, &mut teacher, &data, &[], config).expect("data");
        let (loss, gradients) = add_gradients(&mut objective, &mut backprop, &lora, 4);
        assert!(loss == 0.0 && gradients.iter().all(|gradient| *gradient == 0.0), "{loss}");
        assert_eq!(objective.validate(&mut backprop, &lora, 4).expect("no data"), None);
    }
}

#[test]
fn without_a_share_of_the_teacher_it_is_cross_entropy() {
    let (model, biased, compute) = (llama(), llama_with_output_bias(), Compute::new(2).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let (data, lora) = (sequences(5, 30, 1), lora(&model, 3, 0.05));
    let mut plain = CrossEntropy::new(&backprop, &data, &data).expect("data");
    let expected = add_gradients(&mut plain, &mut backprop, &lora, 5);
    let validation = plain.validate(&mut backprop, &lora, 2).expect("a loss").expect("data");
    let difficulty = plain.difficulty(&mut backprop, &lora, 2).expect("losses");
    let mut teacher = Teacher::new(&biased, &compute).expect("a model");
    let mut objective =
        Distillation::new(&backprop, &mut teacher, &data, &data, config(0.0, 2.0)).expect("data");
    let found = add_gradients(&mut objective, &mut backprop, &lora, 5);
    assert!((found.0 - expected.0).abs() < 1e-12 && found.1 == expected.1, "{} {}", found.0, expected.0);
    let again = objective.validate(&mut backprop, &lora, 2).expect("a loss").expect("data");
    assert!((again - validation).abs() < 1e-12);
    let again = objective.difficulty(&mut backprop, &lora, 3).expect("losses");
    assert!(again.iter().zip(&difficulty).all(|(one, other)| (one - other).abs() < 1e-6));
}

fn train_config() -> TrainConfig {
    TrainConfig { rate: 1e-2, steps: 24, warmup: 1, batch: 4, validate_every: 4, ..TrainConfig::default() }
}

/// Trains a student to the end, or to a saved state, or from one; agreement before and after on
/// other data, and the factors.
fn train(threads: usize, state: Option<&Path>, stop: Option<u64>) -> ([Agreement; 2], Vec<f32>) {
    let (student, compute) = (llama(), Compute::new(threads).expect("threads"));
    let factors = lora(&student, 9, 0.08);
    let mut backprop = Backprop::new(&student, &compute, BackpropOptions::default()).expect("a model");
    let (data, test) = (sequences(24, 40, 1), sequences(4, 40, 2));
    let mut teacher = Teacher::new(&student, &compute).expect("a model").with_lora(&factors);
    let before = agreement(&mut backprop, None, &mut teacher, &test, 4).expect("an agreement");
    let objective = Distillation::new(&backprop, &mut teacher, &data, &test, DistillationConfig::default());
    let objective = Box::new(objective.expect("data"));
    let start = lora(&student, 3, 0.0);
    let mut trainer =
        Trainer::with_objective(&mut backprop, start, objective, train_config()).expect("a run");
    if let Some(state) = state.filter(|_| stop.is_none()) {
        trainer.resume(state).expect("a state");
    }
    trainer
        .run(&mut |trainer, report| match (state, stop) {
            (Some(state), Some(stop)) if report.step == stop => {
                trainer.save(state).expect("a state");
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })
        .expect("steps");
    let trained = trainer.into_lora();
    let after = agreement(&mut backprop, Some(&trained), &mut teacher, &test, 3).expect("an agreement");
    ([before, after], trained.values().to_vec())
}

#[test]
fn distillation_raises_acceptance_and_continues_with_the_same_bits() {
    let ([before, after], values) = train(1, None, None);
    assert!(after.kl < 0.95 * before.kl && after.acceptance > before.acceptance, "{before:?} {after:?}");
    assert!(train(3, None, None).1 == values, "three threads");
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    train(2, Some(&state), Some(5));
    assert!(train(2, Some(&state), None).1 == values, "a continued run");
}

#[test]
fn states_of_other_teachers_and_settings_are_refused() {
    let (student, compute) = (llama(), Compute::new(1).expect("threads"));
    let (biased, factors) = (llama_with_output_bias(), lora(&student, 9, 0.1));
    let data = sequences(4, 12, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let with = |teacher: &mut Teacher<'_>, config, data: &[Sequence], resumes: bool| {
        let mut backprop = Backprop::new(&student, &compute, BackpropOptions::default()).expect("a model");
        let objective = Box::new(Distillation::new(&backprop, teacher, data, &[], config).expect("data"));
        let start = lora(&student, 3, 0.0);
        let mut trainer =
            Trainer::with_objective(&mut backprop, start, objective, train_config()).expect("a run");
        if resumes { trainer.resume(&state) } else { trainer.save(&state) }
    };
    let teacher = |model| Teacher::new(model, &compute).expect("a model");
    let first = config(0.9, 2.0);
    with(&mut teacher(&biased), first, &data, false).expect("a state");
    with(&mut teacher(&biased), first, &data, true).expect("the same run");
    let differs = |result: Result<(), Error>, part: &str| match result {
        Err(Error::OtherRun { what, .. }) => assert_eq!(what, part),
        other => panic!("{other:?}"),
    };
    differs(with(&mut teacher(&student), first, &data, true), "settings");
    differs(with(&mut teacher(&biased).with_lora(&factors), first, &data, true), "settings");
    differs(with(&mut teacher(&biased), config(0.8, 2.0), &data, true), "settings");
    differs(with(&mut teacher(&biased), config(0.9, 1.0), &data, true), "settings");
    differs(with(&mut teacher(&biased), first, &data[1..], true), "data");
}

#[test]
fn bad_teachers_settings_and_data_are_errors() {
    let (student, gemma, compute) = (llama(), model("forms/gemma"), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&student, &compute, BackpropOptions::default()).expect("a model");
    let data = sequences(2, 12, 1);
    let mut teacher = Teacher::new(&student, &compute).expect("a model");
    for (share, temperature, expected) in [
        (1.5, 1.0, "teacher_share"),
        (-0.1, 1.0, "teacher_share"),
        (f64::NAN, 1.0, "teacher_share"),
        (0.5, 0.0, "temperature"),
        (0.5, -1.0, "temperature"),
        (0.5, 1e-60, "temperature"),
        (0.5, f64::INFINITY, "temperature"),
        (0.5, f64::NAN, "temperature"),
    ] {
        let found = Distillation::new(&backprop, &mut teacher, &data, &[], config(share, temperature));
        assert!(matches!(found.err(), Some(Error::Setting { name, .. }) if name == expected), "{share}");
    }
    let found = Distillation::new(&backprop, &mut teacher, &[], &[], config(0.5, 1.0));
    assert!(matches!(found.err(), Some(Error::NothingScored { .. })));
    let found = agreement(&mut backprop, None, &mut teacher, &[Sequence::new([1])], 1);
    assert!(matches!(found.err(), Some(Error::NothingScored { .. })));
    let mut other = Teacher::new(&gemma, &compute).expect("a model");
    let error = Distillation::new(&backprop, &mut other, &data, &[], config(0.5, 1.0)).err();
    assert!(matches!(error, Some(Error::Vocabularies { teacher: 72, student: 570 })), "{error:?}");
    let found = agreement(&mut backprop, None, &mut other, &data, 1);
    assert!(matches!(found.err(), Some(Error::Vocabularies { .. })));
    // A sequence that the student can read and the teacher cannot.
    let biases = model("forms/llama_biases");
    let backprop = Backprop::new(&biases, &compute, BackpropOptions::default()).expect("a model");
    let long = sequences(1, 300, 1);
    let error = Distillation::new(&backprop, &mut other, &long, &[], config(0.5, 1.0)).err();
    assert!(matches!(error, Some(Error::SequenceLength { tokens: 300, most: 256, .. })), "{error:?}");
}
