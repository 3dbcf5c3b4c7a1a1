//! Feedback log: learning events of each tenant in one total order.

use redb::{ReadTransaction, ReadableTable};
use serde::{Deserialize, Serialize};

use super::LearningStore;
use super::failure::Failure;
use super::path::Path;
use super::tables::{EVENTS, PAYLOADS, ROLLBACKS, Tables, TenantKey, decode, encode, entry_bytes};
use crate::error::{Error, Result};
use crate::trajectory::{TrajectoryId, check_name};

/// Payload of learning events of one kind: what a learner needs to repeat the update bit for bit.
pub trait EventPayload: Sized {
    /// Number of the kind, stable across versions of the learner.
    const KIND: u16;

    /// Appends the encoding to `out`.
    ///
    /// # Errors
    /// Any error for a value without an encoding.
    fn encode(&self, out: &mut Vec<u8>) -> Result<()>;

    /// Decodes the bytes of [`encode`](Self::encode).
    ///
    /// # Errors
    /// Any error for other bytes.
    fn decode(bytes: &[u8]) -> Result<Self>;
}

/// Learning event to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Owner of the log.
    pub tenant: String,
    /// Adapter that learned.
    pub adapter: String,
    /// Trajectories that it learned from; forgetting one of them removes the event.
    pub trajectories: Vec<TrajectoryId>,
    /// Kind of the payload.
    pub kind: u16,
    /// Digest of the learner's settings; a replay needs the same.
    pub settings: [u8; 32],
    /// Encoded payload.
    pub payload: Vec<u8>,
    /// Wall clock in milliseconds since 1970.
    pub created_ms: u64,
}

/// Learning event of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearningEvent {
    /// Position in the tenant's log, from 1; rollbacks have positions too.
    pub sequence: u64,
    /// The event as it was appended; the payload is empty if it was trimmed.
    pub event: NewEvent,
    /// True if the payload was trimmed.
    pub is_trimmed: bool,
}

/// Record of an event without its payload, which outlives the payload.
#[derive(Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) adapter: String,
    pub(super) created_ms: u64,
    pub(super) trajectories: Vec<u64>,
    kind: u16,
    settings: [u8; 32],
}

impl NewEvent {
    /// Creates an event with an encoded payload.
    ///
    /// # Errors
    /// Errors of the payload's [`encode`](EventPayload::encode).
    pub fn new<P: EventPayload>(
        tenant: &str,
        adapter: &str,
        settings: [u8; 32],
        payload: &P,
    ) -> Result<Self> {
        let mut bytes = Vec::new();
        payload.encode(&mut bytes)?;
        Ok(Self {
            tenant: tenant.to_owned(),
            adapter: adapter.to_owned(),
            trajectories: Vec::new(),
            kind: P::KIND,
            settings,
            payload: bytes,
            created_ms: super::retention::now_ms(),
        })
    }

    fn check(&self) -> Result<()> {
        check_name("tenant", &self.tenant)?;
        check_name("adapter", &self.adapter)
    }
}

impl LearningEvent {
    /// Decodes the payload; `None` if the event is of another kind.
    ///
    /// # Errors
    /// [`Error::Record`] for a trimmed payload, and those of the payload's type.
    pub fn payload<P: EventPayload>(&self) -> Result<Option<P>> {
        if self.event.kind != P::KIND {
            return Ok(None);
        }
        if self.is_trimmed {
            let reason = format!("that of event {} was trimmed from the log", self.sequence);
            return Err(Error::Record { field: "payload", reason });
        }
        P::decode(&self.event.payload).map(Some)
    }
}

impl LearningStore {
    /// Appends events in one transaction; returns their sequence numbers.
    ///
    /// # Errors
    /// [`Error::EventLogFull`], [`Error::Record`], and those of the file: nothing was appended.
    pub fn append_events(&self, events: &[NewEvent]) -> Result<Vec<u64>> {
        events.iter().try_for_each(NewEvent::check)?;
        let limit = self.options().event_bytes;
        self.write(|tables| {
            let mut sequences = Vec::with_capacity(events.len());
            for event in events {
                let header = Header {
                    adapter: event.adapter.clone(),
                    created_ms: event.created_ms,
                    trajectories: event.trajectories.iter().map(|id| id.0).collect(),
                    kind: event.kind,
                    settings: event.settings,
                };
                sequences.push(tables.append(&event.tenant, &header, &event.payload, limit)?);
            }
            Ok(sequences)
        })
    }

    /// Reads at most `limit` events of a tenant after a sequence number, of all adapters.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn events(&self, tenant: &str, after: u64, limit: usize) -> Result<Vec<LearningEvent>> {
        self.read(|transaction| read_events(transaction, tenant, after, limit, |_, _| true))
    }

    /// Reads at most `limit` events to replay for an adapter after a sequence number: those that no
    /// rollback has undone.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn replay_events(
        &self,
        tenant: &str,
        adapter: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LearningEvent>> {
        self.read(|transaction| {
            let path = Path::of_log(&transaction.open_table(ROLLBACKS)?, tenant, adapter)?;
            let is_replayed =
                |sequence, header: &Header| header.adapter == adapter && path.contains(sequence);
            read_events(transaction, tenant, after, limit, is_replayed)
        })
    }

    /// Removes the payloads of an adapter's events up to a sequence number, which a clean snapshot
    /// must include; returns the number of events trimmed.
    ///
    /// The headers stay, so that forgetting still finds the snapshots that an event has influenced.
    ///
    /// # Errors
    /// [`Error::Record`] without such a snapshot, and those of the file.
    pub fn trim_events(&self, tenant: &str, adapter: &str, through: u64) -> Result<u64> {
        self.write(|tables| {
            let path = Path::of_log(&tables.rollbacks, tenant, adapter)?;
            let snapshots = tables.snapshot_list(tenant, adapter)?;
            if !snapshots
                .iter()
                .any(|info| info.is_clean() && info.through >= through && path.has_version(info.version))
            {
                let reason = format!("{through}; no clean snapshot of {adapter:?} includes that event");
                return Err(Error::Record { field: "through", reason }.into());
            }
            let mut trimmed = Vec::new();
            for entry in tables.events.range((tenant, 0)..=(tenant, through))? {
                let (key, record) = entry?;
                if decode::<Header>(record.value())?.adapter == adapter {
                    trimmed.push(key.value().1);
                }
            }
            let mut count = 0;
            for sequence in trimmed {
                count += u64::from(tables.remove_payload(tenant, sequence)?);
            }
            Ok(count)
        })
    }
}

impl Tables<'_> {
    /// Appends an event to a log of at most `limit` bytes.
    fn append(&mut self, tenant: &str, header: &Header, payload: &[u8], limit: u64) -> Result<u64, Failure> {
        let (count, bytes, event_bytes, last) = self.totals(tenant)?;
        let sequence = last + 1;
        let record = encode(header)?;
        let added = entry_bytes::<TenantKey, &[u8]>(&(tenant, sequence), &record.as_slice())
            + entry_bytes::<TenantKey, &[u8]>(&(tenant, sequence), &payload);
        if event_bytes + added > limit {
            let tenant = tenant.to_owned();
            return Err(Error::EventLogFull { tenant, bytes: event_bytes, limit }.into());
        }
        self.payloads.insert((tenant, sequence), payload)?;
        self.events.insert((tenant, sequence), record.as_slice())?;
        self.set_totals(tenant, (count, bytes, event_bytes + added, sequence))?;
        Ok(sequence)
    }

    /// Removes the payload of an event. False if it has none.
    fn remove_payload(&mut self, tenant: &str, sequence: u64) -> Result<bool, Failure> {
        let removed = self.payloads.remove((tenant, sequence))?;
        let bytes =
            removed.map(|payload| entry_bytes::<TenantKey, &[u8]>(&(tenant, sequence), &payload.value()));
        let Some(freed) = bytes else { return Ok(false) };
        let (count, bytes, event_bytes, last) = self.totals(tenant)?;
        self.set_totals(tenant, (count, bytes, event_bytes.saturating_sub(freed), last))?;
        Ok(true)
    }

    /// Removes an event with its payload.
    pub(super) fn remove_event(&mut self, tenant: &str, sequence: u64) -> Result<(), Failure> {
        self.remove_payload(tenant, sequence)?;
        let removed = self.events.remove((tenant, sequence))?;
        let freed =
            removed.map_or(0, |record| entry_bytes::<TenantKey, &[u8]>(&(tenant, sequence), &record.value()));
        let (count, bytes, event_bytes, last) = self.totals(tenant)?;
        self.set_totals(tenant, (count, bytes, event_bytes.saturating_sub(freed), last))
    }
}

fn read_events(
    transaction: &ReadTransaction,
    tenant: &str,
    after: u64,
    limit: usize,
    is_selected: impl Fn(u64, &Header) -> bool,
) -> Result<Vec<LearningEvent>, Failure> {
    let Some(from) = after.checked_add(1) else { return Ok(vec![]) };
    let events = transaction.open_table(EVENTS)?;
    let payloads = transaction.open_table(PAYLOADS)?;
    let mut page = Vec::new();
    for entry in events.range((tenant, from)..=(tenant, u64::MAX))? {
        if page.len() == limit {
            break;
        }
        let (key, record) = entry?;
        let sequence = key.value().1;
        let header: Header = decode(record.value())?;
        if !is_selected(sequence, &header) {
            continue;
        }
        let Header { adapter, created_ms, trajectories, kind, settings } = header;
        let payload = payloads.get((tenant, sequence))?.map(|payload| payload.value().to_vec());
        let is_trimmed = payload.is_none();
        let event = NewEvent {
            tenant: tenant.to_owned(),
            adapter,
            trajectories: trajectories.into_iter().map(TrajectoryId).collect(),
            kind,
            settings,
            payload: payload.unwrap_or_default(),
            created_ms,
        };
        page.push(LearningEvent { sequence, event, is_trimmed });
    }
    Ok(page)
}
