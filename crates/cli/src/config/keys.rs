//! Table of the keys that a configuration file may have.

use ruvllm_kernels::Isa;

/// Environment variable that names a model when `--model` is absent.
pub(crate) const MODEL_VARIABLE: &str = "RUVLLM_MODEL";

/// A key: the long name of a flag.
#[derive(Debug)]
pub(super) struct Key {
    /// The name.
    pub(super) name: &'static str,
    /// Commands whose flag it sets.
    commands: Commands,
    /// Environment variable that takes precedence over the file.
    pub(super) variable: Option<&'static str>,
}

/// Commands that a key applies to. `bench` and `eval` take only the model from the file, so that
/// results do not depend on personal settings.
#[derive(Debug, Clone, Copy)]
enum Commands {
    /// The program itself: flags of every command.
    All,
    /// Applied where the model is chosen, not by the parser.
    Model,
    /// Commands that run a model, and the plan for one.
    Running,
    /// Commands that generate text.
    Generating,
}

impl Key {
    const fn new(name: &'static str, commands: Commands) -> Self {
        Self { name, commands, variable: None }
    }

    /// True if the key applies to a command.
    pub(super) fn is_for(&self, command: &str) -> bool {
        match self.commands {
            Commands::All => command == "ruvllm",
            Commands::Model => command == "generate",
            Commands::Running => {
                matches!(command, "generate" | "chat" | "run" | "serve" | "embed" | "rerank" | "doctor")
            }
            Commands::Generating => matches!(command, "generate" | "chat" | "run" | "serve"),
        }
    }

    /// Identifier of the flag in the parser.
    pub(super) fn id(&self) -> String {
        self.name.replace('-', "_")
    }

    /// True if the value is passed to the parser.
    pub(super) fn is_parsed(&self) -> bool {
        !matches!(self.commands, Commands::Model)
    }
}

/// Every key, in the order of the help.
pub(super) const KEYS: [Key; 44] = [
    Key { variable: Some(MODEL_VARIABLE), ..Key::new("model", Commands::Model) },
    Key::new("threads", Commands::Running),
    Key { variable: Some(Isa::VARIABLE), ..Key::new("isa", Commands::Running) },
    Key::new("quantize", Commands::Running),
    Key::new("no-mmap", Commands::Running),
    Key::new("mlock", Commands::Running),
    Key::new("context", Commands::Running),
    Key::new("kv", Commands::Running),
    Key::new("kv-budget", Commands::Running),
    Key::new("pressure", Commands::Running),
    Key::new("gpu-cache", Commands::Running),
    Key::new("prefix-cache", Commands::Generating),
    Key::new("prefix-dir", Commands::Generating),
    Key::new("prefix-key", Commands::Generating),
    Key::new("prefix-limit", Commands::Generating),
    Key::new("draft", Commands::Generating),
    Key::new("speculation", Commands::Generating),
    Key::new("max-tokens", Commands::Generating),
    Key::new("temperature", Commands::Generating),
    Key::new("top-k", Commands::Generating),
    Key::new("top-p", Commands::Generating),
    Key::new("min-p", Commands::Generating),
    Key::new("typical-p", Commands::Generating),
    Key::new("repeat-penalty", Commands::Generating),
    Key::new("repeat-last-n", Commands::Generating),
    Key::new("presence-penalty", Commands::Generating),
    Key::new("frequency-penalty", Commands::Generating),
    Key::new("top-nsigma", Commands::Generating),
    Key::new("dry-multiplier", Commands::Generating),
    Key::new("dry-base", Commands::Generating),
    Key::new("dry-allowed-length", Commands::Generating),
    Key::new("dry-penalty-last-n", Commands::Generating),
    Key::new("xtc-probability", Commands::Generating),
    Key::new("xtc-threshold", Commands::Generating),
    Key::new("mirostat", Commands::Generating),
    Key::new("mirostat-lr", Commands::Generating),
    Key::new("mirostat-ent", Commands::Generating),
    Key::new("dynatemp-range", Commands::Generating),
    Key::new("dynatemp-exp", Commands::Generating),
    Key::new("samplers", Commands::Generating),
    Key::new("seed", Commands::Generating),
    Key::new("color", Commands::All),
    Key::new("quiet", Commands::All),
    Key::new("verbose", Commands::All),
];

/// Finds a key by name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Key nearest to a mistyped name (Damerau-Levenshtein distance), if it is near enough.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    /// Longer names are not compared: the time grows with their length.
    const MOST_BYTES: usize = 40;
    if name.len() > MOST_BYTES {
        return None;
    }
    let distance = |key: &Key| strsim::damerau_levenshtein(&name.replace('_', "-"), key.name);
    let nearest = KEYS.iter().min_by_key(|key| distance(key))?;
    (distance(nearest) <= name.len().div_ceil(3)).then_some(nearest.name)
}
