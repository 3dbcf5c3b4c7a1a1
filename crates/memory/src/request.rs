//! What a request for pages says about their use.

use crate::{OwnerId, Tenant};

/// What pages are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Content {
    /// Keys and values of attention.
    #[default]
    Kv,
    /// Weights of an adapter.
    Adapter,
    /// Scratch.
    Temporary,
    /// Activations that outlive a step.
    Activation,
    /// Gradients.
    Gradient,
}

impl Content {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Kv, Self::Adapter, Self::Temporary, Self::Activation, Self::Gradient];

    /// How much sooner than others it is evicted: idle pages count this many times as idle. What is costly to get back
    /// stays longest: adapters come from a file, keys and values from a prefill, the rest is made anew by each step.
    pub fn eviction_weight(self) -> u64 {
        match self {
            Self::Adapter => 1,
            Self::Kv => 2,
            Self::Gradient => 4,
            Self::Activation => 8,
            Self::Temporary => 16,
        }
    }
}

/// What pages are for, whom they count for, and who may be asked to give them back.
///
/// The default is keys and values of the root tenant without an owner.
///
/// ```
/// use ruvllm_memory::{Content, PagePool, PoolConfig, Request};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let request = Request::new(Content::Adapter).tenant(pool.tenant("acme/search")?);
/// let pages = pool.allocate(2, &request)?;
/// assert_eq!(pool.usage(&pool.tenant("acme")?)?.used_pages, 2);
/// # drop(pages);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// What the pages are for.
    pub content: Content,
    /// Whom they count for.
    pub tenant: Tenant,
    /// Who is asked to give them back; without an owner they stay until they are dropped.
    pub owner: Option<OwnerId>,
}

impl Request {
    /// Pages for `content`, of the root tenant and without an owner.
    pub fn new(content: Content) -> Self {
        Self { content, ..Self::default() }
    }

    /// Counts the pages for a tenant.
    #[must_use]
    pub fn tenant(self, tenant: Tenant) -> Self {
        Self { tenant, ..self }
    }

    /// Lets an owner be asked for the pages.
    #[must_use]
    pub fn owner(self, owner: OwnerId) -> Self {
        Self { owner: Some(owner), ..self }
    }
}
