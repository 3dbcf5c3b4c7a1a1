//! A client of the server.

use std::time::Duration;

use serde_json::{Map, Value};
use ureq::Agent;
use ureq::http::Request;

/// Longest time of a reply; a case that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Client {
    agent: Agent,
    url: String,
}

/// A whole reply.
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// An object with lower-case names.
    pub(crate) headers: Value,
    pub(crate) text: String,
}

/// A server-sent event.
pub(crate) struct Event {
    /// Empty where it has none.
    pub(crate) name: String,
    pub(crate) data: String,
}

impl Client {
    pub(crate) fn new(url: String) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
        Self { agent: config.build().into(), url }
    }

    /// Sends a request; a body is JSON unless the headers say otherwise.
    ///
    /// # Errors
    /// A connection that fails.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &Map<String, Value>,
        body: Option<&str>,
    ) -> Result<Reply, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if body.is_some() && !headers.contains_key("content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(name, value.as_str().unwrap_or_default());
        }
        let request = request.body(body.unwrap_or_default().to_owned()).map_err(|error| error.to_string())?;
        let mut response = self.agent.run(request).map_err(|error| error.to_string())?;
        let header = |(name, value): (&ureq::http::HeaderName, &ureq::http::HeaderValue)| {
            (name.as_str().to_owned(), Value::from(value.to_str().unwrap_or_default()))
        };
        let headers = response.headers().iter().map(header).collect();
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
        Ok(Reply { status, headers: Value::Object(headers), text })
    }
}

impl Reply {
    /// The body as JSON; a text that is none stays a text.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| Value::from(self.text.as_str()))
    }

    /// The server-sent events, without comments.
    pub(crate) fn events(&self) -> Vec<Event> {
        let event = |block: &str| {
            let field = |name: &str| {
                let value = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                value.unwrap_or_default().to_owned()
            };
            Event { name: field("event"), data: field("data") }
        };
        self.text.split("\n\n").map(event).filter(|event| !event.data.is_empty()).collect()
    }
}
