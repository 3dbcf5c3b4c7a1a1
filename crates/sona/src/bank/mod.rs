//! ReasoningBank (arXiv 2509.25140): lessons of earlier tasks as readable text, per tenant.
//!
//! A trajectory is judged ([`Judge`]), lessons are extracted from it ([`Extract`]) and stored
//! ([`Bank::learn`]); a later request gets the best match of its own tenant ([`Bank::retrieve`]),
//! by a template ([`PromptTemplate`]). A share of requests gets no memory, so that the gain is
//! measured ([`Bank::uplift`]). [`Bank::distill`] merges and prunes. Published gains of such
//! memories did not survive shuffled orders (arXiv 2608.18066): [`evaluate`] measures over orders
//! and seeds.
//!
//! Times are seconds since 1970, given by the caller.
//!
//! # Files
//! `item.rs`, `text.rs`: items and their text; `store.rs`: tables; `retrieve.rs`: search, score and
//! control arm; `uplift.rs`: intervals; `template.rs`: prompts; `judge/`, `extract.rs`: verdicts
//! and lessons; `distill.rs`, `kmeans.rs`: merging and pruning; `evaluate.rs`, `simulated.rs`:
//! evaluation.

mod config;
mod distill;
pub mod evaluate;
mod extract;
mod item;
mod judge;
mod kmeans;
mod retrieve;
pub mod simulated;
mod store;
mod template;
#[cfg(test)]
mod tests;
mod text;
mod uplift;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use sha2::{Digest as _, Sha256};

use self::store::{Store, Tables};
use crate::error::{Error, Result};
use crate::index::{Recovery, VectorIndex, unit};

pub use self::config::BankConfig;
pub use self::distill::{DistillConfig, Distilled};
pub use self::extract::{Extract, Extraction, MAX_LESSONS, ModelExtractor};
pub use self::item::{Counts, Item, NewItem, Verdict};
pub use self::judge::{CommandJudge, Evidence, Judge, Judgement, ModelJudge, Rule, RulesJudge};
pub use self::retrieve::{Arm, Receipt, Retrieval, RetrievalLimits, Retrieved};
pub use self::template::PromptTemplate;
pub use self::text::{ItemText, MAX_BODY, MAX_DESCRIPTION, MAX_TITLE};
pub use self::uplift::{Trials, Uplift};

/// Matches by query among which an equal lesson is looked for when one is learned.
const MERGE_CANDIDATES: usize = 32;

/// Result of [`Bank::learn`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Learned {
    /// New items.
    pub added: Vec<u64>,
    /// Items that a lesson was merged into.
    pub merged: Vec<u64>,
    /// True if the trajectory had been learned from before: nothing was changed.
    pub was_known: bool,
}

/// Memory items of all tenants, with an index for each.
///
/// Methods may be called from several threads. A tenant sees its own items only.
pub struct Bank {
    config: BankConfig,
    folder: PathBuf,
    store: Store,
    tenants: RwLock<HashMap<String, Arc<RwLock<Loaded>>>>,
    /// Taken to load a tenant, so that it is loaded once.
    loading: Mutex<()>,
}

/// Index of one tenant and the fields of its items that scores need.
struct Loaded {
    index: VectorIndex,
    facts: HashMap<u64, Facts>,
    recovery: Recovery,
    is_changed: bool,
}

/// Fields of an item that decide whether and where it is shown.
#[derive(Debug, Clone, Copy)]
struct Facts {
    is_enabled: bool,
    expires: Option<u64>,
    confirmed: u64,
    with: Counts,
}

impl From<&Item> for Facts {
    fn from(item: &Item) -> Self {
        Self {
            is_enabled: item.is_enabled,
            expires: item.expires,
            confirmed: item.confirmed,
            with: item.with,
        }
    }
}

impl Facts {
    fn is_usable(&self, now: u64) -> bool {
        self.is_enabled && self.expires.is_none_or(|expires| now < expires)
    }
}

impl Bank {
    /// Opens the bank in a folder, or creates it: `bank.redb` and graphs in `index/`.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Io`]; [`Error::Database`] for a damaged file or one that
    /// another process uses; [`Error::Record`] for another format or dimension.
    pub fn open(folder: impl AsRef<Path>, config: BankConfig) -> Result<Self> {
        config.check()?;
        let folder = folder.as_ref().to_owned();
        let graphs = folder.join("index");
        std::fs::create_dir_all(&graphs).map_err(|error| Error::File { path: graphs, error })?;
        let store = Store::open(&folder.join("bank.redb"), config.dim)?;
        Ok(Self { config, folder, store, tenants: RwLock::new(HashMap::new()), loading: Mutex::new(()) })
    }

    /// Settings that the bank was opened with.
    pub fn config(&self) -> &BankConfig {
        &self.config
    }

    /// Tenants that have items, ascending.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn tenants(&self) -> Result<Vec<String>> {
        self.store.read()?.tenants()
    }

    /// Learns from one trajectory, once: a second call with the same id changes nothing.
    ///
    /// A lesson is merged into an item with the same verdict if their texts are near-duplicates and
    /// a request like this one finds the item.
    ///
    /// # Errors
    /// [`Error::Setting`] for a quality out of range or an empty tenant or trajectory;
    /// [`Error::Dimension`], [`Error::NotFinite`], [`Error::ZeroVector`]; [`Error::Database`].
    /// Nothing is changed then.
    pub fn learn(&self, tenant: &str, trajectory: &str, items: &[NewItem], now: u64) -> Result<Learned> {
        check_name("tenant", tenant)?;
        check_name("trajectory", trajectory)?;
        let items = items.iter().map(|item| self.checked(item)).collect::<Result<Vec<_>>>()?;
        let loaded = self.loaded(tenant)?;
        let mut loaded = loaded.write();
        let mut learned = Learned::default();
        // Of this call, with their embeddings: the index has them after the commit.
        let mut changed: Vec<(Item, Option<Vec<f32>>)> = Vec::new();
        self.store.write(|tables| {
            if !tables.mark_trajectory(tenant, trajectory, now)? {
                learned.was_known = true;
                return Ok(());
            }
            for new in &items {
                let equal = self.near_duplicate(tenant, new, &loaded)?;
                match equal.map(|id| tables.item(tenant, id)).transpose()?.flatten() {
                    Some(item) => {
                        let item = self.merge(tables, tenant, trajectory, item, new, now)?;
                        learned.merged.push(item.id);
                        changed.push((item, None));
                    }
                    None => {
                        let item = self.add(tables, tenant, trajectory, new, now)?;
                        learned.added.push(item.id);
                        changed.push((item, Some(new.query.clone())));
                    }
                }
            }
            Ok(())
        })?;
        for (item, query) in changed {
            loaded.put(&item, query.as_deref())?;
        }
        Ok(learned)
    }

    /// The item with unit vectors.
    fn checked(&self, item: &NewItem) -> Result<NewItem> {
        for (what, vector) in [("query embedding", &item.query), ("text embedding", &item.content)] {
            if vector.len() != self.config.dim {
                return Err(Error::Dimension { what, expected: self.config.dim, got: vector.len() });
            }
        }
        if !(0.0..=1.0).contains(&item.quality) {
            return Err(Error::Setting { name: "quality", value: item.quality.to_string(), range: "0 to 1" });
        }
        let query = unit("query embedding", &item.query)?;
        let content = unit("text embedding", &item.content)?;
        Ok(NewItem { query, content, ..item.clone() })
    }

    /// Item with nearly the same text and the same verdict.
    fn near_duplicate(&self, tenant: &str, new: &NewItem, loaded: &Loaded) -> Result<Option<u64>> {
        let view = self.store.read()?;
        let mut best = None;
        for hit in loaded.index.search(&new.query, MERGE_CANDIDATES)? {
            if hit.similarity < self.config.min_similarity {
                break;
            }
            let content = view.content(tenant, hit.key)?;
            let similarity = dot(&content, &new.content);
            let is_best = best.is_none_or(|(_, other)| similarity > other);
            if similarity > self.config.near_duplicate && is_best {
                let item = view.item(tenant, hit.key)?;
                if item.is_some_and(|item| item.verdict == new.verdict) {
                    best = Some((hit.key, similarity));
                }
            }
        }
        Ok(best.map(|(id, _)| id))
    }

    fn add(&self, tables: &Tables, tenant: &str, trajectory: &str, new: &NewItem, now: u64) -> Result<Item> {
        let item = Item {
            id: tables.next_id()?,
            text: new.text.clone(),
            verdict: new.verdict,
            quality: new.quality,
            sources: 1,
            created: now,
            confirmed: now,
            expires: self.expiry(new, now),
            version: 1,
            is_enabled: true,
            with: Counts::default(),
            without: Counts::default(),
        };
        tables.put_item(tenant, &item)?;
        tables.put_query(tenant, item.id, &new.query)?;
        tables.put_content(tenant, item.id, &new.content)?;
        tables.add_source(tenant, item.id, trajectory)?;
        Ok(item)
    }

    /// Merges a lesson into an item with nearly the same text.
    fn merge(
        &self,
        tables: &Tables,
        tenant: &str,
        trajectory: &str,
        mut item: Item,
        new: &NewItem,
        now: u64,
    ) -> Result<Item> {
        // The text of the better trajectory; the embedding of the query stays that of the first.
        if new.quality > item.quality {
            item.text = new.text.clone();
            item.quality = new.quality;
            tables.put_content(tenant, item.id, &new.content)?;
        }
        item.sources += u64::from(tables.add_source(tenant, item.id, trajectory)?);
        item.expires = item.expires.zip(self.expiry(new, now)).map(|(a, b)| a.max(b));
        item.confirmed = item.confirmed.max(now);
        item.version += 1;
        tables.put_item(tenant, &item)?;
        Ok(item)
    }

    fn expiry(&self, new: &NewItem, now: u64) -> Option<u64> {
        new.expires.or(self.config.expires_after.map(|after| now.saturating_add(after)))
    }

    /// An item of the tenant; `None` if it has none with this id.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Record`].
    pub fn item(&self, tenant: &str, id: u64) -> Result<Option<Item>> {
        self.store.read()?.item(tenant, id)
    }

    /// All items of the tenant, ascending by id.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Record`].
    pub fn items(&self, tenant: &str) -> Result<Vec<Item>> {
        Ok(self.store.read()?.items(tenant)?.into_iter().map(|stored| stored.item).collect())
    }

    /// All items of the tenant with the unit embeddings of their queries, ascending by id.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Record`].
    pub fn items_with_queries(&self, tenant: &str) -> Result<Vec<(Item, Vec<f32>)>> {
        let stored = self.store.read()?.items(tenant)?;
        Ok(stored.into_iter().map(|stored| (stored.item, stored.query)).collect())
    }

    /// Trajectories that an item was learned from, ascending.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn provenance(&self, tenant: &str, id: u64) -> Result<Vec<String>> {
        self.store.read()?.provenance(tenant, id)
    }

    /// True if the tenant has learned from the trajectory, also if its items are gone.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn is_known(&self, tenant: &str, trajectory: &str) -> Result<bool> {
        self.store.read()?.is_known(tenant, trajectory)
    }

    /// Enables an item or hides it from retrieval.
    ///
    /// # Errors
    /// [`Error::NoItem`], [`Error::Database`].
    pub fn set_enabled(&self, tenant: &str, id: u64, is_enabled: bool) -> Result<()> {
        let loaded = self.loaded(tenant)?;
        let mut loaded = loaded.write();
        let item = self.store.write(|tables| {
            let item = tables.item(tenant, id)?;
            let mut item = item.ok_or_else(|| Error::NoItem { tenant: tenant.to_owned(), id })?;
            item.is_enabled = is_enabled;
            item.version += 1;
            tables.put_item(tenant, &item)?;
            Ok(item)
        })?;
        loaded.put(&item, None)
    }

    /// Removes an item; its trajectories stay known, so they do not bring it back.
    ///
    /// # Errors
    /// [`Error::NoItem`], [`Error::Database`].
    pub fn remove(&self, tenant: &str, id: u64) -> Result<()> {
        let loaded = self.loaded(tenant)?;
        let mut loaded = loaded.write();
        let is_removed = self.store.write(|tables| tables.remove_item(tenant, id))?;
        loaded.remove(id);
        if is_removed { Ok(()) } else { Err(Error::NoItem { tenant: tenant.to_owned(), id }) }
    }

    /// Removes every item that the trajectory has a part in; returns their ids.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn forget_trajectory(&self, tenant: &str, trajectory: &str) -> Result<Vec<u64>> {
        let loaded = self.loaded(tenant)?;
        let mut loaded = loaded.write();
        let ids = self.store.write(|tables| {
            let ids = tables.items_of(tenant, trajectory)?;
            ids.iter().try_for_each(|&id| tables.remove_item(tenant, id).map(drop))?;
            Ok(ids)
        })?;
        ids.iter().for_each(|&id| loaded.remove(id));
        Ok(ids)
    }

    /// Removes all items, counts and known trajectories of a tenant; returns the number of items.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Io`].
    pub fn forget_tenant(&self, tenant: &str) -> Result<usize> {
        let loaded = self.loaded(tenant)?;
        let mut loaded = loaded.write();
        let ids: Vec<u64> = loaded.facts.keys().copied().collect();
        self.store.write(|tables| {
            ids.iter().try_for_each(|&id| tables.remove_item(tenant, id).map(drop))?;
            tables.drop_marks(tenant)
        })?;
        ids.iter().for_each(|&id| loaded.remove(id));
        loaded.is_changed = false;
        let path = self.graph_path(tenant);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::File { path, error }),
            _ => Ok(ids.len()),
        }
    }

    /// Success rate with memory minus that of the control arm, over the requests of a tenant for
    /// which an item matched; `None` until both arms have an outcome.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn uplift(&self, tenant: &str) -> Result<Option<Uplift>> {
        let arms = self.store.read()?.arms(tenant)?;
        Ok(Uplift::new(arms.with.trials(), arms.without.trials()))
    }

    /// Outcomes of a tenant's requests for which an item matched: with memory, and of the control
    /// arm.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn outcomes(&self, tenant: &str) -> Result<(Counts, Counts)> {
        let arms = self.store.read()?.arms(tenant)?;
        Ok((arms.with, arms.without))
    }

    /// Bytes of the tenant's index in memory, by its buffers.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn index_bytes(&self, tenant: &str) -> Result<usize> {
        Ok(self.loaded(tenant)?.read().index.memory_bytes())
    }

    /// Work that opening the tenant's index took.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn recovery(&self, tenant: &str) -> Result<Recovery> {
        Ok(self.loaded(tenant)?.read().recovery.clone())
    }

    /// Writes the changed graphs to files, so that opening does not build them again.
    ///
    /// Dropping the bank does this too. Without it, nothing is lost but time.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save_graphs(&self) -> Result<()> {
        let tenants: Vec<_> = self.tenants.read().iter().map(|(t, l)| (t.clone(), Arc::clone(l))).collect();
        for (tenant, loaded) in tenants {
            let mut loaded = loaded.write();
            if loaded.is_changed {
                loaded.index.save(&self.graph_path(&tenant))?;
                loaded.is_changed = false;
            }
        }
        Ok(())
    }

    fn graph_path(&self, tenant: &str) -> PathBuf {
        let name: String =
            Sha256::digest(tenant.as_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join("index").join(name + ".graph")
    }

    /// The tenant's index, loaded at its first use.
    fn loaded(&self, tenant: &str) -> Result<Arc<RwLock<Loaded>>> {
        let find = || self.tenants.read().get(tenant).map(Arc::clone);
        if let Some(loaded) = find() {
            return Ok(loaded);
        }
        let _one = self.loading.lock();
        if let Some(loaded) = find() {
            return Ok(loaded);
        }
        let stored = self.store.read()?.items(tenant)?;
        let facts = stored.iter().map(|stored| (stored.item.id, Facts::from(&stored.item))).collect();
        let vectors = stored.into_iter().map(|stored| (stored.item.id, stored.query)).collect();
        let path = self.graph_path(tenant);
        let (index, recovery) =
            VectorIndex::open(&path, self.config.dim, self.config.index.clone(), vectors)?;
        let is_changed = recovery.inserted + recovery.removed > 0;
        let loaded = Arc::new(RwLock::new(Loaded { index, facts, recovery, is_changed }));
        self.tenants.write().insert(tenant.to_owned(), Arc::clone(&loaded));
        Ok(loaded)
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        // Without the files the graphs are built again.
        let _ = self.save_graphs();
    }
}

impl Loaded {
    fn put(&mut self, item: &Item, query: Option<&[f32]>) -> Result<()> {
        if let Some(query) = query {
            self.index.insert(item.id, query)?;
            self.is_changed = true;
        }
        self.facts.insert(item.id, Facts::from(item));
        Ok(())
    }

    fn remove(&mut self, id: u64) {
        self.is_changed |= self.index.remove(id);
        self.facts.remove(&id);
    }
}

fn check_name(name: &'static str, value: &str) -> Result<()> {
    if !value.is_empty() && value.len() <= 512 {
        return Ok(());
    }
    Err(Error::Setting { name, value: format!("{} bytes long", value.len()), range: "1 to 512 bytes" })
}

/// Dot product of vectors of equal length, in f64.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>() as f32
}
