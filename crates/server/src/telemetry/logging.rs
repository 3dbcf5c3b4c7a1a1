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

/// Form and level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogSettings {
    /// One JSON object per line instead of a line for a person.
    pub json: bool,
    /// Least severity.
    pub level: LevelFilter,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { json: false, level: LevelFilter::INFO }
    }
}

impl LogSettings {
    /// Own events from the level on, those of libraries from the level `warn` on.
    fn filter(self) -> Targets {
        Targets::new().with_default(self.level.min(LevelFilter::WARN)).with_target("ruvllm", self.level)
    }

    /// The layer that writes log lines.
    pub(super) fn layer<W>(self, writer: W, colors: bool) -> Box<dyn Layer<Registry> + Send + Sync>
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colors);
        if self.json {
            layer.json().flatten_event(true).with_span_list(false).with_filter(self.filter()).boxed()
        } else {
            layer.with_filter(self.filter()).boxed()
        }
    }

    /// The layer that writes to standard error, in colors on a terminal.
    pub(super) fn stderr_layer(self) -> Box<dyn Layer<Registry> + Send + Sync> {
        self.layer(std::io::stderr, std::io::stderr().is_terminal())
    }
}

/// Sends the log of this process to standard error.
///
/// # Errors
/// [`TryInitError`] if the process has a subscriber already.
pub fn init(settings: LogSettings) -> Result<(), TryInitError> {
    tracing_subscriber::registry().with(settings.stderr_layer()).try_init()
}
