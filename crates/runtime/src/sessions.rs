//! Named sessions of tenants: requests that go on from one another, also after a restart.

use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use ruvllm_memory::Tenant;
use ruvllm_text::TokenId;

use crate::embed::EmbeddingRequest;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::{GenerateRequest, Prompt, check_id};
use crate::session_table::file::{self, Saved};
use crate::session_table::{Name, Record, SessionError, SessionTable, State};

/// Tokens of a text that count for its similarity.
const EMBEDDED_TOKENS: usize = 256;

/// Tokens at the end of a prompt of ids that count as its last message.
const MESSAGE_TOKENS: usize = 256;

impl Engine {
    /// The sessions of all tenants.
    pub fn sessions(&self) -> Sessions<'_> {
        Sessions { engine: self }
    }

    /// Opens the session that a request names.
    ///
    /// # Errors
    /// [`Error::Session`] for one more than the tenant's quota.
    pub(crate) fn session_of(&self, request: &GenerateRequest) -> Result<Option<Arc<Record>>> {
        let Some(id) = &request.session else { return Ok(None) };
        let (name, now) = (Name::new(request.tenant.path(), id), SystemTime::now());
        let open = || self.session_table.open(name.clone(), now, || self.new_session());
        let record = match open() {
            Err(SessionError::Quota { .. }) => {
                self.sessions().expire(now);
                open()
            }
            other => other,
        };
        let record = record.map_err(Error::Session)?;
        if self.session_table.is_expired(record.state().last_used, now) {
            // As if it had been removed and made again.
            record.end(&[], None, now);
            self.end_session(record.number);
        }
        Ok(Some(record))
    }

    /// Text of the last message of a prompt, for similarity.
    pub(crate) fn last_message(&self, prompt: &Prompt) -> String {
        match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(tokens) => {
                let last = &tokens[tokens.len().saturating_sub(MESSAGE_TOKENS)..];
                self.tokenizer().decode(last, true).unwrap_or_default()
            }
            Prompt::Chat { messages, .. } => {
                let text = messages.last().and_then(|message| message.content.as_ref());
                text.map(|text| text.as_str().map_or_else(|| text.to_string(), str::to_owned))
                    .unwrap_or_default()
            }
        }
    }
}

/// A session as it was at the end of its last request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The id.
    pub id: String,
    /// Token ids of prompt and output, as far as their keys and values were computed; empty before
    /// the first result. As a prompt, with more tokens behind them, they go on with the session.
    pub tokens: Arc<[TokenId]>,
    /// Last message of the last prompt, at most 4096 bytes.
    pub last_message: Arc<str>,
    /// Time of the last request or its result.
    pub last_used: SystemTime,
}

/// Sessions of an engine: see [`Engine::sessions`].
///
/// A request with [`GenerateRequest::session`] makes its session if there is none. It contains its
/// whole prompt, and gets the same text as without a session. The session keeps the token ids of
/// the sequence and its keys and values: in the prefix cache, from where they move to its folder or
/// are evicted as any prefix, or without a prefix cache as an idle sequence until memory is short.
/// Ids are those of a tenant: no session of another tenant is found, listed or counted.
///
/// # Examples
/// ```no_run
/// use ruvllm::{Engine, GenerateRequest, Tenant};
///
/// let engine = Engine::open("model.gguf")?;
/// let first = engine.generate(GenerateRequest::new("Once upon a time").with_session("story"))?;
/// let text = format!("Once upon a time{} Then", first.text);
/// engine.generate(GenerateRequest::new(text).with_session("story"))?;
/// engine.sessions().save("sessions".as_ref())?;
///
/// // After a restart:
/// engine.sessions().restore("sessions".as_ref())?;
/// let found = engine.sessions().similar(&Tenant::root(), "a fairy tale", 3)?;
/// assert_eq!(found[0].0.id, "story");
/// # Ok::<(), ruvllm::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Sessions<'e> {
    engine: &'e Engine,
}

impl Sessions<'_> {
    /// Sessions of a tenant whose time to live is not over, by id.
    pub fn list(&self, tenant: &Tenant) -> Vec<SessionInfo> {
        let now = SystemTime::now();
        let all = self.engine.session_table.all(Some(tenant.path())).into_iter();
        all.map(|(name, record)| info(&name, record.state()))
            .filter(|session| !self.engine.session_table.is_expired(session.last_used, now))
            .collect()
    }

    /// A session; `None` if the tenant has none of this id, or its time to live is over.
    pub fn get(&self, tenant: &Tenant, id: &str) -> Option<SessionInfo> {
        let name = Name::new(tenant.path(), id);
        let found = info(&name, self.engine.session_table.get(&name)?.state());
        let is_expired = self.engine.session_table.is_expired(found.last_used, SystemTime::now());
        (!is_expired).then_some(found)
    }

    /// Makes a session with the state of another one. Both go on independently; with a prefix cache
    /// they share keys and values.
    ///
    /// # Errors
    /// [`Error::IdLength`]; [`Error::Session`] if `id` is unknown, `new_id` exists, or the tenant
    /// has reached its quota.
    pub fn fork(&self, tenant: &Tenant, id: &str, new_id: &str) -> Result<()> {
        check_id("session", new_id)?;
        let table = &self.engine.session_table;
        let unknown = || Error::Session(SessionError::Unknown { id: id.to_owned() });
        let name = Name::new(tenant.path(), id);
        let state = table.get(&name).ok_or_else(unknown)?.state();
        let now = SystemTime::now();
        if table.is_expired(state.last_used, now) {
            return Err(unknown());
        }
        let exists = |_: &Arc<Record>| Err(SessionError::Exists { id: new_id.to_owned() });
        let number = || self.engine.new_session();
        let made = table.insert(Name::new(tenant.path(), new_id), now, number, exists);
        let record = made.map_err(Error::Session)?;
        SessionTable::fill(&record, state.used(now));
        Ok(())
    }

    /// Removes a session; false if there is none. Requests that run in it go on. Its prefix stays
    /// in the prefix cache like those of requests without a session.
    pub fn remove(&self, tenant: &Tenant, id: &str) -> bool {
        let removed = self.engine.session_table.remove(&Name::new(tenant.path(), id), |_| true);
        self.end(removed)
    }

    /// Removes the sessions of all tenants whose time to live
    /// ([`EngineOptions::session_ttl`](crate::EngineOptions::session_ttl)) is over at `now`;
    /// returns their number. Expired sessions are invisible before; this frees their memory.
    pub fn expire(&self, now: SystemTime) -> usize {
        let table = &self.engine.session_table;
        let expired = table.all(None).into_iter().filter(|(name, _)| {
            // Used again meanwhile, a session stays.
            self.end(table.remove(name, |state| table.is_expired(state.last_used, now)))
        });
        expired.count()
    }

    /// Sets the largest number of sessions of a tenant, in place of
    /// [`EngineOptions::session_quota`](crate::EngineOptions::session_quota). Sessions beyond it
    /// stay.
    pub fn set_quota(&self, tenant: &Tenant, quota: usize) {
        self.engine.session_table.set_quota(tenant.path(), quota);
    }

    /// The `top_n` sessions of a tenant whose last messages are the most similar to `text`, with
    /// the cosine of both embeddings, the most similar first. Embeddings are the engine's
    /// ([`Engine::embed`]) of the first 256 tokens; those of messages are computed once.
    ///
    /// # Errors
    /// As [`Engine::embed`].
    pub fn similar(&self, tenant: &Tenant, text: &str, top_n: usize) -> Result<Vec<(SessionInfo, f32)>> {
        let (table, now) = (&self.engine.session_table, SystemTime::now());
        let sessions: Vec<_> = (table.all(Some(tenant.path())).into_iter())
            .map(|(name, record)| (name, record.state(), record))
            .filter(|(_, state, _)| !state.last_message.is_empty() && !table.is_expired(state.last_used, now))
            .collect();
        let missing: Vec<_> = sessions.iter().filter(|(_, state, _)| state.embedding.is_none()).collect();
        let messages = missing.iter().map(|(_, state, _)| &*state.last_message);
        let mut vectors = self.embed([text].into_iter().chain(messages))?.into_iter();
        let wanted = vectors.next().unwrap_or_default();
        for ((_, state, record), vector) in missing.into_iter().zip(vectors) {
            record.set_embedding(&state.last_message, vector);
        }
        let mut found: Vec<(SessionInfo, f32)> = sessions
            .into_iter()
            .filter_map(|(name, state, record)| {
                let embedding = record.state().embedding?;
                Some((info(&name, state), dot(&wanted, &embedding)))
            })
            .collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found.truncate(top_n);
        Ok(found)
    }

    /// Embeddings of unit length.
    fn embed<'t>(&self, texts: impl Iterator<Item = &'t str>) -> Result<Vec<Arc<[f32]>>> {
        let most = EMBEDDED_TOKENS.min(self.engine.context_length());
        let request = EmbeddingRequest::new(texts).with_normalize(true).with_max_tokens(most);
        let embeddings = self.engine.embed(&request)?.embeddings;
        Ok(embeddings.into_iter().map(|embedding| embedding.vector.into()).collect())
    }

    /// Number that changes with each request and each removal: sessions that have the number of
    /// their last [`save`](Self::save) are saved. It holds for this process alone.
    pub fn revision(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, record) in self.engine.session_table.all(None) {
            (name, record.state().last_used).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Saves the sessions of all tenants into a folder, which is created if missing: an index and,
    /// in the form of the prefix cache's files, the whole blocks of keys and values that are in the
    /// prefix cache. What is missing is recomputed after [`restore`](Self::restore).
    ///
    /// The prompts can be recovered from the files: protect the folder as you would the prompts.
    /// The index appears by renaming; a kill at any moment leaves the old one or the new one.
    ///
    /// # Errors
    /// [`Error::Session`] if a file cannot be written, [`Error::Open`] if the model is gone.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let model = self.engine.fingerprint()?;
        let created = fs::create_dir_all(folder);
        created.map_err(|source| {
            let path = folder.to_owned();
            Error::Session(SessionError::File { action: "write", path, source })
        })?;
        let saved: Vec<Saved> = (self.engine.session_table.all(None).into_iter())
            .map(|(name, record)| {
                let State { tokens, last_message, last_used, prefix, .. } = record.state();
                Saved { name, tokens, last_message: last_message.as_ref().to_owned(), last_used, prefix }
            })
            .collect();
        if let Some(prefixes) = &self.engine.core().prefixes {
            let store = prefixes.archive(&folder.join("prefixes")).map_err(store_failed)?;
            for session in &saved {
                if let Some(key) = &session.prefix {
                    prefixes.save(&store, model, key, &session.tokens).map_err(store_failed)?;
                }
            }
        }
        file::write(folder, &model, &saved).map_err(Error::Session)
    }

    /// Adds saved sessions to those of the engine; returns their number. Sessions that exist, and
    /// those whose time to live is over, are left out; quotas do not apply. Keys and values are
    /// read back as far as the KV budget has room without evicting; blocks that cannot be used are
    /// recomputed by the next request.
    ///
    /// # Errors
    /// [`Error::Session`] for an index that is missing, damaged or of another model. Nothing has
    /// changed then.
    pub fn restore(&self, folder: &Path) -> Result<usize> {
        let model = self.engine.fingerprint()?;
        let saved = file::read(folder, &model).map_err(Error::Session)?;
        let (core, table, now) = (self.engine.core(), &self.engine.session_table, SystemTime::now());
        let vocab_size = self.engine.config().vocab_size;
        let path = file::path(folder);
        let is_known = |saved: &Saved| saved.tokens.iter().all(|&token| (token as usize) < vocab_size);
        if !saved.iter().all(is_known) {
            let reason = "a token is outside the vocabulary";
            return Err(Error::Session(SessionError::Damaged { path, reason }));
        }
        let archive = match &core.prefixes {
            Some(prefixes) => {
                Some((prefixes, prefixes.archive(&folder.join("prefixes")).map_err(store_failed)?))
            }
            None => None,
        };
        let mut restored = 0;
        for session in saved {
            let Saved { name, tokens, last_message, last_used, mut prefix } = session;
            if table.is_expired(last_used, now) || table.get(&name).is_some() {
                continue;
            }
            if let (Some(key), Some((prefixes, store))) = (&mut prefix, &archive)
                && let Some(tenant) = self.tenant(&name.tenant)
            {
                let kv = [&core.kv].into_iter().chain(&core.request_kv);
                prefixes.restore(kv, store, model, key, &tenant, &tokens);
            }
            let Some(record) = table.add(name, now, || self.engine.new_session()) else { continue };
            SessionTable::fill(&record, SessionTable::state(tokens, &last_message, last_used, prefix));
            restored += 1;
        }
        Ok(restored)
    }

    /// The tenant of a path; `None` if the pool has no place for it.
    fn tenant(&self, path: &str) -> Option<Tenant> {
        match path {
            "" => Some(Tenant::root()),
            path => self.engine.kv_store().pool().tenant(path).ok(),
        }
    }

    /// Releases the sequence of a removed session; false without one.
    fn end(&self, removed: Option<Arc<Record>>) -> bool {
        let Some(record) = removed else { return false };
        self.engine.end_session(record.number);
        true
    }
}

fn store_failed(source: ruvllm_kv_cache::Error) -> Error {
    Error::Session(SessionError::Store(source))
}

fn info(name: &Name, state: State) -> SessionInfo {
    let State { tokens, last_message, last_used, .. } = state;
    SessionInfo { id: name.id.as_ref().to_owned(), tokens, last_message, last_used }
}

/// Dot product in the order of the values.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

impl fmt::Debug for Sessions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}
