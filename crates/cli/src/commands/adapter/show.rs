//! `ruvllm adapter show`: the header of an adapter's file.

use clap::Args;
use ruvllm_adapters::{FactorFormat, StoredAdapter};
use serde::Serialize;

use super::stored::{AdapterDocument, added, hex};
use crate::adapter_store::store;
use crate::error::{Result, printable};
use crate::output;

const HELP: &str = "\
The shape of the base model, the bytes of the factors in each tier of memory (hot: F16, warm: I8), and the rank of each
site. The digest names the factors: equal adapters have equal digests.

JSON: {name, source, architecture, rank, path, bytes, added_unix, digest, hot_bytes, warm_bytes, base: {layers,
model_dim, query_dim, kv_dim, head_dim, ffn_dim, vocab_size}, sites: [{layer, site, rank}]}

Examples:
  ruvllm adapter show poet
  ruvllm adapter show poet --json | jq '.sites[0]'";

/// Show base model, ranks and sizes of an adapter in the store
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ShowArgs {
    /// The adapter's name
    name: String,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    adapter: AdapterDocument<'a>,
    digest: String,
    hot_bytes: usize,
    warm_bytes: usize,
    base: BaseDocument,
    sites: Vec<SiteDocument>,
}

#[derive(Serialize)]
struct BaseDocument {
    layers: usize,
    model_dim: usize,
    query_dim: usize,
    kv_dim: usize,
    head_dim: usize,
    ffn_dim: usize,
    vocab_size: usize,
}

#[derive(Serialize)]
struct SiteDocument {
    layer: usize,
    site: String,
    rank: usize,
}

impl<'a> From<&'a StoredAdapter> for Document<'a> {
    fn from(stored: &'a StoredAdapter) -> Self {
        let (file, base) = (&stored.file, stored.file.base());
        let bytes = |format| file.bytes(format).unwrap_or_default();
        let sites = file.layout().sites().iter().map(|at| SiteDocument {
            layer: at.layer,
            site: at.site.to_string(),
            rank: at.factors.rank(),
        });
        Self {
            adapter: stored.into(),
            digest: hex(file.digest()),
            hot_bytes: bytes(FactorFormat::F16),
            warm_bytes: bytes(FactorFormat::I8),
            base: BaseDocument {
                layers: base.n_layers,
                model_dim: base.model_dim,
                query_dim: base.query_dim,
                kv_dim: base.kv_dim,
                head_dim: base.head_dim,
                ffn_dim: base.ffn_dim,
                vocab_size: base.vocab_size,
            },
            sites: sites.collect(),
        }
    }
}

pub(crate) fn run(args: &ShowArgs, json: bool) -> Result<()> {
    let stored = store()?.get(&args.name)?;
    let document = Document::from(&stored);
    if json {
        return output::write_json(&document);
    }
    let Document { digest, hot_bytes, warm_bytes, sites, .. } = &document;
    let facts = [
        ("name", stored.name.clone()),
        ("source", printable(stored.file.source())),
        ("base model", printable(&stored.file.base().to_string())),
        ("rank", stored.rank().to_string()),
        ("factors", output::counted(sites.len(), "site")),
        ("hot (F16)", output::bytes(*hot_bytes as u64)),
        ("warm (I8)", output::bytes(*warm_bytes as u64)),
        ("file", format!("{}, {}", stored.file.path().display(), output::bytes(stored.bytes))),
        ("digest", digest.clone()),
        ("added", added(&stored)),
    ];
    let rows = facts.map(|(name, value)| vec![name.to_owned(), value]);
    output::write_text(&output::table(&rows, &[])).map(|_| ())
}
