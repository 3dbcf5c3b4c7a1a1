//! Names, tenants and quotas.

use std::fs;

use ruvllm_memory::PagePool;
use tempfile::TempDir;

use super::*;
use crate::residency::ResidencyConfig;
use crate::testing::{base, pool, write};

fn registry(pool: &PagePool) -> (TempDir, Registry) {
    let residency = Residency::new(base(), pool.clone(), ResidencyConfig::default());
    (tempfile::tempdir().expect("a folder"), Registry::new(residency))
}

#[test]
fn tenants_see_their_own_adapters_and_those_of_their_ancestors() {
    let pool = pool(8);
    let (folder, registry) = registry(&pool);
    let tenant = |path| pool.tenant(path).expect("a tenant");
    let [org, ann, bob, other] = ["org", "org/ann", "org/bob", "other"].map(tenant);
    let path = write(folder.path(), "a", 1);
    let register = |tenant: &Tenant, name| registry.register(tenant, name, &path, Precision::Tiered).is_ok();
    assert!(register(&Tenant::root(), "all") && register(&org, "ours") && register(&ann, "mine"));
    assert!(register(&ann, "ours"), "a name of its own");
    let sees = |tenant: &Tenant| {
        ["all", "ours", "mine"].map(|name| {
            let found = registry.resolve(tenant, name).ok();
            found.and_then(|found| found.version().map(|version| version.tenant().path().to_owned()))
        })
    };
    let owned = |owners: [Option<&str>; 3]| owners.map(|owner| owner.map(str::to_owned));
    assert_eq!(sees(&ann), owned([Some(""), Some("org/ann"), Some("org/ann")]));
    assert_eq!(sees(&bob), owned([Some(""), Some("org"), None]));
    assert_eq!(sees(&other), owned([Some(""), None, None]));
    assert_eq!(sees(&Tenant::root()), owned([Some(""), None, None]));
    let names = |tenant: &Tenant| {
        let list = registry.list(tenant).into_iter();
        list.map(|adapter| adapter.version.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names(&ann), names(&bob)), (vec!["mine".to_owned(), "ours".to_owned()], vec![]));
}

#[test]
fn errors_about_foreign_and_absent_names_are_equal() {
    let pool = pool(8);
    let (folder, registry) = registry(&pool);
    let [ann, bob] = ["ann", "bob"].map(|path| pool.tenant(path).expect("a tenant"));
    let path = write(folder.path(), "a", 1);
    registry.register(&ann, "secret", &path, Precision::Tiered).expect("a version");
    let text = |error: Error| error.to_string();
    let asked = |tenant, name| {
        let resolved = registry.resolve(tenant, name).map_err(text).expect_err("not theirs");
        let unloaded = registry.unload(tenant, name).map_err(text).expect_err("not theirs");
        [resolved, unloaded]
    };
    let foreign = asked(&bob, "secret");
    assert_eq!(foreign.clone().map(|text| text.replace("secret", "absent")), asked(&bob, "absent"));
    assert!(foreign[0].contains("no adapter \"secret\""));
    // Names that cannot exist, too.
    let long = "x".repeat(10 << 20);
    for name in ["../secret", "ann/secret", "", &long] {
        assert!(matches!(registry.resolve(&bob, name), Err(Error::UnknownAdapter { .. })));
        let error = registry.register(&bob, name, &path, Precision::Tiered).expect_err("no name");
        assert!(error.to_string().len() < 300 && matches!(error, Error::Name { .. }));
    }
    assert!(registry.resolve(&ann, "secret").is_ok());
    let taken = registry.register(&ann, "secret", &path, Precision::Tiered);
    assert!(matches!(taken, Err(Error::NameTaken { .. })));
}

#[test]
fn quotas_count_adapters_of_a_tenant() {
    let pool = pool(8);
    let (folder, registry) = registry(&pool);
    let [ann, bob] = ["ann", "bob"].map(|path| pool.tenant(path).expect("a tenant"));
    registry.set_quota(&ann, 2);
    let path = write(folder.path(), "a", 1);
    let register = |tenant: &Tenant, name| registry.register(tenant, name, &path, Precision::Tiered);
    assert!(register(&ann, "a").is_ok() && register(&ann, "b").is_ok());
    let error = register(&ann, "c").expect_err("two are allowed");
    assert!(matches!(&error, Error::Quota { quota: 2, .. }), "{error}");
    assert!(registry.replace(&ann, "b", &path, Precision::F16).is_ok(), "as many as before");
    assert!(register(&bob, "c").is_ok());
    registry.unload(&ann, "a").expect("it is there");
    assert!(register(&ann, "c").is_ok());
    assert_eq!(registry.len(), 3);
}

#[test]
fn a_refused_file_leaves_the_former_version() {
    let pool = pool(8);
    let (folder, registry) = registry(&pool);
    let root = Tenant::root();
    let path = write(folder.path(), "a", 1);
    let first = registry.register(&root, "a", &path, Precision::Tiered).expect("a version");
    let bad = folder.path().join("bad");
    fs::write(&bad, b"GGUF").expect("a file");
    assert!(matches!(registry.replace(&root, "a", &bad, Precision::Tiered), Err(Error::NotCompact { .. })));
    assert!(!first.is_removed());
    let found = registry.resolve(&root, "a").expect("a version");
    assert!(found.version().is_some_and(|version| Arc::ptr_eq(version, &first)));
}

#[test]
fn two_registrations_of_a_name_at_once_are_one() {
    let pool = pool(8);
    let (folder, registry) = registry(&pool);
    let root = Tenant::root();
    let path = write(folder.path(), "a", 1);
    let results: Vec<bool> = std::thread::scope(|scope| {
        let register = || registry.register(&root, "a", &path, Precision::Tiered).is_ok();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(register)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(results.iter().filter(|is_ok| **is_ok).count(), 1);
    assert_eq!(registry.len(), 1);
}
