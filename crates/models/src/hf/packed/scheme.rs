//! `quantization_config` of `config.json`: quantization methods whose weights are repacked.

use super::super::fields::Fields;
use crate::error::Result;

/// Field of `config.json`, and its name in older files of compressed-tensors.
const KEYS: [&str; 2] = ["quantization_config", "compression_config"];

const SUPPORTED: &str = "one of `fp8`, `fbgemm_fp8`, `awq` (gemm, 4 bit), `gptq` (4 or 8 bit) and \
    `compressed-tensors` (pack-quantized, int-quantized, float-quantized): take the model in one of these, \
    unquantized, or as a GGUF file";

/// Largest group, in columns, and largest side of a tile.
const MAX_GROUP: usize = 1 << 24;

/// Quantization method of a folder.
#[derive(Debug, Clone)]
pub(in crate::hf) struct Scheme {
    pub(super) method: Method,
    /// Description for people, such as `awq, 4 bit, groups of 128`.
    pub(in crate::hf) shown: String,
}

/// Method, and parameters that the tensors do not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// `group`: columns; `None`: the whole row. `is_symmetric`: zero points are in the middle.
    Awq { group: Option<u64>, is_symmetric: bool },
    /// `first_zero` is added to stored zero points.
    Gptq { bits: u32, group: Option<u64>, first_zero: u16, is_symmetric: bool, has_act_order: bool },
    /// `tile`: rows and columns with one scale.
    Float8 { tile: Option<[u64; 2]> },
    /// `bits` of packed weights, `None`: the shapes tell.
    Compressed { bits: Option<u32>, needs_zero_points: bool, tile: Option<[u64; 2]> },
}

impl Scheme {
    /// Reads the method of a folder; `None` if it is not quantized. `has_mxfp4`: the family has
    /// tensors of its own for MXFP4, and for no other method.
    ///
    /// # Errors
    /// `InvalidField` and `MissingField` for methods and parameters without
    /// support.
    pub(in crate::hf) fn read(config: &Fields<'_>, has_mxfp4: bool) -> Result<Option<Self>> {
        let Some(key) = KEYS.into_iter().find(|key| config.get(key).is_some()) else { return Ok(None) };
        let Some(fields) = config.object(key)? else { return Ok(None) };
        let method = fields.text("quant_method")?;
        if has_mxfp4 {
            return match method {
                Some("mxfp4") => Ok(None),
                _ => Err(config.invalid(
                    key,
                    "absent, or of the `quant_method` `mxfp4`: other quantized weights of this family \
                     cannot be read",
                )),
            };
        }
        match method {
            Some("awq") => awq(&fields).map(Some),
            Some("gptq") => gptq(&fields).map(Some),
            Some(name @ ("fp8" | "fbgemm_fp8")) => float8(&fields, name).map(Some),
            Some("compressed-tensors") => compressed(&fields).map(Some),
            Some(_) => Err(fields.invalid("quant_method", SUPPORTED)),
            None => Err(fields.missing("quant_method", SUPPORTED)),
        }
    }
}

/// Checks that a field, where present, is one of `known`, in any case.
fn check_text(fields: &Fields<'_>, key: &str, known: &[&str]) -> Result<()> {
    match fields.text(key)? {
        Some(found) if !known.iter().any(|known| known.eq_ignore_ascii_case(found)) => {
            Err(fields.invalid(key, known.join(" or ")))
        }
        _ => Ok(()),
    }
}

/// Bits of a value, which must be one of `known`.
fn read_bits(fields: &Fields<'_>, key: &str, known: &[usize]) -> Result<u32> {
    let bits = fields.require_count(key, 1..=64)?;
    if !known.contains(&bits) {
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        return Err(fields.invalid(key, format!("{}: other widths have no blocks", known.join(" or "))));
    }
    Ok(bits as u32)
}

/// Columns of a group; `None` if it is the whole row.
fn read_group(fields: &Fields<'_>) -> Result<Option<u64>> {
    const KEY: &str = "group_size";
    if fields.get(KEY).and_then(serde_json::Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    Ok(fields.count(KEY, 1..=MAX_GROUP)?.map(|group| group as u64))
}

fn require_group(fields: &Fields<'_>) -> Result<Option<u64>> {
    match fields.get("group_size") {
        Some(_) => read_group(fields),
        None => Err(fields.missing("group_size", "columns of a group, or -1")),
    }
}

fn show_group(group: Option<u64>) -> String {
    group.map_or_else(|| "a group per row".to_owned(), |group| format!("groups of {group}"))
}

fn awq(fields: &Fields<'_>) -> Result<Scheme> {
    for key in ["version", "format", "checkpoint_format"] {
        check_text(fields, key, &["gemm"])?;
    }
    let bits = read_bits(fields, "bits", &[4])?;
    let group = require_group(fields)?;
    let is_symmetric = fields.flag("zero_point")? == Some(false);
    let shown = format!("awq, {bits} bit, {}", show_group(group));
    Ok(Scheme { method: Method::Awq { group, is_symmetric }, shown })
}

fn gptq(fields: &Fields<'_>) -> Result<Scheme> {
    const FORMAT: &str = "checkpoint_format";
    const MARLIN: &str = "is_marlin_format";
    for key in [FORMAT, "format"] {
        check_text(fields, key, &["gptq", "gptq_v2"])?;
    }
    if fields.flag(MARLIN)? == Some(true) {
        return Err(fields.invalid(MARLIN, "false: take the folder before it was packed for one kernel"));
    }
    let bits = read_bits(fields, "bits", &[4, 8])?;
    let group = require_group(fields)?;
    let format = fields.text(FORMAT)?.or(fields.text("format")?);
    let is_second = format.is_some_and(|format| format.eq_ignore_ascii_case("gptq_v2"));
    let has_act_order = fields.flag("desc_act")? == Some(true);
    let is_symmetric = fields.flag("sym")? == Some(true);
    let first_zero = u16::from(!is_second);
    let act_order = if has_act_order { ", act-order" } else { "" };
    let shown = format!("gptq, {bits} bit, {}{act_order}", show_group(group));
    Ok(Scheme { method: Method::Gptq { bits, group, first_zero, is_symmetric, has_act_order }, shown })
}

fn float8(fields: &Fields<'_>, name: &str) -> Result<Scheme> {
    check_text(fields, "fmt", &["e4m3", "float8_e4m3fn"])?;
    let tile = read_tile(fields, "weight_block_size")?;
    let shown = match tile {
        Some([rows, columns]) => format!("{name} (e4m3), tiles of {rows} x {columns}"),
        None => format!("{name} (e4m3)"),
    };
    Ok(Scheme { method: Method::Float8 { tile }, shown })
}

/// Rows and columns that share a scale.
fn read_tile(fields: &Fields<'_>, key: &str) -> Result<Option<[u64; 2]>> {
    // Files of compressed-tensors also have `128x128`.
    let listed = match fields.get(key) {
        None => return Ok(None),
        Some(serde_json::Value::String(text)) => text.split('x').map(|side| side.parse().ok()).collect(),
        Some(value) => {
            let sides = value.as_array().map(Vec::as_slice).unwrap_or_default();
            sides.iter().map(serde_json::Value::as_u64).collect::<Vec<_>>()
        }
    };
    match listed[..] {
        [Some(rows), Some(columns)]
            if (1..=MAX_GROUP as u64).contains(&rows) && (1..=MAX_GROUP as u64).contains(&columns) =>
        {
            Ok(Some([rows, columns]))
        }
        _ => Err(fields.invalid(key, "rows and columns of a tile, such as [128, 128]")),
    }
}

fn compressed(fields: &Fields<'_>) -> Result<Scheme> {
    const GROUPS: &str = "config_groups";
    const SPARSITY: &str = "sparsity_config";
    const TRANSFORM: &str = "transform_config";
    const FORMATS: [&str; 5] =
        ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"];
    check_text(fields, "format", &FORMATS)?;
    let format = fields.text("format")?.unwrap_or("mixed-precision");
    if let Some(sparsity) = fields.object(SPARSITY)? {
        check_text(&sparsity, "format", &["dense"])?;
    }
    let transform = fields.object(TRANSFORM)?;
    if transform.is_some_and(|transform| transform.iter().any(|(_, value)| !is_empty(value))) {
        return Err(fields.invalid(TRANSFORM, "empty: rotations at run time cannot be computed"));
    }
    let expected = "at least one group of quantized weights";
    let groups = fields.object(GROUPS)?.ok_or_else(|| fields.missing(GROUPS, expected))?;
    let mut parts = Vec::new();
    for (name, _) in groups.iter() {
        let Some(group) = groups.object(name)? else { continue };
        check_text(&group, "format", &FORMATS[..4])?;
        let weights = group.object("weights")?.ok_or_else(|| {
            group.missing("weights", "quantized weights: models with quantized activations only have none")
        })?;
        parts.push(WeightArguments::read(&weights)?);
    }
    let Some(&first) = parts.first() else { return Err(fields.invalid(GROUPS, expected)) };
    let is_same = parts.iter().all(|part| *part == first);
    let bits = parts.iter().all(|part| part.bits == first.bits).then_some(first.bits);
    let needs_zero_points = parts.iter().all(|part| !part.is_symmetric);
    let tile = if is_same { first.tile } else { None };
    let mut shown = format!("compressed-tensors, {format}");
    if is_same {
        let spread = match (first.group, first.tile) {
            (Some(group), _) => format!("groups of {group}"),
            (None, Some([rows, columns])) => format!("tiles of {rows} x {columns}"),
            (None, None) => "a scale per row or matrix".to_owned(),
        };
        shown = format!("{shown}, {} bit, {spread}", first.bits);
    }
    Ok(Scheme { method: Method::Compressed { bits, needs_zero_points, tile }, shown })
}

fn is_empty(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null => true,
        serde_json::Value::Object(map) => map.is_empty(),
        serde_json::Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// `weights` of a group of compressed-tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WeightArguments {
    bits: u32,
    is_symmetric: bool,
    group: Option<u64>,
    tile: Option<[u64; 2]>,
}

impl WeightArguments {
    fn read(weights: &Fields<'_>) -> Result<Self> {
        check_text(weights, "type", &["int", "float"])?;
        check_text(weights, "strategy", &["group", "channel", "tensor", "block"])?;
        let is_float = weights.text("type")?.is_some_and(|found| found.eq_ignore_ascii_case("float"));
        let bits = read_bits(weights, "num_bits", if is_float { &[8] } else { &[4, 8] })?;
        Ok(Self {
            bits,
            is_symmetric: weights.flag("symmetric")?.unwrap_or(true),
            group: read_group(weights)?,
            tile: read_tile(weights, "block_structure")?,
        })
    }
}
