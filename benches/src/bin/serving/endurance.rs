//! Endurance of a server on a device: a program is started, gets a number of requests from many
//! clients, and is sampled meanwhile: memory of the process, of the device by the server's count,
//! by the driver's and by `nvidia-smi`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;
use crate::http::Connection;
use crate::load::Server;
use crate::soak::sample;

/// Samples of a run, besides the first and the last one.
const SAMPLES: usize = 10;
/// Failures whose text is kept.
const KEPT_FAILURES: usize = 5;
/// Time between two looks at the number of requests, and for memory to be given back at the end.
const LOOK: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_secs(2);

/// Prompts whose greedy texts are compared with those of the program's `generate`.
const PROMPTS: [&str; 3] = [
    "Once upon a time there was a turtle who",
    "The sea was calm and the",
    "What is a glacier? A glacier is",
];
/// Tokens of these texts.
const TOKENS: &str = "32";

/// Settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Endurance {
    /// The program `ruvllm`.
    pub(crate) program: String,
    /// Its arguments of model and device, as of `generate` and of `serve`.
    pub(crate) model: Vec<String>,
    /// Its further arguments of `serve`.
    pub(crate) serve: Vec<String>,
    pub(crate) requests: usize,
    pub(crate) clients: usize,
}

/// The server's process; it is asked to end, and ended after a while, when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let asked = Instant::now();
        while asked.elapsed() < SETTLE * 5 {
            if self.0.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            thread::sleep(LOOK);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program and returns the document.
pub(crate) fn run(settings: &Endurance) -> Result<Value> {
    let idle = gpu_mib();
    let begun = Instant::now();
    let (process, server) = start(settings)?;
    let load_seconds = begun.elapsed().as_secs_f64();
    let pid = process.0.id();
    let look = |requests: usize| state(&server, pid, idle, requests);
    let mut samples = vec![look(0)?];
    let expected = texts_of_generate(settings)?;
    let before = compare(&server, &expected)?;
    let next = AtomicUsize::new(0);
    let (done, tokens) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    let start = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let client = || {
            let mut connection = None;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= settings.requests {
                    return;
                }
                match call(&server, &mut connection, number) {
                    Ok(generated) => _ = tokens.fetch_add(generated, Ordering::Relaxed),
                    Err(error) => {
                        connection = None;
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let clients: Vec<_> = (0..settings.clients).map(|_| scope.spawn(client)).collect();
        for part in 1..=SAMPLES {
            let until = settings.requests * part / SAMPLES;
            while done.load(Ordering::Relaxed) < until && clients.iter().any(|client| !client.is_finished()) {
                thread::sleep(LOOK);
            }
            samples.push(look(done.load(Ordering::Relaxed))?);
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    thread::sleep(SETTLE);
    samples.push(look(settings.requests)?);
    let after = compare(&server, &expected)?;
    drop(process);
    thread::sleep(SETTLE);
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    let tokens = tokens.into_inner();
    Ok(json!({
        "model": settings.model, "serve": settings.serve,
        "requests": settings.requests, "clients": settings.clients,
        "failed": failures.len(), "failures": &failures[..failures.len().min(KEPT_FAILURES)],
        "load_seconds": load_seconds, "seconds": seconds,
        "output_tokens": tokens, "tokens_per_s": tokens as f64 / seconds,
        "texts": {"compared": PROMPTS.len(), "equal_before": before, "equal_after": after},
        "gpu_mib": {"before_start": idle, "after_end": gpu_mib()},
        "samples": samples,
    }))
}

/// Starts the server and reads its address from the JSON document that it prints.
fn start(settings: &Endurance) -> Result<(Process, Server)> {
    let mut command = Command::new(&settings.program);
    command.args(["serve", "--json", "--port", "0"]).args(&settings.model).args(&settings.serve);
    let mut process = Process(command.stdout(Stdio::piped()).spawn()?);
    let output = process.0.stdout.take().ok_or("no output of the server")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let document: Value = serde_json::from_str(&line)
        .map_err(|error| format!("{} serve ended or wrote no document: {error}", settings.program))?;
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let (url, model) = text("/address").zip(text("/models/0/name")).ok_or("no address of the server")?;
    Ok((process, Server { name: "ruvllm".to_owned(), url, key: String::new(), model }))
}

/// Memory of process and device after a number of requests.
fn state(server: &Server, pid: u32, idle: Option<u64>, requests: usize) -> Result<Value> {
    let mut connection = Connection::open(&server.url, &server.key)?;
    let metrics = connection.send("/metrics", None)?.0.text()?;
    let gpu = gpu_mib();
    Ok(json!({
        "requests": requests,
        "process": sample(pid, 0.0, requests)?.json(),
        "device": figures(&metrics, "ruvllm_device_memory"),
        "gpu_mib": gpu,
        "gpu_mib_of_server": gpu.zip(idle).map(|(now, idle)| now.saturating_sub(idle)),
    }))
}

/// Metrics whose names begin with `prefix`, with their labels.
fn figures(metrics: &str, prefix: &str) -> BTreeMap<String, f64> {
    let lines = metrics.lines().filter(|line| line.starts_with(prefix));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

/// Memory in use on the first GPU, in MiB, by `nvidia-smi`; `None` without the program.
fn gpu_mib() -> Option<u64> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=memory.used", "--format=csv,noheader,nounits"]);
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next()?.trim().parse().ok()
}

/// Greedy texts of the program's `generate`.
fn texts_of_generate(settings: &Endurance) -> Result<Vec<String>> {
    let text = |prompt: &str| -> Result<String> {
        let mut command = Command::new(&settings.program);
        command.args(["generate", "--json", "--temperature", "0", "-n", TOKENS]).args(&settings.model);
        let output = command.arg(prompt).output()?;
        let document: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| format!("generate: {}", String::from_utf8_lossy(&output.stderr)))?;
        Ok(document["text"].as_str().ok_or("a document of generate without text")?.to_owned())
    };
    PROMPTS.into_iter().map(text).collect()
}

/// Number of the server's greedy texts that are those expected.
fn compare(server: &Server, expected: &[String]) -> Result<usize> {
    let mut connection = Connection::open(&server.url, &server.key)?;
    let mut equal = 0;
    for (prompt, expected) in PROMPTS.into_iter().zip(expected) {
        let tokens: usize = TOKENS.parse()?;
        let body = json!({"model": server.model, "prompt": prompt, "temperature": 0, "max_tokens": tokens});
        let reply: Value =
            serde_json::from_str(&connection.send("/v1/completions", Some(&body.to_string()))?.0.text()?)?;
        let text = reply["choices"][0]["text"].as_str().ok_or_else(|| reply.to_string())?;
        equal += usize::from(text == expected);
    }
    Ok(equal)
}

/// Makes the request with this number, which decides its length and whether it is streamed;
/// returns the number of generated tokens.
fn call(server: &Server, connection: &mut Option<Connection>, number: usize) -> Result<usize> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(&server.url, &server.key)?),
    };
    let prompt = format!("Tell story {number}. ") + &"It was a long day by the river. ".repeat(number % 24);
    let (streams, tokens) = (number.is_multiple_of(2), 16 + number % 48);
    let body = json!({
        "model": server.model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "stream": streams,
        "stream_options": {"include_usage": true},
    });
    let (mut reply, _) = connection.send("/v1/completions", Some(&body.to_string()))?;
    let (status, text) = (reply.status, reply.text()?);
    if status != 200 {
        return Err(format!("status {status}: {text}").into());
    }
    let of = |event: &Value| event["usage"]["completion_tokens"].as_u64();
    let generated = match streams {
        true => {
            let events =
                text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
            events.filter_map(|event: Value| of(&event)).next_back()
        }
        false => serde_json::from_str(&text).ok().as_ref().and_then(of),
    };
    match generated {
        Some(generated) if generated == tokens as u64 => Ok(tokens),
        _ => Err(format!("{tokens} tokens wanted: {}", text.chars().take(400).collect::<String>()).into()),
    }
}
