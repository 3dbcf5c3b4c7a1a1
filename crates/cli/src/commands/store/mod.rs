//! Commands of the model store: `pull`, `list`, `rm`, and the part of `show` about its models.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_hub::StoredModel;
use serde::Serialize;

pub(crate) mod info;
pub(crate) mod list;
pub(crate) mod pull;
pub(crate) mod rm;

/// A model in the JSON documents.
#[derive(Serialize)]
struct ModelDocument<'a> {
    name: &'a str,
    source: &'a str,
    commit: &'a str,
    path: &'a Path,
    bytes: u64,
    complete: bool,
    /// Seconds since 1970; absent for a model that is not complete.
    pulled_unix: Option<u64>,
}

impl<'a> From<&'a StoredModel> for ModelDocument<'a> {
    fn from(model: &'a StoredModel) -> Self {
        Self {
            name: &model.name,
            source: &model.source,
            commit: &model.commit,
            path: &model.path,
            bytes: model.bytes(),
            complete: model.is_complete,
            pulled_unix: model.is_complete.then_some(model.pulled_unix),
        }
    }
}

/// Age of a pulled model, as text: `3 days ago`.
fn pulled(model: &StoredModel) -> String {
    if !model.is_complete {
        return "not complete".to_owned();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    crate::output::ago(now.saturating_sub(model.pulled_unix))
}
