//! Runs of training over a tiny model: determinism, continuation, penalties, preferences, files.

use std::ops::ControlFlow;

use ruvllm_adapters::export::FactorType;
use ruvllm_adapters::{LoraFile, Projection};
use ruvllm_models::{Compute, Model, open_checkpoint};
use ruvllm_testkit::{Random, model_data};
use ruvllm_training::{
    Backprop, BackpropOptions, Error, GradientFormat, Lora, LoraConfig, Outcome, Penalty, Preference,
    Sequence, TrainConfig, Trainer, fisher, mean_loss, preference_gradients, reference,
};

fn model(name: &str) -> Model {
    let checkpoint = open_checkpoint(model_data(format!("tiny/{name}/model-F32.gguf"))).expect("a model");
    Model::load(&*checkpoint, &mut |_| ()).expect("a model")
}

fn lora(model: &Model) -> Lora {
    let config = LoraConfig { rank: 2, alpha: 4.0, seed: 3, ..LoraConfig::default() };
    Lora::new(model.adapter_base(), &config).expect("factors")
}

/// Sequences with something to learn: each token follows from the one before.
fn sequences(n: usize, seed: u64) -> Vec<Sequence> {
    let mut random = Random::new(seed);
    let of = |random: &mut Random| {
        let (start, len) = (random.below(7), 9 + random.below(20));
        Sequence::new((0..len).map(|at| (3 + (start + 2 * at) % 7) as u32).collect::<Vec<_>>())
    };
    (0..n).map(|_| of(&mut random)).collect()
}

fn config() -> TrainConfig {
    TrainConfig {
        rate: 5e-3,
        steps: 8,
        warmup: 2,
        batch: 2,
        accumulate: 2,
        validate_every: 2,
        ..TrainConfig::default()
    }
}

/// Trains to the end and returns the values after the last step.
fn train(threads: usize, checkpointing: bool) -> Vec<u32> {
    let (model, compute) = (model("qwen3"), Compute::new(threads).expect("threads"));
    let options = BackpropOptions { checkpointing, ..BackpropOptions::default() };
    let mut backprop = Backprop::new(&model, &compute, options).expect("a model");
    let (data, validation) = (sequences(11, 1), sequences(3, 2));
    let mut trainer = Trainer::new(&mut backprop, lora(&model), &data, &validation, config()).expect("a run");
    assert_eq!(trainer.run(&mut |_, _| ControlFlow::Continue(())).expect("steps"), Outcome::Finished);
    trainer.lora().values().iter().map(|value| value.to_bits()).collect()
}

#[test]
fn threads_change_no_bit() {
    let one = train(1, false);
    assert!(one == train(3, false), "three threads");
    assert!(one == train(2, true), "two threads and checkpointing");
}

#[test]
fn a_continued_run_has_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let (model, compute) = (model("llama"), Compute::new(2).expect("threads"));
    let (data, validation) = (sequences(11, 1), sequences(3, 2));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let mut whole = Trainer::new(&mut backprop, lora(&model), &data, &validation, config()).expect("a run");
    let mut reports = Vec::new();
    whole
        .run(&mut |trainer, report| {
            if report.step == 3 {
                trainer.save(&path).expect("a state");
            }
            reports.push(*report);
            ControlFlow::Continue(())
        })
        .expect("steps");
    let (expected, best) = (whole.lora().values().to_vec(), whole.best_loss());
    assert!(reports[7].loss < reports[0].loss, "it learns: {reports:?}");

    // Another process: nothing of the first but the file.
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let mut rest = Trainer::new(&mut backprop, lora(&model), &data, &validation, config()).expect("a run");
    rest.resume(&path).expect("a state");
    assert_eq!(rest.steps(), 3);
    let mut continued = Vec::new();
    rest.run(&mut |_, report| {
        continued.push(*report);
        ControlFlow::Continue(())
    })
    .expect("steps");
    assert_eq!(continued, reports[3..]);
    // The losses of all steps, those of the first process too.
    let history: Vec<_> = rest.history().iter().map(|p| (p.step, p.loss, p.validation)).collect();
    assert_eq!(history, reports.iter().map(|r| (r.step, r.loss, r.validation)).collect::<Vec<_>>());
    assert!(rest.lora().values() == expected, "the factors differ");
    assert_eq!(rest.best_loss(), best);
    drop(rest);

    let other = sequences(11, 9);
    let mut wrong = Trainer::new(&mut backprop, lora(&model), &other, &validation, config()).expect("a run");
    assert!(matches!(wrong.resume(&path), Err(Error::OtherRun { what: "data", .. })));
    drop(wrong);
    let settings = TrainConfig { rate: 1e-4, ..config() };
    let mut wrong = Trainer::new(&mut backprop, lora(&model), &data, &validation, settings).expect("a run");
    assert!(matches!(wrong.resume(&path), Err(Error::OtherRun { what: "settings", .. })));
    drop(wrong);
    let bytes = std::fs::read(&path).expect("the state");
    for cut in [0, 7, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).expect("a torn file");
        let mut torn =
            Trainer::new(&mut backprop, lora(&model), &data, &validation, config()).expect("a run");
        assert!(matches!(torn.resume(&path), Err(Error::State { .. })), "{cut} bytes");
        assert_eq!(torn.steps(), 0);
    }
}

#[test]
fn gradients_are_differences_of_the_loss() {
    let (model, compute) = (model("gemma2"), Compute::new(2).expect("threads"));
    let options = BackpropOptions { gradients: GradientFormat::F32, checkpointing: false };
    let mut backprop = Backprop::new(&model, &compute, options).expect("a model");
    let (mut lora, data) = (lora(&model), sequences(2, 5));
    let mut random = Random::new(4);
    lora.values_mut().iter_mut().for_each(|value| *value += 0.05 * random.normal());
    let batch = [&data[0], &data[1]];
    let n: usize = data.iter().map(Sequence::n_scored).sum();
    let mut gradients = vec![0.0; lora.len()];
    let pass = backprop.forward(&lora, &batch).expect("a pass");
    pass.backward(&vec![-1.0; n], &mut gradients).expect("gradients");
    // Along the gradient of each quarter of the values, where rounding of the loss is small beside
    // its change.
    let quarter = lora.len().div_ceil(4);
    for start in (0..lora.len()).step_by(quarter) {
        let range = start..lora.len().min(start + quarter);
        let slope = ruvllm_training::gradient_norm(&gradients[range.clone()]);
        let mut loss = |step: f64| {
            let mut moved = lora.clone();
            let pairs = moved.values_mut()[range.clone()].iter_mut().zip(&gradients[range.clone()]);
            pairs.for_each(|(value, gradient)| *value += (step / slope) as f32 * gradient);
            backprop.log_probabilities(Some(&moved), &batch).expect("a pass").loss_sum()
        };
        let difference = (loss(0.02) - loss(-0.02)) / 0.04;
        assert!((slope - difference).abs() < 0.02 + 0.03 * slope, "{range:?}: {slope} {difference}");
    }
}

#[test]
fn masks_leave_prompts_out() {
    let (model, compute) = (model("llama"), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let whole = Sequence::new(vec![5, 9, 4, 7, 8]);
    let answer = Sequence::with_prompt(&[5, 9, 4], &[7, 8]);
    let scored = backprop.log_probabilities(None, &[&whole, &answer]).expect("a pass");
    assert_eq!(scored.sequences(), [0..4, 4..6]);
    assert_eq!(scored.tokens()[2..4], scored.tokens()[4..6], "sequences of a batch do not see each other");
    let mut again =
        |sequence| backprop.log_probabilities(None, &[sequence]).expect("a pass").tokens().to_vec();
    assert_eq!(again(&whole), scored.tokens()[..4]);
    let wrong = |backprop: &mut Backprop<'_>, sequence: Sequence| {
        backprop.log_probabilities(None, &[&sequence]).expect_err("not a sequence").to_string()
    };
    let vocab = model.config().vocab_size as u32;
    assert!(wrong(&mut backprop, Sequence::new(vec![1, vocab])).contains("vocabulary"));
    assert!(wrong(&mut backprop, Sequence::new(vec![])).contains("0 tokens"));
    let mask = Sequence { tokens: vec![1, 2], mask: vec![true] };
    assert!(wrong(&mut backprop, mask).contains("mask"));
}

#[test]
fn adapters_are_written_and_continued() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, targets) in [
        ("llama", LoraConfig::default().targets),
        ("phi3", vec![Projection::QueryKeyValue, Projection::GateUp, Projection::Down]),
    ] {
        let (model, compute) = (model(name), Compute::new(1).expect("threads"));
        let config = LoraConfig { rank: 2, alpha: 2.0, targets, ..LoraConfig::default() };
        let mut lora = Lora::new(model.adapter_base(), &config).expect("factors");
        let mut random = Random::new(8);
        lora.values_mut().iter_mut().for_each(|value| *value += 0.1 * random.normal());
        let path = folder.path().join(name);
        lora.write(&path, FactorType::F32, false).expect("a folder");
        let file = LoraFile::open(&path).expect("an adapter");
        let read = Lora::from_file(model.adapter_base(), &file).expect("factors");
        assert_eq!(read.values(), lora.values(), "{name}");
        let data = sequences(1, 3);
        let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
        let mut loss = |lora| mean_loss(&mut backprop, lora, &data, 1).expect("a loss");
        assert_eq!(loss(Some(&lora)), loss(Some(&read)));
        assert_ne!(loss(Some(&lora)), loss(None));
    }
}

#[test]
fn settings_and_models_are_checked() {
    let (llama, qwen, compute) = (model("llama"), model("qwen3"), Compute::new(1).expect("threads"));
    let lora_of = |config| Lora::new(llama.adapter_base(), &config).expect_err("wrong").to_string();
    assert!(lora_of(LoraConfig { rank: 0, ..LoraConfig::default() }).contains("rank is 0"));
    assert!(lora_of(LoraConfig { layers: Some(vec![99]), ..LoraConfig::default() }).contains("layers"));
    let targets = vec![Projection::Query, Projection::QueryKeyValue];
    assert!(lora_of(LoraConfig { targets, ..LoraConfig::default() }).contains("joint"));
    let targets = vec![Projection::Logits];
    assert!(lora_of(LoraConfig { targets, ..LoraConfig::default() }).contains("logits"));
    let mut backprop = Backprop::new(&llama, &compute, BackpropOptions::default()).expect("a model");
    let data = sequences(2, 1);
    let other = lora(&qwen);
    assert!(matches!(backprop.log_probabilities(Some(&other), &[&data[0]]), Err(Error::OtherModel { .. })));
    let silent = [Sequence { tokens: vec![1, 2], mask: vec![true, false] }];
    let run = Trainer::new(&mut backprop, lora(&llama), &silent, &[], TrainConfig::default());
    assert!(matches!(run.err(), Some(Error::NothingScored { .. })));
    let config = TrainConfig { rate: f32::INFINITY, ..TrainConfig::default() };
    assert!(Trainer::new(&mut backprop, lora(&llama), &data, &[], config).is_err());
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    let (model, compute) = (model("llama"), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let data = sequences(4, 1);
    let mut broken = lora(&model);
    broken.values_mut().iter_mut().for_each(|value| *value = 1e30);
    let mut trainer = Trainer::new(&mut backprop, broken.clone(), &data, &[], config()).expect("a run");
    assert!(matches!(trainer.step(), Err(Error::NotFinite { step: 0, .. })));
    assert_eq!(trainer.lora().values(), broken.values());
}

#[test]
fn fisher_information_weights_the_pull_to_the_anchor() {
    let (model, compute) = (model("llama"), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let (start, data) = (lora(&model), sequences(6, 1));
    let information = fisher(&mut backprop, &start, &data[..3]).expect("Fisher information");
    assert!(information.iter().all(|f| *f >= 0.0) && information.iter().any(|f| *f > 0.0));
    // Of two sequences the mean of the squares, not the square of the mean.
    let of = |backprop: &mut Backprop<'_>, range: std::ops::Range<usize>| {
        fisher(backprop, &start, &data[range]).expect("Fisher information")
    };
    let (one, two, both) = (of(&mut backprop, 0..1), of(&mut backprop, 1..2), of(&mut backprop, 0..2));
    for ((one, two), both) in one.iter().zip(&two).zip(&both) {
        assert!(((one + two) / 2.0 - both).abs() <= 1e-5 * (one + two));
    }

    let distance = |lambda: f32, backprop: &mut Backprop<'_>| {
        let mut trainer = Trainer::new(backprop, start.clone(), &data, &[], config()).expect("a run");
        let fisher = vec![1.0; start.len()];
        let penalty = Penalty { lambda, fisher, anchor: start.values().to_vec() };
        trainer.set_penalty(Some(penalty)).expect("a penalty");
        let first = trainer.step().expect("a step");
        assert_eq!(first.penalty, 0.0, "none at the anchor");
        trainer.run(&mut |_, _| ControlFlow::Continue(())).expect("steps");
        let pairs = trainer.lora().values().iter().zip(start.values());
        pairs.map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>()
    };
    let (free, held) = (distance(0.0, &mut backprop), distance(100.0, &mut backprop));
    assert!(held < 0.5 * free, "{held} {free}");
}

#[test]
fn preferences_raise_the_margin() {
    let (model, compute) = (model("llama"), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let pair = |prompt: &[u32], chosen: &[u32], rejected: &[u32]| Preference {
        chosen: Sequence::with_prompt(prompt, chosen),
        rejected: Sequence::with_prompt(prompt, rejected),
    };
    let pairs = [pair(&[5, 9, 4], &[7, 8], &[11, 12, 13]), pair(&[6, 3], &[20, 21, 22], &[30])];
    let pairs: Vec<&Preference> = pairs.iter().collect();
    let reference = reference(&mut backprop, &pairs).expect("a reference");
    let mut lora = lora(&model);
    let mut adam = ruvllm_training::Adam::new(Default::default(), lora.len()).expect("settings");
    let mut losses = Vec::new();
    for _ in 0..6 {
        let mut gradients = vec![0.0; lora.len()];
        let result = preference_gradients(&mut backprop, &lora, &pairs, &reference, 0.1, &mut gradients);
        losses.push(result.expect("gradients"));
        adam.step(lora.values_mut(), &gradients, 1e-2);
    }
    assert!(
        (losses[0].loss - std::f64::consts::LN_2).abs() < 1e-6,
        "no margin without an update: {losses:?}"
    );
    assert!(losses[5].loss < losses[0].loss && losses[5].margin > 0.0, "{losses:?}");
    assert_eq!(losses[5].accuracy, 1.0);
}

#[test]
fn training_stops_when_validation_does_not_improve() {
    let (model, compute) = (model("llama"), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let (data, validation) = (sequences(6, 1), sequences(3, 2));
    // A rate that destroys the model.
    let config = TrainConfig { rate: 3.0, steps: 40, validate_every: 1, patience: Some(3), ..config() };
    let start = lora(&model);
    let mut trainer = Trainer::new(&mut backprop, start, &data, &validation, config).expect("a run");
    let mut losses = Vec::new();
    let outcome = trainer.run(&mut |_, report| {
        losses.extend(report.validation);
        ControlFlow::Continue(())
    });
    if let Ok(outcome) = outcome {
        assert_eq!(outcome, Outcome::EarlyStop, "{losses:?}");
        let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
        assert_eq!(trainer.best_loss(), Some(best));
        let lora = trainer.into_lora();
        let found = mean_loss(&mut backprop, Some(&lora), &validation, 2).expect("a loss");
        assert_eq!(found, best, "the best factors are returned");
    } else {
        assert!(matches!(outcome, Err(Error::NotFinite { .. })), "{outcome:?}");
    }
}
