//! Cache of tool results, by exact arguments and, where a tool allows it, by similar ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::lexical::guard;
use crate::model::{Embed, dot, embed_unit};

/// Most strings among the arguments of a call that is compared by similarity.
const MAX_STRINGS: usize = 8;

/// Caching of one tool's results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ToolPolicy {
    /// True if a call changes nothing and depends on its arguments alone for the time to live. Only
    /// results of such tools are cached.
    pub is_pure: bool,
    /// Time to live of a result.
    pub ttl_ms: u64,
    /// Least cosine of each string argument with that of a cached call; `None` allows exact hits
    /// only.
    pub min_cosine: Option<f32>,
}

/// Limits of a [`ToolCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Bytes of arguments, results and embeddings per tenant; over it, the results unused for the
    /// longest time are evicted.
    pub tenant_bytes: usize,
    /// Bytes of all tenants; over it, results are not cached.
    pub total_bytes: usize,
}

impl Default for CacheLimits {
    /// Makes limits of 8 MiB per tenant and 128 MiB in all.
    fn default() -> Self {
        Self { tenant_bytes: 8 << 20, total_bytes: 128 << 20 }
    }
}

/// Counters of a tenant. Each lookup of a cached tool adds one to exactly one of `exact`,
/// `semantic` and `misses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Lookups answered by a call with equal arguments.
    pub exact: u64,
    /// Lookups answered by a call with similar arguments.
    pub semantic: u64,
    /// Lookups without an answer.
    pub misses: u64,
    /// Results removed because their time to live was over.
    pub expired: u64,
    /// Results removed to make room.
    pub evicted: u64,
    /// Results in the cache, and their bytes.
    pub entries: usize,
    /// Bytes of arguments, results and embeddings.
    pub bytes: usize,
}

/// Answer of a lookup.
#[derive(Debug, Clone, PartialEq)]
pub enum Cached {
    /// Result of a call with equal arguments.
    Exact(Value),
    /// Result of a call with similar arguments.
    Semantic {
        /// The result.
        result: Value,
        /// Least cosine of the string arguments.
        cosine: f32,
    },
}

/// Cache of tool results per tenant.
///
/// Arguments are similar if they differ in strings only, each of which has the cosine that the tool
/// asks for and the same numbers, negations, comparisons and names. Everything else in the
/// arguments must be equal.
pub struct ToolCache {
    embed: Option<Arc<dyn Embed>>,
    limits: CacheLimits,
    policies: HashMap<String, ToolPolicy>,
    tenants: HashMap<String, Tenant>,
    bytes: usize,
    clock: u64,
}

#[derive(Default)]
struct Tenant {
    calls: HashMap<String, Call>,
    /// Keys of calls that may answer each other, by tool and all that must be equal.
    similar: HashMap<String, Vec<String>>,
    /// Keys by the time of their last use.
    by_use: BTreeMap<u64, String>,
    stats: CacheStats,
}

struct Call {
    result: Value,
    expires_ms: u64,
    used: u64,
    bytes: usize,
    /// Group among similar calls, and the embeddings of the strings.
    strings: Option<(String, Vec<Vec<f32>>)>,
}

impl ToolCache {
    /// Makes an empty cache. Without an embedding model all hits are exact.
    pub fn new(embed: Option<Arc<dyn Embed>>, limits: CacheLimits) -> Self {
        Self { embed, limits, policies: HashMap::new(), tenants: HashMap::new(), bytes: 0, clock: 0 }
    }

    /// Declares a tool. Tools that were never declared are not cached.
    ///
    /// # Errors
    /// [`Error::Setting`] for a cosine that is not above 0 and at most 1.
    pub fn declare(&mut self, tool: &str, policy: ToolPolicy) -> Result<()> {
        if let Some(cosine) = policy.min_cosine.filter(|&x| !(x > 0.0 && x <= 1.0)) {
            let value = cosine.to_string();
            return Err(Error::Setting { name: "min_cosine", value, range: "above 0 and at most 1" });
        }
        self.policies.insert(tool.to_owned(), policy);
        Ok(())
    }

    /// Looks a call up. The result is `None` for tools that are not cached, which are not counted.
    ///
    /// # Errors
    /// Errors of the embedding model.
    pub fn lookup(
        &mut self,
        tenant: &str,
        tool: &str,
        arguments: &Value,
        now_ms: u64,
    ) -> Result<Option<Cached>> {
        let Some(policy) = self.policies.get(tool).copied().filter(|policy| policy.is_pure) else {
            return Ok(None);
        };
        let key = key(tool, arguments);
        self.clock += 1;
        let clock = self.clock;
        let cache = self.tenants.entry(tenant.to_owned()).or_default();
        let before = cache.stats.bytes;
        let exact = cache.take_live(&key, clock, now_ms).map(Cached::Exact);
        let found = match exact {
            Some(hit) => Some(hit),
            None => cache.similar(&self.embed, policy, tool, arguments, (clock, now_ms))?,
        };
        self.bytes -= before - cache.stats.bytes;
        match &found {
            Some(Cached::Exact(_)) => cache.stats.exact += 1,
            Some(Cached::Semantic { .. }) => cache.stats.semantic += 1,
            None => cache.stats.misses += 1,
        }
        Ok(found)
    }

    /// Adds the result of a call. False if it is not cached: the tool is not pure or the result is
    /// too large.
    ///
    /// # Errors
    /// Errors of the embedding model.
    pub fn insert(
        &mut self,
        tenant: &str,
        tool: &str,
        arguments: &Value,
        result: Value,
        now_ms: u64,
    ) -> Result<bool> {
        let Some(policy) = self.policies.get(tool).copied().filter(|policy| policy.is_pure) else {
            return Ok(false);
        };
        let key = key(tool, arguments);
        let strings = match (&self.embed, policy.min_cosine) {
            (Some(embed), Some(_)) => embedded_strings(embed.as_ref(), tool, arguments)?,
            _ => None,
        };
        let embeddings = strings.as_ref().map_or(0, |(group, embeddings)| {
            group.len() + embeddings.iter().map(|e| size_of_val(&**e)).sum::<usize>()
        });
        let bytes = size_of::<Call>() + 3 * key.len() + embeddings + result.to_string().len();
        let cache = self.tenants.entry(tenant.to_owned()).or_default();
        let before = cache.stats.bytes;
        cache.remove(&key);
        let others = self.bytes - before;
        let room = self.limits.tenant_bytes.min(self.limits.total_bytes.saturating_sub(others));
        let fits = bytes <= room;
        while fits && cache.stats.bytes + bytes > room {
            let Some(oldest) = cache.by_use.first_key_value().map(|(_, key)| key.clone()) else { break };
            cache.remove(&oldest);
            cache.stats.evicted += 1;
        }
        if fits {
            self.clock += 1;
            let expires_ms = now_ms.saturating_add(policy.ttl_ms);
            cache.add(key, Call { result, expires_ms, used: self.clock, bytes, strings });
        }
        self.bytes = others + cache.stats.bytes;
        Ok(fits)
    }

    /// Removes all results of a tenant and its counters.
    pub fn forget(&mut self, tenant: &str) {
        if let Some(cache) = self.tenants.remove(tenant) {
            self.bytes -= cache.stats.bytes;
        }
    }

    /// Counters of a tenant.
    pub fn stats(&self, tenant: &str) -> CacheStats {
        self.tenants.get(tenant).map(|cache| cache.stats).unwrap_or_default()
    }
}

impl Tenant {
    /// Result under a key and its use; an expired one is removed.
    fn take_live(&mut self, key: &str, clock: u64, now_ms: u64) -> Option<Value> {
        let call = self.calls.get_mut(key)?;
        if now_ms >= call.expires_ms {
            self.remove(key);
            self.stats.expired += 1;
            return None;
        }
        let result = call.result.clone();
        if let Some(key) = self.by_use.remove(&std::mem::replace(&mut call.used, clock)) {
            self.by_use.insert(clock, key);
        }
        Some(result)
    }

    /// Result of the most similar call that is similar enough.
    fn similar(
        &mut self,
        embed: &Option<Arc<dyn Embed>>,
        policy: ToolPolicy,
        tool: &str,
        arguments: &Value,
        (clock, now_ms): (u64, u64),
    ) -> Result<Option<Cached>> {
        let (Some(embed), Some(least)) = (embed, policy.min_cosine) else { return Ok(None) };
        // The group is known without the model, which is asked only if there is somebody to
        // compare.
        let Some((group, texts)) = strings(tool, arguments) else { return Ok(None) };
        let keys = self.similar.get(&group).cloned().unwrap_or_default();
        if keys.is_empty() {
            return Ok(None);
        }
        let asked = embed_all(embed.as_ref(), &texts)?;
        let mut best: Option<(f32, String)> = None;
        for key in keys {
            let Some(call) = self.calls.get(&key) else { continue };
            if now_ms >= call.expires_ms {
                self.remove(&key);
                self.stats.expired += 1;
                continue;
            }
            let Some((_, known)) = &call.strings else { continue };
            let cosine = known.iter().zip(&asked).map(|(a, b)| cosine(a, b)).fold(1.0, f32::min);
            if cosine >= least && best.as_ref().is_none_or(|(most, _)| cosine > *most) {
                best = Some((cosine, key));
            }
        }
        let Some((cosine, key)) = best else { return Ok(None) };
        Ok(self.take_live(&key, clock, now_ms).map(|result| Cached::Semantic { result, cosine }))
    }

    fn add(&mut self, key: String, call: Call) {
        self.stats.bytes += call.bytes;
        self.by_use.insert(call.used, key.clone());
        if let Some((group, _)) = &call.strings {
            self.similar.entry(group.clone()).or_default().push(key.clone());
        }
        self.calls.insert(key, call);
        self.stats.entries = self.calls.len();
    }

    fn remove(&mut self, key: &str) {
        let Some(call) = self.calls.remove(key) else { return };
        self.stats.bytes -= call.bytes;
        self.stats.entries = self.calls.len();
        self.by_use.remove(&call.used);
        if let Some((group, _)) = call.strings
            && let Some(keys) = self.similar.get_mut(&group)
        {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.similar.remove(&group);
            }
        }
    }
}

/// Cosine of two embeddings of length 1; -1 for those of different models.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    if a.len() == b.len() { dot(a, b) } else { -1.0 }
}

fn key(tool: &str, arguments: &Value) -> String {
    format!("{}\n{}", Value::from(tool), canonical_json(arguments))
}

/// JSON in one form for equal values: properties sorted, no spaces, whole numbers without a
/// fraction (1.0 is 1).
pub fn canonical_json(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out, &mut |text| Value::from(text).to_string());
    out
}

fn write_canonical(value: &Value, out: &mut String, write_string: &mut dyn FnMut(&str) -> String) {
    match value {
        Value::Object(map) => {
            let mut names: Vec<&String> = map.keys().collect();
            names.sort_unstable();
            out.push('{');
            for (i, name) in names.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_canonical(&map[name], out, write_string);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out, write_string);
            }
            out.push(']');
        }
        Value::String(text) => out.push_str(&write_string(text)),
        Value::Number(number) => {
            // 2^53: from there on, neighbouring integers share one f64.
            let whole = number.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9_007_199_254_740_992.0);
            match whole {
                Some(whole) => out.push_str(&(whole as i64).to_string()),
                None => out.push_str(&number.to_string()),
            }
        }
        Value::Bool(_) | Value::Null => out.push_str(&value.to_string()),
    }
}

/// Group of the calls that may answer each other, and the strings to compare: the group is the tool
/// and its arguments with the guard of each string in the string's place. `None` without strings or
/// with too many.
fn strings(tool: &str, arguments: &Value) -> Option<(String, Vec<String>)> {
    let mut group = format!("{}\n", Value::from(tool));
    let mut texts = Vec::new();
    write_canonical(arguments, &mut group, &mut |text| {
        texts.push(text.to_owned());
        Value::from(guard(text)).to_string()
    });
    (1..=MAX_STRINGS).contains(&texts.len()).then_some((group, texts))
}

fn embed_all(embed: &dyn Embed, texts: &[String]) -> Result<Vec<Vec<f32>>> {
    texts.iter().map(|text| embed_unit(embed, text)).collect()
}

fn embedded_strings(
    embed: &dyn Embed,
    tool: &str,
    arguments: &Value,
) -> Result<Option<(String, Vec<Vec<f32>>)>> {
    let Some((group, texts)) = strings(tool, arguments) else { return Ok(None) };
    Ok(Some((group, embed_all(embed, &texts)?)))
}
