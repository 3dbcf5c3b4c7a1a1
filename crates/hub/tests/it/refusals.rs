//! Pulls refused before they begin: access, names, answers that are not understood.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use ruvllm_hub::{Error, Hub, Token};

use crate::Place;
use crate::server::{Faults, noise};

const SOURCE: &str = "hf://org/repo";

fn place() -> Place {
    Place::new(&[("m.gguf", noise(50_000, 1))])
}

#[test]
fn a_hub_that_wants_a_token_says_where_it_is_looked_for() {
    let mut place = place();
    place.hub.set(Faults { token: Some("hf_right"), ..Faults::default() });
    place.settings.token_hint = "set HF_TOKEN or write one to /home/me/token".to_owned();
    let error = place.pull(SOURCE).unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains("set HF_TOKEN or write one to /home/me/token"), "{error}");

    place.settings.token = Token::new("hf_wrong");
    let error = place.pull(SOURCE).unwrap_err();
    assert!(
        matches!(error, Error::Unauthorized { .. }) && !format!("{error:?}").contains("hf_wrong"),
        "{error:?}"
    );

    place.settings.token = Token::new("hf_right");
    place.pull(SOURCE).unwrap();
}

#[test]
fn a_gated_repository_says_what_to_do() {
    let place = place();
    place.hub.set(Faults { is_gated: true, ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err().to_string();
    for piece in ["accept the terms", "Access to this model is restricted", "org/repo"] {
        assert!(error.contains(piece), "{error}");
    }
    assert!(place.store.list().unwrap().is_empty());
}

#[test]
fn what_is_not_there_is_not_found() {
    let place = place();
    assert!(matches!(place.pull("hf://org/other"), Err(Error::NotFound { .. })));
    let error = place.pull("hf://org/repo/m.ggufs").unwrap_err();
    assert!(matches!(error, Error::NoSuchFile { .. }) && error.to_string().contains("m.gguf"), "{error}");
    assert!(place.store.list().unwrap().is_empty() && place.files().is_empty());
}

#[test]
fn a_list_of_files_has_a_length() {
    const MOST: usize = 32 << 20;
    let place = place();
    let sound = r#"{"sha": "c0ffee", "siblings": []}"#;
    let padded = |bytes: usize| Faults {
        listing: Some(format!("{sound}{}", " ".repeat(bytes - sound.len()))),
        ..Faults::default()
    };
    place.hub.set(padded(MOST));
    let error = place.pull(SOURCE).unwrap_err().to_string();
    assert!(error.contains("no GGUF file"), "{error}");
    place.hub.set(padded(MOST + 1));
    let error = place.pull(SOURCE).unwrap_err();
    assert!(matches!(error, Error::Answer { .. }) && error.to_string().contains("33554432 bytes"), "{error}");
}

#[test]
fn names_that_leave_the_store_are_refused() {
    for name in ["../m.gguf", "a/../../../m.gguf", "/tmp/m.gguf", "C:m.gguf", "a\\\\m.gguf", "m\\u0000.gguf"]
    {
        let place = place();
        let listing = format!(r#"{{"sha": "c0ffee", "siblings": [{{"rfilename": "{name}", "size": 5}}]}}"#);
        place.hub.set(Faults { listing: Some(listing), ..Faults::default() });
        let error = place.pull(SOURCE).unwrap_err();
        assert!(matches!(error, Error::UnsafeName { .. }), "{name}: {error}");
        assert!(place.files().is_empty());
    }
}

#[test]
fn names_that_not_every_system_has_are_refused_by_name() {
    for (name, shown) in [
        ("nul.gguf", "nul.gguf"),
        ("a/COM1.x.gguf", "a/COM1.x.gguf"),
        ("a ./m.gguf", "a ./m.gguf"),
        ("a\\u202efugg.gguf", "a\u{fffd}fugg.gguf"),
        ("a\\u009b2Jm.gguf", "a 2Jm.gguf"),
    ] {
        let place = place();
        let listing = format!(r#"{{"sha": "c0ffee", "siblings": [{{"rfilename": "{name}", "size": 5}}]}}"#);
        place.hub.set(Faults { listing: Some(listing), ..Faults::default() });
        let error = place.pull(SOURCE).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{shown}` is not a safe file name: ")), "{error}");
        assert!(place.files().is_empty() && place.hub.take_requests().len() == 1);
    }
    let place = place();
    assert!(matches!(place.pull_as(SOURCE, "con"), Err(Error::Name { .. })));
    assert!(matches!(place.pull_as(SOURCE, "lpt1.q4"), Err(Error::Name { .. })));
}

#[test]
fn an_endpoint_with_a_password_is_refused_and_not_shown() {
    let mut place = place();
    let endpoint = place.settings.endpoint.clone();
    place.settings.endpoint = endpoint.replace("http://", "http://me:SECRET@");
    let error = Hub::new(place.settings.clone()).unwrap_err();
    assert!(matches!(error, Error::Setting { .. }) && !format!("{error:?}").contains("SECRET"), "{error:?}");

    // One in a manifest of an earlier version is not shown, and is gone with the next update.
    place.settings.endpoint = endpoint.clone();
    place.pull(SOURCE).unwrap();
    let path = place.store.root().join("manifests/m.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("http://", "http://me:SECRET@")).unwrap();
    assert_eq!(place.store.get("m").unwrap().endpoint, endpoint);
    place.pull(SOURCE).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap().replace(char::is_numeric, ""),
        text.replace(char::is_numeric, "")
    );

    // Nor is one that a server redirects to.
    let place = self::place();
    let redirect = Some("http://me:SECRET@host/x?sig=SECRET".to_owned());
    place.hub.set(Faults { redirect, ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(matches!(error, Error::Answer { .. }) && !format!("{error:?}").contains("SECRET"), "{error:?}");
}

#[test]
fn lists_that_are_not_understood_are_refused() {
    for listing in [
        "",
        "<html>login</html>",
        r#"{"sha": "c0ffee", "siblings": [{"rfilename": "m.gg"#,
        r#"{"sha": "../../x", "siblings": []}"#,
        r#"{"siblings": []}"#,
    ] {
        let place = place();
        place.hub.set(Faults { listing: Some(listing.to_owned()), ..Faults::default() });
        let error = place.pull(SOURCE).unwrap_err();
        assert!(matches!(error, Error::Answer { .. }), "{listing}: {error}");
    }
    let place = place();
    let empty = r#"{"sha": "c0ffee", "siblings": []}"#;
    place.hub.set(Faults { listing: Some(empty.to_owned()), ..Faults::default() });
    assert!(matches!(place.pull(SOURCE), Err(Error::NoModel { .. })));
}

#[test]
fn contradictions_are_refused() {
    let place = place();
    for (listed, is_refused) in [(r#""size": 50000"#, false), (r#""size": 50001"#, true)] {
        let listing = format!(r#"{{"sha": "c0ffee", "siblings": [{{"rfilename": "m.gguf", {listed}}}]}}"#);
        place.hub.set(Faults { listing: Some(listing), ..Faults::default() });
        assert_eq!(matches!(place.pull(SOURCE), Err(Error::Answer { .. })), is_refused);
    }
    let other = Place::new(&[("m.gguf", noise(50_000, 1))]);
    let sha256 = "0".repeat(64);
    let listing = format!(
        r#"{{"sha": "c0ffee", "siblings": [{{"rfilename": "m.gguf", "lfs": {{"sha256": "{sha256}", "size": 50000}}}}]}}"#
    );
    other.hub.set(Faults { listing: Some(listing), ..Faults::default() });
    assert!(matches!(other.pull(SOURCE), Err(Error::Answer { .. })));
}

#[test]
fn redirects_that_lead_nowhere_are_refused() {
    for location in ["/org/repo/resolve/c0ffee/m.gguf", "file:///etc/passwd", "", "http://"] {
        let place = place();
        place.hub.set(Faults { redirect: Some(location.to_owned()), ..Faults::default() });
        let error = place.pull(SOURCE).unwrap_err();
        assert!(matches!(error, Error::Answer { .. }), "{location}: {error}");
    }
}

#[test]
fn a_download_that_does_not_fit_on_the_disk_is_not_begun() {
    let place = place();
    place.hub.set(Faults { stated_bytes: Some(1 << 60), ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(matches!(error, Error::DiskFull { needed, .. } if needed == 1 << 60), "{error}");
    assert!(place.files().is_empty());
}

#[test]
fn no_file_is_asked_for_before_there_is_room_for_all() {
    let place = place();
    let size = 1u64 << 40;
    let shard = |i| format!(r#"{{"rfilename": "model-{i:05}-of-04000.safetensors", "size": {size}}}"#);
    let shards: Vec<String> = (1..=4000).map(shard).collect();
    let config = r#"{"rfilename": "config.json", "size": 5}"#;
    let listing = format!(r#"{{"sha": "c0ffee", "siblings": [{config}, {}]}}"#, shards.join(", "));
    place.hub.set(Faults { listing: Some(listing), ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(matches!(error, Error::DiskFull { needed, .. } if needed == 4000 * size + 5), "{error}");
    assert!(place.hub.take_requests().iter().all(|request| request.method == "GET"));
}

#[test]
fn lists_and_models_have_a_number_of_files() {
    let place = place();
    let listing = |names: &mut dyn Iterator<Item = String>| {
        let files: Vec<String> = names.map(|name| format!(r#"{{"rfilename": "{name}"}}"#)).collect();
        Some(format!(r#"{{"sha": "c0ffee", "siblings": [{}]}}"#, files.join(", ")))
    };
    let shards = listing(&mut (1..=5000).map(|i| format!("m-{i:05}-of-05000.gguf")));
    place.hub.set(Faults { listing: shards, ..Faults::default() });
    assert!(matches!(place.pull(SOURCE), Err(Error::TooManyFiles { found: 5000, .. })));
    let many = listing(&mut (0..200_000).map(|i| format!("{i}.gguf")));
    place.hub.set(Faults { listing: many, ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(error.to_string().contains("more than 100000 files"), "{error}");
    assert_eq!(place.hub.take_requests().len(), 2);
}

#[test]
fn a_hub_without_tls_is_an_error_at_once() {
    let mut place = place();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    place.settings.endpoint = format!("https://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Until the client goes away: it may do so in any way.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(matches!(error, Error::Tls { .. }) && error.to_string().contains("SSL_CERT_FILE"), "{error}");
    server.join().unwrap();
}

#[test]
fn a_hub_that_is_not_there_is_an_error() {
    let mut place = place();
    // A port at which nobody listens any more.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    place.settings.endpoint = format!("http://{address}");
    let error = place.pull(SOURCE).unwrap_err();
    assert!(
        matches!(&error, Error::GaveUp { source, .. } if matches!(**source, Error::Connection { .. })),
        "{error}"
    );
}
