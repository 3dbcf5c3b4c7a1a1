//! Names that a server without keys answers to.
//!
//! A web page may point a domain of its own at this machine (DNS rebinding); the browser then takes
//! the server for a part of the page. The page's domain is in the header `host`.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::{HeaderMap, header};

/// True for a request to an address, to a name without a dot, which no page of the internet has, or
/// to one of `hosts`. Clients that send no header are no browsers.
pub(super) fn is_expected(headers: &HeaderMap, hosts: &[String]) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_listed = || hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    !name.contains('.') || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok() || is_listed()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn domains_of_pages_are_unexpected() {
        let hosts = ["chat.example.org".to_owned()];
        let expected = |host: &'static str| {
            is_expected(&HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]), &hosts)
        };
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "10.0.0.3", "box", "a.localhost"] {
            assert!(expected(host), "{host}");
        }
        assert!(expected("Chat.example.org:443"));
        for host in
            ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[x]", "localhost.evil.example"]
        {
            assert!(!expected(host), "{host}");
        }
        assert!(is_expected(&HeaderMap::new(), &hosts));
    }
}
