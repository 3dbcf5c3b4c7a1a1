//! Distillation: pruning, merging of near-duplicates, and reduction to a number of items.

use std::collections::HashMap;

use ruvllm_kernels::Kernels;

use super::item::Item;
use super::store::{Stored, Tables};
use super::{Bank, dot, kmeans};
use crate::error::{Error, Result};
use crate::index::VectorIndex;

/// Kept texts that a text is compared with, the most similar ones.
const NEIGHBOURS: usize = 8;

/// Limits of [`Bank::distill`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistillConfig {
    /// Number of items of a tenant, 1 or more, above which they are reduced to three quarters of
    /// it.
    pub max_items: usize,
    /// Seconds without a success or merge after which an item goes; `None` = never.
    pub max_idle: Option<u64>,
    /// Seconds for which a request's second outcome is recognized.
    pub outcome_retention: u64,
    /// Seed of the clusters.
    pub seed: u64,
}

impl Default for DistillConfig {
    fn default() -> Self {
        Self { max_items: 1000, max_idle: Some(90 * 24 * 3600), outcome_retention: 90 * 24 * 3600, seed: 0 }
    }
}

/// Changes that a distillation made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distilled {
    /// Items before.
    pub before: usize,
    /// Items removed: expired, idle, or worse than no memory.
    pub pruned: Vec<u64>,
    /// Near-duplicates, each with the item that has its counts and trajectories now.
    pub merged: Vec<(u64, u64)>,
    /// Items merged into the best of their cluster, which takes over their trajectories.
    pub absorbed: Vec<(u64, u64)>,
    /// Items after.
    pub after: usize,
}

impl Bank {
    /// Prunes, merges and reduces the items of a tenant, in one transaction.
    ///
    /// An item is pruned if it is expired or idle, or if the 95 % interval of its uplift is below
    /// 0. Near-duplicates have the same verdict, texts with a cosine above
    /// [`BankConfig::near_duplicate`](super::BankConfig::near_duplicate), and queries that find one
    /// another. A second call merges nothing more. Removed items do not come back, because their
    /// trajectories stay known.
    ///
    /// # Errors
    /// [`Error::Setting`] for `max_items` 0; [`Error::Database`], [`Error::Record`]. Nothing is
    /// changed then.
    pub fn distill(&self, tenant: &str, config: &DistillConfig, now: u64) -> Result<Distilled> {
        if config.max_items == 0 {
            return Err(Error::Setting { name: "max_items", value: "0".into(), range: "1 or more" });
        }
        let loaded = self.loaded(tenant)?;
        let mut loaded = loaded.write();
        let view = self.store.read()?;
        let stored = view.items(tenant)?;
        let mut distilled = Distilled { before: stored.len(), ..Distilled::default() };
        let (pruned, mut kept): (Vec<_>, Vec<_>) =
            stored.into_iter().partition(|stored| is_pruned(&stored.item, config, now));
        distilled.pruned = pruned.iter().map(|stored| stored.item.id).collect();
        // Best first, so that the best of each group stays.
        kept.sort_by(|a, b| value(&b.item).total_cmp(&value(&a.item)).then(a.item.id.cmp(&b.item.id)));
        let contents: Vec<Vec<f32>> =
            kept.iter().map(|stored| view.content(tenant, stored.item.id)).collect::<Result<_>>()?;
        drop(view);
        distilled.merged = self.near_duplicates(&kept, &contents)?;
        remove(&mut kept, &distilled.merged);
        if kept.len() > config.max_items {
            distilled.absorbed = absorbed(&kept, config)?;
            remove(&mut kept, &distilled.absorbed);
        }
        distilled.after = kept.len();
        let changed = self.store.write(|tables| {
            tables.drop_outcomes(tenant, now.saturating_sub(config.outcome_retention))?;
            apply(tables, tenant, &distilled)
        })?;
        let gone = distilled.merged.iter().chain(&distilled.absorbed).map(|&(id, _)| id);
        gone.chain(distilled.pruned.iter().copied()).for_each(|id| loaded.remove(id));
        changed.iter().try_for_each(|item| loaded.put(item, None))?;
        Ok(distilled)
    }

    /// Items whose text is nearly that of a better one, with that one.
    fn near_duplicates(&self, items: &[Stored], contents: &[Vec<f32>]) -> Result<Vec<(u64, u64)>> {
        let mut leaders = VectorIndex::new(self.config.dim, self.config.index.clone())?;
        let mut merged = Vec::new();
        for (i, (stored, content)) in items.iter().zip(contents).enumerate() {
            let item = &stored.item;
            let may_merge = |key: u64| {
                let other = &items[key as usize];
                (other.item.verdict, other.item.is_enabled) == (item.verdict, item.is_enabled)
                    && dot(&other.query, &stored.query) >= self.config.min_similarity
            };
            let hits = leaders.search_where(content, NEIGHBOURS, may_merge)?;
            let mut near = hits.iter().map(|hit| hit.key as usize);
            let equal = near.find(|&other| dot(content, &contents[other]) > self.config.near_duplicate);
            match equal {
                Some(other) => merged.push((stored.item.id, items[other].item.id)),
                None => leaders.insert(i as u64, content)?,
            }
        }
        Ok(merged)
    }
}

fn is_pruned(item: &Item, config: &DistillConfig, now: u64) -> bool {
    let is_expired = item.expires.is_some_and(|expires| expires <= now);
    let is_idle = config.max_idle.is_some_and(|idle| now.saturating_sub(item.confirmed) > idle);
    let is_harmful = item.uplift().is_some_and(|uplift| uplift.high < 0.0);
    is_expired || is_idle || is_harmful
}

/// Order of items that compete: lower end of the success rate if there is one, then quality.
fn value(item: &Item) -> f64 {
    let rate = item.with.trials().interval().map_or(0.0, |(low, _)| low);
    rate + f64::from(item.quality)
}

/// Items beside the best of their cluster, with that one; `items` are in order of value.
fn absorbed(items: &[Stored], config: &DistillConfig) -> Result<Vec<(u64, u64)>> {
    let kernels = Kernels::detect().map_err(Error::Kernels)?;
    let queries: Vec<&[f32]> = items.iter().map(|stored| stored.query.as_slice()).collect();
    let target = config.max_items - config.max_items / 4;
    let clusters = kmeans::cluster(kernels, &queries, target, config.seed);
    let mut best: HashMap<usize, u64> = HashMap::new();
    let mut absorbed = Vec::new();
    for (stored, cluster) in items.iter().zip(clusters) {
        let id = stored.item.id;
        let leader = *best.entry(cluster).or_insert(id);
        if leader != id {
            absorbed.push((id, leader));
        }
    }
    Ok(absorbed)
}

fn remove(items: &mut Vec<Stored>, gone: &[(u64, u64)]) {
    let gone: std::collections::HashSet<u64> = gone.iter().map(|&(id, _)| id).collect();
    items.retain(|stored| !gone.contains(&stored.item.id));
}

/// Writes the changes; returns the items that have new fields.
fn apply(tables: &Tables, tenant: &str, distilled: &Distilled) -> Result<Vec<Item>> {
    let mut changed: HashMap<u64, Item> = HashMap::new();
    let moves =
        distilled.merged.iter().map(|m| (m, true)).chain(distilled.absorbed.iter().map(|m| (m, false)));
    for (&(from, into), is_same_text) in moves {
        let get = |changed: &mut HashMap<u64, Item>, id| -> Result<Item> {
            let item = changed.remove(&id).map_or_else(|| tables.item(tenant, id), |item| Ok(Some(item)))?;
            item.ok_or_else(|| Error::NoItem { tenant: tenant.to_owned(), id })
        };
        let (source, mut target) = (get(&mut changed, from)?, get(&mut changed, into)?);
        target.sources += tables.copy_sources(tenant, from, into)?;
        // Counts belong to a text: those of another text would blur the uplift.
        if is_same_text {
            target.with.add(source.with);
            target.without.add(source.without);
            target.confirmed = target.confirmed.max(source.confirmed);
            target.expires = target.expires.zip(source.expires).map(|(a, b)| a.max(b));
        }
        target.version += 1;
        tables.remove_item(tenant, from)?;
        changed.insert(into, target);
    }
    for &id in &distilled.pruned {
        tables.remove_item(tenant, id)?;
    }
    let mut changed: Vec<Item> = changed.into_values().collect();
    changed.sort_by_key(|item| item.id);
    changed.iter().try_for_each(|item| tables.put_item(tenant, item))?;
    Ok(changed)
}
