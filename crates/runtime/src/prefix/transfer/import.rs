//! Entries of another engine: each is verified before its block enters the prefix cache.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ruvllm_kv_cache::prefix::store::{EntryHeader, Missing};
use ruvllm_kv_cache::prefix::{Fault, PrefixKey};
use ruvllm_kv_cache::{Block, KvFormats, KvStore};
use ruvllm_memory::{Claim, PressurePolicy, Rung, Tenant};
use ruvllm_text::TokenId;

use super::{EntryFault, PrefixCache, PrefixOffer, TransferError, sent_key};
use crate::prefix::hex;

/// Receiver of the entries of a prompt, made by
/// [`Engine::import_prefix`](crate::Engine::import_prefix).
///
/// Takes an offer, then the bytes of its entries, cut anywhere. Blocks enter the prefix cache at
/// the end, with an error, or when this is dropped: verified ones only.
pub struct PrefixImport {
    cache: Arc<PrefixCache>,
    /// Store of the tenant, which is charged for the blocks.
    kv: KvStore,
    key: PrefixKey,
    /// Whole blocks of the prompt.
    tokens: Vec<TokenId>,
    /// Their places, which entries must have.
    places: Vec<Missing>,
    /// Blocks from the first token on: known ones, then received ones.
    blocks: Vec<Block>,
    /// Offered blocks: indices in the prompt. `None` before the offer.
    offered: Option<std::ops::Range<usize>>,
    /// Bytes of the entry that is arriving.
    entry: Vec<u8>,
    /// Size of that entry and formats of its block, once its header has arrived.
    header: Option<(usize, KvFormats)>,
    bytes: u64,
    started: Instant,
    /// True once the received blocks are in the prefix cache.
    is_settled: bool,
}

/// Result of a complete import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportedPrefix {
    /// Blocks received.
    pub blocks: usize,
    /// Bytes of their entries.
    pub bytes: u64,
    /// Tokens of the prompt that are in the prefix cache now.
    pub cached_tokens: usize,
    /// Time from the begin of the import on.
    pub time: Duration,
}

impl PrefixCache {
    /// Begins to receive blocks of `tokens` for a tenant.
    ///
    /// # Errors
    /// [`TransferError::Off`].
    pub(crate) fn import(
        self: Arc<Self>,
        kv: &KvStore,
        tenant: &Tenant,
        tokens: &[TokenId],
    ) -> Result<PrefixImport, TransferError> {
        let started = Instant::now();
        self.check_transfers()?;
        let (key, block_tokens) = (self.own_key(tenant.path()), self.tree.block_tokens());
        let blocks = self.tree.peek(&key, tokens).blocks;
        let kv = kv.for_tenant(tenant).map_err(|source| TransferError::Memory { block: 0, source })?;
        Ok(PrefixImport {
            kv,
            places: self.transfers.format.places(&sent_key(&key), tokens).collect(),
            key,
            tokens: tokens[..tokens.len() / block_tokens * block_tokens].to_vec(),
            blocks,
            offered: None,
            entry: Vec::new(),
            header: None,
            bytes: 0,
            started,
            is_settled: false,
            cache: self,
        })
    }
}

impl PrefixImport {
    /// Takes the description of the blocks that follow.
    ///
    /// # Errors
    /// [`TransferError`] for blocks that this engine cannot use; a second offer.
    pub fn accept(&mut self, offer: &PrefixOffer) -> Result<(), TransferError> {
        self.check_offer(offer).inspect_err(|_| self.refuse())?;
        self.blocks.truncate(offer.first_block);
        self.offered = Some(offer.first_block..offer.first_block + offer.blocks);
        Ok(())
    }

    fn check_offer(&self, offer: &PrefixOffer) -> Result<(), TransferError> {
        let (key, block_tokens) = (&self.key, self.cache.tree.block_tokens());
        let prompt_blocks = self.places.len();
        if self.offered.is_some() || self.is_settled {
            return Err(TransferError::Order);
        }
        if offer.model != key.model {
            return Err(TransferError::Model { expected: hex(&key.model), found: hex(&offer.model) });
        }
        if *offer.kv_format != *key.kv_format {
            let (expected, found) = (key.kv_format.to_string(), offer.kv_format.clone());
            return Err(TransferError::KvFormat { expected, found });
        }
        if offer.block_tokens != block_tokens {
            let (expected, found) = (block_tokens, offer.block_tokens);
            return Err(TransferError::BlockTokens { expected, found });
        }
        if offer.is_tagged != self.cache.transfers.format.key().is_some() {
            return Err(TransferError::Key { is_tagged: offer.is_tagged });
        }
        if offer.first_block > self.blocks.len() {
            return Err(TransferError::Gap { first: offer.first_block, known: self.blocks.len() });
        }
        match offer.first_block.checked_add(offer.blocks) {
            Some(end) if end <= prompt_blocks => Ok(()),
            _ => Err(TransferError::Surplus { blocks: prompt_blocks }),
        }
    }

    /// Takes the next bytes of the entries.
    ///
    /// # Errors
    /// [`TransferError`] for the first entry that cannot be used; bytes after it are refused too.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.receive(bytes).inspect_err(|_| self.refuse())
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), TransferError> {
        let offered = self.offered.clone().filter(|_| !self.is_settled).ok_or(TransferError::Order)?;
        let header_bytes = self.cache.transfers.format.header_bytes();
        while !bytes.is_empty() {
            if self.blocks.len() == offered.end {
                return Err(TransferError::Surplus { blocks: offered.end });
            }
            let wanted = self.header.map_or(header_bytes, |(entry_bytes, _)| entry_bytes);
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.entry.len()));
            self.entry.extend_from_slice(taken);
            self.bytes += taken.len() as u64;
            bytes = rest;
            if self.entry.len() == wanted {
                match self.header.take() {
                    None => self.header = Some(self.check_header().map_err(|fault| self.fault(fault))?),
                    Some((_, formats)) => self.restore(formats)?,
                }
            }
        }
        Ok(())
    }

    /// Error of the entry that is arriving.
    fn fault(&self, fault: EntryFault) -> TransferError {
        TransferError::Entry { block: self.blocks.len(), fault }
    }

    /// Verifies the header that has arrived: size of the entry and formats of its block.
    fn check_header(&self) -> Result<(usize, KvFormats), EntryFault> {
        let (format, place) = (&self.cache.transfers.format, &self.places[self.blocks.len()]);
        let (header_bytes, block_tokens) = (format.header_bytes(), format.block_tokens());
        let header = EntryHeader::parse(&self.entry).map_err(EntryFault::Format)?;
        let bytes = header.payload_bytes;
        let entry_bytes = (header_bytes as u64).saturating_add(bytes);
        format.verify_header(place.id(), &self.entry, entry_bytes).map_err(|fault| match fault {
            Fault::Foreign if header.parent != place.parent() => EntryFault::Place,
            Fault::Foreign
                if header.tokens != self.tokens[place.index() * block_tokens..][..block_tokens] =>
            {
                EntryFault::Tokens
            }
            Fault::Foreign => EntryFault::Origin,
            fault => EntryFault::Format(fault),
        })?;
        // A colder tier is always smaller, so the size identifies the tier.
        let size = |formats: KvFormats| {
            let size = formats.block_bytes(self.kv.shape(), block_tokens).ok()?;
            (size as u64 == bytes).then_some((header_bytes + size, formats))
        };
        self.kv.policy().tiers().find_map(size).ok_or(EntryFault::Size { bytes })
    }

    /// Verifies the entry that has arrived, and makes a block of it.
    fn restore(&mut self, formats: KvFormats) -> Result<(), TransferError> {
        let id = self.places[self.blocks.len()].id();
        let verified = self.cache.transfers.format.verify(id, &self.entry);
        let (_, payload) = verified.map_err(|fault| self.fault(EntryFault::Format(fault)))?;
        let kv = &self.kv;
        let mut claim = BlockClaim { kv, formats, payload, block: None };
        let made = kv.pool().make_room(kv.tenant(), PressurePolicy::EvictPrefixes, &mut claim);
        made.map_err(|source| TransferError::Memory { block: self.blocks.len(), source })?;
        self.blocks.extend(claim.block);
        self.entry.clear();
        Ok(())
    }

    /// Ends the import: the blocks are in the prefix cache.
    ///
    /// # Errors
    /// [`TransferError::Incomplete`] if not all offered blocks have arrived;
    /// [`TransferError::Order`] without an offer or after an error.
    pub fn finish(mut self) -> Result<ImportedPrefix, TransferError> {
        let offered = self.offered.clone().filter(|_| !self.is_settled).ok_or(TransferError::Order)?;
        let received = self.received();
        if received < offered.len() {
            return Err(TransferError::Incomplete { received, offered: offered.len() });
        }
        let (bytes, time) = (self.bytes, self.started.elapsed());
        self.settle();
        let counters = &self.cache.transfers.counters;
        counters.imports.fetch_add(1, Relaxed);
        counters.import_nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        if received > 0 {
            self.cache.cost.observe_transfer(bytes, time);
        }
        let cached_tokens = self.blocks.len() * self.cache.tree.block_tokens();
        Ok(ImportedPrefix { blocks: received, bytes, cached_tokens, time })
    }

    /// Blocks that arrived whole.
    fn received(&self) -> usize {
        self.offered.as_ref().map_or(0, |offered| self.blocks.len() - offered.start)
    }

    /// Counts a refusal, and keeps the blocks before it.
    fn refuse(&mut self) {
        if !self.is_settled {
            self.settle();
            self.cache.transfers.counters.refused_imports.fetch_add(1, Relaxed);
        }
    }

    /// Inserts the received blocks into the prefix cache.
    fn settle(&mut self) {
        self.is_settled = true;
        let (received, block_tokens) = (self.received(), self.cache.tree.block_tokens());
        if received > 0 {
            let tokens = &self.tokens[..self.blocks.len() * block_tokens];
            self.cache.tree.insert(&self.key, tokens, &self.blocks);
            let counters = &self.cache.transfers.counters;
            counters.imported_blocks.fetch_add(received as u64, Relaxed);
            counters.imported_bytes.fetch_add(self.bytes, Relaxed);
        }
    }
}

/// Keeps the complete blocks of an import that ended early.
impl Drop for PrefixImport {
    fn drop(&mut self) {
        if !self.is_settled {
            self.settle();
            self.cache.transfers.counters.incomplete_imports.fetch_add(1, Relaxed);
        }
    }
}

impl fmt::Debug for PrefixImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixImport")
            .field("offered", &self.offered)
            .field("received", &self.received())
            .finish_non_exhaustive()
    }
}

/// Room for a block, for which prefixes that are not in use yield.
struct BlockClaim<'a> {
    kv: &'a KvStore,
    formats: KvFormats,
    payload: &'a [u8],
    block: Option<Block>,
}

impl Claim for BlockClaim<'_> {
    type Error = ruvllm_kv_cache::Error;

    fn take(&mut self) -> Result<(), Self::Error> {
        let mut rest = self.payload;
        let block = self.kv.restore_block(self.formats, |_, to| {
            let (layer, behind) = rest.split_at(to.len());
            to.copy_from_slice(layer);
            rest = behind;
            Ok::<(), Self::Error>(())
        })?;
        self.block = Some(block);
        Ok(())
    }

    fn short_tenant<'e>(&self, error: &'e Self::Error) -> Option<&'e str> {
        error.short_tenant()
    }

    fn yield_own(&mut self, _: Rung) -> bool {
        false
    }
}
