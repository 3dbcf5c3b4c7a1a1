//! Tests of several parts together, against closed forms and toys.

mod consolidate;
mod toy;

use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::random::Random;
use toy::{Labelled, Softmax, two_tasks};

fn layout(len: usize) -> ParameterLayout {
    ParameterLayout::new([("final.A", len)]).expect("a layout")
}

fn ewc(len: usize, settings: EwcSettings) -> Ewc {
    Ewc::new(layout(len), settings).expect("settings")
}

fn fisher(values: &[f32]) -> Fisher {
    Fisher::from_values(values.to_vec()).expect("finite")
}

/// Gradient descent with batches of 10 and the proximal step.
fn train(model: &mut Softmax, ewc: &Ewc, examples: &[Labelled], steps: usize, rate: f32) {
    let mut random = Random::new(5);
    let mut gradient = vec![0.0; model.layout().len()];
    for _ in 0..steps {
        let mut parameters = model.parameters().to_vec();
        for _ in 0..10 {
            model.gradient(&examples[random.below(examples.len())], &mut gradient).expect("a gradient");
            parameters.iter_mut().zip(&gradient).for_each(|(value, g)| *value -= rate / 10.0 * g);
        }
        ewc.proximal_step(&mut parameters, StepSize::Same(rate)).expect("a step");
        model.set_parameters(&parameters).expect("finite");
    }
}

/// Accuracies on A and B and loss on A, after A and B were learned in order.
fn after_both(seed: u64, strength: f32) -> (f64, f64, f64) {
    let [a, b] = two_tasks(seed, 400);
    let [test_a, test_b] = two_tasks(seed + 1_000, 1_000);
    let mut model = Softmax::new(2, 20);
    let mut ewc = ewc(40, EwcSettings { strength, ..EwcSettings::default() });
    train(&mut model, &ewc, &a, 400, 0.2);
    let fisher = Fisher::sampled(&mut model, &a, 2, seed).expect("information");
    ewc.finish_task(model.parameters(), fisher).expect("a task");
    train(&mut model, &ewc, &b, 400, 0.2);
    (model.accuracy(&test_a), model.accuracy(&test_b), model.mean_loss(&test_a))
}

/// Margins stated here: accuracy on A 10 points higher, loss on A at most half, accuracy on B
/// within 2 points.
#[test]
fn the_penalty_keeps_task_a_at_equal_plasticity_on_task_b() {
    for seed in 0..3 {
        let (without, with) = (after_both(seed, 0.0), after_both(seed, 0.005));
        assert!(with.0 >= without.0 + 0.1, "seed {seed}: {without:?} {with:?}");
        assert!(with.2 <= 0.5 * without.2, "seed {seed}: {without:?} {with:?}");
        assert!(with.1 >= without.1 - 0.02, "seed {seed}: {without:?} {with:?}");
    }
}

#[test]
fn decay_0_forgets_and_decay_1_sums() {
    let two = |decay| {
        let mut ewc = ewc(2, EwcSettings { decay, cap: 100.0, ..EwcSettings::default() });
        ewc.finish_task(&[1.0, 1.0], fisher(&[3.0, 1.0])).expect("a task");
        ewc.finish_task(&[2.0, 2.0], fisher(&[0.0, 10.0])).expect("a task");
        assert_eq!(ewc.anchor(), [2.0, 2.0]);
        ewc.importance().to_vec()
    };
    assert_eq!(two(0.0), [0.0, 2.0]);
    assert_eq!(two(1.0), [1.5, 2.5]);
    assert_eq!(two(0.5), [0.75, 2.25]);
}

#[test]
fn fisher_information_of_a_softmax_is_its_closed_form() {
    let mut model = Softmax::new(3, 2);
    model.set_parameters(&[0.5, -0.2, 0.1, 0.3, -0.4, 0.2]).expect("parameters");
    let input = (vec![1.5, -2.0], 1);
    // Var of a one-hot label: F of W[c, i] is p_c (1 - p_c) x_i^2.
    let p = model.probabilities(&input.0);
    let sampled = Fisher::sampled(&mut model, [&input], 40_000, 1).expect("information");
    for (index, &value) in sampled.values().iter().enumerate() {
        let (class, feature) = (index / 2, index % 2);
        let expected = p[class] * (1.0 - p[class]) * f64::from(input.0[feature]).powi(2);
        // Five standard errors of 40,000 draws are below 3 % here.
        assert!((f64::from(value) / expected - 1.0).abs() < 0.03, "{index}: {value} {expected}");
    }
    // Empirical: the square of the gradient for the label given.
    let empirical = Fisher::empirical(&mut model, [&input]).expect("information");
    let expected = ((p[1] - 1.0) * 1.5).powi(2);
    assert!((f64::from(empirical.values()[2]) / expected - 1.0).abs() < 1e-5);
}

/// `y ~ N(theta, s^2)`: the information is `1 / s^2` at every theta, for true labels too.
#[test]
fn fisher_information_of_a_gaussian_is_its_closed_form() {
    struct Gaussian(ParameterLayout, Vec<f32>, f64);
    impl Learner for Gaussian {
        type Example = f64;

        fn layout(&self) -> &ParameterLayout {
            &self.0
        }

        fn parameters(&self) -> &[f32] {
            &self.1
        }

        fn set_parameters(&mut self, parameters: &[f32]) -> crate::Result<()> {
            self.0.check_finite("parameters", parameters)?;
            self.1.copy_from_slice(parameters);
            Ok(())
        }

        fn loss(&mut self, y: &f64) -> crate::Result<f64> {
            Ok((y - f64::from(self.1[0])).powi(2) / (2.0 * self.2 * self.2))
        }

        fn gradient(&mut self, y: &f64, gradient: &mut [f32]) -> crate::Result<f64> {
            gradient[0] = ((f64::from(self.1[0]) - y) / (self.2 * self.2)) as f32;
            self.loss(y)
        }
    }
    impl SampledGradient for Gaussian {
        fn sampled_gradient(
            &mut self,
            _: &f64,
            uniform: &mut dyn FnMut() -> f64,
            gradient: &mut [f32],
        ) -> crate::Result<()> {
            let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
            let normal = radius * (std::f64::consts::TAU * uniform()).cos();
            let y = f64::from(self.1[0]) + self.2 * normal;
            self.gradient(&y, gradient).map(|_| ())
        }
    }
    for (theta, deviation) in [(0.0, 1.0), (3.0, 0.5)] {
        let mut model = Gaussian(layout(1), vec![theta], deviation);
        let found = Fisher::sampled(&mut model, [&100.0], 20_000, 2).expect("information");
        // The square of a normal number has deviation sqrt(2): 1 % per standard error.
        let product = f64::from(found.values()[0]) * deviation * deviation;
        assert!((product - 1.0).abs() < 0.05, "{theta} {deviation}: {product}");
    }
}

#[test]
fn gradients_are_squared_before_they_are_averaged() {
    // Two examples whose gradients cancel.
    let mut model = Softmax::new(2, 1);
    let examples = [(vec![1.0], 0), (vec![1.0], 1)];
    let fisher = Fisher::empirical(&mut model, &examples).expect("information");
    assert_eq!(fisher.values(), [0.25, 0.25]);
}

#[test]
fn normalization_caps_and_has_mean_1() {
    let mut values = vec![1.0; 99];
    values.push(1e6);
    let normal = fisher(&values).normalize(99.0).expect("information");
    assert!(normal.values().iter().all(|&value| (value - 1.0).abs() < 1e-6));
    let sparse = fisher(&[0.0, 0.0, 0.0, 8.0]).normalize(50.0).expect("information");
    assert_eq!(sparse.values(), [0.0, 0.0, 0.0, 4.0], "a cap of 0 would remove everything");
    assert!(matches!(fisher(&[0.0, 0.0]).normalize(99.9), Err(Error::Empty { .. })));
    assert!(fisher(&[1.0]).normalize(f64::NAN).is_err());
    assert!(Fisher::from_values(vec![-1.0]).is_err());
    assert!(Fisher::from_values(vec![f32::NAN]).is_err());
}

proptest! {
    #[test]
    fn information_is_not_negative_and_the_penalty_is_0_at_the_anchor(
        weights in prop::collection::vec(-3.0..3.0_f32, 6),
        examples in prop::collection::vec((prop::collection::vec(-5.0..5.0_f32, 2), 0..3_usize), 1..20),
        moved in prop::collection::vec(-1.0..1.0_f32, 6),
    ) {
        let mut model = Softmax::new(3, 2);
        model.set_parameters(&weights).expect("parameters");
        let fisher = Fisher::sampled(&mut model, &examples, 1, 3).expect("information");
        prop_assert!(fisher.values().iter().all(|value| *value >= 0.0));
        let mut ewc = ewc(6, EwcSettings::default());
        match ewc.finish_task(&weights, fisher) {
            // All inputs 0, or so small that squares vanish.
            Err(Error::Empty { .. }) => return Ok(()),
            result => result.expect("a task"),
        }
        prop_assert_eq!(ewc.penalty(&weights).expect("a penalty"), 0.0);
        let other: Vec<f32> = weights.iter().zip(&moved).map(|(a, b)| a + b).collect();
        prop_assert!(ewc.penalty(&other).expect("a penalty") >= 0.0);
        // The proximal step never overshoots, however strong.
        let mut pulled = other.clone();
        ewc.proximal_step(&mut pulled, StepSize::Same(1e6)).expect("a step");
        for ((pulled, other), anchor) in pulled.iter().zip(&other).zip(&weights) {
            prop_assert!(pulled >= &other.min(*anchor) && pulled <= &other.max(*anchor));
        }
    }

    #[test]
    fn the_penalty_is_the_same_after_a_rescaling_of_factors(
        anchor in prop::collection::vec(-2.0..2.0_f32, 4),
        now in prop::collection::vec(-2.0..2.0_f32, 4),
        scale in 0.1..10.0_f32,
    ) {
        let mut ewc = ewc(4, EwcSettings::default());
        ewc.finish_task(&anchor, fisher(&[1.0, 2.0, 3.0, 4.0])).expect("a task");
        let before = ewc.penalty(&now).expect("a penalty");
        let scales = [scale, scale, 1.0 / scale, 1.0 / scale];
        ewc.rescale(&scales).expect("scales");
        let now: Vec<f32> = now.iter().zip(scales).map(|(value, scale)| value * scale).collect();
        let after = ewc.penalty(&now).expect("a penalty");
        // Roundings of anchor and importance, relative to terms of up to 4 * 16.
        prop_assert!((before - after).abs() <= 1e-4 * before.abs().max(1.0), "{} {}", before, after);
    }
}

#[test]
fn the_proximal_step_is_a_gradient_step_for_small_sizes() {
    let mut ewc = ewc(3, EwcSettings { strength: 5.0, ..EwcSettings::default() });
    ewc.finish_task(&[1.0, -1.0, 0.5], fisher(&[1.0, 2.0, 0.0])).expect("a task");
    let start = [3.0_f32, 2.0, 1.0];
    let mut gradient = [0.0; 3];
    ewc.add_gradient(&start, &mut gradient).expect("a gradient");
    for size in [1e-2_f32, 1e-3] {
        let mut by_step = start;
        ewc.proximal_step(&mut by_step, StepSize::Each(&[size; 3])).expect("a step");
        for ((found, &start), &gradient) in by_step.iter().zip(&start).zip(&gradient) {
            let expected = start - size * gradient;
            // They differ in second order: (eta lambda F)^2 |theta - theta*| with lambda F <= 10.
            assert!((found - expected).abs() <= (10.0 * size).powi(2) * 3.0 + 1e-6, "{found} {expected}");
        }
        assert_eq!(by_step[2], start[2], "no importance, no pull");
    }
    // The gradient is that of the penalty.
    let penalty = |at: &[f32; 3]| ewc.penalty(at).expect("a penalty");
    for index in 0..3 {
        let (mut up, mut down) = (start, start);
        (up[index], down[index]) = (up[index] + 0.25, down[index] - 0.25);
        let slope = (penalty(&up) - penalty(&down)) / 0.5;
        assert!((slope - f64::from(gradient[index])).abs() < 1e-4, "{index}: {slope} {gradient:?}");
    }
}

#[test]
fn importance_with_path_scores_is_the_sum_of_both() {
    let mut ewc = ewc(3, EwcSettings::default());
    ewc.finish_task_with_path(&[0.0; 3], &fisher(&[1.0, 3.0, 5.0]), &[4.0, 0.0, 1.0]).expect("a task");
    assert_eq!(ewc.importance(), [1.0, 0.5, 1.25]);
    let empty = ewc.finish_task_with_path(&[0.0; 3], &fisher(&[1.0; 3]), &[2.0; 3]);
    assert!(matches!(empty, Err(Error::Empty { .. })), "equal values tell nothing apart");
}

#[test]
fn a_new_anchor_keeps_the_mass_of_the_importance() {
    let mut ewc = ewc(2, EwcSettings { decay: 1.0, ..EwcSettings::default() });
    assert!(matches!(ewc.reanchor(&[0.0, 0.0], fisher(&[1.0, 1.0])), Err(Error::Empty { .. })));
    for _ in 0..3 {
        ewc.finish_task(&[1.0, 1.0], fisher(&[1.0, 3.0])).expect("a task");
    }
    ewc.reanchor(&[2.0, 0.5], fisher(&[5.0, 5.0])).expect("an anchor");
    assert_eq!((ewc.anchor(), ewc.importance(), ewc.tasks()), (&[2.0, 0.5][..], &[3.0, 3.0][..], 3));
}

#[test]
fn lengths_that_do_not_match_are_errors_and_change_nothing() {
    let mut ewc = ewc(2, EwcSettings::default());
    ewc.finish_task(&[1.0, 2.0], fisher(&[1.0, 1.0])).expect("a task");
    let before = ewc.clone();
    let is_dimension = |result: crate::Result<()>| matches!(result, Err(Error::Dimension { .. }));
    assert!(is_dimension(ewc.finish_task(&[1.0], fisher(&[1.0, 1.0]))));
    assert!(is_dimension(ewc.finish_task(&[1.0, 1.0], fisher(&[1.0]))));
    assert!(is_dimension(ewc.proximal_step(&mut [1.0; 3], StepSize::Same(0.1))));
    assert!(is_dimension(ewc.proximal_step(&mut [1.0; 2], StepSize::Each(&[0.1]))));
    assert!(is_dimension(ewc.add_gradient(&[1.0; 2], &mut [1.0])));
    assert!(is_dimension(ewc.penalty(&[1.0]).map(|_| ())));
    assert!(is_dimension(ewc.rescale(&[1.0])));
    assert!(ewc.rescale(&[1.0, 0.0]).is_err());
    assert!(ewc.proximal_step(&mut [1.0; 2], StepSize::Same(f32::NAN)).is_err());
    assert!(matches!(ewc.finish_task(&[1.0, f32::NAN], fisher(&[1.0; 2])), Err(Error::NotFinite { .. })));
    assert_eq!((ewc.anchor(), ewc.importance()), (before.anchor(), before.importance()));
    for settings in [
        EwcSettings { strength: -1.0, ..EwcSettings::default() },
        EwcSettings { decay: 1.1, ..EwcSettings::default() },
        EwcSettings { cap: 101.0, ..EwcSettings::default() },
    ] {
        assert!(matches!(Ewc::new(layout(1), settings), Err(Error::Setting { .. })));
    }
}
