//! `ruvllm sona bank learn`: lessons of trajectories that a judge has seen.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ruvllm::crates::sona::bank::{
    CommandJudge, Evidence, Extract as _, Extraction, ItemText, Judge, Judgement, ModelExtractor, NewItem,
    Rule, RulesJudge, Verdict,
};
use ruvllm::crates::sona::model::Embed as _;
use serde::{Deserialize, Serialize};

use super::open::{BankArgs, TENANT, now};
use crate::args::above_zero;
use crate::commands::text_embedder::{TextEmbedder, Writer, learning};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{input, output};

const HELP: &str = "\
FILE has one JSON object per line: {prompt, response} with perhaps id, rating (-1 to 1), exit_code and lessons: [{title,
description, body}]. A trajectory is learned once, by its id or else its line in the file.

The verdict is that of the rules, if there are any (all hold: success, none: failure, else partial); or that of --judge,
a program that gets {task, response, exit_code} on standard input and writes {verdict, quality, reason}; or that of the
rating: success above 0, failure below. What has no verdict teaches nothing.

Lessons of a line are taken as they are. Of a line without them the model writes at most three (--model, of a size that
can: the built-in one cannot). Lessons that copy the task or repeat another one are refused.

JSON: {bank, lines, known, verdicts: {success, failure, partial, unknown}, added: [ID], merged: [ID], refused: [TEXT]}

Examples:
  ruvllm sona bank learn work --data runs.jsonl --exit-code 0
  ruvllm sona bank learn work --data runs.jsonl --judge ./check.sh
  ruvllm sona bank learn work --data rated.jsonl --model org/repo-GGUF";

/// Learn lessons from judged trajectories
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct LearnArgs {
    #[command(flatten)]
    bank: BankArgs,

    /// The trajectories, one JSON object per line; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    data: PathBuf,

    /// Rule: the response has a match of the pattern; repeatable
    #[arg(long, value_name = "REGEX")]
    matches: Vec<String>,

    /// Rule: the response has no match of the pattern; repeatable
    #[arg(long, value_name = "REGEX")]
    matches_not: Vec<String>,

    /// Rule: the exit code is this one
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    exit_code: Option<i32>,

    /// Rule: the response is JSON that fits the schema in the file
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,

    /// Program that judges
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["matches", "matches_not", "exit_code", "schema"])]
    judge: Option<PathBuf>,

    /// Time limit of the judge in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", requires = "judge", value_parser = above_zero)]
    judge_timeout: f32,
}

/// A trajectory of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trajectory {
    id: Option<String>,
    prompt: String,
    response: String,
    rating: Option<f32>,
    exit_code: Option<i32>,
    lessons: Option<Vec<Lesson>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lesson {
    title: String,
    description: String,
    body: String,
}

/// The JSON document.
#[derive(Debug, Default, Serialize)]
struct Document {
    bank: String,
    lines: usize,
    known: usize,
    verdicts: Verdicts,
    added: Vec<u64>,
    merged: Vec<u64>,
    refused: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Verdicts {
    success: usize,
    failure: usize,
    partial: usize,
    unknown: usize,
}

impl LearnArgs {
    /// The judge of the flags; `None` = ratings.
    fn judge(&self) -> Result<Option<Box<dyn Judge>>> {
        if let Some(program) = &self.judge {
            let timeout = Duration::from_secs_f32(self.judge_timeout.min(1e6));
            return Ok(Some(Box::new(CommandJudge { program: program.clone(), args: Vec::new(), timeout })));
        }
        let mut rules = Vec::new();
        for pattern in &self.matches {
            rules.push(Rule::matches(pattern).map_err(learning)?);
        }
        for pattern in &self.matches_not {
            rules.push(Rule::matches_not(pattern).map_err(learning)?);
        }
        rules.extend(self.exit_code.map(Rule::ExitCode));
        if let Some(path) = &self.schema {
            let schema = serde_json::from_str(&input::file_text(path)?).map_err(|error| Error::Input {
                origin: path.display().to_string(),
                reason: error.to_string(),
            })?;
            rules.push(Rule::schema(&schema).map_err(learning)?);
        }
        if rules.is_empty() {
            return Ok(None);
        }
        Ok(Some(Box::new(RulesJudge::new(rules).map_err(learning)?)))
    }

    fn trajectories(&self) -> Result<Vec<(String, Trajectory)>> {
        let origin = self.data.display().to_string();
        let text = input::file_text(&self.data)?;
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(number, line)| {
                let place = format!("{origin}:{number}");
                let refused = |reason: String| Error::Input { origin: place.clone(), reason };
                let trajectory: Trajectory =
                    serde_json::from_str(line).map_err(|error| refused(error.to_string()))?;
                if trajectory.rating.is_some_and(|rating| !(-1.0..=1.0).contains(&rating)) {
                    return Err(refused("rating must be in [-1, 1]".to_owned()));
                }
                Ok((place, trajectory))
            })
            .collect()
    }
}

pub(crate) fn run(args: &LearnArgs, json: bool) -> Result<()> {
    let judge = args.judge()?;
    let trajectories = args.trajectories()?;
    let (open, embedder) = args.bank.open(true, |config| config)?;
    let mut document =
        Document { bank: args.bank.name.bank.clone(), lines: trajectories.len(), ..Document::default() };
    let mut progress = Progress::steps("learning");
    for (done, (place, trajectory)) in trajectories.iter().enumerate() {
        progress.update(done as u64, trajectories.len() as u64);
        let id = trajectory.id.as_deref().unwrap_or(place);
        if open.bank.is_known(TENANT, id).map_err(learning)? {
            document.known += 1;
            continue;
        }
        let judgement = match &judge {
            Some(judge) => judge.judge(&trajectory.evidence()).map_err(learning)?,
            None => trajectory.rated(),
        };
        let count = match judgement.verdict {
            Verdict::Success => &mut document.verdicts.success,
            Verdict::Failure => &mut document.verdicts.failure,
            Verdict::Partial => &mut document.verdicts.partial,
            Verdict::Unknown => &mut document.verdicts.unknown,
        };
        *count += 1;
        if judgement.verdict == Verdict::Unknown {
            continue;
        }
        let extraction = trajectory.extract(&embedder, place, judgement.verdict)?;
        document.refused.extend(extraction.refused.iter().map(|reason| format!("{place}: {reason}")));
        let items = items(trajectory, &judgement, extraction, &embedder)?;
        let learned = open.bank.learn(TENANT, id, &items, now()).map_err(learning)?;
        document.added.extend(learned.added);
        document.merged.extend(learned.merged);
    }
    drop(progress);
    report(&document, json)
}

impl Trajectory {
    fn evidence(&self) -> Evidence<'_> {
        Evidence { task: &self.prompt, response: &self.response, exit_code: self.exit_code }
    }

    /// The judgement of a rating.
    fn rated(&self) -> Judgement {
        let verdict = match self.rating {
            Some(rating) if rating > 0.0 => Verdict::Success,
            Some(rating) if rating < 0.0 => Verdict::Failure,
            _ => return Judgement::unknown("no rating"),
        };
        Judgement { verdict, quality: self.rating.map(f32::abs), reason: "rated".to_owned() }
    }

    /// Lessons of the line, or those that the model writes.
    fn extract(&self, embedder: &TextEmbedder, place: &str, verdict: Verdict) -> Result<Extraction> {
        if let Some(lessons) = &self.lessons {
            let mut extraction = Extraction::default();
            for Lesson { title, description, body } in lessons {
                match ItemText::new(title, description, body) {
                    Ok(text) => {
                        let content = embedder.embed(&text.joined()).map_err(learning)?;
                        extraction.lessons.push((text, content));
                    }
                    Err(error) => extraction.refused.push(error.to_string()),
                }
            }
            return Ok(extraction);
        }
        let Some(engine) = embedder.engine() else {
            let reason =
                "it has no lessons, and an embedding model writes none; add lessons, or name a model \
                          that generates"
                    .to_owned();
            return Err(Error::Input { origin: place.to_owned(), reason });
        };
        let extractor = ModelExtractor::new(Writer(engine), embedder);
        extractor.extract(&self.evidence(), verdict).map_err(learning)
    }
}

fn items(
    trajectory: &Trajectory,
    judgement: &Judgement,
    extraction: Extraction,
    embedder: &TextEmbedder,
) -> Result<Vec<NewItem>> {
    if extraction.lessons.is_empty() {
        return Ok(Vec::new());
    }
    let query = embedder.embed(&trajectory.prompt).map_err(learning)?;
    let item = |(text, content)| NewItem {
        text,
        query: query.clone(),
        content,
        verdict: judgement.verdict,
        quality: judgement.quality.unwrap_or(0.5),
        expires: None,
    };
    Ok(extraction.lessons.into_iter().map(item).collect())
}

fn report(document: &Document, json: bool) -> Result<()> {
    if json {
        return output::write_json(document);
    }
    for reason in &document.refused {
        output::warn(reason);
    }
    let Verdicts { success, failure, partial, unknown } = &document.verdicts;
    let lines = output::counted(document.lines, "line");
    let (added, merged, refused) = (document.added.len(), document.merged.len(), document.refused.len());
    output::write_text(&format!(
        "{}: {lines}, {} known; {success} success, {failure} failure, {partial} partial, {unknown} unknown; \
         {added} lessons added, {merged} merged, {refused} refused\n",
        document.bank, document.known
    ))
    .map(drop)
}
