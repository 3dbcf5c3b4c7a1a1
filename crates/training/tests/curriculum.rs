//! Curricula: examples of each step, continued runs, and difficulty by each objective.

use std::cell::RefCell;
use std::rc::Rc;

use ruvllm_models::{Compute, Model, Pooling, open_checkpoint};
use ruvllm_testkit::model_data;
use ruvllm_training::{
    Backprop, BackpropOptions, Batch, BatchLoss, Contrastive, CrossEntropy, Curriculum, Error, Lora,
    LoraConfig, Objective, Pair, Preference, Preferences, Result, Sequence, TrainConfig, Trainer,
    preference_loss, reference,
};

const EXAMPLES: usize = 12;

fn model() -> Model {
    let checkpoint = open_checkpoint(model_data("tiny/llama/model-F32.gguf")).expect("a model");
    Model::load(&*checkpoint, &mut |_| ()).expect("a model")
}

fn lora(model: &Model) -> Lora {
    Lora::new(model.adapter_base(), &LoraConfig { rank: 1, ..LoraConfig::default() }).expect("factors")
}

/// Records the examples of each step; larger indices are easier.
struct Recorder {
    seen: Rc<RefCell<Vec<Vec<usize>>>>,
}

impl Objective for Recorder {
    fn label(&self) -> &'static str {
        "none"
    }

    fn n_examples(&self) -> usize {
        EXAMPLES
    }

    fn add_gradients(
        &mut self,
        _: &mut Backprop<'_>,
        _: &Lora,
        batch: &Batch<'_>,
        _: &mut [f32],
    ) -> Result<BatchLoss> {
        self.seen.borrow_mut().push(batch.examples.to_vec());
        Ok(BatchLoss { loss: 0.0, tokens: 0, reward: Some(0.5) })
    }

    fn validate(&mut self, _: &mut Backprop<'_>, _: &Lora, _: usize) -> Result<Option<f64>> {
        Ok(None)
    }

    fn difficulty(&mut self, _: &mut Backprop<'_>, _: &Lora, _: usize) -> Result<Vec<f64>> {
        Ok((0..EXAMPLES).map(|example| -(example as f64)).collect())
    }

    fn settings(&self) -> String {
        String::new()
    }

    fn data_digest(&self) -> [u8; 32] {
        [0; 32]
    }
}

#[test]
fn phases_add_examples_and_continue() {
    let (model, compute) = (model(), Compute::new(1).expect("threads"));
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let config = TrainConfig { steps: 9, batch: 2, ..TrainConfig::default() };
    let seen = Rc::new(RefCell::new(Vec::new()));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let mut run = |phases: Option<usize>, resume: bool, stop: u64| -> Result<Vec<Vec<usize>>> {
        let mut objective = Recorder { seen: Rc::clone(&seen) };
        let factors = lora(&model);
        let difficulty = objective.difficulty(&mut backprop, &factors, 4)?;
        let curriculum = phases.map(|phases| Curriculum::by_difficulty(&difficulty, phases)).transpose()?;
        let mut trainer =
            Trainer::with_objective(&mut backprop, factors, Box::new(objective), config.clone())?;
        trainer.set_curriculum(curriculum)?;
        if resume {
            trainer.resume(&state)?;
        }
        while trainer.steps() < stop {
            assert_eq!(trainer.step()?.reward, Some(0.5));
        }
        assert!(trainer.history().iter().all(|point| point.reward == Some(0.5)), "of the state, too");
        assert!(trainer.set_curriculum(None).is_err(), "behind the first step");
        trainer.save(&state)?;
        Ok(seen.take())
    };
    let whole = run(Some(3), false, 9).expect("a run");
    for (step, examples) in whole.iter().enumerate() {
        let easiest = EXAMPLES - 4 * (step / 3 + 1);
        assert!(examples.iter().all(|&example| example >= easiest), "step {step}: {examples:?}");
    }
    // Six examples of a phase: its four once, then again.
    let mut first = whole[..2].concat();
    first.sort_unstable();
    assert_eq!(first, [8, 9, 10, 11]);
    let start = run(Some(3), false, 4).expect("a run");
    let rest = run(Some(3), true, 9).expect("the same run");
    assert_eq!([start, rest].concat(), whole, "the phase is that of the step");
    for other in [None, Some(2)] {
        let error = run(other, true, 9).expect_err("another curriculum");
        assert!(matches!(error, Error::OtherRun { what: "settings", .. }), "{error}");
    }
    assert!(matches!(run(Some(10), false, 9), Err(Error::Setting { name: "phases", .. })));
    let plain = run(None, false, 6).expect("a run").concat();
    assert!((0..EXAMPLES).all(|example| plain.contains(&example)), "all examples in the first epoch");
}

#[test]
fn difficulty_is_that_of_the_model_alone() {
    let (model, compute) = (model(), Compute::new(1).expect("threads"));
    let mut backprop = Backprop::new(&model, &compute, BackpropOptions::default()).expect("a model");
    let factors = lora(&model);
    let sequences: Vec<Sequence> = (0..5)
        .map(|number| Sequence::new((3..9 + number).map(|token| token * 7 % 50).collect::<Vec<_>>()))
        .collect();
    let mut text = CrossEntropy::new(&backprop, &sequences, &[]).expect("sequences");
    let found = text.difficulty(&mut backprop, &factors, 2).expect("losses");
    for (sequence, found) in sequences.iter().zip(&found) {
        let alone = ruvllm_training::mean_loss(&mut backprop, None, std::slice::from_ref(sequence), 1);
        assert!((alone.expect("a loss") - found).abs() < 1e-9);
    }

    let pairs: Vec<Preference> = (0..3)
        .map(|number| {
            let answer = |token: u32| Sequence::with_prompt(&[4, 9 + number], &[token, 5]);
            Preference { chosen: answer(11), rejected: answer(20) }
        })
        .collect();
    let mut preferences = Preferences::new(&backprop, &pairs, &[], 0.1).expect("pairs");
    let found = preferences.difficulty(&mut backprop, &factors, 2).expect("odds");
    for (pair, found) in pairs.iter().zip(&found) {
        let reference = reference(&mut backprop, &[pair]).expect("a reference");
        assert!((reference[0][1] - reference[0][0] - found).abs() < 1e-9);
        let likelier =
            preference_loss(&mut backprop, None, &[pair], &reference, 0.1).expect("a loss").preferred;
        assert_eq!(likelier > 0.5, *found < 0.0, "easy pairs are those that the model gets right");
    }

    let pairs: Vec<Pair> = [[5, 6], [5, 5]]
        .map(|[query, positive]| Pair {
            query: Sequence::new(vec![3, query]),
            positive: Sequence::new(vec![3, positive]),
            negative: None,
        })
        .to_vec();
    let mut contrastive = Contrastive::new(&backprop, &pairs, &[], 0.1, Pooling::Mean).expect("pairs");
    let found = contrastive.difficulty(&mut backprop, &factors, 1).expect("distances");
    assert!(found[1].abs() < 1e-6 && found[0] > found[1], "{found:?}");
}
