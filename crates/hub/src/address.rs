//! Addresses for messages and manifests.

/// URL without its secrets: credentials before the host, query (may hold a signature), fragment.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let is_scheme =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let (scheme, rest) = match url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url.trim_start_matches('/')),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}{host}{path}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_hold_no_secrets() {
        for (url, expected) in [
            ("https://host/path?X-Signature=secret#x", "https://host/path"),
            ("https://me:secret@host:1/p@q", "https://host:1/p@q"),
            ("http://me@secret@host", "http://host"),
            ("//me:secret@host/p", "host/p"),
            ("me:secret@host", "host"),
            ("", ""),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    proptest! {
        #[test]
        fn a_password_is_never_shown(scheme in "(https?://|//)?", name in "[a-z@:]{0,4}", end in "[a-z/@?#:.]{0,9}") {
            let shown = shown(&format!("{scheme}{name}:PASSWORD@{end}"));
            prop_assert!(!shown.contains("PASSWORD"), "{shown}");
        }
    }
}
