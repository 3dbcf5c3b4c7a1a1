//! The user's store of adapters.

use ruvllm_adapters::AdapterStore;
use ruvllm_hub::Store;

use crate::error::Result;

/// The store of this user: `adapters` beside the folder of the models.
///
/// # Errors
/// As [`Store::from_env`].
pub(crate) fn store() -> Result<AdapterStore> {
    Ok(AdapterStore::new(Store::from_env()?.root().with_file_name("adapters")))
}
