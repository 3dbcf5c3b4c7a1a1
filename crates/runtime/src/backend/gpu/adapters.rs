//! LoRA factors on the device: slots for adapters, and lists of slots for the rows of a pass.
//!
//! Each site of the model that an adapter in a slot changes has its factors for all slots in one
//! buffer ([`LowRank`]). Slots and buffers grow with the adapters that come; factors in use are
//! written again from the host's copies then.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ruvllm_adapters::{Adapter, BaseModel, ScaledAdapter, Site};
use ruvllm_gpu::{Error as GpuError, Gpu, LowRank, LowRankExpansion, LowRankRoom, LowRankRows, MAX_TERMS};
use ruvllm_kernels::low_rank::Expansion;

use super::refusal::{NAME, device_error};
use crate::adapter_refusal::AdapterRefusal;
use crate::error::Error;

/// Smallest magnitude that rounds to infinity in F16.
const BEYOND_F16: f32 = 65_520.0;

/// Largest number of adapters of a sequence.
pub(super) const MOST: usize = MAX_TERMS as usize;

/// A layer's product, or one of no layer with layer 0.
pub(super) type Place = (usize, Site);

/// Factors of all sites.
pub(super) type Sites = BTreeMap<Place, LowRank>;

/// Sizes of the factors of a site.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Need {
    components: u32,
    expansions: u32,
    words: u64,
}

/// Adapters in slots of the device.
#[derive(Debug)]
pub(super) struct DeviceAdapters {
    base: Arc<BaseModel>,
    f16: bool,
    /// Largest number of slots.
    limit: usize,
    /// Slots that the buffers have room for.
    room: usize,
    needs: BTreeMap<Place, Need>,
    sites: Arc<Sites>,
    slots: Vec<Slot>,
    uses: u64,
    /// Lists by rows, entries, and whether all rows have one.
    rows: HashMap<(u32, u32, bool), LowRankRows>,
}

/// An adapter on the device. Its host copy is kept, for buffers that grow.
#[derive(Debug)]
struct Slot {
    adapter: Arc<Adapter>,
    /// Held by the sequences that use it.
    pin: Arc<()>,
    /// Number of the last use.
    used: u64,
}

/// Adapters of a sequence, which keep their slots until it is dropped.
#[derive(Debug, Default)]
pub(super) struct Leased {
    list: Vec<(u32, f32)>,
    _pins: Vec<Arc<()>>,
}

impl Leased {
    /// Slots and scales.
    pub(super) fn list(&self) -> &[(u32, f32)] {
        &self.list
    }
}

/// Factors and lists of a prepared pass.
#[derive(Debug, Clone)]
pub(super) struct Adapted {
    pub(super) sites: Arc<Sites>,
    pub(super) rows: LowRankRows,
    /// Lists of the rows whose logits are computed.
    pub(super) last: LowRankRows,
}

/// Failure to give a sequence its slots.
#[derive(Debug)]
pub(super) enum Failure {
    /// The device failed, such as for too little memory.
    Gpu(GpuError),
    Other(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Gpu(error) => device_error("upload an adapter".to_owned(), error),
            Failure::Other(error) => error,
        }
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl DeviceAdapters {
    pub(super) fn new(base: Arc<BaseModel>, f16: bool, limit: usize) -> Self {
        let (sites, slots) = (Arc::default(), Vec::new());
        Self {
            base,
            f16,
            limit,
            room: 0,
            needs: BTreeMap::new(),
            sites,
            slots,
            uses: 0,
            rows: HashMap::new(),
        }
    }

    /// Entries of the lists of a pass with these sequences; 0 if none has an adapter.
    pub(super) fn terms<'l>(lists: impl Iterator<Item = &'l Leased>) -> u32 {
        let most = lists.map(|leased| leased.list.len()).max().unwrap_or(0);
        if most == 0 { 0 } else { most.next_power_of_two() as u32 }
    }

    /// Bytes of the factors on the device.
    pub(super) fn bytes(&self) -> u64 {
        self.sites.values().map(|site| site.room().bytes()).sum()
    }

    /// Slots for the adapters of a sequence; `has_grown` is set if prepared passes have buffers of
    /// before.
    ///
    /// # Errors
    /// [`Error::AdapterBackend`] if others use all slots, or for too many adapters;
    /// [`Error::Adapter`] for an adapter of another model, or values beyond F16; errors of the
    /// device.
    pub(super) fn lease(
        &mut self,
        gpu: &Gpu,
        adapters: &[ScaledAdapter],
        has_grown: &mut bool,
    ) -> Result<Leased, Failure> {
        let adapters: Vec<_> = adapters.iter().filter(|scaled| scaled.scale != 0.0).collect();
        if adapters.len() > MOST {
            let (backend, found) = (NAME.to_owned(), adapters.len());
            let refusal = AdapterRefusal::List { backend, found, most: MOST };
            return Err(Failure::Other(Error::AdapterBackend(refusal)));
        }
        let mut leased = Leased::default();
        for ScaledAdapter { adapter, scale, .. } in adapters {
            if **adapter.base() != *self.base {
                let source = ruvllm_models::Error::AdapterModel { segment: 0 };
                return Err(Failure::Other(Error::Adapter { source }));
            }
            let slot = self.slot(gpu, adapter, has_grown)?;
            self.uses += 1;
            self.slots[slot].used = self.uses;
            leased.list.push((slot as u32, *scale));
            leased._pins.push(Arc::clone(&self.slots[slot].pin));
        }
        Ok(leased)
    }

    /// The slot of an adapter, which is uploaded if it has none.
    fn slot(&mut self, gpu: &Gpu, adapter: &Arc<Adapter>, has_grown: &mut bool) -> Result<usize, Failure> {
        let is_it = |slot: &Slot| slot.adapter.digest() == adapter.digest();
        if let Some(slot) = self.slots.iter().position(is_it) {
            return Ok(slot);
        }
        self.check(adapter)?;
        let idle = || {
            let idle = self.slots.iter().enumerate().filter(|(_, slot)| Arc::strong_count(&slot.pin) == 1);
            idle.min_by_key(|(_, slot)| slot.used).map(|(index, _)| index)
        };
        let mut needs = self.needs.clone();
        for (place, need) in self.needs_of(adapter) {
            let most = needs.entry(place).or_default();
            most.components = most.components.max(need.components);
            most.expansions = most.expansions.max(need.expansions);
            most.words = most.words.max(need.words);
        }
        let (used, idle) = (self.slots.len(), idle());
        let is_full = used >= self.limit;
        let Some(mut index) = (if is_full { idle } else { Some(used) }) else {
            let slots = self.limit;
            return Err(Failure::Other(Error::AdapterBackend(AdapterRefusal::Slots { slots })));
        };
        if index >= self.room || needs != self.needs {
            let room = if index < self.room { self.room } else { (2 * self.room).clamp(1, self.limit) };
            match self.grow(gpu, room, needs.clone()) {
                Ok(()) => *has_grown = true,
                // Another adapter gives way where there is no memory for more.
                Err(
                    GpuError::OverBudget { .. }
                    | GpuError::OutOfMemory { .. }
                    | GpuError::BufferTooLarge { .. },
                ) if index >= self.room && idle.is_some() && needs == self.needs => {
                    index = idle.unwrap_or(index);
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The device is lost if this fails.
        self.write(gpu, index, adapter)?;
        let slot = Slot { adapter: Arc::clone(adapter), pin: Arc::new(()), used: 0 };
        match self.slots.get_mut(index) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
        Ok(index)
    }

    /// Makes buffers for `room` slots of these sizes, with the adapters that are in slots.
    fn grow(&mut self, gpu: &Gpu, room: usize, needs: BTreeMap<Place, Need>) -> Result<(), GpuError> {
        let mut sites = Sites::new();
        for (&(layer, site), need) in &needs {
            let width: usize = self.base.output_widths(site).iter().sum();
            let words = u32::try_from(need.words).unwrap_or(u32::MAX);
            let room = LowRankRoom {
                slots: room as u32,
                cols: self.base.inputs(site) as u32,
                width: width as u32,
                components: need.components,
                expansions: need.expansions,
                words,
                f16: self.f16,
            };
            sites.insert((layer, site), LowRank::zeroed(gpu, room)?);
        }
        let former = std::mem::replace(&mut self.sites, Arc::new(sites));
        let written = (0..self.slots.len()).try_for_each(|index| {
            let adapter = Arc::clone(&self.slots[index].adapter);
            self.write(gpu, index, &adapter)
        });
        if let Err(error) = written {
            self.sites = former;
            return Err(error);
        }
        (self.room, self.needs) = (room, needs);
        // Their memory for components may be too small.
        self.rows.clear();
        Ok(())
    }

    /// Writes an adapter to a slot of all sites.
    fn write(&self, gpu: &Gpu, slot: usize, adapter: &Adapter) -> Result<(), GpuError> {
        for (&(layer, site), factors) in &*self.sites {
            let Some(update) = adapter.at(layer, site) else {
                factors.clear(gpu, slot as u32)?;
                continue;
            };
            let values: Vec<_> =
                (0..update.shape().expansions().len()).map(|b| update.b(b).values()).collect();
            let widths = self.base.output_widths(site);
            let parts: Vec<LowRankExpansion<'_>> = update
                .shape()
                .expansions()
                .iter()
                .zip(&values)
                .map(|(&Expansion { target, first, rank, outputs }, b)| LowRankExpansion {
                    first: first as u32,
                    rank: rank as u32,
                    output: widths[..target].iter().sum::<usize>() as u32,
                    outputs: outputs as u32,
                    b,
                })
                .collect();
            factors.write(gpu, slot as u32, &update.a().values(), &parts)?;
        }
        Ok(())
    }

    /// Sizes of the factors of an adapter, by site.
    fn needs_of(&self, adapter: &Adapter) -> Vec<(Place, Need)> {
        let need = |at: &ruvllm_adapters::SiteLayout| {
            let factors = &at.factors;
            let expansions = factors.expansions();
            let sizes = expansions.iter().map(|of| (of.rank as u32, of.outputs as u32));
            let components = factors.rank() as u32;
            let words = LowRankRoom::words_of(factors.inputs() as u32, components, sizes);
            ((at.layer, at.site), Need { components, expansions: expansions.len() as u32, words })
        };
        adapter.layout().sites().iter().map(need).collect()
    }

    /// Fails for values that are no numbers in the format of the device.
    fn check(&self, adapter: &Adapter) -> Result<(), Failure> {
        use ruvllm_kernels::low_rank::FactorFormat;
        if !self.f16 || adapter.layout().format() == FactorFormat::F16 {
            return Ok(());
        }
        let is_number = |values: &[f32]| values.iter().all(|value| value.abs() < BEYOND_F16);
        for at in adapter.layout().sites() {
            let Some(update) = adapter.at(at.layer, at.site) else { continue };
            let all = (0..at.factors.expansions().len()).all(|b| is_number(&update.b(b).values()));
            if !all || !is_number(&update.a().values()) {
                let name = format!("{} of layer {}", at.site, at.layer);
                let source = ruvllm_adapters::Error::NotFinite { name }.into();
                return Err(Failure::Other(Error::Adapter { source }));
            }
        }
        Ok(())
    }

    /// Factors and lists for a pass of `rows` rows, `last` of which have logits; `one_list`: all
    /// rows are of one sequence.
    ///
    /// # Errors
    /// Too little memory.
    pub(super) fn adapted(
        &mut self,
        gpu: &Gpu,
        terms: u32,
        (rows, last): (u32, u32),
        one_list: bool,
    ) -> Result<Option<Adapted>, GpuError> {
        if terms == 0 {
            return Ok(None);
        }
        let components = self.needs.values().map(|need| need.components).max().unwrap_or(1);
        let mut lists = |rows: u32, one_list: bool| -> Result<LowRankRows, GpuError> {
            let key = (rows, terms, one_list);
            if let Some(lists) = self.rows.get(&key) {
                return Ok(lists.clone());
            }
            let lists = LowRankRows::new(gpu, rows, terms, one_list, components)?;
            self.rows.insert(key, lists.clone());
            Ok(lists)
        };
        let (rows, last) = (lists(rows, one_list)?, lists(last, one_list)?);
        Ok(Some(Adapted { sites: Arc::clone(&self.sites), rows, last }))
    }

    /// Releases the lists of prepared passes.
    pub(super) fn release(&mut self) {
        self.rows.clear();
    }
}
