//! Set-up of the log on standard error.
//!
//! Log lines are events of `tracing`, within the span of their request. Neither API keys nor
//! prompts nor outputs are fields of any event or span; libraries log warnings and errors alone,
//! because at lower levels some log what they send and receive.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Log, LogFormat, LogLevel};

/// The layer of all subscribers here.
pub(super) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Own events from the level on, those of libraries from the level `warn` on.
fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("ruvllm", level)
}

/// The layer that writes log lines.
pub(super) fn layer<W>(log: &Log, writer: W, colors: bool) -> BoxedLayer
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colors);
    match log.format {
        LogFormat::Text => layer.with_filter(filter(log.level)).boxed(),
        LogFormat::Json => {
            layer.json().flatten_event(true).with_span_list(false).with_filter(filter(log.level)).boxed()
        }
    }
}

/// The layer that writes to standard error, in colors on a terminal.
pub(super) fn stderr_layer(log: &Log) -> BoxedLayer {
    layer(log, std::io::stderr, std::io::stderr().is_terminal())
}

/// Sends the log of this process to standard error.
///
/// # Errors
/// [`TryInitError`] if the process has a subscriber already.
pub fn init(log: &Log) -> Result<(), TryInitError> {
    tracing_subscriber::registry().with(stderr_layer(log)).try_init()
}
