//! Sequences against an uncompressed model, and folders of prefixes that others have a hand in.

mod any_storage;
mod drop;
mod hostile_storage;
mod latent;
mod nuq;
mod oracle;
#[cfg(unix)]
mod prefix_folder;
mod probe;
mod sequence;
mod shared_folder;
mod squat;
mod state;
mod steps;
mod stress;
mod tenants;
mod threads;
mod tiers;
mod widths;

use ruvllm_kv_cache::prefix::{PrefixKey, Scope};

/// Key of the prefixes of a folder's tests.
fn prefix_key() -> PrefixKey {
    PrefixKey {
        model: [3; 32],
        adapter: None,
        kv_format: "f16".into(),
        rope_scaling: "none".into(),
        scope: Scope::Shared,
    }
}
