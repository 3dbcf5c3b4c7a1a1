//! Names that a server without keys answers to.
//!
//! A web page may point a domain of its own at this machine (DNS rebinding); the browser then takes
//! the server for a part of the page. The page's domain is in the header `host`.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header;

/// True for a request to an address, to a name without a dot, which no page of the internet has, or
/// to one of `hosts`. Clients that name no host are no browsers.
pub(super) fn is_expected(request: &Request, hosts: &[String]) -> bool {
    // HTTP/2 has the host in the URI.
    let host = match (request.headers().get(header::HOST), request.uri().authority()) {
        (Some(host), _) => host.to_str().ok(),
        (None, Some(authority)) => Some(authority.as_str()),
        (None, None) => return true,
    };
    host.is_some_and(|host| is_expected_host(host, hosts))
}

fn is_expected_host(host: &str, hosts: &[String]) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_listed = || hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    !name.contains('.') || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok() || is_listed()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn domains_of_pages_are_unexpected() {
        let hosts = ["chat.example.org".to_owned()];
        let expected = |host: &'static str| {
            let in_header = Request::builder().header(header::HOST, host).body(Body::empty()).unwrap();
            let in_uri = Request::builder().uri(format!("http://{host}/a")).body(Body::empty());
            let is_expected = is_expected(&in_header, &hosts);
            // Not every text is part of a URI.
            assert!(in_uri.is_ok_and(|uri| super::is_expected(&uri, &hosts) == is_expected) || host == "[x]");
            is_expected
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
        assert!(is_expected(&Request::new(Body::empty()), &hosts));
    }
}
