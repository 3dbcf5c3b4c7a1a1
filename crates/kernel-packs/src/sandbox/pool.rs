//! Ready instances of a kernel.

use parking_lot::Mutex;

use super::fault::Fault;
use super::instance::Instance;
use super::template::Template;

/// Ready instances, each with the data of one tenant at most.
pub(super) struct Pool {
    idle: Mutex<Vec<Instance>>,
    most: usize,
}

impl Pool {
    /// An empty pool that keeps up to `most` instances.
    pub(super) fn new(most: usize) -> Self {
        Self { idle: Mutex::new(Vec::with_capacity(most.min(64))), most }
    }

    /// Takes an instance that no other tenant has used: the tenant's own, an unused or a new one.
    ///
    /// # Errors
    /// As [`Template::instantiate`].
    pub(super) fn take(&self, template: &Template, tenant: u64) -> Result<Instance, Fault> {
        let ready = {
            let mut idle = self.idle.lock();
            let of = |tenant: Option<u64>| idle.iter().rposition(|instance| instance.tenant == tenant);
            let index = of(Some(tenant)).or_else(|| of(None));
            index.map(|index| idle.remove(index))
        };
        let mut instance = match ready {
            Some(instance) => instance,
            None => self.make(template)?,
        };
        instance.tenant = Some(tenant);
        Ok(instance)
    }

    /// A new instance. If there is no room for it, idle ones of the kernel are closed first.
    fn make(&self, template: &Template) -> Result<Instance, Fault> {
        match template.instantiate() {
            Err(Fault::NoInstance { .. }) if self.clear() > 0 => template.instantiate(),
            made => made,
        }
    }

    /// Puts an instance back. Beyond the limit, the one that was used longest ago is closed.
    pub(super) fn put(&self, instance: Instance) {
        let surplus = {
            let mut idle = self.idle.lock();
            idle.push(instance);
            (idle.len() > self.most).then(|| idle.remove(0))
        };
        if let Some(instance) = surplus {
            instance.close();
        }
    }

    /// Makes unused instances until there are `count` ready ones.
    ///
    /// # Errors
    /// As [`Template::instantiate`].
    pub(super) fn fill(&self, template: &Template, count: usize) -> Result<(), Fault> {
        while self.len() < count.min(self.most) {
            self.put(template.instantiate()?);
        }
        Ok(())
    }

    /// Closes all ready instances, with `kernel_cleanup`; their number.
    pub(super) fn clear(&self) -> usize {
        let idle = std::mem::take(&mut *self.idle.lock());
        let count = idle.len();
        idle.into_iter().for_each(Instance::close);
        count
    }

    /// Number of ready instances.
    pub(super) fn len(&self) -> usize {
        self.idle.lock().len()
    }
}
