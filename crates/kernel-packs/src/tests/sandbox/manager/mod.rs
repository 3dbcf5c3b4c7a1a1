//! Upgrades, health checks and rollbacks.

mod health;
mod load;
mod rollback;
mod stored;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::manager::{Clock, LoadedPack, Manager, ManagerOptions, PackReader, Status};
use crate::manifest::{Category, DType};
use crate::sandbox::{Job, Sandbox, SandboxOptions};
use crate::signature::Callable;
use crate::tests::callables::form;
use crate::tests::{key, now, trust};
use crate::{Contents, Host, Pack, Policy, Result, Version};

const SWIGLU: &str = include_str!("../wat/swiglu.wat");

const CALLABLE: Callable = Callable { category: Category::Swiglu, dtype: DType::F32 };

/// Input for which [`touchy`] traps.
const TOUCHED: f32 = 12_345.0;

fn host() -> Host {
    Host { version: Version::new(0, 1, 0), engine: Some(Sandbox::engine()) }
}

/// Signed pack `core` with kernels of this form and text each.
fn contents(version: &str, kernels: &[(Value, &str)]) -> Contents {
    let folder = tempfile::tempdir().unwrap();
    let mut list = Vec::new();
    for (index, (kernel, text)) in kernels.iter().enumerate() {
        let (mut kernel, path) = (kernel.clone(), format!("kernel-{index}.wasm"));
        fs::write(folder.path().join(&path), wat::parse_str(text).unwrap()).unwrap();
        (kernel["path"], kernel["id"]) = (json!(path), json!(format!("kernel-{index}")));
        list.push(kernel);
    }
    let manifest = json!({
        "schema_version": 1, "name": "core", "version": version, "description": "Test",
        "min_runtime_version": "0.1.0", "created": "2026-11-27",
        "author": {"name": "Acme", "email": "kernels@acme.example"}, "kernels": list
    });
    fs::write(folder.path().join("kernels.json"), manifest.to_string()).unwrap();
    Contents::build(folder.path(), Some(&key())).unwrap()
}

fn verified(contents: Contents) -> Pack {
    contents.verify(Policy { keys: &trust(&[&key()]), host: &host(), now: now() }).unwrap()
}

/// `SwiGLU` with this text.
fn swiglu(version: &str, text: &str) -> Pack {
    verified(contents(version, &[(form(CALLABLE), text)]))
}

/// Replaces a part of `SwiGLU`.
fn changed(part: &str, by: &str) -> String {
    assert_eq!(SWIGLU.matches(part).count(), 1, "{part}");
    SWIGLU.replace(part, by)
}

/// `SwiGLU` that traps for [`TOUCHED`], which no golden vector has.
fn touchy() -> String {
    let touched = format!(
        "(if (f32.eq (f32.load (i32.load (local.get $d))) (f32.const {TOUCHED})) (then (unreachable)))
        (loop $request"
    );
    changed("(loop $request", &touched)
}

/// A clock that stands still unless it is moved.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn forward(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let (start, seconds) = (Instant::now(), self.0.clone());
        Clock::new(move || start + Duration::from_secs(seconds.load(Ordering::Relaxed)))
    }
}

fn options(time: &Time) -> ManagerOptions {
    ManagerOptions { clock: time.clock(), ..Default::default() }
}

fn manager(time: &Time) -> Manager {
    let sandbox = Arc::new(Sandbox::new(SandboxOptions::default()).unwrap());
    Manager::new(sandbox, "core", options(time))
}

/// Manager with version 1.0.0 of a good kernel.
fn serving(time: &Time) -> Manager {
    let manager = manager(time);
    manager.upgrade(&swiglu("1.0.0", SWIGLU)).unwrap();
    manager
}

/// Output of `SwiGLU` of a pack.
fn call(pack: &LoadedPack, gate: &[f32]) -> Result<Vec<f32>> {
    let kernel = pack.callable(CALLABLE).unwrap();
    let binding = kernel.bind(&[("n", gate.len() as u64)], &[])?;
    let (up, mut y) = (vec![1.0f32; gate.len()], vec![0.0f32; gate.len()]);
    let inputs = [bytemuck::cast_slice(gate), bytemuck::cast_slice(&up)];
    let mut outputs = [bytemuck::cast_slice_mut(&mut y)];
    kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }])?;
    Ok(y)
}

/// Calls the kernel of the active pack until it is quarantined.
fn provoke(reader: &mut PackReader) {
    let pack = reader.get().unwrap().clone();
    for _ in 0..3 {
        assert!(call(&pack, &[TOUCHED]).is_err());
    }
    assert!(pack.callable(CALLABLE).unwrap().is_quarantined());
}

fn version_of(pack: Option<&Arc<LoadedPack>>) -> String {
    pack.unwrap().release().version.to_string()
}

/// Versions of the active and the previous pack.
fn versions(status: &Status) -> (Option<String>, Option<String>) {
    let version = |pack: &crate::manager::PackStatus| pack.release.version.to_string();
    (status.active.as_ref().map(version), status.previous.as_ref().map(version))
}

fn some(active: &str, previous: Option<&str>) -> (Option<String>, Option<String>) {
    (Some(active.to_owned()), previous.map(str::to_owned))
}
