//! Tests over a small model with random weights.

use std::sync::Arc;

use proptest::prelude::*;
use ruvllm_kernels::Kernels;

use super::pieces::{Aim, Piece, PieceLearner};
use super::*;
use crate::continual::Learner as _;
use crate::error::Error;
use crate::random::Random;
use crate::rating::Rating;

const DIM: usize = 12;
const VOCAB: usize = 40;

/// Output projection with random rows.
#[derive(Clone)]
struct Head {
    rows: Vec<f32>,
    bias: Vec<f32>,
    soft_cap: Option<f32>,
    kernels: Kernels,
}

impl Head {
    fn new(seed: u64, soft_cap: Option<f32>) -> Self {
        let mut random = Random::new(seed);
        let mut values = |count: usize, by: f64| -> Vec<f32> {
            (0..count).map(|_| (by * random.normal()) as f32).collect()
        };
        let (rows, bias) = (values(DIM * VOCAB, 0.6), values(VOCAB, 0.3));
        Self { rows, bias, soft_cap, kernels: Kernels::detect().expect("kernels") }
    }

    /// Logits without updates.
    fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        let cap = |x: f32| self.soft_cap.map_or(x, |cap| cap * (x / cap).tanh());
        let rows = self.rows.chunks_exact(DIM).zip(&self.bias);
        rows.map(|(row, bias)| cap(self.kernels.dot(row, hidden) + bias)).collect()
    }
}

impl OutputHead for Head {
    fn model_dim(&self) -> usize {
        DIM
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn row(&self, token: u32, row: &mut [f32]) {
        row.copy_from_slice(&self.rows[token as usize * DIM..][..DIM]);
    }

    fn bias(&self, token: u32) -> f32 {
        self.bias[token as usize]
    }

    fn soft_cap(&self) -> Option<f32> {
        self.soft_cap
    }

    fn kernels(&self) -> Kernels {
        self.kernels
    }
}

/// Positions with random states, and targets that follow from them or at random.
fn observe(head: &Head, seed: u64, positions: usize, candidates: usize) -> Observations {
    let mut random = Random::new(seed);
    let mut observations = Observations::new(DIM, candidates).expect("sizes");
    let mut scratch = Scratch::default();
    for _ in 0..positions {
        let hidden: Vec<f32> = (0..DIM).map(|_| random.normal() as f32).collect();
        let target = random.below(VOCAB) as u32;
        let logits = head.logits(&hidden);
        observations.push(&head.kernels, &hidden, &logits, target, &mut scratch).expect("a position");
    }
    observations
}

fn settings() -> Settings {
    Settings { rate: 1e-2, column_rate: 1e-2, positions: 16, ..Settings::default() }
}

fn learner(head: &Head, settings: Settings, candidates: usize) -> InstantLearner {
    InstantLearner::new(Arc::new(head.clone()), settings, candidates).expect("a learner")
}

/// Loss of one position in f64, written from the formulas and the whole vocabulary.
fn reference_loss(
    head: &Head,
    shape: &Shape,
    parameters: &[f64],
    at: Observation<'_>,
    weights: (f64, f64),
) -> f64 {
    let hidden: Vec<f64> = at.hidden.iter().map(|&x| f64::from(x)).collect();
    let row = |start: usize, component: usize| &parameters[start + component * DIM..][..DIM];
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let mut updated = hidden.clone();
    for component in 0..shape.hidden_rank {
        let by = dot(row(shape.hidden_a().start, component), &hidden);
        let b = row(shape.hidden_b().start, component);
        updated.iter_mut().zip(b).for_each(|(out, b)| *out += by * b);
    }
    let cap = |x: f64| head.soft_cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh());
    let logits = |hidden: &[f64], with_update: bool| -> Vec<f64> {
        (0..VOCAB)
            .map(|token| {
                let w: Vec<f64> = head.rows[token * DIM..][..DIM].iter().map(|&x| f64::from(x)).collect();
                let mut logit = dot(&w, hidden) + f64::from(head.bias[token]);
                for component in 0..if with_update { shape.logits_rank } else { 0 } {
                    let by = dot(row(shape.logits_a().start, component), hidden);
                    logit += by * parameters[shape.logits_b().start + component * VOCAB + token];
                }
                cap(logit)
            })
            .collect()
    };
    let log_softmax = |logits: Vec<f64>| -> Vec<f64> {
        let sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
        logits.into_iter().map(|x| x - sum).collect()
    };
    let (with, without) = (log_softmax(logits(&updated, true)), log_softmax(logits(&hidden, false)));
    let divergence: f64 = without.iter().zip(&with).map(|(from, to)| from.exp() * (from - to)).sum();
    weights.1 * divergence - weights.0 * with[at.target as usize]
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for (hidden_rank, logits_rank, soft_cap) in [(2, 3, None), (4, 0, None), (0, 1, None), (1, 2, Some(4.0))]
    {
        let head = Head::new(7, soft_cap);
        let shape = Shape { model_dim: DIM, vocab_size: VOCAB, hidden_rank, logits_rank };
        let mut random = Random::new(3);
        let parameters: Vec<f32> = (0..shape.len()).map(|_| (0.2 * random.normal()) as f32).collect();
        // All tokens are candidates: no tail.
        let observations = observe(&head, 5, 2, VOCAB - 1);
        let mut pass = pass::Pass::new(shape, &head);
        for (at, weights) in observations.iter().zip([(1.0, 0.0), (-0.5, 0.7)]) {
            assert_eq!(at.tail, f32::NEG_INFINITY);
            let mut gradient = pass::Gradient::new(&shape);
            let (mut table, mut position) = (table::RowTable::new(&head), pass::Position::default());
            position.prepare(&head, &mut table, at);
            pass.forward((&head, &table), &parameters, at, &mut position);
            let weighed = (weights.0 as f32, weights.1 as f32);
            pass.backward(&table, &parameters, (at, &position), weighed, &mut gradient);
            let exact: Vec<f64> = parameters.iter().map(|&x| f64::from(x)).collect();
            for place in 0..shape.len() {
                let moved = |by: f64| {
                    let mut parameters = exact.clone();
                    parameters[place] += by;
                    reference_loss(&head, &shape, &parameters, at, weights)
                };
                let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let got = f64::from(gradient.values()[place]);
                assert!(
                    (got - expected).abs() <= 2e-5 * (1.0 + expected.abs()),
                    "{place}: {got}, {expected}"
                );
            }
        }
    }
}

#[test]
fn draws_give_the_probabilities_and_gradients_of_the_whole_vocabulary() {
    let head = Head::new(1, None);
    let shape = Shape { model_dim: DIM, vocab_size: VOCAB, hidden_rank: 2, logits_rank: 0 };
    let mut random = Random::new(5);
    // All logits move, those of the tail with them.
    let parameters: Vec<f32> = (0..shape.len()).map(|_| (0.15 * random.normal()) as f32).collect();
    let hidden: Vec<f32> = (0..DIM).map(|_| random.normal() as f32).collect();
    let of = |candidates: usize, offset: f32| -> (f64, f64, Vec<f32>) {
        let (mut observations, mut scratch) =
            (Observations::new(DIM, candidates).expect("sizes"), Scratch::default());
        // Logits moved together have the same probabilities, and other draws.
        let logits: Vec<f32> = head.logits(&hidden).iter().map(|logit| logit + offset).collect();
        observations.push(&head.kernels, &hidden, &logits, 3, &mut scratch).expect("a position");
        let mut observation = observations.get(0).expect("a position");
        observation.tail -= offset;
        let (mut pass, mut gradient) = (pass::Pass::new(shape, &head), pass::Gradient::new(&shape));
        let (mut table, mut position) = (table::RowTable::new(&head), pass::Position::default());
        position.prepare(&head, &mut table, observation);
        pass.forward((&head, &table), &parameters, observation, &mut position);
        pass.backward(&table, &parameters, (observation, &position), (1.0, 0.0), &mut gradient);
        let score = *position.score();
        (score.log_probability, score.base_log_probability, gradient.values().to_vec())
    };
    let (exact, base, exact_gradient) = of(VOCAB - 1, 0.0);
    assert!((exact - base).abs() > 0.05, "the updates do something: {exact}, {base}");
    let many: Vec<_> = (0..400).map(|n| of(5, 0.01 * n as f32)).collect();
    let mean = many.iter().map(|(score, ..)| score.exp()).sum::<f64>() / 400.0;
    // Log-probabilities are estimates within a few percent, and right in the mean.
    assert!(many.iter().all(|(score, _, _)| (score - exact).abs() < 0.2), "{exact}");
    assert!((mean / exact.exp() - 1.0).abs() < 0.01, "{mean} of {}", exact.exp());
    assert!(many.iter().all(|(_, of_base, _)| (of_base - base).abs() < 1e-4));
    let norm = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>().sqrt();
    let mean: Vec<f32> =
        (0..shape.len()).map(|at| many.iter().map(|(.., g)| g[at]).sum::<f32>() / 400.0).collect();
    let apart: Vec<f32> = mean.iter().zip(&exact_gradient).map(|(x, y)| x - y).collect();
    assert!(norm(&apart) < 0.03 * norm(&exact_gradient), "{} of {}", norm(&apart), norm(&exact_gradient));
}

#[test]
fn it_begins_without_effect() {
    let head = Head::new(2, None);
    let mut learner = learner(&head, settings(), 8);
    for score in learner.scores(&observe(&head, 4, 10, 8)).expect("scores") {
        assert_eq!((score.log_probability, score.divergence), (score.base_log_probability, 0.0));
    }
    assert_eq!((learner.updates(), learner.norms()), (0, [0.0, 0.0]));
}

#[test]
fn one_lesson_has_an_effect_in_its_direction() {
    let head = Head::new(2, None);
    let answer = observe(&head, 4, 10, 8);
    let rated = |value| Lesson::Rated(Rating::new(value).expect("a rating"));
    for (lesson, sign) in
        [(Lesson::Corrected, 1.0), (rated(1.0), 1.0), (rated(0.1), 1.0), (rated(-1.0), -1.0)]
    {
        let mut learner = learner(&head, settings(), 8);
        let update = learner.learn(&answer, lesson).expect("an update");
        assert_eq!((update.outcome, update.applied, learner.updates()), (Outcome::Applied, 1, 1));
        let gain = update.log_probability_after - update.log_probability_before;
        assert!(gain * sign > 0.0, "{lesson:?}: {gain}");
        let scores = learner.scores(&answer).expect("scores");
        let mean = scores.iter().map(|score| score.log_probability).sum::<f64>() / 10.0;
        assert!((mean - update.log_probability_after).abs() < 1e-9);
    }
    let mut learner = learner(&head, settings(), 8);
    let before = learner.parameters().to_vec();
    assert_eq!(learner.learn(&answer, rated(0.0)).expect("an update").outcome, Outcome::Nothing);
    let nothing = Observations::new(DIM, 8).expect("sizes");
    assert_eq!(learner.learn(&nothing, Lesson::Corrected).expect("an update").outcome, Outcome::Nothing);
    assert_eq!(learner.parameters(), before);
}

#[test]
fn a_short_lesson_takes_the_work_of_a_long_one() {
    let head = Head::new(2, None);
    let answer = observe(&head, 4, 2, 8);
    let gain = |steps: usize, largest_step: f64| {
        let mut learner = learner(&head, Settings { steps, largest_step, ..settings() }, 8);
        let update = learner.learn(&answer, Lesson::Corrected).expect("an update");
        assert!(update.divergence <= largest_step);
        (update.log_probability_after - update.log_probability_before, learner.updates())
    };
    let (one, _) = gain(1, 10.0);
    // Two positions of 16: eight steps.
    let (many, steps) = gain(100, 10.0);
    assert_eq!(steps, 8);
    assert!(many > 4.0 * one, "{many} of {one}");
    let (bounded, steps) = gain(100, 0.002);
    assert!(bounded < many && steps < 8, "{bounded}, {steps} steps");
}

#[test]
fn ratings_are_weighed_by_their_distance_from_the_baseline_and_never_change_their_sign() {
    let head = Head::new(2, None);
    let answer = observe(&head, 4, 10, 8);
    let mut learner = learner(&head, settings(), 8);
    let mut learn = |value| {
        let before = learner.baseline();
        let update =
            learner.learn(&answer, Lesson::Rated(Rating::new(value).expect("a rating"))).expect("an update");
        let expected = before + 0.1 * (value - before);
        assert!((learner.baseline() - expected).abs() < 1e-6);
        update.log_probability_after - update.log_probability_before
    };
    (0..20).for_each(|_| assert!(learn(-1.0) <= 0.0));
    assert!(learn(-0.5) <= 0.0, "better than usual and still bad");
    (0..40).for_each(|_| assert!(learn(1.0) >= 0.0));
    assert!(learn(0.5) >= 0.0, "worse than usual and still good");
}

#[test]
fn ratings_move_tokens_at_most_to_the_clip() {
    let head = Head::new(2, None);
    let answer = observe(&head, 4, 10, 8);
    let mut learner = learner(&head, Settings { rating_clip: 0.5, largest_step: 10.0, ..settings() }, 8);
    let bad = Lesson::Rated(Rating::new(-1.0).expect("a rating"));
    let last = (0..2000).map(|_| learner.learn(&answer, bad).expect("an update").outcome).last();
    assert_eq!(last, Some(Outcome::Nothing), "every token is at its clip");
    for score in learner.scores(&answer).expect("scores") {
        // Tokens share parameters, so one goes on falling until the last is at its clip.
        assert!(score.log_probability - score.base_log_probability > -3.0, "{score:?}");
    }
}

#[test]
fn an_update_stays_within_the_trust_region() {
    let head = Head::new(2, None);
    let answer = observe(&head, 4, 16, 8);
    let settings =
        Settings { rate: 0.5, column_rate: 0.5, largest_step: 0.02, largest_norm: 1.0, ..settings() };
    let mut learner = learner(&head, settings, 8);
    let mut divergence = 0.0;
    for _ in 0..30 {
        let update = learner.learn(&answer, Lesson::Corrected).expect("an update");
        assert!(update.divergence - divergence <= 0.02 + 1e-9);
        assert!(learner.norms()[0] <= 1.0 + 1e-5);
        divergence = update.divergence;
    }
    assert!(divergence > 0.02, "several updates go further than one");
}

#[test]
fn ordinary_positions_hold_the_model_to_its_base() {
    let head = Head::new(2, None);
    let (answer, ordinary) = (observe(&head, 4, 64, 8), observe(&head, 9, 200, 8));
    let mean = |learner: &mut InstantLearner, of: &Observations| {
        let scores = learner.scores(of).expect("scores");
        scores.iter().map(|score| score.divergence).sum::<f64>() / scores.len() as f64
    };
    let [free, held] = [0.0, 4.0].map(|anchor_weight| {
        let mut learner = learner(&head, Settings { anchor_weight, ..settings() }, 8);
        for at in ordinary.iter().take(100) {
            learner.observe_ordinary(at).expect("a position");
        }
        (0..20).for_each(|_| assert!(learner.learn(&answer, Lesson::Corrected).is_ok()));
        let others = ordinary.iter().skip(100);
        let mut unseen = Observations::new(DIM, 8).expect("sizes");
        others.for_each(|at| unseen.push_position(at).expect("a position"));
        mean(&mut learner, &unseen)
    });
    assert!(held < 0.8 * free, "{held} and {free} nats at positions that were not kept");
}

#[test]
fn bits_do_not_depend_on_the_instruction_set() {
    let results = Kernels::available().into_iter().map(|kernels| {
        let head = Head { kernels, ..Head::new(2, Some(8.0)) };
        let mut learner = learner(&head, settings(), 8);
        observe(&head, 8, 20, 8).iter().for_each(|at| assert!(learner.observe_ordinary(at).is_ok()));
        (0..5)
            .for_each(|seed| assert!(learner.learn(&observe(&head, seed, 30, 8), Lesson::Corrected).is_ok()));
        learner.snapshot().to_bytes()
    });
    let results: Vec<_> = results.collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_restored_learner_goes_on_bit_by_bit() {
    let head = Head::new(2, None);
    let mut first = learner(&head, Settings { kept_anchors: 30, ..settings() }, 8);
    observe(&head, 8, 50, 8).iter().for_each(|at| assert!(first.observe_ordinary(at).is_ok()));
    (0..3).for_each(|seed| assert!(first.learn(&observe(&head, seed, 30, 8), Lesson::Corrected).is_ok()));
    let snapshot = first.snapshot();
    let read = Snapshot::from_bytes(&snapshot.to_bytes()).expect("a snapshot");
    assert_eq!(read, snapshot);
    let mut second = learner(&head, Settings { kept_anchors: 30, seed: 9, ..settings() }, 8);
    second.restore(&read).expect("a state");
    for learner in [&mut first, &mut second] {
        observe(&head, 9, 10, 8).iter().for_each(|at| assert!(learner.observe_ordinary(at).is_ok()));
        assert!(
            learner
                .learn(&observe(&head, 77, 30, 8), Lesson::Rated(Rating::new(-0.7).expect("a rating")))
                .is_ok()
        );
    }
    assert_eq!(first.snapshot(), second.snapshot());
    assert_ne!(first.snapshot(), snapshot);
    first.restore(&snapshot).expect("a state");
    assert_eq!(first.snapshot(), snapshot);
    let mut other = learner(&head, Settings { logits_rank: 1, ..settings() }, 8);
    assert!(matches!(
        other.restore(&snapshot),
        Err(Error::Dimension { what: "logits_rank of the snapshot", .. })
    ));
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let head = Head::new(2, None);
    let mut learner = learner(&head, settings(), 8);
    let before = learner.snapshot();
    let mut observations = Observations::new(DIM, 8).expect("sizes");
    let (mut scratch, kernels) = (Scratch::default(), head.kernels);
    let (state, logits) = (vec![0.5; DIM], vec![0.0; VOCAB]);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut state = state.clone();
        state[3] = bad;
        let pushed = observations.push(&kernels, &state, &logits, 1, &mut scratch);
        assert!(matches!(pushed, Err(Error::NotFinite { what: "a hidden state" })));
        let mut logits = logits.clone();
        logits[3] = bad;
        let pushed = observations.push(&kernels, &state, &logits, 1, &mut scratch);
        assert!(matches!(pushed, Err(Error::NotFinite { .. })), "{bad}");
    }
    let pushed = observations.push(&kernels, &state, &logits, VOCAB as u32, &mut scratch);
    assert!(matches!(pushed, Err(Error::Token { .. })));
    assert!(matches!(
        observations.push(&kernels, &state[1..], &logits, 1, &mut scratch),
        Err(Error::Dimension { .. })
    ));
    assert!(observations.is_empty());
    let mut wide = Observations::new(DIM, 8).expect("sizes");
    wide.push(&kernels, &state, &vec![0.0; 2 * VOCAB], 60, &mut scratch)
        .expect("a position of a larger model");
    assert!(matches!(learner.learn(&wide, Lesson::Corrected), Err(Error::Token { token: 60.., .. })));
    let narrow = Observations::new(DIM - 1, 8).expect("sizes");
    assert!(matches!(learner.learn(&narrow, Lesson::Corrected), Err(Error::Dimension { .. })));
    assert_eq!(learner.snapshot(), before);
    for wrong in [
        Settings { hidden_rank: 0, logits_rank: 0, ..settings() },
        Settings { hidden_rank: 5, ..settings() },
        Settings { rate: f32::NAN, ..settings() },
        Settings { largest_step: 0.0, ..settings() },
        Settings { positions: 0, ..settings() },
        Settings { least_advantage: 1.5, ..settings() },
        Settings { anchor_weight: -1.0, ..settings() },
    ] {
        let made = InstantLearner::new(Arc::new(head.clone()), wrong, 8);
        assert!(matches!(made, Err(Error::Setting { .. })), "{made:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any lessons leave finite parameters; each rating moves its text in its direction or not at
    /// all.
    #[test]
    fn any_lessons_go_in_their_direction(
        lessons in prop::collection::vec((0u64..6, prop::option::of(-1f32..=1.0)), 1..25),
        rate in 1e-4f32..2.0,
    ) {
        let head = Head::new(2, None);
        let mut learner = learner(&head, Settings { rate, column_rate: rate, ..settings() }, 8);
        for (seed, rating) in lessons {
            let lesson = match rating {
                None => Lesson::Corrected,
                Some(value) => Lesson::Rated(Rating::new(value).expect("in range")),
            };
            let update = learner.learn(&observe(&head, seed, 12, 8), lesson).expect("an update");
            let gain = update.log_probability_after - update.log_probability_before;
            prop_assert!(gain * rating.map_or(1.0, |value| f64::from(value.signum())) >= 0.0, "{:?} {}", lesson, gain);
            prop_assert!(learner.parameters().iter().all(|value| value.is_finite()));
        }
    }

    /// Bytes that are cut off or changed are refused, or are another valid state; none panics.
    #[test]
    fn snapshots_of_strangers_do_not_panic(cut in 0usize..3000, at in 0usize..3000, by in 1u8..=255) {
        let head = Head::new(2, None);
        let small = Settings { hidden_rank: 1, logits_rank: 0, ..settings() };
        let mut learner = learner(&head, small, 2);
        observe(&head, 3, 2, 2).iter().for_each(|position| assert!(learner.observe_ordinary(position).is_ok()));
        let bytes = learner.snapshot().to_bytes();
        prop_assert!(Snapshot::from_bytes(&bytes[..cut % bytes.len()]).is_err());
        let mut changed = bytes.clone();
        let at = at % bytes.len();
        changed[at] ^= by;
        if let Ok(snapshot) = Snapshot::from_bytes(&changed) {
            let _ = learner.restore(&snapshot);
            prop_assert!(learner.learn(&observe(&head, 1, 3, 2), Lesson::Corrected).is_ok());
        }
    }
}

#[test]
fn gradients_of_pieces_are_those_of_finite_differences() {
    let head = Head::new(5, None);
    let mut learner = learner(&head, Settings { rate: 0.02, column_rate: 0.02, ..settings() }, 12);
    let observations = Arc::new(observe(&head, 6, 6, 12));
    learner.learn(&observations, Lesson::Corrected).unwrap();
    let aims = [
        Aim::Likelihood,
        Aim::Rating { value: -0.5, clip: 3.0 },
        Aim::Rating { value: 1.0, clip: 1e-9 },
        Aim::Base { weight: 2.0 },
    ];
    for aim in aims {
        let piece = Piece::new(Arc::clone(&observations), 1..5, aim).unwrap();
        let mut pieces = PieceLearner::new(learner.clone()).unwrap();
        let parameters = pieces.parameters().to_vec();
        let mut gradient = vec![0.0; parameters.len()];
        let loss = pieces.gradient(&piece, &mut gradient).unwrap();
        assert_eq!(loss, pieces.loss(&piece).unwrap());
        let largest = gradient.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        // A rating that has moved every token to its clip has nothing left to move.
        let is_clipped = matches!(aim, Aim::Rating { clip, .. } if clip < 1e-6);
        assert_eq!(largest == 0.0, is_clipped, "{aim:?}: {largest}");
        for at in (0..parameters.len()).step_by(parameters.len() / 61) {
            let mut moved = |by: f32| {
                let mut near = parameters.clone();
                near[at] += by;
                pieces.set_parameters(&near).unwrap();
                pieces.loss(&piece).unwrap()
            };
            let found = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            let expected = f64::from(gradient[at]);
            assert!(
                (found - expected).abs() < 2e-3 + 0.02 * expected.abs(),
                "{aim:?} {at}: {found} {expected}"
            );
        }
    }
    assert!(Piece::new(Arc::clone(&observations), 6..7, Aim::Likelihood).is_err());
    assert!(Piece::new(observations, 3..3, Aim::Likelihood).is_err());
}
