//! Consolidation behind the instant loop: one domain, and domains one after the other.

use std::sync::Arc;
use std::time::Instant;

use ruvllm::crates::sona::LearningStore;
use ruvllm::crates::sona::continual::{Outcome, Report};
use ruvllm::crates::sona::instant::Lesson;
use ruvllm::crates::sona::online::TaughtText;
use ruvllm::crates::sona::store::StoreOptions;
use ruvllm::{Engine, LearningOptions, OnlineAdapter, ScaledAdapter, Tenant, TokenId};
use serde_json::{Value, json};

use super::{Domain, Result, Settings, WINDOW, change, columns, encode, engine, percent, perplexity};

/// An adapter with its engine and store.
struct Learned {
    engine: Engine,
    adapter: Arc<OnlineAdapter>,
    consolidations: Vec<Consolidation>,
    _folder: tempfile::TempDir,
}

/// Time of a consolidation, in seconds, and its report.
struct Consolidation(f64, Report);

impl Learned {
    fn new(settings: &Settings, options: LearningOptions) -> Result<Self> {
        let (engine, folder) = (engine(settings)?, tempfile::tempdir()?);
        let store = LearningStore::open(folder.path().join("learning.redb"), StoreOptions::default())?;
        let adapter = engine.online_adapter(&Tenant::root(), "learned", &store, options)?;
        Ok(Self { engine, adapter, consolidations: Vec::new(), _folder: folder })
    }

    /// Teaches windows as corrections, and consolidates when it is due.
    fn teach<'t>(&mut self, windows: impl Iterator<Item = &'t [TokenId]>) -> Result<()> {
        for window in windows.filter(|window| window.len() > 1) {
            let (prompt, response) = (window[..1].to_vec(), window[1..].to_vec());
            let text = TaughtText { prompt, response, lesson: Lesson::Corrected };
            self.adapter.teach(&self.engine, &text, &[])?;
            let started = Instant::now();
            if let Some(report) = self.adapter.consolidate(&self.engine, &mut || true)? {
                self.consolidations.push(Consolidation(started.elapsed().as_secs_f64(), report));
            }
        }
        Ok(())
    }

    fn perplexity(&mut self, text: &[TokenId], measured: usize) -> Result<f64> {
        self.engine.set_adapters(&[ScaledAdapter::new(self.adapter.current(), 1.0)])?;
        let found = perplexity(&self.engine, text, measured);
        self.engine.set_adapters(&[])?;
        found
    }

    fn accepted(&self) -> usize {
        let is_accepted = |of: &&Consolidation| matches!(of.1.outcome, Outcome::Accepted(_));
        self.consolidations.iter().filter(is_accepted).count()
    }
}

/// Each domain's training text once, with consolidation.
pub(super) fn domains(settings: &Settings) -> Result<Value> {
    println!(
        "| domain | seed | test before | after | change | general before | after | change | consolidations | accepted | seconds of one |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut found = Vec::new();
    for domain in &settings.domains {
        for seed in 0..settings.seeds {
            found.push(of_domain(settings, domain, seed)?);
        }
    }
    println!();
    Ok(Value::Array(found))
}

fn of_domain(settings: &Settings, domain: &Domain, seed: u64) -> Result<Value> {
    let mut options = LearningOptions::default();
    options.settings.seed = seed;
    let mut learned = Learned::new(settings, options)?;
    let (test, general) =
        (encode(&learned.engine, &domain.test)?, encode(&learned.engine, &settings.general)?);
    let measure = |learned: &mut Learned| -> Result<[f64; 2]> {
        Ok([learned.perplexity(&test, settings.measured)?, learned.perplexity(&general, settings.measured)?])
    };
    let before = measure(&mut learned)?;
    let train = encode(&learned.engine, &domain.train)?;
    learned.teach(train.chunks(WINDOW))?;
    let after = measure(&mut learned)?;
    let accepted = learned.accepted();
    let mut seconds: Vec<f64> = learned.consolidations.iter().map(|of| of.0).collect();
    let (count, seconds) = (seconds.len(), super::median(&mut seconds));
    println!(
        "| {} | {seed} | {} | {count} | {accepted} | {seconds:.1} |",
        domain.name,
        columns(before, after),
    );
    Ok(json!({
        "domain": domain.name, "seed": seed,
        "test": change(before[0], after[0]), "general": change(before[1], after[1]),
        "consolidations": count, "accepted": accepted, "seconds": seconds,
    }))
}

/// Protection of former domains: strength of the penalty, and tasks in the sample.
const METHODS: [(&str, bool, bool); 4] =
    [("neither", false, false), ("EWC", true, false), ("replay", false, true), ("both", true, true)];

/// Lessons of each domain in turn. Gain: fall of the loss of a domain over its own lessons.
/// Forgetting: its rise over those of the others.
pub(super) fn continual(settings: &Settings) -> Result<Value> {
    println!(
        "| protected by | seed | gains, nats | forgetting, nats | mean gain | mean forgetting | general |"
    );
    println!("|---|---:|---|---|---:|---:|---:|");
    let mut found = Vec::new();
    for seed in 0..settings.seeds {
        for method in METHODS {
            found.push(in_turn(settings, method, seed)?);
        }
    }
    println!();
    Ok(Value::Array(found))
}

fn in_turn(settings: &Settings, (name, ewc, replay): (&str, bool, bool), seed: u64) -> Result<Value> {
    let mut options = LearningOptions::default();
    options.settings.seed = seed;
    let consolidation = &mut options.online.consolidation;
    // The end of a domain's lessons is that of a task.
    consolidation.lessons = settings.lessons as u64;
    if !ewc {
        consolidation.ewc.strength = 0.0;
    }
    if !replay {
        consolidation.replay.max_tasks = 1;
    }
    let mut learned = Learned::new(settings, options)?;
    let general = encode(&learned.engine, &settings.general)?;
    let base_general = learned.perplexity(&general, settings.measured)?;
    let tests: Vec<_> =
        settings.domains.iter().map(|domain| encode(&learned.engine, &domain.test)).collect::<Result<_>>()?;
    let losses = |learned: &mut Learned| -> Result<Vec<f64>> {
        tests.iter().map(|test| Ok(learned.perplexity(test, settings.measured)?.ln())).collect()
    };
    let mut stages = vec![losses(&mut learned)?];
    for domain in &settings.domains {
        let train = encode(&learned.engine, &domain.train)?;
        learned.teach(train.chunks_exact(WINDOW).take(settings.lessons))?;
        stages.push(losses(&mut learned)?);
    }
    let last = stages.len() - 1;
    let gains: Vec<f64> =
        (0..last).map(|domain| stages[domain][domain] - stages[domain + 1][domain]).collect();
    let forgetting: Vec<f64> =
        (0..last.saturating_sub(1)).map(|domain| stages[last][domain] - stages[domain + 1][domain]).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let general = percent(base_general, learned.perplexity(&general, settings.measured)?);
    let list =
        |values: &[f64]| values.iter().map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(", ");
    println!(
        "| {name} | {seed} | {} | {} | {:.3} | {:.3} | {general:+.2} % |",
        list(&gains),
        list(&forgetting),
        mean(&gains),
        mean(&forgetting),
    );
    Ok(json!({
        "protected_by": name, "seed": seed, "gains": gains, "forgetting": forgetting,
        "general_percent": general, "accepted": learned.accepted(),
    }))
}
