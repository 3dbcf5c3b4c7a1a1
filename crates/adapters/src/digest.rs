//! Digests of an adapter's factors.

use ruvllm_kernels::low_rank::LowRank;
use sha2::{Digest as _, Sha256};

use crate::layout::{Layout, SiteLayout};
use crate::place::{BaseModel, Site};

/// Digests of an adapter: equal for equal factors in one format only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digests {
    /// Digest of all factors, with shapes and format.
    pub factors: [u8; 32],
    /// Digest of the sites that cached keys and values depend on; `None` without any.
    pub kv: Option<[u8; 32]>,
}

impl Digests {
    /// Digests of the factors in `bytes`, which `layout` places.
    ///
    /// # Panics
    /// If there are fewer bytes than [`Layout::bytes`].
    pub fn new(base: &BaseModel, layout: &Layout, bytes: &[u8]) -> Self {
        let mut kv = None;
        let mut factors = Sha256::new();
        for at in layout.sites() {
            let site = digest_site(at, bytes);
            factors.update(site);
            if base.changes_kv(at.layer, at.site) {
                kv.get_or_insert_with(Sha256::new).update(site);
            }
        }
        Self { factors: factors.finalize().into(), kv: kv.map(|kv| kv.finalize().into()) }
    }
}

impl BaseModel {
    /// True if cached keys and values depend on a site: all sites of all layers but the last, and
    /// the attention input of the last.
    ///
    /// The queries of the last layer count as well: SQuat weights the errors of its keys by them.
    pub fn changes_kv(&self, layer: usize, site: Site) -> bool {
        match site {
            Site::AttentionInput => true,
            Site::AttentionOutput | Site::FeedForwardInput | Site::FeedForwardOutput => {
                layer + 1 < self.n_layers
            }
            Site::Logits | Site::FinalHidden => false,
        }
    }
}

/// Digest of a site's shapes and factors.
fn digest_site(at: &SiteLayout, bytes: &[u8]) -> [u8; 32] {
    let SiteLayout { layer, site, factors } = at;
    let (format, rank, inputs) = (factors.format().name(), factors.rank(), factors.inputs());
    let mut hash = Sha256::new();
    hash.update(format!("{format} {layer} {site:?} {rank} {inputs};"));
    for expansion in factors.expansions() {
        hash.update(format!("{expansion:?};"));
    }
    hash.update(LowRank::new(factors, bytes).bytes());
    hash.finalize().into()
}
