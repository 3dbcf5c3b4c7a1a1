//! Export and import as JSON lines.

use std::io::{BufRead, Read as _, Write};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

use super::entry::Entry;
use super::store::{Change, MemoryStore};

const FORMAT: &str = "ruvllm-sona memory";
const VERSION: u32 = 1;
/// Longest line that is read.
const MAX_LINE: u64 = 4 << 20;

/// First line.
#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    tenant: String,
    dimension: usize,
}

/// Writes a tenant's entries that have not expired, one per line after a header. Returns their
/// number.
///
/// # Errors
/// [`Error::Io`]; [`Error::Store`].
pub fn export(store: &dyn MemoryStore, tenant: &str, out: &mut dyn Write, now_ms: u64) -> Result<usize> {
    let mut lines = Vec::new();
    let mut n_entries = 0;
    let header = Header {
        format: FORMAT.into(),
        version: VERSION,
        tenant: tenant.into(),
        dimension: store.limits().dimension,
    };
    let mut written = serde_json::to_writer(&mut lines, &header);
    store.for_each(tenant, &mut |_, entry| {
        if entry.is_live(now_ms) && written.is_ok() {
            lines.push(b'\n');
            written = serde_json::to_writer(&mut lines, entry);
            n_entries += 1;
        }
    })?;
    lines.push(b'\n');
    let failed = |source| Error::Io { action: "export memories", source };
    written.map_err(|error| failed(error.into()))?;
    out.write_all(&lines).map_err(failed)?;
    Ok(n_entries)
}

/// Reads entries that [`export`] wrote, all of them or none. Entries with the same identities are
/// replaced. Returns their number.
///
/// # Errors
/// [`Error::Line`] for a line that is no entry, is longer than 4 MiB, or a header of another
/// tenant, dimension or version; [`Error::Io`]; those of [`MemoryStore::apply`].
pub fn import(
    store: &mut dyn MemoryStore,
    tenant: &str,
    input: &mut dyn BufRead,
    now_ms: u64,
) -> Result<usize> {
    let dimension = store.limits().dimension;
    let mut changes = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = input.take(MAX_LINE).read_until(b'\n', &mut line);
        let n_bytes = read.map_err(|source| Error::Io { action: "import memories", source })?;
        let fail = |reason: String| Err(Error::Line { line: number, reason });
        if n_bytes == 0 {
            if number == 1 {
                return fail("the file is empty; it must begin with the header of an export".into());
            }
            break;
        }
        if n_bytes as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            return fail(format!("longer than {MAX_LINE} bytes"));
        }
        if number > 1 {
            match serde_json::from_slice::<Entry>(&line) {
                Ok(entry) => changes.push(Change::Put(entry)),
                Err(error) => return fail(error.to_string()),
            }
            continue;
        }
        match serde_json::from_slice::<Header>(&line) {
            Ok(header) if header.format != FORMAT || header.version != VERSION => {
                return fail(format!("{} {} is not {FORMAT} {VERSION}", header.format, header.version));
            }
            Ok(header) if header.tenant != tenant => {
                return fail(format!("memories of tenant {:?}, not {tenant:?}", header.tenant));
            }
            Ok(header) if header.dimension != dimension => {
                return fail(format!("embeddings of {} values, the store has {dimension}", header.dimension));
            }
            Ok(_) => {}
            Err(error) => return fail(format!("no header of an export: {error}")),
        }
    }
    let n_entries = changes.len();
    store.apply(tenant, changes, now_ms)?;
    Ok(n_entries)
}
