//! Real-time settings: a load that shifts, in the engine with each of some fixed settings and with
//! the tuner.

use std::sync::Mutex;
use std::time::Instant;

use ruvllm::{
    Engine, EngineOptions, GenerateRequest, ModelSource, PrefixCaching, Prompt, SchedulerConfig, Speculation,
    TokenId, TuningOptions, TuningStatus,
};
use serde_json::{Value, json};

use super::{Result, Settings, encode, median};

/// Rounds; in each, all settings take turns.
const ROUNDS: usize = 3;
/// Largest batch and prefill chunk: those that the tuner begins with.
const MOST: (usize, usize) = (48, 512);

/// A part of the load: clients that each have one request at a time.
struct Phase {
    name: &'static str,
    clients: usize,
    requests: usize,
    prompt_tokens: usize,
    new_tokens: usize,
}

const PHASES: [Phase; 3] = [
    Phase { name: "short prompts", clients: 2, requests: 24, prompt_tokens: 24, new_tokens: 96 },
    Phase { name: "long prompts", clients: 4, requests: 48, prompt_tokens: 400, new_tokens: 48 },
    Phase { name: "many streams", clients: 48, requests: 192, prompt_tokens: 32, new_tokens: 64 },
];

/// Settings under comparison.
struct Setup {
    name: String,
    batch: usize,
    chunk: usize,
    speculation: Speculation,
    tuning: Option<TuningOptions>,
}

impl Setup {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for batch in [8, MOST.0] {
            for chunk in [64, MOST.1] {
                for speculation in [Speculation::Off, Speculation::Auto] {
                    let name = format!("batch {batch}, chunk {chunk}, drafts {speculation}");
                    all.push(Self { name, batch, chunk, speculation, tuning: None });
                }
            }
        }
        let tuned = |name: &str, tuning| Self {
            name: name.to_owned(),
            batch: MOST.0,
            chunk: MOST.1,
            speculation: Speculation::Auto,
            tuning: Some(tuning),
        };
        all.push(tuned("tuned", TuningOptions::default()));
        let short = TuningOptions::default().with_drafts(true).with_window(16);
        all.push(tuned("tuned with drafts, windows of 16 steps", short));
        all
    }

    fn engine(&self, settings: &Settings) -> Result<Engine> {
        let mut scheduling = SchedulerConfig::default();
        scheduling.max_running = self.batch;
        let options = EngineOptions::default()
            .with_scheduling(scheduling)
            .with_prefill_chunk(self.chunk)
            .with_speculation(self.speculation)
            .with_prefixes(PrefixCaching::Off)
            .with_tuning(self.tuning.clone())
            .with_draft_candidates(draft_of(settings));
        Ok(Engine::open_with(settings.model.as_path(), &options)?)
    }
}

/// The draft model beside the built-in model, if it is there.
fn draft_of(settings: &Settings) -> Vec<ModelSource> {
    let path = settings.model.with_file_name("draft-q8_0.gguf");
    path.is_file().then_some(ModelSource::Path(path)).into_iter().collect()
}

/// A run of the load.
struct Run {
    /// Seconds of each phase.
    seconds: [f64; 3],
    /// Tokens of all answers, which no setting may change.
    output: Vec<Vec<TokenId>>,
    status: Option<TuningStatus>,
    changes: Vec<String>,
}

pub(super) fn run(settings: &Settings) -> Result<Value> {
    let setups = Setup::all();
    let mut runs: Vec<Vec<Run>> = setups.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for turn in 0..setups.len() {
            let index = (turn + 3 * round) % setups.len();
            let run = load(&setups[index].engine(settings)?, settings)?;
            eprintln!("round {round}: {}: {:.2?} s", setups[index].name, run.seconds);
            if let Some(other) = runs.iter().flatten().next()
                && other.output != run.output
            {
                return Err(format!("{}: the output is another", setups[index].name).into());
            }
            runs[index].push(run);
        }
    }
    let names = PHASES.map(|phase| phase.name).join(", s | ");
    println!("| settings | all, s | {names}, s | kept | rolled back | shifts |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut found = Vec::new();
    for (setup, runs) in setups.iter().zip(&runs) {
        found.push(report(setup, runs));
    }
    println!();
    Ok(json!({ "rounds": ROUNDS, "settings": found }))
}

/// Prints the medians of a setting's runs.
fn report(setup: &Setup, runs: &[Run]) -> Value {
    let mut totals: Vec<f64> = runs.iter().map(|run| run.seconds.iter().sum()).collect();
    let spread = [f64::min, f64::max].map(|of| totals.iter().copied().reduce(of).unwrap_or(0.0));
    let total = median(&mut totals);
    let phases = [0, 1, 2].map(|phase| {
        let mut seconds: Vec<f64> = runs.iter().map(|run| run.seconds[phase]).collect();
        median(&mut seconds)
    });
    let counts = runs.iter().filter_map(|run| run.status.as_ref());
    let [kept, rolled_back, shifts] = counts.fold([0; 3], |[kept, rolled_back, shifts], status| {
        [kept + status.kept, rolled_back + status.rolled_back, shifts + status.shifts]
    });
    let [first, second, third] = phases;
    println!(
        "| {} | {total:.2} | {first:.2} | {second:.2} | {third:.2} | {kept} | {rolled_back} | {shifts} |",
        setup.name
    );
    let changes: Vec<_> = runs.iter().map(|run| &run.changes).collect();
    json!({
        "settings": setup.name, "seconds": total, "range": spread, "phases": phases,
        "kept": kept, "rolled_back": rolled_back, "shifts": shifts, "changes": changes,
    })
}

fn load(engine: &Engine, settings: &Settings) -> Result<Run> {
    let text = encode(engine, &settings.general)?;
    let mut output = Vec::new();
    let mut seconds = [0.0; 3];
    let mut start = 0;
    for (phase, seconds) in PHASES.iter().zip(&mut seconds) {
        let started = Instant::now();
        output.extend(serve(engine, phase, &text[start..])?);
        *seconds = started.elapsed().as_secs_f64();
        start += phase.requests * phase.prompt_tokens;
    }
    let changes = engine.take_tuning_changes().iter().map(ToString::to_string).collect();
    Ok(Run { seconds, output, status: engine.tuning_status(), changes })
}

/// Answers of a phase, in the order of its requests.
fn serve(engine: &Engine, phase: &Phase, text: &[TokenId]) -> Result<Vec<Vec<TokenId>>> {
    let next = Mutex::new(0);
    let answers: Mutex<Vec<Vec<TokenId>>> = Mutex::new(vec![Vec::new(); phase.requests]);
    let client = || -> std::result::Result<(), ruvllm::Error> {
        loop {
            let index = {
                let mut next = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *next += 1;
                *next - 1
            };
            if index >= phase.requests {
                return Ok(());
            }
            let prompt = text.iter().skip(index * phase.prompt_tokens).take(phase.prompt_tokens);
            let prompt = Prompt::Tokens(prompt.copied().collect());
            let request =
                GenerateRequest::new(prompt).with_max_tokens(phase.new_tokens).with_ignore_eos(true);
            let tokens = engine.generate(request.with_seed(index as u64))?.tokens;
            answers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[index] = tokens;
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..phase.clients).map(|_| scope.spawn(client)).collect();
        let ended = clients.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.collect::<std::result::Result<Vec<_>, _>>()
    })
    .map_err(|_| "a client panicked")?
    .into_iter()
    .collect::<std::result::Result<(), _>>()?;
    Ok(answers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}
