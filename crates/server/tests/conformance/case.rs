//! A case: a request, and what is expected of its reply.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::client::{Client, Reply};
use crate::expect::check_all;

/// A file of cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Path of all cases that name none.
    #[serde(default)]
    path: String,
    /// Fields of the body of all cases; those of a case go before them, and null takes one away.
    #[serde(default)]
    body: Map<String, Value>,
    cases: Vec<CaseFields>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFields {
    name: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    body: Map<String, Value>,
    /// Body as text, in place of a JSON object.
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    headers: Map<String, Value>,
    #[serde(default)]
    status: Option<u16>,
    /// Expectations by JSON pointer.
    #[serde(default)]
    expect: Map<String, Value>,
    /// Expectations of headers.
    #[serde(default)]
    expect_headers: Map<String, Value>,
    #[serde(default)]
    stream: Option<Stream>,
    /// The same request again gives the same value at these pointers.
    #[serde(default)]
    repeats: Vec<String>,
}

/// Expectations of a stream of events.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Stream {
    #[serde(default)]
    first: Map<String, Value>,
    #[serde(default)]
    last: Map<String, Value>,
    #[serde(default)]
    every: Map<String, Value>,
    /// Strings at `pointer` of all events, joined.
    #[serde(default)]
    joined: Option<Joined>,
    /// Names of the events, each once where it repeats.
    #[serde(default)]
    names: Vec<String>,
    /// Data of the end of the stream.
    #[serde(default)]
    done: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Joined {
    pointer: String,
    is: Value,
}

/// One case, complete.
pub(crate) struct Case {
    pub(crate) name: String,
    path: String,
    body: Option<String>,
    fields: CaseFields,
}

impl File {
    /// The cases, with the name of the file before theirs.
    pub(crate) fn cases(self, file: &str) -> Vec<Case> {
        let Self { path, body, cases } = self;
        let complete = |fields: CaseFields| {
            let mut all = body.clone();
            all.extend(fields.body.clone());
            all.retain(|_, value| !value.is_null());
            let is_get = fields.method.as_deref().is_some_and(|method| method != "POST");
            let body = fields.text.clone().or_else(|| (!is_get).then(|| Value::Object(all).to_string()));
            Case {
                name: format!("{file}: {}", fields.name),
                path: fields.path.clone().unwrap_or_else(|| path.clone()),
                body,
                fields,
            }
        };
        cases.into_iter().map(complete).collect()
    }
}

impl Case {
    /// Sends the request and checks the reply.
    ///
    /// # Errors
    /// The first expectation that is not met.
    pub(crate) fn run(&self, client: &Client) -> Result<(), String> {
        let reply = self.send(client)?;
        let status = self.fields.status.unwrap_or(200);
        if reply.status != status {
            return Err(format!("status {} instead of {status}: {}", reply.status, reply.text));
        }
        check_all(&self.fields.expect_headers, &reply.headers)?;
        if let Some(stream) = &self.fields.stream {
            return stream.check(&reply);
        }
        let value = reply.json();
        check_all(&self.fields.expect, &value)?;
        if !self.fields.repeats.is_empty() {
            let again = self.send(client)?.json();
            for pointer in &self.fields.repeats {
                if value.pointer(pointer) != again.pointer(pointer) {
                    return Err(format!("{pointer} differs: {value} and {again}"));
                }
            }
        }
        Ok(())
    }

    fn send(&self, client: &Client) -> Result<Reply, String> {
        let method = self.fields.method.as_deref().unwrap_or("POST");
        client.send(method, &self.path, &self.fields.headers, self.body.as_deref())
    }
}

impl Stream {
    fn check(&self, reply: &Reply) -> Result<(), String> {
        let mut events = reply.events();
        if self.done && events.pop().map(|event| event.data).as_deref() != Some("[DONE]") {
            return Err(format!("the stream does not end with [DONE]: {}", reply.text));
        }
        let data: Vec<Value> = events
            .iter()
            .map(|event| {
                serde_json::from_str(&event.data).map_err(|error| format!("{error}: {}", event.data))
            })
            .collect::<Result<_, _>>()?;
        let (Some(first), Some(last)) = (data.first(), data.last()) else {
            return Err(format!("a stream without events: {}", reply.text));
        };
        check_all(&self.first, first)?;
        check_all(&self.last, last)?;
        data.iter().try_for_each(|event| check_all(&self.every, event))?;
        if let Some(Joined { pointer, is }) = &self.joined {
            let text: String = data.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect();
            crate::expect::check(is, Some(&Value::String(text)))
                .map_err(|error| format!("joined {error}"))?;
        }
        if !self.names.is_empty() {
            let mut names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
            names.dedup();
            if names != self.names {
                return Err(format!("the events are {names:?}"));
            }
        }
        Ok(())
    }
}
