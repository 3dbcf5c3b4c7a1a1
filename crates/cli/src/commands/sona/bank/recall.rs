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

/// Flags of commands whose prompts may use a bank.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Bank of lessons")]
pub(crate) struct RecallArgs {
    /// Put the best item of a bank into the system message
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

    /// The system message with the items for a text; `system` alone without a bank, without a
    /// match, and in the control arm.
    ///
    /// # Errors
    /// A bank that cannot be opened, or a text that cannot be embedded.
    pub(crate) fn system(&self, system: Option<&str>, text: &str) -> Result<Option<String>> {
        let own = system.map(str::to_owned);
        let Some(name) = self.bank.as_ref().filter(|_| !text.is_empty()) else { return Ok(own) };
        let args = BankArgs {
            name: BankName { bank: name.clone() },
            cpu: CpuArgs::of_model(self.bank_model.clone()),
        };
        let (open, embedder) =
            args.open(false, |config| BankConfig { max_items: self.bank_items, ..config })?;
        let query = embedder.embed(text).map_err(learning)?;
        let request = self.bank_request.clone().unwrap_or_else(request_id);
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
        output::detail(&format!("[bank {name}: {what}; request {request}]"));
        let items: Vec<&Item> = found.items.iter().map(|found| &found.item).collect();
        let memory = PromptTemplate::default().render(items);
        Ok(match (own, memory) {
            (Some(own), Some(memory)) => Some(format!("{own}\n\n{memory}")),
            (own, memory) => own.or(memory),
        })
    }
}

/// Id of a request: time and process, unique for one process that makes one request.
fn request_id() -> String {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{}.{}", time.map_or(0, |time| time.as_millis()), std::process::id())
}
