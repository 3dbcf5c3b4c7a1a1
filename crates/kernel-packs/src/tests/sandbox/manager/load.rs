//! Upgrades and rollbacks while eight threads call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::{TOUCHED, Time, call, contents, options, swiglu, touchy, verified};
use crate::manager::{LoadedPack, Manager, PackReader};
use crate::manifest::{Category, DType};
use crate::sandbox::{Binding, Job, Sandbox, SandboxOptions};
use crate::signature::Callable;
use crate::tests::callables::form;

/// Its check takes less time than that of `SwiGLU`: it has vectors and no exponentials.
const RMS_NORM: &str = include_str!("../wat/rms_norm.wat");
const CALLABLE: Callable = Callable { category: Category::RmsNorm, dtype: DType::F32 };

const THREADS: usize = 8;
/// Calls of a thread between pauses.
const BURST: u64 = 32;

/// A decode loop: its view, and the request that it bound for the pack with this number.
struct Caller {
    reader: PackReader,
    bound: Option<(u64, Binding)>,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Caller {
    fn new(manager: &Manager, rows: usize) -> Self {
        let x = (0..64 * rows).map(|i| i as f32 * 0.25 - 4.0).collect();
        Self { reader: manager.reader(), bound: None, x, y: vec![0.0; 64 * rows] }
    }

    /// Calls the active pack, and binds for it first if it is another one.
    fn call(&mut self) -> crate::Result<()> {
        let pack = self.reader.get().unwrap();
        let kernel = pack.callable(CALLABLE).unwrap();
        if self.bound.as_ref().is_none_or(|(number, _)| *number != pack.number()) {
            let sizes = [("rows", self.x.len() as u64 / 64), ("dim", 64)];
            self.bound = Some((pack.number(), kernel.bind(&sizes, &[])?));
        }
        let (_, binding) = self.bound.as_ref().unwrap();
        let inputs = [bytemuck::cast_slice(&self.x), bytemuck::cast_slice(&self.x[..64])];
        let mut outputs = [bytemuck::cast_slice_mut(&mut self.y)];
        kernel.call(&mut [Job { binding, inputs: &inputs, outputs: &mut outputs }])
    }
}

/// Reserved addresses of the process in bytes; each instance has more than 4 GiB of them.
#[cfg(target_os = "linux")]
fn addresses() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// Calls from eight threads while `change` runs; the number of calls. None may fail.
fn under_load(manager: &Manager, change: impl FnOnce()) -> u64 {
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for id in 0..THREADS {
            let mut caller = Caller::new(manager, 1 + id);
            let (is_over, calls) = (&is_over, &calls);
            scope.spawn(move || {
                caller.call().unwrap();
                let expected = caller.y.clone();
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..BURST {
                        caller.y.fill(0.0);
                        caller.call().unwrap();
                        assert_eq!(caller.y, expected);
                    }
                    calls.fetch_add(BURST, Ordering::Relaxed);
                    // Leaves the thread of the upgrades a part of few cores.
                    thread::sleep(Duration::from_micros(100));
                }
            });
        }
        change();
        is_over.store(true, Ordering::Relaxed);
    });
    calls.into_inner()
}

#[test]
fn a_thousand_upgrades_and_rollbacks_under_load_fail_no_call_and_leak_nothing() {
    const ROUNDS: u64 = 1000;
    let folder = tempfile::tempdir().unwrap();
    let cache = Some(folder.path().join("compiled"));
    let sandbox = Arc::new(Sandbox::new(SandboxOptions { cache, ..Default::default() }).unwrap());
    let time = Time::default();
    let manager = Manager::new(sandbox.clone(), "core", options(&time));
    let handles = Arc::strong_count(&sandbox);
    let pack = |version| verified(contents(version, &[(form(CALLABLE), RMS_NORM)]));
    let packs = [pack("1.0.0"), pack("1.0.1")];
    manager.upgrade(&packs[0]).unwrap();
    #[cfg(target_os = "linux")]
    let before = addresses();
    let mut all: Vec<Weak<LoadedPack>> = Vec::new();
    let calls = under_load(&manager, || {
        let mut reader = manager.reader();
        for round in 1..=ROUNDS {
            manager.upgrade(&packs[(round % 2) as usize]).unwrap();
            all.push(Arc::downgrade(reader.get().unwrap()));
            let active = reader.get().unwrap().number();
            manager.rollback().unwrap();
            assert_ne!(reader.get().unwrap().number(), active);
            assert!(manager.status().packs_in_memory <= 2 + THREADS + 1);
        }
    });
    let status = manager.status();
    let counts = status.counts;
    assert_eq!(
        (counts.swaps, counts.requested, counts.automatic, counts.refused),
        (ROUNDS + 1, ROUNDS, 0, 0)
    );
    assert!(calls >= ROUNDS, "{calls} calls");
    // Two packs are left, and each has the instances of one kernel.
    assert_eq!(status.packs_in_memory, 2);
    assert_eq!(all.iter().filter(|pack| pack.strong_count() > 0).count(), 1, "the latest");
    #[cfg(target_os = "linux")]
    {
        // Room for instances of tests that run beside this one: a leak would be of 4000 GiB.
        let grown = addresses().saturating_sub(before) >> 30;
        assert!(grown < 1000, "{grown} GiB of addresses");
    }
    time.forward(300);
    manager.tick();
    assert_eq!(manager.status().packs_in_memory, 1);
    assert_eq!(Arc::strong_count(&sandbox), handles);
    let last = Arc::downgrade(manager.reader().get().unwrap());
    drop(manager);
    assert_eq!((last.strong_count(), Arc::strong_count(&sandbox)), (0, 1));
}

#[test]
fn a_quarantine_under_load_goes_back_once() {
    let time = Time::default();
    let manager = super::serving(&time);
    for round in 1..=20 {
        manager.upgrade(&swiglu(&format!("2.0.{round}"), &touchy())).unwrap();
        // All threads of requests that trap, at the same time, on the pack that they began with.
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let manager = &manager;
                scope.spawn(move || {
                    let pack = manager.reader().get().unwrap().clone();
                    for _ in 0..3 {
                        let _ = call(&pack, &[TOUCHED]);
                    }
                });
            }
        });
        let status = manager.status();
        assert_eq!(status.counts.automatic, round);
        assert_eq!(super::versions(&status), super::some("1.0.0", None));
        assert_eq!(status.packs_in_memory, 1);
    }
}
