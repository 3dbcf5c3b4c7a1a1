//! `ruvllm sona bank outcome`: the outcome of a request that a bank has served.

use clap::Args;
use ruvllm::crates::sona::bank::Verdict;
use serde::Serialize;

use super::document::{verdict, verdict_name};
use super::open::{BankName, now};
use crate::commands::text_embedder::learning;
use crate::error::{Error, Result};
use crate::output;

const HELP: &str = "\
Counted once for each request, in the arm of the request: a tenth of the requests get no item, so that the success rates
with and without memory can be compared (`ruvllm sona bank status`). The request shows its id on standard error.

JSON: {bank, request, verdict, recorded}; recorded is false if the outcome was known

Examples:
  ruvllm generate --chat --bank work \"Sum the invoices of March\"
  ruvllm sona bank outcome work success
  ruvllm sona bank outcome work failure --request 1795744000000.4711";

/// Record the outcome of a request
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct OutcomeArgs {
    #[command(flatten)]
    name: BankName,

    /// Outcome: success, failure or partial
    #[arg(value_name = "VERDICT", value_parser = verdict)]
    verdict: Verdict,

    /// Id of the request [default: the latest one]
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bank: &'a str,
    request: &'a str,
    verdict: &'a str,
    recorded: bool,
}

pub(crate) fn run(args: &OutcomeArgs, json: bool) -> Result<()> {
    let open = args.name.open(|config| config)?;
    let noted = open.noted()?;
    let given = match &args.request {
        Some(id) => noted.iter().rev().find(|given| given.receipt.request == *id),
        None => noted.last(),
    };
    let absent = || Error::Input {
        origin: args.name.bank.clone(),
        reason: match &args.request {
            Some(id) => format!("it has served no request {id:?}"),
            None => "it has served no request; `ruvllm generate --chat --bank NAME` makes one".to_owned(),
        },
    };
    let receipt = &given.ok_or_else(absent)?.receipt;
    let recorded = open.bank.record_outcome(receipt, args.verdict, now()).map_err(learning)?;
    let (bank, request, verdict) = (args.name.bank.as_str(), &receipt.request, verdict_name(args.verdict));
    if json {
        return output::write_json(&Document { bank, request, verdict, recorded });
    }
    let note = if recorded { "" } else { " was known; nothing changed" };
    output::write_text(&format!("{bank}: {verdict} of request {request}{note}\n")).map(drop)
}
