//! Tests over a model of one matrix, whose hidden state is the embedding of the last token.

mod consolidation;

use std::sync::Arc;

use ruvllm_kernels::Kernels;

use super::*;
use crate::continual::Gate;
use crate::error::{Error, Result};
use crate::instant::{InstantLearner, Lesson, OutputHead, Scratch, Settings};
use crate::random::Random;
use crate::rating::Rating;
use crate::store::{ForgetScope, LearningStore, StoreOptions};
use crate::trajectory::TrajectoryId;

const DIM: usize = 16;
const VOCAB: usize = 64;
const CANDIDATES: usize = 24;

/// Model: `logits = rows[last token] . rows`.
#[derive(Clone)]
struct Toy {
    rows: Vec<f32>,
    kernels: Kernels,
}

impl Toy {
    fn new() -> Self {
        let mut random = Random::new(7);
        let rows = (0..DIM * VOCAB).map(|_| 0.5 * random.normal() as f32).collect();
        Self { rows, kernels: Kernels::detect().unwrap() }
    }

    fn hidden(&self, token: u32) -> &[f32] {
        &self.rows[token as usize * DIM..][..DIM]
    }

    fn logits(&self, token: u32) -> Vec<f32> {
        let hidden = self.hidden(token);
        self.rows.chunks_exact(DIM).map(|row| self.kernels.dot(row, hidden)).collect()
    }

    fn sample(&self, token: u32, random: &mut Random) -> u32 {
        let logits = self.logits(token);
        let all = self.kernels.log_sum_exp(&logits);
        let mut left = random.uniform();
        for (token, logit) in (0..).zip(&logits) {
            left -= f64::from(logit - all).exp();
            if left <= 0.0 {
                return token;
            }
        }
        VOCAB as u32 - 1
    }
}

impl OutputHead for Toy {
    fn model_dim(&self) -> usize {
        DIM
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn row(&self, token: u32, row: &mut [f32]) {
        row.copy_from_slice(self.hidden(token));
    }

    fn kernels(&self) -> Kernels {
        self.kernels
    }
}

impl ObservedModel for Toy {
    fn digest(&self) -> Result<[u8; 32]> {
        Ok([7; 32])
    }

    fn observe(&self, tokens: &[u32], targets: Range<usize>) -> Result<Observations> {
        let (mut observations, mut scratch) = (Observations::new(DIM, CANDIDATES)?, Scratch::default());
        for at in targets {
            let before = tokens[at - 1];
            if before as usize >= VOCAB {
                return Err(Error::Token { token: before, vocab_size: VOCAB });
            }
            let logits = self.logits(before);
            observations.push(&self.kernels, self.hidden(before), &logits, tokens[at], &mut scratch)?;
        }
        Ok(observations)
    }

    fn ordinary_texts(&self, seeds: &[u64]) -> Result<Vec<Vec<u32>>> {
        let text = |seed: &u64| {
            let (mut random, mut tokens) = (Random::new(*seed), vec![0]);
            for at in 0..128 {
                tokens.push(self.sample(tokens[at], &mut random));
            }
            tokens
        };
        Ok(seeds.iter().map(text).collect())
    }
}

fn store(folder: &tempfile::TempDir) -> LearningStore {
    LearningStore::open(folder.path().join("learning.redb"), StoreOptions::default()).unwrap()
}

fn open_with(store: &LearningStore, tenant: &str, settings: Settings) -> Result<OnlineLearner> {
    let toy = Toy::new();
    let learner = InstantLearner::new(Arc::new(toy.clone()), settings, CANDIDATES)?;
    let options = OnlineOptions { gate_lessons: 4, ..OnlineOptions::default() };
    OnlineLearner::open(learner, store.clone(), (tenant, "default"), options, &toy)
}

fn settings() -> Settings {
    Settings { rate: 1e-3, column_rate: 1e-3, ..Settings::default() }
}

fn open(store: &LearningStore, tenant: &str) -> OnlineLearner {
    open_with(store, tenant, settings()).unwrap()
}

/// A correction: the tokens `4 5 6 7` again and again, from a place of its own.
fn correction(number: u64) -> TaughtText {
    let response = (0..12).map(|at| 4 + (at + number as u32) % 4).collect();
    TaughtText { prompt: vec![1, 2], response, lesson: Lesson::Corrected }
}

fn rated(number: u64, rating: f32) -> TaughtText {
    TaughtText { lesson: Lesson::Rated(Rating::new(rating).unwrap()), ..correction(number) }
}

fn teach(learner: &mut OnlineLearner, text: &TaughtText) -> Update {
    match learner.teach(&Toy::new(), text, &[]).unwrap() {
        Taught::Learned { update, .. } => update,
        other => panic!("{other:?}"),
    }
}

fn digest_of(learner: &OnlineLearner) -> [u8; 32] {
    learner.status().unwrap().digest
}

#[test]
fn one_lesson_has_an_effect_in_its_direction() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    for (tenant, text, rises) in
        [("a", correction(0), true), ("b", rated(0, 1.0), true), ("c", rated(0, -1.0), false)]
    {
        let mut learner = open(&store, tenant);
        let update = teach(&mut learner, &text);
        let change = update.log_probability_after - update.log_probability_before;
        assert!(if rises { change > 0.0 } else { change < 0.0 }, "{tenant}: {update:?}");
        assert!(learner.learner().norms().iter().any(|norm| *norm > 0.0));
    }
}

#[test]
fn a_process_that_ends_anywhere_goes_on_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut whole = open(&store, "whole");
    for number in 0..11 {
        teach(&mut whole, &if number % 3 == 2 { rated(number, 0.5) } else { correction(number) });
        // Another learner over the same log is what a new process has.
        assert_eq!(digest_of(&open(&store, "whole")), digest_of(&whole), "after {number}");
    }
    let status = open(&store, "whole").status().unwrap();
    assert_eq!((status.lessons, status.standing), (11, Standing::Learning));
    let replay = whole.replay(&Toy::new()).unwrap();
    assert_eq!((replay.lessons, replay.is_equal), (11, true));
    let lessons = whole.lessons().unwrap();
    assert_eq!((lessons.len(), &lessons[2], &lessons[3]), (11, &rated(2, 0.5), &correction(3)));
}

#[test]
fn forgetting_a_trajectory_is_as_if_it_had_not_been() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let (mut with, mut without) = (open(&store, "with"), open(&store, "without"));
    for number in 0..10 {
        let id = TrajectoryId(100 + number);
        with.teach(&Toy::new(), &correction(number), &[id]).unwrap();
        if number != 8 {
            without.teach(&Toy::new(), &correction(number), &[id]).unwrap();
        }
    }
    assert_ne!(digest_of(&with), digest_of(&without));
    let forget = |learner: &mut OnlineLearner, id: u64| {
        let scope = ForgetScope::Trajectory(TrajectoryId(id));
        assert_eq!(learner.forget(scope, &Toy::new()).unwrap().events, 1);
    };
    forget(&mut with, 108);
    assert_eq!(digest_of(&with), digest_of(&without));
    // One that is part of a snapshot: the state is that of the log without it.
    forget(&mut with, 105);
    assert_ne!(digest_of(&with), digest_of(&without));
    assert!(with.replay(&Toy::new()).unwrap().is_equal);
    with.forget(ForgetScope::All, &Toy::new()).unwrap();
    assert_eq!(digest_of(&with), digest_of(&open(&store, "nobody")));
}

#[test]
fn harm_is_undone_and_nothing_is_learned_until_release() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    // Without anchors, and with large steps: what a flood of bad feedback tries.
    let careless =
        Settings { rate: 0.05, column_rate: 0.05, anchor_weight: 0.0, largest_step: 10.0, ..settings() };
    let mut other = open(&store, "other");
    teach(&mut other, &correction(0));
    let untouched = digest_of(&other);
    let mut learner = open_with(&store, "poisoned", careless.clone()).unwrap();
    let fresh = digest_of(&learner);
    let mut lessons = 0;
    while learner.status().unwrap().standing == Standing::Learning {
        // Text that the model writes itself, rated as bad as can be.
        let ordinary = Toy::new().ordinary_texts(&[1001 + lessons]).unwrap().remove(0);
        let (prompt, response) = (ordinary[..1].to_vec(), ordinary[1..].to_vec());
        let lesson = Lesson::Rated(Rating::new(-1.0).unwrap());
        learner.teach(&Toy::new(), &TaughtText { prompt, response, lesson }, &[]).unwrap();
        lessons += 1;
        assert!(lessons < 1000, "never noticed: {:?}", learner.status());
    }
    assert!(matches!(learner.teach(&Toy::new(), &correction(0), &[]).unwrap(), Taught::Quarantined));
    let again = open_with(&store, "poisoned", careless).unwrap();
    for learner in [&learner, &again] {
        let status = learner.status().unwrap();
        assert!(matches!(status.standing, Standing::Quarantined { harm, .. } if harm > 0.01));
        assert_eq!(status.snapshot.is_none(), status.digest == fresh);
    }
    assert_eq!(digest_of(&open(&store, "other")), untouched);
    learner.release().unwrap();
    teach(&mut learner, &correction(0));
}

/// The anchors keep the text that the model writes itself; what is rated down is other text.
#[test]
fn ratings_against_text_that_is_no_longer_written_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let steady = Settings { rating_rate: 40.0, rating_clip: 10.0, largest_step: 1.0, ..settings() };
    let options = |of_rated| OnlineOptions { rated: of_rated, gate_lessons: 8, ..OnlineOptions::default() };
    let lessons_until_noticed = |tenant: &str, of_rated: Gate| {
        let toy = Toy::new();
        let learner = InstantLearner::new(Arc::new(toy.clone()), steady.clone(), CANDIDATES).unwrap();
        let gate = Gate { tolerance: 10.0, ..Gate::default() };
        let options = OnlineOptions { gate, ..options(of_rated) };
        let mut learner =
            OnlineLearner::open(learner, store.clone(), (tenant, "default"), options, &toy).unwrap();
        let noticed = (0..64)
            .find(|&number| learner.teach(&toy, &rated(number, -1.0), &[]).unwrap() == Taught::Quarantined);
        (noticed, learner)
    };
    let gate = OnlineOptions::default().rated;
    let (noticed, learner) = lessons_until_noticed("poisoned", gate);
    // Eight lessons are the first judgement.
    assert!(noticed.is_some_and(|number| number >= 8), "{noticed:?}: {:?}", learner.status());
    let Standing::Quarantined { harm, .. } = learner.status().unwrap().standing else { panic!("it learns") };
    assert!(harm > gate.tolerance);
    // No other part of the gate has noticed it.
    let off = Gate { tolerance: 100.0, ..gate };
    assert_eq!(lessons_until_noticed("unnoticed", off).0, None);
}

#[test]
fn roll_backs_go_to_the_bits_of_their_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut learner = open(&store, "t");
    let fresh = digest_of(&learner);
    for number in 0..4 {
        teach(&mut learner, &correction(number));
    }
    let (saved, version) = (digest_of(&learner), learner.status().unwrap().snapshot.unwrap().version);
    for number in 4..7 {
        teach(&mut learner, &correction(number));
    }
    assert_ne!(digest_of(&learner), saved);
    learner.roll_back(Some(version), &Toy::new()).unwrap();
    assert_eq!(digest_of(&learner), saved);
    learner.roll_back(None, &Toy::new()).unwrap();
    assert_eq!(digest_of(&learner), fresh);
    assert!(matches!(learner.roll_back(Some(99), &Toy::new()), Err(Error::UnknownSnapshot { .. })));
}

#[test]
fn texts_that_teach_nothing_are_errors_and_leave_the_log_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut learner = open(&store, "t");
    let text = |prompt: &[u32], response: &[u32]| TaughtText {
        prompt: prompt.to_vec(),
        response: response.to_vec(),
        lesson: Lesson::Corrected,
    };
    for bad in [text(&[], &[1]), text(&[1], &[]), text(&[99], &[1])] {
        learner.teach(&Toy::new(), &bad, &[]).unwrap_err();
    }
    assert_eq!(store.events("t", 0, 10).unwrap(), []);
    let other = Settings { seed: 1, ..settings() };
    teach(&mut learner, &correction(0));
    assert!(matches!(open_with(&store, "t", other), Err(Error::Foreign { .. })));
}

#[test]
fn noise_is_taken_for_an_outlier() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let mut learner = open(&store, "t");
    learner.options.outlier_log_probability = -4.0;
    // The least probable token behind each token.
    let mut tokens = vec![0];
    for at in 0..16 {
        let logits = Toy::new().logits(tokens[at]);
        let least = (0..VOCAB).min_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        tokens.push(least as u32);
    }
    let (prompt, response) = (vec![0], tokens.split_off(1));
    let noise = TaughtText { prompt, response, lesson: Lesson::Corrected };
    let taught = learner.teach(&Toy::new(), &noise, &[]).unwrap();
    assert!(matches!(taught, Taught::Outlier { log_probability } if log_probability < -4.0), "{taught:?}");
}
