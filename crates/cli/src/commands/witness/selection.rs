//! Flags that select entries of a log.

use std::path::Path;

use clap::Args;
use ruvllm_witness::{Entry, Event, Filter, Line, LogReader, Timestamp};

use crate::error::{Result, one_line};
use crate::output;

/// Selection of entries.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct SelectionArgs {
    /// Entries from this time on (UTC): 2026-11-23 or 2026-11-23T18:05:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,

    /// Entries before this time (UTC)
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,

    /// Entries of a tenant, and of those below it
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,

    /// Entries of the request with this id
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

fn time(text: &str) -> Result<Timestamp, &'static str> {
    text.parse()
}

impl SelectionArgs {
    /// Calls `each` with the selected entries and their lines, and warns of lines that cannot be
    /// read.
    pub(super) fn entries(
        &self,
        folder: &Path,
        mut each: impl FnMut(Line, &Entry) -> Result<()>,
    ) -> Result<()> {
        let filter = Filter {
            since: self.since,
            until: self.until,
            tenant: self.tenant.clone(),
            request_id: self.request.clone(),
            requests_only: true,
        };
        let (mut n_damaged, mut first_damage) = (0, None);
        for line in LogReader::open(folder, filter)? {
            let mut line = match line {
                Err(error @ ruvllm_witness::Error::Line { .. }) => {
                    n_damaged += 1;
                    first_damage.get_or_insert(error);
                    continue;
                }
                line => line?,
            };
            if let Event::Request(entry) = std::mem::replace(&mut line.event, Event::Other) {
                each(line, &entry)?;
            }
        }
        if let Some(damage) = first_damage {
            let skipped = output::counted(n_damaged, "damaged line");
            output::warn(&format!("{skipped} left out; the first: {}", one_line(&damage)));
        }
        Ok(())
    }
}
