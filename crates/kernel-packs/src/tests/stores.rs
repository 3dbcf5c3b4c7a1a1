//! Installation, rollback, and kills at every step.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{draft, host, key, now, replace, signed, signed_by, trust, wasm};
use crate::files::steps;
use crate::{Contents, Error, Host, InstalledPack, Pack, Policy, Result, Store, TrustedKey, TrustedKeys};

/// A store, and what it trusts.
struct Setup {
    folder: TempDir,
    keys: TrustedKeys,
    host: Host,
}

impl Setup {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), keys: trust(&[&key()]), host: host() }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("packs")
    }

    fn store(&self) -> Store {
        Store::new(self.root())
    }

    fn policy(&self) -> Policy<'_> {
        Policy { keys: &self.keys, host: &self.host, now: now() }
    }

    fn install(&self, version: &str) -> Result<InstalledPack> {
        self.store().install(signed(version), self.policy())
    }

    fn open(&self) -> Result<Pack> {
        self.store().open("core", self.policy())
    }

    /// Version of the current pack, verified.
    fn version(&self) -> String {
        self.open().unwrap().manifest().version.to_string()
    }

    fn folders(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root().join("core")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn versions(pack: &InstalledPack) -> (String, Option<String>, String) {
    let text = |stored: &crate::StoredRelease| stored.release.version.to_string();
    (text(&pack.current), pack.previous.as_ref().map(text), pack.floor.version.to_string())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn versions_replace_one_another_and_roll_back() {
    let setup = Setup::new();
    assert_eq!(setup.store().list().unwrap().0, []);
    assert!(matches!(setup.open(), Err(Error::NotInstalled { .. })));
    assert_eq!(versions(&setup.install("1.0.0").unwrap()), ("1.0.0".into(), None, "1.0.0".into()));
    let second = setup.install("1.1.0").unwrap();
    assert_eq!(versions(&second), ("1.1.0".into(), Some("1.0.0".into()), "1.1.0".into()));
    assert_eq!(setup.version(), "1.1.0");
    let back = setup.store().rollback("core", setup.policy()).unwrap();
    assert_eq!(versions(&back), ("1.0.0".into(), Some("1.1.0".into()), "1.1.0".into()));
    assert_eq!(setup.version(), "1.0.0");
    assert_eq!(setup.store().list().unwrap().0, [back]);
    let forth = setup.store().rollback("core", setup.policy()).unwrap();
    assert_eq!(versions(&forth), ("1.1.0".into(), Some("1.0.0".into()), "1.1.0".into()));
}

#[test]
fn downgrades_are_refused_also_after_a_rollback() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    setup.install("1.2.0").unwrap();
    setup.store().rollback("core", setup.policy()).unwrap();
    for version in ["1.0.0", "1.1.0", "1.2.0-rc.1"] {
        assert!(matches!(setup.install(version), Err(Error::Downgrade { .. })), "{version}");
    }
    assert_eq!(setup.version(), "1.0.0");
    assert_eq!(
        versions(&setup.install("1.2.0").unwrap()),
        ("1.2.0".into(), Some("1.0.0".into()), "1.2.0".into())
    );
    assert_eq!(setup.folders(), ["00000001", "00000003", "state.json"]);
}

#[test]
fn a_version_is_installed_with_one_content() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    let mut manifest = draft("1.0.0");
    manifest["description"] = json!("Another text");
    let changed = setup.store().install(signed_by(&manifest, &key()), setup.policy());
    assert!(matches!(changed, Err(Error::SameVersion { .. })));
}

#[test]
fn names_have_floors_of_their_own() {
    let setup = Setup::new();
    setup.install("2.0.0").unwrap();
    let mut manifest = draft("1.0.0");
    manifest["name"] = json!("other");
    setup.store().install(signed_by(&manifest, &key()), setup.policy()).unwrap();
    let names: Vec<String> = setup.store().list().unwrap().0.into_iter().map(|pack| pack.name).collect();
    assert_eq!(names, ["core", "other"]);
}

#[test]
fn packs_that_do_not_verify_leave_the_store_as_it_was() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    let before = setup.folders();
    let mut altered = signed("1.1.0");
    replace(&mut altered, "rope.wasm", wasm(b"ropf"));
    let refused = setup.store().install(altered, setup.policy());
    assert!(matches!(refused, Err(Error::HashMismatch { .. })));
    let mut unsigned = signed("1.1.0");
    unsigned.signature = None;
    assert!(matches!(setup.store().install(unsigned, setup.policy()), Err(Error::Unsigned)));
    assert_eq!((setup.version(), setup.folders()), ("1.0.0".into(), before));
}

#[test]
fn installed_packs_are_verified_each_time_they_are_opened() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    let folder = setup.root().join("core/00000001");
    for name in ["kernels.json", "kernels.json.sig", "rope.wasm", "kernels/norm.wasm"] {
        let path = folder.join(name);
        let original = fs::read(&path).unwrap();
        for at in [0, original.len() / 2, original.len() - 1] {
            let mut altered = original.clone();
            altered[at] ^= 1;
            fs::write(&path, &altered).unwrap();
            assert!(matches!(setup.open(), Err(Error::Installed { .. })), "{name} {at}");
        }
        fs::write(&path, &original).unwrap();
        assert_eq!(setup.version(), "1.0.0");
    }
}

#[test]
fn an_older_pack_in_the_place_of_the_current_one_is_found() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    setup.install("1.1.0").unwrap();
    let (old, new) = (setup.root().join("core/00000001"), setup.root().join("core/00000002"));
    fs::remove_dir_all(&new).unwrap();
    copy(&old, &new);
    let Err(Error::Installed { source, .. }) = setup.open() else { panic!("it was opened") };
    assert!(matches!(*source, Error::Replaced { .. }));
}

#[test]
fn the_same_version_again_repairs_its_files() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    setup.install("1.1.0").unwrap();
    fs::remove_file(setup.root().join("core/00000002/rope.wasm")).unwrap();
    assert!(setup.open().is_err());
    let repaired = setup.install("1.1.0").unwrap();
    assert_eq!(versions(&repaired), ("1.1.0".into(), Some("1.0.0".into()), "1.1.0".into()));
    assert_eq!((setup.version(), setup.folders().len()), ("1.1.0".into(), 3));
}

#[test]
fn keys_that_have_ended_stay_good_for_installed_packs_and_revoked_ones_do_not() {
    let mut setup = Setup::new();
    setup.install("1.0.0").unwrap();
    let mut ended = TrustedKey::new("Acme", key().public_key());
    ended.valid_until = Some("2026-01-01".parse().unwrap());
    setup.keys = TrustedKeys::new(vec![ended.clone()], None).unwrap();
    assert_eq!(setup.version(), "1.0.0");
    assert!(matches!(setup.install("1.1.0"), Err(Error::KeyNotValid { .. })));
    let without_time = Policy { now: None, ..setup.policy() };
    let refused = setup.store().install(signed("1.1.0"), without_time);
    assert!(matches!(refused, Err(Error::KeyNotValid { .. })), "installations have a time");
    ended.revoked = Some("lost".to_owned());
    setup.keys = TrustedKeys::new(vec![ended], None).unwrap();
    let Err(Error::Installed { source, .. }) = setup.open() else { panic!("it was opened") };
    assert!(matches!(*source, Error::RevokedKey { .. }));
}

#[test]
fn a_rollback_to_a_pack_that_does_not_verify_is_refused() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    assert!(matches!(setup.store().rollback("core", setup.policy()), Err(Error::NoPrevious { .. })));
    setup.install("1.1.0").unwrap();
    fs::write(setup.root().join("core/00000001/rope.wasm"), wasm(b"ropf")).unwrap();
    assert!(matches!(setup.store().rollback("core", setup.policy()), Err(Error::Installed { .. })));
    assert_eq!(setup.version(), "1.1.0");
    assert!(matches!(setup.store().rollback("other", setup.policy()), Err(Error::NotInstalled { .. })));
}

#[test]
fn old_versions_are_removed_but_current_and_previous_stay() {
    let setup = Setup::new();
    for version in ["1.0.0", "1.1.0", "1.2.0", "1.3.0"] {
        setup.install(version).unwrap();
    }
    let removed = setup.store().prune("core").unwrap();
    let removed: Vec<String> = removed.iter().map(|stored| stored.release.version.to_string()).collect();
    assert_eq!(removed, ["1.0.0", "1.1.0"]);
    assert_eq!(setup.folders(), ["00000003", "00000004", "state.json"]);
    assert_eq!(setup.store().prune("core").unwrap(), []);
    setup.store().rollback("core", setup.policy()).unwrap();
    assert_eq!(setup.version(), "1.2.0");
}

#[test]
fn a_store_keeps_a_bounded_number_of_versions() {
    let setup = Setup::new();
    for patch in 0..32 {
        setup.install(&format!("1.0.{patch}")).unwrap();
    }
    assert!(matches!(setup.install("1.0.32"), Err(Error::Limit { found: 33, .. })));
    setup.store().prune("core").unwrap();
    setup.install("1.0.32").unwrap();
}

#[test]
fn one_process_at_a_time_changes_a_store() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    setup.install("1.1.0").unwrap();
    let lock = fs::File::open(setup.root().join("packs.lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(setup.install("1.2.0"), Err(Error::Busy { .. })));
    assert!(matches!(setup.store().rollback("core", setup.policy()), Err(Error::Busy { .. })));
    assert!(matches!(setup.store().prune("core"), Err(Error::Busy { .. })));
    assert_eq!(setup.version(), "1.1.0", "readers do not wait");
    drop(lock);
    setup.install("1.2.0").unwrap();
}

#[cfg(unix)]
#[test]
fn files_of_the_store_are_private() {
    use std::os::unix::fs::PermissionsExt;
    fn check(path: &Path) {
        let metadata = fs::symlink_metadata(path).unwrap();
        let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{}", path.display());
        if metadata.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| check(&entry.unwrap().path()));
        }
    }
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    setup.install("1.1.0").unwrap();
    check(&setup.root());
}

#[cfg(unix)]
#[test]
fn stores_that_others_may_change_and_links_are_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    for path in [setup.root(), setup.root().join("core")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(setup.open(), Err(Error::Writable { .. })));
        assert!(matches!(setup.install("1.1.0"), Err(Error::Writable { .. })));
        assert!(matches!(setup.store().list(), Err(Error::Writable { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let elsewhere = setup.folder.path().join("version");
    fs::rename(setup.root().join("core/00000001"), &elsewhere).unwrap();
    symlink(&elsewhere, setup.root().join("core/00000001")).unwrap();
    assert!(matches!(setup.open(), Err(Error::Installed { .. })));
    fs::rename(setup.root().join("core"), setup.folder.path().join("elsewhere")).unwrap();
    symlink(setup.folder.path().join("elsewhere"), setup.root().join("core")).unwrap();
    assert!(matches!(setup.open(), Err(Error::NotRegular { .. })));
    assert!(matches!(setup.install("1.1.0"), Err(Error::NotRegular { .. })));
}

#[test]
fn damaged_states_are_listed_and_not_overwritten() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    let path = setup.root().join("core/state.json");
    let original: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut state = original.clone();
        *state.pointer_mut(pointer).unwrap() = value;
        state.to_string()
    };
    let newer = with("/schema_version", json!(2));
    let (absent, repeated) = (
        with("/current", json!(7)),
        original.to_string().replace("\"current\":1", "\"current\":1,\"previous\":1"),
    );
    for text in ["", "{}", "[", &newer, &absent, &repeated, &" ".repeat(40 << 10)] {
        fs::write(&path, text).unwrap();
        let (packs, damaged) = setup.store().list().unwrap();
        assert_eq!((packs.len(), damaged.len(), damaged[0].name.as_str()), (0, 1, "core"));
        assert!(setup.open().is_err() && setup.install("2.0.0").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "the floor is not forgotten");
    }
    fs::write(&path, original.to_string()).unwrap();
    assert_eq!(setup.version(), "1.0.0");
}

#[test]
fn names_that_are_paths_find_nothing() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    for name in ["", ".", "..", "../packs/core", "core/", "/", "CORE", "core\0"] {
        assert!(
            matches!(setup.store().open(name, setup.policy()), Err(Error::NotInstalled { .. })),
            "{name:?}"
        );
        assert!(setup.store().prune(name).is_err());
    }
}

#[test]
fn a_failed_write_leaves_the_old_version() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    // A folder where the new version's state belongs cannot be replaced.
    fs::create_dir(setup.root().join("core/state.json.new")).unwrap();
    assert!(matches!(setup.install("1.1.0"), Err(Error::Io { .. })));
    assert_eq!(setup.version(), "1.0.0");
    fs::remove_dir(setup.root().join("core/state.json.new")).unwrap();
    setup.install("1.1.0").unwrap();
    assert_eq!(setup.folders(), ["00000001", "00000002", "state.json"]);
}

/// States of a store before each change on the disk that `work` makes.
fn states_before_each_step(setup: &Setup, work: impl FnOnce()) -> Vec<TempDir> {
    let states = Rc::new(RefCell::new(Vec::new()));
    let (root, seen) = (setup.root(), states.clone());
    let snapshot = move || {
        let state = tempfile::tempdir().unwrap();
        if root.exists() {
            copy(&root, &state.path().join("packs"));
        }
        seen.borrow_mut().push(state);
    };
    steps::watch(snapshot, work);
    states.take()
}

/// Checks that a store that was left at any step works, and takes a next version.
fn check_states(states: Vec<TempDir>, expected: &[&str], next: &str) {
    let mut seen = Vec::new();
    for folder in states {
        let setup = Setup { folder, ..Setup::new() };
        let version = setup.open().map_or_else(
            |error| {
                assert!(matches!(error, Error::NotInstalled { .. }), "{error}");
                "none".to_owned()
            },
            |pack| pack.manifest().version.to_string(),
        );
        seen.push(version);
        let installed = setup.install(next).unwrap();
        assert_eq!(setup.version(), next);
        let kept = 1 + usize::from(installed.previous.is_some()) + installed.older.len();
        assert_eq!(setup.folders().len(), kept + 1, "leftovers are removed: {:?}", setup.folders());
    }
    assert!(seen.iter().all(|version| expected.contains(&version.as_str())), "{seen:?}");
    seen.dedup();
    assert_eq!(seen, expected, "the switch is one step");
}

#[test]
fn an_installation_that_is_killed_at_any_step_leaves_the_old_version_or_the_new_one() {
    let setup = Setup::new();
    let states = states_before_each_step(&setup, || drop(setup.install("1.0.0").unwrap()));
    assert!(states.len() >= 15, "{}", states.len());
    check_states(states, &["none", "1.0.0"], "1.0.1");
    let states = states_before_each_step(&setup, || drop(setup.install("1.1.0").unwrap()));
    check_states(states, &["1.0.0", "1.1.0"], "1.1.1");
    // The same version again, whose former folder is removed at the end.
    let states = states_before_each_step(&setup, || drop(setup.install("1.1.0").unwrap()));
    check_states(states, &["1.1.0"], "1.1.1");
}

#[test]
fn a_rollback_and_a_removal_that_are_killed_at_any_step_leave_a_version() {
    let setup = Setup::new();
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        setup.install(version).unwrap();
    }
    let rollback = || drop(setup.store().rollback("core", setup.policy()).unwrap());
    let states = states_before_each_step(&setup, rollback);
    check_states(states, &["1.2.0", "1.1.0"], "1.2.1");
    let states = states_before_each_step(&setup, || drop(setup.store().prune("core").unwrap()));
    check_states(states, &["1.1.0"], "1.2.1");
}

#[test]
fn installed_packs_are_those_of_folders_and_archives() {
    let setup = Setup::new();
    setup.install("1.0.0").unwrap();
    let contents = Contents::open(&setup.root().join("core/00000001")).unwrap();
    assert_eq!(contents.to_archive().unwrap(), signed("1.0.0").to_archive().unwrap());
}
