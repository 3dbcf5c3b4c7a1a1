//! Metrics of kernel packs, of a pack that only reports.

use std::sync::Arc;

use ruvllm::{EngineOptions, RopeLayout, RowKernelCounts, RowKernelReport, RowKernels};
use serde_json::json;

use super::Served;
use crate::app::{App, RequestLimits};
use crate::models::{ModelEntry, ModelSet};
use crate::testing::{built_in, serve};

/// Kernels that replace nothing and have counters.
#[derive(Debug)]
struct FakePack(RowKernelReport);

impl RowKernels for FakePack {
    fn report(&self) -> Option<RowKernelReport> {
        Some(self.0.clone())
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn rms_norm(&self, _: &[f32], _: &[f32], _: f32, _: &mut [f32]) -> bool {
        false
    }

    fn silu_mul(&self, _: &mut [f32], _: &[f32]) -> bool {
        false
    }

    fn rope(&self, _: RopeLayout, _: &[f32], _: &[f32], _: &mut [f32], _: usize) -> bool {
        false
    }
}

/// Kernels whose counters are all different.
pub(super) fn fake_pack(name: &str) -> Arc<dyn RowKernels> {
    let kernel = |id: &str, calls, failed, is_quarantined| RowKernelCounts {
        id: id.to_owned(),
        calls,
        failed,
        fallbacks: 2 * failed,
        traps: vec![("deadline", failed), ("unreachable", 0)],
        is_quarantined,
    };
    Arc::new(FakePack(RowKernelReport {
        name: name.to_owned(),
        version: Some("1.2.0".to_owned()),
        swaps: 4,
        refused: 1,
        rollbacks: vec![("requested", 2), ("quarantine", 1)],
        kernels: vec![kernel("rms-norm-f32", 70, 0, false), kernel("swiglu-f32", 50, 3, true)],
    }))
}

/// A server of models that share these kernels, each loaded by a request.
fn served(models: &[&str], row_kernels: Option<&Arc<dyn RowKernels>>) -> Served {
    let mut options = EngineOptions::default().with_threads(1).with_kv_budget(64 << 20);
    options.row_kernels = row_kernels.cloned();
    let entries = models.iter().map(|name| ModelEntry::new(*name, built_in(), options.clone())).collect();
    let app = Arc::new(App::new(ModelSet::new(entries, None), RequestLimits::default()));
    let served = Served { router: serve(&app), app };
    for model in models {
        let body = json!({"model": model, "prompt": "The sun", "max_tokens": 2});
        assert_eq!(served.post("/v1/completions", body), 200);
    }
    served
}

#[test]
fn calls_traps_and_quarantines_are_shown_by_kernel() {
    let scrape = served(&["base"], Some(&fake_pack("core"))).scrape();
    let value = |name: &str, labels: &str| {
        scrape.value(&format!(r#"ruvllm_kernel_pack_{name}{{pack="core"{labels}}}"#))
    };
    assert_eq!(value("info", r#",version="1.2.0""#), 1.0);
    assert_eq!((value("swaps_total", ""), value("refused_total", "")), (4.0, 1.0));
    assert_eq!(value("rollbacks_total", r#",cause="quarantine""#), 1.0);
    assert_eq!(value("rollbacks_total", r#",cause="requested""#), 2.0);
    for (kernel, calls, failed, quarantined) in
        [("rms-norm-f32", 70.0, 0.0, 0.0), ("swiglu-f32", 50.0, 3.0, 1.0)]
    {
        let label = format!(r#",kernel="{kernel}""#);
        assert_eq!(value("calls_total", &label), calls);
        assert_eq!(value("failures_total", &label), failed);
        assert_eq!(value("fallbacks_total", &label), 2.0 * failed);
        assert_eq!(value("quarantined", &label), quarantined);
        assert_eq!(value("traps_total", &format!(r#"{label},kind="deadline""#)), failed);
        assert_eq!(value("traps_total", &format!(r#"{label},kind="unreachable""#)), 0.0);
    }
}

#[test]
fn a_pack_of_several_models_is_shown_once() {
    let models = ["first", "second"];
    let scrape = served(&models, Some(&fake_pack("core"))).scrape();
    for model in models {
        assert_eq!(scrape.value(&format!(r#"ruvllm_model_loaded{{model="{model}"}}"#)), 1.0);
    }
    let is_call = |sample: &&String| sample.starts_with("ruvllm_kernel_pack_calls_total");
    assert_eq!(scrape.samples.keys().filter(is_call).count(), 2, "one per kernel");
}

#[test]
fn a_server_without_a_pack_has_no_such_metrics() {
    let scrape = served(&["base"], None).scrape();
    assert!(scrape.samples.keys().all(|sample| !sample.contains("kernel_pack")));
}
