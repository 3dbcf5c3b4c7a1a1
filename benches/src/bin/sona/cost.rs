//! Cost of learning while text is generated: decode with a learned adapter, with recording of the
//! answers, and while lessons are learned, beside decode without.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ruvllm::crates::sona::instant::Lesson;
use ruvllm::crates::sona::online::TaughtText;
use ruvllm::crates::sona::store::StoreOptions;
use ruvllm::crates::sona::trajectory::Trajectory;
use ruvllm::crates::sona::{LearningStore, Recorder, RecorderOptions};
use ruvllm::{
    Completion, Engine, EngineOptions, GenerateRequest, LearningOptions, OnlineAdapter, Prompt, Speculation,
    Tenant, TokenId,
};
use serde_json::{Value, json};

use super::{Result, Settings, encode, median, percentiles};

/// Rounds; in each, all conditions take turns.
const ROUNDS: usize = 5;
/// Tokens of a prompt and of an answer: longer than lessons rest.
const TOKENS: (usize, usize) = (64, 2048);
/// Lessons of the adapter before the measurement, and their tokens.
const LESSONS: (usize, usize) = (8, 128);

/// State of learning while an answer is generated.
#[derive(Clone, Copy, PartialEq)]
enum Condition {
    Off,
    Adapter,
    Recorded,
    Taught,
}

impl Condition {
    const ALL: [Self; 4] = [Self::Off, Self::Adapter, Self::Recorded, Self::Taught];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Adapter => "learned adapter",
            Self::Recorded => "and answers recorded",
            Self::Taught => "and lessons learned meanwhile",
        }
    }
}

/// Measurements of one condition.
#[derive(Default)]
struct Measured {
    /// Tokens per second of each answer.
    rates: Vec<f64>,
    /// Times between tokens of all answers.
    gaps: Vec<Duration>,
}

struct Bench {
    engine: Engine,
    adapter: std::sync::Arc<OnlineAdapter>,
    recorder: Recorder,
    text: Vec<TokenId>,
    lessons: AtomicU64,
}

pub(super) fn run(settings: &Settings) -> Result<Value> {
    let options = EngineOptions::default().with_speculation(Speculation::Off);
    let engine = Engine::open_with(settings.model.as_path(), &options)?;
    let text = encode(&engine, &settings.general)?;
    let folder = tempfile::tempdir()?;
    let store = LearningStore::open(folder.path().join("learning.redb"), StoreOptions::default())?;
    let adapter = engine.online_adapter(&Tenant::root(), "learned", &store, LearningOptions::default())?;
    let recorder = Recorder::start(store.clone(), RecorderOptions::default())?;
    let bench = Bench { engine, adapter, recorder, text, lessons: AtomicU64::new(0) };
    (0..LESSONS.0).try_for_each(|index| bench.teach(index))?;

    let mut measured = Condition::ALL.map(|_| Measured::default());
    for round in 0..=ROUNDS {
        for turn in 0..Condition::ALL.len() {
            let index = (round + turn) % Condition::ALL.len();
            let (completion, gaps) = bench.measure(Condition::ALL[index], round)?;
            // The first round warms up.
            if round > 0 {
                measured[index].rates.extend(completion.timings.decode_tok_s);
                measured[index].gaps.extend(gaps);
            }
        }
    }
    bench.recorder.flush()?;
    let status = bench.recorder.status();
    println!("| learning | tok/s, median | beside off | p99 between tokens, ms | beside off |");
    println!("|---|---:|---:|---:|---:|");
    let off = median(&mut measured[0].rates.clone());
    let gap_off = percentiles(&mut measured[0].gaps)[1];
    let mut found = Vec::new();
    for (condition, measured) in Condition::ALL.into_iter().zip(&mut measured) {
        let rate = median(&mut measured.rates);
        let [p50, p99] = percentiles(&mut measured.gaps);
        let (speed, gap) = (rate / off, p99 / gap_off);
        println!("| {} | {rate:.1} | {speed:.3} | {p99:.2} | {gap:.3} |", condition.name());
        found.push(json!({
            "learning": condition.name(), "rounds": measured.rates.len(), "tokens_per_second": rate,
            "beside_off": speed, "gap_ms": { "p50": p50, "p99": p99 }, "p99_beside_off": gap,
        }));
    }
    let taken = status.taken;
    let dropped = status.dropped_queue_full
        + status.dropped_queue_bytes
        + status.dropped_memory_budget
        + status.dropped_invalid
        + status.dropped_closed;
    println!("\n{taken} answers recorded, {dropped} dropped.\n");
    let lessons = bench.lessons.load(Ordering::Relaxed);
    Ok(json!({ "conditions": found, "recorded": taken, "dropped": dropped, "lessons": lessons }))
}

impl Bench {
    fn piece(&self, index: usize, tokens: usize) -> &[TokenId] {
        let pieces = (self.text.len() / tokens).max(1);
        &self.text[index % pieces * tokens..][..tokens]
    }

    fn teach(&self, index: usize) -> Result<()> {
        let (prompt, response) = self.piece(index, LESSONS.1).split_at(8);
        let (prompt, response) = (prompt.to_vec(), response.to_vec());
        let text = TaughtText { prompt, response, lesson: Lesson::Corrected };
        self.adapter.teach(&self.engine, &text, &[])?;
        self.lessons.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// An answer, and the durations of the steps of its tokens.
    fn measure(&self, condition: Condition, round: usize) -> Result<(Completion, Vec<Duration>)> {
        let prompt = Prompt::Tokens(self.piece(round, TOKENS.0).to_vec());
        let request = GenerateRequest::new(prompt).with_max_tokens(TOKENS.1).with_ignore_eos(true);
        let request = match condition {
            Condition::Off => request,
            _ => request.with_named_adapter("learned", 1.0),
        };
        let ended = AtomicBool::new(false);
        let first = self.engine.step_statistics().steps;
        let completion = std::thread::scope(|scope| -> Result<Completion> {
            let teacher = (condition == Condition::Taught).then(|| {
                scope.spawn(|| {
                    let mut index = round * 64;
                    while !ended.load(Ordering::Relaxed) && self.teach(index).is_ok() {
                        index += 1;
                    }
                })
            });
            let completion = self.engine.generate(request);
            ended.store(true, Ordering::Relaxed);
            if let Some(teacher) = teacher {
                teacher.join().map_err(|_| "the teacher panicked")?;
            }
            Ok(completion?)
        })?;
        if matches!(condition, Condition::Recorded | Condition::Taught) {
            self.record(&completion, condition, round);
        }
        // Steps of other texts are not among those that decode one sequence alone.
        let steps = self.engine.steps_since(first).into_iter();
        let decodes = steps.filter(|step| step.sequences == 1 && step.prefill_tokens == 0);
        Ok((completion, decodes.map(|step| step.duration).collect()))
    }

    /// As the server does it for tenants that learn, at the end of an answer.
    fn record(&self, completion: &Completion, condition: Condition, round: usize) {
        let trajectory = Trajectory {
            request_id: format!("{}-{round}", condition.name()),
            tenant: "default".to_owned(),
            model_digest: "bench".to_owned(),
            prompt_tokens: completion.prompt.clone(),
            response_tokens: completion.tokens.clone(),
            ..Trajectory::default()
        };
        // Drops are counted.
        let _ = self.recorder.record(trajectory);
    }
}
