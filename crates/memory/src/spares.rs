//! Spare pages, which are released before anything else.

use std::sync::{Arc, Weak};

use crate::sync::{Mutex, lock};
use crate::tenant::Account;

/// A holder of pages without content.
pub(crate) trait SparePages: Send + Sync {
    /// Frees the spare pages if they are charged to `scope`; returns their number.
    fn release_spare(&self, scope: &Account) -> usize;
}

/// Holders of a pool's spare pages.
#[derive(Default)]
pub(crate) struct Spares(Mutex<Vec<Weak<dyn SparePages>>>);

impl Spares {
    pub(crate) fn add(&self, holder: Weak<dyn SparePages>) {
        let mut holders = lock(&self.0);
        holders.retain(|holder| holder.strong_count() > 0);
        holders.push(holder);
    }

    pub(crate) fn holders(&self) -> Vec<Arc<dyn SparePages>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}
