//! `ruvllm eval tools`: accuracy of tool calls.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm::{Completion, GenerateRequest, Message, Prompt, SamplingParams, ToolCall, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::engine::EngineArgs;
use crate::args::{positive, tool_choice};
use crate::commands::setup::EngineSetup;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{input, output, signal};

const HELP: &str = "\
Each line of the file is a JSON object with messages, tools and perhaps the
name of a split. The messages before the first one with tool_calls are the
prompt; the first of those calls is expected. Decoding is greedy.

called: the answer has a call. valid: its name is that of a tool, required
arguments are there, others are known, and their types fit. name: it is the
expected name. exact: name and arguments are those expected.

Ctrl-C ends the measurement with the result so far and exit code 130.

JSON: {version, commit, model: {name, fingerprint}, isa, threads, kv,
tool_choice, constrained, complete, gpu, results: [{split, tasks, called,
valid, name, exact}]}; the last result is that of all splits.

Examples:
  ruvllm eval tools --file calls.jsonl
  ruvllm eval tools --file calls.jsonl --tool-choice required --json
  ruvllm eval tools --file calls.jsonl --unconstrained";

/// Accuracy of tool calls
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ToolsArgs {
    /// The tasks, one JSON object per line; `-` reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,

    /// Calls: auto or required
    #[arg(long, value_name = "CHOICE", default_value = "auto", value_parser = tool_choice)]
    tool_choice: ToolChoice,

    /// Parse calls without restricting them to the tools' schemas
    #[arg(long)]
    unconstrained: bool,

    /// Use only the first N tasks
    #[arg(long, value_name = "N", value_parser = positive)]
    limit: Option<usize>,

    /// Maximum number of tokens per answer
    #[arg(long, short = 'n', value_name = "N", default_value = "256", value_parser = positive)]
    max_tokens: usize,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Context length of the tasks.
const CONTEXT: usize = 4096;

/// A task: the expected call of a conversation.
#[derive(Deserialize)]
struct Task {
    messages: Vec<Message>,
    tools: Value,
    #[serde(default)]
    split: String,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: EngineSetup,
    tool_choice: String,
    constrained: bool,
    /// False after Ctrl-C.
    complete: bool,
    results: Vec<Score>,
}

/// Numbers of tasks with a property.
#[derive(Debug, Clone, Default, Serialize)]
struct Score {
    split: String,
    tasks: usize,
    called: usize,
    valid: usize,
    name: usize,
    exact: usize,
}

pub(crate) fn run(args: &ToolsArgs, json: bool) -> Result<ExitCode> {
    let tasks = tasks(args)?;
    let model = args.engine.load(CONTEXT)?;
    let cancel = signal::cancel_on_interrupt();
    let mut progress = Progress::tokens("calling");
    let mut scores: Vec<Score> = Vec::new();
    let mut all = Score { split: "all".to_owned(), ..Score::default() };
    let mut complete = true;
    for (done, task) in tasks.iter().enumerate() {
        progress.update(done as u64, tasks.len() as u64);
        let (request, expected) = request(args, task, done)?;
        let mut go_on = |_: &str| ControlFlow::Continue(());
        let completion = model.backend().generate_with(&request, &cancel, &mut go_on)?;
        if cancel.is_cancelled() {
            complete = false;
            break;
        }
        let at = scores.iter().position(|score| score.split == task.split).unwrap_or_else(|| {
            scores.push(Score { split: task.split.clone(), ..Score::default() });
            scores.len() - 1
        });
        scores[at].add(&completion, &expected, &task.tools);
        all.add(&completion, &expected, &task.tools);
    }
    drop(progress);
    // A file without splits has one row.
    if scores.len() == 1 && scores[0].split.is_empty() {
        scores.clear();
    }
    scores.push(all);
    if json {
        let setup = EngineSetup::new(&args.engine.model, &model)?;
        let (tool_choice, constrained) = (args.tool_choice.to_string(), !args.unconstrained);
        output::write_json(&Document { setup, tool_choice, constrained, complete, results: scores })?;
    } else {
        output::write_text(&table(&scores))?;
    }
    Ok(if complete { ExitCode::SUCCESS } else { signal::exit_code() })
}

/// Reads the tasks.
fn tasks(args: &ToolsArgs) -> Result<Vec<Task>> {
    let text = input::file_text(&args.file)?;
    let limit = args.limit.unwrap_or(usize::MAX);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(limit);
    let task = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| wrong(args, at, &error.to_string()))
    };
    let tasks: Vec<Task> = lines.map(task).collect::<Result<_>>()?;
    if tasks.is_empty() {
        return Err(wrong(args, 0, "there is no task"));
    }
    Ok(tasks)
}

fn wrong(args: &ToolsArgs, line: usize, reason: &str) -> Error {
    Error::Input { origin: args.file.display().to_string(), reason: format!("line {}: {reason}", line + 1) }
}

/// The request of a task, and the expected name and arguments.
fn request(args: &ToolsArgs, task: &Task, line: usize) -> Result<(GenerateRequest, (String, Value))> {
    let calls = |message: &Message| message.extra.get("tool_calls").and_then(Value::as_array).cloned();
    let found = task.messages.iter().enumerate().find_map(|(at, message)| {
        let call = calls(message)?.into_iter().next()?;
        let call = call.get("function").cloned().unwrap_or(call);
        Some((at, (call["name"].as_str()?.to_owned(), call["arguments"].clone())))
    });
    let (at, expected) = found.ok_or_else(|| wrong(args, line, "no message has tool_calls with a name"))?;
    let prompt = Prompt::chat_with_tools(task.messages[..at].to_vec(), task.tools.clone());
    let request = GenerateRequest::new(prompt)
        .with_max_tokens(args.max_tokens)
        .with_sampling(SamplingParams::greedy())
        .with_tool_choice(args.tool_choice.clone())
        .with_constrain_tools(!args.unconstrained);
    Ok((request, expected))
}

impl Score {
    /// Counts an answer.
    fn add(&mut self, completion: &Completion, (name, arguments): &(String, Value), tools: &Value) {
        self.tasks += 1;
        let Some(call) = completion.tool_calls.first() else { return };
        let has_name = call.name == *name;
        self.called += 1;
        self.valid += usize::from(is_valid(call, tools));
        self.name += usize::from(has_name);
        self.exact += usize::from(has_name && Value::Object(call.arguments_value()) == *arguments);
    }
}

/// True if a call fits the definition of a tool.
fn is_valid(call: &ToolCall, tools: &Value) -> bool {
    let functions = tools.as_array().into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool));
    let Some(tool) = functions.into_iter().find(|tool| tool["name"] == call.name.as_str()) else {
        return false;
    };
    let arguments = call.arguments_value();
    let none = Map::new();
    let properties = tool["parameters"]["properties"].as_object().unwrap_or(&none);
    let required = tool["parameters"]["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let fits = |(name, value): (&String, &Value)| {
        properties.get(name).is_some_and(|schema| {
            let has_type = match schema["type"].as_str() {
                Some("string") => value.is_string(),
                Some("integer") => value.is_i64() || value.is_u64(),
                Some("number") => value.is_number(),
                Some("boolean") => value.is_boolean(),
                Some("array") => value.is_array(),
                Some("object") => value.is_object(),
                _ => true,
            };
            has_type && schema["enum"].as_array().is_none_or(|values| values.contains(value))
        })
    };
    arguments.iter().all(fits) && required.into_iter().all(|name| arguments.contains_key(name))
}

fn table(scores: &[Score]) -> String {
    let head = ["split", "tasks", "called", "valid", "name", "exact"].map(str::to_owned).to_vec();
    let cells = |score: &Score| {
        let share = |n: usize| format!("{n} ({:.0} %)", 100.0 * n as f64 / score.tasks.max(1) as f64);
        let Score { split, tasks, called, valid, name, exact } = score;
        let shares = [called, valid, name, exact].map(|n| share(*n));
        [split.clone(), tasks.to_string()].into_iter().chain(shares).collect()
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(scores.iter().map(cells)).collect();
    output::table(&rows, &[1, 2, 3, 4, 5])
}
