//! The loaded model with all state that requests share, held by the [`Engine`](crate::Engine) and
//! the thread of the step loop.

use std::sync::Arc;

use ruvllm_adapters::Residency;
use ruvllm_kv_cache::{KvPolicy, KvStore};
use ruvllm_memory::PressurePolicy;
use ruvllm_models::{Compute, Model};

use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::intake::Intake;
use crate::prefix::PrefixCache;
use crate::quality::QualityMemory;
use crate::speculation::{Draft, Speculation};
use crate::step::{StepCounters, Tuning};

/// A model that is ready to run.
pub(crate) struct Core {
    pub(crate) model: Model,
    pub(crate) codec: TextCodec,
    pub(crate) compute: Compute,
    /// Largest number of tokens in a pass.
    pub(crate) prefill_chunk: usize,
    /// Largest number of tokens in a sequence, prompt and output together.
    pub(crate) context: usize,
    pub(crate) kv: KvStore,
    /// Stores of the other policies that requests may name.
    pub(crate) request_kv: Vec<KvStore>,
    pub(crate) prefixes: Option<Arc<PrefixCache>>,
    /// Tiers of the registered adapters.
    pub(crate) residency: Arc<Residency>,
    /// Pressure policy of requests that name none.
    pub(crate) pressure: PressurePolicy,
    pub(crate) quality: QualityMemory,
    pub(crate) counters: Arc<StepCounters>,
    /// Requests that have not ended.
    pub(crate) intake: Arc<Intake>,
    pub(crate) scheduling: ruvllm_scheduler::Config,
    /// Model or head that drafts the next tokens.
    pub(crate) draft: Option<Draft>,
    /// Setting of requests that name none.
    pub(crate) speculation: Speculation,
    /// Real-time settings; `None` keeps those of the options.
    pub(crate) tuning: Option<Tuning>,
    /// Turns of lessons.
    #[cfg(feature = "learning")]
    pub(crate) lessons: crate::learning::LessonTurns,
}

impl Core {
    /// Store of a policy besides the engine's own; `None` for that.
    ///
    /// # Errors
    /// [`Error::KvPolicyNotOpened`].
    pub(crate) fn store_of(&self, policy: Option<&KvPolicy>) -> Result<Option<KvStore>> {
        let config = self.model.config();
        let policy = policy.map(|policy| policy.for_model(config.n_heads > config.n_kv_heads));
        match policy.filter(|policy| policy != self.kv.policy()) {
            None => Ok(None),
            Some(policy) => match self.request_kv.iter().find(|store| *store.policy() == policy) {
                Some(store) => Ok(Some(store.clone())),
                None => Err(Error::KvPolicyNotOpened { policy: policy.to_string() }),
            },
        }
    }
}
