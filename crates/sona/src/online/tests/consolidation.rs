//! Consolidation of a log.

use proptest::prelude::*;

use super::*;
use crate::continual::{ConsolidationSettings, Outcome, Report, Skip};
use crate::online::event::ConsolidationEvent;
use crate::online::state::State;

/// Options under which lessons may harm ordinary text: it is made of the same few tokens.
fn options() -> OnlineOptions {
    let gate = Gate { tolerance: 3.0, ..Gate::default() };
    let training = ConsolidationSettings {
        steps: 60,
        learning_rate: 0.01,
        min_examples: 8,
        gate,
        ..ConsolidationSettings::default()
    };
    let consolidation = ConsolidationOptions { lessons: 12, training, ..ConsolidationOptions::default() };
    // No judgement of the instant loop comes between.
    OnlineOptions { gate_lessons: 100, fresh_texts: 0, gate, consolidation, ..OnlineOptions::default() }
}

fn open_with(store: &LearningStore, tenant: &str, options: OnlineOptions) -> OnlineLearner {
    let toy = Toy::new();
    let settings = Settings { anchor_weight: 1.0, ..settings() };
    let learner = InstantLearner::new(Arc::new(toy.clone()), settings, CANDIDATES).unwrap();
    OnlineLearner::open(learner, store.clone(), (tenant, "default"), options, &toy).unwrap()
}

fn open(store: &LearningStore, tenant: &str) -> OnlineLearner {
    open_with(store, tenant, options())
}

/// Different lessons of one kind: after each token its successor.
fn lesson(number: u64) -> TaughtText {
    let response = (0..16).map(|at| 3 + ((at + 7 * number) % 40) as u32).collect();
    TaughtText { prompt: vec![1, 2], response, lesson: Lesson::Corrected }
}

fn teach_all(learner: &mut OnlineLearner, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        learner.teach(&Toy::new(), &lesson(number), &[TrajectoryId(100 + number)]).unwrap();
    }
}

fn consolidate(learner: &mut OnlineLearner) -> Option<Report> {
    learner.consolidate(&Toy::new(), &mut || true).unwrap()
}

fn accepted(learner: &mut OnlineLearner) {
    let report = consolidate(learner).expect("a consolidation");
    assert!(matches!(report.outcome, Outcome::Accepted(_)), "{report:?}");
}

fn same_parameters(a: &OnlineLearner, b: &OnlineLearner) {
    let [a, b] = [a, b].map(|learner| learner.learner().parameters());
    assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()));
}

/// Mean log-probability of lessons.
fn log_probability(learner: &mut OnlineLearner, numbers: std::ops::Range<u64>) -> f64 {
    let mut all = Vec::new();
    for number in numbers {
        let observations = text::observe(&Toy::new(), &lesson(number)).unwrap();
        all.extend(learner.state.learner.scores(&observations).unwrap());
    }
    all.iter().map(|score| score.log_probability).sum::<f64>() / all.len() as f64
}

#[test]
fn many_lessons_together_teach_more_than_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut learner = open(&store(&folder), "t");
    teach_all(&mut learner, 0..11);
    assert_eq!(consolidate(&mut learner), None, "too few new lessons");
    teach_all(&mut learner, 11..24);
    // Lessons that were never taught, of the same kind.
    let before = log_probability(&mut learner, 24..40);
    accepted(&mut learner);
    let after = log_probability(&mut learner, 24..40);
    assert!(after > before + 0.1, "{before} {after}");
    let status = learner.status().unwrap();
    assert_eq!((status.consolidations, status.new_lessons, status.lessons), ([1, 0], 0, 24));
    assert!(status.snapshot.is_some_and(|info| info.through == status.through));
    assert_eq!(consolidate(&mut learner), None, "nothing is new");
}

#[test]
fn a_log_with_consolidations_gives_the_same_bits_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut learner = open(&store, "t");
    for first in [0, 16] {
        teach_all(&mut learner, first..first + 16);
        accepted(&mut learner);
    }
    teach_all(&mut learner, 32..35);
    let again = open(&store, "t");
    assert_eq!(digest_of(&again), digest_of(&learner));
    let counts = |learner: &OnlineLearner| {
        let status = learner.status().unwrap();
        (status.consolidations, status.new_lessons)
    };
    assert_eq!((counts(&again), counts(&learner)), (([2, 0], 3), ([2, 0], 3)));
    assert!(learner.replay(&Toy::new()).unwrap().is_equal);
}

#[test]
fn a_process_that_ends_behind_the_event_goes_on_with_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (mut whole, mut killed) = (open(&store, "whole"), open(&store, "killed"));
    for learner in [&mut whole, &mut killed] {
        teach_all(learner, 0..16);
    }
    accepted(&mut whole);
    let event = ConsolidationEvent {
        through: killed.through,
        is_accepted: true,
        options: killed.options.consolidation,
    };
    killed.append(&event, &[]).unwrap();
    drop(killed);
    same_parameters(&whole, &open(&store, "killed"));
}

#[test]
fn lessons_that_come_while_it_trains_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut learner = open(&store, "t");
    teach_all(&mut learner, 0..16);
    let mut consolidation = learner.plan_consolidation(&Toy::new()).unwrap().expect("a plan");
    consolidation.train(&Toy::new(), &mut || true).unwrap().expect("a report");
    teach_all(&mut learner, 16..18);
    assert!(learner.finish_consolidation(&Toy::new(), consolidation).unwrap());
    assert_eq!(learner.status().unwrap().new_lessons, 2);
    assert_eq!(digest_of(&open(&store, "t")), digest_of(&learner));
    assert!(learner.replay(&Toy::new()).unwrap().is_equal);
    // The same lessons, and nothing meanwhile: they were learned on top of the consolidation.
    let mut one_by_one = open(&store, "u");
    teach_all(&mut one_by_one, 0..16);
    accepted(&mut one_by_one);
    teach_all(&mut one_by_one, 16..18);
    same_parameters(&learner, &one_by_one);
}

#[test]
fn nothing_is_judged_or_saved_while_it_trains() {
    let folder = tempfile::tempdir().unwrap();
    let mut learner = open_with(&store(&folder), "t", OnlineOptions { gate_lessons: 4, ..options() });
    teach_all(&mut learner, 0..12);
    let saved = learner.status().unwrap().snapshot.unwrap().version;
    let consolidation = learner.plan_consolidation(&Toy::new()).unwrap().expect("a plan");
    teach_all(&mut learner, 12..20);
    assert_eq!(learner.status().unwrap().snapshot.unwrap().version, saved);
    drop(consolidation);
    teach_all(&mut learner, 20..21);
    assert_eq!(learner.status().unwrap().snapshot.unwrap().version, saved + 1);
}

#[test]
fn a_result_is_void_after_a_change_that_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let toy = Toy::new();
    let changes: [fn(&mut OnlineLearner); 4] = [
        |learner| drop(learner.forget(ForgetScope::Trajectory(TrajectoryId(103)), &Toy::new()).unwrap()),
        |learner| learner.roll_back(None, &Toy::new()).unwrap(),
        |learner| learner.observe_ordinary(&[1, 2, 3, 4], &Toy::new()).unwrap(),
        |learner| learner.reload(&Toy::new()).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut learner = open(&store, &format!("t{number}"));
        teach_all(&mut learner, 0..16);
        let mut consolidation = learner.plan_consolidation(&toy).unwrap().expect("a plan");
        consolidation.train(&toy, &mut || true).unwrap().expect("a report");
        change(&mut learner);
        let before = digest_of(&learner);
        assert!(!learner.finish_consolidation(&toy, consolidation).unwrap(), "change {number}");
        assert_eq!(digest_of(&learner), before);
    }
}

#[test]
fn one_that_is_stopped_changes_nothing_and_can_be_planned_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut learner = open(&store(&folder), "t");
    teach_all(&mut learner, 0..16);
    let before = digest_of(&learner);
    // Between two texts, and between two steps.
    for calls in [3, 40] {
        let mut left = calls;
        let mut keep_going = || {
            left -= 1;
            left > 0
        };
        assert_eq!(learner.consolidate(&Toy::new(), &mut keep_going).unwrap(), None);
        assert_eq!((digest_of(&learner), learner.status().unwrap().new_lessons), (before, 16));
    }
    accepted(&mut learner);
}

#[test]
fn harm_at_ordinary_text_is_rejected_and_noted() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let strict = Gate::default();
    // Beside what is served, and beside the base model.
    let mut served = options();
    served.consolidation.training.gate = strict;
    for (tenant, careful) in [("served", served), ("base", OnlineOptions { gate: strict, ..options() })] {
        rejects(&store, tenant, &careful);
    }
}

fn rejects(store: &LearningStore, tenant: &str, careful: &OnlineOptions) {
    let mut learner = open_with(store, tenant, careful.clone());
    teach_all(&mut learner, 0..16);
    let before = digest_of(&learner);
    let report = consolidate(&mut learner).expect("a consolidation");
    assert!(matches!(report.outcome, Outcome::Rejected(_)), "{report:?}");
    let again = open_with(store, tenant, careful.clone());
    for learner in [&learner, &again] {
        let status = learner.status().unwrap();
        assert_eq!((status.digest, status.consolidations, status.new_lessons), (before, [0, 1], 0));
    }
}

#[test]
fn too_little_text_is_skipped_until_more_comes() {
    let folder = tempfile::tempdir().unwrap();
    let mut few = options();
    few.consolidation.training.min_examples = 1000;
    let mut learner = open_with(&store(&folder), "t", few);
    teach_all(&mut learner, 0..16);
    let report = consolidate(&mut learner).expect("a report");
    assert!(matches!(report.outcome, Outcome::Skipped(Skip::FewExamples { .. })), "{report:?}");
    assert_eq!(consolidate(&mut learner), None);
    teach_all(&mut learner, 16..28);
    assert!(consolidate(&mut learner).is_some());
}

#[test]
fn ordinary_text_alone_is_too_little() {
    let folder = tempfile::tempdir().unwrap();
    let mut learner = open(&store(&folder), "t");
    // One lesson over and over is one example.
    teach_all(&mut learner, [7; 16]);
    let report = consolidate(&mut learner).expect("a report");
    assert!(matches!(report.outcome, Outcome::Skipped(Skip::FewExamples { .. })), "{report:?}");
}

#[test]
fn a_consolidated_lesson_that_is_forgotten_is_as_if_it_had_not_been() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (mut with, mut without) = (open(&store, "with"), open(&store, "without"));
    teach_all(&mut with, 0..20);
    teach_all(&mut without, (0..20).filter(|number| *number != 5));
    for learner in [&mut with, &mut without] {
        accepted(learner);
        teach_all(learner, 20..22);
    }
    assert_ne!(digest_of(&with), digest_of(&without));
    with.forget(ForgetScope::Trajectory(TrajectoryId(105)), &Toy::new()).unwrap();
    assert_eq!(digest_of(&with), digest_of(&without));
}

#[test]
fn a_preference_survives() {
    let folder = tempfile::tempdir().unwrap();
    let mut learner = open(&store(&folder), "t");
    let of = |number: u64, rating: f32| {
        let response =
            (0..8).map(|at| 10 + ((at * 3 + number) % 9) as u32 + if rating > 0.0 { 20 } else { 0 });
        let lesson = Lesson::Rated(Rating::new(rating).unwrap());
        TaughtText { prompt: vec![1, 2], response: response.collect(), lesson }
    };
    let preference = |learner: &mut OnlineLearner| {
        [1.0, -1.0].map(|rating| {
            let observations = text::observe(&Toy::new(), &of(50, rating)).unwrap();
            let scores = learner.state.learner.scores(&observations).unwrap();
            scores.iter().map(|score| score.log_probability - score.base_log_probability).sum::<f64>()
        })
    };
    for number in 0..40 {
        learner.teach(&Toy::new(), &of(number, if number % 2 == 0 { 1.0 } else { -1.0 }), &[]).unwrap();
    }
    let [liked, disliked] = preference(&mut learner);
    assert!(liked > 0.0 && disliked < 0.0, "{liked} {disliked}");
    accepted(&mut learner);
    let [still_liked, still_disliked] = preference(&mut learner);
    assert!(still_liked > 0.0 && still_disliked < 0.0, "{still_liked} {still_disliked}");
    assert!(still_liked - still_disliked > liked - disliked);
}

/// A state with a consolidation.
fn state() -> State {
    let folder = tempfile::tempdir().unwrap();
    let mut learner = open(&store(&folder), "t");
    teach_all(&mut learner, 0..16);
    accepted(&mut learner);
    learner.state.clone()
}

#[test]
fn states_go_to_bytes_and_back() {
    let state = state();
    let (bytes, ewc) = (state.to_bytes(), options().consolidation.ewc);
    let mut restored = state.clone();
    restored.reset(&state.learner.snapshot()).unwrap();
    assert!(restored.consolidated.is_none());
    restored.restore(&bytes, ewc).unwrap();
    assert_eq!(restored.to_bytes(), bytes);
    for cut in [7, 8, 16, 24, bytes.len() / 2, bytes.len() - 1] {
        assert!(matches!(restored.restore(&bytes[..cut], ewc), Err(Error::Snapshot { .. })), "{cut}");
        assert_eq!(restored.to_bytes(), bytes, "a refused state changes nothing");
    }
    let mut huge = bytes;
    huge[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(restored.restore(&huge, ewc), Err(Error::Snapshot { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn states_of_strangers_do_not_panic(at in 0_usize..4000, by in 1_u8..=255) {
        thread_local!(static STATE: State = state());
        let mut state = STATE.with(Clone::clone);
        let mut bytes = state.to_bytes();
        let len = bytes.len();
        bytes[at % len] ^= by;
        let _ = state.restore(&bytes, options().consolidation.ewc);
    }
}
