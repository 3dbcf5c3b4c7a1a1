//! Ranges of values, and settings that need one another.

use super::{Bytes, Config, Model, Seconds, Tenant};

/// A setting that is refused.
pub(super) struct Fault {
    /// Key with its sections, such as `listen.port`; models are `models[0]`.
    pub(super) key: String,
    /// The value, what is expected and what to do.
    pub(super) reason: String,
}

pub(super) type Checked = Result<(), Fault>;

pub(super) fn require(condition: bool, key: &str, reason: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(Fault { key: key.to_owned(), reason: reason() }) }
}

/// See [`Config::check`].
pub(super) fn check(config: &Config) -> Checked {
    check_listen(config)?;
    check_limits(config)?;
    let share = config.learning.share.unwrap_or(1.0);
    require(share > 0.0 && share <= 1.0, "learning.share", || {
        format!("{share} is not above 0 and at most 1, a share of the time")
    })?;
    let share = config.learning.background_share.unwrap_or(0.0);
    require((0.0..=1.0).contains(&share), "learning.background_share", || {
        format!("{share} is not between 0 and 1, a share of one CPU")
    })?;
    require(config.learning.consolidation_lessons != Some(0), "learning.consolidation_lessons", || {
        "0 is not at least 1; learning.background_share = 0 turns consolidation off".to_owned()
    })?;
    for (name, tenant) in &config.tenants {
        check_tenant(&format!("tenants.{name}"), name, tenant)?;
        let has_folder = config.learning.folder.is_some();
        require(has_folder || !tenant.learning, &format!("tenants.{name}.learning"), || {
            "needs a folder for what is learned; set learning.folder too".to_owned()
        })?;
        require(has_folder || !tenant.memory, &format!("tenants.{name}.memory"), || {
            "needs a folder for the bank of lessons; set learning.folder too".to_owned()
        })?;
    }
    for (index, origin) in config.cors.origins.iter().enumerate() {
        let valid = origin == "*" || is_origin(origin);
        require(valid, "cors.origins", || {
            format!("item {index}, {origin:?}, is no origin such as \"https://chat.example.org\"")
        })?;
    }
    let queue = config.witness.queue;
    require((1..=1_000_000).contains(&queue), "witness.queue", || {
        format!("{queue} is not from 1 to 1000000 records")
    })?;
    let rotation = config.witness.rotate_bytes;
    require(rotation >= Bytes(64 << 10), "witness.rotate_bytes", || {
        format!("{rotation} is less than 64KiB")
    })?;
    check_models(&config.models)
}

fn check_listen(config: &Config) -> Checked {
    let listen = &config.listen;
    require(!listen.host.is_empty(), "listen.host", || {
        "is empty; use \"127.0.0.1\", or \"0.0.0.0\" for all addresses".to_owned()
    })?;
    let has_grpc = cfg!(feature = "grpc") || config.grpc.port.is_none();
    require(has_grpc, "grpc.port", || {
        "this program was built without gRPC; build it with `--features grpc`, or remove the setting \
         (--grpc-port)"
            .to_owned()
    })?;
    require(!config.grpc.transfers || config.grpc.port.is_some(), "grpc.transfers", || {
        "prefixes are exchanged over gRPC; set grpc.port (--grpc-port) too".to_owned()
    })?;
    match (&config.tls.certificate, &config.tls.key) {
        (Some(_), None) => require(false, "tls.certificate", || {
            "needs its private key; set tls.key (--tls-key) too".to_owned()
        }),
        (None, Some(_)) => require(false, "tls.key", || {
            "needs its certificate; set tls.certificate (--tls-certificate) too".to_owned()
        }),
        (Some(_), Some(_)) => require(listen.unix.is_none(), "tls.certificate", || {
            "has no use with listen.unix; remove one of them".to_owned()
        }),
        (None, None) => Ok(()),
    }
}

fn check_limits(config: &Config) -> Checked {
    let limits = &config.limits;
    let size = |key: &str, value: Bytes, least: u64, most: u64| {
        require((least..=most).contains(&value.0), key, || {
            format!("{value} is not from {} to {}", Bytes(least), Bytes(most))
        })
    };
    size("limits.body_bytes", limits.body_bytes, 1 << 10, 4 << 30)?;
    size("limits.header_bytes", limits.header_bytes, 1 << 10, 1 << 20)?;
    let count = |key: &str, value: usize, least: usize, most: usize| {
        require((least..=most).contains(&value), key, || format!("{value} is not from {least} to {most}"))
    };
    count("limits.headers", limits.headers, 8, 1000)?;
    // Bound of the JSON parser's own stack.
    count("limits.json_depth", limits.json_depth, 4, 127)?;
    count("limits.items", limits.items, 1, 1_000_000)?;
    count("limits.choices", limits.choices, 1, 1024)?;
    count("limits.connections", limits.connections, 1, 1_000_000)?;
    count("limits.connections_per_address", limits.connections_per_address, 1, 1_000_000)?;
    count("limits.requests", limits.requests, 1, 1_000_000)?;
    require(limits.output_tokens != Some(0), "limits.output_tokens", || {
        "0 tokens; leave it out for the context length".to_owned()
    })?;
    for (key, value) in [
        ("limits.request_timeout_s", limits.request_timeout_s),
        ("limits.header_timeout_s", limits.header_timeout_s),
        ("limits.body_timeout_s", limits.body_timeout_s),
        ("limits.idle_timeout_s", limits.idle_timeout_s),
        ("limits.write_timeout_s", limits.write_timeout_s),
        ("folders.sessions_interval_s", config.folders.sessions_interval_s),
    ] {
        require(value > Seconds::new(0), key, || "0 leaves no time; use a number above 0".to_owned())?;
    }
    Ok(())
}

fn check_tenant(section: &str, name: &str, tenant: &Tenant) -> Checked {
    require(is_name(name), section, || {
        "a tenant's name is 1 to 64 ASCII letters, digits, `.`, `_`, `-`".to_owned()
    })?;
    for (key, value) in [
        ("requests_per_minute", tenant.requests_per_minute),
        ("tokens_per_minute", tenant.tokens_per_minute),
        ("concurrent_requests", tenant.concurrent_requests),
        ("lessons_per_minute", tenant.lessons_per_minute),
    ] {
        require(value != Some(0), &format!("{section}.{key}"), || {
            "0 refuses every request; leave it out for no limit, disable keys to refuse a tenant".to_owned()
        })?;
    }
    let similarity = tenant.memory_similarity.unwrap_or(0.0);
    require((0.0..=1.0).contains(&similarity), &format!("{section}.memory_similarity"), || {
        format!("{similarity} is not from 0 to 1, a cosine similarity")
    })?;
    let share = tenant.kv_share.unwrap_or(1.0);
    require(share > 0.0 && share <= 1.0, &format!("{section}.kv_share"), || {
        format!("{share} is not above 0 and at most 1")
    })
}

fn check_models(models: &[Model]) -> Checked {
    let mut seen: Vec<&str> = Vec::new();
    for (index, model) in models.iter().enumerate() {
        let section = format!("models[{index}]");
        for name in model.name.iter().chain(&model.aliases) {
            let valid = !name.is_empty() && name.len() <= 256 && !name.contains(char::is_control);
            require(valid, &format!("{section}.name"), || {
                format!("{name:?} is not 1 to 256 bytes without control characters")
            })?;
            require(!seen.contains(&name.as_str()), &format!("{section}.name"), || {
                format!("{name:?} names two models; names and aliases are different")
            })?;
            seen.push(name);
        }
        require(model.context != Some(0), &format!("{section}.context"), || {
            "0 tokens; leave it out for the model's context length".to_owned()
        })?;
        require(
            model.threads.is_none_or(|n| (1..=4096).contains(&n)),
            &format!("{section}.threads"),
            || "is not from 1 to 4096; leave it out for one thread for each core".to_owned(),
        )?;
    }
    Ok(())
}

/// True for names of tenants and keys, which stand in logs, headers and file names.
pub(crate) fn is_name(name: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&name.len()) && name.chars().all(valid)
}

/// True for scheme, host and port without a path.
fn is_origin(text: &str) -> bool {
    let rest = text.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
    rest.is_some_and(|(_, host)| {
        !host.is_empty()
            && !host.contains(|c: char| c.is_whitespace() || c.is_control() || "/\\?#@*,".contains(c))
    })
}
