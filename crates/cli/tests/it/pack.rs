//! `ruvllm pack`: packs of kernels.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{Run, argument, command, fields, finish};

/// A source folder, a key pair, trusted keys and a store.
struct Workshop {
    folder: TempDir,
}

impl Workshop {
    fn new() -> Self {
        let workshop = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(workshop.path("source")).unwrap();
        let made =
            workshop.run(&["pack", "keygen", &workshop.text("key"), "--name", "Acme", "--json"]).json();
        workshop.trust(&json!([made["trusted_key"]]));
        workshop.source("1.0.0", b"norm");
        workshop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        argument(&self.path(name)).to_owned()
    }

    /// Runs the program with its stores in the folder.
    fn run(&self, arguments: &[&str]) -> Run {
        let output = command(arguments).env("RUVLLM_HOME", self.path("home")).output().unwrap();
        finish(arguments, output)
    }

    /// Replaces the trusted keys of the store.
    fn trust(&self, keys: &Value) {
        let store = self.path("home/packs");
        fs::create_dir_all(&store).unwrap();
        let text = json!({"schema_version": 1, "keys": keys}).to_string();
        fs::write(store.join("trusted-keys.json"), text).unwrap();
        #[cfg(unix)]
        for path in [store.clone(), store.join("trusted-keys.json")] {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }

    /// Writes the draft of a version, and its module.
    fn source(&self, version: &str, payload: &[u8]) {
        let manifest = json!({
            "schema_version": 1,
            "name": "norms",
            "version": version,
            "description": "RMSNorm",
            "min_runtime_version": "0.1.0",
            "author": {"name": "Acme", "email": "kernels@acme.example"},
            "created": "2026-11-27",
            "kernels": [{
                "id": "rms-norm-f32",
                "name": "RMSNorm of rows",
                "category": "rms_norm",
                "path": "norm.wasm",
                "inputs": [{"name": "x", "dtype": "f32", "shape": ["rows", "dim"]}],
                "outputs": [{"name": "y", "dtype": "f32", "shape": ["rows", "dim"]}],
                "parameters": [{"name": "eps", "type": "f32", "default": 1e-6}],
                "platforms": {"wasmtime": {"min_version": "48.0.0"}}
            }]
        });
        fs::write(self.path("source/kernels.json"), manifest.to_string()).unwrap();
        fs::write(self.path("source/norm.wasm"), [b"\0asm\x01\0\0\0", payload].concat()).unwrap();
    }

    /// Builds a signed archive of a version.
    fn build(&self, version: &str) -> String {
        self.source(version, b"norm");
        let out = self.text(&format!("norms-{version}.tar"));
        let (source, key) = (self.text("source"), self.text("key"));
        self.run(&["pack", "build", &source, &out, "--key", &key, "--force"]).text();
        out
    }
}

#[test]
fn a_pack_is_built_verified_installed_and_rolled_back() {
    let workshop = Workshop::new();
    assert!(workshop.run(&["pack", "list"]).text().contains("no packs in"));
    let (source, key, out) =
        (workshop.text("source"), workshop.text("key"), workshop.text("norms-1.0.0.tar"));
    let built = workshop.run(&["pack", "build", &source, &out, "--key", &key, "--json"]).json();
    assert_eq!((&built["signed"], &built["kernel_count"]), (&json!(true), &json!(1)));
    assert_eq!(built["bytes"], fs::metadata(&out).unwrap().len());
    workshop.run(&["pack", "build", &source, &out]).fails_with(1, &["exists", "--force"]);
    let verified = workshop.run(&["pack", "verify", &out, "--json"]).json();
    assert_eq!((&verified["signer"], &verified["key_id"]), (&json!("Acme"), &built["key_id"]));
    assert_eq!(verified["manifest_sha256"], built["manifest_sha256"]);
    assert!(
        workshop
            .run(&["pack", "verify", &out])
            .text()
            .starts_with("valid: norms 1.0.0, 1 kernel, signed by Acme")
    );

    let installed = workshop.run(&["pack", "install", &out, "--json"]).json();
    assert_eq!(fields(&installed), ["name", "version", "previous", "older", "floor", "installed"]);
    let second = workshop.build("1.1.0");
    assert_eq!(workshop.run(&["pack", "install", &second]).text(), "norms 1.1.0, previous 1.0.0\n");
    workshop
        .run(&["pack", "install", &out])
        .fails_with(1, &["1.0.0 is older than 1.1.0", "`ruvllm pack rollback`"]);
    let back = workshop.run(&["pack", "rollback", "norms", "--json"]).json();
    assert_eq!(
        (&back["version"], &back["previous"], &back["floor"]),
        (&json!("1.0.0"), &json!("1.1.0"), &json!("1.1.0"))
    );
    let listed = workshop.run(&["pack", "list", "--json"]).json();
    assert_eq!(listed["packs"], json!([back]));
    let text = workshop.run(&["pack", "list"]).text().to_owned();
    assert!(text.contains("norms") && text.contains("previous 1.1.0"), "{text}");
}

#[test]
fn packs_that_nobody_vouches_for_are_refused() {
    let workshop = Workshop::new();
    let pack = workshop.build("1.0.0");
    let keys = fs::read(workshop.path("home/packs/trusted-keys.json")).unwrap();
    let keys: Value = serde_json::from_slice(&keys).unwrap();
    let mut revoked = keys["keys"].clone();
    revoked[0]["revoked"] = json!("key was stolen");
    let other = workshop.run(&["pack", "keygen", &workshop.text("other"), "--json"]).json();
    for (trusted, expected) in [
        (json!([]), "no key is trusted"),
        (json!([other["trusted_key"]]), "is not trusted"),
        (revoked, "was revoked: key was stolen"),
    ] {
        workshop.trust(&trusted);
        for command in ["verify", "install"] {
            workshop.run(&["pack", command, &pack]).fails_with(1, &[expected]);
        }
    }
    fs::remove_file(workshop.path("home/packs/trusted-keys.json")).unwrap();
    workshop.run(&["pack", "verify", &pack]).fails_with(1, &["no key is trusted", "add the public key"]);
    let absent = workshop.text("absent.json");
    workshop.run(&["pack", "verify", &pack, "--trusted-keys", &absent]).fails_with(1, &["absent.json"]);
    fs::write(workshop.path("keys.json"), keys.to_string()).unwrap();
    workshop.run(&["pack", "verify", &pack, "--trusted-keys", &workshop.text("keys.json")]).text();
}

#[test]
fn altered_packs_are_one_clear_error() {
    let workshop = Workshop::new();
    let pack = workshop.build("1.0.0");
    let original = fs::read(&pack).unwrap();
    let find = |text: &[u8]| original.windows(text.len()).position(|window| window == text).unwrap();
    for (at, expected) in [
        (find(b"\0asm") + 9, "SHA-256"),
        (find(b"RMSNorm of"), "no signature of kernels.json"),
        (original.len() - 1, "not in the one form"),
    ] {
        let mut altered = original.clone();
        altered[at] ^= 1;
        fs::write(&pack, &altered).unwrap();
        for command in ["verify", "install"] {
            workshop.run(&["pack", command, &pack]).fails_with(1, &[expected]);
            workshop.run(&["pack", command, &pack, "--json"]).fails_with(1, &[expected]);
        }
    }
    fs::write(&pack, &original[..3000]).unwrap();
    workshop.run(&["pack", "inspect", &pack]).fails_with(1, &["the archive cannot be read"]);
    workshop
        .run(&["pack", "verify", &workshop.text("absent.tar")])
        .fails_with(1, &["cannot read", "absent.tar"]);
    workshop.run(&["pack", "verify", &workshop.text("key")]).fails_with(1, &["the archive cannot be read"]);
    assert_eq!(workshop.run(&["pack", "list", "--json"]).json()["packs"], json!([]));
}

#[test]
fn keys_are_private_and_never_replaced() {
    let workshop = Workshop::new();
    let (key, public) = (workshop.path("key"), workshop.path("key.pub"));
    let before = (fs::read(&key).unwrap(), fs::read(&public).unwrap());
    workshop.run(&["pack", "keygen", argument(&key)]).fails_with(1, &["cannot create", "key.pub"]);
    fs::remove_file(&public).unwrap();
    workshop.run(&["pack", "keygen", argument(&key)]).fails_with(1, &["cannot create"]);
    assert!(!public.exists(), "no public key without its private key");
    assert_eq!(fs::read(&key).unwrap(), before.0);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let (source, out) = (workshop.text("source"), workshop.text("out.tar"));
        workshop
            .run(&["pack", "build", &source, &out, "--key", argument(&key)])
            .fails_with(1, &["chmod 600"]);
        assert!(!Path::new(&out).exists());
    }
    let text = workshop.run(&["pack", "keygen", &workshop.text("second")]).text().to_owned();
    let entry: Value =
        serde_json::from_str(text.lines().last().unwrap().strip_prefix("trusted: ").unwrap()).unwrap();
    assert_eq!((entry["name"].as_str(), fields(&entry)), (Some("second"), vec!["id", "name", "public_key"]));
}

#[test]
fn packs_are_signed_on_another_machine() {
    let workshop = Workshop::new();
    let (source, key) = (workshop.text("source"), workshop.text("key"));
    let signed = workshop.build("1.0.0");
    let out = workshop.text("later.tar");
    workshop
        .run(&["pack", "build", &source, &out])
        .fails_with(1, &["author.signing_key", "`ruvllm pack build --key FILE`"]);
    let mut manifest: Value =
        serde_json::from_slice(&fs::read(workshop.path("source/kernels.json")).unwrap()).unwrap();
    manifest["author"]["signing_key"] =
        workshop.run(&["pack", "verify", &signed, "--json"]).json()["key_id"].clone();
    fs::write(workshop.path("source/kernels.json"), manifest.to_string()).unwrap();
    assert!(workshop.run(&["pack", "build", &source, &out]).text().contains("not signed"));
    workshop.run(&["pack", "verify", &out]).fails_with(1, &["no kernels.json.sig", "pack sign"]);
    workshop.run(&["pack", "keygen", &workshop.text("other")]).text();
    workshop
        .run(&["pack", "sign", &out, "--key", &workshop.text("other")])
        .fails_with(1, &["names the signing key"]);
    let document = workshop.run(&["pack", "sign", &out, "--key", &key, "--json"]).json();
    assert_eq!(document["output"], json!(out));
    assert_eq!(fs::read(&out).unwrap(), fs::read(&signed).unwrap(), "the same bytes");
    workshop.run(&["pack", "sign", &out, "--key", &key]).fails_with(1, &["signed already", "--force"]);
    workshop.run(&["pack", "sign", &out, "--key", &key, "--force"]).text();

    // A folder of the same files.
    let folder = workshop.path("folder");
    fs::create_dir(&folder).unwrap();
    let inspected = workshop.run(&["pack", "inspect", &out, "--json"]).json();
    let text = serde_json::to_string_pretty(&inspected["manifest"]).unwrap() + "\n";
    fs::write(folder.join("kernels.json"), text).unwrap();
    fs::copy(workshop.path("source/norm.wasm"), folder.join("norm.wasm")).unwrap();
    let document = workshop.run(&["pack", "sign", argument(&folder), "--key", &key, "--json"]).json();
    assert_eq!(document["output"], json!(folder.join("kernels.json.sig")));
    workshop.run(&["pack", "verify", argument(&folder)]).text();
    fs::write(folder.join("notes.txt"), "x").unwrap();
    workshop.run(&["pack", "verify", argument(&folder)]).fails_with(1, &["notes.txt", "does not list"]);
}

#[test]
fn inspection_shows_what_the_author_says() {
    let workshop = Workshop::new();
    let pack = workshop.build("1.0.0");
    workshop.trust(&json!([]));
    let text = workshop.run(&["pack", "inspect", &pack]).text().to_owned();
    for piece in [
        "norms 1.0.0: RMSNorm",
        "author:  Acme <kernels@acme.example>",
        "signed, not verified",
        "rms-norm-f32 (rms_norm): x f32[rows, dim] -> y f32[rows, dim], eps: f32 = 1e-6",
        "entry point kernel_forward, fallback native",
    ] {
        assert!(text.contains(piece), "{piece}: {text}");
    }
    let document = workshop.run(&["pack", "inspect", &pack, "--json"]).json();
    assert_eq!(document["manifest"]["kernels"][0]["limits"]["epoch_ticks"], 1000);
}

#[test]
fn old_versions_are_removed_and_damage_is_listed() {
    let workshop = Workshop::new();
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        workshop.run(&["pack", "install", &workshop.build(version)]).text();
    }
    let removed = workshop.run(&["pack", "prune", "norms", "--json"]).json();
    assert_eq!(removed["removed"], json!(["1.0.0"]));
    assert_eq!(workshop.run(&["pack", "prune", "norms"]).text(), "norms: 0 versions removed\n");
    for command in ["prune", "rollback"] {
        workshop.run(&["pack", command, "../norms"]).fails_with(1, &["no pack \"../norms\"", "pack list"]);
    }
    fs::write(workshop.path("home/packs/norms/00000002/norm.wasm"), "x").unwrap();
    workshop.run(&["pack", "rollback", "norms"]).fails_with(1, &["cannot use the installed pack norms"]);
    fs::write(workshop.path("home/packs/norms/state.json"), "{").unwrap();
    let listed = workshop.run(&["pack", "list", "--json"]).json();
    assert_eq!((&listed["packs"], &listed["damaged"][0]["name"]), (&json!([]), &json!("norms")));
    assert!(workshop.run(&["pack", "list"]).text().contains("damaged: "));
}

#[test]
#[cfg(not(feature = "kernel-packs"))]
fn a_program_without_a_sandbox_says_how_to_build_one() {
    let workshop = Workshop::new();
    let generate = ["generate", "--prompt", "Once", "-n", "4"];
    let run = |flags: &[&str]| workshop.run(&[&generate[..], flags].concat());
    run(&["--kernel-pack", "norms"]).fails_with(1, &["no sandbox", "--features kernel-packs"]);
    workshop.run(&["pack", "bench", &workshop.build("1.0.0")]).fails_with(1, &["no sandbox"]);
    run(&["--kernel-pack-share", "0.5"]).fails_with(2, &["--kernel-pack"]);
    run(&["--kernel-pack", "norms", "--kernel-pack-share", "-1"]).fails_with(2, &["positive"]);
}

#[test]
#[cfg(feature = "kernel-packs")]
fn an_installed_pack_computes() {
    let workshop = Workshop::new();
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-packs/core/pack");
    let generate = ["generate", "--prompt", "Once", "-n", "4", "--kernel-pack", "ruvllm-core", "-v"];
    workshop.run(&generate).fails_with(1, &["\"ruvllm-core\" is installed"]);
    let pack = workshop.text("core.rkp");
    workshop.run(&["pack", "build", argument(&core), &pack, "--key", &workshop.text("key")]).text();
    workshop.run(&["pack", "install", &pack]).text();
    let run = workshop.run(&generate);
    let (_, notes) = run.text_and_notes();
    assert!(notes.contains("kernel pack ruvllm-core 1.0.0: rms_norm from 9091"), "{notes}");
    let measured = workshop.run(&["pack", "bench", &pack, "--repeats", "3", "--json"]).json();
    let kernels = measured["kernels"].as_array().unwrap();
    assert_eq!((kernels.len(), measured["not_called"].as_array().unwrap().len()), (13, 0));
    let median = |kernel: &Value| kernel["in_place"]["median_us"].as_f64().unwrap();
    assert!(kernels.iter().all(|kernel| median(kernel) > 0.0), "{measured}");
    workshop.trust(&json!([]));
    workshop.run(&generate).fails_with(1, &["no key is trusted"]);
}
