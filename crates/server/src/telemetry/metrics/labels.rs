//! Labels. Their values are names of endpoints, of configured models, tenants and routers, and of
//! installed kernels, so that clients cannot add time series.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};

/// Labels of a request; absent ones are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Labels {
    pub(super) endpoint: Option<Cow<'static, str>>,
    pub(super) model: Option<Arc<str>>,
    pub(super) tenant: Option<Arc<str>>,
    pub(super) router: Option<Arc<str>>,
    pub(super) arm: Option<Arc<str>>,
    pub(super) pack: Option<Arc<str>>,
    pub(super) kernel: Option<Arc<str>>,
    /// A further label: its name and value.
    pub(super) kind: Option<(&'static str, &'static str)>,
}

impl Labels {
    pub(super) fn of_model(name: &Arc<str>) -> Self {
        Self { model: Some(Arc::clone(name)), ..Self::default() }
    }

    pub(super) fn of_arm(router: &Arc<str>, arm: &Arc<str>) -> Self {
        Self { router: Some(Arc::clone(router)), arm: Some(Arc::clone(arm)), ..Self::default() }
    }

    pub(super) fn with(self, name: &'static str, value: &'static str) -> Self {
        Self { kind: Some((name, value)), ..self }
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let known = [
            ("endpoint", self.endpoint.as_deref()),
            ("model", self.model.as_deref()),
            ("tenant", self.tenant.as_deref()),
            ("router", self.router.as_deref()),
            ("arm", self.arm.as_deref()),
            ("pack", self.pack.as_deref()),
            ("kernel", self.kernel.as_deref()),
            self.kind.map_or(("", None), |(name, value)| (name, Some(value))),
        ];
        for (name, value) in known {
            if let Some(value) = value {
                (name, value).encode(encoder.encode_label())?;
            }
        }
        Ok(())
    }
}
