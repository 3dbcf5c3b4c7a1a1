//! `ruvllm key`.

use std::fs;

use crate::program::{argument, run};

#[test]
fn keys_are_printed_once_and_stored_as_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("below/keys.toml");
    let file = argument(&path);
    run(&["key", "list", "--file", file]).text();
    let made = run(&["key", "new", "team-a", "--file", file, "--expires-in", "90d", "--json"]).json();
    assert_eq!((made["tenant"].as_str(), made["scopes"][0].as_str()), (Some("team-a"), Some("inference")));
    let key = made["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("rk-") && key.len() == 46, "{key}");
    let plain = run(&["key", "new", "grafana", "--file", file, "--scope", "metrics", "--tenant", "ops"]);
    assert!(plain.text().starts_with("rk-") && plain.text().ends_with('\n'));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("sha256:") && !text.contains(&key) && !text.contains(plain.text().trim()));
    let list = run(&["key", "list", "--file", file, "--json"]).json();
    assert_eq!(list["keys"].as_array().unwrap().len(), 2);
    assert_eq!(list["keys"][1]["tenant"], "ops");
    assert!(list["keys"][0]["expires_unix"].is_u64() && list["keys"][1].get("expires_unix").is_none());
    assert!(run(&["key", "list", "--file", file]).text().contains("grafana"));
    let next = run(&["key", "rotate", "team-a", "--file", file, "--overlap", "1h", "--json"]).json();
    assert_ne!(next["key"], made["key"]);
    assert_eq!(next["overlap_s"], 3600);
    run(&["key", "rm", "team-a", "--file", file, "--json"]).json();
    assert_eq!(run(&["key", "list", "--file", file, "--json"]).json()["keys"].as_array().unwrap().len(), 1);
}

#[cfg(unix)]
#[test]
fn keys_files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    run(&["key", "new", "a", "--file", argument(&path)]).text();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn wrong_names_scopes_and_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let file = argument(&path);
    run(&["key", "new", "a", "--file", file]).text();
    run(&["key", "new", "a", "--file", file]).fails_with(1, &["there is a key \"a\"", "ruvllm key rotate a"]);
    run(&["key", "rm", "b", "--file", file]).fails_with(1, &["there is no key \"b\"", "ruvllm key list"]);
    run(&["key", "new", "a b", "--file", file]).fails_with(1, &["letters"]);
    run(&["key", "new", "b", "--scope", "root", "--file", file]).fails_with(2, &["inference, adapters"]);
    run(&["key", "new", "b", "--expires-in", "soon", "--file", file]).fails_with(2, &["90d"]);
    fs::write(&path, "[[keys]]\nname = 1").unwrap();
    run(&["key", "new", "b", "--file", file]).fails_with(1, &["keys.toml", "line 2"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "[[keys]]\nname = 1");
}

#[test]
fn commands_at_once_lose_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let file = argument(&path);
    let names: Vec<String> = (0..8).map(|index| format!("team-{index}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(move || run(&["key", "new", name, "--file", file]).text().len());
        }
    });
    let list = run(&["key", "list", "--file", file, "--json"]).json();
    let mut found: Vec<_> = (list["keys"].as_array().unwrap().iter())
        .map(|key| key["name"].as_str().unwrap().to_owned())
        .collect();
    found.sort();
    assert_eq!(found, names);
}
