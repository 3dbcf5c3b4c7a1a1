//! The index of saved sessions: a file of JSON behind its checksum.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ruvllm_kv_cache::prefix::store::{create_private, open_regular};
use ruvllm_kv_cache::prefix::{AdapterVersion, PrefixKey, Scope};
use ruvllm_text::TokenId;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Name;
use super::error::SessionError;
use crate::prefix::hex;

/// Name of the index in its folder.
const INDEX: &str = "sessions.json";

/// Version of the index.
const FORMAT: u64 = 1;

/// Largest index that is read, in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// A saved session.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Saved {
    pub(crate) name: Name,
    pub(crate) tokens: Arc<[TokenId]>,
    pub(crate) last_message: String,
    pub(crate) last_used: SystemTime,
    pub(crate) prefix: Option<PrefixKey>,
}

/// Path of the index in a folder.
pub(crate) fn path(folder: &Path) -> PathBuf {
    folder.join(INDEX)
}

/// Writes the index: a file beside it is written, synchronized and renamed, so that a kill at any
/// moment leaves the old index or the new one.
pub(crate) fn write(folder: &Path, model: &[u8; 32], sessions: &[Saved]) -> Result<(), SessionError> {
    let path = path(folder);
    let failed = |source| SessionError::File { action: "write", path: path.clone(), source };
    let body = json!({
        "format": FORMAT,
        "model": hex(model),
        "sessions": sessions.iter().map(to_json).collect::<Vec<_>>(),
    });
    let body = body.to_string();
    let content = format!("{}\n{body}\n", hex(&Sha256::digest(body.as_bytes())));
    let temporary = folder.join(format!("{INDEX}.{}.tmp", std::process::id()));
    let written = (|| -> io::Result<()> {
        // Left by a process that was killed.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = create_private(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        sync_folder(folder)
    })();
    if written.is_err() {
        // The first error counts.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

/// Makes the renaming last; other systems than Unix do it with the file.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Reads the index of a folder.
///
/// # Errors
/// [`SessionError::File`], [`SessionError::Damaged`]; [`SessionError::Model`] for another model.
pub(crate) fn read(folder: &Path, model: &[u8; 32]) -> Result<Vec<Saved>, SessionError> {
    let path = path(folder);
    let damaged = |reason| SessionError::Damaged { path: path.clone(), reason };
    let content = read_text(&path)
        .map_err(|source| SessionError::File { action: "read", path: path.clone(), source })?
        .ok_or_else(|| damaged("it is no regular file of text"))?;
    let (checksum, body) = content.split_once('\n').ok_or_else(|| damaged("it has no checksum"))?;
    let body = body.strip_suffix('\n').ok_or_else(|| damaged("its end is missing"))?;
    if checksum != hex(&Sha256::digest(body.as_bytes())) {
        return Err(damaged("its checksum differs"));
    }
    let body: Value = serde_json::from_str(body).map_err(|_| damaged("it is no JSON"))?;
    if body["format"] != FORMAT {
        return Err(damaged("it has another format"));
    }
    if body["model"].as_str() != Some(&hex(model)) {
        return Err(SessionError::Model { path });
    }
    let sessions = body["sessions"].as_array().and_then(|all| all.iter().map(from_json).collect());
    sessions.ok_or_else(|| damaged("a session is incomplete"))
}

/// Text of a regular file; `None` for anything else.
fn read_text(path: &Path) -> io::Result<Option<String>> {
    let Some(file) = open_regular(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).ok())
}

fn to_json(saved: &Saved) -> Value {
    let Saved { name, tokens, last_message, last_used, prefix } = saved;
    let since = last_used.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "tenant": name.tenant,
        "id": name.id,
        "tokens": tokens[..],
        "last_message": last_message,
        "last_used_ms": u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        "prefix": prefix.as_ref().map(|key| json!({
            "adapter": key.adapter.as_ref().map(|adapter| &*adapter.id),
            "kv_format": &*key.kv_format,
            "rope_scaling": &*key.rope_scaling,
        })),
    })
}

fn from_json(value: &Value) -> Option<Saved> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = Name::new(value["tenant"].as_str()?, value["id"].as_str()?);
    let token = |value: &Value| value.as_u64().and_then(|token| TokenId::try_from(token).ok());
    let tokens: Option<Vec<TokenId>> = value["tokens"].as_array()?.iter().map(token).collect();
    let since = Duration::from_millis(value["last_used_ms"].as_u64()?);
    let prefix = match &value["prefix"] {
        Value::Null => None,
        key => Some(PrefixKey {
            model: [0; 32],
            adapter: match &key["adapter"] {
                Value::Null => None,
                id => Some(AdapterVersion { id: id.as_str()?.into(), version: 0 }),
            },
            kv_format: key["kv_format"].as_str()?.into(),
            rope_scaling: key["rope_scaling"].as_str()?.into(),
            scope: Scope::Tenant(name.tenant.as_ref().into()),
        }),
    };
    Some(Saved {
        name,
        tokens: tokens?.into(),
        last_message: text(&value["last_message"])?,
        last_used: SystemTime::UNIX_EPOCH.checked_add(since)?,
        prefix,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Vec<Saved> {
        let key = PrefixKey {
            model: [0; 32],
            adapter: Some(AdapterVersion { id: "ab".into(), version: 0 }),
            kv_format: "f16".into(),
            rope_scaling: "as the model".into(),
            scope: Scope::Tenant("a/b".into()),
        };
        let one = Saved {
            name: Name::new("a/b", "one"),
            tokens: vec![1, 2, u32::MAX].into(),
            last_message: "a \"message\"\n".to_owned(),
            last_used: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            prefix: Some(key),
        };
        let two = Saved { name: Name::new("", "two"), prefix: None, tokens: Arc::default(), ..one.clone() };
        vec![one, two]
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        for sessions in [saved(), Vec::new(), saved()] {
            write(folder.path(), &[7; 32], &sessions).expect("written");
            assert_eq!(read(folder.path(), &[7; 32]).expect("read"), sessions);
            assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no other file stays");
        }
        let error = read(folder.path(), &[8; 32]).expect_err("another model");
        assert!(matches!(error, SessionError::Model { .. }), "{error:?}");
    }

    #[test]
    fn every_damage_is_one_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = read(folder.path(), &[7; 32]).expect_err("nothing there");
        assert!(matches!(error, SessionError::File { action: "read", .. }), "{error:?}");
        write(folder.path(), &[7; 32], &saved()).expect("written");
        let good = fs::read(path(folder.path())).expect("the file");
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1;
            for bad in [&flipped[..], &good[..at]] {
                fs::write(path(folder.path()), bad).expect("written");
                let error = read(folder.path(), &[7; 32]).expect_err("it is damaged");
                assert!(matches!(error, SessionError::Damaged { .. }), "{at}: {error:?}");
            }
        }
    }
}
