//! Parsers of flag values. Their errors are usage errors and say what is expected.

use std::sync::Arc;
use std::time::Duration;

use gguf_rs_lite::TensorType;
use ruvllm::{DryBreakers, FolderKey, Isa, KvCalibration, KvPolicy, SamplerOrder};
use ruvllm_models::quantize::{Recipe, TypeOverride};
use ruvllm_models::weight_format;
use serde_json::Value;

use crate::one_line::one_line;

/// Parses a whole number of at least 1.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number of at least 1".to_owned()),
        Ok(n) => Ok(n),
    }
}

/// Parses a number of choices of one prompt.
pub(crate) fn choices(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=128).contains(n));
    n.ok_or_else(|| "expected a whole number from 1 to 128".to_owned())
}

/// Parses a number of most likely tokens.
pub(crate) fn logprobs(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (0..=128).contains(n));
    n.ok_or_else(|| "expected a whole number from 0 to 128".to_owned())
}

/// Value of a flag; `None` for the number that means the default, as in other programs (-1 or 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrDefault<T>(pub(crate) Option<T>);

/// Parses a number of tokens; -1 = no limit but the context.
pub(crate) fn tokens_or_all(text: &str) -> Result<OrDefault<usize>, String> {
    or_default(text, "-1")
        .ok_or_else(|| "expected a whole number, 0 or more; -1 = no limit but the context".to_owned())
}

/// Parses a number of tokens, at least 1; -1 = no limit but the context.
pub(crate) fn some_tokens_or_all(text: &str) -> Result<OrDefault<usize>, String> {
    or_default(text, "-1")
        .filter(|limit| limit.0 != Some(0))
        .ok_or_else(|| "expected a whole number of at least 1; -1 = no limit but the context".to_owned())
}

/// Parses a context length in tokens; 0 = default.
pub(crate) fn context(text: &str) -> Result<OrDefault<usize>, String> {
    or_default(text, "0").ok_or_else(|| {
        "expected a whole number of at least 1; 0 = the model's, as far as memory allows".to_owned()
    })
}

/// Parses an unsigned 64-bit number.
pub(crate) fn whole_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number from 0 to 2^64 - 1".to_owned())
}

/// Parses a seed; -1 = a random one.
pub(crate) fn seed(text: &str) -> Result<OrDefault<u64>, String> {
    or_default(text, "-1")
        .ok_or_else(|| "expected a whole number from 0 to 2^64 - 1; -1 = another one each time".to_owned())
}

fn or_default<T: std::str::FromStr>(text: &str, default: &str) -> Option<OrDefault<T>> {
    if text == default { Some(OrDefault(None)) } else { Some(OrDefault(Some(text.parse().ok()?))) }
}

/// Parses a whole number, 0 included.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number, 0 or more".to_owned())
}

/// Parses a finite number.
pub(crate) fn finite(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() => Ok(x),
        _ => Err("expected a finite number".to_owned()),
    }
}

/// Parses a finite number of at least 0.
pub(crate) fn non_negative(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|x| *x >= 0.0).ok_or_else(|| "expected a number of at least 0".to_owned())
}

/// Parses a finite number above 0.
pub(crate) fn above_zero(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|x| *x > 0.0).ok_or_else(|| "expected a number above 0".to_owned())
}

/// Parses a finite number of at least one.
pub(crate) fn at_least_one(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|x| *x >= 1.0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

/// A number of standard deviations; -1 is off, as in llama.cpp.
pub(crate) fn sigmas(text: &str) -> Result<f32, String> {
    if matches!(text, "-1" | "-1.0") { Ok(0.0) } else { non_negative(text) }
}

/// A number of recent tokens; -1 is all of them.
pub(crate) fn recent_or_all(text: &str) -> Result<OrDefault<usize>, String> {
    or_default(text, "-1").ok_or_else(|| "expected a whole number, 0 or more; -1 = all".to_owned())
}

/// A version of Mirostat; 0 is off.
pub(crate) fn mirostat(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "2" => Ok(2),
        _ => Err("expected 2 or 0 (off); there is no Mirostat 1".to_owned()),
    }
}

/// Name of the default order of samplers.
pub(crate) const ALL_SAMPLERS: &str = "all";

/// An order of samplers.
pub(crate) fn samplers(text: &str) -> Result<SamplerOrder, String> {
    if text == ALL_SAMPLERS {
        return Ok(SamplerOrder::default());
    }
    text.parse().map_err(|error: ruvllm::Error| error.to_string())
}

/// A sequence breaker, in which `\n`, `\t` and `\\` stand for characters; `none` is none.
pub(crate) fn breaker(text: &str) -> Result<Option<String>, String> {
    if text == "none" {
        return Ok(None);
    }
    let text = unescaped(text);
    let most = DryBreakers::MAX_BYTES;
    if text.is_empty() || text.len() > most {
        return Err(format!("expected a text of 1 to {most} bytes, or none"));
    }
    Ok(Some(text))
}

/// `text` with `\n`, `\t` and `\\` as characters; other backslashes stay.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let escaped = match (c, rest.as_str().chars().next()) {
            ('\\', Some('n')) => '\n',
            ('\\', Some('t')) => '\t',
            ('\\', Some('\\')) => '\\',
            _ => {
                out.push(c);
                continue;
            }
        };
        rest.next();
        out.push(escaped);
    }
    out
}

/// Parses a number in [0, 1].
pub(crate) fn fraction(text: &str) -> Result<f32, String> {
    finite(text)
        .ok()
        .filter(|x| (0.0..=1.0).contains(x))
        .ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// Parses `ID=VALUE` of a logit bias.
pub(crate) fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, value)| Some((id.trim().parse().ok()?, value.trim().parse().ok()?)));
    match parsed {
        Some((id, value)) if f32::is_finite(value) || value == f32::NEG_INFINITY => Ok((id, value)),
        _ => Err("expected ID=VALUE with a token id and a number, e.g. 42=-1.5 (-inf forbids the token)"
            .to_owned()),
    }
}

/// Parses a size in bytes: a number, optionally with KiB, MiB or GiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" => Some(1usize),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let number = number.parse::<usize>().ok();
    let bytes = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "expected bytes like 1048576, 512MiB or 2GiB".to_owned())
}

/// Parses a time: a whole number of seconds, minutes, hours or days, such as 90d.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(86_400),
        _ => None,
    };
    let total = number.parse::<u64>().ok().zip(seconds).and_then(|(number, unit)| number.checked_mul(unit));
    total.map(Duration::from_secs).ok_or_else(|| "expected a time like 30s, 10m, 12h or 90d".to_owned())
}

/// Help text of `--kv`.
pub(crate) const KV_HELP: &str =
    "KV-cache type: f32, f16, bf16, q8, q4, kivi4, nuq3, turbo3, kivi2, k4v2, tiered";

/// Parses the KV-cache policy.
pub(crate) fn kv_policy(text: &str) -> Result<KvPolicy, String> {
    text.parse().map_err(|error: ruvllm_kv_cache::Error| error.to_string())
}

/// Reads a file of `ruvllm calibrate-kv`. The engine checks at start that it fits the model.
pub(crate) fn kv_calibration(path: &str) -> Result<Arc<KvCalibration>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read it: {error}"))?;
    KvCalibration::from_bytes(&bytes).map(Arc::new).map_err(|error| one_line(&error))
}

/// Reads the key of a shared prefix folder from a private file.
pub(crate) fn prefix_key(path: &str) -> Result<FolderKey, String> {
    FolderKey::from_file(path.as_ref()).map_err(|error| one_line(&error))
}

/// Parses the name of an instruction set. The engine checks at start that the CPU has it.
pub(crate) fn isa(text: &str) -> Result<Isa, String> {
    text.parse().map_err(|error: ruvllm_kernels::Error| error.to_string())
}

/// Parses a storage type of `ruvllm quantize`.
pub(crate) fn recipe(name: &str) -> Result<Recipe, String> {
    let names = || Recipe::ALL.iter().map(Recipe::name).collect::<Vec<_>>().join(", ");
    Recipe::from_name(name).ok_or_else(|| format!("expected one of {}", names()))
}

/// Parses `PATTERN=TYPE` of `--tensor-type`.
pub(crate) fn type_override(text: &str) -> Result<TypeOverride, String> {
    let (pattern, name) = text.rsplit_once('=').ok_or("expected PATTERN=TYPE")?;
    let known = |tensor_type: &TensorType| weight_format(*tensor_type).is_some();
    let names = || {
        let known = TensorType::ALL.iter().filter(|tensor_type| known(tensor_type));
        known.map(|tensor_type| tensor_type.name()).collect::<Vec<_>>().join(", ")
    };
    let tensor_type = TensorType::from_name(name)
        .filter(known)
        .ok_or_else(|| format!("expected one of {} after the pattern", names()))?;
    Ok(TypeOverride { pattern: pattern.to_owned(), tensor_type })
}

/// Parses `NAME=VALUE`; a value that is not JSON is a string.
pub(crate) fn variable(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
            Ok((name.to_owned(), value))
        }
        _ => Err("expected NAME=VALUE, e.g. enable_thinking=false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_range_are_refused() {
        for (text, ok) in
            [("0", false), ("1", true), ("-1", false), ("x", false), ("1.5", false), ("", false)]
        {
            assert_eq!(positive(text).is_ok(), ok, "{text:?}");
        }
        for (text, ok) in
            [("0", true), ("1", true), ("1.01", false), ("-0.1", false), ("nan", false), ("inf", false)]
        {
            assert_eq!(fraction(text).is_ok(), ok, "{text:?}");
        }
        assert_eq!(tokens_or_all("-1"), Ok(OrDefault(None)));
        assert_eq!(tokens_or_all("0"), Ok(OrDefault(Some(0))));
        assert!(some_tokens_or_all("0").is_err() && some_tokens_or_all("1").is_ok());
        assert_eq!(context("0"), Ok(OrDefault(None)));
        assert_eq!(seed("-1"), Ok(OrDefault(None)));
        assert_eq!(seed("18446744073709551615"), Ok(OrDefault(Some(u64::MAX))));
        assert!(tokens_or_all("-2").is_err() && context("-1").is_err() && seed("abc").is_err());
        assert!(above_zero("0").is_err() && above_zero("1e-3").is_ok());
        assert!(non_negative("-1").is_err() && non_negative("0").is_ok());
        assert!(finite("nan").is_err() && finite("-2").is_ok());
    }

    #[test]
    fn values_of_llama_cpp_that_mean_off_are_read() {
        assert_eq!((sigmas("-1"), sigmas("-1.0"), sigmas("1.5")), (Ok(0.0), Ok(0.0), Ok(1.5)));
        assert!(sigmas("-2").is_err() && sigmas("inf").is_err());
        assert_eq!(recent_or_all("-1"), Ok(OrDefault(None)));
        assert!(recent_or_all("-2").is_err());
        assert_eq!((mirostat("0"), mirostat("2")), (Ok(0), Ok(2)));
        assert!(mirostat("1").is_err_and(|text| text.contains("no Mirostat 1")));
        assert!(at_least_one("0.9").is_err() && at_least_one("1").is_ok());
        assert_eq!(samplers("top_k;temp").map(|order| order.to_string()), Ok("top_k;temperature".to_owned()));
        assert_eq!(samplers("all"), Ok(SamplerOrder::default()));
        assert!(samplers("top_k,temp").is_err());
    }

    #[test]
    fn breakers_have_escapes() {
        for (text, breaker) in [("\\n", "\n"), ("a\\t\\\\n", "a\t\\n"), ("\\x\\", "\\x\\"), (":", ":")] {
            assert_eq!(super::breaker(text), Ok(Some(breaker.to_owned())), "{text:?}");
        }
        assert_eq!(breaker("none"), Ok(None));
        assert!(breaker("").is_err() && breaker(&"x".repeat(129)).is_err());
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("1000"), Ok(1000));
        assert_eq!(bytes("3KiB"), Ok(3 << 10));
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        for text in ["", "0", "0MiB", "MiB", "-1", "1.5GiB", "1MB", "99999999999GiB"] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("90d"), Ok(Duration::from_secs(90 * 86_400)));
        for text in ["", "1", "d", "1y", "-1d", "1.5h", "99999999999999999999d", "9999999999999999999d"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn logit_biases_are_read() {
        assert_eq!(logit_bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(logit_bias("0=-inf"), Ok((0, f32::NEG_INFINITY)));
        for text in ["42", "=1", "a=1", "1=", "1=nan", "1=inf", "-1=2"] {
            assert!(logit_bias(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn variables_are_json_or_text() {
        let value = |text: &str| variable(text).map(|(_, value)| value);
        assert_eq!(value("a=false"), Ok(Value::Bool(false)));
        assert_eq!(value("a=x=y"), Ok(Value::from("x=y")));
        assert_eq!(value("a="), Ok(Value::from("")));
        assert!(variable("a").is_err() && variable("=1").is_err());
    }
}
