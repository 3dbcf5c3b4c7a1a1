//! Items of a bank in the prompt of a request.

use std::path::PathBuf;

use clap::Args;
use ruvllm::crates::sona::bank::{Arm, BankConfig, Item, PromptTemplate};
use ruvllm::crates::sona::model::Embed as _;

use super::open::{BankArgs, BankName, TENANT, now};
use crate::args::{CpuArgs, positive};
use crate::commands::text_embedder::learning;
use crate::error::{Error, Result};
use crate::output;

/// Characters of a prompt for each item: one with the longest texts fits.
const CHARACTERS: usize = 2000;

/// Flags of commands whose prompts may use a bank.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Bank of lessons")]
pub(crate) struct RecallArgs {
    /// Put the best item of a bank for the (first) message into the system message
    #[arg(long, value_name = "NAME")]
    pub(crate) bank: Option<String>,

    /// Maximum number of items, 1 to 16
    #[arg(long, value_name = "N", default_value = "1", requires = "bank", value_parser = positive)]
    bank_items: usize,

    /// Embedding model of the bank [default: the built-in one]
    #[arg(long, value_name = "MODEL", requires = "bank")]
    bank_model: Option<PathBuf>,

    /// Id of the request for `ruvllm sona bank outcome` [default: time and process]
    #[arg(long, value_name = "ID", requires = "bank")]
    bank_request: Option<String>,
}

impl RecallArgs {
    /// Refuses a bank where no prompt can use one.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a bank is named.
    pub(crate) fn refuse(&self, reason: &str) -> Result<()> {
        if self.bank.is_none() {
            return Ok(());
        }
        Err(Error::Conflict { flag: "--bank", reason: reason.to_owned() })
    }

    /// Checks that there is the bank.
    ///
    /// # Errors
    /// A bank that cannot be opened.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(name) = &self.bank else { return Ok(()) };
        BankName { bank: name.clone() }.open(|config| config).map(drop)
    }

    /// The system message with the items for a text; `system` alone without a bank, without a
    /// match, and in the control arm.
    ///
    /// # Errors
    /// As [`items`](Self::items).
    pub(crate) fn system(&self, system: Option<&str>, text: &str, json: bool) -> Result<Option<String>> {
        Ok(with_items(system, self.items(text, 1, json)?.as_deref()))
    }

    /// Items for a text by the bank's template; `None` without a bank, without a match, and in the
    /// control arm. `number` counts the requests of this process. A line on standard error says
    /// which items they are, unless the output is JSON.
    ///
    /// # Errors
    /// A bank that cannot be opened, or a text that cannot be embedded.
    pub(crate) fn items(&self, text: &str, number: usize, json: bool) -> Result<Option<String>> {
        let Some(name) = self.bank.as_ref().filter(|_| !text.is_empty()) else { return Ok(None) };
        let args = BankArgs {
            name: BankName { bank: name.clone() },
            cpu: CpuArgs::of_model(self.bank_model.clone()),
        };
        let (open, embedder) =
            args.open(false, |config| BankConfig { max_items: self.bank_items, ..config })?;
        let query = embedder.embed(text).map_err(learning)?;
        let request = match &self.bank_request {
            Some(id) if number == 1 => id.clone(),
            Some(id) => format!("{id}.{number}"),
            None => request_id(),
        };
        let found = open.bank.retrieve(TENANT, &request, &query, now()).map_err(learning)?;
        open.note(&found.receipt)?;
        let what = match (found.receipt.arm, found.receipt.items.is_empty()) {
            (_, true) => "no item matches".to_owned(),
            (Arm::Control, false) => format!("control arm, {:?} withheld", found.receipt.items),
            (Arm::Memory, false) => {
                let item = |found: &ruvllm::crates::sona::bank::Retrieved| {
                    format!("item {} ({:.2}), {}", found.item.id, found.similarity, found.item.text.title())
                };
                found.items.iter().map(item).collect::<Vec<_>>().join("; ")
            }
        };
        let said = format!("[bank {name}: {what}; request {request}]");
        if json {
            output::detail(&said);
        } else {
            output::hint(&said);
        }
        let items: Vec<&Item> = found.items.iter().map(|found| &found.item).collect();
        let max_chars = CHARACTERS * self.bank_items;
        Ok(PromptTemplate { max_chars, ..PromptTemplate::default() }.render(items))
    }
}

/// A system message with items at its end.
pub(crate) fn with_items(system: Option<&str>, items: Option<&str>) -> Option<String> {
    match (system, items) {
        (Some(system), Some(items)) => Some(format!("{system}\n\n{items}")),
        (system, items) => system.or(items).map(str::to_owned),
    }
}

/// Id of a request: time and process, unique for one process that makes one request.
fn request_id() -> String {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{}.{}", time.map_or(0, |time| time.as_millis()), std::process::id())
}
