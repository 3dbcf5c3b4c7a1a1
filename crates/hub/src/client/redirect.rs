//! Resolution of redirects, and the test for addresses of the hub itself.

/// True if `url` lies on the server of `endpoint`, which alone may see the token: scheme, host and
/// port are equal.
pub(super) fn is_below(url: &str, endpoint: &str) -> bool {
    origin(url).is_some_and(|of_url| origin(endpoint).is_some_and(|own| of_url.eq_ignore_ascii_case(own)))
}

/// The address that `location` means in an answer from `base`; `None` for one that is not HTTP, or
/// that would leave HTTPS.
pub(super) fn resolve(base: &str, location: &str) -> Option<String> {
    let (scheme, _) = base.split_once("://")?;
    let own = origin(base)?;
    let is_secure = scheme.eq_ignore_ascii_case("https");
    let target = if let Some((other, _)) = location.split_once("://").filter(|(other, _)| is_scheme(other)) {
        let is_allowed =
            other.eq_ignore_ascii_case("https") || (other.eq_ignore_ascii_case("http") && !is_secure);
        return (is_allowed && origin(location).is_some()).then(|| location.to_owned());
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{own}{location}")
    } else if location.is_empty() {
        return None;
    } else {
        let path = base[own.len()..].split(['?', '#']).next().unwrap_or_default();
        let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
        format!("{own}{folder}{location}")
    };
    origin(&target).is_some().then_some(target)
}

/// True if a text can be the scheme of a URL, so that `://` in a query is not taken for the end of
/// one.
fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Scheme, host and port, as they are written. `None` for an address without a host.
fn origin(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A name and password before the host would make two addresses of one server differ, and could
    // hide a host.
    (host > 0 && !rest[..host].contains('@')).then(|| &url[..scheme.len() + 3 + host])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_stays_with_its_server() {
        let endpoint = "https://hub.example/mirror";
        assert!(is_below("https://hub.example/mirror/a/b", endpoint));
        assert!(is_below("https://HUB.example/other", endpoint));
        for url in [
            "http://hub.example/mirror/a",
            "https://hub.example.evil/a",
            "https://hub.example:444/a",
            "https://hub.example@evil/a",
            "https://evil/https://hub.example/",
            "hub.example/a",
        ] {
            assert!(!is_below(url, endpoint), "{url}");
        }
    }

    #[test]
    fn locations_are_absolute_or_relative() {
        let base = "https://hub/a/b/resolve/main/f?x=1://y";
        let to = |location| resolve(base, location);
        assert_eq!(to("https://cdn/f?s=1").as_deref(), Some("https://cdn/f?s=1"));
        assert_eq!(to("/new/f").as_deref(), Some("https://hub/new/f"));
        assert_eq!(to("//cdn/f").as_deref(), Some("https://cdn/f"));
        assert_eq!(to("g?u=http://z").as_deref(), Some("https://hub/a/b/resolve/main/g?u=http://z"));
        for location in ["", "http://cdn/f", "file:///etc/passwd", "https://", "ftp://x/y"] {
            assert_eq!(to(location), None, "{location}");
        }
        assert_eq!(resolve("http://hub/a", "http://cdn/f").as_deref(), Some("http://cdn/f"));
    }
}
