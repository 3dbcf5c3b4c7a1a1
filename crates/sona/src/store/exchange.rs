//! Export and import of trajectories as JSON lines.

use std::io::{BufRead, Write};

use super::LearningStore;
use super::failure::Failure;
use super::retention::now_ms;
use crate::error::{Error, Result};
use crate::trajectory::Line;

/// Bytes of the longest line of an import.
const MAX_LINE_BYTES: u64 = 128 << 20;
/// Trajectories read from the database at once.
const PAGE: usize = 256;

/// Counts of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Trajectories stored.
    pub stored: u64,
    /// Trajectories whose request the store held already; they were left as they were.
    pub duplicates: u64,
    /// Trajectories that the limits of the store removed, of all tenants.
    pub removed: u64,
}

impl LearningStore {
    /// Writes the trajectories of a tenant as JSON lines, in the order of storing; returns their
    /// number.
    ///
    /// Each line is an object `{"version": 1, "id", "trajectory", "feedback"}`. `trajectory` has
    /// the fields of [`Trajectory`](crate::trajectory::Trajectory) and `feedback` is an array of
    /// objects with those of [`Feedback`](crate::trajectory::Feedback), under the same names; what
    /// is absent is `null`. `embedding` is `{"scales", "codes"}`, where value i is
    /// `scales[i / 64] * codes[i]`. Numbers are written so that an import gives the same bits.
    ///
    /// # Errors
    /// [`Error::Exchange`] for the writer, and those of the file.
    pub fn export(&self, tenant: &str, mut out: impl Write) -> Result<u64> {
        let (mut count, mut after) = (0, None);
        loop {
            let page = self.trajectories(tenant, after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            count += page.len() as u64;
            for stored in page {
                let written =
                    serde_json::to_writer(&mut out, &Line::new(stored)).map_err(std::io::Error::from);
                let fail = |source| Error::Exchange { action: "write", source };
                written.and_then(|()| out.write_all(b"\n")).map_err(fail)?;
            }
        }
        out.flush().map_err(|source| Error::Exchange { action: "write", source })?;
        Ok(count)
    }

    /// Stores the trajectories of an export, all or, after an error, none. Each gets a new number.
    ///
    /// With `tenant`, they become that tenant's; else they stay with their owners.
    ///
    /// # Errors
    /// [`Error::ImportLine`] for the first line that is not valid, [`Error::Exchange`] for the
    /// reader, and those of the file.
    pub fn import(&self, input: impl BufRead, tenant: Option<&str>) -> Result<Imported> {
        if let Some(tenant) = tenant {
            crate::trajectory::check_name("tenant", tenant)?;
        }
        self.write(|tables| {
            let mut imported = Imported::default();
            let mut tenants = std::collections::BTreeSet::new();
            let mut lines = Lines { input, number: 0 };
            while let Some(mut line) = lines.next()? {
                if let Some(tenant) = tenant {
                    line.trajectory.tenant = tenant.to_owned();
                }
                match tables.insert(&line.trajectory, &line.feedback) {
                    Ok(_) => imported.stored += 1,
                    Err(Failure::Refused(Error::DuplicateRequest { .. })) => imported.duplicates += 1,
                    Err(failure) => return Err(failure),
                }
                tenants.insert(line.trajectory.tenant);
            }
            let tenants = tenants.iter().map(String::as_str).collect();
            imported.removed = tables.apply_retention(tenants, self.options(), now_ms())?;
            Ok(imported)
        })
    }
}

struct Lines<R> {
    input: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads the next line that is not empty.
    fn next(&mut self) -> Result<Option<Line>> {
        let mut text = Vec::new();
        loop {
            self.number += 1;
            text.clear();
            let mut limited = std::io::Read::take(&mut self.input, MAX_LINE_BYTES);
            let read = limited.read_until(b'\n', &mut text);
            let line = self.number;
            match read.map_err(|source| Error::Exchange { action: "read", source })? {
                0 => return Ok(None),
                n if n as u64 == MAX_LINE_BYTES => {
                    let reason = format!("longer than {MAX_LINE_BYTES} bytes");
                    return Err(Error::ImportLine { line, reason });
                }
                _ => {}
            }
            let refuse = |_| Error::ImportLine { line, reason: "not UTF-8".to_owned() };
            let text = std::str::from_utf8(&text).map_err(refuse)?.trim();
            if !text.is_empty() {
                return Line::parse(text, line).map(Some);
            }
        }
    }
}
