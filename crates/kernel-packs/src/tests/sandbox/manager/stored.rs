//! Managers that load from a store, and roll it back.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::{SWIGLU, Time, changed, contents, host, options, provoke, some, touchy, versions};
use crate::manager::{Manager, Origin, Reason};
use crate::sandbox::{Sandbox, SandboxOptions};
use crate::signature::Callable;
use crate::tests::callables::form;
use crate::tests::{key, now, trust};
use crate::{Error, Policy, Store, TrustedKey, TrustedKeys};

const CALLABLE: Callable = super::CALLABLE;

/// A store, and the trust in its packs.
struct Setup {
    folder: TempDir,
    time: Time,
    is_revoked: Arc<AtomicBool>,
}

impl Setup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, time: Time::default(), is_revoked: Arc::default() }
    }

    fn store(&self) -> Store {
        Store::new(self.folder.path().join("packs"))
    }

    fn manager(&self) -> Manager {
        let sandbox = Arc::new(Sandbox::new(SandboxOptions::default()).unwrap());
        let is_revoked = self.is_revoked.clone();
        let origin = Origin::new(self.store(), host(), move || {
            let mut trusted = TrustedKey::new("Acme", key().public_key());
            trusted.revoked = is_revoked.load(Ordering::Relaxed).then(|| "stolen".to_owned());
            TrustedKeys::new(vec![trusted], None)
        });
        Manager::with_origin(sandbox, "core", options(&self.time), origin)
    }

    fn install(&self, version: &str, text: &str) {
        let policy = Policy { keys: &trust(&[&key()]), host: &host(), now: now() };
        self.store().install(contents(version, &[(form(CALLABLE), text)]), policy).unwrap();
    }

    /// Current version of the store.
    fn current(&self) -> String {
        self.store().list().unwrap().0[0].current.release.version.to_string()
    }
}

fn wrong() -> String {
    changed("(f32.load (local.get $up))", "(f32.const 1)")
}

#[test]
fn versions_of_the_store_are_loaded_once() {
    let setup = Setup::new();
    let manager = setup.manager();
    assert!(matches!(manager.refresh(), Err(Error::NotInstalled { .. })));
    setup.install("1.0.0", SWIGLU);
    assert!(manager.refresh().unwrap());
    assert!(!manager.refresh().unwrap(), "it is active");
    setup.install("2.0.0", SWIGLU);
    assert!(manager.refresh().unwrap());
    let status = manager.status();
    assert_eq!((versions(&status), status.counts.swaps), (some("2.0.0", Some("1.0.0")), 2));
}

#[test]
fn a_faulty_version_is_rolled_back_in_the_store() {
    let setup = Setup::new();
    let manager = setup.manager();
    setup.install("1.0.0", SWIGLU);
    manager.refresh().unwrap();
    setup.install("2.0.0", &wrong());
    assert!(matches!(manager.refresh(), Err(Error::Unhealthy { .. })));
    assert_eq!(versions(&manager.status()), some("1.0.0", None));
    assert_eq!(setup.current(), "1.0.0");
    assert!(!manager.refresh().unwrap());
    // The next version replaces it as any other.
    setup.install("2.0.1", SWIGLU);
    assert!(manager.refresh().unwrap());
    assert_eq!(manager.rollback().unwrap().version.to_string(), "1.0.0");
    assert_eq!(setup.current(), "1.0.0");
}

#[test]
fn a_restart_with_a_faulty_version_loads_the_one_before() {
    let setup = Setup::new();
    setup.install("1.0.0", SWIGLU);
    setup.install("2.0.0", &wrong());
    let manager = setup.manager();
    let error = manager.refresh().unwrap_err();
    assert!(matches!(error, Error::Unhealthy { .. }), "{error}");
    assert_eq!((versions(&manager.status()), setup.current()), (some("1.0.0", None), "1.0.0".to_owned()));
}

#[test]
fn two_faulty_versions_do_not_take_turns() {
    let setup = Setup::new();
    setup.install("1.0.0", &wrong());
    setup.install("2.0.0", &wrong());
    let manager = setup.manager();
    for _ in 0..3 {
        assert!(matches!(manager.refresh(), Err(Error::Unhealthy { .. })));
        assert_eq!(setup.current(), "1.0.0");
    }
    let status = manager.status();
    assert!(status.active.is_none() && status.store_fault.is_none());
    assert_eq!(status.counts.refused, 4);
}

#[test]
fn the_only_version_stays_in_the_store() {
    let setup = Setup::new();
    setup.install("1.0.0", &wrong());
    let manager = setup.manager();
    assert!(matches!(manager.refresh(), Err(Error::Unhealthy { .. })));
    assert_eq!((setup.current(), manager.status().store_fault), ("1.0.0".to_owned(), None));
}

#[test]
fn after_a_quarantine_the_next_tick_rolls_the_store_back() {
    let setup = Setup::new();
    let manager = setup.manager();
    setup.install("1.0.0", SWIGLU);
    manager.refresh().unwrap();
    setup.install("2.0.0", &touchy());
    manager.refresh().unwrap();
    provoke(&mut manager.reader());
    assert_eq!(versions(&manager.status()), some("1.0.0", None));
    assert_eq!(setup.current(), "2.0.0", "a call does not wait for files");
    manager.tick();
    assert_eq!(setup.current(), "1.0.0");
    assert!(!manager.refresh().unwrap());
    assert!(matches!(manager.status().rollbacks[0].reason, Reason::Quarantined { .. }));
    assert!(matches!(manager.rollback(), Err(Error::NoPrevious { .. })), "the other one is faulty");
}

#[test]
fn a_rollback_is_one_of_the_store_also_after_the_grace_period() {
    let setup = Setup::new();
    let manager = setup.manager();
    for version in ["1.0.0", "2.0.0"] {
        setup.install(version, SWIGLU);
        manager.refresh().unwrap();
    }
    setup.time.forward(300);
    assert_eq!(manager.rollback().unwrap().version.to_string(), "1.0.0");
    assert_eq!(setup.current(), "1.0.0");
    let status = manager.status();
    assert_eq!((status.counts.requested, status.probation_left), (1, None));
    assert_eq!(manager.rollback().unwrap().version.to_string(), "2.0.0", "within its grace period");
    assert_eq!(setup.current(), "2.0.0");
}

#[test]
fn packs_that_are_not_from_the_store_leave_it_alone() {
    let setup = Setup::new();
    let manager = setup.manager();
    setup.install("1.0.0", SWIGLU);
    setup.install("1.0.1", SWIGLU);
    manager.refresh().unwrap();
    manager.upgrade(&super::swiglu("9.0.0", &touchy())).unwrap();
    provoke(&mut manager.reader());
    manager.tick();
    assert_eq!((versions(&manager.status()), setup.current()), (some("1.0.1", None), "1.0.1".to_owned()));
}

#[test]
fn a_store_in_use_is_rolled_back_later() {
    let setup = Setup::new();
    let manager = setup.manager();
    setup.install("1.0.0", SWIGLU);
    manager.refresh().unwrap();
    setup.install("2.0.0", &wrong());
    let lock = File::options().write(true).open(setup.store().root().join("packs.lock")).unwrap();
    lock.try_lock().unwrap();
    assert!(matches!(manager.refresh(), Err(Error::Unhealthy { .. })));
    assert_eq!(setup.current(), "2.0.0");
    assert!(manager.status().store_fault.unwrap().contains("in use by another process"));
    assert!(matches!(manager.refresh(), Err(Error::Busy { .. })), "the faulty version is not tried again");
    lock.unlock().unwrap();
    manager.tick();
    assert_eq!((setup.current(), manager.status().store_fault), ("1.0.0".to_owned(), None));
}

#[test]
fn a_revocation_needs_no_restart() {
    let setup = Setup::new();
    let manager = setup.manager();
    setup.install("1.0.0", SWIGLU);
    manager.refresh().unwrap();
    setup.install("2.0.0", SWIGLU);
    setup.is_revoked.store(true, Ordering::Relaxed);
    let error = manager.refresh().unwrap_err();
    assert!(matches!(error, Error::Installed { source, .. } if matches!(*source, Error::RevokedKey { .. })));
    assert_eq!((versions(&manager.status()), setup.current()), (some("1.0.0", None), "2.0.0".to_owned()));
}

#[test]
fn an_unloaded_version_is_not_loaded_again_from_the_store() {
    let setup = Setup::new();
    setup.install("1.0.0", &touchy());
    let manager = setup.manager();
    manager.refresh().unwrap();
    provoke(&mut manager.reader());
    for _ in 0..3 {
        manager.tick();
        assert!(!manager.refresh().unwrap());
    }
    let status = manager.status();
    assert_eq!((versions(&status), setup.current()), ((None, None), "1.0.0".to_owned()));
    assert_eq!((status.counts.swaps, status.store_fault), (1, None));
    setup.install("1.0.1", SWIGLU);
    assert!(manager.refresh().unwrap());
    assert_eq!(versions(&manager.status()), some("1.0.1", None));
    manager.unload().unwrap();
    assert!(!manager.refresh().unwrap(), "also by hand");
}

#[test]
fn a_first_pack_with_an_older_version_in_the_store_gives_way_to_it() {
    let setup = Setup::new();
    setup.install("1.0.0", SWIGLU);
    setup.install("2.0.0", &touchy());
    let manager = setup.manager();
    manager.refresh().unwrap();
    provoke(&mut manager.reader());
    assert_eq!(versions(&manager.status()), (None, None), "at once");
    manager.tick();
    assert_eq!(setup.current(), "1.0.0");
    assert!(manager.refresh().unwrap());
    assert_eq!(versions(&manager.status()), some("1.0.0", None));
}
