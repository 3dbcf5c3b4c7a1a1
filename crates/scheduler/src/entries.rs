//! Requests that have not finished.

use std::collections::HashMap;
use std::time::Duration;

use crate::rank::Rank;
use crate::request::{Request, RequestId};

/// Index of a request in [`Entries`].
pub(crate) type Slot = usize;

/// List in which a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the queue of its tenant.
    Queued,
    /// Waits for the prefill of its prefix.
    Held,
    /// Waits for memory; others pass it for a while.
    Blocked,
    /// Among the running ones.
    Running,
}

/// A request and its progress.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    /// Index of its tenant.
    pub(crate) tenant: usize,
    pub(crate) rank: Rank,
    /// Time of submission.
    pub(crate) submitted: Duration,
    /// Begin of the present wait.
    pub(crate) since: Duration,
    /// Waiting time since its first preemption.
    pub(crate) waited_again: Duration,
    pub(crate) was_preempted: bool,
    pub(crate) place: Place,
    /// End of its patience while it is held; set once, for it is not held twice.
    pub(crate) held_until: Option<Duration>,
    /// Tokens of the prompt and those generated.
    pub(crate) known: usize,
    /// Tokens whose keys and values are there.
    pub(crate) computed: usize,
    /// Known tokens when it was last started: prefill ends here.
    pub(crate) prefill_end: usize,
    /// Tokens that were computed or found in the cache at least once.
    pub(crate) seen: usize,
    /// Tokens charged for its admission.
    pub(crate) charged: usize,
    /// Tokens of KV cache that it still needs, as counted in the sum over running requests.
    pub(crate) claim: usize,
    /// True while its prefill computes the prefix that others wait for.
    pub(crate) leads: bool,
    /// True while it runs without taking part in steps.
    pub(crate) is_suspended: bool,
}

impl Entry {
    /// Tokens to compute before the next one can be sampled.
    pub(crate) fn missing(&self) -> usize {
        self.known - self.computed
    }

    /// True while the tokens that it was started with are not all computed.
    pub(crate) fn in_prefill(&self) -> bool {
        self.computed < self.prefill_end
    }

    /// New tokens that it may still generate.
    pub(crate) fn output_left(&self) -> usize {
        let generated = self.known - self.request.prompt_tokens;
        self.request.max_new_tokens.saturating_sub(generated)
    }
}

/// Table of requests: by number, and by a slot that is reused.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    slots: Vec<Option<Entry>>,
    free: Vec<Slot>,
    index: HashMap<RequestId, Slot>,
}

impl Entries {
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.index.contains_key(&id)
    }

    pub(crate) fn slot(&self, id: RequestId) -> Option<Slot> {
        self.index.get(&id).copied()
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> Slot {
        let id = entry.request.id;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(entry);
        self.index.insert(id, slot);
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Entry> {
        let entry = self.slots.get_mut(slot)?.take()?;
        self.index.remove(&entry.request.id);
        self.free.push(slot);
        Some(entry)
    }

    /// The request at a slot that a list of the scheduler names.
    pub(crate) fn get(&self, slot: Slot) -> &Entry {
        self.slots[slot].as_ref().expect("lists name occupied slots")
    }

    /// As [`get`](Self::get).
    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut Entry {
        self.slots[slot].as_mut().expect("lists name occupied slots")
    }
}
