//! Learning in an engine that is not ruvllm's: a Qwen2 model of candle learns one correction.
//!
//! ```text
//! cargo run --release -- [FOLDER [PROMPT ANSWER]]     token ids, separated by commas
//! ```

mod engine;

use std::error::Error;
use std::path::PathBuf;

use ruvllm_sona::LearningStore;
use ruvllm_sona::instant::{InstantLearner, Lesson, Settings};
use ruvllm_sona::online::{OnlineLearner, OnlineOptions, Taught, TaughtText};
use ruvllm_sona::store::StoreOptions;

use crate::engine::{Engine, Update};

/// Model of the repository's tests: random weights, 600 tokens.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/models/tests/data/tiny/qwen2/hf");
/// Times that the correction is taught.
const LESSONS: usize = 8;
/// Tokens that are generated for the comparison of outputs.
const GENERATED: usize = 24;

fn ids(text: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    let ids: Vec<u32> = text.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>()?;
    Ok(ids)
}

fn learner(engine: &Engine, store: &LearningStore) -> Result<OnlineLearner, Box<dyn Error>> {
    let learner = InstantLearner::new(engine.head(), Settings::default(), engine.candidates())?;
    let options = OnlineOptions::default();
    Ok(OnlineLearner::open(learner, store.clone(), ("default", "tone"), options, engine)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().map_or_else(|| PathBuf::from(TINY), PathBuf::from);
    let prompt = ids(&words.next().unwrap_or_else(|| "11,87,402,15,260,33".into()))?;
    let response = ids(&words.next().unwrap_or_else(|| "301,44,129,530,77,412,9,220,348,61,17,505".into()))?;
    let engine = Engine::open(&folder)?;
    let folder = tempfile::tempdir()?;
    let store = LearningStore::open(folder.path().join("learning.redb"), StoreOptions::default())?;
    let mut online = learner(&engine, &store)?;

    // Without learning, and with an update that was never taught.
    let plain = engine.generate(&prompt, GENERATED, None)?;
    let untaught = Update::of(online.learner())?;
    assert!(
        engine.generate(&prompt, GENERATED, Some(&untaught))? == plain,
        "an untaught update has no effect"
    );
    let before = engine.log_probability(&prompt, &response, None)?;

    let text = TaughtText { prompt: prompt.clone(), response: response.clone(), lesson: Lesson::Corrected };
    for lesson in 1..=LESSONS {
        match online.teach(&engine, &text, &[])? {
            Taught::Learned { update, .. } => println!(
                "lesson {lesson}: {:?}, {:.3} to {:.3} nats per token by the learner's account",
                update.outcome, update.log_probability_before, update.log_probability_after
            ),
            other => return Err(format!("lesson {lesson} was not learned: {other:?}").into()),
        }
    }
    let update = Update::of(online.learner())?;
    let after = engine.log_probability(&prompt, &response, Some(&update))?;
    let off = engine.log_probability(&prompt, &response, None)?;
    println!("log-probability of the correction, mean per token: {before:.3} before, {after:.3} after");
    assert!(after > before, "the correction became likelier");

    // Learning off: the same bits as before the lessons.
    assert_eq!(off.to_bits(), before.to_bits());
    assert!(engine.generate(&prompt, GENERATED, None)? == plain, "learning changed no weight");
    println!("learning off: {GENERATED} tokens and their logits unchanged");

    // The log gives the state back.
    let digest = online.status()?.digest;
    drop(online);
    assert_eq!(learner(&engine, &store)?.status()?.digest, digest);
    println!("opened again: the same state from the log");
    Ok(())
}
