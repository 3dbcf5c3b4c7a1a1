//! Entries of the witness log: one for each call, when it has ended.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_witness::{AdapterUse, Content, Entry, Options, Outcome, PrivateKey, Refusal, WhenFull, Writer};
use serde_json::Value;
use tokio::sync::Notify;

use crate::config;
use crate::error::Error;
use crate::generation::{Observer, Room, Ticket};

/// The witness log of a server.
pub(crate) struct Witness {
    writer: Arc<Writer>,
    /// Wakes calls that wait for room in the queue.
    room: Arc<Notify>,
    /// Records texts, not only their hashes.
    text: bool,
    /// Entries that find the queue full are dropped.
    drops: bool,
}

impl Witness {
    /// Opens the log; `text` records prompts and outputs as they are.
    ///
    /// # Errors
    /// As [`Writer::open`].
    pub(crate) fn open(
        folder: &std::path::Path,
        mut options: Options,
        text: bool,
    ) -> Result<Self, ruvllm_witness::Error> {
        let room = Arc::new(Notify::new());
        let drops = options.when_full == WhenFull::Drop;
        let on_room = Arc::clone(&room);
        options.on_room = Some(Box::new(move || on_room.notify_waiters()));
        let place = folder.to_owned();
        options.on_fault = Some(Box::new(move |error: Option<&std::io::Error>| match error {
            Some(error) => tracing::error!(
                folder = %place.display(),
                %error,
                "the witness log cannot be written; its records wait in memory, and it is tried again"
            ),
            None => tracing::info!(folder = %place.display(), "the witness log is written again"),
        }));
        Ok(Self { writer: Arc::new(Writer::open(folder, options)?), room, text, drops })
    }

    /// The log of a configuration; `None` without a folder.
    ///
    /// # Errors
    /// [`Error::Witness`] for a folder or a key that cannot be used.
    pub(crate) fn of_config(config: &config::Witness) -> Result<Option<Self>, Error> {
        let Some(folder) = &config.folder else { return Ok(None) };
        let key = config.key.as_deref().map(PrivateKey::load).transpose().map_err(Error::Witness)?;
        let options = Options {
            key,
            when_full: match config.full_queue {
                config::FullQueue::Wait => WhenFull::Block,
                config::FullQueue::Drop => WhenFull::Drop,
            },
            queue_entries: config.queue,
            sync: config.fsync,
            max_file_bytes: config.rotate_bytes.0,
            ..Options::default()
        };
        Self::open(folder, options, config.text).map(Some).map_err(Error::Witness)
    }

    /// The writer, for its counters and for the end.
    pub(crate) fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Waits until the queue has room: no call begins that could not be recorded.
    pub(crate) async fn wait_for_room(&self) {
        loop {
            let mut room = pin!(self.room.notified());
            // Room from here on wakes this task.
            room.as_mut().enable();
            if self.drops || self.writer.has_room() {
                return;
            }
            room.await;
        }
    }

    fn content(&self, text: &str) -> Content {
        if self.text { Content::with_text(text.to_owned()) } else { Content::hashed(text) }
    }

    fn entry(&self, ticket: &Ticket) -> Entry {
        let observed = &ticket.observed;
        let mut entry = Entry {
            request_id: ticket.request_id.as_str().to_owned(),
            tenant: ticket.caller.tenant.to_string(),
            key: ticket.caller.key.as_deref().map(str::to_owned),
            endpoint: observed.endpoint.map_or("", |endpoint| endpoint.path()).to_owned(),
            model: observed.model.as_deref().map(str::to_owned),
            prompt: (!observed.prompt.is_empty()).then(|| self.content(&observed.prompt)),
            outputs: observed.outputs.iter().map(|output| self.content(output)).collect(),
            prompt_tokens: observed.prompt_tokens as u64,
            cached_tokens: observed.cached_tokens as u64,
            output_tokens: observed.output_tokens as u64,
            queue_ms: observed.timings.queue_ms.map(|ms| Duration::from_secs_f64(ms / 1e3)),
            ttft_ms: observed.first_token,
            total_ms: Some(Instant::now() - observed.started),
            outcome: outcome(ticket),
            ..Entry::default()
        };
        entry.adapters = (observed.adapters.iter())
            .map(|adapter| AdapterUse {
                name: adapter.name.clone(),
                version: Some(adapter.version.to_string()),
                scale: scale_of(&observed.parameters, &adapter.name),
            })
            .collect();
        if let Value::Object(parameters) = &observed.parameters {
            entry.parameters.clone_from(parameters);
        }
        entry
    }
}

/// Scale that the parameters of a call give an adapter; the name of a model means scale 1.
fn scale_of(parameters: &Value, name: &str) -> f32 {
    let adapters = parameters["adapters"].as_array().into_iter().flatten();
    let scale =
        adapters.filter(|adapter| adapter["name"] == name).find_map(|adapter| adapter["scale"].as_f64());
    scale.map_or(1.0, |scale| scale as f32)
}

fn outcome(ticket: &Ticket) -> Outcome {
    let observed = &ticket.observed;
    match observed.error {
        Some(kind) => Outcome::Failed(kind.name().to_owned()),
        None if observed.is_complete => {
            Outcome::Finished(observed.finish_reasons.iter().map(|reason| reason.name().to_owned()).collect())
        }
        None => Outcome::Cancelled,
    }
}

impl Observer for Witness {
    fn reads_text(&self) -> bool {
        true
    }

    fn room(&self) -> Room<'_> {
        Box::pin(self.wait_for_room())
    }

    fn ended(&self, ticket: &Ticket) {
        let entry = self.entry(ticket);
        match self.writer.try_record(&entry) {
            // Room was there when the call began; others have taken it since.
            Err(Refusal::Full) => {
                let writer = Arc::clone(&self.writer);
                tokio::task::spawn_blocking(move || {
                    if let Err(refusal) = writer.record(&entry) {
                        tracing::error!(%refusal, "a call is not in the witness log");
                    }
                });
            }
            Err(refusal @ (Refusal::Closed | Refusal::TooLong { .. })) => {
                tracing::error!(%refusal, "a call is not in the witness log");
            }
            // Dropped entries are counted by the writer.
            Ok(()) | Err(Refusal::Dropped) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_witness::{Event, Filter, LogReader, VerifyOptions, verify};
    use serde_json::json;

    use super::*;
    use crate::testing::{app, router_of, send_to};

    /// Entries of a log after these calls.
    fn entries(text: bool, calls: &[Value]) -> Vec<Entry> {
        let folder = tempfile::tempdir().unwrap();
        let witness = Arc::new(Witness::open(folder.path(), Options::default(), text).unwrap());
        let mut app = app();
        app.set_witness(&witness);
        let router = router_of(app);
        for call in calls {
            send_to(router.clone(), "POST", "/v1/completions", Some(call.clone()));
        }
        witness.writer().close().unwrap();
        assert!(verify(folder.path(), &VerifyOptions::default()).unwrap().is_valid());
        let lines = LogReader::open(folder.path(), Filter::default()).unwrap();
        let events = lines.map(|line| line.unwrap().event);
        events
            .filter_map(|event| if let Event::Request(entry) = event { Some(*entry) } else { None })
            .collect()
    }

    #[test]
    fn calls_of_all_endpoints_are_recorded_with_their_outcomes() {
        let folder = tempfile::tempdir().unwrap();
        let witness = Arc::new(Witness::open(folder.path(), Options::default(), false).unwrap());
        let mut app = app();
        app.set_witness(&witness);
        let router = router_of(app);
        let message = json!([{"role": "user", "content": "Hi"}]);
        let calls = [
            ("/v1/chat/completions", json!({"messages": message, "max_tokens": 2})),
            ("/v1/messages", json!({"model": "base", "messages": message, "max_tokens": 2})),
            ("/v1/responses", json!({"input": "Hi", "max_output_tokens": 2})),
            ("/v1/embeddings", json!({"input": "Hi"})),
        ];
        for (path, call) in &calls {
            let mut unknown = call.clone();
            unknown["model"] = json!("none");
            send_to(router.clone(), "POST", path, Some(call.clone()));
            send_to(router.clone(), "POST", path, Some(unknown));
        }
        witness.writer().close().unwrap();
        let lines = LogReader::open(folder.path(), Filter::default()).unwrap();
        let events = lines.map(|line| line.unwrap().event);
        let entries =
            events.filter_map(|event| if let Event::Request(entry) = event { Some(entry) } else { None });
        let entries: Vec<_> = entries.collect();
        assert_eq!(entries.len(), 2 * calls.len());
        for (pair, (path, _)) in entries.chunks(2).zip(&calls) {
            assert_eq!((&*pair[0].endpoint, &*pair[1].endpoint), (*path, *path));
            assert!(matches!(pair[0].outcome, Outcome::Finished(_)), "{path}: {:?}", pair[0].outcome);
            assert_eq!(pair[1].outcome, Outcome::Failed("not_found_error".to_owned()), "{path}");
        }
    }

    #[test]
    fn a_call_is_recorded_with_its_tokens_and_hashes() {
        let call = json!({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "seed": 3});
        let unknown = json!({"prompt": "x", "model": "none"});
        let all = entries(false, &[call.clone(), unknown]);
        let [entry, failed] = &all[..] else { panic!("{all:?}") };
        assert_eq!(entry.outcome, Outcome::Finished(vec!["length".to_owned()]));
        assert_eq!((entry.endpoint.as_str(), entry.model.as_deref()), ("/v1/completions", Some("base")));
        assert_eq!((entry.output_tokens, entry.outputs.len()), (4, 1));
        assert!(entry.prompt_tokens > 0 && entry.ttft_ms.is_some());
        assert_eq!(entry.parameters["seed"], 3);
        assert!(!entry.parameters.contains_key("prompt"));
        assert_eq!(entry.prompt, Some(Content::hashed("Once upon a time")));
        assert_eq!(failed.outcome, Outcome::Failed("not_found_error".to_owned()));
        let texts = entries(true, &[call]);
        let output = texts[0].outputs[0].text.as_deref().unwrap();
        assert_eq!(texts[0].outputs[0], Content::with_text(output.to_owned()));
        assert_eq!(entry.outputs[0], Content::hashed(output));
    }
}
