use super::*;

use std::collections::BTreeSet;
use std::path::Path;

use axum::body::{Body, to_bytes};
use tower::ServiceExt as _;

/// Response to `GET path` with an `If-None-Match` header.
fn get(path: &str, tag: Option<&str>) -> (StatusCode, HeaderMap, Vec<u8>) {
    let mut request = Request::get(path);
    if let Some(tag) = tag {
        request = request.header(header::IF_NONE_MATCH, tag);
    }
    let request = request.body(Body::empty()).expect("a request");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let response = routes::<()>().oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 1 << 20).await.expect("a body");
        (parts.status, parts.headers, body.to_vec())
    })
}

fn text(asset: &Asset) -> &'static str {
    std::str::from_utf8(asset.body).expect("every file is text")
}

/// Words of a file that begin with `/ui/` or `./`, as paths of URLs.
fn references(source: &str) -> impl Iterator<Item = String> + '_ {
    source.split(['"', '\'', '`']).filter_map(|word| match word.strip_prefix("./") {
        Some(module) if module.ends_with(".js") => Some(format!("/ui/{module}")),
        _ => word.starts_with("/ui/").then(|| word.to_owned()),
    })
}

#[test]
fn every_file_of_the_folder_is_served() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web/assets");
    let entries = std::fs::read_dir(folder).expect("the folder of the files");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let served = ASSETS.iter().map(|asset| match asset.path {
        "/" => "index.html".to_owned(),
        path => path.trim_start_matches("/ui/").to_owned(),
    });
    assert_eq!(served.collect::<BTreeSet<_>>(), names.collect::<BTreeSet<_>>());
}

#[test]
fn files_refer_to_files_of_the_page_only() {
    let mut used = BTreeSet::from(["/".to_owned()]);
    for asset in &ASSETS {
        used.extend(references(text(asset)));
    }
    let paths: BTreeSet<_> = ASSETS.iter().map(|asset| asset.path.to_owned()).collect();
    assert_eq!(used, paths, "paths that are used, and paths that are served");
}

#[test]
fn files_come_with_type_policy_and_tag() {
    for asset in &ASSETS {
        let (status, headers, body) = get(asset.path, None);
        assert_eq!((status, body.as_slice()), (StatusCode::OK, asset.body), "{}", asset.path);
        assert_eq!(headers[header::CONTENT_TYPE], asset.content_type, "{}", asset.path);
        for (name, value) in HEADERS {
            assert_eq!(headers.get_all(&name).iter().collect::<Vec<_>>(), [&value], "{}", asset.path);
        }
    }
    let tags: BTreeSet<_> = TAGS.iter().map(HeaderValue::as_bytes).collect();
    assert_eq!(tags.len(), ASSETS.len(), "different contents have different tags");
}

#[test]
fn a_current_file_is_not_sent_again() {
    let (_, headers, _) = get("/ui/app.js", None);
    let tag = headers[header::ETAG].to_str().expect("a tag");
    for current in [tag, "*", &format!("W/{tag}"), &format!("\"other\", {tag}")] {
        let (status, headers, body) = get("/ui/app.js", Some(current));
        assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0), "{current}");
        assert_eq!(headers[header::ETAG], tag);
        assert_eq!(headers[header::CACHE_CONTROL], "no-cache");
    }
    for other in ["\"other\"", tag.trim_matches('"'), "", "W/"] {
        assert_eq!(get("/ui/app.js", Some(other)).0, StatusCode::OK, "{other}");
    }
}

#[test]
fn other_paths_are_not_there() {
    for path in ["/ui/", "/ui/index.html", "/ui/../app.js", "/ui/%2e%2e/app.js", "/ui/app.js/x"] {
        assert_eq!(get(path, None).0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[test]
fn no_markup_holds_script_or_style() {
    for asset in ASSETS.iter().filter(|asset| asset.path == "/" || asset.path.ends_with(".svg")) {
        let markup = text(asset);
        assert!(!markup.contains("<style") && !markup.contains(" style="), "{}", asset.path);
        let mut words = markup.split_whitespace();
        let listener = words.find(|word| word.starts_with("on") && word.contains('='));
        assert_eq!(listener, None, "{}", asset.path);
        let scripts = markup.matches("<script").count();
        assert_eq!(scripts, markup.matches("src=\"/ui/").count() - markup.matches("<img src=").count());
        assert_eq!(scripts, markup.matches("\"></script>").count(), "scripts have no content");
    }
}
