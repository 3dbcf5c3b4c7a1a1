//! Hand-over of computed prompts between engines.

use std::sync::Arc;

use ruvllm_memory::Tenant;
use ruvllm_text::TokenId;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::prefix::{ImportPlan, PrefixCache, PrefixExport, PrefixImport, TransferError};

impl Engine {
    /// Whole blocks of a prompt that are in memory for requests of a tenant, without adapters and
    /// in the engine's own KV policy, as entries for another engine. The first `skip_blocks` blocks
    /// are left out.
    ///
    /// ```no_run
    /// # use ruvllm::{Engine, EngineOptions, GenerateRequest, Prompt, Tenant};
    /// let options = EngineOptions::default().with_prefix_transfers(true);
    /// let [prefill, decode] = [(); 2].map(|()| Engine::open_with("model.gguf", &options));
    /// let (prefill, decode, tenant) = (prefill?, decode?, Tenant::root());
    /// let tokens = prefill.encode_prompt(&"A long text".into())?;
    /// let request = GenerateRequest::new(Prompt::Tokens(tokens.clone()));
    /// prefill.generate(request.clone().with_max_tokens(1))?;
    ///
    /// let plan = decode.plan_import(&tenant, &tokens)?;
    /// if plan.is_worthwhile {
    ///     let mut import = decode.import_prefix(&tenant, &tokens)?;
    ///     let export = prefill.export_prefix(&tenant, &tokens, plan.known_blocks)?;
    ///     import.accept(export.offer())?;
    ///     export.map(|entry| import.push(&entry)).collect::<Result<(), _>>()?;
    ///     import.finish()?;
    /// }
    /// println!("{}", decode.generate(request)?.text);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PrefixTransfer`] if the engine exchanges no prefixes or layers of its model keep a
    /// state, [`Error::TokenOutOfRange`].
    pub fn export_prefix(
        &self,
        tenant: &Tenant,
        tokens: &[TokenId],
        skip_blocks: usize,
    ) -> Result<PrefixExport> {
        let prefixes = self.transferring(tokens)?;
        Arc::clone(prefixes).export(tenant, tokens, skip_blocks).map_err(Error::PrefixTransfer)
    }

    /// Blocks that are missing of a prompt, and if their transfer is quicker than computing them by
    /// the rates that were measured so far. A plan that advises against a transfer is counted.
    ///
    /// # Errors
    /// As [`export_prefix`](Self::export_prefix).
    pub fn plan_import(&self, tenant: &Tenant, tokens: &[TokenId]) -> Result<ImportPlan> {
        let prefixes = self.transferring(tokens)?;
        prefixes.plan_import(&self.core().kv, tenant, tokens).map_err(Error::PrefixTransfer)
    }

    /// Begins to receive blocks of a prompt, which requests of the tenant find in the prefix cache
    /// afterwards. The time from here to the end counts for the rate of transfers.
    ///
    /// The sender of the blocks decides what the model reads in the prompt: they are checked
    /// against damage, mix-ups and, with [`prefix_key`](crate::EngineOptions::prefix_key), against
    /// senders without the key.
    ///
    /// # Errors
    /// As [`export_prefix`](Self::export_prefix).
    pub fn import_prefix(&self, tenant: &Tenant, tokens: &[TokenId]) -> Result<PrefixImport> {
        let prefixes = self.transferring(tokens)?;
        Arc::clone(prefixes).import(&self.core().kv, tenant, tokens).map_err(Error::PrefixTransfer)
    }

    /// The prefix cache, for tokens of the vocabulary.
    fn transferring(&self, tokens: &[TokenId]) -> Result<&Arc<PrefixCache>> {
        self.check_tokens(tokens)?;
        if self.config().state_values() > 0 {
            return Err(Error::PrefixTransfer(TransferError::State));
        }
        self.core().prefixes.as_ref().ok_or(Error::PrefixTransfer(TransferError::Off))
    }
}
