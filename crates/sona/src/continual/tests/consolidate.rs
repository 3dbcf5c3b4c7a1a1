//! Consolidation of toys.

use super::toy::{Labelled, Softmax, two_tasks};
use crate::continual::*;
use crate::error::Error;

/// Slow model that knows task A, quick one that was trained on B from there, and examples of both.
struct Scene {
    slow: Softmax,
    quick: Softmax,
    ewc: Ewc,
    replay: Vec<Replayed<Labelled>>,
    held_out: Vec<Replayed<Labelled>>,
}

fn scene() -> Scene {
    let [a, b] = two_tasks(1, 400);
    let mut slow = Softmax::new(2, 20);
    let settings = EwcSettings { strength: 0.005, ..EwcSettings::default() };
    let mut ewc = Ewc::new(slow.layout().clone(), settings).expect("settings");
    super::train(&mut slow, &ewc, &a, 400, 0.2);
    let mut quick = Softmax::new(2, 20);
    quick.set_parameters(slow.parameters()).expect("parameters");
    super::train(&mut quick, &ewc, &b, 400, 0.2);
    let fisher = Fisher::empirical(&mut slow, &a).expect("information");
    ewc.finish_task(slow.parameters(), fisher).expect("a task");

    let mut buffer = ReplayBuffer::new(ReplaySettings::default()).expect("settings");
    for (task, examples) in [(0, a), (1, b)] {
        for (index, example) in examples.into_iter().enumerate() {
            buffer.push("t", task, u128::from(task) << 64 | index as u128, example, 88);
        }
    }
    let list = |split| buffer.examples("t", split).cloned().collect();
    Scene { slow, quick, ewc, replay: list(Split::Train), held_out: list(Split::HeldOut) }
}

impl Scene {
    fn run(
        &mut self,
        settings: &ConsolidationSettings,
        go: &mut dyn FnMut() -> bool,
    ) -> crate::Result<Report> {
        let train: Vec<&Labelled> = self.replay.iter().map(|replayed| &replayed.example).collect();
        let held_out: Vec<_> = self.held_out.iter().collect();
        let quick = &mut self.quick;
        let mut served = |example: &Labelled| quick.loss(example);
        consolidate(&mut self.slow, &self.ewc, &train, &held_out, &mut served, settings, go)
    }

    fn losses(&mut self) -> [f64; 2] {
        [0, 1].map(|task| {
            let of_task = self.held_out.iter().filter(|replayed| replayed.task == task);
            let examples: Vec<Labelled> = of_task.map(|replayed| replayed.example.clone()).collect();
            self.slow.mean_loss(&examples)
        })
    }
}

fn settings() -> ConsolidationSettings {
    // The slow model has to know A beside B, of which the quick one knows B alone, and knows it
    // well.
    let gate = Gate { tolerance: 0.05, ..Gate::default() };
    ConsolidationSettings { steps: 300, learning_rate: 0.02, gate, ..ConsolidationSettings::default() }
}

#[test]
fn an_objective_learns_both_tasks_where_averages_do_not() {
    let mut scene = scene();
    let (slow, quick) = (scene.slow.parameters().to_vec(), scene.quick.parameters().to_vec());
    let former = scene.losses();
    let mut average = |weight: f32| {
        let mixed: Vec<f32> = slow.iter().zip(&quick).map(|(s, q)| (1.0 - weight) * s + weight * q).collect();
        scene.slow.set_parameters(&mixed).expect("parameters");
        scene.losses()
    };
    let (hundredth, half) = (average(0.01), average(0.5));
    scene.slow.set_parameters(&slow).expect("parameters");
    let report = scene.run(&settings(), &mut || true).expect("a report");
    assert!(matches!(report.outcome, Outcome::Accepted(_)), "{report:?}");
    let objective = scene.losses();
    let sum = |losses: [f64; 2]| losses[0] + losses[1];
    println!("before {former:?}, 0.99/0.01 {hundredth:?}, 0.5/0.5 {half:?}, objective {objective:?}");
    // One average takes 1 % of the way, the other forgets; the objective is better than both.
    assert!(former[1] - hundredth[1] < 0.05 * (former[1] - objective[1]));
    assert!(sum(objective) < 0.8 * sum(half).min(sum(hundredth)));
    let (first, last) = report.training_loss.expect("steps");
    assert!(last < first);
    assert!(report.change.is_some_and(|change| change > 0.0) && report.penalty.is_some_and(|p| p > 0.0));
}

#[test]
fn a_worse_result_is_rolled_back() {
    let mut scene = scene();
    let former = scene.slow.parameters().to_vec();
    // Labels of the examples to train on are wrong.
    for replayed in &mut scene.replay {
        replayed.example.1 = 1 - replayed.example.1;
    }
    let report = scene.run(&settings(), &mut || true).expect("a report");
    let Outcome::Rejected(gate) = &report.outcome else { panic!("{report:?}") };
    assert!(gate.overall.after > gate.overall.before && gate.verdict != Verdict::Accepted);
    assert_eq!(scene.slow.parameters(), former);
}

#[test]
fn what_is_not_done_is_reported_with_its_reason() {
    let mut scene = scene();
    let former = scene.slow.parameters().to_vec();
    let mut left = 5;
    let stop = &mut || {
        left -= 1;
        left >= 0
    };
    let stopped = scene.run(&settings(), stop).expect("a report");
    assert_eq!(stopped.outcome, Outcome::Skipped(Skip::Stopped { steps: 5 }));
    assert_eq!(scene.slow.parameters(), former);

    let all = std::mem::take(&mut scene.held_out);
    scene.held_out = all[..5].to_vec();
    let few = scene.run(&settings(), &mut || true).expect("a report");
    assert_eq!(few.outcome, Outcome::Skipped(Skip::FewHeldOut { got: 5, need: 30 }));
    assert_eq!((few.steps, few.training_loss, few.change), (0, None, None));

    scene.held_out = all;
    scene.replay.truncate(3);
    let few = scene.run(&settings(), &mut || true).expect("a report");
    assert_eq!(few.outcome, Outcome::Skipped(Skip::FewExamples { got: 3, need: 32 }));
    assert_eq!(scene.slow.parameters(), former);
}

#[test]
fn diverging_training_and_errors_leave_the_former_parameters() {
    let mut scene = scene();
    let former = scene.slow.parameters().to_vec();
    scene.replay[0].example.0[0] = f32::NAN;
    let report = scene.run(&settings(), &mut || true).expect("a report");
    assert!(matches!(report.outcome, Outcome::Skipped(Skip::Diverged { .. })), "{report:?}");
    assert_eq!(scene.slow.parameters(), former);

    scene.replay.remove(0);
    scene.held_out[0].example.0[0] = f32::NAN;
    assert!(matches!(scene.run(&settings(), &mut || true), Err(Error::NotFinite { .. })));
    assert_eq!(scene.slow.parameters(), former);

    let other = ParameterLayout::new([("V", 40)]).expect("a layout");
    scene.ewc = Ewc::new(other, EwcSettings::default()).expect("settings");
    assert!(matches!(scene.run(&settings(), &mut || true), Err(Error::Layout { .. })));
    let bad = ConsolidationSettings { learning_rate: 0.0, ..settings() };
    assert!(matches!(scene.run(&bad, &mut || true), Err(Error::Setting { .. })));
}
