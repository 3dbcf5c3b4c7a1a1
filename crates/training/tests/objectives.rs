//! Losses other than cross-entropy, over a tiny model: each gains on what it optimizes, and a
//! continued run has the same bits.

use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_models::{Compute, Model, Pooling, open_checkpoint};
use ruvllm_testkit::{Random, model_data};
use ruvllm_training::{
    Answer, Backprop, BackpropOptions, Contrastive, Error, GroupRelative, Lora, LoraConfig, Objective,
    Outcome, Pair, Preference, Preferences, Result, RewardConfig, Rollout, Sequence, TrainConfig, Trainer,
    retrieval,
};

fn model() -> Model {
    let checkpoint = open_checkpoint(model_data("tiny/llama/model-F32.gguf")).expect("a model");
    Model::load(&*checkpoint, &mut |_| ()).expect("a model")
}

fn lora(model: &Model) -> Lora {
    let config = LoraConfig { rank: 2, alpha: 4.0, seed: 3, ..LoraConfig::default() };
    Lora::new(model.adapter_base(), &config).expect("factors")
}

fn config(steps: u64) -> TrainConfig {
    TrainConfig { rate: 1e-2, steps, warmup: 1, batch: 4, validate_every: 4, ..TrainConfig::default() }
}

/// Trains; stops behind `stop` steps with a saved state, or continues from one.
fn train<'t>(
    backprop: &'t mut Backprop<'_>,
    objective: Box<dyn Objective + 't>,
    steps: u64,
    state: &Path,
    stop: Option<u64>,
) -> Lora {
    let lora = lora(backprop.model());
    let mut trainer = Trainer::with_objective(backprop, lora, objective, config(steps)).expect("a run");
    if stop.is_none() && state.exists() {
        trainer.resume(state).expect("a state");
    }
    let outcome = trainer.run(&mut |trainer, report| {
        if Some(report.step) == stop {
            trainer.save(state).expect("a state");
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    let expected = if stop.is_some() { Outcome::Stopped } else { Outcome::Finished };
    assert_eq!(outcome.expect("steps"), expected);
    trainer.into_lora()
}

/// A whole run and one in two parts give the same factors, which are returned.
fn in_two_parts<'o>(
    backprop: &mut Backprop<'_>,
    steps: u64,
    objective: &dyn Fn(&Backprop<'_>) -> Box<dyn Objective + 'o>,
) -> Lora {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let whole = objective(backprop);
    let whole = train(backprop, whole, steps, &state, None);
    let first = objective(backprop);
    train(backprop, first, steps, &state, Some(3));
    let rest = objective(backprop);
    let rest = train(backprop, rest, steps, &state, None);
    assert!(whole.values() == rest.values(), "the continued run differs");
    whole
}

/// Random tokens `low..low + 10`.
fn tokens(random: &mut Random, low: u32, len: usize) -> Vec<u32> {
    (0..len).map(|_| low + random.below(10) as u32).collect()
}

#[test]
fn preferences_generalize_and_continue() {
    let (model, compute) = (model(), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let mut random = Random::new(2);
    let pairs: Vec<Preference> = (0..16)
        .map(|_| {
            let prompt = tokens(&mut random, 3, 4);
            let mut answer = |low| Sequence::with_prompt(&prompt, &tokens(&mut random, low, 4));
            Preference { chosen: answer(20), rejected: answer(3) }
        })
        .collect();
    let (data, test) = pairs.split_at(12);
    let lora = in_two_parts(&mut backprop, 12, &|backprop| {
        Box::new(Preferences::new(backprop, data, test, 0.1).expect("pairs"))
    });
    let mut objective = Preferences::new(&backprop, data, test, 0.1).expect("pairs");
    let before = objective.measure(&mut backprop, None, 4).expect("a loss").expect("held-out pairs");
    let after = objective.measure(&mut backprop, Some(&lora), 3).expect("a loss").expect("held-out pairs");
    assert!((before.loss - std::f64::consts::LN_2).abs() < 1e-9 && before.margin == 0.0, "{before:?}");
    assert!(after.loss < before.loss && after.margin > 0.0, "{after:?}");
    assert_eq!(after.accuracy, 1.0);
    let wrong = Preferences::new(&backprop, data, test, 0.0);
    assert!(matches!(wrong.err(), Some(Error::Setting { name: "beta", .. })));
    let silent = [Preference { chosen: Sequence::new(vec![1]), rejected: Sequence::new(vec![1, 2]) }];
    let wrong = Preferences::new(&backprop, &silent, &[], 0.1);
    assert!(matches!(wrong.err(), Some(Error::NothingScored { .. })));
}

#[test]
fn contrastive_training_raises_retrieval() {
    let (model, compute) = (model(), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let mut random = Random::new(5);
    // A query and its text have the same three tokens in other orders, and noise.
    let pairs: Vec<Pair> = (0..40)
        .map(|number| {
            let own = tokens(&mut random, 3 + 3 * (number % 8), 3);
            let with_noise =
                |random: &mut Random, own: Vec<u32>| Sequence::new([tokens(random, 3, 2), own].concat());
            let query = with_noise(&mut random, own.clone());
            let positive = with_noise(&mut random, own.iter().rev().copied().collect());
            let negative = (number % 3 == 0).then(|| Sequence::new(tokens(&mut random, 20, 5)));
            Pair { query, positive, negative }
        })
        .collect();
    let (data, test) = pairs.split_at(32);
    let lora_before = lora(&model);
    let before = retrieval(&mut backprop, &lora_before, data, Pooling::Mean, 8).expect("ranks");
    let lora = in_two_parts(&mut backprop, 40, &|backprop| {
        Box::new(Contrastive::new(backprop, data, test, 0.1, Pooling::Mean).expect("pairs"))
    });
    let after = retrieval(&mut backprop, &lora, data, Pooling::Mean, 3).expect("ranks");
    assert!(after.mrr > before.mrr + 0.05 && after.recall_at_1 >= before.recall_at_1, "{before:?} {after:?}");
    let wrong = Contrastive::new(&backprop, &data[..1], &[], 0.1, Pooling::Mean);
    assert!(matches!(wrong.err(), Some(Error::NothingScored { .. })));
}

#[test]
fn contrastive_gradients_are_differences_of_the_loss() {
    let (model, compute) = (model(), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let mut random = Random::new(9);
    let mut sequence = |len| Sequence::new(tokens(&mut random, 3, len));
    let pairs: Vec<Pair> = (0..4)
        .map(|_| Pair { query: sequence(4), positive: sequence(6), negative: Some(sequence(5)) })
        .collect();
    let mut lora = lora(&model);
    let mut noise = Random::new(4);
    lora.values_mut().iter_mut().for_each(|value| *value += 0.05 * noise.normal());
    let mut objective = Contrastive::new(&backprop, &pairs, &pairs, 0.1, Pooling::Mean).expect("pairs");
    let mut gradients = vec![0.0; lora.len()];
    let batch = ruvllm_training::Batch { step: 0, examples: &[0, 1, 2, 3], per_pass: 4 };
    let found = objective.add_gradients(&mut backprop, &lora, &batch, &mut gradients).expect("gradients");
    let mut loss = |lora: &Lora| objective.validate(&mut backprop, lora, 4).expect("a loss").expect("pairs");
    assert!((found.loss - loss(&lora)).abs() < 1e-9);
    let slope = ruvllm_training::gradient_norm(&gradients);
    let mut moved = |step: f64| {
        let mut moved = lora.clone();
        let pairs = moved.values_mut().iter_mut().zip(&gradients);
        pairs.for_each(|(value, gradient)| *value += (step / slope) as f32 * gradient);
        loss(&moved)
    };
    let difference = (moved(0.01) - moved(-0.01)) / 0.02;
    assert!((slope - difference).abs() < 0.02 + 0.05 * slope, "{slope} {difference}");
}

/// Samples one of two tokens by the model's own probability of each; token 7 is rewarded.
struct Choice<'m> {
    model: &'m Model,
    compute: &'m Compute,
    fails: bool,
}

#[derive(Debug)]
struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reward is gone")
    }
}

impl std::error::Error for Refused {}

const OPTIONS: [u32; 2] = [7, 8];

impl Choice<'_> {
    /// Probability of the first option behind a prompt.
    fn probability(&self, lora: &Lora, prompt: usize) -> f64 {
        let options = OPTIONS.map(|option| Self::answer(prompt, option));
        let mut backprop =
            Backprop::new(self.model, self.compute, BackpropOptions::default()).expect("a model");
        let found = backprop.log_probabilities(Some(lora), &[&options[0], &options[1]]).expect("a pass");
        1.0 / (1.0 + (found.sums()[1] - found.sums()[0]).exp())
    }

    fn answer(prompt: usize, option: u32) -> Sequence {
        Sequence::with_prompt(&[3 + prompt as u32, 20], &[option])
    }
}

impl Rollout for Choice<'_> {
    fn n_prompts(&self) -> usize {
        4
    }

    fn n_held_out(&self) -> usize {
        2
    }

    fn sample(
        &mut self,
        lora: &Lora,
        prompts: &[usize],
        is_held_out: bool,
        count: usize,
        seed: u64,
    ) -> Result<Vec<Answer>> {
        if self.fails {
            return Err(Error::Other(Box::new(Refused)));
        }
        let mut random = Random::new(seed);
        let mut answers = Vec::new();
        for prompt in prompts.iter().map(|prompt| if is_held_out { prompt + 10 } else { *prompt }) {
            let first = self.probability(lora, prompt);
            for _ in 0..count {
                let option = OPTIONS[usize::from(random.below(1000) as f64 / 1000.0 >= first)];
                let reward = f64::from(u8::from(option == OPTIONS[0]));
                answers.push(Answer { sequence: Self::answer(prompt, option), reward });
            }
        }
        Ok(answers)
    }

    fn settings(&self) -> String {
        "choice".to_owned()
    }

    fn data_digest(&self) -> [u8; 32] {
        [0; 32]
    }
}

#[test]
fn rewarded_answers_become_likelier() {
    let (model, compute) = (model(), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let choice = |fails| Choice { model: &model, compute: &compute, fails };
    let start = lora(&model);
    let trained = |backprop: &mut Backprop<'_>, beta: f64| {
        let reward = RewardConfig { group: 8, beta, seed: 1 };
        in_two_parts(backprop, 12, &|_| Box::new(GroupRelative::new(choice(false), reward).expect("prompts")))
    };
    let free = trained(&mut backprop, 0.0);
    for prompt in [0, 3, 10, 11] {
        let [before, after] = [&start, &free].map(|lora| choice(false).probability(lora, prompt));
        assert!(after > before + 0.1, "prompt {prompt}: {before} {after}");
    }
    // A strong penalty keeps the policy near the model.
    let held = trained(&mut backprop, 50.0);
    let [start, free, held] = [&start, &free, &held].map(|lora| choice(false).probability(lora, 0));
    assert!((held - start).abs() < (free - start).abs(), "{start} {free} {held}");

    let reward = RewardConfig { group: 8, beta: 0.0, seed: 1 };
    let failing = Box::new(GroupRelative::new(choice(true), reward).expect("prompts"));
    let mut trainer =
        Trainer::with_objective(&mut backprop, lora(&model), failing, config(2)).expect("a run");
    assert_eq!(trainer.step().expect_err("no reward").to_string(), "the reward is gone");
    let one = RewardConfig { group: 1, ..reward };
    assert!(matches!(GroupRelative::new(choice(false), one).err(), Some(Error::Setting { .. })));
}
