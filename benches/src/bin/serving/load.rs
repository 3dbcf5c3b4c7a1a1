//! Load on a server: concurrent streams, each a thread that sends one request after another.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::Connection;
use crate::{Prompt, Result};

/// Pause between two requests that measure overhead.
const PAUSE: Duration = Duration::from_millis(5);

/// A server and its model.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) key: String,
    pub(crate) model: String,
}

/// Requests of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) streams: usize,
    /// Requests of each stream.
    pub(crate) requests: usize,
    /// Generated tokens of each request.
    pub(crate) tokens: usize,
    pub(crate) prompt: Prompt,
    /// Tokens that end a text: forbidden, so that every request has the same length.
    pub(crate) end_tokens: Vec<u32>,
    /// Distinguishes the prompts of rounds.
    pub(crate) round: usize,
}

/// Times and tokens of one request.
#[derive(Clone, Debug, Default)]
struct Sample {
    first_token: Duration,
    gaps: Vec<Duration>,
    prompt: u64,
    cached: u64,
    generated: u64,
}

/// Times and tokens of one measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    pub(crate) seconds: f64,
    pub(crate) generated: u64,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    /// Times to the first token, in order.
    pub(crate) first_token: Vec<Duration>,
    /// Times between pieces of text, in order.
    pub(crate) gaps: Vec<Duration>,
}

/// Runs the load and waits for its end.
pub(crate) fn run(server: &Server, load: &Load) -> Result<Round> {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let samples = thread::scope(|scope| {
        let stream = || stream(server, load, &next);
        let threads: Vec<_> = (0..load.streams).map(|_| scope.spawn(stream)).collect();
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let mut round = Round { seconds: start.elapsed().as_secs_f64(), ..Round::default() };
    for sample in samples.into_iter().flatten() {
        round.generated += sample.generated;
        round.prompt += sample.prompt;
        round.cached += sample.cached;
        round.first_token.push(sample.first_token);
        round.gaps.extend(sample.gaps);
    }
    round.first_token.sort_unstable();
    round.gaps.sort_unstable();
    Ok(round)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| "a stream panicked")?
}

/// All requests of one stream.
fn stream(server: &Server, load: &Load, next: &AtomicUsize) -> Result<Vec<Sample>> {
    let mut connection = Connection::open(&server.url, &server.key)?;
    let mut samples = Vec::new();
    for _ in 0..load.requests {
        let number = next.fetch_add(1, Ordering::Relaxed);
        samples.push(ask(&mut connection, &body(server, load, number))?);
    }
    Ok(samples)
}

/// Sends a streaming request and reads its events.
fn ask(connection: &mut Connection, body: &str) -> Result<Sample> {
    let (mut reply, sent) = connection.send("/v1/completions", Some(body))?;
    if reply.status != 200 {
        let text = reply.text()?;
        return Err(format!("status {}: {text}", reply.status).into());
    }
    let mut sample = Sample::default();
    let mut last = None;
    let mut fault = None;
    reply.lines(|line| {
        let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { return };
        let now = Instant::now();
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            fault = Some(data.to_owned());
            return;
        };
        if event.get("error").is_some() {
            fault = Some(data.to_owned());
        }
        if event["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()) {
            match last.replace(now) {
                None => sample.first_token = now - sent,
                Some(before) => sample.gaps.push(now - before),
            }
        }
        if let Some(generated) = event["usage"]["completion_tokens"].as_u64() {
            sample.generated = generated;
            sample.prompt = event["usage"]["prompt_tokens"].as_u64().unwrap_or_default();
            sample.cached =
                event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
        }
    })?;
    match fault {
        Some(fault) => Err(format!("event: {fault}").into()),
        None if last.is_none() || sample.generated == 0 => Err("a stream without text or usage".into()),
        None => Ok(sample),
    }
}

/// Body of the request with this number.
fn body(server: &Server, load: &Load, number: usize) -> String {
    let bias: serde_json::Map<_, _> =
        load.end_tokens.iter().map(|token| (token.to_string(), json!(-100))).collect();
    json!({
        "model": server.model,
        "prompt": load.prompt.text(load.round, number),
        "stream": true,
        "stream_options": {"include_usage": true},
        "temperature": 0,
        "max_tokens": load.tokens,
        "logit_bias": bias,
    })
    .to_string()
}

/// Times to the first byte of requests that compute nothing and of those that generate one token,
/// beside what the server states to have computed for the latter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overhead {
    /// `GET /health`.
    pub(crate) health: Vec<Duration>,
    /// One token: time to the first byte less the reply's `timings`; empty without these.
    pub(crate) one_token: Vec<Duration>,
}

/// Measures overhead for `seconds` while the load runs, or with no other request if it is `None`.
pub(crate) fn overhead(server: &Server, load: Option<&Load>, seconds: f64) -> Result<Overhead> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = load.map(|load| {
            scope.spawn(|| -> Result<()> {
                while !done.load(Ordering::Relaxed) {
                    run(server, load)?;
                }
                Ok(())
            })
        });
        let found = measure_overhead(server, seconds);
        done.store(true, Ordering::Relaxed);
        busy.map_or(Ok(()), join)?;
        found
    })
}

/// Milliseconds until the first token that a server states: `ttft_ms` here, prompt and token in
/// llama.cpp, whose time in the queue is not in them.
fn computed_ms(timings: &Value) -> Option<f64> {
    let parts = || Some(timings["prompt_ms"].as_f64()? + timings["predicted_ms"].as_f64()?);
    timings["ttft_ms"].as_f64().or_else(parts)
}

/// Sends both kinds of requests from threads of their own: beside many streams a token takes
/// seconds, and a request that computes nothing would wait for it.
fn measure_overhead(server: &Server, seconds: f64) -> Result<Overhead> {
    let start = Instant::now();
    let is_running = || start.elapsed().as_secs_f64() < seconds;
    let (mut health, mut one_token) = thread::scope(|scope| -> Result<_> {
        let health = scope.spawn(|| health_times(server, is_running));
        let one_token = scope.spawn(|| one_token_times(server, is_running));
        Ok((join(health)?, join(one_token)?))
    })?;
    health.sort_unstable();
    one_token.sort_unstable();
    Ok(Overhead { health, one_token })
}

fn health_times(server: &Server, is_running: impl Fn() -> bool) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(&server.url, &server.key)?;
    let mut times = Vec::new();
    while is_running() {
        let (mut reply, sent) = connection.send("/health", None)?;
        times.push(reply.first_byte - sent);
        reply.text()?;
        thread::sleep(PAUSE);
    }
    Ok(times)
}

fn one_token_times(server: &Server, is_running: impl Fn() -> bool) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(&server.url, &server.key)?;
    let body = json!({ "model": server.model, "prompt": "Hi", "max_tokens": 1 }).to_string();
    let mut times = Vec::new();
    while is_running() {
        let (mut reply, sent) = connection.send("/v1/completions", Some(&body))?;
        let whole = reply.first_byte - sent;
        let timings = serde_json::from_str::<Value>(&reply.text()?)?["timings"].take();
        if let Some(computed) = computed_ms(&timings) {
            times.push(whole.saturating_sub(Duration::from_secs_f64(computed / 1e3)));
        }
        thread::sleep(PAUSE);
    }
    Ok(times)
}
