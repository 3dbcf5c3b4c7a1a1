//! Tool calls: learning from corrected calls.

use std::collections::BTreeSet;
use std::path::Path;

use ruvllm::crates::sona::instant::{Lesson, Settings as Learning};
use ruvllm::{Engine, GenerateRequest, Message, Prompt, SamplingParams, ScaledAdapter, Tenant, TokenId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CANDIDATES, Result, Settings, change, encode, engine, instant, percent, perplexity};

/// Corrected calls that are taught.
const TAUGHT: usize = 300;
/// Tokens of an answer.
const TOKENS: usize = 128;

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
    let seen = names(&train);
    let before = [exact(&engine, &test, &seen)?, perplexity(&engine, &general, settings.measured)?];
    let learned = engine.learned_adapter(&Tenant::root(), "tools", Learning::default(), CANDIDATES)?;
    instant::hold_on(&engine, &learned)?;
    let mut taught = 0;
    for task in train.iter().take(TAUGHT) {
        let Some((prompt, answer)) = task.tokens(&engine)? else { continue };
        let text = [prompt.as_slice(), &answer].concat();
        let observations = engine.observe(&text, prompt.len()..text.len(), CANDIDATES)?;
        learned.learn(&observations, Lesson::Corrected)?;
        taught += 1;
    }
    engine.set_adapters(&[ScaledAdapter::new(learned.current(), 1.0)])?;
    let after = [exact(&engine, &test, &seen)?, perplexity(&engine, &general, settings.measured)?];
    println!("| calls taught | exact on unseen tools before | after | general text |\n|---:|---:|---:|---:|");
    println!(
        "| {taught} | {:.1} % | {:.1} % | {:+.2} % |\n",
        100.0 * before[0],
        100.0 * after[0],
        percent(before[1], after[1])
    );
    Ok(json!({
        "taught": taught, "exact": { "before": before[0], "after": after[0] },
        "general": change(before[1], after[1]),
    }))
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

    /// Tokens of the prompt, and of the answer as the chat template writes it.
    fn tokens(&self, engine: &Engine) -> Result<Option<(Vec<TokenId>, Vec<TokenId>)>> {
        let Some((before, call, _)) = self.split() else { return Ok(None) };
        let prompt = engine.encode_prompt(&self.prompt(before))?;
        let whole = engine.encode_prompt(&self.prompt(&[before, std::slice::from_ref(call)].concat()))?;
        // Behind the answer, the template opens the next one, as it has opened this one: the
        // longest end that both have in common.
        let common = prompt.iter().rev().zip(whole.iter().rev()).take_while(|(a, b)| a == b).count();
        let answer = whole.get(prompt.len()..whole.len() - common).unwrap_or_default();
        let is_answer = whole.starts_with(&prompt) && !answer.is_empty();
        Ok(is_answer.then(|| (prompt.clone(), answer.to_vec())))
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
