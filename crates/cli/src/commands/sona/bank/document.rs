//! Items in JSON and as text.

use ruvllm::crates::sona::bank::{Counts, Item, Trials, Uplift, Verdict};
use serde::Serialize;

/// An item in JSON.
#[derive(Debug, Serialize)]
pub(super) struct ItemDocument {
    id: u64,
    title: String,
    description: String,
    body: String,
    verdict: Verdict,
    quality: f32,
    sources: u64,
    enabled: bool,
    created_unix: u64,
    expires_unix: Option<u64>,
    with: CountsDocument,
    without: CountsDocument,
    uplift: Option<UpliftDocument>,
}

/// Outcomes of requests.
#[derive(Debug, Serialize)]
pub(super) struct CountsDocument {
    uses: u64,
    wins: u64,
    losses: u64,
}

/// Difference of success rates with its 95 % interval.
#[derive(Debug, Serialize)]
pub(super) struct UpliftDocument {
    difference: f64,
    low: f64,
    high: f64,
}

impl From<Counts> for CountsDocument {
    fn from(counts: Counts) -> Self {
        Self { uses: counts.uses, wins: counts.wins, losses: counts.losses }
    }
}

impl From<Uplift> for UpliftDocument {
    fn from(uplift: Uplift) -> Self {
        Self { difference: uplift.difference, low: uplift.low, high: uplift.high }
    }
}

impl From<&Item> for ItemDocument {
    fn from(item: &Item) -> Self {
        Self {
            id: item.id,
            title: item.text.title().to_owned(),
            description: item.text.description().to_owned(),
            body: item.text.body().to_owned(),
            verdict: item.verdict,
            quality: item.quality,
            sources: item.sources,
            enabled: item.is_enabled,
            created_unix: item.created,
            expires_unix: item.expires,
            with: item.with.into(),
            without: item.without.into(),
            uplift: item.uplift().map(Into::into),
        }
    }
}

/// Name of a verdict, as flags take it.
pub(super) fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Success => "success",
        Verdict::Failure => "failure",
        Verdict::Partial => "partial",
        Verdict::Unknown => "unknown",
    }
}

/// Parses a verdict of a flag.
pub(super) fn verdict(text: &str) -> Result<Verdict, String> {
    match text {
        "success" => Ok(Verdict::Success),
        "failure" => Ok(Verdict::Failure),
        "partial" => Ok(Verdict::Partial),
        _ => Err("expected success, failure or partial".to_owned()),
    }
}

/// Wins of trials, as `3 of 4`.
pub(super) fn trials(counts: Counts) -> String {
    let Trials { wins, trials } = counts.trials();
    format!("{wins} of {trials}")
}

/// An uplift in points of percent.
pub(super) fn uplift(uplift: Option<Uplift>) -> String {
    uplift.map_or("-".to_owned(), |uplift| {
        let [difference, low, high] = [uplift.difference, uplift.low, uplift.high].map(|x| 100.0 * x);
        format!("{difference:+.1} points ({low:+.1} to {high:+.1})")
    })
}
