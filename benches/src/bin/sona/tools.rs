//! Tool calls: learning from corrected calls.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ruvllm::crates::sona::instant::{Lesson, Settings as Learning};
use ruvllm::crates::text::chat::AnsweredChat;
use ruvllm::{
    AdapterSource, Engine, GenerateRequest, Message, Prompt, SamplingParams, ScaledAdapter, Tenant, TokenId,
};
use ruvllm_adapters::Adapter;
use ruvllm_adapters::export::FactorType;
use ruvllm_training::Sequence;
use serde::Deserialize;
use serde_json::{Value, json};

use super::deep::{Trainable, WINDOWS};
use super::{Result, Settings, candidates, change, encode, engine, instant, percent, perplexity};

/// Corrected calls that are taught.
const TAUGHT: usize = 300;
/// Tokens of an answer.
const TOKENS: usize = 128;
/// Times that fine-tuning sees each call.
const EPOCHS: usize = 3;

/// A conversation with tools.
#[derive(Deserialize)]
struct Task {
    messages: Vec<Message>,
    tools: Value,
}

/// The first call of a conversation.
struct Call {
    name: String,
    arguments: Value,
}

pub(super) fn run(settings: &Settings, train: &Path, test: &Path) -> Result<Value> {
    let mut engine = engine(settings)?;
    let general = encode(&engine, &settings.general)?;
    let (train, test) = (read(train)?, read(test)?);
    let names = |tasks: &[Task]| -> BTreeSet<String> {
        tasks.iter().filter_map(|task| Some(task.split()?.2.name)).collect()
    };
    let train = &train[..train.len().min(TAUGHT)];
    let seen = names(train);
    let measure = |engine: &Engine| -> Result<[f64; 2]> {
        Ok([exact(engine, &test, &seen)?, perplexity(engine, &general, settings.measured)?])
    };
    let calls =
        train.iter().filter_map(|task| task.tokens(&engine).transpose()).collect::<Result<Vec<_>>>()?;
    println!(
        "| learned by | calls | exact on unseen tools before | after | general text |\n|---|---:|---:|---:|---:|"
    );
    let before = measure(&engine)?;
    let mut found = Vec::new();
    for (name, learn) in [("instant loop", instantly as Way), ("fine-tuning", deeply as Way)] {
        let adapter = learn(settings, &engine, &calls)?;
        engine.set_adapters(&[ScaledAdapter::new(adapter, 1.0)])?;
        let after = measure(&engine)?;
        engine.set_adapters(&[])?;
        println!(
            "| {name} | {} | {:.1} % | {:.1} % | {:+.2} % |",
            calls.len(),
            100.0 * before[0],
            100.0 * after[0],
            percent(before[1], after[1])
        );
        found.push(json!({
            "learned_by": name, "calls": calls.len(),
            "exact": { "before": before[0], "after": after[0] },
            "general": change(before[1], after[1]),
        }));
    }
    println!();
    Ok(Value::Array(found))
}

/// Tokens of a conversation, and the place of its first call.
type Taught = (Vec<TokenId>, Range<usize>);
type Way = fn(&Settings, &Engine, &[Taught]) -> Result<Arc<Adapter>>;

/// Each call once, by the instant loop.
fn instantly(_: &Settings, engine: &Engine, calls: &[Taught]) -> Result<Arc<Adapter>> {
    let learned = engine.learned_adapter(&Tenant::root(), "tools", Learning::default(), candidates())?;
    instant::hold_on(engine, &learned)?;
    for (tokens, answer) in calls {
        let observations = engine.observe(&tokens[..answer.end], answer.clone(), candidates())?;
        learned.learn(&observations, Lesson::Corrected)?;
    }
    Ok(learned.current())
}

/// Each call [`EPOCHS`] times, by back-propagation.
fn deeply(settings: &Settings, engine: &Engine, calls: &[Taught]) -> Result<Arc<Adapter>> {
    let data = calls
        .iter()
        .map(|(tokens, answer)| Sequence::with_prompt(&tokens[..answer.start], &tokens[answer.clone()]));
    let steps = (EPOCHS * calls.len()).div_ceil(WINDOWS) as u64;
    let tuned = Trainable::load(settings)?.fine_tune(data.collect(), steps)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tools");
    tuned.lora.write(&path, FactorType::F16, false)?;
    Ok(engine.load_adapter(&[AdapterSource { path, scale: 1.0 }])?)
}

fn read(path: &Path) -> Result<Vec<Task>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty());
    lines
        .map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| format!("{}:{number}: {error}", path.display()).into())
        })
        .collect()
}

impl Task {
    /// Messages before the first call, the message with it, and the call.
    fn split(&self) -> Option<(&[Message], &Message, Call)> {
        self.messages.iter().enumerate().find_map(|(at, message)| {
            let call = message.extra.get("tool_calls")?.as_array()?.first()?.clone();
            let call = call.get("function").cloned().unwrap_or(call);
            let (name, arguments) = (call["name"].as_str()?.to_owned(), call["arguments"].clone());
            Some((&self.messages[..at], message, Call { name, arguments }))
        })
    }

    /// Tokens of the conversation up to the first call, which is taught.
    fn tokens(&self, engine: &Engine) -> Result<Option<Taught>> {
        let Some((before, call, _)) = self.split() else { return Ok(None) };
        let messages = [before, std::slice::from_ref(call)].concat();
        let chat =
            engine.tokenizer().encode_answers(engine.chat_template()?, &messages, Some(&self.tools))?;
        let AnsweredChat { tokens, mut answers } = chat;
        Ok(answers.pop().map(|answer| (tokens, answer)))
    }

    fn prompt(&self, messages: &[Message]) -> Prompt {
        Prompt::chat_with_tools(messages.to_vec(), self.tools.clone())
    }
}

/// Share of exact first calls among tasks whose tool was not taught, without constraint.
fn exact(engine: &Engine, test: &[Task], seen: &BTreeSet<String>) -> Result<f64> {
    let (mut right, mut count) = (0_u32, 0_u32);
    for task in test {
        let Some((before, _, expected)) = task.split() else { continue };
        if seen.contains(&expected.name) {
            continue;
        }
        count += 1;
        let request = GenerateRequest::new(task.prompt(before))
            .with_max_tokens(TOKENS)
            .with_sampling(SamplingParams::greedy())
            .with_constrain_tools(false);
        let completion = engine.generate(request)?;
        let is_exact = completion.tool_calls.first().is_some_and(|found| {
            found.name == expected.name && Value::Object(found.arguments_value()) == expected.arguments
        });
        right += u32::from(is_exact);
    }
    if count == 0 {
        return Err("every tool of the test was taught".into());
    }
    Ok(f64::from(right) / f64::from(count))
}
