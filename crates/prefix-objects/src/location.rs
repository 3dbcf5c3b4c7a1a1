//! URL and settings of an object store.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use crate::Error;
use crate::answer::one_line;
use crate::http::Connector;

/// Environment variables with an endpoint.
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// Bucket and prefix of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) bucket: String,
    pub(crate) prefix: Path,
}

impl Location {
    /// Parses `s3://BUCKET/PREFIX`; the prefix may be empty.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let fault = |reason| Error::Url { url: url.to_owned(), reason };
        let rest = url.strip_prefix("s3://").ok_or(fault("another scheme than s3"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_of_bucket = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if bucket.is_empty() || !bucket.chars().all(is_of_bucket) {
            return Err(fault("no name of a bucket"));
        }
        if prefix.contains(['?', '#', '%']) || prefix.chars().any(char::is_control) {
            return Err(fault("a prefix with ?, #, % or control characters"));
        }
        let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(|_| fault("an invalid prefix"))?;
        Ok(Self { bucket: bucket.to_owned(), prefix })
    }

    /// The bucket, with the settings in `variables` (the environment). Requests are tried twice
    /// more, within `patience`.
    pub(crate) fn connect(
        &self,
        url: &str,
        variables: impl IntoIterator<Item = (String, String)>,
        patience: Duration,
    ) -> Result<Arc<dyn ObjectStore>, Error> {
        let variables: Vec<_> = variables
            .into_iter()
            .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
            .collect();
        let value = |wanted: &str| variables.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        let allows_http = value("AWS_ALLOW_HTTP").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        for variable in ENDPOINTS {
            if let Some(endpoint) = value(variable).filter(|value| value.starts_with("http://"))
                && !allows_http
            {
                return Err(Error::PlainHttp { variable, endpoint: endpoint.clone() });
            }
        }
        let mut builder = AmazonS3Builder::new();
        for (name, value) in &variables {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(400),
            base: 2.0,
        };
        let retry = RetryConfig { backoff, max_retries: 2, retry_timeout: patience };
        let store = builder
            .with_bucket_name(&self.bucket)
            .with_retry(retry)
            // Not every server has the bulk request; those of one call run at once.
            .with_disable_bulk_delete(true)
            .with_http_connector(Connector { limit: patience })
            .build()
            .map_err(|error| Error::Settings { url: url.to_owned(), reason: one_line(&error) })?;
        Ok(Arc::new(store))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_name_a_bucket_and_a_prefix() {
        let parse = |url| Location::parse(url).map(|found| (found.bucket, found.prefix.to_string()));
        let found = |bucket: &str, prefix: &str| (bucket.to_owned(), prefix.to_owned());
        assert_eq!(parse("s3://models").expect("a bucket"), found("models", ""));
        assert_eq!(parse("s3://models/").expect("a bucket"), found("models", ""));
        assert_eq!(parse("s3://models/a/b/").expect("a prefix"), found("models", "a/b"));
        for url in
            ["", "s3://", "s3:///a", "gs://models/a", "s3://mo dels/a", "s3://a:b@models/a", "models/a"]
        {
            let error = parse(url).expect_err("no URL").to_string();
            assert!(error.contains("s3://BUCKET/PREFIX") && !error.contains('\n'), "{error}");
        }
        for url in ["s3://models/a//b", "s3://models/a?b", "s3://models/a%2fb", "s3://models/../b"] {
            parse(url).expect_err("no prefix");
        }
    }

    #[test]
    fn an_endpoint_without_tls_has_to_be_allowed() {
        let location = Location::parse("s3://models/a").expect("a URL");
        let connect = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            location.connect("s3://models/a", variables, Duration::from_secs(1)).map(drop)
        };
        let endpoint = ("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
        let error = connect(&[endpoint]).expect_err("no TLS").to_string();
        assert!(error.contains("AWS_ALLOW_HTTP=true"), "{error}");
        connect(&[endpoint, ("AWS_ALLOW_HTTP", "false")]).expect_err("no TLS");
        connect(&[endpoint, ("AWS_ALLOW_HTTP", "true")]).expect("allowed");
        connect(&[("AWS_ENDPOINT_URL", "https://127.0.0.1:1")]).expect("TLS");
        connect(&[("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "perhaps")]).expect_err("no boolean");
    }

    proptest! {
        #[test]
        fn any_text_is_a_location_or_an_error(text in "(s3://)?[ -~\u{e4}/]{0,40}") {
            let _ = Location::parse(&text);
        }
    }
}
