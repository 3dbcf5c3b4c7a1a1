//! Cache key of a prefix besides its tokens, and its visibility.

use std::sync::Arc;

use sha2::{Digest, Sha256};

/// Everything besides the tokens that changes the keys and values of a prefix, and the scope it is
/// visible in.
///
/// Prefixes of different keys never meet: each key has a tree and file names of its own.
///
/// ```
/// use ruvllm_kv_cache::prefix::{PrefixKey, Scope};
///
/// let key = PrefixKey {
///     model: [7; 32],
///     adapter: None,
///     kv_format: "f16".into(),
///     rope_scaling: "none".into(),
///     scope: Scope::Tenant("acme".into()),
/// };
/// let shared = PrefixKey { scope: Scope::Shared, ..key.clone() };
/// assert_ne!(key.digest(), shared.digest());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrefixKey {
    /// Fingerprint of the weights: a hash of the model file or its equivalent.
    pub model: [u8; 32],
    /// The adapter that took part in computing the keys and values.
    pub adapter: Option<AdapterVersion>,
    /// Layout and quantization of the blocks, as the cache's policy names it. A layout that changes
    /// between versions of a program needs a new name.
    pub kv_format: Arc<str>,
    /// The scaling of the rotary embedding in force, in any fixed spelling.
    pub rope_scaling: Arc<str>,
    /// Visibility of the prefix.
    pub scope: Scope,
}

/// An adapter at one state of its training.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdapterVersion {
    /// The adapter's name.
    pub id: Arc<str>,
    /// Changes whenever the adapter's weights do.
    pub version: u64,
}

/// Visibility of a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Only requests of this tenant (or of this salt, where requests carry one).
    Tenant(Arc<str>),
    /// Requests of all tenants. The time to first token reveals earlier requests with the prefix,
    /// so only text that may be known to all belongs here.
    Shared,
}

impl PrefixKey {
    /// SHA-256 over all fields.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        // Texts are preceded by their lengths, so that no two keys give the same bytes.
        let mut hash = Sha256::new_with_prefix(self.model);
        let mut text = |tag: u8, text: &str| {
            hash.update([tag]);
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        text(0, &self.kv_format);
        text(1, &self.rope_scaling);
        match &self.scope {
            Scope::Shared => text(2, ""),
            Scope::Tenant(name) => text(3, name),
        }
        if let Some(adapter) = &self.adapter {
            text(4, &adapter.id);
            hash.update(adapter.version.to_le_bytes());
        }
        hash.finalize().into()
    }

    /// The keys under which a request with this key may find prefixes: what is shared, and its own.
    pub(super) fn visible(&self) -> impl Iterator<Item = PrefixKey> {
        let shared =
            (self.scope != Scope::Shared).then(|| PrefixKey { scope: Scope::Shared, ..self.clone() });
        shared.into_iter().chain([self.clone()])
    }

    /// Bytes of the texts on the heap, those that other keys may share included.
    pub(super) fn heap_bytes(&self) -> usize {
        let adapter = self.adapter.as_ref().map(|adapter| &adapter.id);
        let tenant = match &self.scope {
            Scope::Tenant(name) => Some(name),
            Scope::Shared => None,
        };
        let texts = [Some(&self.kv_format), Some(&self.rope_scaling), adapter, tenant];
        // An `Arc` has two counters before its content.
        texts.into_iter().flatten().map(|text| text.len() + 2 * size_of::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_changes_the_digest() {
        let base = PrefixKey {
            model: [1; 32],
            adapter: Some(AdapterVersion { id: "a".into(), version: 1 }),
            kv_format: "f16".into(),
            rope_scaling: "none".into(),
            scope: Scope::Tenant("t".into()),
        };
        let adapter = |id: &str, version| Some(AdapterVersion { id: id.into(), version });
        let keys = [
            base.clone(),
            PrefixKey { model: [2; 32], ..base.clone() },
            PrefixKey { adapter: None, ..base.clone() },
            PrefixKey { adapter: adapter("a", 2), ..base.clone() },
            PrefixKey { adapter: adapter("b", 1), ..base.clone() },
            PrefixKey { kv_format: "q8".into(), ..base.clone() },
            PrefixKey { rope_scaling: "yarn:4".into(), ..base.clone() },
            PrefixKey { scope: Scope::Shared, ..base.clone() },
            PrefixKey { scope: Scope::Tenant("".into()), ..base.clone() },
            // The same letters, cut elsewhere.
            PrefixKey { kv_format: "f1".into(), rope_scaling: "6none".into(), ..base },
        ];
        for (i, a) in keys.iter().enumerate() {
            for b in &keys[i + 1..] {
                assert_ne!(a.digest(), b.digest(), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_tenant_sees_what_is_shared_and_its_own() {
        let shared = PrefixKey {
            model: [0; 32],
            adapter: None,
            kv_format: "f16".into(),
            rope_scaling: "none".into(),
            scope: Scope::Shared,
        };
        let own = PrefixKey { scope: Scope::Tenant("t".into()), ..shared.clone() };
        assert_eq!(own.visible().collect::<Vec<_>>(), [shared.clone(), own]);
        assert_eq!(shared.visible().collect::<Vec<_>>(), [shared]);
    }
}
